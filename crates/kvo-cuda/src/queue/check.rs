//! What every transfer must satisfy before a byte moves.

use kvo_core::{CopyOp, Direction, RegionId, SubmitErrorReason, Transfer};

/// The sizes that copies are checked against, and scratch space for doing so.
#[derive(Debug)]
pub(super) struct Checker {
    num_slots: u32,
    slot_bytes: u64,
    /// Bytes of each region; `None` once it was forgotten.
    regions: Vec<Option<u64>>,
    /// Destinations of the transfer at hand: slot or region, first byte, end, place in the transfer.
    destinations: Vec<(u32, u64, u64, usize)>,
    slots: Vec<u32>,
}

/// What a transfer amounts to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Size {
    pub(super) bytes: u64,
    /// Slots it touches; each holds a chunk.
    pub(super) num_chunks: u64,
}

impl Checker {
    pub(super) fn new(num_slots: u32, slot_bytes: u64) -> Self {
        Self { num_slots, slot_bytes, regions: Vec::new(), destinations: Vec::new(), slots: Vec::new() }
    }

    pub(super) fn add_region(&mut self, bytes: u64) -> RegionId {
        let region = u32::try_from(self.regions.len()).expect("2^32 regions are never attached");
        self.regions.push(Some(bytes));
        RegionId(region)
    }

    pub(super) fn has_region(&self, region: RegionId) -> bool {
        self.region_bytes(region).is_some()
    }

    pub(super) fn remove_region(&mut self, region: RegionId) {
        self.regions[region.0 as usize] = None;
    }

    fn region_bytes(&self, region: RegionId) -> Option<u64> {
        self.regions.get(region.0 as usize).copied().flatten()
    }

    /// Checks that there are copies, that marks do not descend, that each copy lies inside both memories, and that no two
    /// write the same bytes.
    pub(super) fn check(&mut self, transfer: &Transfer) -> Result<Size, SubmitErrorReason> {
        if transfer.ops.is_empty() {
            return Err(SubmitErrorReason::Empty);
        }
        check_marks(transfer)?;
        self.destinations.clear();
        self.slots.clear();
        let mut bytes = 0_u64;
        for (index, op) in transfer.ops.iter().enumerate() {
            let region_bytes =
                self.region_bytes(op.region).ok_or(SubmitErrorReason::UnknownRegion { index })?;
            let ends = (end(op.device_offset, op, region_bytes), self.slot_end(op));
            let (Some(device_end), Some(slot_end)) = ends else {
                return Err(SubmitErrorReason::OutOfBounds { index });
            };
            self.slots.push(op.slot.0);
            self.destinations.push(match transfer.class.direction() {
                Direction::Store => (op.slot.0, op.slot_offset, slot_end, index),
                Direction::Load => (op.region.0, op.device_offset, device_end, index),
            });
            // Source bytes may be named again and again; no sum of lengths is too long for a list that exists.
            bytes = bytes.saturating_add(op.bytes);
        }
        self.check_overlap()?;
        self.slots.sort_unstable();
        self.slots.dedup();
        Ok(Size { bytes, num_chunks: self.slots.len() as u64 })
    }

    fn check_overlap(&mut self) -> Result<(), SubmitErrorReason> {
        self.destinations.sort_unstable();
        for pair in self.destinations.windows(2) {
            let ((place, _, end, _), (next_place, next, _, index)) = (pair[0], pair[1]);
            if place == next_place && next < end {
                return Err(SubmitErrorReason::Overlap { index });
            }
        }
        Ok(())
    }

    fn slot_end(&self, op: &CopyOp) -> Option<u64> {
        if op.slot.0 < self.num_slots { end(op.slot_offset, op, self.slot_bytes) } else { None }
    }
}

/// Marks may repeat: a layer may have no copies. They never descend, nor reach beyond the copies.
fn check_marks(transfer: &Transfer) -> Result<(), SubmitErrorReason> {
    let mut before = 0;
    for (index, mark) in transfer.marks.iter().enumerate() {
        if *mark < before || *mark as usize > transfer.ops.len() || u32::try_from(index).is_err() {
            return Err(SubmitErrorReason::Marks { index });
        }
        before = *mark;
    }
    Ok(())
}

/// Where a copy that has bytes ends in a stretch of `bytes`, if it lies inside.
fn end(start: u64, op: &CopyOp, bytes: u64) -> Option<u64> {
    let end = start.checked_add(op.bytes)?;
    (op.bytes > 0 && end <= bytes).then_some(end)
}

#[cfg(test)]
mod tests {
    use kvo_core::{Fence, OwnerId, SlotId, TransferClass};

    use super::*;

