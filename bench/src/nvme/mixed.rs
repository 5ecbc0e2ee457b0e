//! Reads and stores at once: what loads keep of their speed while stores run flat out.
//!
//! ```text
//!   capacity:  a third is read, again and again │ two thirds are what stores write over
//!
//!   a round, in an order of its own:
//!     reads alone      every chunk of the first third once, [`READ_DEPTH`] jobs of one chunk under way
//!     both             the same, while [`STORE_JOBS`] store jobs are always under way
//!     stores alone     as many bytes of fresh chunks
//! ```
//!
//! A read is timed from its submission until the store's user sees that it has ended, by a wait that ends with it.

use std::{
    collections::HashMap,
    path::Path,
    time::{Duration, Instant},
};

use anyhow::{Context, bail, ensure};
use kvo_core::{
    JobId, RequestContext, RequestId, SecondaryTier, SlotId, TierChunk, TierCompletion, TierDirection,
    TierJob, TierOutcome,
};
use kvo_nvme::{NvmeOptions, NvmeStore};
use serde::{Deserialize, Serialize};

use super::{Checked, HostChunks, Keys, Range, StoreKind, Work, quotients};
use crate::{Interrupt, micro::shuffle};

/// Reads under way, of a chunk each.
pub const READ_DEPTH: usize = 4;

/// Store jobs under way.
pub const STORE_JOBS: u32 = 4;

/// Chunks of a store job.
const STORE_CHUNKS: u32 = 16;

/// Of the chunks that are read, as many again and twice are room for what is stored.
const CAPACITY_FACTOR: u32 = 3;

/// Chunks that are read, at least: several times what stores have under way.
const CHUNKS_MIN: u32 = 4 * STORE_JOBS * STORE_CHUNKS;

/// A store that no disk is too slow for.
const PATIENCE: Duration = Duration::from_mins(10);

/// What was measured, round by round.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct MixedResult {
    /// Bytes a chunk.
    pub chunk_bytes: u32,
    /// Megabytes a second of reads alone.
    pub reads_alone_mb_per_s: Vec<f64>,
    /// Megabytes a second of reads while stores run.
    pub reads_mb_per_s: Vec<f64>,
    /// Of a hundred reads alone, what the slowest takes, in microseconds.
    pub reads_alone_p99_us: Vec<f64>,
    /// The same while stores run.
    pub reads_p99_us: Vec<f64>,
    /// Megabytes a second of stores alone.
    pub stores_alone_mb_per_s: Vec<f64>,
    /// Megabytes a second of stores while reads run.
    pub stores_mb_per_s: Vec<f64>,
    /// Bytes that were compared after reads, and were right.
    pub verified_bytes: u64,
    /// Chunks that were read and not right.
    pub mismatches: u64,
}

/// Rounds of both over those of one alone.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MixedKept {
    /// The rate of reads.
    pub reads: Range,
    /// What the slowest of a hundred reads takes.
    pub reads_p99: Range,
    /// The rate of stores.
    pub stores: Range,
}

/// A part of a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    ReadsAlone,
    Both,
    StoresAlone,
}

/// What a part of a round came to.
#[derive(Clone, Debug, Default)]
struct Measured {
    wall: Duration,
    /// Of each read.
    latencies: Vec<Duration>,
    /// Chunks of store jobs that had ended in this time.
    chunks_stored: u64,
}

/// A store of three times as many chunks as are read.
struct Mixed {
    store: NvmeStore,
    host: HostChunks,
    /// Of what is read: the first write's.
    read_keys: Keys,
    /// Of what is stored: fresh ones, one by one.
    stored_keys: Keys,
    stored: u32,
    jobs: u64,
    running: HashMap<JobId, Running>,
    free_store_slots: Vec<u32>,
}

/// A job under way.
#[derive(Clone, Copy, Debug)]
enum Running {
    Read {
        begun: Instant,
    },
    Store {
        first_slot: u32,
    },
    /// Of chunks that are there.
    Restore,
}

