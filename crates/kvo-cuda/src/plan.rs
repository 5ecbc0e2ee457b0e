//! From chunks and blocks to copies.

use kvo_core::{BlockId, CopyOp, GroupIdx, SlotId};

use self::{
    emit::Emitter,
    options::Borders,
    prepared::{Prepared, Rules},
};
use crate::{BlockLayout, GeometryError, PlanError, layout::strips::Table};

mod emit;
#[cfg(any(test, kvo_fuzzing))]
pub(crate) mod made;
mod marks;
mod options;
mod prepared;
#[cfg(test)]
mod tests;

pub use self::{
    marks::LayerMarks,
    options::{Alignment, HostPieces, PlanOptions},
};

/// One chunk's slot and the GPU blocks that its sub-blocks are copied from or to.
///
/// A chunk consists of its group's `blocks_per_chunk` sub-blocks in token order. `blocks[i]` belongs to sub-block
/// `skip + i`; the sub-blocks before and behind are left alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChunkBlocks<'a> {
    /// The group the chunk and the blocks are of.
    pub group: GroupIdx,
    /// The chunk's slot.
    pub slot: SlotId,
    /// Sub-blocks left out before the first one; 0 for a store.
    pub skip: u32,
    /// The blocks in token order, one for each sub-block from `skip` on.
    pub blocks: &'a [BlockId],
}

/// Turns chunks and blocks into copies, the fewest that do.
///
/// A slot holds its chunk from byte 0 on as the [`BlockLayout`] says, and slot `n` begins at byte `n * slot_bytes` of
/// the host memory. One plan may have chunks of several groups.
///
/// A copy spans all bytes that are neighbours on both sides, in one region and one slot: the stretches of a block that
/// follow one another, the same stretch of neighbouring blocks in neighbouring sub-blocks, the end of one plane and the
/// beginning of the next. Parts of a chunk that stand next to each other in the list are joined in whatever order they
/// come, also where both sides descend. Blocks that descend while sub-blocks ascend never join: their bytes are in
/// another order. Nor does a copy reach into a second slot, of which a device holds each by itself; so chunks that
/// descend by slot and by block are as many copies as ascending ones. What differs in stride and meets by chance is
/// left in two.
///
/// After joining, copies are [cut](PlanOptions) at the borders of the host memory and above a size. Every copy lies
/// inside its region and its slot: the layout was checked, and every slot and block that is named is checked by each
/// plan. Nothing is planned in part.
///
/// Copies come chunk by chunk, and within a chunk in the order of the slot's stretches, so a device can hold each slot
/// once for all its copies; or [layer by layer](Self::plan_load_by_layer).
///
/// Planning touches no memory but the list of copies. A planner keeps scratch space of the size of its largest
/// request, so it allocates nothing in steady state.
///
/// ```
/// use kvo_core::{BlockId, ChunkLayout, GroupIdx, SlotId};
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
/// let chunks: Vec<_> = planner.spread(GroupIdx(0), 1, &slots, &blocks)?.collect();
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
    slot_bytes: u64,
    borders: Borders,
    piece_bytes_max: u64,
    mark_bytes_min: u64,
    /// All stretches of each group.
    tables: Box<[Table]>,
    prepared: Prepared,
    by_layer: marks::ByLayer,
}

impl CopyPlanner {
    /// A planner between the blocks of `layout` and `num_slots` slots of `slot_bytes` each, with the usual options.
    ///
    /// # Errors
    /// [`GeometryError::SlotTooSmall`] if a slot does not hold a chunk, [`GeometryError::Zero`] without slots,
    /// [`GeometryError::HostTooLarge`] for more slots than an address reaches.
    pub fn new(layout: BlockLayout, num_slots: u32, slot_bytes: u64) -> Result<Self, GeometryError> {
        Self::with_options(layout, num_slots, slot_bytes, PlanOptions::default())
    }

