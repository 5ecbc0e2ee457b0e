//! A tier that fails, delays and refuses, and slots that are busy now and then.

use std::sync::{Arc, Mutex, PoisonError};

use kvo_core::{
    HostMemory, JobRejected, Medium, OffloadEvent, OffloadKey, OffloadPolicy, RejectReason, ReleasedSlot,
    RequestContext, RequestId, SecondaryTier, SlotAccessError, SlotId, TierCompletion, TierJob, TierLookup,
};
use kvo_mini_engine::SplitMix64;
use kvo_policies::Lru;
use kvo_tiering::{MemoryTier, MemoryTierWorker};

/// A [`MemoryTier`] that does as it likes.
pub(crate) struct Moody {
    inner: MemoryTier<Lru>,
    worker: MemoryTierWorker<dyn HostMemory>,
    random: SplitMix64,
    /// Of so many chances one goes wrong.
    odds: u64,
    /// Jobs that are to fail, after so many polls more.
    failing: Vec<(TierJob, u64)>,
    /// Slots of jobs that were reported as late, and polls until they are let go.
    held: Vec<(ReleasedSlot, u64)>,
    retries: u64,
}

impl Moody {
    pub(crate) fn new(num_chunks: u32, memory: Arc<dyn HostMemory>, seed: u64) -> Self {
        let (inner, worker) = MemoryTier::new("moody", num_chunks, Lru::new(num_chunks), memory).unwrap();
        let mut random = SplitMix64::stream(seed, 78);
        // Some hardly ever fail, some hardly ever do not.
        let odds = 2 + random.below(20);
        Self { inner, worker, random, odds, failing: Vec::new(), held: Vec::new(), retries: 0 }
    }

    fn goes_wrong(&mut self) -> bool {
        self.random.below(self.odds) == 0
    }
}

impl SecondaryTier for Moody {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn medium(&self) -> Medium {
        self.inner.medium()
    }

    fn on_new_request(&mut self, req: &RequestContext) -> OffloadPolicy {
        self.inner.on_new_request(req)
    }

    fn lookup(&mut self, req: RequestId, key: &OffloadKey) -> TierLookup {
        if self.goes_wrong() && self.retries < 300 {
            self.retries += 1;
            return TierLookup::Retry;
        }
        self.inner.lookup(req, key)
    }

    fn submit(&mut self, job: TierJob) -> Result<(), JobRejected> {
        if self.goes_wrong() {
            let reason =
                if self.random.below(2) == 0 { RejectReason::Busy } else { RejectReason::Unavailable };
            return Err(JobRejected { job, reason });
        }
        if self.goes_wrong() {
            let polls = self.random.below(6);
            self.failing.push((job, polls));
            return Ok(());
        }
        self.inner.submit(job)
    }

    fn poll(&mut self, done: &mut Vec<TierCompletion>) {
        if self.random.below(3) > 0 {
            self.worker.run_queued();
        }
        self.inner.poll(done);
        for (job, polls) in std::mem::take(&mut self.failing) {
            if polls > 0 {
                self.failing.push((job, polls - 1));
                continue;
            }
            let mut slots: Vec<SlotId> = job.chunks.iter().map(|chunk| chunk.slot).collect();
            slots.sort_unstable();
            slots.dedup();
            if self.random.below(2) == 0 {
                slots.clear();
            }
            for &slot in &slots {
                let polls = self.random.below(10);
                self.held.push((ReleasedSlot { job: job.id, slot }, polls));
            }
            done.push(TierCompletion::failed(job.id).with_held(slots));
        }
    }

    fn take_released(&mut self, released: &mut Vec<ReleasedSlot>) {
        released.extend(self.held.extract_if(.., |(_, polls)| *polls == 0).map(|(slot, _)| slot));
        for (_, polls) in &mut self.held {
            *polls -= 1;
        }
    }

    fn on_request_finished(&mut self, req: RequestId) {
        self.inner.on_request_finished(req);
    }

    fn on_schedule_end(&mut self) {
        self.inner.on_schedule_end();
    }

    fn take_events(&mut self, events: &mut Vec<OffloadEvent>) {
        self.inner.take_events(events);
    }
}

/// Slots that are busy once in so many times, so that copies fail.
pub(crate) struct Busy {
    pub(crate) inner: Arc<dyn HostMemory>,
    pub(crate) odds: u64,
    pub(crate) random: Mutex<SplitMix64>,
}

impl Busy {
    fn check(&self, slot: SlotId) -> Result<(), SlotAccessError> {
        let mut random = self.random.lock().unwrap_or_else(PoisonError::into_inner);
        if random.below(self.odds) == 0 { Err(SlotAccessError::Busy { slot }) } else { Ok(()) }
    }
}

impl HostMemory for Busy {
    fn num_slots(&self) -> u32 {
        self.inner.num_slots()
    }

    fn slot_bytes(&self) -> usize {
        self.inner.slot_bytes()
    }

    fn with_read(&self, slot: SlotId, read: &mut dyn FnMut(&[u8])) -> Result<(), SlotAccessError> {
        self.check(slot)?;
        self.inner.with_read(slot, read)
    }

    fn with_write(&self, slot: SlotId, write: &mut dyn FnMut(&mut [u8])) -> Result<(), SlotAccessError> {
        self.check(slot)?;
        self.inner.with_write(slot, write)
    }
}
