//! What a job is to do: decided chunk by chunk when it is submitted.

use kvo_core::{JobId, OffloadKey, RejectReason, SlotId, TierChunk, TierDirection, TierJob};
use kvo_policies::{AccessKind, KeyAccess, Met, RequestAccesses};

use super::{
    Life, NvmeStore, Probe, Request, Scratch,
    job::{Job, Waiter},
};
use crate::{
    catalog::{Catalog, Origin, Residence},
    engine::{Action, Op},
    health::Direction,
};

impl NvmeStore {
    /// Whether the job can be taken. Changes nothing but scratch room.
    pub(super) fn check(&mut self, job: &TierJob) -> Result<(), RejectReason> {
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
        if self.life != Life::Open {
            return Err(RejectReason::Unavailable);
        }
        let now = self.clock.now();
        if !self.health.may(direction_of(job), now) {
            let read_only = job.direction == TierDirection::Write && self.health.may(Direction::Read, now);
            return Err(if read_only { RejectReason::ReadOnly } else { RejectReason::Unavailable });
        }
        let after = self.inflight_chunks.saturating_add(job.chunks.len());
        if self.inflight_chunks > 0 && after > self.queue_chunks_max {
            return Err(RejectReason::Busy);
        }
        Ok(())
    }

    /// Decides for each chunk of a write job whether it is there, on its way, to be written, or without room.
    pub(super) fn plan_write(&mut self, id: JobId, job: &mut Job, request: &mut Request) {
        let Request { accesses, run } = request;
        let run = *run;
        let num_spared = self.scratch.sort_out(job.chunks(), &self.catalog);
        self.record_write(job, accesses);
        let absent_indices = std::mem::take(&mut self.scratch.absent);
        let (admitted, unadmitted) = absent_indices.split_at(self.admitted(job, &absent_indices));
        // If the device has failed, only the one that tries it is moved.
        let wanted_max = if self.health.is_up() { u32::MAX } else { 1 };
        let wanted = u32::try_from(admitted.len()).unwrap_or(u32::MAX).min(wanted_max);
        let to_write = &admitted[..wanted as usize];
        // What is unproven is spared too: it goes when its own turn to be written comes, and leaves the room for that.
        let has_unproven = self.scratch.has_unproven;
        let is_unproven =
            |catalog: &Catalog, key: &OffloadKey| has_unproven && catalog.residence(key) != Residence::Absent;
        let num_unproven =
            to_write.iter().filter(|&&index| is_unproven(&self.catalog, &job.chunk(index).key)).count();
        let num_absent = u32::try_from(to_write.len() - num_unproven).expect("no more than wanted");
        let mut left = self.catalog.make_room(num_absent, &self.scratch.keys, num_spared);
        let mut to_write = to_write.iter().copied().peekable();
        let mut num_begun = 0;
        let mut is_full = false;
        for index in 0..job.num_chunks() {
            let chunk = job.chunk(index);
            let is_wanted = to_write.next_if_eq(&index).is_some();
            let is_anew = is_wanted && is_unproven(&self.catalog, &chunk.key);
            let needed = u32::from(is_wanted && !is_anew);
            // Nothing is written behind the first that has no room.
            is_full |= left < needed;
            if is_wanted && !is_full && self.may_move(Direction::Write, id, index) {
                if is_anew {
                    self.catalog.evict_unproven(&chunk.key);
                }
                left -= needed;
                num_begun += 1;
                let origin = Origin { run, end_token: chunk.end_token };
                let (slot, tenant) = self
                    .catalog
                    .begin_write(&mut accesses.recency, chunk.key, origin)
                    .expect("room was made");
                accesses.record(&chunk.key, Some(SlotId(slot)), chunk.end_token, Met::Stored);
                job.begin(index);
                let host = chunk.slot;
                self.scratch.ops.push(Op { job: id, index, host, slot, tenant, action: Action::Write });
                continue;
            }
            match self.catalog.residence(&chunk.key) {
                Residence::Valid { slot, .. } if !self.catalog.is_unproven(slot) => {
                    self.stats.chunks_present += 1;
                }
                // Its write, or the first read since a kill, tells whether it is there.
                Residence::Writing(slot) | Residence::Valid { slot, evictable: false } => {
                    self.stats.chunks_present += 1;
                    job.wait(index);
                    self.waiters.entry(slot).or_default().push(Waiter { job: id, index });
                }
                // One that is there is not lost by this; only nobody can say that it is whole.
                Residence::Absent | Residence::Valid { .. } => {
                    let is_unadmitted = unadmitted.binary_search(&index).is_ok();
                    self.stats.chunks_unadmitted += u64::from(is_unadmitted);
                    self.stats.chunks_refused += u64::from(!is_unadmitted);
                    job.fail_at_once(index);
                }
            }
        }
        if let Some(gate) = &mut self.gate {
            gate.give_back(job.req, &self.scratch.offered[num_begun..admitted.len()]);
        }
        self.scratch.absent = absent_indices;
    }

