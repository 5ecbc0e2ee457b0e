//! `cargo xtask miri`: the tests of the crates that Miri can run.
//!
//! Miri interprets a program and finds what no test sees: reads of what is not initialised, pointers beside their
//! allocation, data races. It comes with a nightly toolchain only, and knows no `io_uring`, no driver and no pages of
//! shared memory; so it runs the state machines, and the devices in host memory.

use std::{
    ffi::OsString,
    process::{Command, ExitCode, Stdio},
};

use crate::process::{cargo, workspace};

/// What is run of each crate: arguments of `cargo miri test`.
const RUNS: [&[&str]; 7] = [
    &["--package", "kvo-core"],
    &["--package", "kvo-policies", "--lib"],
    // The region itself is a mapping that Miri does not know.
    &["--package", "kvo-cpu", "--lib", "--", "region::access"],
    &["--package", "kvo-cpu", "--test", "scenarios", "--test", "holds", "--test", "tokens"],
    &["--package", "kvo-tiering", "--test", "scenarios", "--test", "late"],
    &["--package", "kvo-ptx", "--lib"],
    &["--package", "kvo-connector", "--lib", "--no-default-features"],
];

pub(crate) fn run(more: &[OsString]) -> ExitCode {
    match check(more) {
        Ok(()) => ExitCode::SUCCESS,
        Err(Failure::NoMiri) => {
            eprintln!("SKIPPED, nothing was run: {}", Failure::NoMiri);
            ExitCode::from(crate::flags::MISUSE_STATUS)
        }
        Err(failure) => {
            eprintln!("error: {failure}");
            ExitCode::FAILURE
        }
    }
}

/// Why Miri has not passed.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    NoMiri,
    /// These runs failed.
    Failed(String),
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::NoMiri => f.write_str(
                "there is no Miri; `rustup toolchain install nightly --component miri`, then `cargo +nightly xtask miri`",
            ),
            Self::Failed(runs) => write!(f, "Miri found something: {runs}"),
        }
    }
}

/// Runs all, or what cargo's arguments in `more` say instead.
pub(crate) fn check(more: &[OsString]) -> Result<(), Failure> {
    let is_there = miri(&["--version".into()]).stdout(Stdio::null()).stderr(Stdio::null()).status();
    if !is_there.is_ok_and(|status| status.success()) {
        return Err(Failure::NoMiri);
    }
    let usual = RUNS.into_iter().map(|run| run.iter().map(OsString::from).collect::<Vec<_>>());
    let runs: Vec<Vec<OsString>> = if more.is_empty() { usual.collect() } else { vec![more.to_vec()] };
    let failed = runs.into_iter().filter_map(|mut arguments| {
        arguments.insert(0, "test".into());
        let passed = miri(&arguments).status().is_ok_and(|status| status.success());
        (!passed).then(|| arguments.join(" ".as_ref()).to_string_lossy().into_owned())
    });
    let failed: Vec<String> = failed.collect();
    if failed.is_empty() { Ok(()) } else { Err(Failure::Failed(failed.join("; "))) }
}

fn miri(arguments: &[OsString]) -> Command {
    let mut command = cargo(["miri"]);
    // Time and files are the machine's; what is run takes hours else.
    command.args(arguments).current_dir(workspace()).env("MIRIFLAGS", "-Zmiri-disable-isolation");
    command.env("PROPTEST_CASES", "8").env("CARGO_TARGET_DIR", workspace().join("target/miri"));
    command
}
