//! `cargo xtask sanitize`: tests under `AddressSanitizer` or `ThreadSanitizer`, or under valgrind's memcheck.
//!
//! The runtimes come with the stable toolchain, but the flag that links them is one of nightly ones; `RUSTC_BOOTSTRAP` lets
//! the stable compiler take it. The standard library is not instrumented: what it does with memory is seen where it
//! calls the allocator and the C library, and that is all of it.
//!
//! Memcheck sees all code, and what no sanitizer of the stable toolchain does: a branch on bytes that nobody has written.
//! It stands still while a thread waits in a ring, so the store is not run under it.

use std::process::{Command, ExitCode};

use crate::{
    counts, fuzz,
    process::{cargo, workspace},
};

/// Which of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sanitizer {
    /// Memory that is freed, not there, or never given back.
    Address,
    /// Accesses that nothing orders.
    Thread,
    /// What nobody has written decides something; needs valgrind.
    Memcheck,
}

/// What is run: arguments of `cargo test`. Crates with unsafe code, and those with threads.
const CORE: &[&str] = &["--package", "kvo-core", "--lib"];
const CPU: &[&str] = &["--package", "kvo-cpu", "--lib"];
const NVME: &[&str] = &["--package", "kvo-nvme", "--lib"];
const DEVICE: &[&str] = &["--package", "kvo-cuda", "--lib", "--no-default-features"];
const WORKER: &[&str] = &["--package", "kvo-connector", "--test", "worker"];
const RUNS: [&[&str]; 5] = [CORE, CPU, NVME, DEVICE, WORKER];
const RUNS_OF_MEMCHECK: [&[&str]; 4] = [CORE, CPU, DEVICE, WORKER];

/// The same for CI: whatever is of our own unsafe code, and no walks of the store on a simulated disk.
const RUNS_OF_CI: [&[&str]; 3] = [CORE, CPU, &["--package", "kvo-nvme", "--lib", "--", "--skip", "sim::"]];

/// Why it is not known to be clean.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    NoValgrind,
    /// What was found, or kept from running.
    Other(String),
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::NoValgrind => counts::Failure::NoValgrind.fmt(f),
            Self::Other(why) => f.write_str(why),
        }
    }
}

pub(crate) fn run(sanitizer: Sanitizer) -> ExitCode {
    let checked = match sanitizer {
        Sanitizer::Memcheck => check_values(),
        _ => check(sanitizer, &RUNS),
    };
    match checked {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("error: {failure}");
            ExitCode::FAILURE
        }
    }
}

/// What CI can afford, for addresses.
pub(crate) fn check_small() -> Result<(), Failure> {
    check(Sanitizer::Address, &RUNS_OF_CI)
}

/// All that memcheck can run.
pub(crate) fn check_values() -> Result<(), Failure> {
    if counts::is_valgrind_there() {
        check(Sanitizer::Memcheck, &RUNS_OF_MEMCHECK)
    } else {
        Err(Failure::NoValgrind)
    }
}

/// Runs all; the error says which failed.
fn check(sanitizer: Sanitizer, runs: &[&[&str]]) -> Result<(), Failure> {
    let host = fuzz::host().map_err(|failure| Failure::Other(failure.to_string()))?;
    let failed = runs.iter().filter_map(|run| {
        let passed = command(sanitizer, &host, run).status().is_ok_and(|status| status.success());
        (!passed).then(|| run.join(" "))
    });
    let failed: Vec<String> = failed.collect();
    if failed.is_empty() { Ok(()) } else { Err(Failure::Other(format!("not clean: {}", failed.join("; ")))) }
}

fn command(sanitizer: Sanitizer, host: &str, run: &[&str]) -> Command {
    // Some tests ask for more memory than there is, to see the error.
    const SOME_MEMORY: &str = "allocator_may_return_null=1";
    let suppressions = |name: &str| {
        let file = workspace().join("xtask/src/sanitize").join(name);
        format!("suppressions={}", file.display())
    };
    let (name, options) = match sanitizer {
        Sanitizer::Address => (
            "address",
            vec![("ASAN_OPTIONS", SOME_MEMORY.to_owned()), ("LSAN_OPTIONS", suppressions("leak.supp"))],
        ),
        Sanitizer::Thread => {
            ("thread", vec![("TSAN_OPTIONS", format!("{SOME_MEMORY}:{}", suppressions("thread.supp")))])
        }
        Sanitizer::Memcheck => return memcheck(host, run),
    };
    // The standard library stays as it is, which has to be said for threads: accesses inside of it are not seen.
    let flags = format!("-Zsanitizer={name} -Cunsafe-allow-abi-mismatch=sanitizer");
    let mut command = cargo(["test", "--locked", "--target", host, "--target-dir"]);
    command.arg(workspace().join("target/sanitize").join(name)).args(run).current_dir(workspace());
    command.env("RUSTC_BOOTSTRAP", "1").env("RUSTFLAGS", flags).envs(options);
    command
}

/// The tests as they are always built, each program of them run by valgrind. One thread after the other gets its turn:
/// those that wait for each other would else wait for long.
fn memcheck(host: &str, run: &[&str]) -> Command {
    const VALGRIND: &str = "valgrind --tool=memcheck --error-exitcode=99 --quiet --fair-sched=yes";
    let runner = format!("CARGO_TARGET_{}_RUNNER", host.to_uppercase().replace('-', "_"));
    let mut command = cargo(["test", "--locked"]);
    command.args(run).current_dir(workspace());
    // It is some thirty times as slow.
    command.env(runner, VALGRIND).env("PROPTEST_CASES", "8");
    command
}