/// Runs the rounds of one chunk size in `dir`, a directory of its own, or as many until `interrupt` is set; with 256 chunks
/// if the work has less.
///
/// # Errors
/// If the store fails.
pub fn run_mixed(dir: &Path, work: Work, interrupt: &Interrupt) -> anyhow::Result<MixedResult> {
    let work = Work { num_chunks: work.num_chunks.max(CHUNKS_MIN), ..work };
    let mut mixed = Mixed::open(dir, work)?;
    mixed.fill()?;
    let mut result = MixedResult { chunk_bytes: work.chunk_bytes, ..MixedResult::default() };
    // The first round counts for nothing.
    for round in 0..=u64::from(work.rounds) {
        let mut phases = [Phase::ReadsAlone, Phase::Both, Phase::StoresAlone];
        shuffle(&mut phases, round);
        let mut measured = Vec::new();
        for phase in phases {
            if interrupt.is_set() {
                return Ok(result);
            }
            mixed.restore()?;
            measured.push((phase, mixed.run(phase, round, &mut result)?));
        }
        if round > 0 {
            for (phase, measured) in &measured {
                result.add(*phase, measured, work);
            }
        }
    }
    Ok(result)
}

impl Mixed {
    fn open(dir: &Path, work: Work) -> anyhow::Result<Self> {
        let num_read = work.num_chunks;
        let host = HostChunks::new(num_read, work.chunk_bytes as usize, (STORE_JOBS + 1) * STORE_CHUNKS)?;
        let capacity = num_read.saturating_mul(CAPACITY_FACTOR);
        let options = NvmeOptions {
            capacity_chunks: capacity,
            queue_chunks_max: capacity as usize,
            ..StoreKind::Full.options(dir, &host)
        };
        let store = NvmeStore::open(options, host.memory()).context("the store cannot be opened")?;
        let mut read_keys = Keys::new(0, num_read);
        read_keys.next_write();
        Ok(Self {
            store,
            read_keys,
            stored_keys: Keys::new(1, capacity),
            stored: 0,
            jobs: 0,
            running: HashMap::new(),
            free_store_slots: (0..STORE_JOBS).map(|job| num_read + job * STORE_CHUNKS).collect(),
            host,
        })
    }

    /// Writes what is read, and fills the rest, so that every slot has been written once.
    fn fill(&mut self) -> anyhow::Result<()> {
        self.host.fill(|index| self.read_keys.key(index))?;
        self.restore()?;
        while self.store.counts().free > 0 {
            self.keep_storing()?;
            self.take_in(&mut Measured::default())?;
        }
        self.finish()
    }

    /// Makes sure that all chunks which are read are there, and the last to be evicted: the host memory still has them.
    ///
    /// Job by job: what a job finds counts as used only at its end, and could go for another before.
    fn restore(&mut self) -> anyhow::Result<()> {
        for first in (0..self.host.num_chunks()).step_by(STORE_CHUNKS as usize) {
            let end = (first + STORE_CHUNKS).min(self.host.num_chunks());
            let chunks = (first..end).map(|index| self.read_chunk(index)).collect();
            self.submit(TierDirection::Write, chunks, Running::Restore)?;
            self.finish()?;
        }
        Ok(())
    }

    fn run(&mut self, phase: Phase, round: u64, result: &mut MixedResult) -> anyhow::Result<Measured> {
        let measured = match phase {
            Phase::StoresAlone => self.store_alone()?,
            Phase::ReadsAlone | Phase::Both => {
                self.host.clear()?;
                let measured = self.read_all(phase == Phase::Both, round)?;
                let Checked { right_bytes, wrong_chunks } =
                    self.host.compare(|index| self.read_keys.key(index))?;
                result.verified_bytes += right_bytes;
                result.mismatches += wrong_chunks;
                ensure!(wrong_chunks == 0, "{wrong_chunks} chunks came back with other bytes");
                measured
            }
        };
        Ok(measured)
    }

