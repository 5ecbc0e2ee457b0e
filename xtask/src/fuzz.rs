//! `cargo xtask fuzz`: inputs that coverage leads, for whatever kvo reads, and for its state machines by operations.
//!
//! The fuzzers are the programs of `fuzz/`, a package of its own; what they check is beside the tests of the crates that
//! they are of, each of which names it.
//! The stable compiler's own pass counts which code runs and hands what is compared to libFuzzer, which needs no more
//! than a C++ compiler. Inputs that reach something new are kept in `target/fuzz/corpus/`, and runs go on from there and
//! from `fuzz/corpus/`.

mod output;

use std::{
    ffi::OsString,
    fs,
    path::{Path, PathBuf},
    process::{Command, ExitCode, Stdio},
    sync::Mutex,
    thread,
    time::Instant,
};

use crate::process::{cargo, workspace};
use output::Figures;

/// Each is a program of `fuzz/`, and a directory of its corpus. Those of the end begin first.
pub(crate) const TARGETS: [&str; 17] = [
    "superblock",
    "header",
    "order",
    "record",
    "recovery",
    "trace",
    "ptx",
    "gguf",
    "config",
    "stored",
    "layout",
    "policies",
    "policy-models",
    "cpu",
    "tiering",
    "sim",
    "store",
];

/// Texts and files, which take more bytes than a list of steps.
const LONG: [&str; 4] = ["trace", "ptx", "gguf", "stored"];

/// What every crate of a fuzzer is built with, but not the build scripts: those are for the machine that builds.
const RUSTFLAGS: [&str; 8] = [
    "--cfg=kvo_fuzzing",
    "-Cpasses=sancov-module",
    "-Cllvm-args=-sanitizer-coverage-level=4",
    "-Cllvm-args=-sanitizer-coverage-inline-8bit-counters",
    "-Cllvm-args=-sanitizer-coverage-pc-table",
    "-Cllvm-args=-sanitizer-coverage-trace-compares",
    "-Cdebug-assertions=on",
    "-Ccodegen-units=1",
];

/// Most inputs are lists of steps, and longer ones only slower. From the first run on they are of any length up to this. An
/// input that runs for a minute hangs; a machine that is shared may stand still for seconds.
const BYTES_MAX: u32 = 512;
const LONG_BYTES_MAX: u32 = 3072;
const LIBFUZZER: [&str; 4] = ["-len_control=0", "-timeout=60", "-print_final_stats=1", "-verbosity=1"];

/// An input is kept for the numbers that it brings nearer to each other, too: that finds the words of a format. To those whose
/// numbers are keys and counts it says nothing, and halves their pace.
const VALUE_PROFILE: &str = "-use_value_profile=1";
const BY_OPERATIONS: [&str; 7] = ["layout", "policies", "policy-models", "cpu", "tiering", "sim", "store"];

/// What is to be run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Options {
    /// All, if none is named.
    pub(crate) target: Option<&'static str>,
    /// How long, each.
    pub(crate) seconds: u32,
    /// Or so many inputs, if that is sooner.
    pub(crate) executions: Option<u64>,
    /// Run these once and nothing else; only with a target.
    pub(crate) inputs: Vec<OsString>,
}

/// Why nothing was fuzzed, or what was found.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    NoCompiler,
    /// These targets did.
    Crashed(String),
    Other(String),
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::NoCompiler => f.write_str(
                "there is no C++ compiler, which libFuzzer is built with: install g++ (Debian, Ubuntu: the package g++; \
                 Fedora: gcc-c++), or name one in CXX",
            ),
            Self::Crashed(targets) => write!(f, "an input breaks what must hold: {targets}"),
            Self::Other(why) => f.write_str(why),
        }
    }
}

pub(crate) fn run(options: &Options) -> ExitCode {
    match fuzz(options) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("error: {failure}");
            ExitCode::from(if matches!(failure, Failure::Crashed(_)) {
                1
            } else {
                crate::flags::MISUSE_STATUS
            })
        }
    }
}

