//! `cargo xtask loom`: every order in which the atomics of our own handshakes can meet.
//!
//! The tests are in modules named `interleavings`, which are compiled with `--cfg kvo_loom` alone. With it the crates' atomics
//! are loom's, which work in such a test only; so no other test is run.

use std::process::{Command, ExitCode, Stdio};

use crate::process::{cargo, workspace};

/// Crates with such modules.
const PACKAGES: [&str; 2] = ["kvo-cpu", "kvo-nvme"];

pub(crate) fn run() -> ExitCode {
    match check() {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("error: {why}");
            ExitCode::FAILURE
        }
    }
}

/// Runs the interleavings of each crate; the error says which of them do not hold.
pub(crate) fn check() -> Result<(), String> {
    let failed: Vec<String> = PACKAGES.into_iter().filter_map(|package| of_package(package).err()).collect();
    if failed.is_empty() { Ok(()) } else { Err(failed.join("; ")) }
}

fn of_package(package: &str) -> Result<(), String> {
    let mut command = command(package);
    let output = command.output().map_err(|error| format!("{package}: cannot run cargo: {error}"))?;
    let text = String::from_utf8_lossy(&output.stdout);
    print!("{text}");
    if !output.status.success() {
        return Err(format!("{package}: {}", output.status));
    }
    // A filter that matches nothing passes too.
    match num_passed(&text) {
        0 => Err(format!("{package}: no test is named interleavings")),
        _ => Ok(()),
    }
}

fn command(package: &str) -> Command {
    let mut command = cargo(["test", "--package", package, "--lib", "--locked", "--target-dir"]);
    command.arg(workspace().join("target/loom")).arg("interleavings").env("RUSTFLAGS", "--cfg kvo_loom");
    command.current_dir(workspace()).stderr(Stdio::inherit());
    command
}

fn num_passed(output: &str) -> u64 {
    let results = output.lines().filter_map(|line| line.strip_prefix("test result: ok. "));
    results.filter_map(|rest| rest.split(' ').next()?.parse::<u64>().ok()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tests_that_ran_are_counted() {
        let none =
            "running 0 tests\n\ntest result: ok. 0 passed; 0 failed; 0 ignored; 0 measured; 9 filtered out";
        assert_eq!(num_passed(none), 0);
        let some = "test result: ok. 2 passed; 0 failed\ntest result: ok. 1 passed; 0 failed\n";
        assert_eq!(num_passed(some), 3);
        assert_eq!(num_passed("test result: FAILED. 2 passed; 1 failed"), 0);
    }
}
