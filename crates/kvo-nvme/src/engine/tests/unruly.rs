//! Host memory that waits or panics where a test wants it to.

use std::{
    ptr::NonNull,
    sync::{Arc, Mutex, RwLock},
    thread,
};

use kvo_core::{HostMemory, SlotAccessError, SlotId, StableMemory};
use kvo_cpu::HostRegion;

/// A call of a checksum thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Call {
    /// `slot_bytes`, which is asked for with the bytes of a claim.
    Bytes,
    /// `release_write`.
    Release,
}

pub(super) struct Unruly {
    region: Arc<HostRegion>,
    /// Whoever reads a slot passes here.
    pub(super) gate: RwLock<()>,
    /// Calls that panic, each once.
    panics: Mutex<Vec<Call>>,
}

impl Unruly {
    pub(super) fn new(region: Arc<HostRegion>) -> Arc<Self> {
        Arc::new(Self { region, gate: RwLock::new(()), panics: Mutex::default() })
    }

    /// The next of each of these calls panics, on a thread of checksums.
    pub(super) fn panic_at(&self, calls: &[Call]) {
        self.panics.lock().unwrap().extend(calls);
    }

    /// The calls that have not panicked yet.
    pub(super) fn panics_left(&self) -> Vec<Call> {
        self.panics.lock().unwrap().clone()
    }

    fn on(&self, call: Call) {
        if !thread::current().name().is_some_and(|name| name.starts_with("kvo-nvme-sum")) {
            return;
        }
        let mut panics = self.panics.lock().unwrap();
        let at = panics.iter().position(|&at| at == call);
        at.map(|at| panics.remove(at));
        drop(panics);
        assert!(at.is_none(), "this panic belongs to the test");
    }

    fn pass(&self) {
        drop(self.gate.read().unwrap());
    }
}

impl HostMemory for Unruly {
    fn num_slots(&self) -> u32 {
        self.region.num_slots()
    }

    fn slot_bytes(&self) -> usize {
        self.on(Call::Bytes);
        self.region.slot_bytes()
    }

    fn with_read(&self, slot: SlotId, read: &mut dyn FnMut(&[u8])) -> Result<(), SlotAccessError> {
        self.pass();
        self.region.with_read(slot, read)
    }

    fn with_write(&self, slot: SlotId, write: &mut dyn FnMut(&mut [u8])) -> Result<(), SlotAccessError> {
        self.region.with_write(slot, write)
    }

    fn into_stable(self: Arc<Self>) -> Option<Arc<dyn StableMemory>> {
        Some(self)
    }
}

// SAFETY: every claim is the region's own, and so is its release, which comes before the panic.
unsafe impl StableMemory for Unruly {
    fn claim_read(&self, slot: SlotId) -> Result<NonNull<u8>, SlotAccessError> {
        self.pass();
        self.region.claim_read(slot)
    }

    unsafe fn release_read(&self, slot: SlotId) {
        // SAFETY: the caller gives back a claim that the region gave out, once, and uses it no more.
        unsafe { self.region.release_read(slot) };
    }

    fn claim_write(&self, slot: SlotId) -> Result<NonNull<u8>, SlotAccessError> {
        self.region.claim_write(slot)
    }

    unsafe fn release_write(&self, slot: SlotId) {
        // SAFETY: as for `release_read`.
        unsafe { self.region.release_write(slot) };
        self.on(Call::Release);
    }

    fn span(&self) -> (NonNull<u8>, usize) {
        self.region.span()
    }
}
