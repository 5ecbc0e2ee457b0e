//! The mini-engine at capacity for minutes, on a real store and a host device, while everything fails that can: what
//! `kvo-bench soak-engine` runs.
//!
//! Requests come as soon as there is room, out of a set whose answers are known; so every logit of an answer is compared
//! with that of an engine in which the request was alone. GPU blocks, slots and the store are all too small for the set.
//! Meanwhile slots are in use when a device copies, jobs of the store are refused, fail, or are late, bytes of its file
//! are overwritten, requests are aborted and preempted, and now and then everything is reset.

mod answers;
mod faults;
mod left_over;
mod samples;

use std::{
    collections::HashMap,
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context, ensure};
use kvo_connector::{Connector, ConnectorOptions, Namespace, WorkerOptions};
use kvo_core::{HostMemory, RequestId, SecondaryTier};
use kvo_cpu::{CpuManager, CpuOptions, HostRegion, RegionOptions};
use kvo_cuda::GroupLayout;
use kvo_mini_engine::{Connected, Engine, EngineOptions, KvCaches, Model, ModelConfig, SplitMix64};
use kvo_nvme::{NvmeOptions, NvmeStore};
use kvo_policies::{CachePolicy, PolicyKind};
use kvo_tiering::{TieringManager, TieringOptions};
use serde::Serialize;

use self::{
    answers::Answers,
    faults::{Busy, Faulty, Spoiler},
};
pub use self::{
    faults::FaultsSeen,
    left_over::LeftOver,
    samples::{EngineSample, growth_percent, memory_problems},
};
use crate::Interrupt;

/// How often memory is looked at in a run.
const SAMPLES: u32 = 40;

/// Requests that are in the engine at a time.
const REQUESTS: usize = 12;
const BLOCK_TOKENS: u32 = 8;

/// No step of an engine that goes on takes so many.
const STEPS_TO_REST_MAX: u32 = 100_000;

/// What to run.
#[derive(Clone, Debug)]
pub struct EngineSoakOptions {
    /// For how long.
    pub duration: Duration,
    /// Slots of the primary tier.
    pub cpu_chunks: u32,
    /// Chunks that the store holds.
    pub nvme_chunks: u32,
    /// Which chunk goes first, in both.
    pub policy: PolicyKind,
    /// Of the random choices.
    pub seed: u64,
}

/// What happened.
#[derive(Clone, Debug, Default, Serialize)]
pub struct EngineCounts {
    /// Steps of the engine.
    pub steps: u64,
    /// Answers that were compared.
    pub answers: u64,
    /// Of which other ones came than should have.
    pub wrong_answers: u64,
    /// Logits that were compared.
    pub logits: u64,
    /// Requests that were aborted.
    pub aborted: u64,
    /// How often a request lost its blocks.
    pub preemptions: u64,
    /// How often everything was forgotten.
    pub resets: u64,
    /// Tokens that were loaded.
    pub loaded_tokens: u64,
    /// Tokens that were to be loaded, and were not.
    pub failed_tokens: u64,
    /// Chunks that the store brought back.
    pub promoted: u64,
    /// Chunks that the primary gave up for others.
    pub evicted: u64,
    /// Reads of the store whose bytes were not those that were written.
    pub checksum_failures: u64,
    /// Jobs of the store that it did not get, or that were reported as failed; and those whose slots were held.
    pub faults: FaultsSeen,
    /// Copies of the device that found a slot in use.
    pub busy_slots: u64,
    /// Overwritten places of the store's file.
    pub spoiled: u64,
}

/// What came of it.
#[derive(Clone, Debug)]
pub struct EngineSoakResult {
    /// Memory as time went on.
    pub samples: Vec<EngineSample>,
    /// What happened.
    pub counts: EngineCounts,
    /// What is wrong; empty if nothing is. For memory see [`memory_problems`], for what is left of the process, [`LeftOver`].
    pub problems: Vec<String>,
}

type Kvo = Connected<TieringManager<Box<dyn CachePolicy>>>;

struct Soak {
    engine: Engine<Kvo>,
    answers: Answers,
    asked: HashMap<RequestId, usize>,
    random: SplitMix64,
    spoiler: Spoiler,
    busy: Arc<Busy>,
    faults: faults::Shared,
    counts: EngineCounts,
    problems: Vec<String>,
}

