//! Churn of a full store for minutes, every byte that comes back compared: what `kvo-bench soak-nvme` runs.
//!
//! Jobs of up to [`CHUNKS_PER_JOB_MAX`] neighbouring keys are under way at a time, a fixed number of them, 70 % of the bytes
//! loads and 30 % stores, over twice as many keys as the store has room for. A load names only keys that a lookup in the
//! same step has found, so each of them must arrive. What the store counts is held against what was asked of it.

mod engine;
mod lane;
mod ledger;
mod samples;

use std::{
    path::Path,
    time::{Duration, Instant},
};

use anyhow::{Context, ensure};
use kvo_core::{
    BlockHash, GroupIdx, JobId, OffloadKey, RequestContext, RequestId, SecondaryTier, TierChunk,
    TierDirection, TierJob, TierLookup,
};
use kvo_nvme::{NvmeOptions, NvmeStore};
use kvo_policies::PolicyKind;

use crate::{
    Interrupt,
    micro::mix,
    nvme::{Checked, HostChunks},
};

use self::lane::{Lane, Lanes};
pub use self::{
    engine::{
        EngineCounts, EngineSample, EngineSoakOptions, EngineSoakResult, FaultsSeen, LeftOver,
        growth_percent, memory_problems, run_engine_soak,
    },
    ledger::Ledger,
    samples::{SoakSample, growth_problems, resident_growth},
};

/// The most chunks of a job.
pub const CHUNKS_PER_JOB_MAX: u32 = 32;

/// Jobs under way.
const JOBS: u32 = 4;

/// How often memory and counts are looked at in a run.
const SAMPLES: u32 = 40;

/// Of a hundred bytes, those that are loaded.
const LOADED_PERCENT: u64 = 70;

/// A store that no disk is too slow for.
const PATIENCE: Duration = Duration::from_mins(10);

/// What to run.
#[derive(Clone, Debug)]
pub struct SoakOptions {
    /// For how long.
    pub duration: Duration,
    /// Bytes a chunk.
    pub chunk_bytes: u32,
    /// Chunks that the store holds.
    pub capacity_chunks: u32,
    /// Which chunk goes first.
    pub policy: PolicyKind,
    /// Of the random choices.
    pub seed: u64,
}

/// What came of it.
#[derive(Clone, Debug)]
pub struct SoakResult {
    /// Memory and counts as time went on.
    pub samples: Vec<SoakSample>,
    /// What was asked and what came.
    pub ledger: Ledger,
    /// What the store counted.
    pub stats: kvo_nvme::StoreStats,
    /// What is wrong with the bytes and the counts; empty if nothing is. For memory, files and threads of the process,
    /// see [`growth_problems`].
    pub problems: Vec<String>,
}

/// A store under churn.
struct Soak {
    store: NvmeStore,
    host: HostChunks,
    lanes: Lanes,
    ledger: Ledger,
    num_keys: u64,
    random: u64,
    jobs: u64,
}

/// Fills a store in `dir` and keeps it busy for the options' time, or until `interrupt` is set. `sampled` is called with
/// each sample.
///
/// # Errors
/// If the store cannot be opened, or hands a job back.
pub fn run_soak(
    dir: &Path,
    options: &SoakOptions,
    interrupt: &Interrupt,
    mut sampled: impl FnMut(&SoakSample),
) -> anyhow::Result<SoakResult> {
    let mut soak = Soak::new(dir, options)?;
    soak.fill(options.capacity_chunks)?;
    let (started, mut samples) = (Instant::now(), Vec::new());
    let mut take = |soak: &Soak| {
        let sample = SoakSample::take(started.elapsed(), &soak.store.stats(), &soak.ledger)?;
        sampled(&sample);
        samples.push(sample);
        anyhow::Ok(())
    };
    for number in 1..=SAMPLES {
        let until = options.duration * number / SAMPLES;
        while started.elapsed() < until && !interrupt.is_set() {
            soak.step()?;
        }
        if interrupt.is_set() {
            break;
        }
        take(&soak)?;
    }
    soak.finish()?;
    let stats = soak.store.stats();
    let problems = soak.ledger.problems(&stats, u64::from(options.chunk_bytes));
    Ok(SoakResult { samples, ledger: soak.ledger, stats, problems })
}

