//! Tiers below the primary.

use std::{error::Error, time::Duration};

use crate::{
    JobId, Locality, Medium, OffloadEvent, OffloadKey, OffloadPolicy, RequestContext, RequestId, SlotId,
    TierLookup,
};

/// A place below the primary tier that keeps chunks: an SSD store, a remote one, or yours.
///
/// The tiering manager calls every method from the one thread that owns it, on the scheduler's path: no method may
/// block, wait, or do I/O. A tier that needs to work does so on threads of its own and reports by
/// [`poll`](Self::poll). Calls come in this order: [`on_new_request`](Self::on_new_request) before anything else of a
/// request; lookups and jobs of it in any number; [`on_request_finished`](Self::on_request_finished) exactly once,
/// after the last write that the request can cause was submitted. Its jobs may still be running then, and a read that
/// its lookups asked for may still come.
///
/// A job's slots stay reserved (read) or pinned (write) until the tier reports the job, exactly once, whatever
/// happens; so each submitted job must be reported, also when it failed.
///
/// # Late transfers
///
/// A tier whose device does not answer need not keep a job open until it does. It reports the job as failed, in whole
/// or for the chunks that are late, and names their slots as [`held`](TierCompletion::held): its I/O may still touch
/// them. By [`take_released`](Self::take_released) it lets each of them go once that I/O has ended.
///
/// - A chunk whose slot is held has failed, for good: it never arrives by this job, however the I/O ends.
/// - Until its release a held slot is used for nothing else, also across a reset. The chunk of a write stays pinned:
///   it can be read, not evicted, not overwritten. The slot of a read is out of use.
/// - Each held slot is released exactly once, with the report or later. A release that was not announced, or of a job
///   that is unknown or still open, is counted by the manager and changes nothing.
/// - While its device hangs, a tier had better answer lookups with [`Miss`](TierLookup::Miss) and hand jobs back: each
///   late read takes one more slot of the primary out of use.
pub trait SecondaryTier: Send {
    /// A name that no other tier of the manager has; it is used in events, stats and spans.
    fn name(&self) -> &str;

    /// What the tier keeps its chunks on.
    fn medium(&self) -> Medium;

    /// How far away it is.
    fn locality(&self) -> Locality {
        Locality::Local
    }

    /// A request begins; says which of its chunks the tier wants.
    fn on_new_request(&mut self, req: &RequestContext) -> OffloadPolicy {
        let _ = req;
        OffloadPolicy::ChunkLevel
    }

    /// Whether the tier has a chunk. Changes no recency.
    fn lookup(&mut self, req: RequestId, key: &OffloadKey) -> TierLookup;

    /// Starts a job. The tier may hand it back, and then must not touch its slots.
    fn submit(&mut self, job: TierJob) -> Result<(), JobRejected>;

    /// Moves the jobs that ended since the last call to the end of `done`.
    fn poll(&mut self, done: &mut Vec<TierCompletion>);

    /// Moves the held slots whose I/O has ended since the last call to the end of `released`. Called after each
    /// [`poll`](Self::poll); a slot that is released here must have been held by a completion of that poll or an
    /// earlier one. A tier that wraps another passes the call on.
    fn take_released(&mut self, released: &mut Vec<ReleasedSlot>) {
        let _ = released;
    }

    /// The request will cause no further writes. The tier commits its recency and forgets the request.
    fn on_request_finished(&mut self, req: RequestId) {
        let _ = req;
    }

    /// A scheduler step ends: the moment to start what lookups of the step have asked for.
    fn on_schedule_end(&mut self) {}

    /// Moves the events since the last call to the end of `events`.
    fn take_events(&mut self, events: &mut Vec<OffloadEvent>) {
        let _ = events;
    }

    /// Ends the tier: the one call that may wait, about as long as `timeout`. From its beginning on no job is taken and
    /// nothing is found. What has ended by then is reported by the next [`poll`](Self::poll), and so is, as failed, what has
    /// not; its slots stay held.
    ///
    /// A tier that has ended does nothing when it is called again; one that could not end tries again. Without one of its own
    /// a tier has nothing to end: it goes on, and nobody asks it.
    ///
    /// # Errors
    /// Why it is not ended well, as the tier says it. Memory that its I/O may still touch is not let go.
    fn shut_down(&mut self, timeout: Duration) -> Result<(), Box<dyn Error + Send + Sync>> {
        let _ = timeout;
        Ok(())
    }
}

