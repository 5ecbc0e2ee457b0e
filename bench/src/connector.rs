//! What a connector costs an engine's scheduler: many requests that decode, and requests that begin.

use std::time::{Duration, Instant};

mod below;

use anyhow::{Context, ensure};
use kvo_connector::{
    Connector, ConnectorOptions, CopyId, CopyResult, GroupOptions, Namespace, PrefixMatch, RequestParams,
    Scheduled, StepInput, StepPlan,
};
use kvo_core::{BlockHash, BlockId, ManualClock, OffloadManager, RequestId};
use kvo_cpu::{CpuManager, CpuOptions};
use kvo_cuda::Fingerprint;
use kvo_policies::Lru;
use serde::Serialize;

use crate::nvme::{Bound, Point};

pub use below::{BelowRun, run_below};

/// Tokens a block; one block a chunk.
const BLOCK_TOKENS: u32 = 16;

/// How long a step of an engine is, which the figures are shares of.
const STEP: Duration = Duration::from_millis(20);

/// How much is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct ConnectorPlan {
    /// Requests that decode at once.
    pub requests: u32,
    /// Tokens of each at the beginning; whole blocks.
    pub tokens: u32,
    /// Steps, in each of which every request computes a token.
    pub steps: u32,
    /// Requests that were finished before, for the second of two runs.
    pub finished: u32,
}

/// One run.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct ConnectorRun {
    /// Requests that were finished before.
    pub finished: u32,
    /// The mean step: hashes, reports, and the plan. Microseconds.
    pub step_us: f64,
    /// The median step, in which most often no block is full.
    pub median_step_us: f64,
    /// The mean of steps in which every request fills a block, which is stored.
    pub storing_step_us: f64,
    /// To name all chunks of a request: the median.
    pub name_us: f64,
    /// To find that all tokens of a request can be loaded, and to pin them: the median.
    pub match_us: f64,
    /// To plan that load: the median.
    pub load_us: f64,
}

/// All figures.
#[derive(Clone, Debug, Serialize)]
pub struct ConnectorResults {
    /// How much was done.
    pub plan: ConnectorPlan,
    /// Without requests that were finished before, and with.
    pub runs: Vec<ConnectorRun>,
    /// Fewer requests, with no tier below and with a store.
    pub below: Vec<BelowRun>,
}

impl ConnectorResults {
    /// The figures that have a bound.
    pub fn points(&self) -> Vec<Point> {
        let share = |us: f64| us / STEP.as_micros() as f64;
        let Some(first) = self.runs.first() else { return Vec::new() };
        let of = |what: &str| format!("{what} of a step of 20 ms, {} requests", self.plan.requests);
        let mut points = vec![Point::new(of("the mean step"), share(first.step_us), Bound::AtMost(0.02))];
        if let Some(second) = self.runs.get(1) {
            let what = format!("the same after {} requests, over none", second.finished);
            points.push(Point::new(what, second.step_us / first.step_us, Bound::AtMost(1.25)));
        }
        points
    }
}

/// The requests of a run.
struct Scheduler<M: OffloadManager> {
    connector: Connector<M>,
    next_block: u32,
}

/// The hash of a request's nth block.
fn hash(request: u64, nth: u32) -> BlockHash {
    BlockHash::from_u64(request << 32 | u64::from(nth))
}

/// A CPU tier with room for all chunks of a run.
fn primary(plan: &ConnectorPlan) -> anyhow::Result<CpuManager<Lru>> {
    let chunks = (plan.tokens + plan.steps) / BLOCK_TOKENS + 2;
    let num_slots = chunks.checked_mul(plan.requests).context("too many chunks")?;
    Ok(CpuManager::new(CpuOptions::new(num_slots), Lru::new(num_slots))?)
}

impl<M: OffloadManager> Scheduler<M> {
    fn new(manager: M) -> anyhow::Result<Self> {
        let namespace = Namespace::new(Fingerprint([0; 32]), 0);
        let options = ConnectorOptions::new(namespace, vec![GroupOptions::full(BLOCK_TOKENS)], BLOCK_TOKENS);
        let connector = Connector::new(options, manager, Box::new(ManualClock::default()))?;
        Ok(Self { connector, next_block: 0 })
    }

    fn blocks(&mut self, num: u32) -> Vec<Option<BlockId>> {
        let first = self.next_block;
        self.next_block = first.wrapping_add(num);
        (first..first + num).map(|block| Some(BlockId(block))).collect()
    }

    /// A request whose tokens are computed at once.
    fn prefill(&mut self, id: u64, of: u64, tokens: u32) -> anyhow::Result<()> {
        self.announce(id, of, tokens)?;
        let blocks = self.blocks(tokens / BLOCK_TOKENS);
        let scheduled = [Scheduled {
            request: RequestId(id),
            kept_blocks: &[],
            new_blocks: &[&blocks],
            computed: 0,
            settled: tokens,
        }];
        let plan = self.connector.build_step(&StepInput { preempted: &[], scheduled: &scheduled })?;
        self.report(plan.stores.iter().map(|store| store.copy))
    }

    /// Says how long it took to name its chunks.
    fn announce(&mut self, id: u64, of: u64, tokens: u32) -> anyhow::Result<Duration> {
        let hashes: Vec<_> = (0..tokens / BLOCK_TOKENS).map(|nth| hash(of, nth)).collect();
        let start = Instant::now();
        self.connector.new_request(RequestId(id), tokens, RequestParams::default())?;
        self.connector.add_hashes(RequestId(id), tokens, &hashes)?;
        Ok(start.elapsed())
    }

