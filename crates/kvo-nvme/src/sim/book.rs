//! What the store's caller knows: its jobs, its host slots, and what it was told.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use kvo_core::{
    EventKind, JobId, OffloadEvent, OffloadKey, ReleasedSlot, SlotId, TierChunk, TierCompletion,
    TierDirection, TierOutcome,
};

use super::memory::{SimMemory, content, number};
use crate::testing::Transfers;

/// A job that the store has taken and not reported.
#[derive(Clone, Debug)]
pub(super) struct OpenJob {
    pub(super) direction: TierDirection,
    /// When it may be reported with transfers still under way.
    pub(super) deadline: Duration,
    /// How many chunks had been removed before.
    pub(super) since: u64,
    pub(super) chunks: Vec<TierChunk>,
}

/// The caller's books.
#[derive(Default)]
pub(super) struct Book {
    pub(super) jobs: BTreeMap<JobId, OpenJob>,
    pub(super) free_host: Vec<SlotId>,
    /// Slots of jobs that were reported late, which the store still holds.
    pub(super) late: Vec<ReleasedSlot>,
    num_host_slots: u32,
    /// Chunks that are there, as the events tell.
    pub(super) resident: BTreeSet<u64>,
    /// When chunks were last removed, counted in removals.
    removed: BTreeMap<u64, u64>,
    num_removed: u64,
    pub(super) next_job: u64,
    pub(super) versions: u64,
    pub(super) jobs_reported: u64,
    pub(super) chunks_arrived: u64,
}

impl Book {
    pub(super) fn new(num_host_slots: u32) -> Self {
        let free_host = (0..num_host_slots).map(SlotId).collect();
        Self { free_host, num_host_slots, ..Self::default() }
    }

    /// A content that no chunk has had.
    pub(super) fn next_version(&mut self) -> u64 {
        self.versions += 1;
        self.versions
    }

    /// Takes host slots, if there are so many.
    pub(super) fn take_host(&mut self, count: usize) -> Option<Vec<SlotId>> {
        let left = self.free_host.len().checked_sub(count)?;
        Some(self.free_host.split_off(left))
    }

    /// A job is reported: exactly once, with keys of its own, each once; and nothing of it is still under way but what
    /// is late and held.
    pub(super) fn end_job(
        &mut self,
        report: &TierCompletion,
        transfers: &Transfers,
        memory: &SimMemory,
        now: Duration,
    ) {
        let id = report.job;
        let OpenJob { direction, deadline, since, chunks } =
            self.jobs.remove(&id).expect("a job is reported once");
        let failed: &[OffloadKey] = match &report.outcome {
            TierOutcome::Done => &[],
            TierOutcome::Partial { failed } => failed,
            TierOutcome::Failed => panic!("each key has a result of its own: {report:?}"),
        };
        let keys: BTreeSet<&OffloadKey> = failed.iter().collect();
        assert_eq!(keys.len(), failed.len(), "a key failed twice: {report:?}");
        let is_of_job = |key: &OffloadKey| chunks.iter().any(|chunk| chunk.key == *key);
        assert!(failed.iter().all(is_of_job), "{report:?}: {chunks:?}");
        for chunk in chunks.iter().filter(|chunk| !keys.contains(&chunk.key)) {
            assert!(!report.held.contains(&chunk.slot), "{chunk:?} is held and has not failed");
            match direction {
                TierDirection::Read => self.check_arrived(chunk, memory),
                TierDirection::Write => self.check_written(number(&chunk.key), since),
            }
        }
        let mut hosts: BTreeSet<SlotId> = chunks.iter().map(|chunk| chunk.slot).collect();
        assert!(report.held.is_empty() || deadline <= now, "held before the deadline: {report:?}");
        for slot in &report.held {
            assert!(hosts.remove(slot), "held twice, or not of the job: {report:?}");
            self.late.push(ReleasedSlot { job: id, slot: *slot });
        }
        for pending in transfers.pending.iter().filter(|pending| pending.op.job == id) {
            assert!(report.held.contains(&pending.op.host), "{report:?}, while {pending:?} has not ended");
        }
        self.free_host.extend(hosts);
        self.jobs_reported += 1;
    }

    /// A slot that was held is let go: once, and when its transfer has ended.
    pub(super) fn release(&mut self, released: ReleasedSlot, transfers: &Transfers) {
        let place = self.late.iter().position(|late| *late == released);
        self.late.swap_remove(place.unwrap_or_else(|| panic!("{released:?} was not held")));
        let ReleasedSlot { job, slot } = released;
        let user = transfers.pending.iter().find(|pending| (pending.op.job, pending.op.host) == (job, slot));
        assert!(user.is_none(), "{released:?}, and {user:?} has not ended");
        self.free_host.push(slot);
    }

    /// A chunk that a job has written is there, or was while the job was open.
    fn check_written(&self, n: u64, since: u64) {
        let was_there = self.removed.get(&n).is_some_and(|&removed| removed > since);
        assert!(was_there || self.resident.contains(&n), "chunk {n} is called written, and was never there");
    }

    /// Chunks removed so far.
    pub(super) fn num_removed(&self) -> u64 {
        self.num_removed
    }

    fn check_arrived(&mut self, chunk: &TierChunk, memory: &SimMemory) {
        let TierChunk { key, slot, .. } = *chunk;
        let (n, version) = memory.label(slot).unwrap_or_else(|| panic!("nothing was read into {chunk:?}"));
        assert_eq!(n, number(&key), "another chunk came than {chunk:?}");
        assert!(
            memory.holds(slot, &content(n, version, memory.chunk_bytes())),
            "{chunk:?} has changed since"
        );
        self.chunks_arrived += 1;
    }

    /// The store has ended with all of its jobs, and another begins with these chunks.
    pub(super) fn begin_anew(&mut self, resident: impl Iterator<Item = u64>) {
        self.jobs.clear();
        self.late.clear();
        self.free_host = (0..self.num_host_slots).map(SlotId).collect();
        self.resident = resident.collect();
    }

    /// Takes in events, each of which must fit those before.
    pub(super) fn replay(&mut self, events: Vec<OffloadEvent>) {
        for OffloadEvent { kind, keys, .. } in events {
            assert!(!keys.is_empty(), "an event of nothing");
            for n in keys.iter().map(number) {
                if kind == EventKind::Stored {
                    assert!(self.resident.insert(n), "chunk {n} was stored twice");
                    continue;
                }
                assert!(self.resident.remove(&n), "chunk {n} was removed twice");
                self.num_removed += 1;
                self.removed.insert(n, self.num_removed);
            }
        }
    }
}
