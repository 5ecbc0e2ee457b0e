//! Host memory for a measurement: slots on the heap.

use std::sync::{RwLock, TryLockError};

use kvo_core::{HostMemory, SlotAccessError, SlotId};

/// Slots full of bytes that no device can make smaller.
pub(super) struct Memory {
    slots: Vec<RwLock<Vec<u8>>>,
    slot_bytes: usize,
}

impl Memory {
    pub(super) fn new(num_slots: u32, slot_bytes: usize) -> Self {
        let slot = |slot: u32| RwLock::new(filled(slot_bytes, u64::from(slot)));
        Self { slots: (0..num_slots).map(slot).collect(), slot_bytes }
    }

    fn slot(&self, slot: SlotId) -> Result<&RwLock<Vec<u8>>, SlotAccessError> {
        let out_of_range = SlotAccessError::OutOfRange { slot, num_slots: self.num_slots() };
        self.slots.get(slot.0 as usize).ok_or(out_of_range)
    }
}

/// Bytes without a pattern: the generator `SplitMix64` from `seed`.
pub(super) fn filled(len: usize, seed: u64) -> Vec<u8> {
    let mut state = seed;
    let mut bytes = vec![0; len];
    for word in bytes.chunks_mut(8) {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        word.copy_from_slice(&(z ^ (z >> 31)).to_le_bytes()[..word.len()]);
    }
    bytes
}

impl HostMemory for Memory {
    fn num_slots(&self) -> u32 {
        u32::try_from(self.slots.len()).expect("made of a count of 32 bits")
    }

    fn slot_bytes(&self) -> usize {
        self.slot_bytes
    }

    fn with_read(&self, slot: SlotId, read: &mut dyn FnMut(&[u8])) -> Result<(), SlotAccessError> {
        match self.slot(slot)?.try_read() {
            Ok(bytes) => read(&bytes),
            // Bytes are bytes, whoever panicked over them.
            Err(TryLockError::Poisoned(bytes)) => read(&bytes.into_inner()),
            Err(TryLockError::WouldBlock) => return Err(SlotAccessError::Busy { slot }),
        }
        Ok(())
    }

    fn with_write(&self, slot: SlotId, write: &mut dyn FnMut(&mut [u8])) -> Result<(), SlotAccessError> {
        match self.slot(slot)?.try_write() {
            Ok(mut bytes) => write(&mut bytes),
            Err(TryLockError::Poisoned(bytes)) => write(&mut bytes.into_inner()),
            Err(TryLockError::WouldBlock) => return Err(SlotAccessError::Busy { slot }),
        }
        Ok(())
    }
}