    /// Reads every chunk once, perhaps while stores run.
    fn read_all(&mut self, while_storing: bool, round: u64) -> anyhow::Result<Measured> {
        let mut order: Vec<u32> = (0..self.host.num_chunks()).collect();
        shuffle(&mut order, round);
        let (mut measured, mut reads) = (Measured::default(), 0);
        if while_storing {
            self.keep_storing()?;
        }
        let started = Instant::now();
        let mut order = order.into_iter();
        while measured.latencies.len() < self.host.num_chunks() as usize {
            while reads - measured.latencies.len() < READ_DEPTH {
                let Some(index) = order.next() else { break };
                let read = Running::Read { begun: Instant::now() };
                self.submit(TierDirection::Read, vec![self.read_chunk(index)], read)?;
                reads += 1;
            }
            // Any more would evict what is read: stores that are so much faster than reads are not slowed down by them.
            if while_storing && measured.chunks_stored < self.room_for_stores() {
                self.keep_storing()?;
            }
            self.take_in(&mut measured)?;
        }
        measured.wall = started.elapsed();
        self.finish()?;
        Ok(measured)
    }

    /// Chunks that stores may write before they evict what is read.
    fn room_for_stores(&self) -> u64 {
        let room = (CAPACITY_FACTOR - 1) * self.host.num_chunks();
        u64::from(room.saturating_sub(2 * STORE_JOBS * STORE_CHUNKS))
    }

    /// As many chunks as are read.
    fn store_alone(&mut self) -> anyhow::Result<Measured> {
        let mut measured = Measured::default();
        let started = Instant::now();
        while measured.chunks_stored < u64::from(self.host.num_chunks()) {
            self.keep_storing()?;
            self.take_in(&mut measured)?;
        }
        measured.wall = started.elapsed();
        self.finish()?;
        Ok(measured)
    }

    /// Begins store jobs of fresh chunks until there are as many as there may be.
    fn keep_storing(&mut self) -> anyhow::Result<()> {
        while let Some(first_slot) = self.free_store_slots.pop() {
            let chunks = (first_slot..first_slot + STORE_CHUNKS).map(|slot| {
                let key = self.stored_keys.key(self.stored);
                self.stored += 1;
                if self.stored == self.stored_keys.num_chunks() {
                    self.stored = 0;
                    self.stored_keys.next_write();
                }
                TierChunk { key, slot: SlotId(slot), end_token: None }
            });
            let chunks = chunks.collect();
            self.submit(TierDirection::Write, chunks, Running::Store { first_slot })?;
        }
        Ok(())
    }

    fn read_chunk(&self, index: u32) -> TierChunk {
        TierChunk { key: self.read_keys.key(index), slot: SlotId(index), end_token: None }
    }

    fn submit(
        &mut self,
        direction: TierDirection,
        chunks: Vec<TierChunk>,
        running: Running,
    ) -> anyhow::Result<()> {
        self.jobs += 1;
        let (id, req) = (JobId(self.jobs), RequestId(self.jobs));
        self.store.on_new_request(&RequestContext::new(req));
        self.store.submit(TierJob { id, req, direction, chunks })?;
        self.running.insert(id, running);
        Ok(())
    }

    /// Waits for the next end, and takes in all there are.
    fn take_in(&mut self, measured: &mut Measured) -> anyhow::Result<()> {
        ensure!(self.store.wait(PATIENCE), "nothing has ended in {PATIENCE:?}");
        let mut done = Vec::new();
        self.store.poll(&mut done);
        let now = Instant::now();
        for TierCompletion { job, outcome, .. } in done {
            self.store.on_request_finished(RequestId(job.0));
            if outcome != TierOutcome::Done {
                bail!("job {job} failed: {outcome:?}; the store: {:?}", self.store.stats());
            }
            match self.running.remove(&job).with_context(|| format!("job {job} was not under way"))? {
                Running::Read { begun } => measured.latencies.push(now - begun),
                Running::Store { first_slot } => {
                    self.free_store_slots.push(first_slot);
                    measured.chunks_stored += u64::from(STORE_CHUNKS);
                }
                Running::Restore => {}
            }
        }
        Ok(())
    }