impl Soak {
    fn new(dir: &Path, options: &SoakOptions) -> anyhow::Result<Self> {
        let chunk_bytes = options.chunk_bytes as usize;
        let host = HostChunks::new(JOBS * CHUNKS_PER_JOB_MAX, chunk_bytes, 0)?;
        let store = NvmeOptions {
            policy: options.policy,
            ..NvmeOptions::new(dir, options.capacity_chunks, chunk_bytes as u64)
        };
        let store = NvmeStore::open(store, host.memory()).context("the store cannot be opened")?;
        Ok(Self {
            store,
            host,
            lanes: Lanes::new(JOBS),
            ledger: Ledger::default(),
            num_keys: 2 * u64::from(options.capacity_chunks),
            random: options.seed,
            jobs: 0,
        })
    }

    /// Stores as many chunks as there is room for.
    fn fill(&mut self, capacity_chunks: u32) -> anyhow::Result<()> {
        let mut next = 0;
        while next < u64::from(capacity_chunks) {
            if let Some(lane) = self.lanes.take() {
                let end = (next + u64::from(CHUNKS_PER_JOB_MAX)).min(capacity_chunks.into());
                self.store_keys(lane, (next..end).map(key).collect())?;
                next = end;
            } else {
                self.wait()?;
            }
        }
        self.finish()
    }

    /// Begins what there is room for, or waits a moment.
    fn step(&mut self) -> anyhow::Result<()> {
        match self.lanes.take() {
            Some(lane) => self.begin(lane),
            None => self.wait(),
        }
    }

    fn begin(&mut self, lane: u32) -> anyhow::Result<()> {
        let first = self.random(self.num_keys);
        let count = 1 + self.random(CHUNKS_PER_JOB_MAX.into());
        let mut keys: Vec<_> = (first..first + count).map(|number| key(number % self.num_keys)).collect();
        let (loaded, stored) = (self.ledger.chunks_loaded, self.ledger.chunks_written());
        if loaded * (100 - LOADED_PERCENT) > stored * LOADED_PERCENT {
            return self.store_keys(lane, keys);
        }
        let req = self.begin_request();
        keys.retain(|key| {
            let is_hit = self.store.lookup(req, key) == TierLookup::Hit;
            self.ledger.count_lookup(is_hit);
            is_hit
        });
        if keys.is_empty() {
            self.store.on_request_finished(req);
            self.lanes.give_back(lane);
            return Ok(());
        }
        self.submit(lane, req, TierDirection::Read, keys)
    }

    fn store_keys(&mut self, lane: u32, keys: Vec<OffloadKey>) -> anyhow::Result<()> {
        let req = self.begin_request();
        self.submit(lane, req, TierDirection::Write, keys)
    }

    fn begin_request(&mut self) -> RequestId {
        self.jobs += 1;
        let req = RequestId(self.jobs);
        self.store.on_new_request(&RequestContext::new(req));
        req
    }

    fn submit(
        &mut self,
        lane: u32,
        req: RequestId,
        direction: TierDirection,
        keys: Vec<OffloadKey>,
    ) -> anyhow::Result<()> {
        let lane = Lane { number: lane, req, direction, keys };
        lane.prepare(&self.host)?;
        let chunks = lane.chunks().map(|(key, slot)| TierChunk { key, slot, end_token: None }).collect();
        self.ledger.count_begun(&lane);
        let id = JobId(req.0);
        self.store.submit(TierJob { id, req, direction, chunks })?;
        self.lanes.run(id, lane);
        Ok(())
    }

    /// Waits until something has ended, and takes in what has.
    fn wait(&mut self) -> anyhow::Result<()> {
        ensure!(self.store.wait(PATIENCE), "nothing has ended in {PATIENCE:?}");
        self.take_in()
    }

    fn take_in(&mut self) -> anyhow::Result<()> {
        let mut done = Vec::new();
        self.store.poll(&mut done);
        for completion in done {
            let lane = self.lanes.end(completion.job).with_context(|| {
                format!("the store reported job {}, which was not under way", completion.job)
            })?;
            // Its slots could not be used again until they are let go.
            ensure!(completion.held.is_empty(), "job {} is late", completion.job);
            self.store.on_request_finished(lane.req);
            let checked = self
                .ledger
                .count_ended(&lane, &completion.outcome, |arrived| lane.compare(&self.host, arrived))?;
            self.ledger.compared = self.ledger.compared.and(checked);
            self.lanes.give_back(lane.number);
        }
        Ok(())
    }

    /// Waits for everything that is under way.
    fn finish(&mut self) -> anyhow::Result<()> {
        self.store.drain(PATIENCE)?;
        self.take_in()
    }

    fn random(&mut self, below: u64) -> u64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.random) % below
    }
}

/// The bytes of a chunk are a function of its key, so that a key may be stored again after its eviction.
fn key(number: u64) -> OffloadKey {
    OffloadKey::new(BlockHash::from_u64(number), GroupIdx(0))
}

#[cfg(test)]
mod tests;
