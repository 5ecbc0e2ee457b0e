//! Jobs at a manager and the tokens that end them.

use crate::{JobId, OffloadKey, OwnerId, SlotId};

/// What a token's job does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum JobKind {
    /// GPU to CPU: slots are reserved.
    Store,
    /// CPU to GPU: chunks are pinned.
    Load,
}

/// The right to end one job, once.
///
/// It cannot be copied and every completion takes it by value, so no job ends twice; an error hands it back. It
/// names its manager and the reset generation it was made in, so a completion that comes after a reset, or to
/// another manager, is recognised and changes nothing. Dropping a token keeps its chunks pinned (or its slots
/// pending) until the next reset.
///
/// ```compile_fail
/// fn twice(manager: &mut dyn kvo_core::OffloadManager, token: kvo_core::JobToken) {
///     let _ = manager.complete_load(token);
///     let _ = manager.complete_load(token); // the token is gone
/// }
/// ```
#[derive(Debug, PartialEq, Eq)]
#[must_use = "a job that is never completed holds its chunks until the next reset"]
pub struct JobToken {
    owner: OwnerId,
    generation: u64,
    id: JobId,
    kind: JobKind,
}

impl JobToken {
    /// Makes a token. For managers: each job gets one.
    pub fn new(owner: OwnerId, generation: u64, id: JobId, kind: JobKind) -> Self {
        Self { owner, generation, id, kind }
    }

    /// The manager that made it.
    pub fn owner(&self) -> OwnerId {
        self.owner
    }

    /// The manager's reset generation when it was made.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// The job's number, for logs and for messages to a worker.
    pub fn id(&self) -> JobId {
        self.id
    }

    /// What the job does.
    pub fn kind(&self) -> JobKind {
        self.kind
    }
}

/// Room reserved for chunks that are to be copied from the GPU.
#[derive(Debug, PartialEq, Eq)]
pub struct StoreJob {
    /// Ends the job.
    pub token: JobToken,
    /// The keys to store, in the order of the offer, without repeats.
    pub keys: Vec<OffloadKey>,
    /// The slot of each key, in the same order, each held pending until the job completes.
    pub slots: Vec<SlotId>,
    /// The keys that were evicted to make room, in the order of eviction.
    pub evicted: Vec<OffloadKey>,
}

/// Chunks pinned for a copy to the GPU.
#[derive(Debug, PartialEq, Eq)]
pub struct LoadJob {
    /// Ends the job.
    pub token: JobToken,
    /// The slot of each key, in the order of the keys that were asked for, each pinned until the job completes.
    pub slots: Vec<SlotId>,
}
