//! Copies from runs of blocks and stretches of a block. This is where the time goes.

use kvo_core::{CopyOp, SlotId};

use super::{options::Borders, prepared::Run};
use crate::{
    GroupLayout,
    layout::strips::{Strip, Table},
};

/// Writes copies to the end of a list.
#[derive(Debug)]
pub(super) struct Emitter<'a> {
    pub(super) borders: &'a Borders,
    pub(super) slot_bytes: u64,
    pub(super) piece_bytes_max: u64,
    pub(super) out: &'a mut Vec<CopyOp>,
}

impl Emitter<'_> {
    /// The copies of one slot's runs, which are ascending and more than none.
    pub(super) fn unit(&mut self, table: &Table, slot: SlotId, runs: &[Run], group: &GroupLayout) {
        let longest = runs.iter().map(|run| run.len).max().unwrap_or(0);
        if self.may_cut(table, slot, longest, group) || ends_may_meet(table, runs, group.blocks_per_chunk()) {
            self.one_by_one(table, slot, runs);
        } else if longest == 1 || table.all_dense {
            self.one_a_run(table, slot, runs);
        } else {
            self.by_strip(table, slot, runs);
        }
    }

    /// Whether a copy may be too long, or reach over a border of the host memory.
    fn may_cut(&self, table: &Table, slot: SlotId, longest: u32, group: &GroupLayout) -> bool {
        let start = u64::from(slot.0) * self.slot_bytes;
        // The planner has checked that all slots end within 63 bits.
        table.bytes_max.saturating_mul(u64::from(longest)) > self.piece_bytes_max
            || self.borders.next(start) < start + group.chunk_bytes()
    }

    /// Each run is one copy of each strip.
    fn one_a_run(&mut self, table: &Table, slot: SlotId, runs: &[Run]) {
        match runs {
            [run] => self.out.extend(table.strips.iter().map(|strip| copy(strip, slot, *run))),
            _ => {
                for strip in &table.strips {
                    self.out.extend(runs.iter().map(|run| copy(strip, slot, *run)));
                }
            }
        }
    }

    /// Each run is one copy of each dense strip, and one a block of the others.
    fn by_strip(&mut self, table: &Table, slot: SlotId, runs: &[Run]) {
        for strip in &table.strips {
            if strip.is_dense() {
                self.out.extend(runs.iter().map(|run| copy(strip, slot, *run)));
            } else {
                for run in runs {
                    self.out.extend((0..run.len).map(|nth| copy(strip, slot, single(*run, nth))));
                }
            }
        }
    }

    /// Looks at each copy, to join it with the one before, and to cut it.
    fn one_by_one(&mut self, table: &Table, slot: SlotId, runs: &[Run]) {
        let mut last: Option<CopyOp> = None;
        for strip in &table.strips {
            for run in runs {
                let (num, dense) = if strip.is_dense() { (1, true) } else { (run.len, false) };
                for nth in 0..num {
                    let next = copy(strip, slot, if dense { *run } else { single(*run, nth) });
                    match &mut last {
                        Some(last) if goes_on_with(last, &next) => last.bytes += next.bytes,
                        _ => {
                            if let Some(done) = last.replace(next) {
                                self.cut(done);
                            }
                        }
                    }
                }
            }
        }
        if let Some(done) = last {
            self.cut(done);
        }
    }

    /// Cuts a copy at the borders of the host memory and above the largest size.
    fn cut(&mut self, mut op: CopyOp) {
        while op.bytes > 0 {
            let host_offset = u64::from(op.slot.0) * self.slot_bytes + op.slot_offset;
            let to_border = self.borders.next(host_offset) - host_offset;
            let bytes = op.bytes.min(to_border).min(self.piece_bytes_max);
            self.out.push(CopyOp { bytes, ..op });
            op.device_offset += bytes;
            op.slot_offset += bytes;
            op.bytes -= bytes;
        }
    }
}

/// Whether the end of a strip may be the beginning of the next one, on both sides.
fn ends_may_meet(table: &Table, runs: &[Run], blocks_per_chunk: u32) -> bool {
    let (Some((least, most)), [first, ..], [.., last]) = (table.wraps, runs, runs) else { return false };
    let ahead = i64::from(last.block) + i64::from(last.len - 1) - i64::from(first.block);
    first.sub == 0 && last.sub + last.len == blocks_per_chunk && (least..=most).contains(&ahead)
}

/// One copy of a strip for a run of blocks, or for the first of them if the strip is not dense.
///
/// Nothing overflows, and nothing is out of bounds: the blocks are the group's, the sub-blocks are the chunk's, and the
/// layout was checked for all of them.
#[inline]
fn copy(strip: &Strip, slot: SlotId, run: Run) -> CopyOp {
    CopyOp {
        region: strip.region,
        device_offset: strip.base + u64::from(run.block) * strip.block_stride,
        slot,
        slot_offset: strip.slot_offset + u64::from(run.sub) * strip.sub_stride,
        bytes: u64::from(run.len) * strip.bytes,
    }
}

/// One block of a run.
#[inline]
fn single(run: Run, nth: u32) -> Run {
    Run { sub: run.sub + nth, block: run.block + nth, len: 1 }
}

fn goes_on_with(op: &CopyOp, next: &CopyOp) -> bool {
    op.region == next.region
        && op.device_offset + op.bytes == next.device_offset
        && op.slot_offset + op.bytes == next.slot_offset
}
