//! What a tiering manager is built with, and what it reports.

use std::time::Duration;

use kvo_core::EdgeStats;
use kvo_cpu::CpuStats;

use crate::{PressureOptions, TieringConfigError};

/// Options of a [`TieringManager`](crate::TieringManager), checked by its constructor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TieringOptions {
    /// Bytes of a chunk, to count what is moved.
    pub chunk_bytes: u64,
    /// Cascade jobs that may be in flight to one tier; while there are as many, further cascades to that tier are
    /// left out. A job that was reported late is in flight until the tier has let its last slot go, so a tier that hangs
    /// pins no more than others. At least 1.
    pub inflight_cascades_max: u32,
    /// Whether a request may ask once more for chunks whose promotion job failed as a whole. The reference lets it; a
    /// tier that fails every job then keeps a request trying for as long as it lives. A chunk that failed by itself, or
    /// whose slot the tier still holds, stays a miss for the request in any case.
    pub retry_failed_jobs: bool,
    /// What keeps slow tiers and waiting requests out of the way of requests that run.
    pub pressure: PressureOptions,
}

impl TieringOptions {
    /// Options for chunks of `chunk_bytes` bytes: at most 256 cascades in flight to a tier, one try for a
    /// promotion, the usual bounds on slow tiers and waiting requests.
    pub fn new(chunk_bytes: u64) -> Self {
        Self {
            chunk_bytes,
            inflight_cascades_max: 256,
            retry_failed_jobs: false,
            pressure: PressureOptions::default(),
        }
    }

    /// As [`new`](Self::new), with whatever bounds.
    #[must_use]
    pub fn with_pressure(self, pressure: PressureOptions) -> Self {
        Self { pressure, ..self }
    }

    pub(crate) fn check(&self) -> Result<(), TieringConfigError> {
        for (field, zero) in [
            ("chunk_bytes", self.chunk_bytes == 0),
            ("inflight_cascades_max", self.inflight_cascades_max == 0),
        ] {
            if zero {
                return Err(TieringConfigError::Zero { field });
            }
        }
        self.pressure.check()
    }
}

/// A snapshot of a tiering manager.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TieringStats {
    /// The primary tier.
    pub primary: CpuStats,
    /// The secondary tiers, in their order.
    pub tiers: Vec<TierStats>,
    /// Keys that a secondary tier had and that found no room in the primary.
    pub promotions_without_room: u64,
    /// Lookups of keys that a secondary tier had and that were put off, because older requests come first.
    pub promotions_put_off: u64,
    /// Keys that a secondary tier had and that were not promoted, because the request has what there is room for, or
    /// because they were evicted just now before anyone had loaded them.
    pub promotions_left_out: u64,
    /// Promoted chunks that were evicted before anyone had loaded them.
    pub promotions_lost: u64,
    /// Promoted chunks, here or on their way, that nobody has loaded yet: those that count for
    /// [`promotion_share`](PressureOptions::promotion_share).
    pub chunks_unread: u64,
    /// Lookups that were to be asked again for too long: a tier was looking, or older requests came first.
    pub lookups_expired: u64,
    /// Requests that are running, or finished with transfers of theirs still to come.
    pub open_requests: usize,
}

/// What one secondary tier was asked for and given.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TierStats {
    /// The tier's name.
    pub name: String,
    /// Lookups that reached the tier.
    pub queries: u64,
    /// Lookups it answered with a hit.
    pub hits: u64,
    /// Lookups it answered with a retry.
    pub retries: u64,
    /// Jobs that it has and has not reported.
    pub active_jobs: u64,
    /// Slots of jobs that it has reported and still holds.
    pub held_slots: u64,
    /// Primary to tier.
    pub written: EdgeStats,
    /// Tier to primary.
    pub read: EdgeStats,
    /// Cascades left out because as many as allowed were in flight, or too many slots pinned; because the tier was too
    /// slow or fenced off; or because an earlier one of the request did not reach it.
    pub cascades_throttled: u64,
    /// Requests whose lookups missed here because the tier read too slowly.
    pub requests_left_out: u64,
    /// Jobs that went unreported for too long.
    pub jobs_overdue: u64,
    /// Whether the tier is fenced off for writes or for reads: at most one job tries it.
    pub is_fenced: bool,
    /// How often it was, a try that failed included.
    pub times_fenced: u64,
    /// Smoothed time a MiB that writes take; 0 if that is not watched.
    pub write_per_mib: Duration,
    /// The same of reads.
    pub read_per_mib: Duration,
    /// Jobs that the tier did not take.
    pub jobs_rejected: u64,
    /// Jobs that it reported while it still held slots of theirs.
    pub jobs_late: u64,
    /// Reports that named a job which the tier does not have; or a key or a slot which the job does not have, or a slot
    /// as held whose chunk they did not name as failed. The first kind changes nothing; after the others the whole job
    /// counts as failed, and those of its slots that were named as held are.
    pub invalid_reports: u64,
    /// Releases of slots that the tier did not hold. They change nothing.
    pub invalid_releases: u64,
}
