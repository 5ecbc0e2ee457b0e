//! What a step's worker has to do.

use std::ops::Range;

use kvo_core::{BlockId, Direction, GroupIdx, RequestId, SlotId, TransferClass};
use kvo_cuda::ChunkBlocks;

/// A copy of a connector's: what every worker does once for one [`CopyPlan`]. Never used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CopyId(pub u64);

/// Copies between blocks and slots that end as one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CopyPlan {
    /// Names it in every report.
    pub copy: CopyId,
    /// Whose it is.
    pub request: RequestId,
    /// Which way, and how urgent.
    pub class: TransferClass,
    /// Copies that still use some of its blocks. It begins when they are over.
    pub after: Vec<CopyId>,
    chunks: Vec<Chunk>,
    blocks: Vec<BlockId>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Chunk {
    group: GroupIdx,
    slot: SlotId,
    skip: u32,
    blocks: Range<usize>,
}

impl CopyPlan {
    pub(crate) fn new(copy: CopyId, request: RequestId, class: TransferClass) -> Self {
        Self { copy, request, class, after: Vec::new(), chunks: Vec::new(), blocks: Vec::new() }
    }

    pub(crate) fn push(
        &mut self,
        group: GroupIdx,
        slot: SlotId,
        skip: u32,
        blocks: impl IntoIterator<Item = BlockId>,
    ) {
        let start = self.blocks.len();
        self.blocks.extend(blocks);
        self.chunks.push(Chunk { group, slot, skip, blocks: start..self.blocks.len() });
    }

    /// Which way it goes.
    pub fn direction(&self) -> Direction {
        self.class.direction()
    }

    /// The chunks, those of one group head to tail, each with its slot and its blocks.
    pub fn chunks(&self) -> impl ExactSizeIterator<Item = ChunkBlocks<'_>> {
        self.chunks.iter().map(|Chunk { group, slot, skip, blocks }| ChunkBlocks {
            group: *group,
            slot: *slot,
            skip: *skip,
            blocks: &self.blocks[blocks.clone()],
        })
    }

    pub(crate) fn blocks(&self) -> impl Iterator<Item = (GroupIdx, BlockId)> {
        self.chunks
            .iter()
            .flat_map(|chunk| self.blocks[chunk.blocks.clone()].iter().map(|block| (chunk.group, *block)))
    }
}

/// What a step's worker does, in this order.
///
/// Every copy that is in a plan is to be reported by every worker: one that does not run a plan, or whose compute fails,
/// reports its copies as [failed](crate::CopyResult::Failed). Nobody else gives their slots and blocks back.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StepPlan {
    /// Copies that use blocks which this step's compute writes. Compute begins when they are over.
    pub wait_for: Vec<CopyId>,
    /// To be started before compute. They wait for the compute that is on the GPU already, and still reads their blocks.
    pub loads: Vec<CopyPlan>,
    /// To be started behind this step's compute, which writes their blocks.
    pub stores: Vec<CopyPlan>,
}
