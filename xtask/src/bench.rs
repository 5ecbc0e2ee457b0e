//! `cargo xtask bench`: the program `kvo-bench`, built for release; or `kvo-bench-compare`, which is no part of the
//! workspace.

use std::{
    ffi::OsString,
    process::{Command, ExitCode},
};

use crate::process::{become_command, cargo, cargo_run, workspace};

pub(crate) fn run(arguments: Vec<OsString>) -> ExitCode {
    match arguments.split_first() {
        Some((first, rest)) if first == "compare" => become_command(compare(rest)),
        _ => become_command(command(completed(arguments))),
    }
}

/// Beside other projects. Its lock file follows what kvo itself depends on, so it is not held to be up to date.
fn compare(arguments: &[OsString]) -> Command {
    let mut command = cargo(["run", "--release", "--quiet", "--manifest-path"]);
    command.arg(workspace().join("bench/compare/Cargo.toml")).arg("--").args(arguments);
    command
}

/// The program with its arguments.
pub(crate) fn command(arguments: impl IntoIterator<Item = OsString>) -> Command {
    let mut command = cargo_run(&["--package", "kvo-bench"]);
    command.args(arguments);
    command
}

/// What a soak keeps busy for minutes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Soak {
    /// The store alone.
    Nvme,
    /// An engine with all tiers.
    Engine,
}

/// `cargo xtask soak`.
pub(crate) fn soak(what: Soak, arguments: Vec<OsString>) -> ExitCode {
    let name = match what {
        Soak::Nvme => "soak-nvme",
        Soak::Engine => "soak-engine",
    };
    become_command(command([name.into()].into_iter().chain(arguments)))
}

/// Replay is what is meant where no command is named: `cargo xtask bench --smoke`.
fn completed(mut arguments: Vec<OsString>) -> Vec<OsString> {
    let names_command = arguments.first().is_some_and(|first| {
        !first.as_encoded_bytes().starts_with(b"-")
            || ["-h", "--help", "-V", "--version"].iter().any(|f| first == f)
    });
    if !names_command {
        arguments.insert(0, "replay".into());
    }
    arguments
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(given: &[&str], expected: &[&str]) {
        assert_eq!(completed(given.iter().map(OsString::from).collect()), expected);
    }

    #[test]
    fn replay_is_the_command_where_none_is_named() {
        check(&[], &["replay"]);
        check(&["--smoke"], &["replay", "--smoke"]);
        check(&["policies", "--check"], &["policies", "--check"]);
        check(&["--help"], &["--help"]);
    }
}
