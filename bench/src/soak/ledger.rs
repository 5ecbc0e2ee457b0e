//! What was asked of a store and what came, to be held against what it counts itself.

use kvo_core::{OffloadKey, SlotAccessError, TierDirection, TierOutcome};
use kvo_nvme::StoreStats;
use serde::Serialize;

use super::{Checked, lane::Lane};

/// The counts of whoever uses the store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Ledger {
    /// Jobs that were submitted.
    pub jobs: u64,
    /// Lookups that found a chunk.
    pub lookup_hits: u64,
    /// Lookups that did not.
    pub lookup_misses: u64,
    /// Chunks of store jobs.
    pub chunks_offered: u64,
    /// Chunks of store jobs that were reported as failed.
    pub chunks_refused: u64,
    /// Chunks of load jobs that arrived.
    pub chunks_loaded: u64,
    /// Chunks of load jobs that did not, although a lookup in the same step had found them.
    pub chunks_lost: u64,
    /// Whether what arrived is right.
    #[serde(skip)]
    pub compared: Checked,
}

impl Ledger {
    /// Chunks of store jobs that are in the store, or were.
    pub fn chunks_written(&self) -> u64 {
        self.chunks_offered - self.chunks_refused
    }

    pub(super) fn count_lookup(&mut self, is_hit: bool) {
        *(if is_hit { &mut self.lookup_hits } else { &mut self.lookup_misses }) += 1;
    }

    pub(super) fn count_begun(&mut self, lane: &Lane) {
        self.jobs += 1;
        if lane.direction == TierDirection::Write {
            self.chunks_offered += lane.keys.len() as u64;
        }
    }

    /// A job has ended; `compare` compares the chunks that its argument says have arrived.
    pub(super) fn count_ended(
        &mut self,
        lane: &Lane,
        outcome: &TierOutcome,
        compare: impl Fn(&dyn Fn(&OffloadKey) -> bool) -> Result<Checked, SlotAccessError>,
    ) -> Result<Checked, SlotAccessError> {
        let is_failed = |key: &OffloadKey| match outcome {
            TierOutcome::Done => false,
            TierOutcome::Partial { failed } => failed.contains(key),
            TierOutcome::Failed => true,
        };
        let failed = lane.keys.iter().filter(|key| is_failed(key)).count() as u64;
        match lane.direction {
            TierDirection::Write => {
                self.chunks_refused += failed;
                Ok(Checked::default())
            }
            TierDirection::Read => {
                self.chunks_loaded += lane.keys.len() as u64 - failed;
                self.chunks_lost += failed;
                compare(&|key| !is_failed(key))
            }
        }
    }

    /// What does not agree between these counts and those of a store that has nothing under way, or should not be at all.
    pub fn problems(&self, stats: &StoreStats, chunk_bytes: u64) -> Vec<String> {
        let counts = stats.counts;
        let mut problems = Vec::new();
        let mut equal = |what: &str, found: u64, expected: u64| {
            if found != expected {
                problems.push(format!("{what}: {found} instead of {expected}"));
            }
        };
        equal("chunks with other bytes", self.compared.wrong_chunks, 0);
        equal("chunks that a lookup found and no load brought", self.chunks_lost, 0);
        let errors = [
            ("wrong checksums", stats.checksum_failures),
            ("failed reads", stats.read_errors),
            ("failed writes", stats.write_errors),
            ("failures of the host memory", stats.memory_errors),
            ("dropped chunks", stats.chunks_dropped),
            ("jobs handed back", stats.jobs_rejected),
            ("reads of chunks that are not there", stats.read_misses),
            ("quarantined slots", counts.quarantined.into()),
            ("slots being written", counts.writing.into()),
            ("pinned slots", counts.pinned.into()),
            ("retiring slots", counts.retiring.into()),
            ("jobs in flight", stats.jobs_inflight as u64),
            ("chunks in flight", stats.chunks_inflight as u64),
        ];
        for (what, count) in errors {
            equal(what, count, 0);
        }
        let refused = stats.chunks_refused + stats.chunks_unadmitted;
        equal("chunks refused", refused, self.chunks_refused);
        equal("chunks loaded", stats.read.chunks, self.chunks_loaded);
        equal("bytes loaded", stats.read.bytes, self.chunks_loaded * chunk_bytes);
        equal("bytes compared", self.compared.right_bytes, self.chunks_loaded * chunk_bytes);
        equal("chunks stored or there", stats.write.chunks + stats.chunks_present, self.chunks_written());
        equal("bytes stored", stats.write.bytes, stats.write.chunks * chunk_bytes);
        let ended = [stats.write, stats.read].map(|edge| edge.jobs_done + edge.jobs_failed);
        equal("jobs reported", ended.iter().sum(), self.jobs);
        equal("lookups that hit", stats.lookup_hits, self.lookup_hits);
        equal("lookups that missed", stats.lookup_misses, self.lookup_misses);
        let there = stats.write.chunks.saturating_sub(stats.chunks_evicted);
        equal("chunks in the store", counts.evictable.into(), there);
        equal("slots in all", u64::from(counts.evictable) + u64::from(counts.free), counts.capacity.into());
        problems
    }
}
