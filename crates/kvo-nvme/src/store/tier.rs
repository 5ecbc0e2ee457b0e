//! The store as a secondary tier.

use kvo_core::{
    JobId, JobRejected, Medium, OffloadEvent, OffloadKey, OffloadPolicy, RejectReason, RequestContext,
    RequestId, SecondaryTier, SlotId, TierCompletion, TierDirection, TierJob, TierLookup,
};
use kvo_policies::{AccessKind, KeyAccess, Met, RequestAccesses};

use super::{
    NvmeStore,
    job::{Job, Waiter},
};
use crate::{
    catalog::{ReadEnd, Residence, SlotBroken},
    engine::{Action, Event, Fault, Op, OpDone},
};

impl SecondaryTier for NvmeStore {
    fn name(&self) -> &str {
        &self.name
    }

    fn medium(&self) -> Medium {
        Medium::Ssd
    }

    /// Starts to record the accesses of the request. A request that is announced again goes on as it was.
    fn on_new_request(&mut self, req: &RequestContext) -> OffloadPolicy {
        self.requests.entry(req.id()).or_default();
        OffloadPolicy::ChunkLevel
    }

    /// Answers from memory, at once: a chunk that is still being written is a miss.
    fn lookup(&mut self, _req: RequestId, key: &OffloadKey) -> TierLookup {
        if matches!(self.catalog.residence(key), Residence::Valid { .. }) {
            self.stats.lookup_hits += 1;
            TierLookup::Hit
        } else {
            self.stats.lookup_misses += 1;
            TierLookup::Miss
        }
    }

    /// Starts a job: assigns slots, evicts for a write what the policy says, pins for a read what is there.
    ///
    /// The work of a request that was not announced counts for recency when it is submitted, and is forgotten.
    ///
    /// # Errors
    /// [`Busy`](RejectReason::Busy) if the queue has no room for the job's chunks now,
    /// [`Invalid`](RejectReason::Invalid) if the job is empty, has the number of a job that is not reported yet,
    /// names a slot that the host memory does not have, or reads two chunks into one slot. Then nothing of the job
    /// was begun.
    fn submit(&mut self, job: TierJob) -> Result<(), JobRejected> {
        // What has ended meanwhile has room and pins to give back.
        self.absorb();
        if let Err(reason) = self.admit(&job) {
            self.stats.jobs_rejected += 1;
            tracing::debug!(job = job.id.0, tier = &*self.name, %reason, "rejected");
            return Err(JobRejected { job, reason });
        }
        let (id, req) = (job.id, job.req);
        let mut job = Job::new(job, &self.name, self.worker.geometry.chunk_bytes);
        let announced = self.requests.remove(&req);
        let is_announced = announced.is_some();
        let mut accesses = announced.unwrap_or_default();
        match job.direction {
            TierDirection::Write => self.plan_write(id, &mut job, &mut accesses),
            TierDirection::Read => self.plan_read(id, &mut job, &mut accesses),
        }
        if is_announced {
            self.requests.insert(req, accesses);
        } else {
            self.catalog.finish(&mut accesses, &mut self.scratch.accesses);
        }
        let nothing_to_do = job.is_decided();
        self.jobs.insert(id, job);
        if nothing_to_do {
            self.report_if_decided(id);
        } else {
            self.send_ops();
        }
        Ok(())
    }

    fn poll(&mut self, done: &mut Vec<TierCompletion>) {
        self.absorb();
        for completion in &self.completed {
            self.jobs.remove(&completion.job);
        }
        done.append(&mut self.completed);
    }

    /// Commits what the request read and wrote here as one access. Its jobs may still be running. A request that was
    /// never announced, or is finished already, is no error and changes nothing.
    fn on_request_finished(&mut self, req: RequestId) {
        if let Some(mut accesses) = self.requests.remove(&req) {
            self.catalog.finish(&mut accesses, &mut self.scratch.accesses);
        }
    }

    fn take_events(&mut self, events: &mut Vec<OffloadEvent>) {
        self.catalog.take_events(events);
    }
}

