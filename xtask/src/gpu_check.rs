//! `cargo xtask gpu-check`: a folder that checks kvo on a machine with a GPU and without a toolchain, and a run of it.

use std::{
    ffi::OsString,
    fmt, fs, io,
    path::{Path, PathBuf},
    process::{Command, ExitCode},
};

use crate::process::{cargo, workspace};

/// What the folder's machine must have at least: that of Ubuntu 22.04, RHEL 9 and Debian 12.
const GLIBC: &str = "2.34";

const PROGRAM: &str = "kvo-gpu-check";

/// The texts of the folder, by where they are in the workspace.
const FILES: [(&str, &str); 4] = [
    ("crates/kvo-gpu-check/folder/run.sh", "run.sh"),
    ("crates/kvo-gpu-check/folder/README.txt", "README.txt"),
    ("crates/kvo-cuda/kernels/copy.ptx", "ptx/copy.ptx"),
    ("crates/kvo-gpu-check/kernels/engine.ptx", "ptx/engine.ptx"),
];

/// What the program ends with if there is no device.
const NO_DEVICE_STATUS: i32 = 3;

/// What is done once the folder is there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Run {
    Not,
    /// On this machine's driver, or the one for tests if there is none, with these arguments.
    Here(Vec<OsString>),
    /// On the driver for tests.
    Model(Vec<OsString>),
}

/// What the task is given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Options {
    /// Where the folder is to be, if not in `target`.
    pub(crate) out: Option<OsString>,
    pub(crate) run: Run,
}

/// Why there is no folder, or no run.
#[derive(Debug)]
pub(crate) enum Failure {
    /// A file.
    File(PathBuf, io::Error),
    /// A command, which said why.
    Command(String),
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path, error) => write!(f, "{}: {error}", path.display()),
            Self::Command(what) => f.write_str(what),
        }
    }
}

impl Options {
    /// Reads the arguments of the task: those behind `--run` or `--model` are the program's.
    pub(crate) fn parse(arguments: Vec<OsString>) -> Result<Self, String> {
        let mut options = Self { out: None, run: Run::Not };
        let mut arguments = arguments.into_iter();
        while let Some(argument) = arguments.next() {
            match argument.to_str() {
                Some("--out") => options.out = Some(arguments.next().ok_or("--out takes a directory")?),
                Some("--run") => options.run = Run::Here(arguments.by_ref().collect()),
                Some("--model") => options.run = Run::Model(arguments.by_ref().collect()),
                _ => {
                    let argument = argument.display();
                    return Err(format!("gpu-check takes --out, --run and --model, but got \"{argument}\""));
                }
            }
        }
        Ok(options)
    }
}

pub(crate) fn run(options: &Options) -> ExitCode {
    match gpu_check(options) {
        Ok(status) => u8::try_from(status).map_or(ExitCode::FAILURE, ExitCode::from),
        Err(failure) => {
            eprintln!("error: {failure}");
            ExitCode::FAILURE
        }
    }
}

/// The exit status of the run, or 0.
pub(crate) fn gpu_check(options: &Options) -> Result<i32, Failure> {
    let folder = options.out.as_ref().map_or_else(|| target().join("gpu-check"), PathBuf::from);
    build(&folder)?;
    let program = folder.join(PROGRAM);
    // By the program itself, which reads its own file.
    done(Command::new(&program).arg("needs").arg(&program).args(["--glibc", GLIBC]))?;
    println!(
        "{} is ready: {} KiB; copy it to a machine with a GPU, and run run.sh there",
        folder.display(),
        kib(&folder)?
    );
    match &options.run {
        Run::Not => Ok(0),
        Run::Model(arguments) => run_model(&program, arguments),
        Run::Here(arguments) => match ended(&mut program_with(&program, arguments))? {
            NO_DEVICE_STATUS => {
                println!("the driver for tests stands in: what follows is a model");
                run_model(&program, arguments)
            }
            status => Ok(status),
        },
    }
}

fn build(folder: &Path) -> Result<(), Failure> {
    let mut command =
        cargo(["rustc", "--release", "--locked", "--quiet", "--package", PROGRAM, "--bin", PROGRAM]);
    command.arg("--manifest-path").arg(workspace().join("Cargo.toml")).arg("--target-dir").arg(target());
    command.args(["--", "-C", "strip=debuginfo"]).env("KVO_COMMIT", commit());
    done(&mut command)?;
    let ptx = folder.join("ptx");
    fs::create_dir_all(&ptx).map_err(|error| Failure::File(ptx, error))?;
    copy(&target().join("release").join(PROGRAM), &folder.join(PROGRAM))?;
    FILES.iter().try_for_each(|(from, to)| copy(&workspace().join(from), &folder.join(to)))
}

/// The program on the driver for tests, which is no part of the folder. That driver is built where no other release build
/// is, so that it lies in nobody's way.
fn run_model(program: &Path, arguments: &[OsString]) -> Result<i32, Failure> {
    let (build, fake) = (target().join("model"), target().join("gpu-check-fake"));
    let mut command =
        cargo(["build", "--release", "--locked", "--quiet", "--package", "kvo-fakecuda", "--lib"]);
    command.arg("--manifest-path").arg(workspace().join("Cargo.toml")).arg("--target-dir").arg(&build);
    done(command.env("KVO_FAKECUDA", "model"))?;
    fs::create_dir_all(&fake).map_err(|error| Failure::File(fake.clone(), error))?;
    for name in ["libcuda.so.1", "libcuda.so"] {
        copy(&build.join("release/libkvo_fakecuda.so"), &fake.join(name))?;
    }
    ended(program_with(program, arguments).env("LD_LIBRARY_PATH", fake))
}

