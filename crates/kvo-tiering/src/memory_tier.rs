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

use hashbrown::{HashMap, HashSet};
use kvo_core::{
    EventKind, HostMemory, JobId, JobRejected, Medium, OffloadEvent, OffloadKey, OffloadPolicy, RejectReason,
    RequestContext, RequestId, SecondaryTier, SlotId, TierCompletion, TierDirection, TierJob, TierLookup,
};
use kvo_policies::{CachePolicy, Met, RequestAccesses};

use crate::TieringConfigError;

/// Keeps up to a fixed number of chunks in memory of its own.
///
/// A chunk can be found once its write has ended. A write of a chunk that is there already, or on its way, copies
/// nothing again, and ends as that write does; where room runs out, the chunks nearest the head of the job are kept and the others reported as
/// failed. The work of jobs is done in the order in which they were submitted.
#[derive(Debug)]
pub struct MemoryTier<P> {
    name: Arc<str>,
    capacity_chunks: usize,
    policy: P,
    entries: HashMap<OffloadKey, Entry>,
    requests: HashMap<RequestId, RequestAccesses>,
    open: HashMap<JobId, OpenJob>,
    events: Vec<OffloadEvent>,
    work: Sender<Work>,
    results: Receiver<Ended>,
}

/// A chunk that the tier has or is getting.
#[derive(Clone, Copy, Debug, Default)]
struct Entry {
    ready: bool,
    /// Reads of it that are open.
    reads: u32,
}

#[derive(Debug, Default)]
struct OpenJob {
    /// Chunks that this job brings.
    writes: Vec<OffloadKey>,
    /// Chunks that this job reads.
    reads: Vec<OffloadKey>,
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
    /// [`TieringConfigError::Zero`] for a capacity of 0.
    pub fn new<M: HostMemory + ?Sized>(
        name: &str,
        capacity_chunks: u32,
        policy: P,
        memory: Arc<M>,
    ) -> Result<(Self, MemoryTierWorker<M>), TieringConfigError> {
        if capacity_chunks == 0 {
            return Err(TieringConfigError::Zero { field: "capacity_chunks" });
        }
        let (work, work_receiver) = channel();
        let (results_sender, results) = channel();
        let tier = Self {
            name: name.into(),
            capacity_chunks: capacity_chunks as usize,
            policy,
            entries: HashMap::new(),
            requests: HashMap::new(),
            open: HashMap::new(),
            events: Vec::new(),
            work,
            results,
        };
        let worker =
            MemoryTierWorker { bytes: HashMap::new(), work: work_receiver, results: results_sender, memory };
        Ok((tier, worker))
    }

    /// Chunks that can be found.
    pub fn num_ready(&self) -> usize {
        self.entries.values().filter(|entry| entry.ready).count()
    }

    /// Decides which chunks of a write job to copy, and makes room for them.
    fn begin_write(
        &mut self,
        job: &TierJob,
        accesses: &mut RequestAccesses,
    ) -> (OpenJob, Vec<(OffloadKey, SlotId)>) {
        let named: HashSet<OffloadKey> = job.chunks.iter().map(|chunk| chunk.key).collect();
        let mut open = OpenJob::default();
        let mut copies = Vec::new();
        for chunk in &job.chunks {
            let known = self.entries.get(&chunk.key);
            let met = if known.is_some_and(|entry| entry.ready) { Met::Ready } else { Met::Missing };
            let first = accesses.record(&chunk.key, chunk.end_token, met);
            self.policy.on_request_access(&mut accesses.recency, first.as_slice());
            if known.is_some() {
                open.relies_on.push(chunk.key);
                continue;
            }
            if accesses.first_miss(&chunk.key) {
                self.policy.on_store_miss(&[chunk.key]);
            }
            if self.entries.len() >= self.capacity_chunks {
                let entries = &self.entries;
                let mut victims = Vec::new();
                let mut may_evict = |key: &OffloadKey| {
                    !named.contains(key)
                        && entries.get(key).is_some_and(|entry| entry.ready && entry.reads == 0)
                };
                if !self.policy.evict(1, &mut may_evict, &mut victims) {
                    open.failed.push(chunk.key);
                    continue;
                }
                for victim in victims {
                    self.entries.remove(&victim);
                    // The worker ends with the tier, so it is there; work goes to it in order.
                    let _ = self.work.send(Work::Forget(victim));
                    push_event(&mut self.events, &self.name, EventKind::Removed, victim);
                }
            }
            self.policy.insert(&mut accesses.recency, chunk.key, chunk.end_token);
            accesses.record(&chunk.key, chunk.end_token, Met::Stored);
            self.entries.insert(chunk.key, Entry::default());
            open.writes.push(chunk.key);
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
            let Some(entry) = self.entries.get_mut(&chunk.key).filter(|entry| entry.ready) else {
                open.failed.push(chunk.key);
                continue;
            };
            entry.reads += 1;
            if entry.reads == 1 {
                self.policy.on_pin(&chunk.key);
            }
            let first = accesses.record(&chunk.key, chunk.end_token, Met::Ready);
            self.policy.on_request_access(&mut accesses.recency, first.as_slice());
            open.reads.push(chunk.key);
            copies.push((chunk.key, chunk.slot));
        }
        (open, copies)
    }

