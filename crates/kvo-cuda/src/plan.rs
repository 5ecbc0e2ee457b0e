//! From chunks and blocks to copies.

use kvo_core::{BlockId, CopyOp, RegionId, SlotId};

use crate::{BlockLayout, GeometryError, PlanError};

#[cfg(test)]
mod tests;

/// One chunk's slot and the GPU blocks that its sub-blocks are copied from or to.
///
/// A chunk consists of `blocks_per_chunk` sub-blocks in token order. `blocks[i]` belongs to sub-block `skip + i`; the
/// sub-blocks before and behind are left alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChunkBlocks<'a> {
    /// The chunk's slot.
    pub slot: SlotId,
    /// Sub-blocks left out before the first one; 0 for a store.
    pub skip: u32,
    /// The blocks in token order, one for each sub-block from `skip` on.
    pub blocks: &'a [BlockId],
}

/// Turns chunks and blocks into copies, the fewest that do.
///
/// A slot holds its chunk from byte 0 on as `[layer][plane][sub-block][page]` ([`ChunkLayout`](kvo_core::ChunkLayout));
/// the device holds its blocks as the [`BlockLayout`] says. A copy spans all bytes that are neighbours on both sides.
/// Copies come chunk by chunk, and within a chunk in the order of the slot's bytes, so a device can hold each slot
/// once for all its copies.
///
/// Planning touches no memory but the list of copies. A planner keeps scratch space of the size of its largest
/// request, so it allocates nothing in steady state.
///
/// ```
/// use kvo_core::{BlockId, ChunkLayout, SlotId};
/// use kvo_cuda::{BlockLayout, CopyPlanner};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// // 2 layers of K and V, 4 KiB pages, 4 blocks a chunk; 100 blocks on the device, 10 slots on the host.
/// let chunk = ChunkLayout::new(2, 2, 4096, 4)?;
/// let layout = BlockLayout::layer_first(&chunk, 100, 100 * chunk.block_bytes())?;
/// let mut planner = CopyPlanner::new(layout, 10, chunk.chunk_bytes())?;
///
/// // The GPU still has the first block of a prefix of 6; load the other 5: 3 from slot 7 and 2 from slot 2.
/// let blocks = [50, 51, 52, 53, 54].map(BlockId);
/// let slots = [SlotId(7), SlotId(2)];
/// let chunks: Vec<_> = planner.spread(1, &slots, &blocks)?.collect();
/// assert_eq!((chunks[0].skip, chunks[0].blocks.len()), (1, 3));
/// assert_eq!((chunks[1].skip, chunks[1].blocks.len()), (0, 2));
///
/// let mut ops = Vec::new();
/// planner.plan_load(&chunks, &mut ops)?;
/// assert_eq!(ops.len(), 2 * 4); // neighbouring blocks copy in one run a plane
/// assert_eq!((ops[0].device_offset, ops[0].slot_offset, ops[0].bytes), (50 * 4096, 4096, 3 * 4096));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct CopyPlanner {
    layout: BlockLayout,
    num_slots: u32,
    /// Destinations of the plan being checked.
    destinations: Vec<u32>,
}

impl CopyPlanner {
    /// A planner between the blocks of `layout` and `num_slots` slots of `slot_bytes` each.
    ///
    /// # Errors
    /// [`GeometryError::SlotTooSmall`] if a slot does not hold a chunk, [`GeometryError::Zero`] without slots.
    pub fn new(layout: BlockLayout, num_slots: u32, slot_bytes: u64) -> Result<Self, GeometryError> {
        let chunk_bytes = layout.chunk().chunk_bytes();
        if num_slots == 0 {
            return Err(GeometryError::Zero { field: "num_slots" });
        }
        if slot_bytes < chunk_bytes {
            return Err(GeometryError::SlotTooSmall { slot_bytes, chunk_bytes });
        }
        Ok(Self { layout, num_slots, destinations: Vec::new() })
    }

    /// Where the blocks are.
    pub fn layout(&self) -> &BlockLayout {
        &self.layout
    }

