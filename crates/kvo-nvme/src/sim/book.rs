//! What the store's caller knows: its jobs, its host slots, and what it was told.

use std::collections::{BTreeMap, BTreeSet};

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
    pub(super) chunks: Vec<TierChunk>,
}

/// The caller's books.
#[derive(Default)]
pub(super) struct Book {
    pub(super) jobs: BTreeMap<JobId, OpenJob>,
    pub(super) free_host: Vec<SlotId>,
    /// Chunks that are there, as the events tell.
    pub(super) resident: BTreeSet<u64>,
    pub(super) next_job: u64,
    pub(super) versions: u64,
    pub(super) jobs_reported: u64,
    pub(super) chunks_arrived: u64,
}

impl Book {
    pub(super) fn new(num_host_slots: u32) -> Self {
        Self { free_host: (0..num_host_slots).map(SlotId).collect(), ..Self::default() }
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
    pub(super) fn end_job(&mut self, report: &TierCompletion, transfers: &Transfers, memory: &SimMemory) {
        let id = report.job;
        let OpenJob { direction, chunks } = self.jobs.remove(&id).expect("a job is reported once");
        for pending in &transfers.pending {
            assert_ne!(pending.op.job, id, "{report:?}, while {pending:?} has not ended");
        }
        let failed: &[OffloadKey] = match &report.outcome {
            TierOutcome::Done => &[],
            TierOutcome::Partial { failed } => failed,
            TierOutcome::Failed => panic!("each key has a result of its own: {report:?}"),
        };
        let keys: BTreeSet<&OffloadKey> = failed.iter().collect();
        assert_eq!(keys.len(), failed.len(), "a key failed twice: {report:?}");
        assert!(
            failed.iter().all(|key| chunks.iter().any(|chunk| chunk.key == *key)),
            "{report:?}: {chunks:?}"
        );
        if direction == TierDirection::Read {
            for chunk in chunks.iter().filter(|chunk| !keys.contains(&chunk.key)) {
                self.check_arrived(chunk, memory);
            }
        }
        let hosts: BTreeSet<SlotId> = chunks.iter().map(|chunk| chunk.slot).collect();
        self.free_host.extend(hosts);
        self.jobs_reported += 1;
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

    /// Takes in events, each of which must fit those before.
    pub(super) fn replay(&mut self, events: Vec<OffloadEvent>) {
        for OffloadEvent { kind, keys, .. } in events {
            assert!(!keys.is_empty(), "an event of nothing");
            for n in keys.iter().map(number) {
                match kind {
                    EventKind::Stored => assert!(self.resident.insert(n), "chunk {n} was stored twice"),
                    _ => assert!(self.resident.remove(&n), "chunk {n} was removed twice"),
                }
            }
        }
    }
}
