//! A tier in memory: complete, and the example of how to write one.
//!
//! Read it beside the contract of [`SecondaryTier`]. A tier has two sides. The one that the manager calls,
//! [`MemoryTier`], keeps the index: it answers lookups, decides what fits and what goes, and queues work; nothing of
//! it waits. The other, [`MemoryTierWorker`], does the work, here copying, wherever the owner runs it: on a thread of
//! its own, or step by step in a test. A channel each way joins them.

use std::sync::{
    Arc,
    mpsc::{Receiver, Sender, TryRecvError, channel},
};

use hashbrown::HashMap;
use kvo_core::{
    EventKind, HostMemory, JobId, JobRejected, KeyPositions, Medium, OffloadEvent, OffloadKey, OffloadPolicy,
    RejectReason, RequestContext, RequestId, SecondaryTier, SlotId, TierCompletion, TierDirection, TierJob,
    TierLookup,
};
use kvo_policies::{AccessKind, CachePolicy, Eviction, KeyAccess, Met, RequestAccesses, Residents};

use crate::TieringConfigError;

/// Keeps up to a fixed number of chunks in memory of its own.
///
/// A chunk can be found once its write has ended. A write of a chunk that is there already, or on its way, copies
/// nothing again, and ends as that write does; where room runs out, the chunks nearest the head of the job are kept and the others reported as
/// failed. The work of jobs is done in the order in which they were submitted.
#[derive(Debug)]
pub struct MemoryTier<P> {
    name: Arc<str>,
    policy: P,
    index: HashMap<OffloadKey, SlotId>,
    /// By slot: the chunks that the tier has or is getting. The numbers are this tier's own, for the policy.
    entries: Vec<Entry>,
    free: Vec<SlotId>,
    requests: HashMap<RequestId, RequestAccesses>,
    open: HashMap<JobId, OpenJob>,
    events: Vec<OffloadEvent>,
    work: Sender<Work>,
    results: Receiver<Ended>,
    /// The worker is gone, and what it had was forgotten.
    is_lost: bool,
}

/// A chunk that the tier has or is getting.
#[derive(Clone, Copy, Debug)]
struct Entry {
    key: OffloadKey,
    ready: bool,
    /// Reads of it that are open.
    reads: u32,
    /// The last write job that named it.
    named_by: Option<JobId>,
}

/// The entries, as the policy sees them in a write job.
struct View<'a> {
    entries: &'a [Entry],
    job: Option<JobId>,
}

impl Residents for View<'_> {
    fn key(&self, slot: SlotId) -> OffloadKey {
        self.entries[slot.0 as usize].key
    }

    fn may_evict(&self, slot: SlotId) -> Eviction {
        match self.entries[slot.0 as usize] {
            Entry { ready: true, reads: 0, named_by, .. } if named_by.is_some() && named_by == self.job => {
                Eviction::Spared
            }
            Entry { ready: true, reads: 0, .. } => Eviction::Allowed,
            _ => Eviction::Held,
        }
    }
}

#[derive(Debug, Default)]
struct OpenJob {
    /// Chunks that this job brings.
    writes: Vec<SlotId>,
    /// Chunks that this job reads.
    reads: Vec<SlotId>,
    /// Chunks that the tier had, or was getting, when the job was to bring them.
    relies_on: Vec<OffloadKey>,
    /// Chunks that were known to fail at submission.
    failed: Vec<OffloadKey>,
}

/// What the worker is to do, in order.
#[derive(Debug)]
enum Work {
    Forget(OffloadKey),
    Job { id: JobId, direction: TierDirection, chunks: Vec<(OffloadKey, SlotId)> },
}

/// A job that the worker has done, and the chunks of it that failed.
#[derive(Debug)]
struct Ended {
    id: JobId,
    failed: Vec<OffloadKey>,
}

/// The side of a [`MemoryTier`] that copies. It ends with its tier.
#[derive(Debug)]
pub struct MemoryTierWorker<M: ?Sized> {
    bytes: HashMap<OffloadKey, Box<[u8]>>,
    work: Receiver<Work>,
    results: Sender<Ended>,
    memory: Arc<M>,
}

