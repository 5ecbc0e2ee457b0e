//! Processes of this program, started by itself.

use std::{
    fmt,
    io::{BufRead, BufReader},
    process::{Child, Command, ExitStatus, Stdio},
    time::{Duration, Instant},
};

use anyhow::Context;
use crossbeam_channel::{Receiver, RecvTimeoutError, unbounded};

/// Exit status: a section failed.
pub(crate) const FAILED: u8 = 1;
/// Exit status: the program could not do its work.
pub(crate) const BROKEN: u8 = 2;
/// Exit status: there is no device.
pub(crate) const NO_DEVICE: u8 = 3;

/// How long a killed process is waited for.
const GRACE: Duration = Duration::from_secs(5);

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    Status(ExitStatus),
    /// It took too long, and was killed.
    Killed(Duration),
}

impl End {
    pub(crate) fn is_success(self) -> bool {
        matches!(self, Self::Status(status) if status.success())
    }
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Status(status) => write!(f, "its process ended with {status}"),
            Self::Killed(after) => {
                write!(f, "it did not end in {:.0} s, and was killed", after.as_secs_f64())
            }
        }
    }
}

/// This program, to be started with other arguments.
pub(crate) fn again() -> anyhow::Result<Command> {
    let mut command = Command::new(std::env::current_exe().context("the program's own file")?);
    command.stdin(Stdio::null());
    Ok(command)
}

/// Runs a process, for so long at most, and gives each line that it prints to `line`.
pub(crate) fn run(
    mut command: Command,
    timeout: Duration,
    mut line: impl FnMut(&str) -> anyhow::Result<()>,
) -> anyhow::Result<End> {
    let deadline = Instant::now() + timeout;
    let mut child = command.stdout(Stdio::piped()).spawn().context("a process of this program")?;
    let lines = lines_of(&mut child)?;
    loop {
        match lines.recv_deadline(deadline) {
            Ok(text) => line(&text)?,
            Err(RecvTimeoutError::Disconnected) => break,
            Err(RecvTimeoutError::Timeout) => return kill(&mut child, timeout),
        }
    }
    match ended(&mut child, deadline)? {
        Some(status) => Ok(End::Status(status)),
        None => kill(&mut child, timeout),
    }
}

fn ended(child: &mut Child, deadline: Instant) -> anyhow::Result<Option<ExitStatus>> {
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        if Instant::now() >= deadline {
            return Ok(None);
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Kills it, and leaves it to itself if the driver does not let go of it.
fn kill(child: &mut Child, after: Duration) -> anyhow::Result<End> {
    child.kill()?;
    ended(child, Instant::now() + GRACE)?;
    Ok(End::Killed(after))
}

/// Its lines, until it closes its output.
fn lines_of(child: &mut Child) -> anyhow::Result<Receiver<String>> {
    let output = child.stdout.take().context("its output is a pipe")?;
    let (sender, lines) = unbounded();
    std::thread::spawn(move || {
        for line in BufReader::new(output).lines().map_while(Result::ok) {
            if sender.send(line).is_err() {
                break;
            }
        }
    });
    Ok(lines)
}
