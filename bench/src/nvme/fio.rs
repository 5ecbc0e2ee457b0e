//! fio, where it is installed: the floor that everyone can check.

use std::{
    io,
    process::{Command, Stdio},
    time::Duration,
};

use anyhow::{Context, bail, ensure};
use serde::Deserialize;

use super::{Checked, Cost, Direction, HostChunks, SlotFile, Subject};

/// Chunks that fio has under way.
const DEPTH: u64 = 16;

/// How fio gets the memory for its buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Memory {
    /// The kernel's pool of huge pages, as the store's host memory is on huge pages.
    HugePages,
    /// Ordinary pages: half as fast on some devices, so no floor.
    #[cfg(test)]
    Ordinary,
}

/// The program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fio {
    version: String,
}

impl Fio {
    /// The installed one.
    ///
    /// # Errors
    /// If there is none, or it does not say its version.
    pub fn find() -> anyhow::Result<Self> {
        let output = match Command::new("fio").arg("--version").output() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => bail!("it is not installed"),
            other => other.context("it cannot be run")?,
        };
        ensure!(output.status.success(), "it ended with {}", output.status);
        Ok(Self { version: String::from_utf8_lossy(&output.stdout).trim().to_owned() })
    }

    /// What it calls itself, such as `fio-3.33`.
    pub fn version(&self) -> &str {
        &self.version
    }

    /// Bytes of huge pages that it needs for chunks of `chunk_bytes`.
    pub fn buffer_bytes(chunk_bytes: u64) -> u64 {
        // It rounds what it takes up to huge pages, and takes some more.
        const MORE_BYTES: u64 = 16 << 20;
        DEPTH * chunk_bytes.next_multiple_of(2 << 20) + MORE_BYTES
    }
}

/// Random direct I/O by fio with `io_uring`, registered buffers and files, 16 chunks under way, over the chunks of the
/// file.
///
/// Each run is a process of its own. Rate and CPU time are what fio says; its bytes are its own, and compared by nobody.
#[derive(Debug)]
pub struct FioRun {
    slots: SlotFile,
    chunk_bytes: u64,
    num_chunks: u64,
    memory: Memory,
}

impl FioRun {
    /// What it is called.
    pub const NAME: &str = "fio";

    /// Over `slots`, as many chunks as `host` has, with huge pages of the pool, which must have room for
    /// [`Fio::buffer_bytes`].
    pub fn new(slots: &SlotFile, host: &HostChunks) -> Self {
        Self {
            slots: slots.clone(),
            chunk_bytes: host.chunk_bytes() as u64,
            num_chunks: host.num_chunks().into(),
            memory: Memory::HugePages,
        }
    }

    fn command(&self, direction: Direction) -> Command {
        let mut command = Command::new("fio");
        let (rw, sync) = match direction {
            Direction::Write => ("randwrite", 1),
            Direction::Read => ("randread", 0),
        };
        let memory = match self.memory {
            Memory::HugePages => "mmaphuge",
            #[cfg(test)]
            Memory::Ordinary => "malloc",
        };
        command
            .args(["--name=floor", "--ioengine=io_uring", "--direct=1", "--fixedbufs=1", "--registerfiles=1"])
            // Every byte of the buffers is as it is, as in the store: fio need not touch it.
            .args(["--scramble_buffers=0", "--fallocate=none", "--output-format=json"])
            .arg(format!("--filename={}", self.slots.path().display()))
            .arg(format!("--offset={}", self.slots.start()))
            .arg(format!("--size={}", self.num_chunks * self.chunk_bytes))
            .args([format!("--bs={}", self.chunk_bytes), format!("--iodepth={DEPTH}")])
            .args([format!("--rw={rw}"), format!("--end_fsync={sync}"), format!("--mem={memory}")])
            .stdin(Stdio::null());
        // A Ctrl-C is for the bench to handle: it lets this run end, which takes less than a second.
        #[cfg(unix)]
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        command
    }
}

impl Subject for FioRun {
    fn name(&self) -> &str {
        Self::NAME
    }

    fn prepare(&mut self, _: Direction) -> anyhow::Result<()> {
        Ok(())
    }

    fn run(&mut self, direction: Direction) -> anyhow::Result<Cost> {
        let output = self.command(direction).output().context("fio cannot be run")?;
        let text = String::from_utf8_lossy(&output.stdout);
        ensure!(
            output.status.success(),
            "fio ended with {}: {}{text}",
            output.status,
            String::from_utf8_lossy(&output.stderr)
        );
        cost(&text, direction, self.num_chunks * self.chunk_bytes)
            .with_context(|| format!("fio's {direction} of {} bytes a chunk", self.chunk_bytes))
    }

