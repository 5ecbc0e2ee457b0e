//! The host memory, which knows who holds each of its slots, and what is in it.

use std::sync::{Arc, Mutex};

use kvo_core::{BlockHash, GroupIdx, HostMemory, OffloadKey, SlotAccessError, SlotId};

use crate::{
    engine::Op,
    testing::{Hold, Host, lock},
};

/// Version `version` of chunk `n`. Any eight bytes say which chunk, which version and which place they are of.
pub(super) fn content(n: u64, version: u64, chunk_bytes: usize) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(chunk_bytes + 8);
    let first = n << 48 | version << 16;
    for word in first..first + chunk_bytes.div_ceil(8) as u64 {
        bytes.extend_from_slice(&word.to_le_bytes());
    }
    bytes.truncate(chunk_bytes);
    bytes
}

pub(super) fn key(n: u64) -> OffloadKey {
    OffloadKey::new(BlockHash::from_u64(n), GroupIdx(0))
}

/// The number of a chunk.
pub(super) fn number(key: &OffloadKey) -> u64 {
    u64::from_be_bytes(key.hash().0[24..].try_into().expect("eight of 32"))
}

/// Slots that someone may hold for longer than a call, as a kernel does.
pub(super) struct SimMemory {
    slots: Mutex<Vec<Slot>>,
    slot_bytes: usize,
}

#[derive(Clone)]
struct Slot {
    bytes: Vec<u8>,
    /// Which chunk and version was put here.
    label: Option<(u64, u64)>,
    readers: u32,
    is_written: bool,
}

impl SimMemory {
    pub(super) fn new(num_slots: u32, slot_bytes: usize) -> Arc<Self> {
        let slot = Slot { bytes: vec![0; slot_bytes], label: None, readers: 0, is_written: false };
        Arc::new(Self { slots: Mutex::new(vec![slot; num_slots as usize]), slot_bytes })
    }

    /// Puts a chunk into a slot that nobody may be using.
    #[track_caller]
    pub(super) fn fill(&self, slot: SlotId, n: u64, version: u64) {
        self.overwrite(slot, &content(n, version, self.slot_bytes), Some((n, version)));
    }

    /// Puts into a slot what no chunk is like.
    #[track_caller]
    pub(super) fn clear(&self, slot: SlotId) {
        self.overwrite(slot, &vec![0xee; self.slot_bytes], None);
    }

    #[track_caller]
    fn overwrite(&self, slot: SlotId, bytes: &[u8], label: Option<(u64, u64)>) {
        let held = &mut lock(&self.slots)[slot.0 as usize];
        assert!(
            held.readers == 0 && !held.is_written,
            "slot {slot} of the host memory was given back while a transfer uses it"
        );
        held.bytes.copy_from_slice(bytes);
        held.label = label;
    }

    /// Notes which chunk and version a transfer has put into a slot.
    pub(super) fn arrived(&self, slot: SlotId, n: u64, version: u64) {
        lock(&self.slots)[slot.0 as usize].label = Some((n, version));
    }

    /// Which chunk and version was put into a slot.
    pub(super) fn label(&self, slot: SlotId) -> Option<(u64, u64)> {
        lock(&self.slots)[slot.0 as usize].label
    }

    pub(super) fn chunk_bytes(&self) -> usize {
        self.slot_bytes
    }

    /// Whether exactly these bytes are in a slot.
    pub(super) fn holds(&self, slot: SlotId, bytes: &[u8]) -> bool {
        lock(&self.slots)[slot.0 as usize].bytes == bytes
    }

    pub(super) fn bytes(&self, slot: SlotId) -> Vec<u8> {
        lock(&self.slots)[slot.0 as usize].bytes.clone()
    }

    /// Holds a slot for a transfer that has begun.
    #[track_caller]
    pub(super) fn hold(&self, slot: SlotId, how: Hold) {
        let held = &mut lock(&self.slots)[slot.0 as usize];
        let is_free = !held.is_written && (how == Hold::Reads || held.readers == 0);
        assert!(is_free, "two transfers use slot {slot} of the host memory");
        match how {
            Hold::Reads => held.readers += 1,
            Hold::Writes => held.is_written = true,
        }
    }

    /// Forgets every hold, as the end of a process does.
    pub(super) fn let_go_of_all(&self) {
        for slot in lock(&self.slots).iter_mut() {
            (slot.readers, slot.is_written) = (0, false);
        }
    }

    pub(super) fn let_go(&self, slot: SlotId, how: Hold) {
        let held = &mut lock(&self.slots)[slot.0 as usize];
        match how {
            Hold::Reads => held.readers -= 1,
            Hold::Writes => held.is_written = false,
        }
    }
}

impl Host for Arc<SimMemory> {
    fn hold(&mut self, slot: SlotId, how: Hold) {
        SimMemory::hold(self, slot, how);
    }

    fn let_go(&mut self, slot: SlotId, how: Hold) {
        SimMemory::let_go(self, slot, how);
    }

    fn bytes(&self, slot: SlotId) -> Vec<u8> {
        SimMemory::bytes(self, slot)
    }

    fn version(&mut self, op: &Op) -> u64 {
        let (n, version) = self.label(op.host).expect("a write is from a slot with a chunk in it");
        assert_eq!(n, number(&op.tenant.key), "another chunk is in the slot of {op:?}");
        version
    }

    fn check_written(&self, op: &Op, version: u64) {
        assert_eq!(self.label(op.host), Some((number(&op.tenant.key), version)));
    }

    fn check_read(&mut self, op: &Op, version: u64) {
        self.arrived(op.host, number(&op.tenant.key), version);
    }

    fn is_content(&self, key: &OffloadKey, version: u64, bytes: &[u8]) -> bool {
        bytes == content(number(key), version, self.slot_bytes)
    }
}

impl HostMemory for SimMemory {
    fn num_slots(&self) -> u32 {
        u32::try_from(lock(&self.slots).len()).expect("made from a u32")
    }

    fn slot_bytes(&self) -> usize {
        self.slot_bytes
    }

    fn with_read(&self, slot: SlotId, read: &mut dyn FnMut(&[u8])) -> Result<(), SlotAccessError> {
        let slots = lock(&self.slots);
        let num_slots = u32::try_from(slots.len()).expect("made from a u32");
        let held = slots.get(slot.0 as usize).ok_or(SlotAccessError::OutOfRange { slot, num_slots })?;
        if held.is_written {
            return Err(SlotAccessError::Busy { slot });
        }
        read(&held.bytes);
        Ok(())
    }

    fn with_write(&self, slot: SlotId, write: &mut dyn FnMut(&mut [u8])) -> Result<(), SlotAccessError> {
        let mut slots = lock(&self.slots);
        let num_slots = u32::try_from(slots.len()).expect("made from a u32");
        let held = slots.get_mut(slot.0 as usize).ok_or(SlotAccessError::OutOfRange { slot, num_slots })?;
        if held.is_written || held.readers > 0 {
            return Err(SlotAccessError::Busy { slot });
        }
        held.label = None;
        write(&mut held.bytes);
        Ok(())
    }
}