/// Keeps an engine busy for the options' time, or until `interrupt` is set, with a store in `dir`. `sampled` is called with
/// each sample.
///
/// # Errors
/// If something cannot be made, or the engine does not go on.
pub fn run_engine_soak(
    dir: &Path,
    options: &EngineSoakOptions,
    interrupt: &Interrupt,
    mut sampled: impl FnMut(&EngineSample),
) -> anyhow::Result<EngineSoakResult> {
    let model = Arc::new(Model::seeded(ModelConfig::window(), 1)?);
    let answers = Answers::of(&model, &engine_options(), options.seed)?;
    let mut soak = Soak::new(dir, &model, answers, options)?;
    let (started, mut samples) = (Instant::now(), Vec::new());
    for number in 1..=SAMPLES {
        let until = options.duration * number / SAMPLES;
        while started.elapsed() < until && !interrupt.is_set() {
            soak.act()?;
        }
        if interrupt.is_set() {
            break;
        }
        let sample = EngineSample::take(started.elapsed(), soak.counts.answers)?;
        sampled(&sample);
        samples.push(sample);
    }
    soak.rest()?;
    let (counts, problems) = soak.end();
    Ok(EngineSoakResult { samples, counts, problems })
}

fn engine_options() -> EngineOptions {
    EngineOptions {
        block_tokens: BLOCK_TOKENS,
        // Hardly more than two of the longest requests need.
        num_blocks: 34,
        step_tokens: 40,
        requests_max: 8,
        keep_logits: true,
        block_seed: Some(1),
        ..EngineOptions::default()
    }
}

impl Soak {
    fn new(
        dir: &Path,
        model: &Arc<Model>,
        answers: Answers,
        options: &EngineSoakOptions,
    ) -> anyhow::Result<Self> {
        let engine_options = engine_options();
        let caches = KvCaches::plan(model.config(), &engine_options)?;
        let layout = caches.layout(1)?;
        let slot_bytes = layout.groups().iter().map(GroupLayout::chunk_bytes).max().unwrap_or(0);
        let region = RegionOptions {
            huge_pages: false,
            ..RegionOptions::new(options.cpu_chunks, usize::try_from(slot_bytes)?)
        };
        let region = Arc::new(HostRegion::anonymous(&region)?);
        let store =
            NvmeOptions { policy: options.policy, ..NvmeOptions::new(dir, options.nvme_chunks, slot_bytes) };
        let store = NvmeStore::open(store, Arc::clone(&region) as _).context("the store cannot be opened")?;
        let faults = faults::Shared::default();
        let store = Faulty::new(store, options.seed, faults.clone());
        let tiers: Vec<Box<dyn SecondaryTier>> = vec![Box::new(store)];
        let primary =
            CpuManager::new(CpuOptions::new(options.cpu_chunks), options.policy.build(options.cpu_chunks))?;
        let start = Instant::now();
        let clock = move || start.elapsed();
        let manager = TieringManager::new(primary, tiers, TieringOptions::new(slot_bytes), Box::new(clock))?;
        let namespace = Namespace::new(caches.fingerprint("soak", 1)?, 0);
        let connector = ConnectorOptions {
            lookup_patience: Duration::from_millis(20),
            offer_chunks_max: 16,
            ..ConnectorOptions::new(namespace, caches.group_options(1), BLOCK_TOKENS)
        };
        let connector = Connector::new(connector, manager, Box::new(clock))?;
        // The device finds slots in use; the store has the memory as it is, and so its own ways to it.
        let busy = Arc::new(Busy::new(region, options.seed));
        let host: Arc<dyn HostMemory> = busy.clone();
        let connected = Connected::new(connector, host, WorkerOptions::default());
        Ok(Self {
            engine: Engine::new(Arc::clone(model), engine_options, connected)?,
            answers,
            asked: HashMap::new(),
            random: SplitMix64::stream(options.seed, 1),
            spoiler: Spoiler::open(dir, options.seed)?,
            busy,
            faults,
            counts: EngineCounts::default(),
            problems: Vec::new(),
        })
    }

    fn one_in(&mut self, of: u64) -> bool {
        self.random.below(of) == 0
    }