impl<P: CachePolicy> MemoryTier<P> {
    /// An empty tier for `capacity_chunks` chunks beside the primary whose slots are in `memory`, and its worker.
    ///
    /// # Errors
    /// [`TieringConfigError::Zero`] for a capacity of 0, [`TieringConfigError::PolicyTooSmall`] for a policy that was
    /// built for less.
    pub fn new<M: HostMemory + ?Sized>(
        name: &str,
        capacity_chunks: u32,
        policy: P,
        memory: Arc<M>,
    ) -> Result<(Self, MemoryTierWorker<M>), TieringConfigError> {
        if capacity_chunks == 0 {
            return Err(TieringConfigError::Zero { field: "capacity_chunks" });
        }
        let policy_slots = policy.num_slots_max();
        if policy_slots < capacity_chunks {
            return Err(TieringConfigError::PolicyTooSmall { capacity_chunks, policy_slots });
        }
        let (work, work_receiver) = channel();
        let (results_sender, results) = channel();
        let tier = Self {
            name: name.into(),
            policy,
            index: HashMap::new(),
            entries: Vec::new(),
            free: (0..capacity_chunks).rev().map(SlotId).collect(),
            requests: HashMap::new(),
            open: HashMap::new(),
            events: Vec::new(),
            work,
            results,
            is_lost: false,
        };
        let worker =
            MemoryTierWorker { bytes: HashMap::new(), work: work_receiver, results: results_sender, memory };
        Ok((tier, worker))
    }

    /// Chunks that can be found.
    pub fn num_ready(&self) -> usize {
        self.index.values().filter(|slot| self.entries[slot.0 as usize].ready).count()
    }

    /// Decides which chunks of a write job to copy, and makes room for them.
    fn begin_write(
        &mut self,
        job: &TierJob,
        accesses: &mut RequestAccesses,
    ) -> (OpenJob, Vec<(OffloadKey, SlotId)>) {
        let mut open = OpenJob::default();
        let mut copies = Vec::new();
        for chunk in &job.chunks {
            if let Some(slot) = self.index.get(&chunk.key) {
                self.entries[slot.0 as usize].named_by = Some(job.id);
            }
        }
        for chunk in &job.chunks {
            let slot = self.index.get(&chunk.key).copied();
            let ready = slot.is_some_and(|slot| self.entries[slot.0 as usize].ready);
            let met = if ready { Met::Ready } else { Met::Missing };
            let first = accesses.record(&chunk.key, slot, chunk.end_token, met);
            let tier = View { entries: &self.entries, job: Some(job.id) };
            self.policy.on_request_access(&mut accesses.recency, first.as_slice(), &tier);
            if slot.is_some() {
                open.relies_on.push(chunk.key);
                continue;
            }
            if accesses.first_miss(&chunk.key) {
                let (key, end_token) = (chunk.key, chunk.end_token);
                let missing = KeyAccess { key, slot: None, end_token, kind: AccessKind::Inserted };
                self.policy.on_store_miss(&[missing], &tier);
            }
            let mut victims = Vec::new();
            if self.free.is_empty() && !self.policy.evict(1, &tier, &mut victims) {
                open.failed.push(chunk.key);
                continue;
            }
            for victim in victims {
                let key = self.entries[victim.0 as usize].key;
                self.index.remove(&key);
                self.free.push(victim);
                // The worker ends with the tier, so it is there; work goes to it in order.
                let _ = self.work.send(Work::Forget(key));
                push_event(&mut self.events, &self.name, EventKind::Removed, key);
            }
            let slot = self.free.pop().expect("a slot was free or has just been freed");
            let entry = Entry { key: chunk.key, ready: false, reads: 0, named_by: Some(job.id) };
            match self.entries.get_mut(slot.0 as usize) {
                Some(place) => *place = entry,
                // Slots are first taken in order.
                None => self.entries.push(entry),
            }
            self.index.insert(chunk.key, slot);
            let tier = View { entries: &self.entries, job: Some(job.id) };
            self.policy.insert(&mut accesses.recency, slot, &chunk.key, chunk.end_token, &tier);
            accesses.record(&chunk.key, Some(slot), chunk.end_token, Met::Stored);
            open.writes.push(slot);
            copies.push((chunk.key, chunk.slot));
        }
        (open, copies)
    }

