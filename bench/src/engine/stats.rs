//! What a replay counts.

use std::time::{Duration, Instant};

use kvo_core::EdgeStats;
use kvo_cuda::DeviceStats;
use kvo_nvme::StoreStats;
use kvo_tiering::TieringStats;
use serde::Serialize;

/// What a replay did.
#[derive(Clone, Debug, Default, Serialize)]
pub struct ReplayStats {
    /// Requests served.
    pub requests: u64,
    /// Blocks that they named.
    pub blocks: u64,
    /// Their prompt tokens.
    pub tokens: u64,
    /// Prefix found in GPU memory.
    pub gpu: TierHits,
    /// Prefix found in CPU memory.
    pub cpu: TierHits,
    /// Prefix brought up from the NVMe store.
    pub nvme: TierHits,
    /// Blocks of GPU memory that were compared byte by byte: every hit of every tier.
    pub blocks_compared: u64,
    /// Compared blocks of which at least one byte differed.
    pub mismatches: u64,
    /// Chunks that were in the store when it was opened.
    pub recovered_chunks: u64,
    /// Blocks that the store still had from before it was opened, and that came up: each at most once.
    pub blocks_found_again: u64,
    /// Offers that the CPU tier refused for want of room.
    pub offers_refused: u64,
    /// Keys that the store had and for which the CPU tier had no room.
    pub promotions_without_room: u64,
    /// Cascades that were left out or that the store did not take.
    pub cascades_left_out: u64,
    /// What moved, edge by edge.
    pub edges: Vec<EdgeSummary>,
    /// Time that a scheduler step spent in the manager.
    pub steps: StepSummary,
}

/// The leading blocks that one tier served.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct TierHits {
    /// Blocks.
    pub blocks: u64,
    /// Their tokens.
    pub tokens: u64,
}

/// What moved over one edge.
#[derive(Clone, Debug, Serialize)]
pub struct EdgeSummary {
    /// From where to where.
    pub edge: &'static str,
    /// Jobs.
    pub jobs: u64,
    /// Jobs of which at least one chunk failed.
    pub jobs_failed: u64,
    /// Bytes that arrived.
    pub bytes: u64,
    /// Seconds from submission to the end, over all jobs.
    pub seconds: f64,
    /// Megabytes a second: bytes over the time in which jobs were under way.
    pub mb_per_s: f64,
}

/// Time of scheduler steps, in microseconds.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct StepSummary {
    /// Steps.
    pub steps: usize,
    /// Half of the steps took at most this.
    pub p50_us: f64,
    /// 99 of 100 steps took at most this.
    pub p99_us: f64,
}

impl ReplayStats {
    pub(super) fn add_edges(
        &mut self,
        device: &DeviceStats,
        is_simulated: bool,
        tiering: &TieringStats,
        below: Option<&StoreStats>,
        block_bytes: u64,
    ) {
        let [store, load] = if is_simulated {
            ["simulated GPU to CPU", "CPU to simulated GPU"]
        } else {
            ["GPU to CPU", "CPU to GPU"]
        };
        let mut edges = vec![(store, device.stores), (load, device.loads)];
        // By the store's own books: of what it is given it writes only what it has not.
        if let Some(below) = below {
            edges.push(("CPU to NVMe", below.write));
            edges.push(("NVMe to CPU", below.read));
        }
        for tier in &tiering.tiers {
            self.cascades_left_out += tier.cascades_throttled + tier.jobs_rejected;
        }
        debug_assert!(edges.iter().all(|(_, edge)| edge.bytes % block_bytes == 0), "whole blocks move");
        self.promotions_without_room = tiering.promotions_without_room;
        self.edges = edges.into_iter().map(|(name, edge)| EdgeSummary::new(name, &edge)).collect();
    }

    /// Blocks that any tier served, in percent of all.
    pub fn hit_percent(&self) -> f64 {
        100.0 * (self.gpu.blocks + self.cpu.blocks + self.nvme.blocks) as f64 / self.blocks.max(1) as f64
    }
}

impl EdgeSummary {
    fn new(edge: &'static str, stats: &EdgeStats) -> Self {
        let seconds = stats.time.as_secs_f64();
        Self {
            edge,
            jobs: stats.jobs_done + stats.jobs_failed,
            jobs_failed: stats.jobs_failed,
            bytes: stats.bytes,
            seconds,
            mb_per_s: if seconds > 0.0 { stats.bytes as f64 / 1e6 / seconds } else { 0.0 },
        }
    }
}

/// Times of scheduler steps, added up call by call.
#[derive(Debug, Default)]
pub(super) struct StepTimes {
    current: Duration,
    /// Nanoseconds of the steps that have ended.
    ended_ns: Vec<u32>,
}

impl StepTimes {
    /// Runs a call of the manager and adds its time to the current step.
    pub(super) fn time<T>(&mut self, call: impl FnOnce() -> T) -> T {
        let started = Instant::now();
        let result = call();
        self.current += started.elapsed();
        result
    }

    pub(super) fn end_step(&mut self) {
        let ns = std::mem::take(&mut self.current).as_nanos();
        self.ended_ns.push(u32::try_from(ns).unwrap_or(u32::MAX));
    }

    pub(super) fn summary(&self) -> StepSummary {
        let mut ns = self.ended_ns.clone();
        ns.sort_unstable();
        let at = |percent: usize| ns.get((ns.len() * percent / 100).min(ns.len().saturating_sub(1)));
        let us = |ns: Option<&u32>| f64::from(ns.copied().unwrap_or(0)) / 1000.0;
        StepSummary { steps: ns.len(), p50_us: us(at(50)), p99_us: us(at(99)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_those_of_the_steps() {
        let steps =
            StepTimes { current: Duration::ZERO, ended_ns: (1..=1000).rev().map(|n| n * 1000).collect() };
        let summary = steps.summary();
        assert_eq!(summary.steps, 1000);
        assert!((summary.p50_us - 501.0).abs() < 1.5, "{summary:?}");
        assert!((summary.p99_us - 991.0).abs() < 1.5, "{summary:?}");
        assert_eq!(StepTimes::default().summary().steps, 0);
    }
}
