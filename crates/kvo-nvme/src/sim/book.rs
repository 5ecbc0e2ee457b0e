//! What the store's caller knows: its jobs, its host slots, and what it was told.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use kvo_core::{
    EventKind, JobId, OffloadEvent, OffloadKey, SlotId, TierChunk, TierCompletion, TierDirection, TierOutcome,
};

use super::{
    engine::{Transfers, number},
    memory::{SimMemory, content},
};

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
    /// Slots of jobs that were reported late; they are free when the transfers have ended.
    pub(super) late: Vec<(JobId, SlotId)>,
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

    /// A job is reported: exactly once, with keys of its own, each once; and nothing of it is still under way.
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
        let late = transfers.pending.iter().filter(|pending| pending.op.job == id);
        let late: Vec<(OffloadKey, SlotId)> =
            late.map(|pending| (pending.op.tenant.key, pending.op.host)).collect();
        assert!(late.is_empty() || deadline <= now, "{report:?}, while transfers of {late:?} have not ended");
        let failed: &[OffloadKey] = match &report.outcome {
            TierOutcome::Done => &[],
            TierOutcome::Partial { failed } => failed,
            TierOutcome::Failed => panic!("each key has a result of its own: {report:?}"),
        };
        let keys: BTreeSet<&OffloadKey> = failed.iter().collect();
        assert_eq!(keys.len(), failed.len(), "a key failed twice: {report:?}");
        assert!(late.iter().all(|(key, _)| keys.contains(key)), "{report:?}, and {late:?} have not ended");
        assert!(
            failed.iter().all(|key| chunks.iter().any(|chunk| chunk.key == *key)),
            "{report:?}: {chunks:?}"
        );
        for chunk in chunks.iter().filter(|chunk| !keys.contains(&chunk.key)) {
            match direction {
                TierDirection::Read => self.check_arrived(chunk, memory),
                TierDirection::Write => self.check_written(number(&chunk.key), since),
            }
        }
        let is_late = |slot: &SlotId| late.iter().any(|(_, held)| held == slot);
        let hosts: BTreeSet<SlotId> = chunks.iter().map(|chunk| chunk.slot).collect();
        self.free_host.extend(hosts.iter().filter(|slot| !is_late(slot)));
        self.late.extend(hosts.into_iter().filter(is_late).map(|slot| (id, slot)));
        self.jobs_reported += 1;
    }

    /// Frees the slots of jobs that were reported late, as far as their transfers have ended.
    pub(super) fn release_late(&mut self, transfers: &Transfers) {
        let has_ended = |(id, slot): &mut (JobId, SlotId)| {
            !transfers.pending.iter().any(|pending| (pending.op.job, pending.op.host) == (*id, *slot))
        };
        self.free_host.extend(self.late.extract_if(.., has_ended).map(|(_, slot)| slot));
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
                match kind {
                    EventKind::Stored => assert!(self.resident.insert(n), "chunk {n} was stored twice"),
                    _ => {
                        assert!(self.resident.remove(&n), "chunk {n} was removed twice");
                        self.num_removed += 1;
                        self.removed.insert(n, self.num_removed);
                    }
                }
            }
        }
    }
}
