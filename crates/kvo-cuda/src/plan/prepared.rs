//! Chunks that were checked, as runs of neighbouring blocks.

use kvo_core::SlotId;

use super::ChunkBlocks;
use crate::{BlockLayout, GroupLayout, PlanError};

/// Sub-blocks `sub..sub + len` are blocks `block..block + len`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Run {
    pub(super) sub: u32,
    pub(super) block: u32,
    pub(super) len: u32,
}

impl Run {
    fn goes_on_with(&self, next: &Self) -> bool {
        self.sub + self.len == next.sub && self.block + self.len == next.block
    }
}

/// All that is copied between one slot and blocks of its group, as far as it stands together in the list.
#[derive(Clone, Copy, Debug)]
pub(super) struct Unit {
    pub(super) group: usize,
    pub(super) slot: SlotId,
    first_run: usize,
    end_run: usize,
    /// Chunks in the list that are parts of it.
    num_parts: usize,
}

/// What a transfer writes, and so must not be named twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rules {
    /// Whole chunks, each slot once.
    Store,
    /// Any parts of chunks, each block once.
    Load,
}

/// The scratch space of a planner: the chunks of one plan.
#[derive(Clone, Debug)]
pub(super) struct Prepared {
    units: Vec<Unit>,
    runs: Vec<Run>,
    /// Blocks of each group.
    num_blocks: Box<[u64]>,
    /// Which slots, or which blocks, were named. Empty between plans.
    slots: Marked,
    /// One of each pool; unused where a group is not the first of its pool.
    blocks: Box<[Marked]>,
}

impl Prepared {
    pub(super) fn new(layout: &BlockLayout, num_slots: u32) -> Self {
        let groups = layout.groups();
        let most_of_pool = |pool| {
            let of_pool = groups.iter().filter(|group| group.pool() == pool);
            of_pool.map(GroupLayout::num_blocks).max().unwrap_or(0)
        };
        Self {
            units: Vec::new(),
            runs: Vec::new(),
            num_blocks: vec![0; groups.len()].into(),
            slots: Marked::new(num_slots),
            blocks: (0..groups.len()).map(|pool| Marked::new(most_of_pool(pool))).collect(),
        }
    }

    pub(super) fn units(&self) -> &[Unit] {
        &self.units
    }

    /// The runs of a unit, which are more than none, ascending by sub-block.
    pub(super) fn runs(&self, unit: &Unit) -> &[Run] {
        &self.runs[unit.first_run..unit.end_run]
    }

    /// How many blocks of each group are copied.
    pub(super) fn num_blocks(&self) -> &[u64] {
        &self.num_blocks
    }