impl NvmeStore {
    /// Whether the job can be taken. Changes nothing but scratch room.
    fn admit(&mut self, job: &TierJob) -> Result<(), RejectReason> {
        let num_slots = self.worker.memory.num_slots();
        if job.chunks.is_empty()
            || u32::try_from(job.chunks.len()).is_err()
            || self.jobs.contains_key(&job.id)
            || job.chunks.iter().any(|chunk| chunk.slot.0 >= num_slots)
        {
            return Err(RejectReason::Invalid);
        }
        if job.direction == TierDirection::Read {
            let slots = &mut self.scratch.slots;
            slots.clear();
            if !job.chunks.iter().all(|chunk| slots.insert(chunk.slot)) {
                return Err(RejectReason::Invalid);
            }
        }
        let after = self.inflight_chunks.saturating_add(job.chunks.len());
        if self.inflight_chunks > 0 && after > self.queue_chunks_max {
            return Err(RejectReason::Busy);
        }
        Ok(())
    }

    /// Decides for each chunk of a write job whether it is there, on its way, to be written, or without room.
    fn plan_write(&mut self, id: JobId, job: &mut Job, accesses: &mut RequestAccesses) {
        let num_spared = self.sort_out(job);
        self.record_write(job, accesses);
        let wanted = u32::try_from(self.scratch.absent.len()).unwrap_or(u32::MAX);
        let room = self.catalog.make_room(wanted, &self.scratch.keys, num_spared);

        let mut absent = self.scratch.absent.iter().copied().peekable();
        let mut left = room;
        for index in 0..job.num_chunks() {
            let chunk = job.chunk(index);
            if absent.next_if_eq(&index).is_some() && left > 0 {
                left -= 1;
                let (slot, tenant) = self
                    .catalog
                    .begin_write(&mut accesses.recency, chunk.key, chunk.end_token)
                    .expect("room was made");
                accesses.record(&chunk.key, Some(SlotId(slot)), chunk.end_token, Met::Stored);
                job.await_one();
                let host = chunk.slot;
                self.scratch.ops.push(Op { job: id, index, host, slot, tenant, action: Action::Write });
                continue;
            }
            match self.catalog.residence(&chunk.key) {
                Residence::Valid { .. } => self.stats.chunks_present += 1,
                Residence::Writing(slot) => {
                    self.stats.chunks_present += 1;
                    job.await_one();
                    self.waiters.entry(slot).or_default().push(Waiter { job: id, index });
                }
                Residence::Absent => {
                    self.stats.chunks_refused += 1;
                    job.fail_at_once(index);
                }
            }
        }
    }

    /// Fills the scratch room with the job's keys and the places of the absent ones, each key once; returns how many
    /// of the keys are evictable.
    fn sort_out(&mut self, job: &Job) -> u32 {
        let scratch = &mut self.scratch;
        scratch.keys.clear();
        scratch.absent.clear();
        let mut num_evictable = 0;
        for (index, chunk) in (0_u32..).zip(job.chunks()) {
            if scratch.keys.insert(chunk.key) {
                match self.catalog.residence(&chunk.key) {
                    Residence::Absent => scratch.absent.push(index),
                    Residence::Valid { evictable, .. } => num_evictable += u32::from(evictable),
                    Residence::Writing(_) => {}
                }
            }
        }
        num_evictable
    }

    /// Records the keys of a write job that are new to its request, and tells the policy of them. Keys that are being
    /// written are no access.
    fn record_write(&mut self, job: &Job, accesses: &mut RequestAccesses) {
        let scratch = &mut self.scratch;
        scratch.accesses.clear();
        scratch.missed.clear();
        for chunk in job.chunks() {
            let (met, slot) = match self.catalog.residence(&chunk.key) {
                Residence::Absent => (Met::Missing, None),
                Residence::Valid { slot, .. } => (Met::Ready, Some(SlotId(slot))),
                Residence::Writing(_) => continue,
            };
            scratch.accesses.extend(accesses.record(&chunk.key, slot, chunk.end_token, met));
            if met == Met::Missing && accesses.first_miss(&chunk.key) {
                let (key, end_token) = (chunk.key, chunk.end_token);
                scratch.missed.push(KeyAccess { key, slot: None, end_token, kind: AccessKind::Inserted });
            }
        }
        self.catalog.on_request_access(&mut accesses.recency, &scratch.accesses);
        self.catalog.on_store_miss(&scratch.missed);
    }

