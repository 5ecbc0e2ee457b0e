//! Whether batches may be used: a driver that has them may still crash or hang with them.

use std::{
    ffi::OsString,
    io,
    path::PathBuf,
    process::{Child, Command, ExitStatus, Stdio},
    time::{Duration, Instant},
};

use super::{
    codes::DriverCode,
    driver::{Context, Driver},
    paths::{PathUse, try_batches},
    probe::{DriverFacts, Probe, probe},
};

/// Releases of the driver that crashed or hung with batches, by reports of others.
const DENIED: [&str; 1] = ["580.159.04"];

/// How long a test of batches may take. A helper that takes longer is killed.
const TIMEOUT: Duration = Duration::from_secs(30);
/// How long one that was killed may take to end.
const KILL_TIMEOUT: Duration = Duration::from_secs(2);

/// Whether a device may use batches of copies.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum BatchUse {
    /// It does not.
    #[default]
    Off,
    /// It does if the driver's release is not known to break with them, and a helper process, in which that breaks
    /// nothing else, has tested them.
    Tested {
        /// A program that calls [`test_batches`] for the ordinal that is its last argument, and ends with status 0 if
        /// that is `Ok`; `kvo-test-batches` is one.
        program: PathBuf,
        /// Arguments before the ordinal.
        arguments: Vec<OsString>,
    },
    /// It does. For whoever has tested them.
    Trusted,
}

/// Batches do not work.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BatchTestError {
    /// There is no device; the probe says why.
    #[error("{0}")]
    Unavailable(Probe),
    /// The driver does not have them.
    #[error("the driver has no batches")]
    Missing,
    /// A call failed.
    #[error("{call} failed with {code}")]
    Driver {
        /// The driver's function.
        call: &'static str,
        /// What it returned.
        code: DriverCode,
    },
    /// A byte is not what it was to be.
    #[error("a batch copied wrong bytes; the seed was {seed}")]
    WrongBytes {
        /// What the copies were made from.
        seed: u64,
    },
}

/// Copies in batches to the device with that ordinal and back, and compares every byte. A driver may crash or hang in
/// this, so it is for a process that may: see [`BatchUse::Tested`].
///
/// # Errors
/// [`BatchTestError`].
pub fn test_batches(ordinal: u32) -> Result<(), BatchTestError> {
    let (Probe::Devices(_), Ok(driver)) = (probe(), Driver::get()) else {
        return Err(BatchTestError::Unavailable(probe().clone()));
    };
    let seed = std::time::SystemTime::UNIX_EPOCH.elapsed().map_or(1, |since| since.as_secs());
    let tried = Context::retain(driver, ordinal).and_then(|context| {
        let _current = context.enter()?;
        if !context.has_batches() {
            return Ok(None);
        }
        let stream = context.stream(0)?;
        try_batches(&context, &stream, seed).map(Some)
    });
    match tried {
        Ok(Some(true)) => Ok(()),
        Ok(Some(false)) => Err(BatchTestError::WrongBytes { seed }),
        Ok(None) => Err(BatchTestError::Missing),
        Err(error) => Err(BatchTestError::Driver { call: error.call, code: error.code }),
    }
}

impl BatchUse {
    /// Whether to use batches on a device.
    pub(crate) fn decide(&self, driver: &DriverFacts, ordinal: u32) -> PathUse {
        match self {
            Self::Off => PathUse::NotAsked,
            Self::Trusted => PathUse::On,
            Self::Tested { .. } if is_denied(driver.release.as_deref()) => PathUse::DeniedRelease,
            Self::Tested { program, arguments } => {
                let mut helper = Command::new(program);
                helper.args(arguments).arg(ordinal.to_string());
                if passes(helper, TIMEOUT) { PathUse::On } else { PathUse::FailedTest }
            }
        }
    }
}

fn is_denied(release: Option<&str>) -> bool {
    release.is_some_and(|release| DENIED.contains(&release))
}

/// Whether a helper ends well and in time.
fn passes(mut helper: Command, timeout: Duration) -> bool {
    let quiet = helper.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let ended = quiet.spawn().and_then(|mut child| {
        let ended = wait(&mut child, timeout);
        if !matches!(ended, Ok(Some(_))) {
            end(&mut child);
        }
        ended
    });
    match ended {
        Ok(Some(status)) => {
            tracing::info!(%status, "batches were tested");
            status.success()
        }
        Ok(None) => {
            tracing::warn!(?timeout, "the test of batches did not end, and was killed");
            false
        }
        Err(error) => {
            tracing::warn!(%error, "batches could not be tested");
            false
        }
    }
}

/// Kills a helper, and waits for it, so that no zombie is left. One that hangs in the driver may not end for long.
fn end(child: &mut Child) {
    match child.kill().and_then(|()| wait(child, KILL_TIMEOUT)) {
        Ok(Some(_)) => {}
        Ok(None) => tracing::warn!(pid = child.id(), "a helper was killed and does not end: it is left"),
        Err(error) => tracing::warn!(pid = child.id(), %error, "a helper could not be killed: it is left"),
    }
}

fn wait(child: &mut Child, timeout: Duration) -> io::Result<Option<ExitStatus>> {
    let start = Instant::now();
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        if start.elapsed() >= timeout {
            return Ok(None);
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(release: Option<&str>, helper: &str, expected: PathUse) {
        let facts = DriverFacts {
            version: 13_000,
            release: release.map(str::to_owned),
            library: None,
            devices: Vec::new(),
        };
        let tested = BatchUse::Tested { program: helper.into(), arguments: Vec::new() };
        assert_eq!(tested.decide(&facts, 0), expected);
    }

    #[test]
    fn batches_are_used_only_if_a_helper_ends_well() {
        check(None, "true", PathUse::On);
        check(Some("570.1"), "false", PathUse::FailedTest);
        check(None, "no-program-has-this-name", PathUse::FailedTest);
        check(Some("580.159.04"), "true", PathUse::DeniedRelease);
    }

    #[test]
    fn a_helper_that_hangs_is_killed_and_leaves_no_zombie() {
        // It says who it is, and hangs.
        let folder = tempfile::tempdir().unwrap();
        let mut helper = Command::new("sh");
        helper.args(["-c", "echo $$ > pid; exec sleep 1000"]).current_dir(&folder);
        let start = Instant::now();
        assert!(!passes(helper, Duration::from_millis(500)));
        assert!(start.elapsed() < TIMEOUT);
        let Ok(pid) = std::fs::read_to_string(folder.path().join("pid")) else {
            eprintln!("SKIPPED: the helper did not start in time");
            return;
        };
        assert!(!std::path::Path::new("/proc").join(pid.trim()).exists(), "{pid} is still there");
    }
}
