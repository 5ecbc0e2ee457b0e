//! What follows from an event of the engine or the journal, and from a deadline.

use std::io;

use kvo_core::{JobId, ReleasedSlot, TierCompletion, TierDirection};
use kvo_policies::RequestRecency;

use super::{NvmeStore, Probe, Recording, job::Job};
use crate::{
    catalog::Moved,
    engine::{Action, Event, Fault, Op, OpDone},
    format::RecordState,
    health::{Pass, SlotVerdict, Task, Verdict, classify, classify_io},
    journal::Entry,
};

impl NvmeStore {
    /// Hands the planned ops to the engine.
    pub(super) fn send_ops(&mut self) {
        let mut ops = std::mem::take(&mut self.scratch.ops);
        self.inflight_chunks += ops.len();
        for op in ops.drain(..) {
            self.send(op);
        }
        self.scratch.ops = ops;
    }

    fn send(&mut self, op: Op) {
        if let Err(op) = self.engine.submit(op) {
            self.end_op(OpDone { op, result: Err(Fault::Engine("the engine takes nothing any more")) });
        }
    }

    /// Takes in whatever has ended, and gives up what is late.
    pub(super) fn absorb(&mut self) {
        while let Ok(event) = self.events.try_recv() {
            self.take_in(event);
        }
        self.give_up_late();
    }

    pub(super) fn take_in(&mut self, event: Event) {
        match event {
            Event::Moved(done) => self.end_op(done),
            Event::Recorded { slot, generation, result } => self.end_record(slot, generation, result),
            Event::IndexFailed(error) => {
                self.health.on_error(classify_io(Task::Index, &error), Pass::USUAL, self.clock.now());
            }
            Event::JournalLost(error) => {
                tracing::error!(tier = &*self.name, %error, "nothing is recorded any more");
                self.health.on_error(classify_io(Task::Sync, &error), Pass::USUAL, self.clock.now());
            }
        }
    }

    /// The engine has ended with a chunk.
    fn end_op(&mut self, done: OpDone) {
        let OpDone { op, result } = done;
        let pass = self.take_pass(op.job, op.index);
        match (op.action, result) {
            (Action::Read { .. }, result) => {
                self.inflight_chunks -= 1;
                self.inflight_reads -= 1;
                self.end_read(op.slot, &result, pass);
                self.end_chunk(op, result);
            }
            (Action::Write, Ok(checksum)) => {
                self.health.on_success(pass);
                self.put_record(op.slot, checksum);
                if self.durable {
                    self.recording.insert(op.slot, Recording { op: Some(op), checksum });
                } else {
                    self.end_written(op, Ok(checksum));
                }
            }
            (Action::Write, Err(fault)) => {
                let verdict = self.note_fault(Task::Write, &fault, pass);
                if verdict.write_again() && self.write_again(op, verdict.slot) {
                    tracing::debug!(tier = &*self.name, slot = op.slot, %fault, "written again, elsewhere");
                } else {
                    self.end_written(op, Err((fault, verdict.slot)));
                }
            }
        }
    }

    /// The leave that a chunk had, given back.
    fn take_pass(&mut self, job: JobId, index: u32) -> Pass {
        match self.probes.iter().position(|probe| (probe.job, probe.index) == (job, index)) {
            Some(at) => self.probes.swap_remove(at).pass,
            None => Pass::USUAL,
        }
    }

    /// Counts a fault and tells the health of it.
    pub(super) fn note_fault(&mut self, task: Task, fault: &Fault, pass: Pass) -> Verdict {
        match (fault, task) {
            (Fault::Io(_), Task::Read) => self.stats.read_errors += 1,
            (Fault::Io(_), _) => self.stats.write_errors += 1,
            (Fault::Checksum { .. }, _) => self.stats.checksum_failures += 1,
            (Fault::Memory(_) | Fault::Engine(_) | Fault::Ended(_), _) => self.stats.memory_errors += 1,
            // Counted where they arise.
            (Fault::Late | Fault::Record(_), _) => {}
        }
        let verdict = classify(task, fault);
        let before = self.health.state();
        self.health.on_error(verdict, pass, self.clock.now());
        let after = self.health.state();
        if after != before {
            tracing::warn!(tier = &*self.name, ?before, ?after, %fault, "the state of the tier has changed");
        }
        verdict
    }

