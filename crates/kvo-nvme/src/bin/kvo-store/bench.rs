//! `bench`: what a store would move here, beside plain I/O.

use std::{
    fs::File,
    io::{self, Write},
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context, bail};
use kvo_core::{
    BlockHash, GroupIdx, HostMemory, JobId, OffloadKey, RequestId, SecondaryTier, SlotId, TierChunk,
    TierDirection, TierJob, TierOutcome,
};
use kvo_nvme::{NvmeOptions, NvmeStore};
use rustix::fs::Advice;
use serde::Serialize;

use crate::{
    args::BenchArgs,
    output::{Outcome, Report, byte_bar, number, show, table},
    pace::Interrupt,
    units::{human, human_rate},
};

use self::{memory::Memory, plain::Plain};

mod memory;
mod plain;

/// What was measured; rates round by round, in bytes a second.
#[derive(Debug, Serialize)]
struct BenchReport {
    dir: PathBuf,
    chunk_bytes: u64,
    depth: u16,
    round_bytes: u64,
    rounds: u32,
    /// Whether the plain I/O went around the page cache.
    plain_is_direct: bool,
    write: Way,
    read: Way,
}

/// What was measured one way.
#[derive(Debug, Default, Serialize)]
struct Way {
    store_bytes_per_s: Vec<f64>,
    plain_bytes_per_s: Vec<f64>,
    /// The median over the rounds of store over plain.
    ratio: Option<f64>,
}

pub(crate) fn run(args: &BenchArgs, json: bool) -> anyhow::Result<Outcome> {
    let interrupt = Interrupt::on_ctrl_c()?;
    let num_chunks = u32::try_from((args.round_bytes.0 / args.chunk_bytes.0).max(1))
        .context("that many chunks are too many (--round-bytes)")?;
    let scratch = tempfile::Builder::new()
        .prefix("kvo-store-bench-")
        .tempdir_in(&args.dir)
        .with_context(|| format!("cannot make a scratch directory in {}", args.dir.display()))?;
    let mut report = BenchReport {
        dir: args.dir.clone(),
        chunk_bytes: args.chunk_bytes.0,
        depth: args.depth,
        round_bytes: u64::from(num_chunks) * args.chunk_bytes.0,
        rounds: 0,
        plain_is_direct: false,
        write: Way::default(),
        read: Way::default(),
    };
    let mut sides = Sides::new(scratch.path(), args, num_chunks)?;
    report.plain_is_direct = sides.plain.is_direct();
    let bar = byte_bar((u64::from(args.rounds) + 1) * 4 * report.round_bytes, "measures");
    // The first round takes the files' blocks into use, and does not count.
    for round in 0..=args.rounds {
        for direction in [TierDirection::Write, TierDirection::Read] {
            let (store, plain) = sides.round(direction)?;
            bar.inc(2 * report.round_bytes);
            if round > 0 {
                let rate = |took: Duration| report.round_bytes as f64 / took.as_secs_f64();
                let way = match direction {
                    TierDirection::Write => &mut report.write,
                    TierDirection::Read => &mut report.read,
                };
                way.store_bytes_per_s.push(rate(store));
                way.plain_bytes_per_s.push(rate(plain));
            }
        }
        report.rounds = round;
        if interrupt.is_set() {
            break;
        }
    }
    bar.finish_and_clear();
    drop(sides);
    scratch.close().context("cannot remove the scratch directory")?;
    report.write.ratio = report.write.median_ratio();
    report.read.ratio = report.read.median_ratio();
    show(&report, json)?;
    Ok(if interrupt.is_set() { Outcome::Interrupted } else { Outcome::Good })
}

/// The store and the plain file, in one directory.
struct Sides {
    store: NvmeStore,
    memory: Arc<Memory>,
    store_file: File,
    plain: Plain,
    num_chunks: u32,
    next_job: u64,
}

