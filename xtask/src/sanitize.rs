//! `cargo xtask sanitize`: tests under `AddressSanitizer` or `ThreadSanitizer`.
//!
//! The runtimes come with the stable toolchain, but the flag that links them is one of nightly ones; `RUSTC_BOOTSTRAP` lets
//! the stable compiler take it. The standard library is not instrumented: what it does with memory is seen where it
//! calls the allocator and the C library, and that is all of it.

use std::process::{Command, ExitCode};

use crate::{
    fuzz,
    process::{cargo, workspace},
};

/// Which of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sanitizer {
    /// Memory that is freed, not there, or never given back.
    Address,
    /// Accesses that nothing orders.
    Thread,
}

/// What is run: arguments of `cargo test`. Crates with unsafe code, and those with threads.
const RUNS: [&[&str]; 5] = [
    &["--package", "kvo-core", "--lib"],
    &["--package", "kvo-cpu", "--lib"],
    &["--package", "kvo-nvme", "--lib"],
    &["--package", "kvo-cuda", "--lib", "--no-default-features"],
    &["--package", "kvo-connector", "--test", "worker"],
];

/// The same for CI: whatever is of our own unsafe code, and no walks of the store on a simulated disk.
const RUNS_OF_CI: [&[&str]; 3] = [
    &["--package", "kvo-core", "--lib"],
    &["--package", "kvo-cpu", "--lib"],
    &["--package", "kvo-nvme", "--lib", "--", "--skip", "sim::"],
];

pub(crate) fn run(sanitizer: Sanitizer) -> ExitCode {
    match check(sanitizer, &RUNS) {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("error: {why}");
            ExitCode::FAILURE
        }
    }
}

/// What CI can afford, for addresses.
pub(crate) fn check_small() -> Result<(), String> {
    check(Sanitizer::Address, &RUNS_OF_CI)
}

/// Runs all; the error says which failed.
fn check(sanitizer: Sanitizer, runs: &[&[&str]]) -> Result<(), String> {
    let host = fuzz::host().map_err(|failure| failure.to_string())?;
    let failed = runs.iter().filter_map(|run| {
        let passed = command(sanitizer, &host, run).status().is_ok_and(|status| status.success());
        (!passed).then(|| run.join(" "))
    });
    let failed: Vec<String> = failed.collect();
    if failed.is_empty() { Ok(()) } else { Err(format!("not clean: {}", failed.join("; "))) }
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
    };
    // The standard library stays as it is, which has to be said for threads: accesses inside of it are not seen.
    let flags = format!("-Zsanitizer={name} -Cunsafe-allow-abi-mismatch=sanitizer");
    let mut command = cargo(["test", "--locked", "--target", host, "--target-dir"]);
    command.arg(workspace().join("target/sanitize").join(name)).args(run).current_dir(workspace());
    command.env("RUSTC_BOOTSTRAP", "1").env("RUSTFLAGS", flags).envs(options);
    command
}
