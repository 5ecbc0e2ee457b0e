//! `cargo xtask ptx`: the PTX of the copy kernel, made from its source, and checked against it.

use std::{
    fmt,
    io::Write,
    path::PathBuf,
    process::{Command, ExitCode, Stdio},
};

use crate::process::workspace;

/// What is done with the PTX.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// Made anew.
    Build,
    /// Compared with its source, and with what NVRTC makes of it where there is NVRTC.
    Check,
}

const DIR: &str = "crates/kvo-cuda/kernels";
const SOURCE: &str = "copy.cu";
const PTX: &str = "copy.ptx";
const COMPILER: &str = "compile.py";

/// `compute_80`: A100 and newer. NVRTC 12.1 writes PTX 8.1, which every driver from 530 on takes. The definition keeps
/// a header that NVRTC includes unasked from leaving its constants in the text.
const OPTIONS: [&str; 3] = ["--gpu-architecture=compute_80", "--std=c++17", "-D__NV_TARGET_H"];

const HEADER_LINES: usize = 4;

/// What `compile.py` exits with if there is no NVRTC that it can use.
const NO_NVRTC_STATUS: i32 = 3;

/// Why the PTX could not be made, or is not what it should be.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    /// Without NVRTC nothing can be compiled. What can be checked without it holds.
    NoNvrtc(String),
    /// The PTX is not of its source.
    Stale(String),
    /// NVRTC, git or a file failed.
    Broken(String),
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoNvrtc(why) => write!(
                f,
                "{why}: nothing was compiled. Install nvidia-cuda-nvrtc-cu12==12.1.105 with pip, and name that Python \
                 by KVO_PYTHON"
            ),
            Self::Stale(why) => write!(f, "{why}; run `cargo xtask ptx`"),
            Self::Broken(why) => write!(f, "{why}"),
        }
    }
}

pub(crate) fn run(mode: Mode) -> ExitCode {
    let done = match mode {
        Mode::Build => build().map(|()| format!("{DIR}/{PTX} is written")),
        Mode::Check => check().map(|()| format!("{DIR}/{PTX} is what NVRTC makes of {SOURCE}")),
    };
    match done {
        Ok(done) => println!("{done}"),
        Err(failure @ Failure::NoNvrtc(_)) if mode == Mode::Check => {
            println!("SKIPPED, hashes agree, but {failure}");
        }
        Err(failure) => {
            eprintln!("error: {failure}");
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}

fn build() -> Result<(), Failure> {
    let body = compile()?;
    let text = format!("{}{body}", header(&hash(&read(SOURCE)?)?, &hash(&body)?));
    let path = path(PTX);
    std::fs::write(&path, text).map_err(|error| broken(&path.display(), &error))
}

/// The hashes first, which need no NVRTC.
pub(crate) fn check() -> Result<(), Failure> {
    let text = read(PTX)?;
    let body = body(&text);
    check_header(&text, &hash(&read(SOURCE)?)?, &hash(body)?)?;
    if compile()? == body {
        Ok(())
    } else {
        Err(Failure::Stale(format!("NVRTC makes another {PTX} of {SOURCE}")))
    }
}

/// What stands above the compiler's text.
fn header(source_hash: &str, ptx_hash: &str) -> String {
    format!(
        "// Made by `cargo xtask ptx` from {SOURCE}; not to be edited. Hashes are those of `git hash-object`.\n\
         // options {}\n\
         // source  {source_hash}\n\
         // ptx     {ptx_hash}\n",
        OPTIONS.join(" ")
    )
}

/// What stands below the header.
fn body(text: &str) -> &str {
    text.match_indices('\n').nth(HEADER_LINES - 1).map_or("", |(end, _)| &text[end + 1..])
}

fn check_header(text: &str, source_hash: &str, ptx_hash: &str) -> Result<(), Failure> {
    let wanted = header(source_hash, ptx_hash);
    let mut lines = text.lines();
    for wanted in wanted.lines() {
        let found = lines.next().unwrap_or_default();
        if found != wanted {
            return Err(Failure::Stale(format!("{PTX} says \"{found}\", it should be \"{wanted}\"")));
        }
    }
    Ok(())
}

/// The PTX of the source.
fn compile() -> Result<String, Failure> {
    let python = std::env::var_os("KVO_PYTHON").unwrap_or_else(|| "python3".into());
    let mut command = Command::new(&python);
    command.arg(path(COMPILER)).arg(path(SOURCE)).args(OPTIONS);
    let output = command
        .output()
        .map_err(|error| Failure::NoNvrtc(format!("{} cannot be run: {error}", python.display())))?;
    let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    match output.status.code() {
        Some(0) => String::from_utf8(output.stdout).map_err(|error| broken(&SOURCE, &error)),
        Some(NO_NVRTC_STATUS) => Err(Failure::NoNvrtc(said)),
        _ => Err(broken(&COMPILER, &said)),
    }
}

/// The hash that git has for a file of these bytes.
fn hash(text: &str) -> Result<String, Failure> {
    let mut git = Command::new("git");
    git.args(["hash-object", "--stdin"]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut git = git.spawn().map_err(|error| broken(&"git hash-object", &error))?;
    // The pipe is closed at the end of this statement, which git waits for.
    let written = git.stdin.take().map(|mut stdin| stdin.write_all(text.as_bytes()));
    let output = git.wait_with_output().map_err(|error| broken(&"git hash-object", &error))?;
    match written {
        Some(Ok(())) if output.status.success() => {
            Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
        }
        _ => Err(broken(&"git hash-object", &output.status)),
    }
}

fn path(file: &str) -> PathBuf {
    workspace().join(DIR).join(file)
}

fn read(file: &str) -> Result<String, Failure> {
    let path = path(file);
    std::fs::read_to_string(&path).map_err(|error| broken(&path.display(), &error))
}

fn broken(what: &dyn fmt::Display, why: &dyn fmt::Display) -> Failure {
    Failure::Broken(format!("{what}: {why}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_a_header_and_a_body() {
        let text = format!("{}\n.version 8.1\n", header("12ab", "34cd"));
        assert_eq!(body(&text), "\n.version 8.1\n");
        assert_eq!(check_header(&text, "12ab", "34cd"), Ok(()));
        assert_eq!(body("// one\n// two\n"), "");
    }

    #[test]
    fn a_change_of_source_options_or_text_is_found() {
        let text = format!("{}.version 8.1\n", header("12ab", "34cd"));
        let stale = |text: &str, source, ptx| check_header(text, source, ptx).unwrap_err().to_string();
        assert_eq!(
            stale(&text, "99ab", "34cd"),
            "copy.ptx says \"// source  12ab\", it should be \"// source  99ab\"; run `cargo xtask ptx`"
        );
        assert!(stale(&text, "12ab", "99cd").contains("// ptx     99cd"));
        assert!(stale(&text.replace("c++17", "c++20"), "12ab", "34cd").contains("--std=c++20"));
        assert!(stale("", "12ab", "34cd").contains("copy.ptx says \"\""));
    }

    #[test]
    fn hashes_are_those_of_git() {
        // What git says of an empty file, in every repository.
        assert_eq!(hash("").as_deref(), Ok("e69de29bb2d1d6434b8b29ae775ad8c2e48c5391"));
        assert_ne!(hash("a"), hash("b"));
    }

    #[test]
    fn the_ptx_is_of_its_source() {
        let text = read(PTX).unwrap();
        let (source, ptx) = (hash(&read(SOURCE).unwrap()).unwrap(), hash(body(&text)).unwrap());
        assert_eq!(check_header(&text, &source, &ptx), Ok(()));
    }
}