    /// Takes the chunks of a plan in place of those of the last one.
    pub(super) fn take(
        &mut self,
        chunks: &[ChunkBlocks<'_>],
        rules: Rules,
        layout: &BlockLayout,
        num_slots: u32,
    ) -> Result<(), PlanError> {
        self.units.clear();
        self.runs.clear();
        self.num_blocks.fill(0);
        for (nth, chunk) in chunks.iter().enumerate() {
            if let Err(error) = self.take_chunk(nth, chunk, rules, layout, num_slots) {
                self.slots.clear();
                self.blocks.iter_mut().for_each(Marked::clear);
                return Err(error);
            }
        }
        self.join_last();
        self.unmark(chunks, rules, layout);
        Ok(())
    }

    fn take_chunk(
        &mut self,
        nth: usize,
        chunk: &ChunkBlocks<'_>,
        rules: Rules,
        layout: &BlockLayout,
        num_slots: u32,
    ) -> Result<(), PlanError> {
        let &ChunkBlocks { group: idx, slot, skip, blocks } = chunk;
        let (num_groups, num_blocks) = (layout.groups().len(), blocks.len());
        let group =
            layout.group(idx).ok_or(PlanError::UnknownGroup { chunk: nth, group: idx, num_groups })?;
        let blocks_per_chunk = group.blocks_per_chunk();
        let is_whole = skip == 0 && num_blocks as u64 == u64::from(blocks_per_chunk);
        if rules == Rules::Store && !is_whole {
            return Err(PlanError::NotWhole { chunk: nth, skip, num_blocks, blocks_per_chunk });
        }
        if blocks.is_empty() {
            return Err(PlanError::NoBlocks { chunk: nth });
        }
        if num_blocks as u64 + u64::from(skip) > u64::from(blocks_per_chunk) {
            return Err(PlanError::BeyondChunk { chunk: nth, skip, num_blocks, blocks_per_chunk });
        }
        if slot.0 >= num_slots {
            return Err(PlanError::UnknownSlot { chunk: nth, slot, num_slots });
        }
        if let Some(&block) = blocks.iter().find(|block| block.0 >= group.num_blocks()) {
            return Err(PlanError::UnknownBlock { chunk: nth, block, num_blocks: group.num_blocks() });
        }
        match rules {
            Rules::Store if !self.slots.mark(slot.0) => {
                return Err(PlanError::RepeatedSlot { chunk: nth, slot });
            }
            Rules::Store => {}
            Rules::Load => {
                let marked = &mut self.blocks[group.pool()];
                if let Some(&block) = blocks.iter().find(|block| !marked.mark(block.0)) {
                    return Err(PlanError::RepeatedBlock { chunk: nth, block });
                }
            }
        }
        self.push(idx.0 as usize, chunk);
        Ok(())
    }

    /// Adds a checked chunk: to the last unit if it is of the same slot, and else as a unit of its own.
    fn push(&mut self, group: usize, chunk: &ChunkBlocks<'_>) {
        if self.units.last().is_some_and(|unit| unit.group != group || unit.slot != chunk.slot) {
            self.join_last();
        }
        let start = self.runs.len();
        let mut blocks = chunk.blocks.iter();
        let Some(first) = blocks.next() else { return };
        let mut run = Run { sub: chunk.skip, block: first.0, len: 1 };
        for block in blocks {
            if block.0 == run.block + run.len {
                run.len += 1;
            } else {
                self.runs.push(run);
                run = Run { sub: run.sub + run.len, block: block.0, len: 1 };
            }
        }
        self.runs.push(run);
        self.num_blocks[group] += chunk.blocks.len() as u64;
        match self.units.last_mut() {
            Some(unit) if unit.group == group && unit.slot == chunk.slot => {
                unit.end_run = self.runs.len();
                unit.num_parts += 1;
            }
            _ => {
                let end_run = self.runs.len();
                self.units.push(Unit { group, slot: chunk.slot, first_run: start, end_run, num_parts: 1 });
            }
        }
    }

    /// Joins the runs of the last unit, of which all parts are there.
    fn join_last(&mut self) {
        if let Some(unit) = self.units.last_mut().filter(|unit| unit.num_parts > 1) {
            join(&mut self.runs, unit.first_run);
            unit.end_run = self.runs.len();
        }
    }

    fn unmark(&mut self, chunks: &[ChunkBlocks<'_>], rules: Rules, layout: &BlockLayout) {
        for chunk in chunks {
            match rules {
                Rules::Store => self.slots.unmark(chunk.slot.0),
                Rules::Load => {
                    let marked = &mut self.blocks[layout.groups()[chunk.group.0 as usize].pool()];
                    chunk.blocks.iter().for_each(|block| marked.unmark(block.0));
                }
            }
        }
    }
}

/// Joins runs from `first` on in whatever order they came, and leaves them ascending by sub-block.
fn join(runs: &mut Vec<Run>, first: usize) {
    let of_unit = &mut runs[first..];
    // Runs that join are equally far ahead of their sub-blocks.
    of_unit.sort_unstable_by_key(|run| (i64::from(run.block) - i64::from(run.sub), run.sub));
    let mut end = first;
    for next in first + 1..runs.len() {
        if runs[end].goes_on_with(&runs[next]) {
            runs[end].len += runs[next].len;
        } else {
            end += 1;
            runs[end] = runs[next];
        }
    }
    runs.truncate(end + 1);
    runs[first..].sort_unstable_by_key(|run| (run.sub, run.block));
}

/// A set of numbers below a bound.
#[derive(Clone, Debug)]
struct Marked(Box<[u64]>);

impl Marked {
    fn new(bound: u32) -> Self {
        Self(vec![0; bound.div_ceil(64) as usize].into())
    }

    /// Puts a number in; false if it was in.
    fn mark(&mut self, number: u32) -> bool {
        let (word, bit) = (&mut self.0[number as usize / 64], 1 << (number % 64));
        let is_new = *word & bit == 0;
        *word |= bit;
        is_new
    }

    /// Takes a number out, and others beside it: all are to go.
    fn unmark(&mut self, number: u32) {
        self.0[number as usize / 64] = 0;
    }

    fn clear(&mut self) {
        self.0.fill(0);
    }
}