    /// Tells the journal of a chunk whose bytes are written.
    pub(super) fn put_record(&mut self, slot: u32, checksum: u64) {
        let length = u32::try_from(self.chunk_bytes()).expect("checked when the store was opened");
        let state = RecordState::Chunk(self.catalog.record(slot, length, checksum));
        self.put(Entry { slot, state });
    }

    fn put(&mut self, entry: Entry) {
        self.stats.records += 1;
        self.journal.put(entry);
    }

    /// A record is on stable storage, or will not get there.
    fn end_record(&mut self, slot: u32, generation: u64, result: io::Result<()>) {
        if let Err(error) = &result {
            if self.stats.record_errors == 0 {
                tracing::warn!(tier = &*self.name, %error, "the index cannot be written");
            }
            self.stats.record_errors += 1;
        }
        // In durable mode the slot is still being written, so it can have no other tenant yet.
        let Some(Recording { op, checksum }) = self.recording.remove(&slot) else { return };
        debug_assert!(self.catalog.is_writing(slot, generation), "slot {slot} must wait for its record");
        let result = result.map(|()| checksum);
        if let Some(op) = op {
            self.end_written(op, result.map_err(|error| (Fault::Record(error), SlotVerdict::Kept)));
        } else {
            // Jobs that were offered the chunk after the direct call had given up wait for it.
            let is_there = result.is_ok();
            self.end_write(slot, result.map_err(|_| SlotVerdict::Kept));
            self.end_waiters(slot, is_there);
        }
    }

    /// A chunk of a job is written for good, or is not.
    fn end_written(&mut self, op: Op, result: Result<u64, (Fault, SlotVerdict)>) {
        self.inflight_chunks -= 1;
        self.end_write(op.slot, result.as_ref().map(|sum| *sum).map_err(|(_, verdict)| *verdict));
        let written = result.is_ok();
        self.end_chunk(op, result.map_err(|(fault, _)| fault));
        self.end_waiters(op.slot, written);
    }

    /// Tells the write jobs that wait for a slot whether its chunk is there.
    fn end_waiters(&mut self, slot: u32, is_there: bool) {
        for waiter in self.waiters.remove(&slot).unwrap_or_default() {
            self.open_job(waiter.job).wait_ended(waiter.index, is_there);
            self.report_if_decided(waiter.job);
        }
    }

    /// Begins a write anew in another slot, because the first has failed; says whether that could be.
    fn write_again(&mut self, op: Op, verdict: SlotVerdict) -> bool {
        if !self.open_job(op.job).begin_again(op.index) {
            return false;
        }
        let Self { jobs, catalog, scratch, .. } = self;
        let (req, num_spared) = (jobs[&op.job].req, scratch.sort_out(jobs[&op.job].chunks(), catalog));
        let mut other = RequestRecency::default();
        let recency = self.requests.get_mut(&req).map_or(&mut other, |request| &mut request.accesses.recency);
        let spared = (&self.scratch.keys, num_spared);
        let Some(moved) = self.catalog.move_write(recency, op.slot, verdict, spared) else { return false };
        let Moved { slot, tenant, is_quarantined } = moved;
        self.stats.writes_again += 1;
        if is_quarantined {
            self.put(Entry { slot: op.slot, state: RecordState::Quarantined });
        }
        if let Some(waiters) = self.waiters.remove(&op.slot) {
            self.waiters.insert(slot, waiters);
        }
        self.send(Op { slot, tenant, ..op });
        true
    }

    /// Settles the slot of a write.
    pub(super) fn end_write(&mut self, slot: u32, result: Result<u64, SlotVerdict>) {
        if self.catalog.end_write(slot, result) {
            self.put(Entry { slot, state: RecordState::Quarantined });
        }
    }

