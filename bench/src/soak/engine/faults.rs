//! What goes wrong: slots that are in use, a store whose jobs are refused, fail or are late, and bytes that are overwritten
//! on disk.

use std::{
    fs::{File, OpenOptions},
    os::unix::fs::FileExt,
    path::Path,
    sync::{Arc, Mutex, PoisonError},
};

use anyhow::Context;
use kvo_core::{
    HostMemory, JobRejected, Medium, OffloadEvent, OffloadKey, OffloadPolicy, RejectReason, ReleasedSlot,
    RequestContext, RequestId, SecondaryTier, SlotAccessError, SlotId, TierCompletion, TierJob, TierLookup,
};
use kvo_cpu::HostRegion;
use kvo_mini_engine::SplitMix64;
use kvo_nvme::{FILE_NAME, NvmeStore};
use serde::Serialize;

/// One access of so many finds its slot in use.
const BUSY_ODDS: u64 = 2_000;
/// One job of so many is refused, and of the others one of so many fails without the store having had it.
const REFUSED_ODDS: u64 = 40;
const FAILED_ODDS: u64 = 40;
/// Polls for which slots of a failed job are held at most.
const HELD_POLLS: u64 = 10;
/// What stands before the chunks in the store's file stays as it is.
const FIRST_BYTE: u64 = 64 << 10;

/// What the faulty store has done.
#[derive(Clone, Debug, Default, Serialize)]
pub struct FaultsSeen {
    /// Jobs that it was not given.
    pub jobs_refused: u64,
    /// Jobs that were reported as failed.
    pub jobs_failed: u64,
    /// Jobs that were reported as failed and late, with slots that were held for a while.
    pub jobs_late: u64,
    #[serde(skip)]
    pub(super) checksum_failures: u64,
    #[serde(skip)]
    pub(super) problems: Vec<String>,
}

/// What a [`Faulty`] tells whoever has made it: the tiers belong to a manager.
#[derive(Clone, Default)]
pub(super) struct Shared(Arc<Mutex<FaultsSeen>>);

impl Shared {
    fn change(&self, change: impl FnOnce(&mut FaultsSeen)) {
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner));
    }

    pub(super) fn seen(&self) -> FaultsSeen {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// A store some of whose jobs go wrong on the way.
pub(super) struct Faulty {
    store: NvmeStore,
    random: SplitMix64,
    seen: Shared,
    /// Jobs that are to fail, after so many polls more.
    failing: Vec<(TierJob, u64)>,
    /// Slots of jobs that were reported as late, and polls until they are let go.
    held: Vec<(ReleasedSlot, u64)>,
}

impl Faulty {
    pub(super) fn new(store: NvmeStore, seed: u64, seen: Shared) -> Self {
        Self { store, random: SplitMix64::stream(seed, 3), seen, failing: Vec::new(), held: Vec::new() }
    }

    fn one_in(&mut self, odds: u64) -> bool {
        self.random.below(odds) == 0
    }
}

impl SecondaryTier for Faulty {
    fn name(&self) -> &str {
        self.store.name()
    }

    fn medium(&self) -> Medium {
        self.store.medium()
    }

    fn on_new_request(&mut self, req: &RequestContext) -> OffloadPolicy {
        self.store.on_new_request(req)
    }

    fn lookup(&mut self, req: RequestId, key: &OffloadKey) -> TierLookup {
        self.store.lookup(req, key)
    }

    fn submit(&mut self, job: TierJob) -> Result<(), JobRejected> {
        if self.one_in(REFUSED_ODDS) {
            self.seen.change(|seen| seen.jobs_refused += 1);
            let is_busy = self.one_in(2);
            let reason = if is_busy { RejectReason::Busy } else { RejectReason::Unavailable };
            return Err(JobRejected { job, reason });
        }
        if self.one_in(FAILED_ODDS) {
            let polls = self.random.below(HELD_POLLS);
            self.failing.push((job, polls));
            return Ok(());
        }
        self.store.submit(job)
    }

    fn poll(&mut self, done: &mut Vec<TierCompletion>) {
        self.store.poll(done);
        for (job, polls) in std::mem::take(&mut self.failing) {
            if polls > 0 {
                self.failing.push((job, polls - 1));
                continue;
            }
            let mut slots: Vec<SlotId> = Vec::new();
            if self.one_in(2) {
                slots.extend(job.chunks.iter().map(|chunk| chunk.slot));
                slots.sort_unstable();
                slots.dedup();
            }
            self.seen.change(|seen| {
                *(if slots.is_empty() { &mut seen.jobs_failed } else { &mut seen.jobs_late }) += 1;
            });
            for &slot in &slots {
                let polls = self.random.below(HELD_POLLS);
                self.held.push((ReleasedSlot { job: job.id, slot }, polls));
            }
            done.push(TierCompletion::failed(job.id).with_held(slots));
        }
    }

    fn take_released(&mut self, released: &mut Vec<ReleasedSlot>) {
        self.store.take_released(released);
        released.extend(self.held.extract_if(.., |(_, polls)| *polls == 0).map(|(slot, _)| slot));
        self.held.iter_mut().for_each(|(_, polls)| *polls -= 1);
    }

    fn on_request_finished(&mut self, req: RequestId) {
        self.store.on_request_finished(req);
    }

    fn on_schedule_end(&mut self) {
        self.store.on_schedule_end();
        let stats = self.store.stats();
        self.seen.change(|seen| {
            seen.checksum_failures = stats.checksum_failures;
            if !stats.counts.add_up() && seen.problems.is_empty() {
                seen.problems.push(format!("the slots of the store do not add up: {:?}", stats.counts));
            }
        });
    }

    fn take_events(&mut self, events: &mut Vec<OffloadEvent>) {
        self.store.take_events(events);
    }
}

/// Slots that are in use now and then, so that copies of the device fail.
#[derive(Debug)]
pub(super) struct Busy {
    inner: Arc<HostRegion>,
    state: Mutex<(SplitMix64, u64)>,
}

impl Busy {
    pub(super) fn new(inner: Arc<HostRegion>, seed: u64) -> Self {
        Self { inner, state: Mutex::new((SplitMix64::stream(seed, 4), 0)) }
    }

    pub(super) fn refused(&self) -> u64 {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).1
    }

    fn check(&self, slot: SlotId) -> Result<(), SlotAccessError> {
        let (random, refused) = &mut *self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if random.below(BUSY_ODDS) > 0 {
            return Ok(());
        }
        *refused += 1;
        Err(SlotAccessError::Busy { slot })
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

/// Overwrites bytes of the store's file behind its back.
pub(super) struct Spoiler {
    file: File,
    bytes: u64,
    random: SplitMix64,
}

impl Spoiler {
    pub(super) fn open(dir: &Path, seed: u64) -> anyhow::Result<Self> {
        let path = dir.join(FILE_NAME);
        let file = OpenOptions::new().write(true).open(&path).with_context(|| path.display().to_string())?;
        let bytes = file.metadata()?.len();
        Ok(Self { file, bytes, random: SplitMix64::stream(seed, 5) })
    }

    pub(super) fn spoil(&mut self) -> anyhow::Result<()> {
        let garbage = self.random.next_u64().to_ne_bytes();
        let room = self.bytes.saturating_sub(FIRST_BYTE + garbage.len() as u64).max(1);
        let at = FIRST_BYTE + self.random.below(room);
        self.file.write_all_at(&garbage, at).context("the store's file cannot be spoiled")
    }
}
