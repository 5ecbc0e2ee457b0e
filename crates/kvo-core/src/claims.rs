//! Slots claimed for longer than a call: for a kernel or a device that copies while no code of ours runs.

use std::{fmt, ptr::NonNull, slice, sync::Arc};

use crate::{HostMemory, SlotAccessError, SlotId};

/// Host memory whose slots stay where they are, so that whoever holds a claim may hand an address to a kernel or a
/// device.
///
/// Not called directly: [`ReadClaim`] and [`WriteClaim`] claim a slot, own a share of the memory, and give the claim
/// back when they drop.
///
/// # Safety
/// The implementation guarantees, while `self` lives:
/// - From a successful `claim_read` of a slot to the matching `release_read`, the pointer is valid for reads of
///   [`slot_bytes`](HostMemory::slot_bytes) initialised bytes, which nobody writes.
/// - From a successful `claim_write` to its `release_write`, the pointer is valid for reads and writes of that many
///   initialised bytes, which nobody else reads or writes.
/// - These claims and the closures of [`HostMemory`] keep each other out in the same way.
/// - `span` stays mapped, and is cut into as many equal parts as there are slots, each of which begins with its slot.
pub unsafe trait StableMemory: HostMemory {
    /// Claims a slot for reading.
    ///
    /// # Errors
    /// As [`HostMemory::with_read`]; then nothing is claimed.
    fn claim_read(&self, slot: SlotId) -> Result<NonNull<u8>, SlotAccessError>;

    /// Gives a claim of [`claim_read`](Self::claim_read) back.
    ///
    /// # Safety
    /// Called once for each successful claim, when nothing reads the slot through it any more.
    unsafe fn release_read(&self, slot: SlotId);

    /// Claims a slot for writing.
    ///
    /// # Errors
    /// As [`HostMemory::with_write`]; then nothing is claimed.
    fn claim_write(&self, slot: SlotId) -> Result<NonNull<u8>, SlotAccessError>;

    /// Gives a claim of [`claim_write`](Self::claim_write) back.
    ///
    /// # Safety
    /// Called once for each successful claim, when nothing reads or writes the slot through it any more.
    unsafe fn release_write(&self, slot: SlotId);

    /// Where the slots lie: the first byte of the first slot, and how many bytes follow it, with the gap behind each slot,
    /// also the last. So the bytes, divided by the number of slots, are the distance of two slots.
    fn span(&self) -> (NonNull<u8>, usize);
}

/// A slot that is being read from outside; nobody writes it until this drops.
pub struct ReadClaim {
    memory: Arc<dyn StableMemory>,
    slot: SlotId,
    start: NonNull<u8>,
}

/// A slot that is being written from outside; nobody else touches it until this drops.
pub struct WriteClaim {
    memory: Arc<dyn StableMemory>,
    slot: SlotId,
    start: NonNull<u8>,
}

// SAFETY: the claim is of a slot, not of a thread: `StableMemory` is `Sync`, its words are shared, and the bytes
// belong to the claim wherever it is.
unsafe impl Send for ReadClaim {}

// SAFETY: as for `ReadClaim`.
unsafe impl Send for WriteClaim {}

impl ReadClaim {
    /// Claims `slot` for reading.
    ///
    /// # Errors
    /// [`SlotAccessError`] if there is no such slot, or it is being written; then nothing is claimed.
    pub fn new(memory: Arc<dyn StableMemory>, slot: SlotId) -> Result<Self, SlotAccessError> {
        let start = memory.claim_read(slot)?;
        Ok(Self { memory, slot, start })
    }

    /// The slot.
    pub fn slot(&self) -> SlotId {
        self.slot
    }

    /// Its first byte, for a reader that keeps the claim until it is done.
    pub fn as_ptr(&self) -> *const u8 {
        self.start.as_ptr()
    }

    /// Its bytes.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: by the contract of `StableMemory` the pointer is valid for that many initialised bytes, and nobody
        // writes them, until the claim is given back, which is when `self` drops.
        unsafe { slice::from_raw_parts(self.start.as_ptr(), self.memory.slot_bytes()) }
    }
}

impl WriteClaim {
    /// Claims `slot` for writing.
    ///
    /// # Errors
    /// [`SlotAccessError`] if there is no such slot, or it is being read or written; then nothing is claimed.
    pub fn new(memory: Arc<dyn StableMemory>, slot: SlotId) -> Result<Self, SlotAccessError> {
        let start = memory.claim_write(slot)?;
        Ok(Self { memory, slot, start })
    }

    /// The slot.
    pub fn slot(&self) -> SlotId {
        self.slot
    }

    /// Its first byte, for a writer that keeps the claim until it is done. While a kernel or a device writes there,
    /// nobody may call [`bytes_mut`](Self::bytes_mut), which is why this takes the claim mutably too.
    pub fn as_mut_ptr(&mut self) -> *mut u8 {
        self.start.as_ptr()
    }

    /// Its bytes.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: by the contract of `StableMemory` the pointer is valid for reads and writes of that many initialised
        // bytes, and nobody else touches them, until the claim is given back, which is when `self` drops.
        unsafe { slice::from_raw_parts_mut(self.start.as_ptr(), self.memory.slot_bytes()) }
    }
}

impl Drop for ReadClaim {
    fn drop(&mut self) {
        // SAFETY: `new` claimed the slot once, a claim cannot be copied, and its slices do not outlive it.
        unsafe { self.memory.release_read(self.slot) };
    }
}

impl Drop for WriteClaim {
    fn drop(&mut self) {
        // SAFETY: as for `ReadClaim`.
        unsafe { self.memory.release_write(self.slot) };
    }
}

impl fmt::Debug for ReadClaim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReadClaim").field("slot", &self.slot).finish_non_exhaustive()
    }
}

impl fmt::Debug for WriteClaim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WriteClaim").field("slot", &self.slot).finish_non_exhaustive()
    }
}