    /// Spreads a run of blocks over the slots of its chunks: the first chunk gives all but its first `skip`
    /// sub-blocks, the last one may give fewer than it has, those between are whole.
    ///
    /// `slots` and `blocks` run in token order. With `skip` 0 and whole chunks this also describes a store.
    ///
    /// # Errors
    /// [`PlanError::WrongNumberOfBlocks`] unless `skip` lies in the first chunk and each slot gets a block.
    pub fn spread<'a>(
        &self,
        skip: u32,
        slots: &'a [SlotId],
        blocks: &'a [BlockId],
    ) -> Result<impl ExactSizeIterator<Item = ChunkBlocks<'a>> + use<'a>, PlanError> {
        let blocks_per_chunk = self.layout.chunk().blocks_per_chunk();
        let per_chunk = blocks_per_chunk as usize;
        let skipped = skip as usize;
        let fits = skip < blocks_per_chunk
            && blocks.len().checked_add(skipped).is_some_and(|all| all.div_ceil(per_chunk) == slots.len())
            && (blocks.is_empty() == slots.is_empty());
        if !fits {
            return Err(PlanError::WrongNumberOfBlocks {
                num_blocks: blocks.len(),
                skip,
                num_slots: slots.len(),
                blocks_per_chunk,
            });
        }
        Ok(slots.iter().enumerate().map(move |(nth, &slot)| {
            let start = (nth * per_chunk).saturating_sub(skipped);
            let end = ((nth + 1) * per_chunk - skipped).min(blocks.len());
            ChunkBlocks { slot, skip: if nth == 0 { skip } else { 0 }, blocks: &blocks[start..end] }
        }))
    }

    /// Adds the copies that store whole chunks to the end of `out`: from each chunk's blocks into its slot.
    ///
    /// A block may be named more than once, a slot only once.
    ///
    /// # Errors
    /// [`PlanError`] names the first chunk that cannot be stored; `out` is as it was.
    pub fn plan_store(&mut self, chunks: &[ChunkBlocks<'_>], out: &mut Vec<CopyOp>) -> Result<(), PlanError> {
        let blocks_per_chunk = self.layout.chunk().blocks_per_chunk();
        for (chunk, &ChunkBlocks { skip, blocks, .. }) in chunks.iter().enumerate() {
            if skip != 0 || blocks.len() != blocks_per_chunk as usize {
                let num_blocks = blocks.len();
                return Err(PlanError::NotWhole { chunk, skip, num_blocks, blocks_per_chunk });
            }
        }
        self.check_bounds(chunks)?;
        if self.repeats(chunks.iter().map(|chunk| chunk.slot.0)) {
            let mut slots = chunks.iter().map(|chunk| chunk.slot);
            let (chunk, slot) = first_repeat(&mut slots).expect("a slot repeats");
            return Err(PlanError::RepeatedSlot { chunk, slot });
        }
        self.push_ops(chunks, out);
        Ok(())
    }

    /// Adds the copies that load chunks, or parts of them, to the end of `out`: from each slot into its blocks.
    ///
    /// A slot may be named more than once, a block only once. Any chunk may leave out sub-blocks at either end, as
    /// one transfer may serve several requests; [`spread`](Self::spread) makes the usual list for one of them.
    ///
    /// # Errors
    /// [`PlanError`] names the first chunk that cannot be loaded; `out` is as it was.
    pub fn plan_load(&mut self, chunks: &[ChunkBlocks<'_>], out: &mut Vec<CopyOp>) -> Result<(), PlanError> {
        let blocks_per_chunk = self.layout.chunk().blocks_per_chunk();
        for (chunk, &ChunkBlocks { skip, blocks, .. }) in chunks.iter().enumerate() {
            if blocks.is_empty() {
                return Err(PlanError::NoBlocks { chunk });
            }
            let num_blocks = blocks.len();
            if num_blocks as u64 + u64::from(skip) > u64::from(blocks_per_chunk) {
                return Err(PlanError::BeyondChunk { chunk, skip, num_blocks, blocks_per_chunk });
            }
        }
        self.check_bounds(chunks)?;
        if self.repeats(chunks.iter().flat_map(|chunk| chunk.blocks).map(|block| block.0)) {
            let mut blocks = chunks.iter().flat_map(|chunk| chunk.blocks).copied();
            let (nth, block) = first_repeat(&mut blocks).expect("a block repeats");
            let mut chunk_of =
                chunks.iter().enumerate().flat_map(|(i, chunk)| chunk.blocks.iter().map(move |_| i));
            let chunk = chunk_of.nth(nth).expect("each block has its chunk");
            return Err(PlanError::RepeatedBlock { chunk, block });
        }
        self.push_ops(chunks, out);
        Ok(())
    }

    /// Every slot and block named exists. The layout and the constructor guarantee the rest: a known block's pages
    /// lie in the device's memory, a known slot holds a chunk.
    fn check_bounds(&self, chunks: &[ChunkBlocks<'_>]) -> Result<(), PlanError> {
        let (num_slots, num_blocks) = (self.num_slots, self.layout.num_blocks());
        for (chunk, &ChunkBlocks { slot, blocks, .. }) in chunks.iter().enumerate() {
            if slot.0 >= num_slots {
                return Err(PlanError::UnknownSlot { chunk, slot, num_slots });
            }
            if let Some(&block) = blocks.iter().find(|block| block.0 >= num_blocks) {
                return Err(PlanError::UnknownBlock { chunk, block, num_blocks });
            }
        }
        Ok(())
    }

    /// Whether a destination is named twice.
    fn repeats(&mut self, destinations: impl Iterator<Item = u32>) -> bool {
        self.destinations.clear();
        self.destinations.extend(destinations);
        self.destinations.sort_unstable();
        self.destinations.windows(2).any(|pair| pair[0] == pair[1])
    }

    /// Pushes the copies of checked chunks, each joined with the one before where both sides go on.
    fn push_ops(&self, chunks: &[ChunkBlocks<'_>], out: &mut Vec<CopyOp>) {
        let page_bytes = self.layout.chunk().page_bytes();
        let plane_bytes = u64::from(self.layout.chunk().blocks_per_chunk()) * page_bytes;
        let stride = self.layout.block_stride();
        for &ChunkBlocks { slot, skip, blocks } in chunks {
            let mut run: Option<CopyOp> = None;
            for (plane, &base) in (0_u64..).zip(self.layout.page_bases()) {
                let mut slot_offset = plane * plane_bytes + u64::from(skip) * page_bytes;
                for block in blocks {
                    let device_offset = base + u64::from(block.0) * stride;
                    match &mut run {
                        Some(run)
                            if run.slot_offset + run.bytes == slot_offset
                                && run.device_offset + run.bytes == device_offset =>
                        {
                            run.bytes += page_bytes;
                        }
                        _ => {
                            let region = RegionId(0);
                            let next = CopyOp { region, device_offset, slot, slot_offset, bytes: page_bytes };
                            out.extend(run.replace(next));
                        }
                    }
                    slot_offset += page_bytes;
                }
            }
            out.extend(run);
        }
    }
}

/// The first item that was there before, with its place. Only for items that were found to repeat.
fn first_repeat<T: Copy + Eq + std::hash::Hash>(items: &mut dyn Iterator<Item = T>) -> Option<(usize, T)> {
    let mut seen = std::collections::HashSet::new();
    items.enumerate().find(|&(_, item)| !seen.insert(item))
}
