//! Runs cargo.

use std::{
    ffi::OsStr,
    path::Path,
    process::{Command, ExitCode},
};

/// The directory of the root manifest.
pub(crate) fn workspace() -> &'static Path {
    let xtask = Path::new(env!("CARGO_MANIFEST_DIR"));
    xtask.parent().unwrap_or(xtask)
}

/// The cargo that runs this.
pub(crate) fn cargo<I: AsRef<OsStr>>(arguments: impl IntoIterator<Item = I>) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(arguments);
    command
}

/// A program of the workspace, built for release, in the user's directory, so that paths mean what they say.
pub(crate) fn cargo_run(target: &[&str]) -> Command {
    let mut command = cargo(["run", "--release", "--locked", "--quiet"]);
    command.arg("--manifest-path").arg(workspace().join("Cargo.toml")).args(target).arg("--");
    command
}

/// Becomes `command`, so that its exit status is this program's and a Ctrl-C is its own to handle.
pub(crate) fn become_command(mut command: Command) -> ExitCode {
    let error = replace(&mut command);
    eprintln!("error: cannot run {}: {error}", command.get_program().display());
    ExitCode::from(crate::flags::MISUSE_STATUS)
}

#[cfg(unix)]
fn replace(command: &mut Command) -> std::io::Error {
    use std::os::unix::process::CommandExt;
    command.exec()
}

#[cfg(not(unix))]
fn replace(command: &mut Command) -> std::io::Error {
    match command.status() {
        Ok(status) => std::process::exit(status.code().unwrap_or(1)),
        Err(error) => error,
    }
}