    /// Pins the chunks of a read job that are there.
    fn begin_read(
        &mut self,
        job: &TierJob,
        accesses: &mut RequestAccesses,
    ) -> (OpenJob, Vec<(OffloadKey, SlotId)>) {
        let mut open = OpenJob::default();
        let mut copies = Vec::new();
        for chunk in &job.chunks {
            let slot = self.index.get(&chunk.key).copied().filter(|slot| self.entries[slot.0 as usize].ready);
            let Some(slot) = slot else {
                open.failed.push(chunk.key);
                continue;
            };
            self.entries[slot.0 as usize].reads += 1;
            let first = accesses.record(&chunk.key, Some(slot), chunk.end_token, Met::Ready);
            let tier = View { entries: &self.entries, job: None };
            self.policy.on_request_access(&mut accesses.recency, first.as_slice(), &tier);
            open.reads.push(slot);
            copies.push((chunk.key, chunk.slot));
        }
        (open, copies)
    }

    fn commit(&mut self, mut accesses: RequestAccesses) {
        let mut keys = Vec::new();
        accesses.take_into(&KeyPositions::default(), |key, _| self.index.get(key).copied(), &mut keys);
        let tier = View { entries: &self.entries, job: None };
        self.policy.on_request_finished(&mut accesses.recency, &keys, &tier);
    }

    fn end(&mut self, ended: Ended) -> Option<TierCompletion> {
        let mut open = self.open.remove(&ended.id)?;
        let num_copied = (open.reads.len() + open.writes.len()).saturating_sub(ended.failed.len());
        let relied = !open.relies_on.is_empty();
        for slot in open.reads {
            let entry = &mut self.entries[slot.0 as usize];
            entry.reads -= 1;
            if entry.reads == 0 {
                self.policy.on_unpin(slot);
            }
        }
        for slot in open.writes {
            let entry = &mut self.entries[slot.0 as usize];
            if ended.failed.contains(&entry.key) {
                self.index.remove(&entry.key);
                self.free.push(slot);
                self.policy.remove(slot);
            } else {
                entry.ready = true;
                self.policy.on_ready(slot);
                push_event(&mut self.events, &self.name, EventKind::Stored, entry.key);
            }
        }
        open.failed.extend(ended.failed);
        // Jobs end in order, so the writes that this one relied on have ended.
        let is_ready =
            |key: &OffloadKey| self.index.get(key).is_some_and(|slot| self.entries[slot.0 as usize].ready);
        open.failed.extend(open.relies_on.into_iter().filter(|key| !is_ready(key)));
        let completion = TierCompletion::except(ended.id, open.failed);
        Some(if relied { completion.with_copied(num_copied) } else { completion })
    }
}

impl<P: CachePolicy> SecondaryTier for MemoryTier<P> {
    fn name(&self) -> &str {
        &self.name
    }

    fn medium(&self) -> Medium {
        Medium::Memory
    }

    /// A prefix that every request finds in the primary would be the oldest here, and go before the tails behind it, if this
    /// tier were not told of it.
    fn on_new_request(&mut self, req: &RequestContext) -> OffloadPolicy {
        self.requests.insert(req.id(), RequestAccesses::default());
        OffloadPolicy::RequestLevel
    }

    fn lookup(&mut self, _req: RequestId, key: &OffloadKey) -> TierLookup {
        // The index is in memory, so the answer is there at once; a tier that has to ask someone answers `Retry`.
        match self.index.get(key) {
            Some(slot) if self.entries[slot.0 as usize].ready => TierLookup::Hit,
            _ => TierLookup::Miss,
        }
    }

