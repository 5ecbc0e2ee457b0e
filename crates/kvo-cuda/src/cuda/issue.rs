//! Slots that a device may touch, and the copies that do.
//!
//! A [`HostCopy`] has an address, and is made where that is known to be good: from a slot that is claimed, or in memory
//! that is owned by whoever waits for the copy. It is used up before either is given back.

mod pinned;
mod put;
mod scratch;
mod slices;

use std::{collections::HashMap, sync::Arc};

use kvo_core::{Direction, ReadClaim, RegionId, SlotAccessError, SlotId, StableMemory, Ticket, WriteClaim};

pub(crate) use self::{
    put::{batch, one_by_one, rows},
    scratch::{Scratch, ScratchCopy},
    slices::{KernelLists, Lists},
};

/// One of a device's allocations: a region, and which of those that it is in.
pub(crate) type Allocation = (RegionId, usize);

/// A copy between device memory that is attached and a slot.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SlotCopy {
    pub(crate) allocation: Allocation,
    /// The first byte on the device.
    pub(crate) device: u64,
    pub(crate) slot: SlotId,
    /// Where it starts in the slot, in bytes.
    pub(crate) slot_offset: usize,
    pub(crate) bytes: usize,
}

/// A copy between device memory and host memory, which stay as they must be until the device has done it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HostCopy {
    allocation: Allocation,
    /// The first byte on the device.
    device: u64,
    /// The first byte on the host; a load only reads there.
    host: *mut u8,
    bytes: usize,
}

impl HostCopy {
    /// The allocation that the device's side is in.
    pub(crate) fn allocation(&self) -> Allocation {
        self.allocation
    }

    pub(crate) fn device(&self) -> u64 {
        self.device
    }

    /// To be looked at, not through.
    pub(crate) fn host(&self) -> *const u8 {
        self.host
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }
}

// SAFETY: the address is of memory that is claimed or owned for this copy until the event behind it has passed, whichever
// thread has it; only the driver follows it.
unsafe impl Send for HostCopy {}

/// The slots that a device may touch. Each stays claimed as long as a piece that uses it is on the device's queue.
pub(crate) struct Claims {
    memory: Arc<dyn StableMemory>,
    held: HashMap<(Ticket, SlotId), Held>,
    /// Pieces that claimed, counted.
    num_pieces: u64,
}

struct Held {
    claim: Claim,
    /// How many pieces use it.
    num_pieces: u32,
    /// The last of them.
    last_piece: u64,
}

enum Claim {
    Read(ReadClaim),
    Write(WriteClaim),
}

impl Held {
    fn start(&mut self) -> *mut u8 {
        match &mut self.claim {
            // A load only reads through it.
            Claim::Read(claim) => claim.as_ptr().cast_mut(),
            Claim::Write(claim) => claim.as_mut_ptr(),
        }
    }
}

impl Claims {
    pub(crate) fn new(memory: Arc<dyn StableMemory>) -> Self {
        Self { memory, held: HashMap::new(), num_pieces: 0 }
    }

    /// Claims the slots of a piece's copies, for reading if it is a load. Puts the copies, as memory has them, into
    /// `copies`, and each slot once into `slots`, which are both empty.
    ///
    /// # Errors
    /// [`SlotAccessError`]; then no slot is claimed for the piece, and both lists are empty.
    pub(crate) fn take(
        &mut self,
        ticket: Ticket,
        direction: Direction,
        from: &[SlotCopy],
        copies: &mut Vec<HostCopy>,
        slots: &mut Vec<SlotId>,
    ) -> Result<(), SlotAccessError> {
        self.num_pieces += 1;
        for run in from.chunk_by(|one, next| one.slot == next.slot) {
            let slot = run[0].slot;
            let start = match self.start_of(ticket, direction, slot, slots) {
                Ok(start) => start,
                Err(error) => {
                    self.give_back(ticket, slots);
                    slots.clear();
                    copies.clear();
                    return Err(error);
                }
            };
            copies.extend(run.iter().map(|copy| HostCopy {
                allocation: copy.allocation,
                device: copy.device,
                host: start.wrapping_add(copy.slot_offset),
                bytes: copy.bytes,
            }));
        }
        Ok(())
    }

    fn start_of(
        &mut self,
        ticket: Ticket,
        direction: Direction,
        slot: SlotId,
        slots: &mut Vec<SlotId>,
    ) -> Result<*mut u8, SlotAccessError> {
        use std::collections::hash_map::Entry;
        let held = match self.held.entry((ticket, slot)) {
            Entry::Occupied(held) => held.into_mut(),
            Entry::Vacant(vacant) => {
                let memory = Arc::clone(&self.memory);
                let claim = match direction {
                    Direction::Load => Claim::Read(ReadClaim::new(memory, slot)?),
                    Direction::Store => Claim::Write(WriteClaim::new(memory, slot)?),
                };
                vacant.insert(Held { claim, num_pieces: 0, last_piece: 0 })
            }
        };
        // A piece may come back to a slot.
        if held.last_piece != self.num_pieces {
            slots.push(slot);
            held.last_piece = self.num_pieces;
            held.num_pieces += 1;
        }
        Ok(held.start())
    }

    /// A piece that used these slots has ended.
    pub(crate) fn give_back(&mut self, ticket: Ticket, slots: &[SlotId]) {
        for slot in slots {
            let held =
                self.held.get_mut(&(ticket, *slot)).expect("a piece's slots are claimed until it ends");
            held.num_pieces -= 1;
            if held.num_pieces == 0 {
                self.held.remove(&(ticket, *slot));
            }
        }
    }

    /// All pieces have ended.
    pub(crate) fn clear(&mut self) {
        self.held.clear();
    }

    /// Whether no slot is claimed.
    pub(crate) fn is_empty(&self) -> bool {
        self.held.is_empty()
    }
}
