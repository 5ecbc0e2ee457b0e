//! Reports of `replay`.

use serde::Deserialize;

use super::{StoredResults, StoredTrace, check_amount};
use crate::ChosenDevice;

/// A trace through every tier.
#[derive(Clone, Debug, Deserialize)]
pub struct ReplayResults {
    /// The trace.
    pub trace: StoredTrace,
    /// Where the blocks of the GPU were. Older reports do not say: it was host memory.
    #[serde(default = "host_memory")]
    pub device: String,
    /// Why there.
    pub device_reason: Option<String>,
    /// Whether the GPU was a model.
    #[serde(default = "always")]
    pub gpu_is_simulated: bool,
    /// Blocks of the GPU.
    pub gpu_blocks: u64,
    /// Slots of the CPU tier.
    pub cpu_chunks: u64,
    /// Chunks of the store.
    pub nvme_chunks: u64,
    /// Bytes a block.
    pub block_bytes: u64,
    /// The policy's name.
    pub policy: String,
    /// Time of all of it.
    pub seconds: f64,
    /// The most memory that the process had.
    pub peak_memory_bytes: Option<u64>,
    /// Requests served.
    pub requests: u64,
    /// Blocks that they named.
    pub blocks: u64,
    /// Found in GPU memory.
    pub gpu: ReplayHits,
    /// Found in CPU memory.
    pub cpu: ReplayHits,
    /// Brought up from the store.
    pub nvme: ReplayHits,
    /// Blocks that were compared.
    pub blocks_compared: u64,
    /// Of which so many differed.
    pub mismatches: u64,
    /// What moved.
    pub edges: Vec<ReplayEdge>,
    /// Time of scheduler steps.
    pub steps: ReplaySteps,
}

fn host_memory() -> String {
    ChosenDevice::HOST.to_owned()
}

fn always() -> bool {
    true
}

/// What one tier served.
#[derive(Clone, Copy, Debug, Deserialize)]
pub struct ReplayHits {
    /// Blocks.
    pub blocks: u64,
    /// Their tokens.
    pub tokens: u64,
}

/// What moved over one edge.
#[derive(Clone, Debug, Deserialize)]
pub struct ReplayEdge {
    /// From where to where.
    pub edge: String,
    /// Jobs.
    pub jobs: u64,
    /// Bytes that arrived.
    pub bytes: u64,
    /// Time over all jobs.
    pub seconds: f64,
    /// Megabytes a second.
    pub mb_per_s: f64,
}

/// Time of scheduler steps.
#[derive(Clone, Copy, Debug, Deserialize)]
pub struct ReplaySteps {
    /// Steps.
    pub steps: u64,
    /// Half of them took at most this.
    pub p50_us: f64,
    /// 99 of 100 took at most this.
    pub p99_us: f64,
}

impl ReplayResults {
    /// What each place served, in blocks: the tiers, and what had to be computed.
    pub fn served(&self) -> [(&'static str, u64); 4] {
        let [gpu, cpu, nvme] = [self.gpu, self.cpu, self.nvme].map(|hits| hits.blocks);
        [("GPU", gpu), ("CPU", cpu), ("NVMe", nvme), ("computed", self.blocks - gpu - cpu - nvme)]
    }
}

impl StoredResults for ReplayResults {
    const COMMANDS: &'static [&'static str] = &["replay"];

    fn check(&self) -> Result<(), String> {
        self.trace.check("trace")?;
        let hits =
            [self.gpu, self.cpu, self.nvme].iter().try_fold(0u64, |sum, hits| sum.checked_add(hits.blocks));
        if hits.is_none_or(|hits| hits > self.blocks) {
            return Err(format!("blocks: {} are less than the tiers have served", self.blocks));
        }
        check_amount("seconds", self.seconds)?;
        check_amount("steps.p50_us", self.steps.p50_us)?;
        check_amount("steps.p99_us", self.steps.p99_us)?;
        for (at, edge) in self.edges.iter().enumerate() {
            check_amount(&format!("edges[{at}].seconds"), edge.seconds)?;
            check_amount(&format!("edges[{at}].mb_per_s"), edge.mb_per_s)?;
        }
        Ok(())
    }
}
