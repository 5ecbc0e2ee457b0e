//! What every transfer must satisfy before a byte moves.

use kvo_core::{CopyOp, Direction, SubmitErrorReason, Transfer};

/// The sizes that copies are checked against, and scratch space for doing so.
#[derive(Debug)]
pub(crate) struct Checker {
    pub(crate) device_bytes: u64,
    pub(crate) num_slots: u32,
    pub(crate) slot_bytes: u64,
    /// Destinations of the transfer at hand: slot (0 on the device), first byte, end, place in the transfer.
    destinations: Vec<(u32, u64, u64, usize)>,
    slots: Vec<u32>,
}

/// What a transfer amounts to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Size {
    pub(crate) bytes: u64,
    /// Slots it touches; each holds a chunk.
    pub(crate) num_chunks: u64,
}

impl Checker {
    pub(crate) fn new(device_bytes: u64, num_slots: u32, slot_bytes: u64) -> Self {
        Self { device_bytes, num_slots, slot_bytes, destinations: Vec::new(), slots: Vec::new() }
    }

    /// Checks that there are copies, that each lies inside both memories, and that no two write the same bytes.
    pub(crate) fn check(&mut self, transfer: &Transfer) -> Result<Size, SubmitErrorReason> {
        if transfer.ops.is_empty() {
            return Err(SubmitErrorReason::Empty);
        }
        self.destinations.clear();
        self.slots.clear();
        for (index, op) in transfer.ops.iter().enumerate() {
            let (Some(device_end), Some(slot_end)) = (self.device_end(op), self.slot_end(op)) else {
                return Err(SubmitErrorReason::OutOfBounds { index, op: *op });
            };
            self.slots.push(op.slot.0);
            self.destinations.push(match transfer.direction {
                Direction::Store => (op.slot.0, op.slot_offset, slot_end, index),
                Direction::Load => (0, op.device_offset, device_end, index),
            });
        }
        self.destinations.sort_unstable();
        for pair in self.destinations.windows(2) {
            let ((slot, _, end, _), (next_slot, next, _, index)) = (pair[0], pair[1]);
            if slot == next_slot && next < end {
                return Err(SubmitErrorReason::Overlap { index, op: transfer.ops[index] });
            }
        }
        self.slots.sort_unstable();
        self.slots.dedup();
        let bytes = transfer.ops.iter().fold(0_u64, |sum, op| sum.saturating_add(op.bytes));
        Ok(Size { bytes, num_chunks: self.slots.len() as u64 })
    }

    /// Where a copy that has bytes ends on the device, if it lies inside.
    fn device_end(&self, op: &CopyOp) -> Option<u64> {
        let end = op.device_offset.checked_add(op.bytes)?;
        (op.bytes > 0 && end <= self.device_bytes).then_some(end)
    }

    /// Where a copy ends in its slot, if that exists and the copy lies inside.
    fn slot_end(&self, op: &CopyOp) -> Option<u64> {
        let end = op.slot_offset.checked_add(op.bytes)?;
        (op.slot.0 < self.num_slots && end <= self.slot_bytes).then_some(end)
    }
}

#[cfg(test)]
mod tests {
    use kvo_core::{Fence, OwnerId, SlotId};

    use super::*;

    fn transfer(direction: Direction, ops: &[(u64, u32, u64, u64)]) -> Transfer {
        let op = |&(device_offset, slot, slot_offset, bytes)| CopyOp {
            device_offset,
            slot: SlotId(slot),
            slot_offset,
            bytes,
        };
        let ops = ops.iter().map(op).collect();
        Transfer { direction, ops, after: Fence::new(OwnerId::unique(), 0) }
    }

    /// Why a device of 100 bytes with 2 slots of 10 refuses the copies, if it does.
    fn refusal(direction: Direction, ops: &[(u64, u32, u64, u64)]) -> Option<SubmitErrorReason> {
        Checker::new(100, 2, 10).check(&transfer(direction, ops)).err()
    }

    #[test]
    fn copies_that_end_with_a_memory_are_inside_and_one_byte_more_is_not() {
        for direction in [Direction::Store, Direction::Load] {
            assert_eq!(refusal(direction, &[(90, 1, 0, 10), (0, 0, 9, 1)]), None);
            for wrong in [
                (91, 1, 0, 10),
                (0, 1, 1, 10),
                (0, 2, 0, 1),
                (u64::MAX, 0, 0, 1),
                (0, 0, u64::MAX, 1),
                (0, 0, 0, 0),
                (100, 0, 0, 1),
            ] {
                let (device_offset, slot, slot_offset, bytes) = wrong;
                let op = CopyOp { device_offset, slot: SlotId(slot), slot_offset, bytes };
                let reason = SubmitErrorReason::OutOfBounds { index: 1, op };
                assert_eq!(refusal(direction, &[(50, 1, 0, 5), wrong]), Some(reason));
            }
            assert_eq!(refusal(direction, &[]), Some(SubmitErrorReason::Empty));
        }
    }

    #[test]
    fn only_destinations_must_not_overlap() {
        let same_source = [(0, 0, 0, 5), (3, 0, 5, 5)];
        assert_eq!(refusal(Direction::Store, &same_source), None);
        let op = CopyOp { device_offset: 3, slot: SlotId(0), slot_offset: 5, bytes: 5 };
        assert_eq!(refusal(Direction::Load, &same_source), Some(SubmitErrorReason::Overlap { index: 1, op }));

        let same_slot_bytes = [(20, 1, 4, 5), (0, 0, 4, 5), (40, 1, 2, 3)];
        assert_eq!(refusal(Direction::Load, &same_slot_bytes), None);
        let op = CopyOp { device_offset: 20, slot: SlotId(1), slot_offset: 4, bytes: 5 };
        assert_eq!(
            refusal(Direction::Store, &same_slot_bytes),
            Some(SubmitErrorReason::Overlap { index: 0, op })
        );
    }

    #[test]
    fn a_transfer_counts_each_slot_once() {
        let size = Checker::new(100, 2, 10)
            .check(&transfer(Direction::Store, &[(0, 1, 0, 2), (9, 0, 0, 3), (20, 1, 2, 4)]))
            .unwrap();
        assert_eq!(size, Size { bytes: 9, num_chunks: 2 });
    }
}