    fn submit(&mut self, job: TierJob) -> Result<(), JobRejected> {
        // A read may come after the request has finished: then it is an access of its own.
        let known = self.requests.remove(&job.req);
        let is_known = known.is_some();
        let mut accesses = known.unwrap_or_default();
        let (open, copies) = match job.direction {
            TierDirection::Write => self.begin_write(&job, &mut accesses),
            TierDirection::Read => self.begin_read(&job, &mut accesses),
        };
        if is_known {
            self.requests.insert(job.req, accesses);
        } else {
            self.commit(accesses);
        }
        // A job without copies goes to the worker too: it is reported after the writes that it relies on.
        let work = Work::Job { id: job.id, direction: job.direction, chunks: copies };
        self.open.insert(job.id, open);
        if self.work.send(work).is_err() {
            // Nobody will ever copy: take everything back and say so.
            let all = job.chunks.iter().map(|chunk| chunk.key).collect();
            self.end(Ended { id: job.id, failed: all });
            return Err(JobRejected { job, reason: RejectReason::Unavailable });
        }
        Ok(())
    }

    fn poll(&mut self, done: &mut Vec<TierCompletion>) {
        loop {
            match self.results.try_recv() {
                Ok(ended) => done.extend(self.end(ended)),
                Err(TryRecvError::Empty) => return,
                Err(TryRecvError::Disconnected) => break,
            }
        }
        if std::mem::replace(&mut self.is_lost, true) {
            return;
        }
        // The worker is gone, and every byte with it.
        let mut open: Vec<JobId> = self.open.drain().map(|(id, _)| id).collect();
        open.sort_unstable();
        done.extend(open.into_iter().map(TierCompletion::failed));
        let mut index: Vec<_> = self.index.drain().collect();
        index.sort_unstable();
        for (key, slot) in index {
            if self.entries[slot.0 as usize].ready {
                push_event(&mut self.events, &self.name, EventKind::Removed, key);
            }
            self.free.push(slot);
        }
        self.policy.clear();
        self.requests.values_mut().for_each(|accesses| *accesses = RequestAccesses::default());
    }

    fn on_request_finished(&mut self, req: RequestId) {
        if let Some(accesses) = self.requests.remove(&req) {
            self.commit(accesses);
        }
    }

    fn take_events(&mut self, events: &mut Vec<OffloadEvent>) {
        events.append(&mut self.events);
    }
}

impl<M: HostMemory + ?Sized> MemoryTierWorker<M> {
    /// Does the work that is queued now; returns how many jobs it ended.
    pub fn run_queued(&mut self) -> usize {
        let mut ended = 0;
        while let Ok(work) = self.work.try_recv() {
            ended += usize::from(self.run(work));
        }
        ended
    }

    /// Does work until the tier is dropped. For a thread of the owner's.
    pub fn run_until_closed(mut self) {
        while let Ok(work) = self.work.recv() {
            self.run(work);
        }
    }

    fn run(&mut self, work: Work) -> bool {
        match work {
            Work::Forget(key) => {
                self.bytes.remove(&key);
                false
            }
            Work::Job { id, direction, chunks } => {
                let failed = chunks
                    .into_iter()
                    .filter(|(key, slot)| !self.copy(direction, *key, *slot))
                    .map(|(key, _)| key)
                    .collect();
                // A tier that is gone wants no results.
                self.results.send(Ended { id, failed }).is_ok()
            }
        }
    }

    fn copy(&mut self, direction: TierDirection, key: OffloadKey, slot: SlotId) -> bool {
        match direction {
            TierDirection::Write => {
                let mut copy = None;
                let read = self.memory.with_read(slot, &mut |bytes| copy = Some(bytes.into()));
                read.is_ok() && copy.map(|bytes| self.bytes.insert(key, bytes)).is_some()
            }
            TierDirection::Read => match self.bytes.get(&key) {
                Some(stored) => {
                    self.memory.with_write(slot, &mut |bytes| bytes.copy_from_slice(stored)).is_ok()
                }
                None => false,
            },
        }
    }
}

/// Appends to the last event if it is of the same kind, so that a job is few events.
fn push_event(events: &mut Vec<OffloadEvent>, tier: &Arc<str>, kind: EventKind, key: OffloadKey) {
    match events.last_mut() {
        Some(last) if last.kind == kind => last.keys.push(key),
        _ => events.push(OffloadEvent { tier: tier.clone(), medium: Medium::Memory, kind, keys: vec![key] }),
    }
}
