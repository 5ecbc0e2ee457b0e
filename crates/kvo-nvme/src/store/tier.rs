//! The store as a secondary tier.

use std::{error::Error, time::Duration};

use kvo_core::{
    JobRejected, Medium, OffloadEvent, OffloadKey, OffloadPolicy, ReleasedSlot, RequestContext, RequestId,
    SecondaryTier, TierCompletion, TierDirection, TierJob, TierLookup,
};

use super::{Life, NvmeStore, job::Job};
use crate::{catalog::Residence, health::Direction};

impl SecondaryTier for NvmeStore {
    fn name(&self) -> &str {
        &self.name
    }

    fn medium(&self) -> Medium {
        Medium::Ssd
    }

    /// Starts to record the accesses of the request, which is to offer the chunks too that are in the primary already. What
    /// is there is not written again; but a prefix that every request finds above would else be the oldest here, and go
    /// before the tails behind it. A request that is announced again goes on as it was.
    fn on_new_request(&mut self, req: &RequestContext) -> OffloadPolicy {
        if !self.requests.contains_key(&req.id()) {
            let request = self.new_request();
            self.requests.insert(req.id(), request);
        }
        OffloadPolicy::RequestLevel
    }

    /// Answers from memory, at once: a chunk that is still being written is a miss, and so is every chunk while the
    /// device is not to be read.
    fn lookup(&mut self, _req: RequestId, key: &OffloadKey) -> TierLookup {
        let is_there =
            self.life == Life::Open && matches!(self.catalog.residence(key), Residence::Valid { .. });
        if is_there && (self.health.is_up() || self.health.may(Direction::Read, self.clock.now())) {
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
    /// [`Busy`](kvo_core::RejectReason::Busy) if the queue has no room for the job's chunks now,
    /// [`ReadOnly`](kvo_core::RejectReason::ReadOnly) for a write while nothing can be written,
    /// [`Unavailable`](kvo_core::RejectReason::Unavailable) while the device has failed too often,
    /// [`Invalid`](kvo_core::RejectReason::Invalid) if the job is empty, or has more chunks than 32 bits count; if it has
    /// the number of a job that is not reported yet, or of a late one of which the device still has a chunk; if it names a
    /// slot that the host memory does not have, or reads two chunks into one slot. Also of a store that was shut down, an
    /// invalid job is that and not unavailable. Then nothing of the job was begun.
    fn submit(&mut self, job: TierJob) -> Result<(), JobRejected> {
        // What has ended meanwhile has room and pins to give back.
        self.absorb();
        if let Err(reason) = self.check(&job) {
            self.stats.jobs_rejected += 1;
            tracing::debug!(job = job.id.0, tier = &*self.name, %reason, "rejected");
            return Err(JobRejected { job, reason });
        }
        let (id, req) = (job.id, job.req);
        let deadline = self.clock.now().saturating_add(self.deadline);
        let mut job = Job::new(job, &self.name, self.worker.geometry.chunk_bytes, deadline);
        let announced = self.requests.remove(&req);
        let is_announced = announced.is_some();
        let mut request = announced.unwrap_or_else(|| self.new_request());
        match job.direction {
            TierDirection::Write => self.plan_write(id, &mut job, &mut request),
            TierDirection::Read => self.plan_read(id, &mut job, &mut request.accesses),
        }
        if is_announced {
            self.requests.insert(req, request);
        } else {
            self.finish_at_gate(req);
            self.catalog.finish(&mut request.accesses, &mut self.scratch.accesses);
        }
        let nothing_to_do = job.is_decided();
        self.jobs.insert(id, job);
        self.open_jobs += 1;
        if nothing_to_do {
            self.report_if_decided(id);
        } else {
            self.deadlines.push_back((deadline, id));
            self.send_ops();
        }
        Ok(())
    }

    fn poll(&mut self, done: &mut Vec<TierCompletion>) {
        self.absorb();
        let first = done.len();
        done.append(&mut self.completed);
        for completion in &done[first..] {
            if let Some(job) = self.jobs.get_mut(&completion.job) {
                job.reported();
            }
            self.forget_if_ended(completion.job);
        }
    }

    fn take_released(&mut self, released: &mut Vec<ReleasedSlot>) {
        released.append(&mut self.released);
    }

    /// Commits what the request read and wrote here as one access. Its jobs may still be running. A request that was
    /// never announced, or is finished already, is no error and changes nothing.
    fn on_request_finished(&mut self, req: RequestId) {
        let request = self.requests.remove(&req);
        // The order of a store that has ended is written down, and its policy knows no chunk any more.
        if let Some(mut request) = request.filter(|_| self.life == Life::Open) {
            self.finish_at_gate(req);
            self.catalog.finish(&mut request.accesses, &mut self.scratch.accesses);
        }
    }

    fn take_events(&mut self, events: &mut Vec<OffloadEvent>) {
        self.catalog.take_events(events);
    }

    /// As [`close`](Self::close), of a store that is below a manager: [`CloseError`](crate::CloseError) says what it could
    /// not end. What went wrong with the index is said once.
    fn shut_down(&mut self, timeout: Duration) -> Result<(), Box<dyn Error + Send + Sync>> {
        Ok(self.end(timeout)?)
    }
}

impl NvmeStore {
    fn finish_at_gate(&mut self, req: RequestId) {
        if let Some(gate) = &mut self.gate {
            gate.finish(req);
        }
    }
}