    /// Waits for all that is under way.
    fn finish(&mut self) -> anyhow::Result<()> {
        while !self.running.is_empty() {
            self.take_in(&mut Measured::default())?;
        }
        Ok(())
    }
}

impl MixedResult {
    /// What reads keep of their rate, what their p99 becomes, and what stores keep: over what each is alone. None if
    /// there was no round.
    pub fn kept(&self) -> Option<MixedKept> {
        Some(MixedKept {
            reads: Range::of(&quotients(&self.reads_mb_per_s, &self.reads_alone_mb_per_s))?,
            reads_p99: Range::of(&quotients(&self.reads_p99_us, &self.reads_alone_p99_us))?,
            stores: Range::of(&quotients(&self.stores_mb_per_s, &self.stores_alone_mb_per_s))?,
        })
    }

    /// All rounds, by name.
    pub fn rounds(&self) -> [(&'static str, &[f64]); 6] {
        [
            ("reads_alone_mb_per_s", &self.reads_alone_mb_per_s),
            ("reads_mb_per_s", &self.reads_mb_per_s),
            ("reads_alone_p99_us", &self.reads_alone_p99_us),
            ("reads_p99_us", &self.reads_p99_us),
            ("stores_alone_mb_per_s", &self.stores_alone_mb_per_s),
            ("stores_mb_per_s", &self.stores_mb_per_s),
        ]
    }

    fn add(&mut self, phase: Phase, measured: &Measured, work: Work) {
        let per_s = |chunks: u64| {
            (chunks * u64::from(work.chunk_bytes)) as f64 / 1e6 / measured.wall.as_secs_f64().max(1e-9)
        };
        let (reads, p99_us) = (per_s(measured.latencies.len() as u64), p99_us(&measured.latencies));
        match phase {
            Phase::ReadsAlone => {
                self.reads_alone_mb_per_s.push(reads);
                self.reads_alone_p99_us.push(p99_us);
            }
            Phase::Both => {
                self.reads_mb_per_s.push(reads);
                self.reads_p99_us.push(p99_us);
                self.stores_mb_per_s.push(per_s(measured.chunks_stored));
            }
            Phase::StoresAlone => self.stores_alone_mb_per_s.push(per_s(measured.chunks_stored)),
        }
    }
}

/// Of a hundred, what the slowest takes.
fn p99_us(latencies: &[Duration]) -> f64 {
    let mut sorted = latencies.to_vec();
    sorted.sort_unstable();
    let at = (sorted.len() * 99).div_ceil(100).saturating_sub(1);
    sorted.get(at).map_or(0.0, |latency| latency.as_secs_f64() * 1e6)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_round_reads_every_chunk_twice_and_stores_run_meanwhile() {
        let dir = tempfile::tempdir().unwrap();
        let work = Work { chunk_bytes: 4096, num_chunks: 300, rounds: 3 };
        let result = run_mixed(dir.path(), work, &Interrupt::manual()).unwrap();
        // The round that does not count is compared too.
        assert_eq!((result.verified_bytes, result.mismatches), (4 * 2 * 300 * 4096, 0));
        for (name, rounds) in result.rounds() {
            assert_eq!(rounds.len(), 3, "{name}");
            let may_be_none = name == "stores_mb_per_s";
            assert!(rounds.iter().all(|round| *round > 0.0 || may_be_none), "{name}: {rounds:?}");
        }
        let kept = result.kept().unwrap();
        assert!(kept.reads.min > 0.0 && kept.reads_p99.min > 0.0);
        assert_eq!(MixedResult::default().kept(), None);
    }

    #[test]
    fn the_slowest_of_a_hundred_is_found() {
        let micros = |n| Duration::from_micros(n);
        let check =
            |latencies: &[Duration], expected: f64| assert!((p99_us(latencies) - expected).abs() < 1e-6);
        check(&[], 0.0);
        check(&[micros(7)], 7.0);
        check(&(1..=200).rev().map(micros).collect::<Vec<_>>(), 198.0);
    }
}
