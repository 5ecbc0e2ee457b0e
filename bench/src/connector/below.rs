//! What a store below costs the scheduler: it is given all chunks of a request, those that it has among them.

use std::{
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::ensure;
use kvo_connector::{Scheduled, StepInput};
use kvo_core::{OffloadManager, RequestId, SecondaryTier};
use kvo_cpu::{HostRegion, RegionOptions};
use kvo_nvme::{NvmeOptions, NvmeStore};
use kvo_tiering::{PressureOptions, TieringManager, TieringOptions};
use serde::Serialize;

use super::{BLOCK_TOKENS, ConnectorPlan, FIRST_FINISHED, Scheduler, mean_us, median_us, primary};

/// Bytes of a chunk: as few as a store has, as none are moved but those to it.
const CHUNK_BYTES: u32 = 512;

/// How long the store may take for what it was given.
const PATIENCE: Duration = Duration::from_mins(2);

/// One run.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct BelowRun {
    /// Whether there is a store below the CPU tier.
    pub has_store: bool,
    /// Requests that decode at once.
    pub requests: u32,
    /// The mean step. Microseconds.
    pub step_us: f64,
    /// The mean of steps in which every request fills a block, which is stored.
    pub storing_step_us: f64,
    /// A request that finds all tokens of another: to name, match and plan. The median.
    pub load_us: f64,
    /// The step behind that load, in which it offers its chunks: the median.
    pub first_step_us: f64,
    /// Chunks that the store was given; those that it had already are counted again.
    pub chunks_given: u64,
}

/// Runs the plan with a store in `dir` below the CPU tier, or without one. Between steps the store gets on with it.
///
/// # Errors
/// If the store cannot be opened, or the connector refuses a call that it should take.
pub fn run_below(plan: &ConnectorPlan, dir: Option<&Path>) -> anyhow::Result<BelowRun> {
    let primary = primary(plan)?;
    let num_slots = primary.counts().capacity;
    let region = RegionOptions { huge_pages: false, ..RegionOptions::new(num_slots, CHUNK_BYTES as usize) };
    let region = Arc::new(HostRegion::anonymous(&region)?);
    let mut tiers: Vec<Box<dyn SecondaryTier>> = Vec::new();
    if let Some(dir) = dir {
        let options = NvmeOptions {
            queue_chunks_max: num_slots as usize,
            ..NvmeOptions::new(dir, num_slots, u64::from(CHUNK_BYTES))
        };
        tiers.push(Box::new(NvmeStore::open(options, Arc::clone(&region) as _)?));
    }
    // So that the store is given everything.
    let options = TieringOptions {
        inflight_cascades_max: u32::MAX,
        ..TieringOptions::new(u64::from(CHUNK_BYTES)).with_pressure(PressureOptions::NONE)
    };
    let start = Instant::now();
    let manager = TieringManager::new(primary, tiers, options, Box::new(move || start.elapsed()))?;
    let mut scheduler = Scheduler::new(manager)?;
    for id in 0..u64::from(plan.requests) {
        scheduler.prefill(id, id, plan.tokens)?;
        scheduler.settle()?;
    }
    let [times, storing] = scheduler.decode_all(plan, Scheduler::settle)?;
    scheduler.settle()?;
    let (mut loads, mut first_steps) = (Vec::new(), Vec::new());
    for nth in 0..33 {
        let of = nth % u64::from(plan.requests);
        let (load, first_step) = scheduler.load_and_begin(FIRST_FINISHED - 1 - nth, of, plan.tokens)?;
        loads.push(load);
        first_steps.push(first_step);
        scheduler.settle()?;
    }
    let stats = scheduler.connector.manager().stats();
    let tier = stats.tiers.first();
    Ok(BelowRun {
        has_store: dir.is_some(),
        requests: plan.requests,
        step_us: mean_us(&times),
        storing_step_us: mean_us(&storing),
        load_us: median_us(loads),
        first_step_us: median_us(first_steps),
        chunks_given: tier.map_or(0, |tier| tier.written.chunks),
    })
}

impl Scheduler<TieringManager<kvo_policies::Lru>> {
    /// Lets the store come to its end with what it was given.
    fn settle(&mut self) -> anyhow::Result<()> {
        let start = Instant::now();
        loop {
            self.connector.build_step(&StepInput::default())?;
            if !self.connector.manager().has_pending_work() {
                return Ok(());
            }
            ensure!(start.elapsed() < PATIENCE, "the store does not come to an end");
            std::thread::sleep(Duration::from_micros(50));
        }
    }

    /// A request that finds all tokens of another, and computes the last one. How long both took.
    fn load_and_begin(&mut self, id: u64, of: u64, tokens: u32) -> anyhow::Result<(Duration, Duration)> {
        let id_of = RequestId(id);
        let start = Instant::now();
        self.announce(id, of, tokens)?;
        let found = self.connector.match_prefix(id_of, 0)?;
        let mut took = start.elapsed();
        ensure!(found == kvo_connector::PrefixMatch::Loadable(tokens - 1), "{found:?} of {tokens} tokens");
        let blocks = self.blocks(tokens / BLOCK_TOKENS);
        let start = Instant::now();
        let copy = self.connector.blocks_allocated(id_of, &[&blocks])?;
        took += start.elapsed();
        self.connector.build_step(&StepInput::default())?;
        self.report([copy])?;
        let scheduled = [Scheduled {
            request: id_of,
            kept_blocks: &[blocks.len()],
            new_blocks: &[&[]],
            computed: tokens - 1,
            settled: tokens,
        }];
        let start = Instant::now();
        self.connector.build_step(&StepInput { preempted: &[], scheduled: &scheduled })?;
        let first_step = start.elapsed();
        let _ = self.connector.request_finished(id_of)?;
        Ok((took, first_step))
    }
}