/// The program, with its results below `target` unless its arguments say where, or that nothing is run.
fn program_with(program: &Path, arguments: &[OsString]) -> Command {
    let mut command = Command::new(program);
    command.args(arguments);
    let is_run = arguments.first().is_none_or(|first| first.as_encoded_bytes().starts_with(b"-"));
    if is_run && !arguments.iter().any(|argument| argument == "--out") {
        command.arg("--out").arg(target().join("gpu-check-results"));
    }
    command
}

fn target() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| workspace().join("target"), PathBuf::from)
}

/// The commit that is built, and whether the sources are others by now; empty where git does not say.
fn commit() -> String {
    let git = |arguments: &[&str]| {
        let output = Command::new("git").current_dir(workspace()).args(arguments).output().ok()?;
        output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
    };
    let Some(commit) = git(&["rev-parse", "--short=12", "HEAD"]) else { return String::new() };
    match git(&["status", "--porcelain", "--untracked-files=no"]) {
        Some(changes) if changes.is_empty() => commit,
        _ => format!("{commit}-changed"),
    }
}

fn done(command: &mut Command) -> Result<(), Failure> {
    match ended(command)? {
        0 => Ok(()),
        status => Err(Failure::Command(format!("{} ended with status {status}", shown(command)))),
    }
}

/// The exit status of a command.
fn ended(command: &mut Command) -> Result<i32, Failure> {
    match command.status() {
        Ok(status) => status.code().ok_or_else(|| Failure::Command(format!("{}: {status}", shown(command)))),
        Err(error) => Err(Failure::File(PathBuf::from(command.get_program()), error)),
    }
}

fn shown(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
}

fn copy(from: &Path, to: &Path) -> Result<(), Failure> {
    // A file that is being run cannot be written, but its name can be given to another.
    let beside = to.with_extension("new");
    fs::copy(from, &beside).map_err(|error| Failure::File(from.to_owned(), error))?;
    fs::rename(&beside, to).map_err(|error| Failure::File(to.to_owned(), error))
}

/// The length of what the folder is to have.
fn kib(folder: &Path) -> Result<u64, Failure> {
    let names = FILES.iter().map(|(_, to)| *to).chain([PROGRAM]);
    let lengths = names.map(|name| {
        let path = folder.join(name);
        fs::metadata(&path).map(|file| file.len()).map_err(|error| Failure::File(path, error))
    });
    Ok(lengths.sum::<Result<u64, Failure>>()?.div_ceil(1024))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    /// The folder's script on a system whose `getconf` says that, beside a program that does; its output and status.
    fn script(glibc: &str, program: Option<&str>) -> (String, Option<i32>) {
        static NTH: AtomicU32 = AtomicU32::new(0);
        let nth = NTH.fetch_add(1, Ordering::Relaxed);
        let dir = std::env::temp_dir().join(format!("kvo-gpu-check-{}-{nth}", std::process::id()));
        let bin = dir.join("bin");
        fs::create_dir_all(&bin).unwrap();
        fs::copy(workspace().join(FILES[0].0), dir.join("run.sh")).unwrap();
        let write = |path: PathBuf, body: &str| {
            fs::write(&path, format!("#!/bin/sh\n{body}\n")).unwrap();
            let done = Command::new("chmod").arg("+x").arg(&path).status().unwrap();
            assert!(done.success());
        };
        write(bin.join("getconf"), glibc);
        if let Some(program) = program {
            write(dir.join(PROGRAM), program);
        }
        let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap());
        let mut sh = Command::new("sh");
        sh.arg(dir.join("run.sh")).args(["--only", "limit"]).env("PATH", path);
        let output = sh.env("KVO_DRIVER_WORDS", dir.join("no-driver")).output().unwrap();
        fs::remove_dir_all(&dir).unwrap();
        let text = [output.stdout, output.stderr].concat();
        (String::from_utf8(text).unwrap(), output.status.code())
    }

    #[track_caller]
    fn check(glibc: &str, program: Option<&str>, status: i32, words: &str) {
        let (text, ended) = script(glibc, program);
        assert_eq!(ended, Some(status), "{text}");
        assert!(text.contains(words), "no {words} in {text}");
    }

    #[test]
    fn the_script_refuses_a_system_that_the_program_does_not_run_on() {
        let works = Some("echo \"called with $*\"; exit 3");
        check("echo glibc 2.31", works, 2, "this system has glibc 2.31, the program needs 2.34 or later");
        check("echo glibc 1.99", works, 2, "glibc 1.99");
        check("exit 1", works, 2, "this system has no glibc");
        check("echo glibc 2.34", None, 2, "copy the whole folder");
        check("echo glibc 2.35-7", Some("exit 126"), 2, "does not run here");
    }

    #[test]
    fn the_script_hands_its_arguments_to_the_program_and_its_status_back() {
        let program =
            "if [ \"$1\" = --version ]; then echo kvo-gpu-check 1; else echo \"called with $*\"; exit 3; fi";
        check("echo glibc 2.34", Some(program), 3, "called with --only limit");
        check("echo glibc 3.0", Some(program), 3, "no NVIDIA driver is loaded");
    }

    #[test]
    fn the_script_and_the_task_ask_for_the_same_glibc() {
        let text = fs::read_to_string(workspace().join(FILES[0].0)).unwrap();
        assert!(text.contains(&format!("glibc_min={GLIBC}\n")));
        let text = fs::read_to_string(workspace().join(FILES[1].0)).unwrap();
        assert!(text.contains(&format!("glibc {GLIBC} or later")));
    }
}
