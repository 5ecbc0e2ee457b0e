//! Copies between the device's memory and slots.

use std::{ops::Range, sync::Arc};

use kvo_core::{CopyOp, Direction, HostMemory, SlotAccessError};

use super::memory::Allocation;

/// What bytes hold that a transfer has begun to bring.
pub(super) const POISON: u8 = 0xDB;

/// A region: a stretch of an allocation.
#[derive(Clone, Debug)]
pub(super) struct Region {
    pub(super) allocation: Arc<Allocation>,
    /// Where it starts in the allocation.
    pub(super) start: u64,
    /// The same as an address.
    pub(super) address: u64,
    pub(super) bytes: u64,
}

/// The memories on both sides of a copy. Copies given to it were checked.
pub(super) struct Copier<'a> {
    pub(super) host: &'a dyn HostMemory,
    pub(super) regions: &'a [Option<Region>],
    pub(super) direction: Direction,
}

impl Copier<'_> {
    /// Copies between one slot, held for as long as it takes, and regions.
    pub(super) fn copy(&self, ops: &[CopyOp]) -> Result<(), SlotAccessError> {
        match self.direction {
            Direction::Store => self.host.with_write(ops[0].slot, &mut |slot| {
                for op in ops {
                    let (allocation, offset) = self.device(op);
                    allocation.read(offset, &mut slot[slot_range(op)]);
                }
            }),
            Direction::Load => self.host.with_read(ops[0].slot, &mut |slot| {
                for op in ops {
                    let (allocation, offset) = self.device(op);
                    allocation.write(offset, &slot[slot_range(op)]);
                }
            }),
        }
    }

    /// Poisons what copies will bring.
    pub(super) fn poison(&self, ops: &[CopyOp]) -> Result<(), SlotAccessError> {
        for op in ops {
            match self.direction {
                Direction::Store => {
                    self.host.with_write(op.slot, &mut |slot| slot[slot_range(op)].fill(POISON))?;
                }
                Direction::Load => {
                    let (allocation, offset) = self.device(op);
                    allocation.fill(offset, slot_range(op).len(), POISON);
                }
            }
        }
        Ok(())
    }

    /// Whether what a copy will bring is as [`poison`](Self::poison) has left it, or cannot be looked at.
    pub(super) fn is_poisoned(&self, op: &CopyOp) -> bool {
        match self.direction {
            Direction::Store => {
                let mut poisoned = true;
                let look =
                    &mut |slot: &[u8]| poisoned = slot[slot_range(op)].iter().all(|byte| *byte == POISON);
                self.host.with_read(op.slot, look).is_err() || poisoned
            }
            Direction::Load => {
                let (allocation, offset) = self.device(op);
                allocation.holds(offset, slot_range(op).len(), POISON)
            }
        }
    }

    fn device(&self, op: &CopyOp) -> (&Allocation, u64) {
        let region = self.regions[op.region.0 as usize].as_ref();
        let region = region.expect("a region stays while a transfer names it");
        (&region.allocation, region.start + op.device_offset)
    }
}

/// The bytes of a copy in its slot.
fn slot_range(op: &CopyOp) -> Range<usize> {
    let start = usize::try_from(op.slot_offset).expect("checked at submit");
    start..start + usize::try_from(op.bytes).expect("checked at submit")
}
