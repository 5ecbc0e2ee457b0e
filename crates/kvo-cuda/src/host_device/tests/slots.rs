//! A small host memory for tests.

use std::sync::{Arc, RwLock, RwLockReadGuard, TryLockError};

use kvo_core::{HostMemory, SlotAccessError, SlotId};

/// Slots with a lock each; all bytes are `0xEE` at first.
pub(super) struct TestSlots {
    slots: Vec<RwLock<Vec<u8>>>,
    slot_bytes: usize,
    /// Called before every access.
    on_access: Box<dyn Fn(SlotId) + Send + Sync>,
}

impl TestSlots {
    pub(super) fn new(num_slots: usize, slot_bytes: usize) -> Self {
        let slots = (0..num_slots).map(|_| RwLock::new(vec![0xEE; slot_bytes])).collect();
        Self { slots, slot_bytes, on_access: Box::new(|_| ()) }
    }

    pub(super) fn shared(num_slots: usize, slot_bytes: usize) -> Arc<Self> {
        Arc::new(Self::new(num_slots, slot_bytes))
    }

    /// Calls `on_access` before every access, from the thread that copies.
    pub(super) fn with_hook(self, on_access: impl Fn(SlotId) + Send + Sync + 'static) -> Self {
        Self { on_access: Box::new(on_access), ..self }
    }

    /// Holds a slot as a reader.
    pub(super) fn hold(&self, slot: SlotId) -> RwLockReadGuard<'_, Vec<u8>> {
        self.slots[slot.0 as usize].read().unwrap()
    }

    pub(super) fn bytes(&self, slot: SlotId) -> Vec<u8> {
        self.hold(slot).clone()
    }

    /// Some bytes of a slot.
    pub(super) fn part(&self, slot: SlotId, range: std::ops::Range<usize>) -> Vec<u8> {
        self.hold(slot)[range].to_vec()
    }

    pub(super) fn fill(&self, slot: SlotId, bytes: &[u8]) {
        self.slots[slot.0 as usize].write().unwrap()[..bytes.len()].copy_from_slice(bytes);
    }

    fn slot(&self, slot: SlotId) -> Result<&RwLock<Vec<u8>>, SlotAccessError> {
        (self.on_access)(slot);
        let out_of_range = SlotAccessError::OutOfRange { slot, num_slots: self.num_slots() };
        self.slots.get(slot.0 as usize).ok_or(out_of_range)
    }
}

impl HostMemory for TestSlots {
    fn num_slots(&self) -> u32 {
        u32::try_from(self.slots.len()).unwrap()
    }

    fn slot_bytes(&self) -> usize {
        self.slot_bytes
    }

    fn with_read(&self, slot: SlotId, read: &mut dyn FnMut(&[u8])) -> Result<(), SlotAccessError> {
        match self.slot(slot)?.try_read() {
            Ok(bytes) => read(&bytes),
            Err(TryLockError::WouldBlock) => return Err(SlotAccessError::Busy { slot }),
            Err(TryLockError::Poisoned(_)) => panic!("a copy panicked"),
        }
        Ok(())
    }

    fn with_write(&self, slot: SlotId, write: &mut dyn FnMut(&mut [u8])) -> Result<(), SlotAccessError> {
        match self.slot(slot)?.try_write() {
            Ok(mut bytes) => write(&mut bytes),
            Err(TryLockError::WouldBlock) => return Err(SlotAccessError::Busy { slot }),
            Err(TryLockError::Poisoned(_)) => panic!("a copy panicked"),
        }
        Ok(())
    }
}