    /// How many of the absent chunks of a job are let in: so many from the head on.
    fn admitted(&mut self, job: &Job, absent: &[u32]) -> usize {
        let Some(gate) = &mut self.gate else { return absent.len() };
        let offered = &mut self.scratch.offered;
        offered.clear();
        offered.extend(absent.iter().map(|&index| job.chunk(index).key));
        let reads_at_once = self.reads_inflight_max.saturating_mul(self.worker.geometry.num_devices as usize);
        let reads_wait = self.inflight_reads > reads_at_once;
        let is_there = |key: &OffloadKey| self.catalog.residence(key) != Residence::Absent;
        gate.admit(job.req, offered, self.clock.now(), reads_wait, is_there)
    }

    /// Whether a chunk may go to the device, as that has fared. If the chunk is the one that tries it, this is noted.
    fn may_move(&mut self, direction: Direction, job: JobId, index: u32) -> bool {
        if self.health.is_up() {
            return true;
        }
        match self.health.allow(direction, self.clock.now()) {
            Ok(pass) if pass.is_probe() => {
                self.probes.push(Probe { job, index, pass });
                true
            }
            Ok(_) => true,
            Err(refusal) => {
                tracing::trace!(job = job.0, index, %refusal, "not moved");
                false
            }
        }
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
    pub(super) fn plan_read(&mut self, id: JobId, job: &mut Job, accesses: &mut RequestAccesses) {
        self.scratch.accesses.clear();
        for index in 0..job.num_chunks() {
            let chunk = job.chunk(index);
            if !matches!(self.catalog.residence(&chunk.key), Residence::Valid { .. }) {
                self.stats.read_misses += 1;
                job.fail_at_once(index);
                continue;
            }
            if !self.may_move(Direction::Read, id, index) {
                self.stats.chunks_refused += 1;
                job.fail_at_once(index);
                continue;
            }
            let pinned = self.catalog.begin_read(&chunk.key).expect("it is readable");
            self.inflight_reads += 1;
            let slot = Some(SlotId(pinned.slot));
            self.scratch.accesses.extend(accesses.record(&chunk.key, slot, chunk.end_token, Met::Ready));
            job.begin(index);
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
}

impl Scratch {
    /// Takes in the keys of a job, none of which may go for another of them, and the places of those that are to be
    /// written: absent, or unproven and read by nobody; each key once. Returns how many of the keys are evictable.
    pub(super) fn sort_out(&mut self, chunks: &[TierChunk], catalog: &Catalog) -> u32 {
        self.keys.clear();
        self.absent.clear();
        self.has_unproven = false;
        let mut num_evictable = 0;
        for (index, chunk) in (0_u32..).zip(chunks) {
            if self.keys.insert(chunk.key) {
                match catalog.residence(&chunk.key) {
                    Residence::Absent => self.absent.push(index),
                    Residence::Valid { slot, evictable } => {
                        num_evictable += u32::from(evictable);
                        if evictable && catalog.is_unproven(slot) {
                            self.absent.push(index);
                            self.has_unproven = true;
                        }
                    }
                    Residence::Writing(_) => {}
                }
            }
        }
        num_evictable
    }
}

fn direction_of(job: &TierJob) -> Direction {
    match job.direction {
        TierDirection::Read => Direction::Read,
        TierDirection::Write => Direction::Write,
    }
}
