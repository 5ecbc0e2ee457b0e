//! Attached memory of a device: where it is, and which of it is one allocation.
//!
//! An engine's tensor may be mapped from many allocations side by side, as `PyTorch`'s expandable segments are. A copy
//! stays in one of them: it is cut where one ends.

use kvo_core::CopyOp;

use super::issue::SlotCopy;

/// Allocations that a region is in, at most: 256 GiB in the smallest that a driver maps.
const ALLOCATIONS_MAX: usize = 1 << 17;

/// A stretch of a device's memory that is attached.
#[derive(Debug)]
pub(crate) struct Region {
    address: u64,
    bytes: u64,
    /// Addresses inside of it where an allocation ends and another begins, ascending.
    borders: Vec<u64>,
}

impl Region {
    /// `bytes` bytes at `address`, which is not beyond the last address. Has `allocation_of` say start and length of the
    /// allocation that an address is in. `None` if allocations do not cover it without a gap, or are too many.
    pub(crate) fn find<E>(
        address: u64,
        bytes: u64,
        mut allocation_of: impl FnMut(u64) -> Result<Option<(u64, u64)>, E>,
    ) -> Result<Option<Self>, E> {
        let mut borders = Vec::new();
        let (mut at, end) = (address, address + bytes);
        loop {
            let Some((start, length)) = allocation_of(at)? else { return Ok(None) };
            let after = start.saturating_add(length);
            if start > at || after <= at {
                return Ok(None);
            }
            if after >= end {
                return Ok(Some(Self { address, bytes, borders }));
            }
            borders.push(after);
            if borders.len() >= ALLOCATIONS_MAX {
                return Ok(None);
            }
            at = after;
        }
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(crate) fn overlaps(&self, address: u64, bytes: u64) -> bool {
        self.address < address.saturating_add(bytes) && address < self.address.saturating_add(self.bytes)
    }

    /// A copy from or to the region, cut where allocations end.
    pub(crate) fn place(&self, op: CopyOp) -> impl Iterator<Item = SlotCopy> {
        let first = self.address + op.device_offset;
        let end = first + op.bytes;
        let before = self.borders.partition_point(|border| *border <= first);
        let inside = self.borders[before..].iter().copied().take_while(move |border| *border < end);
        let ends = inside.chain([end]);
        ends.scan((first, before), move |(start, allocation), end| {
            let copy = SlotCopy {
                allocation: (op.region, *allocation),
                device: *start,
                slot: op.slot,
                slot_offset: native(op.slot_offset + (*start - first)),
                bytes: native(end - *start),
            };
            (*start, *allocation) = (end, *allocation + 1);
            Some(copy)
        })
    }
}

fn native(bytes: u64) -> usize {
    usize::try_from(bytes).expect("a slot is memory")
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use kvo_core::{RegionId, SlotId};

    use super::*;

    /// The borders of a span that such allocations cover, if they do.
    fn borders(address: u64, bytes: u64, allocations: &[(u64, u64)]) -> Option<Vec<u64>> {
        let find = |at: u64| {
            allocations.iter().copied().find(|(start, bytes)| (*start..start + bytes).contains(&at))
        };
        let region = Region::find(address, bytes, |at| Ok::<_, Infallible>(find(at)));
        region.unwrap().map(|region| region.borders)
    }

    #[test]
    fn a_span_is_covered_without_a_gap_or_not_at_all() {
        let three = [(100, 50), (150, 10), (160, 40)];
        assert_eq!(borders(110, 20, &three), Some(vec![]));
        assert_eq!(borders(100, 50, &three), Some(vec![]));
        assert_eq!(borders(110, 41, &three), Some(vec![150]));
        assert_eq!(borders(100, 100, &three), Some(vec![150, 160]));
        assert_eq!(borders(100, 101, &three), None);
        assert_eq!(borders(99, 2, &three), None);
        assert_eq!(borders(100, 100, &[three[0], three[2]]), None);
    }

    #[test]
    fn a_driver_that_does_not_say_where_an_allocation_ends_is_not_asked_for_ever() {
        for answer in [(0, 10), (20, 5), (10, 0), (11, 5)] {
            let mut asked = 0;
            let region = Region::find(10, 100, |_| {
                asked += 1;
                Ok::<_, Infallible>(Some(answer))
            });
            assert!(region.unwrap().is_none());
            assert_eq!(asked, 1, "{answer:?}");
        }
        // A byte an allocation.
        let region = Region::find(0, u64::MAX, |at| Ok::<_, Infallible>(Some((at, 1))));
        assert!(region.unwrap().is_none());
    }

    #[test]
    fn a_copy_is_cut_where_allocations_end() {
        let region = Region { address: 1000, bytes: 100, borders: vec![1010, 1011, 1050] };
        let check = |offset: u64, bytes: u64, expected: &[(u64, usize, usize, usize)]| {
            let op = CopyOp {
                region: RegionId(3),
                device_offset: offset,
                slot: SlotId(7),
                slot_offset: 500,
                bytes,
            };
            let copies: Vec<_> = region.place(op).collect();
            assert!(copies.iter().all(|copy| copy.allocation.0 == RegionId(3) && copy.slot == SlotId(7)));
            let copies: Vec<_> = copies
                .iter()
                .map(|copy| (copy.device, copy.slot_offset, copy.bytes, copy.allocation.1))
                .collect();
            assert_eq!(copies, expected, "{bytes} at {offset}");
        };
        check(0, 10, &[(1000, 500, 10, 0)]);
        check(10, 1, &[(1010, 500, 1, 1)]);
        check(50, 50, &[(1050, 500, 50, 3)]);
        check(9, 3, &[(1009, 500, 1, 0), (1010, 501, 1, 1), (1011, 502, 1, 2)]);
        check(0, 100, &[(1000, 500, 10, 0), (1010, 510, 1, 1), (1011, 511, 39, 2), (1050, 550, 50, 3)]);
    }
}
