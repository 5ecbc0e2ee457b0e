//! `cargo xtask ptx`: the PTX of the kernels, made from their sources, and checked against them.

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

/// A source, `name.cu`, and its PTX beside it, `name.ptx`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Kernel {
    dir: &'static str,
    name: &'static str,
}

/// The kernel that copies, and those of the small engine that checks devices.
pub(crate) const KERNELS: [Kernel; 2] = [
    Kernel { dir: "crates/kvo-cuda/kernels", name: "copy" },
    Kernel { dir: "crates/kvo-gpu-check/kernels", name: "engine" },
];

const COMPILER: &str = "crates/kvo-cuda/kernels/compile.py";

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
    for kernel in KERNELS {
        let (source, ptx) = (kernel.source(), kernel.ptx());
        let done = match mode {
            Mode::Build => kernel.build().map(|()| format!("{ptx} is written")),
            Mode::Check => kernel.check().map(|()| format!("{ptx} is what NVRTC makes of {source}")),
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
    }
    ExitCode::SUCCESS
}

/// All kernels, up to the first that is not of its source.
pub(crate) fn check() -> Result<(), Failure> {
    KERNELS.iter().try_for_each(Kernel::check)
}

impl Kernel {
    fn source(&self) -> String {
        format!("{}/{}.cu", self.dir, self.name)
    }

    fn ptx(&self) -> String {
        format!("{}/{}.ptx", self.dir, self.name)
    }

    fn build(&self) -> Result<(), Failure> {
        let body = self.compile()?;
        let text = format!("{}{body}", self.header(&hash(&read(&self.source())?)?, &hash(&body)?));
        let path = path(&self.ptx());
        std::fs::write(&path, text).map_err(|error| broken(&path.display(), &error))
    }

    /// The hashes first, which need no NVRTC.
    fn check(&self) -> Result<(), Failure> {
        let text = read(&self.ptx())?;
        let body = body(&text);
        self.check_header(&text, &hash(&read(&self.source())?)?, &hash(body)?)?;
        if self.compile()? == body {
            Ok(())
        } else {
            Err(Failure::Stale(format!("NVRTC makes another {}.ptx of {}.cu", self.name, self.name)))
        }
    }

    /// What stands above the compiler's text.
    fn header(&self, source_hash: &str, ptx_hash: &str) -> String {
        format!(
            "// Made by `cargo xtask ptx` from {}.cu; not to be edited. Hashes are those of `git hash-object`.\n\
             // options {}\n\
             // source  {source_hash}\n\
             // ptx     {ptx_hash}\n",
            self.name,
            OPTIONS.join(" ")
        )
    }

    fn check_header(&self, text: &str, source_hash: &str, ptx_hash: &str) -> Result<(), Failure> {
        let wanted = self.header(source_hash, ptx_hash);
        let mut lines = text.lines();
        for wanted in wanted.lines() {
            let found = lines.next().unwrap_or_default();
            if found != wanted {
                let name = self.name;
                return Err(Failure::Stale(format!(
                    "{name}.ptx says \"{found}\", it should be \"{wanted}\""
                )));
            }
        }
        Ok(())
    }

    /// The PTX of the source.
    fn compile(&self) -> Result<String, Failure> {
        let source = self.source();
        let python = std::env::var_os("KVO_PYTHON").unwrap_or_else(|| "python3".into());
        let mut command = Command::new(&python);
        command.arg(path(COMPILER)).arg(path(&source)).args(OPTIONS);
        let output = command
            .output()
            .map_err(|error| Failure::NoNvrtc(format!("{} cannot be run: {error}", python.display())))?;
        let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        match output.status.code() {
            Some(0) => String::from_utf8(output.stdout).map_err(|error| broken(&source, &error)),
            Some(NO_NVRTC_STATUS) => Err(Failure::NoNvrtc(said)),
            _ => Err(broken(&COMPILER, &said)),
        }
    }
}

/// What stands below the header.
fn body(text: &str) -> &str {
    text.match_indices('\n').nth(HEADER_LINES - 1).map_or("", |(end, _)| &text[end + 1..])
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
    workspace().join(file)
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
        let [copy, _] = KERNELS;
        let text = format!("{}\n.version 8.1\n", copy.header("12ab", "34cd"));
        assert_eq!(body(&text), "\n.version 8.1\n");
        assert_eq!(copy.check_header(&text, "12ab", "34cd"), Ok(()));
        assert_eq!(body("// one\n// two\n"), "");
    }

    #[test]
    fn a_change_of_source_options_or_text_is_found() {
        let [copy, _] = KERNELS;
        let text = format!("{}.version 8.1\n", copy.header("12ab", "34cd"));
        let stale = |text: &str, source, ptx| copy.check_header(text, source, ptx).unwrap_err().to_string();
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
        for kernel in KERNELS {
            let text = read(&kernel.ptx()).unwrap();
            let source = hash(&read(&kernel.source()).unwrap()).unwrap();
            assert_eq!(kernel.check_header(&text, &source, &hash(body(&text)).unwrap()), Ok(()));
        }
    }
}
