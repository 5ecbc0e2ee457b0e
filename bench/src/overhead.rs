//! What offloading costs an engine whose traffic never comes back: the mini-engine with and without it, in one run.

use std::{
    cell::Cell,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::ensure;
use kvo_connector::{
    EngineIdentity, Finish, OffloadConfig, PrefixMatch, StepPlan, Worker, WorkerOptions, WorkerReport,
};
use kvo_core::{DeviceSpan, HostMemory, RequestId};
use kvo_cuda::HostDevice;
use kvo_mini_engine::{
    Connected, Engine, EngineError, EngineOptions, KvCaches, LoadStart, Model, ModelConfig, NewRequest,
    NoOffload, Offload, OffloadEvents, RequestView, StepInput,
};
use serde::Serialize;

use crate::nvme::{Bound, Point};

/// How much is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct OverheadPlan {
    /// Pairs of runs, one with and one without offloading.
    pub rounds: u16,
    /// Requests of a run, none of which shares a block with another.
    pub requests: u32,
    /// Tokens of a prompt.
    pub prompt_tokens: u32,
    /// Tokens of an answer.
    pub answer_tokens: u32,
    /// Slots of the CPU tier: fewer than there are chunks, so that it evicts.
    pub cpu_chunks: u32,
}

/// All figures.
#[derive(Clone, Debug, Serialize)]
pub struct OverheadResults {
    /// How much was done.
    pub plan: OverheadPlan,
    /// Tokens a second without offloading, by round.
    pub plain_tokens_per_s: Vec<f64>,
    /// With it.
    pub offloaded_tokens_per_s: Vec<f64>,
    /// The share of the time of a run with offloading that the scheduler was in its calls, by round.
    pub scheduler_share: Vec<f64>,
    /// Chunks that a run stores.
    pub chunks_stored: u64,
}

impl OverheadResults {
    /// What a run with offloading costs more than the one beside it, the median, as a share of the latter.
    pub fn cost(&self) -> f64 {
        let pairs = self.plain_tokens_per_s.iter().zip(&self.offloaded_tokens_per_s);
        median(pairs.map(|(plain, offloaded)| plain / offloaded - 1.0).collect())
    }

    /// The figures that have a bound.
    pub fn points(&self) -> Vec<Point> {
        let share = median(self.scheduler_share.clone());
        vec![
            Point::new("the scheduler's share of the time, without reuse", share, Bound::AtMost(0.01)),
            Point::new("what offloading costs in all, without reuse", self.cost(), Bound::AtMost(0.03)),
        ]
    }
}

/// Measures a pair of runs more.
///
/// # Errors
/// If an engine does not serve, or the two give other answers.
pub fn measure(results: &mut OverheadResults, model: &Arc<Model>, round: u16) -> anyhow::Result<()> {
    let plan = results.plan;
    let caches = KvCaches::plan(model.config(), &options())?;
    let layout = caches.layout(1)?;
    let slot_bytes = layout.groups().iter().map(kvo_cuda::GroupLayout::chunk_bytes).max().unwrap_or(0);
    let mut config = OffloadConfig::new(u64::from(plan.cpu_chunks) * slot_bytes);
    config.cpu.huge_pages = false;
    let groups = caches.group_options(1);
    let identity = EngineIdentity::new("seeded", "f32", 0);
    let kvo =
        kvo_connector::Offload::builder(config, identity, layout, groups, options().block_tokens).build()?;
    let host: Arc<dyn HostMemory> = kvo.host().clone();
    let connected = Timed::new(Connected::new(kvo.connector, host, WorkerOptions::default()));
    let mut offloaded = Engine::new(Arc::clone(model), options(), connected)?;
    let mut plain = Engine::new(Arc::clone(model), options(), NoOffload)?;
    // Whichever runs second finds warm caches: they take turns.
    let is_plain_first = round.is_multiple_of(2);
    let mut runs = [None, None];
    for is_plain in [is_plain_first, !is_plain_first] {
        runs[usize::from(is_plain)] =
            Some(if is_plain { run(&mut plain, &plan)? } else { run(&mut offloaded, &plan)? });
    }
    let [Some((took, answers)), Some((plain_took, plain_answers))] = runs else {
        unreachable!("both have run")
    };
    ensure!(answers == plain_answers, "offloading has changed an answer");
    let tokens = f64::from(plan.requests) * f64::from(plan.prompt_tokens + plan.answer_tokens);
    results.plain_tokens_per_s.push(tokens / plain_took.as_secs_f64());
    results.offloaded_tokens_per_s.push(tokens / took.as_secs_f64());
    let in_calls = offloaded.offload().spent.get();
    results.scheduler_share.push(in_calls.as_secs_f64() / took.as_secs_f64());
    results.chunks_stored = offloaded.offload().inner.connector().manager().stats().primary.chunks_stored;
    Ok(())
}