    fn end(&mut self, ended: Ended) -> Option<TierCompletion> {
        let mut open = self.open.remove(&ended.id)?;
        for key in open.reads {
            if let Some(entry) = self.entries.get_mut(&key) {
                entry.reads -= 1;
                if entry.reads == 0 {
                    self.policy.on_unpin(&key);
                }
            }
        }
        for key in open.writes {
            if ended.failed.contains(&key) {
                self.entries.remove(&key);
                self.policy.remove(&key);
            } else {
                self.entries.entry(key).or_default().ready = true;
                self.policy.on_ready(&key);
                push_event(&mut self.events, &self.name, EventKind::Stored, key);
            }
        }
        open.failed.extend(ended.failed);
        // Jobs end in order, so the writes that this one relied on have ended.
        open.failed.extend(
            open.relies_on.into_iter().filter(|key| !self.entries.get(key).is_some_and(|entry| entry.ready)),
        );
        Some(TierCompletion::except(ended.id, open.failed))
    }
}

impl<P: CachePolicy> SecondaryTier for MemoryTier<P> {
    fn name(&self) -> &str {
        &self.name
    }

    fn medium(&self) -> Medium {
        Medium::Memory
    }

    fn on_new_request(&mut self, req: &RequestContext) -> OffloadPolicy {
        self.requests.insert(req.id(), RequestAccesses::default());
        OffloadPolicy::ChunkLevel
    }

    fn lookup(&mut self, _req: RequestId, key: &OffloadKey) -> TierLookup {
        // The index is in memory, so the answer is there at once; a tier that has to ask someone answers `Retry`.
        match self.entries.get(key) {
            Some(entry) if entry.ready => TierLookup::Hit,
            _ => TierLookup::Miss,
        }
    }

    fn submit(&mut self, job: TierJob) -> Result<(), JobRejected> {
        // A read may come after the request has finished, and is then no access of anyone.
        let known = self.requests.remove(&job.req);
        let is_known = known.is_some();
        let mut accesses = known.unwrap_or_default();
        let (open, copies) = match job.direction {
            TierDirection::Write => self.begin_write(&job, &mut accesses),
            TierDirection::Read => self.begin_read(&job, &mut accesses),
        };
        if is_known {
            self.requests.insert(job.req, accesses);
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
        // The worker is gone, and every byte with it.
        done.extend(self.open.drain().map(|(id, _)| TierCompletion::failed(id)));
        for (key, entry) in self.entries.drain() {
            if entry.ready {
                push_event(&mut self.events, &self.name, EventKind::Removed, key);
            }
        }
        self.policy.clear();
        self.requests.values_mut().for_each(|accesses| *accesses = RequestAccesses::default());
    }

    fn on_request_finished(&mut self, req: RequestId) {
        if let Some(mut accesses) = self.requests.remove(&req) {
            let mut keys = Vec::new();
            accesses.take_into(|_| None, &mut keys);
            self.policy.on_request_finished(&keys);
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