    /// As [`new`](Self::new), with options.
    ///
    /// # Errors
    /// As [`new`](Self::new); [`GeometryError::Zero`] and [`GeometryError::Borders`] for options that make no sense.
    pub fn with_options(
        layout: BlockLayout,
        num_slots: u32,
        slot_bytes: u64,
        options: PlanOptions,
    ) -> Result<Self, GeometryError> {
        if num_slots == 0 {
            return Err(GeometryError::Zero { field: "num_slots" });
        }
        for (group, idx) in layout.groups().iter().zip(0..) {
            let chunk_bytes = group.chunk_bytes();
            if slot_bytes < chunk_bytes {
                return Err(GeometryError::SlotTooSmall { slot_bytes, group: GroupIdx(idx), chunk_bytes });
            }
        }
        let host_bytes = slot_bytes.checked_mul(u64::from(num_slots));
        if host_bytes.is_none_or(|bytes| i64::try_from(bytes).is_err()) {
            return Err(GeometryError::HostTooLarge { num_slots, slot_bytes });
        }
        if options.piece_bytes_max == Some(0) {
            return Err(GeometryError::Zero { field: "piece_bytes_max" });
        }
        let tables = layout.groups().iter().map(|group| {
            let mut table = Table::default();
            table.fill(group.strips(), group.blocks_per_chunk());
            table
        });
        Ok(Self {
            num_slots,
            slot_bytes,
            borders: Borders::new(options.host_pieces)?,
            piece_bytes_max: options.piece_bytes_max.unwrap_or(u64::MAX),
            mark_bytes_min: options.mark_bytes_min,
            tables: tables.collect(),
            prepared: Prepared::new(&layout, num_slots),
            by_layer: marks::ByLayer::new(&layout),
            layout,
        })
    }

    /// Where the blocks are.
    pub fn layout(&self) -> &BlockLayout {
        &self.layout
    }