    /// A step, and what else may happen.
    fn act(&mut self) -> anyhow::Result<()> {
        while self.engine.num_requests() < REQUESTS {
            let nth = usize::try_from(self.random.below(self.answers.len() as u64))?;
            let id = self.engine.add(self.answers.request(nth).clone())?;
            self.asked.insert(id, nth);
        }
        if self.one_in(40) {
            let nth = usize::try_from(self.random.below(self.asked.len() as u64))?;
            let id = *self.asked.keys().nth(nth).context("there are requests")?;
            let output = self.engine.abort(id)?;
            self.counts.aborted += 1;
            self.compare(&output);
        }
        if self.one_in(1_500) {
            self.engine.reset();
            self.counts.resets += 1;
        }
        // What is on the device is forgotten, so that it has to be loaded.
        if self.one_in(4) {
            self.engine.forget_device();
        }
        if self.one_in(300) {
            self.spoiler.spoil()?;
            self.counts.spoiled += 1;
        }
        self.engine.offload_mut().by_layer = self.random.below(2) == 0;
        self.engine.offload_mut().keep_until_settled = self.random.below(3) == 0;
        self.step()
    }

    fn step(&mut self) -> anyhow::Result<()> {
        let report = self.engine.step()?;
        self.counts.steps += 1;
        for output in &report.finished {
            self.compare(output);
        }
        Ok(())
    }

    fn compare(&mut self, output: &kvo_mini_engine::Output) {
        let counts = &mut self.counts;
        let Some(nth) = self.asked.remove(&output.request) else {
            self.problems.push(format!("request {} was answered twice", output.request));
            return;
        };
        counts.answers += 1;
        counts.logits += output.logits.iter().map(|logits| logits.len() as u64).sum::<u64>();
        counts.preemptions += u64::from(output.hits.preemptions);
        counts.loaded_tokens += output.hits.loaded_tokens;
        counts.failed_tokens += output.hits.failed_tokens;
        if let Err(wrong) = self.answers.check(nth, output) {
            counts.wrong_answers += 1;
            // One is bad enough, and a thousand would fill the memory.
            if counts.wrong_answers == 1 {
                self.problems.push(format!("request {} (the {nth}th of the set): {wrong}", output.request));
            }
        }
    }

    /// Lets everything end.
    fn rest(&mut self) -> anyhow::Result<()> {
        let is_held = |engine: &Engine<Kvo>| {
            engine.offload().connector().manager().stats().tiers.iter().any(|tier| tier.held_slots > 0)
        };
        for _ in 0..STEPS_TO_REST_MAX {
            if self.engine.is_idle() && !is_held(&self.engine) {
                return Ok(());
            }
            self.step()?;
        }
        let num = self.engine.num_requests();
        ensure!(num == 0, "{num} requests wait for ever");
        self.problems.push("slots of the store are held for ever".to_owned());
        Ok(())
    }

    /// What is left over, with everything given back.
    fn end(mut self) -> (EngineCounts, Vec<String>) {
        self.engine.assert_consistent();
        let connector = self.engine.offload().connector();
        let stats = connector.stats();
        let manager = connector.manager().stats();
        let counts = connector.counts();
        let mut problems = self.problems;
        let mut none = |what: &str, count: u64| {
            if count != 0 {
                problems.push(format!("{count} {what} left over"));
            }
        };
        none("requests without an answer", self.asked.len() as u64);
        none("requests of the connector", stats.open_requests as u64);
        none("copies", stats.open_copies as u64);
        none("blocks in use by copies", stats.blocks_in_use as u64);
        none("requests of the tiers", manager.open_requests as u64);
        none("jobs of the primary", manager.primary.open_jobs as u64);
        none("pending chunks", u64::from(counts.pending));
        none("pinned chunks", u64::from(counts.pinned));
        for tier in &manager.tiers {
            none("jobs of the store", tier.active_jobs);
            none("reports that made no sense", tier.invalid_reports);
            none("releases that made no sense", tier.invalid_releases);
        }
        let blocks = self.engine.caches().num_blocks() as usize;
        for available in self.engine.blocks_available() {
            none("GPU blocks", (blocks - available) as u64);
        }
        if !counts.add_up() {
            problems.push(format!("the slots do not add up: {counts:?}"));
        }
        let seen = self.faults.seen();
        problems.extend(seen.problems.iter().cloned());
        self.counts.promoted = manager.primary.chunks_promoted;
        self.counts.evicted = manager.primary.chunks_evicted;
        self.counts.checksum_failures = seen.checksum_failures;
        self.counts.busy_slots = self.busy.refused();
        self.counts.faults = seen;
        (self.counts, problems)
    }
}

#[cfg(test)]
mod tests;
