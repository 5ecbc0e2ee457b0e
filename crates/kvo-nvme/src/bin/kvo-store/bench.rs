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
use kvo_cpu::{HostRegion, RegionOptions};
use kvo_nvme::{EngineKind, NvmeOptions, NvmeStore};
use rustix::fs::Advice;
use serde::Serialize;

use crate::{
    args::BenchArgs,
    output::{Outcome, Report, byte_bar, number, show, table},
    pace::Interrupt,
    units::{human, human_rate},
};

use self::plain::Plain;

mod plain;

/// What was measured; rates round by round, in bytes a second.
#[derive(Debug, Serialize)]
struct BenchReport {
    dir: PathBuf,
    chunk_bytes: u64,
    depth: u16,
    round_bytes: u64,
    rounds: u32,
    /// What moved the store's bytes: `io_uring` or `threads`.
    engine: &'static str,
    /// Whether the store's I/O went around the page cache.
    store_is_direct: bool,
    /// Whether the plain I/O did.
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
        engine: "",
        store_is_direct: false,
        plain_is_direct: false,
        write: Way::default(),
        read: Way::default(),
    };
    let mut sides = Sides::new(scratch.path(), args, num_chunks)?;
    report.plain_is_direct = sides.plain.is_direct();
    let engine = sides.store.engine_info();
    report.store_is_direct = engine.direct_io;
    report.engine = match engine.kind {
        EngineKind::Uring => "io_uring",
        _ => "threads",
    };
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
    store_file: File,
    plain: Plain,
    num_chunks: u32,
    next_job: u64,
}

impl Sides {
    fn new(dir: &Path, args: &BenchArgs, num_chunks: u32) -> anyhow::Result<Self> {
        let chunk_bytes = usize::try_from(args.chunk_bytes.0)?;
        let memory = filled_memory(num_chunks, chunk_bytes)?;
        let options = NvmeOptions {
            num_threads: args.depth.into(),
            reads_inflight_max: args.depth.into(),
            // What is slow is to be measured, not given up.
            deadline: Duration::from_hours(1),
            ..NvmeOptions::new(dir, num_chunks, args.chunk_bytes.0)
        };
        let store = NvmeStore::open(options, Arc::new(memory))?;
        let store_file = File::open(store.path()).context("cannot open the scratch store's file")?;
        let plain = Plain::new(&dir.join("plain.data"), chunk_bytes, num_chunks, args.depth)
            .context("cannot make the file of plain I/O")?;
        Ok(Self { store, store_file, plain, num_chunks, next_job: 0 })
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
        let chunks = (0..self.num_chunks).map(chunk).collect();
        let id = JobId(self.next_job);
        self.next_job += 1;
        TierJob { id, req: RequestId(id.0), direction, chunks }
    }
}

/// Host memory as an engine has it, full of bytes that no device can make smaller.
fn filled_memory(num_slots: u32, slot_bytes: usize) -> anyhow::Result<HostRegion> {
    let memory = HostRegion::anonymous(&RegionOptions::new(num_slots, slot_bytes))
        .context("cannot get the memory for a round (--round-bytes)")?;
    for slot in 0..num_slots {
        memory.with_write(SlotId(slot), &mut |bytes| fill(bytes, u64::from(slot)))?;
    }
    Ok(memory)
}

/// Bytes without a pattern: the generator `SplitMix64` from `seed`.
fn fill(bytes: &mut [u8], seed: u64) {
    let mut state = seed;
    for word in bytes.chunks_mut(8) {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        word.copy_from_slice(&(z ^ (z >> 31)).to_le_bytes()[..word.len()]);
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
        let how = |is_direct| if is_direct { "around the page cache" } else { "through the page cache" };
        writeln!(out, "{} rounds of {round} in chunks of {chunk}, {} at once", self.rounds, self.depth)?;
        writeln!(out, "store: {}, {}, with checksums", self.engine, how(self.store_is_direct))?;
        writeln!(out, "plain: positional I/O of as many threads, {}", how(self.plain_is_direct))?;
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
