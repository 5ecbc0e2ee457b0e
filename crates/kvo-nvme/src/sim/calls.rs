//! What a caller asks of the store, and what it looks at when the answer comes.

use kvo_core::{
    Clock, JobId, RejectReason, RequestId, SecondaryTier, SlotId, TierChunk, TierDirection, TierJob,
};

use super::{
    Sim,
    book::OpenJob,
    memory::{content, key},
};
use crate::{
    ChunkError, TierState,
    slots::Tenant,
    testing::{Plan, lock},
};

impl Sim {
    pub(super) fn submit(&mut self, req: u64, direction: TierDirection, ns: &[u64], positions: bool) {
        let Some(hosts) = self.book.take_host(ns.len()) else { return };
        let mut chunks: Vec<TierChunk> = Vec::with_capacity(ns.len());
        for (n, slot) in ns.iter().zip(&hosts) {
            let end_token = positions.then(|| u32::try_from(n * 16 + 16).expect("small"));
            // A write names a chunk twice with the same slot.
            let earlier = chunks.iter().find(|chunk| chunk.key == key(*n)).map(|chunk| chunk.slot);
            let slot = match (direction, earlier) {
                (TierDirection::Write, Some(earlier)) => earlier,
                (TierDirection::Write, None) => {
                    self.memory.fill(*slot, *n, self.book.next_version());
                    *slot
                }
                (TierDirection::Read, _) => {
                    self.memory.clear(*slot);
                    *slot
                }
            };
            chunks.push(TierChunk { key: key(*n), slot, end_token });
        }
        self.book.next_job += 1;
        let id = JobId(self.book.next_job);
        let since = self.book.num_removed();
        let job = TierJob { id, req: RequestId(req), direction, chunks: chunks.clone() };
        match self.store.submit(job.clone()) {
            Ok(()) => {
                let used = |slot: &SlotId| chunks.iter().any(|chunk| chunk.slot == *slot);
                self.book.free_host.extend(hosts.iter().filter(|slot| !used(slot)));
                let deadline = self.clock.now() + self.options.deadline;
                self.book.jobs.insert(id, OpenJob { direction, deadline, since, chunks });
            }
            Err(rejected) => {
                assert_eq!(rejected.job, job, "a job is handed back as it was");
                let is_shut = self.store.state() != TierState::Up;
                assert!(rejected.reason == RejectReason::Busy || is_shut, "{}", rejected.reason);
                self.book.free_host.extend(hosts);
            }
        }
    }

    pub(super) fn write_directly(&mut self, n: u64) {
        let version = self.book.next_version();
        self.plan_directly(true);
        // The store waits for the record, and there is nobody else to write it.
        lock(&self.records).at_once = self.options.durable;
        lock(&self.records).last = None;
        let result = self.store.write_chunk(key(n), &content(n, version, self.memory.chunk_bytes()));
        lock(&self.records).at_once = false;
        lock(&self.disk).set_plan(Plan::good());
        let record = lock(&self.records).last.take();
        let mut transfers = lock(&self.transfers);
        // Or it is the record of a job's write that has ended meanwhile.
        let written = record.map(|record| (record.key, record.generation));
        let written = written.filter(|write| write.0 == key(n) && !transfers.versions.contains_key(write));
        if let Some(write) = written {
            transfers.versions.insert(write, version);
        }
        match result {
            Ok(()) => transfers.tally.written += u64::from(written.is_some()),
            // A record that failed is counted elsewhere.
            Err(ChunkError::Write(_)) => transfers.tally.failed_writes += u64::from(written.is_none()),
            Err(ChunkError::Pending | ChunkError::NoRoom | ChunkError::Refused) => {}
            Err(error) => panic!("{error}"),
        }
    }

    pub(super) fn read_directly(&mut self, n: u64) {
        let mut bytes = vec![0xee; self.memory.chunk_bytes()];
        let misses = self.store.stats().read_misses;
        self.plan_directly(false);
        let hit = self.store.read_chunk(&key(n), &mut bytes).expect("the length is right");
        lock(&self.disk).set_plan(Plan::good());
        if hit {
            let (_, Tenant { key, generation }) = self.place(n).expect("what was read is there");
            let version = lock(&self.transfers).versions[&(key, generation)];
            assert!(bytes == content(n, version, bytes.len()), "chunk {n} has other bytes");
        }
        let missed = self.store.stats().read_misses > misses;
        let tally = &mut lock(&self.transfers).tally;
        tally.read += u64::from(hit);
        tally.failed_reads += u64::from(!hit && !missed);
    }

    fn plan_directly(&mut self, is_write: bool) {
        let mut disk = lock(&self.disk);
        let plan = disk.draw_plan(is_write);
        disk.set_plan(plan);
    }

    pub(super) fn poll(&mut self) {
        let mut done = Vec::new();
        self.store.poll(&mut done);
        self.take_events();
        let transfers = lock(&self.transfers);
        for report in &done {
            self.book.end_job(report, &transfers, &self.memory, self.clock.now());
        }
        let mut released = Vec::new();
        self.store.take_released(&mut released);
        for slot in released {
            self.book.release(slot, &transfers);
        }
    }

    /// Begins or ends one of the transfers.
    pub(super) fn work(&mut self, place: usize, running: bool) {
        let mut transfers = lock(&self.transfers);
        let count = transfers.ready(running).count();
        if count == 0 {
            return;
        }
        let place = transfers.ready(running).nth(place % count).expect("below the count");
        if running { transfers.end(place) } else { transfers.begin(place) }
    }
}