    fn report(&mut self, copies: impl IntoIterator<Item = CopyId>) -> anyhow::Result<()> {
        for copy in copies {
            self.connector.copy_reported(copy, 0, CopyResult::Done)?;
        }
        Ok(())
    }

    /// All steps of the plan, `rest` after each: how long they took, and those of them in which every request stores.
    fn decode_all(
        &mut self,
        plan: &ConnectorPlan,
        mut rest: impl FnMut(&mut Self) -> anyhow::Result<()>,
    ) -> anyhow::Result<[Vec<Duration>; 2]> {
        let (mut times, mut storing, mut stored) = (Vec::new(), Vec::new(), Vec::new());
        for step in 0..plan.steps {
            let (took, planned) = self.decode(plan, step, std::mem::take(&mut stored))?;
            stored.extend(planned.stores.iter().map(|store| store.copy));
            times.push(took);
            if stored.len() == plan.requests as usize {
                storing.push(took);
            }
            rest(self)?;
        }
        self.report(stored)?;
        Ok([times, storing])
    }

    /// Every request computes a token; says how long that took, and what it stores.
    fn decode(
        &mut self,
        plan: &ConnectorPlan,
        step: u32,
        stored: Vec<CopyId>,
    ) -> anyhow::Result<(Duration, StepPlan)> {
        let computed = plan.tokens + step;
        let is_new = computed.is_multiple_of(BLOCK_TOKENS);
        let tables: Vec<_> = (0..plan.requests).map(|_| self.blocks(u32::from(is_new))).collect();
        let start = Instant::now();
        self.report(stored)?;
        let is_full = (computed + 1).is_multiple_of(BLOCK_TOKENS);
        for id in 0..u64::from(plan.requests) {
            let new = is_full.then(|| hash(id, computed / BLOCK_TOKENS));
            self.connector.add_hashes(RequestId(id), computed + 1, new.as_slice())?;
        }
        let tables: Vec<[&[Option<BlockId>]; 1]> = tables.iter().map(|table| [table.as_slice()]).collect();
        let scheduled: Vec<_> = (0..)
            .zip(&tables)
            .map(|(id, new_blocks)| Scheduled {
                request: RequestId(id),
                kept_blocks: &[],
                new_blocks,
                computed,
                settled: computed + 1,
            })
            .collect();
        let planned = self.connector.build_step(&StepInput { preempted: &[], scheduled: &scheduled })?;
        Ok((start.elapsed(), planned))
    }

    /// A request that finds all tokens of another.
    fn load(&mut self, id: u64, of: u64, tokens: u32) -> anyhow::Result<[Duration; 3]> {
        let name_time = self.announce(id, of, tokens)?;
        let start = Instant::now();
        let found = self.connector.match_prefix(RequestId(id), 0)?;
        let match_time = start.elapsed();
        ensure!(found == PrefixMatch::Loadable(tokens - 1), "{found:?} of {tokens} tokens");
        let blocks = self.blocks(tokens / BLOCK_TOKENS);
        let start = Instant::now();
        let copy = self.connector.blocks_allocated(RequestId(id), &[&blocks])?;
        let load_time = start.elapsed();
        self.connector.build_step(&StepInput::default())?;
        self.report([copy])?;
        let _ = self.connector.request_finished(RequestId(id))?;
        Ok([name_time, match_time, load_time])
    }
}

/// Above the ids of requests that decode.
const FIRST_FINISHED: u64 = 1 << 20;

/// Runs the plan, after so many requests that are finished.
///
/// # Errors
/// If the connector refuses a call that it should take: a defect of kvo.
pub fn run_connector(plan: &ConnectorPlan, finished: u32) -> anyhow::Result<ConnectorRun> {
    let mut scheduler = Scheduler::new(primary(plan)?)?;
    for id in (FIRST_FINISHED..).take(finished as usize) {
        scheduler.prefill(id, id, 10 * BLOCK_TOKENS)?;
        let _ = scheduler.connector.request_finished(RequestId(id))?;
    }
    for id in 0..u64::from(plan.requests) {
        scheduler.prefill(id, id, plan.tokens)?;
    }
    let [times, storing] = scheduler.decode_all(plan, |_| Ok(()))?;
    let loads = (0..33)
        .map(|nth| scheduler.load(FIRST_FINISHED - 1 - nth, nth % u64::from(plan.requests), plan.tokens));
    let loads = loads.collect::<anyhow::Result<Vec<_>>>()?;
    Ok(ConnectorRun {
        finished,
        step_us: mean_us(&times),
        median_step_us: median_us(times),
        storing_step_us: mean_us(&storing),
        name_us: median_us(loads.iter().map(|[took, ..]| *took).collect()),
        match_us: median_us(loads.iter().map(|[_, took, _]| *took).collect()),
        load_us: median_us(loads.iter().map(|[.., took]| *took).collect()),
    })
}

fn mean_us(times: &[Duration]) -> f64 {
    let sum: Duration = times.iter().sum();
    sum.as_secs_f64() * 1e6 / times.len().max(1) as f64
}

fn median_us(mut times: Vec<Duration>) -> f64 {
    times.sort_unstable();
    times.get(times.len() / 2).map_or(0.0, |took| took.as_secs_f64() * 1e6)
}