    fn check(&mut self) -> anyhow::Result<Option<Checked>> {
        Ok(None)
    }
}

/// The part of fio's output that counts.
#[derive(Debug, Deserialize)]
struct Output {
    jobs: Vec<Job>,
}

#[derive(Debug, Deserialize)]
struct Job {
    error: i32,
    /// Of the job's time, in percent.
    usr_cpu: f64,
    sys_cpu: f64,
    /// In milliseconds.
    #[serde(rename = "job_runtime")]
    runtime: f64,
    read: Moved,
    write: Moved,
}

#[derive(Debug, Deserialize)]
struct Moved {
    io_bytes: u64,
    /// Bytes a second.
    bw_bytes: f64,
}

/// Reads what fio says of a run that moved `bytes`.
fn cost(text: &str, direction: Direction, bytes: u64) -> anyhow::Result<Cost> {
    // Notes for the reader may stand before the JSON.
    let start = text.find('{').with_context(|| format!("no JSON in {text:?}"))?;
    let output: Output = serde_json::from_str(&text[start..]).context("its JSON is of another form")?;
    let [job] = &output.jobs[..] else { bail!("{} jobs instead of one", output.jobs.len()) };
    ensure!(job.error == 0, "error {} of the system", job.error);
    let moved = match direction {
        Direction::Write => &job.write,
        Direction::Read => &job.read,
    };
    ensure!(moved.io_bytes == bytes, "{} bytes moved instead of {bytes}", moved.io_bytes);
    let seconds = |seconds| Duration::try_from_secs_f64(seconds).context("a time that cannot be");
    Ok(Cost {
        wall: seconds(bytes as f64 / moved.bw_bytes)?,
        cpu: seconds((job.usr_cpu + job.sys_cpu) / 100.0 * job.runtime / 1e3)?,
        device: None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAID: &str = r#"fio: a note
{
  "fio version" : "fio-3.33",
  "jobs" : [ { "jobname" : "floor", "groupid" : 0, "error" : 0, "job_runtime" : 250, "usr_cpu" : 2.0, "sys_cpu" : 6.0,
    "read" : { "io_bytes" : 0, "bw_bytes" : 0, "runtime" : 0 },
    "write" : { "io_bytes" : 1073741824, "io_kbytes" : 1048576, "bw_bytes" : 4294967296, "runtime" : 250 } } ]
}"#;

    #[test]
    fn rate_and_cpu_time_are_read() {
        let cost = cost(SAID, Direction::Write, 1 << 30).unwrap();
        assert_eq!((cost.wall, cost.cpu), (Duration::from_millis(250), Duration::from_millis(20)));
    }

    #[track_caller]
    fn check(text: &str, bytes: u64, part: &str) {
        let error = format!("{:#}", cost(text, Direction::Write, bytes).unwrap_err());
        assert!(error.contains(part), "{error}");
    }

    #[test]
    fn an_output_that_is_not_of_a_whole_run_is_refused() {
        check("fio: no such engine", 1 << 30, "no JSON");
        check("{ \"jobs\": [] }", 1 << 30, "0 jobs instead of one");
        check("{ \"jobs\": [ 7 ] }", 1 << 30, "another form");
        check(&SAID.replace("\"error\" : 0", "\"error\" : 28"), 1 << 30, "error 28");
        check(SAID, 5, "instead of 5");
        check(&SAID.replace("4294967296", "0"), 1 << 30, "a time that cannot be");
    }

    #[test]
    fn the_installed_fio_moves_what_it_is_told() {
        if let Err(error) = Fio::find() {
            eprintln!("SKIPPED: fio: {error:#}");
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let host = HostChunks::new(8, 64 << 10, 0).unwrap();
        let slots = SlotFile::make(dir.path(), &host).unwrap();
        let mut run = FioRun { memory: Memory::Ordinary, ..FioRun::new(&slots, &host) };
        for direction in Direction::ALL {
            run.prepare(direction).unwrap();
            match run.run(direction) {
                Ok(cost) => assert!(cost.mb_per_s(8 * (64 << 10)) > 0.0),
                // Where io_uring is not permitted, it cannot be the floor either.
                Err(error) => eprintln!("SKIPPED: fio cannot run here: {error:#}"),
            }
        }
        assert_eq!(run.check().unwrap(), None);
    }
}
