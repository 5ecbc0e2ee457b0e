//! `cargo xtask sim`: the program `kvo-sim`, built for release.

use std::{
    ffi::OsString,
    process::{Command, ExitCode},
};

use crate::process::{become_command, cargo_run};

pub(crate) fn run(arguments: Vec<OsString>) -> ExitCode {
    become_command(command(arguments))
}

/// The program with its arguments.
pub(crate) fn command(arguments: impl IntoIterator<Item = OsString>) -> Command {
    let mut command = cargo_run(&["--package", "kvo-sim"]);
    command.args(arguments);
    command
}
