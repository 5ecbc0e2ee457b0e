//! From blocks to copies.

use std::{fmt, time::Instant};

use anyhow::{Context, ensure};
use kvo_core::{BlockId, ChunkLayout, GroupIdx, SlotId};
use kvo_cuda::{BlockLayout, CopyPlanner};
use serde::Serialize;

use crate::Spread;

/// How the blocks of a request lie on the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Scatter {
    /// Side by side, in the order of their tokens.
    Adjacent,
    /// No two neighbours side by side.
    Scattered,
}

impl fmt::Display for Scatter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Adjacent => "adjacent",
            Self::Scattered => "scattered",
        })
    }
}

/// What a plan costs.
#[derive(Clone, Debug, Serialize)]
pub struct PlanResult {
    /// How the blocks lie.
    pub scatter: Scatter,
    /// Blocks a chunk.
    pub blocks_per_chunk: u32,
    /// Pages that are copied.
    pub num_pages: u64,
    /// Copies that they come to.
    pub num_ops: u64,
    /// Nanoseconds a page, median.
    pub ns_per_page: f64,
    /// Nanoseconds a copy, median.
    pub ns_per_op: f64,
}

const LAYERS: u32 = 32;
const PLANES: u32 = 2;
const PAGE_BYTES: u64 = 16 << 10;

/// Plans the load of `num_blocks` blocks of 32 layers of K and V, `rounds` times.
///
/// # Errors
/// If the sizes do not fit together, or two plans of the same blocks differ in length.
pub fn plan(
    scatter: Scatter,
    num_blocks: u32,
    blocks_per_chunk: u32,
    rounds: u16,
) -> anyhow::Result<PlanResult> {
    let chunk = ChunkLayout::new(LAYERS, PLANES, PAGE_BYTES, blocks_per_chunk)?;
    let device_bytes = u64::from(num_blocks) * chunk.block_bytes();
    let layout = BlockLayout::layer_first(&chunk, num_blocks, device_bytes)?;
    let num_slots = num_blocks.div_ceil(blocks_per_chunk);
    let mut planner = CopyPlanner::new(layout, num_slots, chunk.chunk_bytes())?;
    let slots: Vec<SlotId> = (0..num_slots).map(SlotId).collect();
    // An odd step over a power of two meets every block once.
    let step = match scatter {
        Scatter::Adjacent => 1,
        Scatter::Scattered => 797,
    };
    ensure!(num_blocks.is_power_of_two(), "{num_blocks} blocks are no power of two");
    let blocks: Vec<BlockId> =
        (0..num_blocks).map(|nth| BlockId(nth.wrapping_mul(step) % num_blocks)).collect();
    let chunks: Vec<_> = planner.spread(GroupIdx(0), 0, &slots, &blocks)?.collect();
    let (mut ops, mut times, mut num_ops) = (Vec::new(), Vec::new(), None);
    for round in 0..=rounds {
        ops.clear();
        let started = Instant::now();
        planner.plan_load(&chunks, &mut ops)?;
        // The first one grows the lists.
        if round > 0 {
            times.push(started.elapsed().as_secs_f64() * 1e9);
        }
        ensure!(
            *num_ops.get_or_insert(ops.len()) == ops.len(),
            "a plan has {} copies, then others",
            ops.len()
        );
    }
    let median = Spread::of(&times).context("there is at least one round")?.median;
    let (num_pages, num_ops) = (u64::from(num_blocks * LAYERS * PLANES), ops.len() as u64);
    Ok(PlanResult {
        scatter,
        blocks_per_chunk,
        num_pages,
        num_ops,
        ns_per_page: median / num_pages as f64,
        ns_per_op: median / num_ops as f64,
    })
}
