//! `cargo xtask conformance DIR`: recorded scenarios against the managers.

use std::{
    ffi::OsStr,
    path::PathBuf,
    process::{Command, ExitCode},
};

use crate::process::{become_command, cargo_run, workspace};

pub(crate) fn run(dir: &OsStr) -> ExitCode {
    become_command(command(dir))
}

/// The runner for the scenarios in `dir`.
pub(crate) fn command(dir: &OsStr) -> Command {
    let mut command = cargo_run(&["--package", "kvo-tests", "--bin", "conformance"]);
    command.arg(dir);
    command
}

/// Where the recorded scenarios are, if they are there; else where they were looked for. They are no part of the
/// project: `$KVO_SHARED/conformance`, by default `../shared/conformance` beside the workspace.
pub(crate) fn recorded_scenarios() -> Result<PathBuf, PathBuf> {
    // A relative path counts from the workspace.
    let shared = workspace().join(std::env::var_os("KVO_SHARED").unwrap_or_else(|| "../shared".into()));
    let dir = shared.join("conformance");
    if dir.is_dir() { Ok(dir) } else { Err(dir) }
}