    /// Pins each chunk of a read job that is readable; the others fail at once.
    fn plan_read(&mut self, id: JobId, job: &mut Job, accesses: &mut RequestAccesses) {
        self.scratch.accesses.clear();
        for index in 0..job.num_chunks() {
            let chunk = job.chunk(index);
            let Some(pinned) = self.catalog.begin_read(&chunk.key) else {
                self.stats.read_misses += 1;
                job.fail_at_once(index);
                continue;
            };
            let slot = Some(SlotId(pinned.slot));
            self.scratch.accesses.extend(accesses.record(&chunk.key, slot, chunk.end_token, Met::Ready));
            job.await_one();
            self.scratch.ops.push(Op {
                job: id,
                index,
                host: chunk.slot,
                slot: pinned.slot,
                tenant: pinned.tenant,
                action: Action::Read { checksum: pinned.checksum },
            });
        }
        self.catalog.on_request_access(&mut accesses.recency, &self.scratch.accesses);
    }

    /// Hands the planned ops to the threads.
    fn send_ops(&mut self) {
        let mut ops = std::mem::take(&mut self.scratch.ops);
        self.inflight_chunks += ops.len();
        for op in ops.drain(..) {
            if let Err(op) = self.engine.submit(op) {
                self.end_op(OpDone { op, result: Err(Fault::Engine("no I/O thread is left")) });
            }
        }
        self.scratch.ops = ops;
    }

    /// Takes in whatever the threads have finished.
    pub(super) fn absorb(&mut self) {
        while let Ok(event) = self.events.try_recv() {
            self.take_in(event);
        }
    }

    pub(super) fn take_in(&mut self, event: Event) {
        match event {
            Event::Moved(done) => self.end_op(done),
            Event::Recorded { .. } => {}
        }
    }

    /// One chunk has ended.
    pub(super) fn end_op(&mut self, done: OpDone) {
        let OpDone { op, result } = done;
        self.inflight_chunks -= 1;
        match op.action {
            Action::Write => {
                self.end_write(op.slot, &result);
                let written = result.is_ok();
                self.decide(op, result);
                for waiter in self.waiters.remove(&op.slot).unwrap_or_default() {
                    self.open_job(waiter.job).wait_ended(waiter.index, written);
                    self.report_if_decided(waiter.job);
                }
            }
            Action::Read { .. } => {
                self.end_read(op.slot, &result);
                self.decide(op, result);
            }
        }
    }

    /// Settles the slot of a write, and counts a fault.
    pub(super) fn end_write(&mut self, slot: u32, result: &Result<u64, Fault>) {
        let end = match result {
            Ok(checksum) => Ok(*checksum),
            Err(fault) => {
                match fault {
                    Fault::Io(_) | Fault::Checksum { .. } => self.stats.write_errors += 1,
                    Fault::Memory(_) | Fault::Engine(_) => self.stats.memory_errors += 1,
                }
                Err(SlotBroken(fault.write_breaks_slot()))
            }
        };
        self.catalog.end_write(slot, end);
    }

    /// Settles the slot of a read, and counts a fault.
    pub(super) fn end_read(&mut self, slot: u32, result: &Result<u64, Fault>) {
        let end = match result {
            Ok(_) => ReadEnd::Sound,
            Err(Fault::Checksum { .. }) => {
                self.stats.checksum_failures += 1;
                ReadEnd::Corrupt
            }
            Err(Fault::Io(error)) => {
                self.stats.read_errors += 1;
                // A file that someone has cut is no fault of the disk: the slot can be written again.
                let cut = error.kind() == std::io::ErrorKind::UnexpectedEof;
                if cut { ReadEnd::Corrupt } else { ReadEnd::Broken }
            }
            Err(Fault::Memory(_) | Fault::Engine(_)) => {
                self.stats.memory_errors += 1;
                ReadEnd::Sound
            }
        };
        self.catalog.end_read(slot, end);
    }

    fn decide(&mut self, op: Op, result: Result<u64, Fault>) {
        let job = self.open_job(op.job);
        match result {
            Ok(_) => job.chunk_moved(),
            Err(fault) => job.chunk_failed(op.index, fault),
        }
        self.report_if_decided(op.job);
    }

    fn open_job(&mut self, id: JobId) -> &mut Job {
        self.jobs.get_mut(&id).expect("a job stays until each of its chunks is decided")
    }

    /// Ends the job if its last chunk is decided; it is reported by the next poll.
    fn report_if_decided(&mut self, id: JobId) {
        let chunk_bytes = self.worker.geometry.chunk_bytes;
        let job = self.open_job(id);
        if !job.is_decided() {
            return;
        }
        let ended = job.end();
        let edge = match ended.direction {
            TierDirection::Write => &mut self.stats.write,
            TierDirection::Read => &mut self.stats.read,
        };
        ended.count(edge, chunk_bytes);
        self.completed.push(TierCompletion::except(id, ended.failed));
    }
}