/// Builds the fuzzers and runs them, as many at once as there are processors.
pub(crate) fn fuzz(options: &Options) -> Result<(), Failure> {
    let fuzzers = Fuzzers::build()?;
    if let (Some(target), [_, ..]) = (options.target, &options.inputs[..]) {
        return fuzzers.replay(target, &options.inputs);
    }
    let waiting: Vec<&'static str> =
        TARGETS.into_iter().filter(|target| options.target.is_none_or(|wanted| wanted == *target)).collect();
    let waiting = Mutex::new(waiting);
    let crashed = Mutex::new(Vec::new());
    println!("{}", output::HEAD);
    let work = || {
        while let Some(target) = pop(&waiting) {
            let ran = fuzzers.run(target, options);
            match ran {
                Ok(figures) => println!("{}", figures.line(target)),
                Err(found) => {
                    println!("{found}");
                    lock(&crashed).push(target);
                }
            }
        }
    };
    let num_threads = thread::available_parallelism().map_or(1, usize::from).min(TARGETS.len());
    thread::scope(|scope| {
        for _ in 0..num_threads {
            scope.spawn(work);
        }
    });
    let crashed = crashed.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
    if crashed.is_empty() { Ok(()) } else { Err(Failure::Crashed(crashed.join(", "))) }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

fn pop(waiting: &Mutex<Vec<&'static str>>) -> Option<&'static str> {
    lock(waiting).pop()
}

/// The fuzzers, built; and a directory for what they write, which goes with this.
struct Fuzzers {
    /// Where the programs are.
    programs: PathBuf,
    temporary: PathBuf,
}

impl Fuzzers {
    fn build() -> Result<Self, Failure> {
        check_compiler()?;
        let host = host()?;
        let target_dir = workspace().join("target/fuzz");
        let mut command = cargo(["build", "--release", "--quiet", "--target", &host, "--target-dir"]);
        command.arg(&target_dir).arg("--manifest-path").arg(workspace().join("fuzz/Cargo.toml"));
        // Its lock file follows what kvo itself depends on, so it is not held to be up to date. The flags of the caller's environment would be those of his own builds.
        command.env_remove("RUSTFLAGS").env("CARGO_ENCODED_RUSTFLAGS", RUSTFLAGS.join("\u{1f}"));
        let started = Instant::now();
        if !command.status().is_ok_and(|status| status.success()) {
            return Err(Failure::Other("the fuzzers cannot be built, see above".to_owned()));
        }
        println!("built in {:.1} s", started.elapsed().as_secs_f64());
        Ok(Self { programs: target_dir.join(host).join("release"), temporary: temporary()? })
    }

    fn command(&self, target: &str) -> Command {
        let mut command = Command::new(self.programs.join(target));
        command.env("TMPDIR", &self.temporary).current_dir(workspace()).stdin(Stdio::null());
        command
    }

    /// Runs one fuzzer as long as it is to; the error shows what it has found.
    fn run(&self, target: &str, options: &Options) -> Result<Figures, String> {
        let [found, artifacts] =
            ["corpus", "artifacts"].map(|dir| workspace().join("target/fuzz").join(dir).join(target));
        for dir in [&found, &artifacts] {
            fs::create_dir_all(dir).map_err(|error| format!("cannot make {}: {error}", dir.display()))?;
        }
        let mut command = self.command(target);
        let bytes_max = if LONG.contains(&target) { LONG_BYTES_MAX } else { BYTES_MAX };
        command.args(LIBFUZZER).arg(format!("-max_len={bytes_max}"));
        command.args((!BY_OPERATIONS.contains(&target)).then_some(VALUE_PROFILE));
        command.arg(format!("-max_total_time={}", options.seconds));
        command.args(options.executions.map(|executions| format!("-runs={executions}")));
        command.arg(format!("-artifact_prefix={}/", artifacts.display()));
        command.arg(found).arg(Path::new("fuzz/corpus").join(target));
        let output = command.output().map_err(|error| format!("cannot run the fuzzer {target}: {error}"))?;
        let text = String::from_utf8_lossy(&output.stderr);
        if output.status.success() {
            Figures::read(&text)
                .ok_or_else(|| format!("what the fuzzer {target} tells is not understood:\n{text}"))
        } else {
            Err(output::finding(target, &text))
        }
    }

    /// Runs inputs once, and shows everything that is said.
    fn replay(&self, target: &str, inputs: &[OsString]) -> Result<(), Failure> {
        let mut command = self.command(target);
        command.current_dir(".").env("RUST_BACKTRACE", "1").args(inputs);
        match command.status() {
            Ok(status) if status.success() => Ok(()),
            Ok(_) => Err(Failure::Crashed(target.to_owned())),
            Err(error) => Err(Failure::Other(format!("cannot run the fuzzer {target}: {error}"))),
        }
    }
}

impl Drop for Fuzzers {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.temporary) {
            eprintln!("warning: cannot remove {}: {error}", self.temporary.display());
        }
    }
}

/// A directory in memory, where there is such a thing: stores are made in it some hundred times a second.
fn temporary() -> Result<PathBuf, Failure> {
    let name = format!("kvo-fuzz-{}", std::process::id());
    let made = [PathBuf::from("/dev/shm"), std::env::temp_dir()].into_iter().find_map(|dir| {
        let dir = dir.join(&name);
        fs::create_dir(&dir).ok().map(|()| dir)
    });
    made.ok_or_else(|| Failure::Other("there is no directory for temporary files".to_owned()))
}

fn check_compiler() -> Result<(), Failure> {
    let named = std::env::var_os("CXX").into_iter();
    let compilers = named.chain(["c++".into(), "g++".into(), "clang++".into()]);
    let works = |compiler: OsString| {
        Command::new(compiler).arg("--version").output().is_ok_and(|output| output.status.success())
    };
    if compilers.into_iter().any(works) { Ok(()) } else { Err(Failure::NoCompiler) }
}

/// The triple of this machine. Flags of a build that names its target are not those of build scripts.
pub(crate) fn host() -> Result<String, Failure> {
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let output = Command::new(rustc).arg("-vV").output();
    let text = output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
    let host = text.lines().find_map(|line| line.strip_prefix("host: "));
    host.map(str::to_owned).ok_or_else(|| Failure::Other("rustc -vV does not tell its host".to_owned()))
}