    /// Settles the slot of a read, and counts a fault.
    pub(super) fn end_read(&mut self, slot: u32, result: &Result<u64, Fault>, pass: Pass) {
        let verdict = match result {
            Ok(_) => {
                self.health.on_success(pass);
                self.catalog.prove(slot);
                SlotVerdict::Kept
            }
            Err(fault) => self.note_fault(Task::Read, fault, pass).slot,
        };
        if self.catalog.end_read(slot, verdict) {
            self.put(Entry { slot, state: RecordState::Quarantined });
        }
        self.end_waiters(slot, result.is_ok());
    }

    fn end_chunk(&mut self, op: Op, result: Result<u64, Fault>) {
        if self.open_job(op.job).chunk_ended(op.index, result) {
            self.stats.late_ended += 1;
            self.released.push(ReleasedSlot { job: op.job, slot: op.host });
            self.forget_if_ended(op.job);
        } else {
            self.report_if_decided(op.job);
        }
    }

    /// Reports as failed what has not ended in time. Its slots stay taken, here and in the host memory, until the
    /// engine has ended with them.
    fn give_up_late(&mut self) {
        while let Some(&(deadline, id)) = self.deadlines.front() {
            let is_open = |job: &Job| job.deadline == deadline && !job.is_decided();
            if self.jobs.get(&id).is_some_and(is_open) {
                if deadline > self.clock.now() {
                    return;
                }
                self.give_up(id);
            }
            self.deadlines.pop_front();
        }
    }

    /// The same of all that has not ended: nobody waits for it any more.
    pub(super) fn give_up_all(&mut self) {
        let mut open: Vec<JobId> =
            self.jobs.iter().filter(|(_, job)| !job.is_decided()).map(|(id, _)| *id).collect();
        open.sort_unstable();
        for id in open {
            self.give_up(id);
        }
    }

    fn give_up(&mut self, id: JobId) {
        let job = self.open_job(id);
        let task = if job.direction == TierDirection::Read { Task::Read } else { Task::Write };
        let num_late = job.give_up();
        self.stats.late += u64::from(num_late);
        // What tried the device has failed; the others count, as many as there are. Each is one chunk that is late.
        let probes: Vec<Probe> = self.probes.extract_if(.., |probe| probe.job == id).collect();
        for _ in probes.len()..num_late as usize {
            self.note_fault(task, &Fault::Late, Pass::USUAL);
        }
        for probe in probes {
            self.note_fault(task, &Fault::Late, probe.pass);
        }
        tracing::warn!(job = id.0, tier = &*self.name, num_chunks = num_late, "late; given up");
        for waiters in self.waiters.values_mut() {
            waiters.retain(|waiter| waiter.job != id);
        }
        self.waiters.retain(|_, waiters| !waiters.is_empty());
        self.report_if_decided(id);
    }

    fn open_job(&mut self, id: JobId) -> &mut Job {
        self.jobs.get_mut(&id).expect("a job stays until the engine has ended with each of its chunks")
    }

    /// Forgets a job that is reported, once nothing of it is with the engine.
    pub(super) fn forget_if_ended(&mut self, id: JobId) {
        if self.jobs.get(&id).is_some_and(Job::is_over) {
            self.jobs.remove(&id);
        }
    }

    /// Ends the job if its last chunk is decided; it is reported by the next poll.
    pub(super) fn report_if_decided(&mut self, id: JobId) {
        let chunk_bytes = self.worker.geometry.chunk_bytes;
        let job = self.open_job(id);
        if !job.is_decided() {
            return;
        }
        let held = job.take_held();
        let num_chunks = job.num_chunks() as usize;
        let ended = job.end();
        let edge = match ended.direction {
            TierDirection::Write => &mut self.stats.write,
            TierDirection::Read => &mut self.stats.read,
        };
        ended.count(edge, chunk_bytes);
        self.open_jobs -= 1;
        let num_moved = usize::try_from(ended.moved).unwrap_or(usize::MAX);
        let num_arrived = num_chunks.saturating_sub(ended.failed.len());
        let completion = TierCompletion::except(id, ended.failed).with_held(held);
        // The others were there before.
        let are_fewer = num_moved < num_arrived;
        self.completed.push(if are_fewer { completion.with_copied(num_moved) } else { completion });
    }
}
