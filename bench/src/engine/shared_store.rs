//! A store that the tiering manager owns and the engine can wait for.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use kvo_core::{
    DrainError, JobRejected, Medium, OffloadEvent, OffloadKey, OffloadPolicy, ReleasedSlot, RequestContext,
    RequestId, SecondaryTier, TierCompletion, TierJob, TierLookup,
};
use kvo_nvme::{NvmeStore, StoreStats};

/// One store in two hands of one thread. The lock is never contended: the engine waits only between its calls of the
/// manager.
#[derive(Clone, Debug)]
pub(super) struct SharedStore {
    name: Arc<str>,
    store: Arc<Mutex<NvmeStore>>,
}

impl SharedStore {
    pub(super) fn new(store: NvmeStore) -> Self {
        Self { name: store.name().into(), store: Arc::new(Mutex::new(store)) }
    }

    /// Waits until the store has nothing to do.
    pub(super) fn drain(&self, timeout: Duration) -> Result<(), DrainError> {
        self.store().drain(timeout)
    }

    /// What it has done so far.
    pub(super) fn stats(&self) -> StoreStats {
        self.store().stats()
    }

    /// Chunks that an earlier run has left in it.
    pub(super) fn recovered_chunks(&self) -> u32 {
        self.store().recovery().chunks
    }

    fn store(&self) -> MutexGuard<'_, NvmeStore> {
        self.store.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl SecondaryTier for SharedStore {
    fn name(&self) -> &str {
        &self.name
    }

    fn medium(&self) -> Medium {
        self.store().medium()
    }

    fn on_new_request(&mut self, req: &RequestContext) -> OffloadPolicy {
        self.store().on_new_request(req)
    }

    fn lookup(&mut self, req: RequestId, key: &OffloadKey) -> TierLookup {
        self.store().lookup(req, key)
    }

    fn submit(&mut self, job: TierJob) -> Result<(), JobRejected> {
        self.store().submit(job)
    }

    fn poll(&mut self, done: &mut Vec<TierCompletion>) {
        self.store().poll(done);
    }

    fn take_released(&mut self, released: &mut Vec<ReleasedSlot>) {
        self.store().take_released(released);
    }

    fn on_request_finished(&mut self, req: RequestId) {
        self.store().on_request_finished(req);
    }

    fn on_schedule_end(&mut self) {
        self.store().on_schedule_end();
    }

    fn take_events(&mut self, events: &mut Vec<OffloadEvent>) {
        self.store().take_events(events);
    }
}
