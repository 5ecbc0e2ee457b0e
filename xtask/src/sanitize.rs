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

pub(crate) fn run(sanitizer: Sanitizer) -> ExitCode {
    match check(sanitizer) {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("error: {why}");
            ExitCode::FAILURE
        }
    }
}

/// Runs all; the error says which failed.
pub(crate) fn check(sanitizer: Sanitizer) -> Result<(), String> {
    let host = fuzz::host().map_err(|failure| failure.to_string())?;
    let failed = RUNS.into_iter().filter_map(|run| {
        let passed = command(sanitizer, &host, run).status().is_ok_and(|status| status.success());
        (!passed).then(|| run.join(" "))
    });
    let failed: Vec<String> = failed.collect();
    if failed.is_empty() { Ok(()) } else { Err(format!("not clean: {}", failed.join("; "))) }
}

fn command(sanitizer: Sanitizer, host: &str, run: &[&str]) -> Command {
    let (name, options, value) = match sanitizer {
        Sanitizer::Address => ("address", "ASAN_OPTIONS", "detect_leaks=1:abort_on_error=0".to_owned()),
        Sanitizer::Thread => {
            let suppressions = workspace().join("xtask/src/sanitize/thread.supp");
            ("thread", "TSAN_OPTIONS", format!("suppressions={}:halt_on_error=0", suppressions.display()))
        }
    };
    // The standard library stays as it is, which has to be said for threads: accesses inside of it are not seen.
    let flags = format!("-Zsanitizer={name} -Cunsafe-allow-abi-mismatch=sanitizer");
    let mut command = cargo(["test", "--locked", "--target", host, "--target-dir"]);
    command.arg(workspace().join("target/sanitize").join(name)).args(run).current_dir(workspace());
    command.env("RUSTC_BOOTSTRAP", "1").env("RUSTFLAGS", flags).env(options, value);
    command
}