/// What a shut-down has left.
#[derive(Debug, Default)]
pub struct ShutDown {
    /// Tiers that were not ended well, by name, and why.
    pub tiers_failed: Vec<(String, Box<dyn Error + Send + Sync>)>,
    /// Jobs that no tier has reported.
    pub jobs_open: usize,
    /// Slots of the primary that I/O of tiers may still touch, beside those of such jobs.
    pub slots_held: usize,
}

impl ShutDown {
    /// Whether nothing was left.
    pub fn is_clean(&self) -> bool {
        self.tiers_failed.is_empty() && self.jobs_open == 0 && self.slots_held == 0
    }
}

/// Which way a tier job goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TierDirection {
    /// Primary to tier: a cascade.
    Write,
    /// Tier to primary: a promotion.
    Read,
}

/// One chunk of a tier job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TierChunk {
    /// The chunk.
    pub key: OffloadKey,
    /// Its slot in the primary.
    pub slot: SlotId,
    /// Its position in the request, if the scheduler gave one.
    pub end_token: Option<u32>,
}

/// A transfer between the primary and a tier, for one request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TierJob {
    /// The job's number, unique in the manager.
    pub id: JobId,
    /// The request it is for.
    pub req: RequestId,
    /// Which way.
    pub direction: TierDirection,
    /// The chunks, head to tail; never empty. A write may name a chunk twice, with the same slot: it was offered twice.
    pub chunks: Vec<TierChunk>,
}

/// What a tier reports of a job that has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TierCompletion {
    /// The job.
    pub job: JobId,
    /// How it ended.
    pub outcome: TierOutcome,
    /// Slots of the job that the tier's I/O may still touch, in any order, without repeats; empty as a rule. Their
    /// chunks are among those that failed, and [`SecondaryTier::take_released`] lets each slot go, once.
    pub held: Vec<SlotId>,
    /// How many chunks were copied, if not all that arrived: those of a write that the tier had already are not. By this and
    /// the time it took a tier is called slow.
    pub copied: Option<usize>,
}

/// A slot that a tier held on to after it had reported the job, and lets go: its I/O touches it no more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ReleasedSlot {
    /// The job.
    pub job: JobId,
    /// Its slot in the primary.
    pub slot: SlotId,
}

/// How a tier job ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TierOutcome {
    /// Every chunk arrived.
    Done,
    /// These chunks did not arrive, the others did.
    Partial {
        /// Keys of the job; never empty.
        failed: Vec<OffloadKey>,
    },
    /// No chunk is known to have arrived, and nothing is known of any single one: the job was cancelled, timed out,
    /// or never began.
    Failed,
}

impl TierCompletion {
    /// Every chunk of `job` arrived.
    pub fn done(job: JobId) -> Self {
        Self::new(job, TierOutcome::Done)
    }

    /// The chunks of `job` arrived, except those of `failed`, which may be empty.
    pub fn except(job: JobId, failed: Vec<OffloadKey>) -> Self {
        Self::new(job, if failed.is_empty() { TierOutcome::Done } else { TierOutcome::Partial { failed } })
    }

    /// `job` failed as a whole.
    pub fn failed(job: JobId) -> Self {
        Self::new(job, TierOutcome::Failed)
    }

    /// The same, and the tier's I/O may still touch `held`, slots of chunks that failed.
    #[must_use]
    pub fn with_held(self, held: Vec<SlotId>) -> Self {
        Self { held, ..self }
    }

    /// The same, and so many chunks were copied.
    #[must_use]
    pub fn with_copied(self, num: usize) -> Self {
        Self { copied: Some(num), ..self }
    }

    fn new(job: JobId, outcome: TierOutcome) -> Self {
        Self { job, outcome, held: Vec::new(), copied: None }
    }
}

/// A tier did not take a job.
#[derive(Debug, thiserror::Error)]
#[error("job {} was not taken: {reason}", job.id)]
pub struct JobRejected {
    /// The job, handed back.
    pub job: TierJob,
    /// Why.
    pub reason: RejectReason,
}

/// Why a tier did not take a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RejectReason {
    /// The tier's queue is full.
    #[error("the queue is full")]
    Busy,
    /// The tier takes no writes at present.
    #[error("the tier is read-only")]
    ReadOnly,
    /// The tier is shut down or broken.
    #[error("the tier is not available")]
    Unavailable,
    /// A chunk of the job does not fit the tier's slots or the host memory.
    #[error("the job does not fit the tier")]
    Invalid,
}