    fn op((region, device_offset, slot, slot_offset, bytes): (u32, u64, u32, u64, u64)) -> CopyOp {
        CopyOp { region: RegionId(region), device_offset, slot: SlotId(slot), slot_offset, bytes }
    }

    fn transfer(class: TransferClass, ops: &[(u32, u64, u32, u64, u64)]) -> Transfer {
        Transfer::new(class, ops.iter().copied().map(op).collect(), Fence::new(OwnerId::unique(), 0))
    }

    /// Two regions, of 100 bytes and of 50, and 2 slots of 10.
    fn checker() -> Checker {
        let mut checker = Checker::new(2, 10);
        checker.add_region(100);
        checker.add_region(50);
        checker
    }

    /// Why such a device refuses the copies, if it does.
    fn refusal(class: TransferClass, ops: &[(u32, u64, u32, u64, u64)]) -> Option<SubmitErrorReason> {
        checker().check(&transfer(class, ops)).err()
    }

    #[test]
    fn copies_that_end_with_a_memory_are_inside_and_one_byte_more_is_not() {
        for class in TransferClass::ALL {
            assert_eq!(refusal(class, &[(0, 90, 1, 0, 10), (1, 49, 0, 9, 1)]), None);
            for wrong in [
                (0, 91, 1, 0, 10),
                (1, 41, 1, 0, 10),
                (0, 0, 1, 1, 10),
                (0, 0, 2, 0, 1),
                (0, u64::MAX, 0, 0, 1),
                (0, 0, 0, u64::MAX, 1),
                (0, 0, 0, 0, 0),
            ] {
                let refused = refusal(class, &[(0, 50, 0, 0, 1), wrong]);
                assert_eq!(refused, Some(SubmitErrorReason::OutOfBounds { index: 1 }), "{wrong:?}");
            }
        }
    }

    #[test]
    fn a_region_that_is_not_attached_is_unknown() {
        let mut checker = checker();
        checker.remove_region(RegionId(0));
        for region in [0, 2] {
            let transfer = transfer(TransferClass::Store, &[(1, 0, 0, 0, 1), (region, 0, 0, 1, 1)]);
            let refused = checker.check(&transfer).unwrap_err();
            assert_eq!(refused, SubmitErrorReason::UnknownRegion { index: 1 });
        }
        assert_eq!(checker.add_region(1), RegionId(2), "an id is never used again");
    }

    #[test]
    fn only_destinations_must_not_overlap() {
        let overlap = |index| Some(SubmitErrorReason::Overlap { index });
        // One byte of slot 0 is written twice by a store, and read twice by a load.
        let slot = [(0, 0, 0, 0, 5), (0, 20, 1, 0, 5), (0, 40, 0, 4, 5)];
        assert_eq!(refusal(TransferClass::Store, &slot), overlap(2));
        assert_eq!(refusal(TransferClass::Demand, &slot), None);
        // One byte of a region likewise; the same bytes of another region are others.
        let region = [(1, 24, 1, 0, 5), (0, 20, 0, 0, 5), (1, 20, 0, 5, 5)];
        assert_eq!(refusal(TransferClass::Store, &region), None);
        assert_eq!(refusal(TransferClass::Prefetch, &region), overlap(0));
        let two = [(1, 20, 1, 0, 5), (0, 20, 0, 0, 5)];
        assert_eq!(refusal(TransferClass::Prefetch, &two), None);
    }

    #[test]
    fn marks_may_repeat_and_neither_descend_nor_reach_beyond_the_copies() {
        let ops = [(0, 0, 0, 0, 1), (0, 1, 0, 1, 1)];
        for (marks, refused) in
            [(&[0, 1, 1, 2][..], None), (&[1, 0], Some(1)), (&[3], Some(0)), (&[2, 2, 2, u32::MAX], Some(3))]
        {
            let transfer = Transfer { marks: marks.to_vec(), ..transfer(TransferClass::Demand, &ops) };
            let reason = refused.map(|index| SubmitErrorReason::Marks { index });
            assert_eq!(checker().check(&transfer).err(), reason, "{marks:?}");
        }
    }

    #[test]
    fn a_transfer_is_as_large_as_its_copies_and_counts_slots_once() {
        let ops = [(0, 0, 1, 0, 3), (0, 9, 0, 0, 4), (1, 5, 1, 3, 2)];
        let size = checker().check(&transfer(TransferClass::Store, &ops));
        assert_eq!(size, Ok(Size { bytes: 9, num_chunks: 2 }));
        let refused = checker().check(&transfer(TransferClass::Store, &[]));
        assert_eq!(refused, Err(SubmitErrorReason::Empty));
    }
}