    /// Spreads a run of blocks of a group over the slots of its chunks: the first chunk gives all but its first `skip`
    /// sub-blocks, the last one may give fewer than it has, those between are whole.
    ///
    /// `slots` and `blocks` run in token order. With `skip` 0 and whole chunks this also describes a store.
    ///
    /// # Errors
    /// [`PlanError::UnknownGroup`]; [`PlanError::WrongNumberOfBlocks`] unless `skip` lies in the first chunk and each
    /// slot gets a block.
    pub fn spread<'a>(
        &self,
        group: GroupIdx,
        skip: u32,
        slots: &'a [SlotId],
        blocks: &'a [BlockId],
    ) -> Result<impl ExactSizeIterator<Item = ChunkBlocks<'a>> + use<'a>, PlanError> {
        let num_groups = self.layout.groups().len();
        let of = self.layout.group(group).ok_or(PlanError::UnknownGroup { chunk: 0, group, num_groups })?;
        let blocks_per_chunk = of.blocks_per_chunk();
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
            ChunkBlocks { group, slot, skip: if nth == 0 { skip } else { 0 }, blocks: &blocks[start..end] }
        }))
    }

    /// Adds the copies that store whole chunks to the end of `out`: from each chunk's blocks into its slot.
    ///
    /// Chunks are stored whole or not at all: a ready slot says nothing of how much of it is filled, so a short one
    /// would be loaded with what the slot held before. A prefix whose last chunk is not full yet is stored without it.
    /// (With canonical pages a rank stores its part of every sub-block, and the chunk is whole once all ranks have.)
    ///
    /// A block may be named more than once, a slot only once.
    ///
    /// # Errors
    /// [`PlanError`] names the first chunk that cannot be stored; `out` is as it was.
    pub fn plan_store(&mut self, chunks: &[ChunkBlocks<'_>], out: &mut Vec<CopyOp>) -> Result<(), PlanError> {
        self.prepared.take(chunks, Rules::Store, &self.layout, self.num_slots)?;
        self.emit_by_chunk(out);
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
        self.prepared.take(chunks, Rules::Load, &self.layout, self.num_slots)?;
        self.emit_by_chunk(out);
        Ok(())
    }

    /// As [`plan_load`](Self::plan_load), in the order in which compute needs the layers, over all groups: `marks` is
    /// filled with where each part ends.
    ///
    /// A part is as many layers as it takes to have [`mark_bytes_min`](PlanOptions::mark_bytes_min); what is left over
    /// goes with the last part. Within a part copies come chunk by chunk and are joined; none spans two parts. The marks
    /// count from the start of `out`, so what was in it comes before the first.
    ///
    /// ```
    /// # use kvo_core::{BlockId, ChunkLayout, GroupIdx, SlotId};
    /// # use kvo_cuda::{BlockLayout, ChunkBlocks, CopyPlanner, LayerMarks, PlanOptions};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let chunk = ChunkLayout::new(4, 2, 4096, 4)?;
    /// let layout = BlockLayout::layer_first(&chunk, 100, 100 * chunk.block_bytes())?;
    /// let options = PlanOptions { mark_bytes_min: 64 << 10, ..PlanOptions::default() };
    /// let mut planner = CopyPlanner::with_options(layout, 10, chunk.chunk_bytes(), options)?;
    ///
    /// let blocks = [50, 51, 52, 53].map(BlockId);
    /// let chunks = [ChunkBlocks { group: GroupIdx(0), slot: SlotId(7), skip: 0, blocks: &blocks }];
    /// let (mut ops, mut marks) = (Vec::new(), LayerMarks::default());
    /// planner.plan_load_by_layer(&chunks, &mut ops, &mut marks)?;
    /// // A layer is 32 KiB, so two make a part: K and V of layers 0 and 1, then those of layers 2 and 3.
    /// assert_eq!(marks.ends, [4, 8]);
    /// assert_eq!(marks.mark_of(2), Some(1));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`plan_load`](Self::plan_load); `out` and `marks` are as they were.
    pub fn plan_load_by_layer(
        &mut self,
        chunks: &[ChunkBlocks<'_>],
        out: &mut Vec<CopyOp>,
        marks: &mut LayerMarks,
    ) -> Result<(), PlanError> {
        self.prepared.take(chunks, Rules::Load, &self.layout, self.num_slots)?;
        let before = out.len();
        marks.clear();
        self.by_layer.start(&self.layout, &self.prepared);
        while let Some(last_layer) = self.by_layer.next_part(&self.layout, self.mark_bytes_min) {
            let mut emitter = emitter(&self.borders, self.slot_bytes, self.piece_bytes_max, out);
            for unit in self.prepared.units() {
                let table = &self.by_layer.tables()[unit.group];
                emitter.unit(table, unit.slot, self.prepared.runs(unit), &self.layout.groups()[unit.group]);
            }
            marks.push(out.len(), last_layer);
        }
        debug_assert!(out[before..].iter().all(|op| self.covers(op)), "a copy is out of bounds");
        Ok(())
    }

    /// Emits what was prepared, chunk by chunk.
    fn emit_by_chunk(&self, out: &mut Vec<CopyOp>) {
        let before = out.len();
        let mut emitter = emitter(&self.borders, self.slot_bytes, self.piece_bytes_max, out);
        for unit in self.prepared.units() {
            let (table, group) = (&self.tables[unit.group], &self.layout.groups()[unit.group]);
            emitter.unit(table, unit.slot, self.prepared.runs(unit), group);
        }
        debug_assert!(out[before..].iter().all(|op| self.covers(op)), "a copy is out of bounds");
    }

    /// Whether a copy is one that this planner could make: inside a region and a slot, within the largest size and on
    /// one side of every border of the host memory. Every copy it makes is.
    pub fn covers(&self, op: &CopyOp) -> bool {
        let ends_within = |offset: u64, bytes| offset.checked_add(op.bytes).is_some_and(|end| end <= bytes);
        op.bytes > 0
            && op.bytes <= self.piece_bytes_max
            && op.slot.0 < self.num_slots
            && self.layout.region_bytes(op.region).is_some_and(|bytes| ends_within(op.device_offset, bytes))
            && ends_within(op.slot_offset, self.slot_bytes)
            && self.borders.next(self.host_offset(op)) - self.host_offset(op) >= op.bytes
    }

    /// How far all of `ops` are aligned: in their regions, in the host memory and in length. Copies as wide as that are
    /// right if the regions and the host memory themselves begin at such addresses. They need not be
    /// [covered](Self::covers).
    pub fn alignment(&self, ops: &[CopyOp]) -> Alignment {
        Alignment::of(ops.iter().fold(0, |all, op| all | op.device_offset | self.host_offset(op) | op.bytes))
    }

    /// Where a copy is in the host memory, in bytes; of one that is not inside of a slot the lowest bits alone are right.
    fn host_offset(&self, op: &CopyOp) -> u64 {
        u64::from(op.slot.0).wrapping_mul(self.slot_bytes).wrapping_add(op.slot_offset)
    }
}

/// Of the fields and not of the planner, so that the rest of it stays free.
fn emitter<'a>(
    borders: &'a Borders,
    slot_bytes: u64,
    piece_bytes_max: u64,
    out: &'a mut Vec<CopyOp>,
) -> Emitter<'a> {
    Emitter { borders, slot_bytes, piece_bytes_max, out }
}