impl Sides {
    fn new(dir: &Path, args: &BenchArgs, num_chunks: u32) -> anyhow::Result<Self> {
        let chunk_bytes = usize::try_from(args.chunk_bytes.0)?;
        let memory = Arc::new(Memory::new(num_chunks, chunk_bytes));
        let options = NvmeOptions {
            num_threads: args.depth.into(),
            // What is slow is to be measured, not given up.
            deadline: Duration::from_hours(1),
            ..NvmeOptions::new(dir, num_chunks, args.chunk_bytes.0)
        };
        let store = NvmeStore::open(options, Arc::clone(&memory) as Arc<dyn HostMemory>)?;
        let store_file = File::open(store.path()).context("cannot open the scratch store's file")?;
        let plain = Plain::new(&dir.join("plain.data"), chunk_bytes, num_chunks, args.depth)
            .context("cannot make the file of plain I/O")?;
        Ok(Self { store, memory, store_file, plain, num_chunks, next_job: 0 })
    }

    /// Moves all chunks one way, by the store and plainly; how long each took.
    fn round(&mut self, direction: TierDirection) -> anyhow::Result<(Duration, Duration)> {
        let store = self.run_store(direction)?;
        let plain = self.plain.run(direction).context("plain I/O failed")?;
        Ok((store, plain))
    }

    /// A write counts until the device has it, a read finds nothing in the page cache.
    fn run_store(&mut self, direction: TierDirection) -> anyhow::Result<Duration> {
        if direction == TierDirection::Read {
            forget_cached(&self.store_file)?;
        }
        let job = self.next_job(direction);
        let started = Instant::now();
        if self.store.submit(job).is_err() {
            bail!("the scratch store takes no job");
        }
        self.store.drain(Duration::MAX)?;
        if direction == TierDirection::Write {
            self.store_file.sync_data()?;
        }
        let took = started.elapsed();
        let mut done = Vec::new();
        self.store.poll(&mut done);
        if done.len() != 1 || done[0].outcome != TierOutcome::Done {
            bail!("chunks of the scratch store failed");
        }
        Ok(took)
    }

    /// Writes have keys of their own each time, reads ask for those that were written last.
    fn next_job(&mut self, direction: TierDirection) -> TierJob {
        let first = self.next_job / 2 * u64::from(self.num_chunks);
        let chunk = |slot: u32| TierChunk {
            key: OffloadKey::new(BlockHash::from_u64(first + u64::from(slot)), GroupIdx(0)),
            slot: SlotId(slot),
            end_token: None,
        };
        let chunks = (0..self.memory.num_slots()).map(chunk).collect();
        let id = JobId(self.next_job);
        self.next_job += 1;
        TierJob { id, req: RequestId(id.0), direction, chunks }
    }
}

/// Forgets what the page cache has of a file whose bytes are on the device.
fn forget_cached(file: &File) -> io::Result<()> {
    Ok(rustix::fs::fadvise(file, 0, None, Advice::DontNeed)?)
}

impl Way {
    fn median_ratio(&self) -> Option<f64> {
        let rounds = self.store_bytes_per_s.iter().zip(&self.plain_bytes_per_s);
        median(rounds.map(|(store, plain)| store / plain).collect())
    }
}

fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_unstable_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() {
        0 => None,
        len if len.is_multiple_of(2) => Some(f64::midpoint(values[middle - 1], values[middle])),
        _ => Some(values[middle]),
    }
}

impl Report for BenchReport {
    fn write_human(&self, out: &mut dyn Write) -> io::Result<()> {
        let (chunk, round) = (human(self.chunk_bytes), human(self.round_bytes));
        let how = if self.plain_is_direct { "around the page cache" } else { "through the page cache" };
        writeln!(out, "{} rounds of {round} in chunks of {chunk}, {} at once", self.rounds, self.depth)?;
        writeln!(out, "plain: positional I/O of as many threads, {how}")?;
        let mut table = table(["", "store", "plain", "store over plain"]);
        for (name, way) in [("write", &self.write), ("read", &self.read)] {
            let rate = |rates: &[f64]| median(rates.to_vec()).map_or_else(String::new, human_rate);
            table.add_row([
                name.into(),
                number(rate(&way.store_bytes_per_s)),
                number(rate(&way.plain_bytes_per_s)),
                number(way.ratio.map_or_else(String::new, |ratio| format!("{ratio:.2}"))),
            ]);
        }
        writeln!(out, "{table}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_median_is_the_middle_or_between_two() {
        assert_eq!(median(Vec::new()), None);
        assert_eq!(median(vec![3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(vec![4.0, 1.0]), Some(2.5));
    }
}
