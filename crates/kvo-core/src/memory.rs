//! Host memory as slots.

use std::sync::Arc;

use crate::{SlotId, StableMemory};

/// Host memory cut into slots of equal size, shared by whoever copies: devices and tiers, each from its own threads.
///
/// Access goes through closures, so that an implementation can hold the slot for exactly as long as its bytes are
/// borrowed: many readers or one writer a slot at any moment. Managers hand out slots such that no two jobs ever
/// conflict; a conflict therefore is a defect, and comes back as [`SlotAccessError::Busy`] instead of a data race.
pub trait HostMemory: Send + Sync {
    /// Slots there are.
    fn num_slots(&self) -> u32;

    /// Bytes of a slot.
    fn slot_bytes(&self) -> usize;

    /// Calls `read` with the bytes of `slot`.
    ///
    /// # Errors
    /// Without calling `read`: [`SlotAccessError::OutOfRange`], or [`SlotAccessError::Busy`] while the slot is
    /// being written.
    fn with_read(&self, slot: SlotId, read: &mut dyn FnMut(&[u8])) -> Result<(), SlotAccessError>;

    /// Calls `write` with the bytes of `slot`.
    ///
    /// # Errors
    /// Without calling `write`: [`SlotAccessError::OutOfRange`], or [`SlotAccessError::Busy`] while the slot is
    /// being read or written.
    fn with_write(&self, slot: SlotId, write: &mut dyn FnMut(&mut [u8])) -> Result<(), SlotAccessError>;

    /// The same memory as one whose slots stay where they are, if it is such memory. Without, a tier copies through
    /// the closures, on threads of its own.
    fn into_stable(self: Arc<Self>) -> Option<Arc<dyn StableMemory>> {
        None
    }
}

/// A slot could not be accessed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SlotAccessError {
    /// There is no such slot.
    #[error("slot {slot} is out of range: there are {num_slots} slots")]
    OutOfRange {
        /// The slot.
        slot: SlotId,
        /// Slots there are.
        num_slots: u32,
    },
    /// Someone else is copying from or into the slot.
    #[error("slot {slot} is in use by another copy")]
    Busy {
        /// The slot.
        slot: SlotId,
    },
}