/// The model that the runs have.
///
/// # Errors
/// If there is too little memory.
pub fn model(is_tiny: bool) -> anyhow::Result<Arc<Model>> {
    let config = if is_tiny { ModelConfig::tiny() } else { ModelConfig::small() };
    Ok(Arc::new(Model::seeded(config, 1)?))
}

fn options() -> EngineOptions {
    EngineOptions { num_blocks: 512, requests_max: 8, ..EngineOptions::default() }
}

/// Serves all requests; says how long that took, and the answers.
fn run<O: Offload>(engine: &mut Engine<O>, plan: &OverheadPlan) -> anyhow::Result<(Duration, Vec<Vec<u32>>)> {
    let start = Instant::now();
    for request in 0..plan.requests {
        let prompt = (0..plan.prompt_tokens).map(|nth| (request * 31 + nth * (request + 7)) % 251).collect();
        engine.add(NewRequest::new(prompt, plan.answer_tokens))?;
    }
    let outputs = engine.run()?;
    let took = start.elapsed();
    ensure!(
        outputs.len() == plan.requests as usize,
        "{} of {} requests are served",
        outputs.len(),
        plan.requests
    );
    let loaded: u64 = outputs.iter().map(|output| output.hits.loaded_tokens).sum();
    ensure!(loaded == 0, "{loaded} tokens came back, in traffic without reuse");
    Ok((took, outputs.into_iter().map(|output| output.tokens).collect()))
}

/// An offload whose calls are timed.
struct Timed<O> {
    inner: O,
    spent: Cell<Duration>,
}

impl<O> Timed<O> {
    fn new(inner: O) -> Self {
        Self { inner, spent: Cell::default() }
    }

    fn time<T>(&mut self, call: impl FnOnce(&mut O) -> T) -> T {
        let start = Instant::now();
        let result = call(&mut self.inner);
        self.spent.set(self.spent.get() + start.elapsed());
        result
    }
}

impl<O: Offload> Offload for Timed<O> {
    fn host(&self) -> Arc<dyn HostMemory> {
        self.inner.host()
    }

    fn worker(
        &self,
        device: HostDevice,
        arenas: &[DeviceSpan],
        caches: &KvCaches,
    ) -> Result<Worker<HostDevice>, EngineError> {
        self.inner.worker(device, arenas, caches)
    }

    fn new_request(&mut self, request: RequestView<'_>) -> Result<(), EngineError> {
        self.time(|inner| inner.new_request(request))
    }

    fn match_prefix(&mut self, request: RequestView<'_>) -> Result<PrefixMatch, EngineError> {
        self.time(|inner| inner.match_prefix(request))
    }

    fn blocks_allocated(&mut self, request: RequestView<'_>) -> Result<LoadStart, EngineError> {
        self.time(|inner| inner.blocks_allocated(request))
    }

    fn build_step(&mut self, step: &StepInput<'_>) -> Result<StepPlan, EngineError> {
        self.time(|inner| inner.build_step(step))
    }

    fn reported(
        &mut self,
        reports: &mut Vec<WorkerReport>,
        events: &mut OffloadEvents,
    ) -> Result<(), EngineError> {
        self.time(|inner| inner.reported(reports, events))
    }

    fn request_finished(&mut self, id: RequestId) -> Result<Finish, EngineError> {
        self.time(|inner| inner.request_finished(id))
    }

    fn reset(&mut self, events: &mut OffloadEvents) {
        self.time(|inner| inner.reset(events));
    }

    fn has_pending_work(&self) -> bool {
        self.inner.has_pending_work()
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}
