//! Errors of the calls that every manager has. None of them leaves anything changed.

use crate::{JobKind, JobToken, OffloadKey, RequestId};

/// A request was used in a way its life does not allow.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RequestError {
    /// The request has been finished here before.
    #[error("request {req} is already finished")]
    Finished {
        /// The request.
        req: RequestId,
    },
    /// A request of this number is still running, or its chunks are still on their way to a tier.
    #[error("request {req} is already known")]
    Known {
        /// The request.
        req: RequestId,
    },
    /// The manager was never told of this request.
    #[error("request {req} is unknown: announce it with new_request first")]
    Unknown {
        /// The request.
        req: RequestId,
    },
}

/// Chunks could not be pinned for a load.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// Some keys are not ready. The ready keys before the first of them can still be loaded.
    #[error("{} keys are not in the primary tier and {} are still being written", absent.len(), pending.len())]
    NotReady {
        /// Keys that the primary tier does not have (any more), in the order asked for.
        absent: Vec<OffloadKey>,
        /// Keys that are being written, in the order asked for.
        pending: Vec<OffloadKey>,
    },
    /// A key was named twice in one load.
    #[error("key {key} is named twice in one load")]
    Repeated {
        /// The key.
        key: OffloadKey,
    },
    /// The request cannot load.
    #[error(transparent)]
    Request(#[from] RequestError),
}

/// Keys could not be offered.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// The request cannot store.
    #[error(transparent)]
    Request(#[from] RequestError),
}

/// A job could not be completed; the token comes back.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{} job {} cannot be completed: {reason}", match token.kind() { JobKind::Store => "store", JobKind::Load => "load" }, token.id())]
pub struct CompleteError {
    /// What the caller gave.
    pub token: JobToken,
    /// Why it does not fit.
    pub reason: CompleteErrorReason,
}

/// Why a token does not end a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CompleteErrorReason {
    /// Another manager made the token.
    #[error("the token was made by another manager")]
    OtherManager,
    /// The manager was reset since; the job's slots may hold other chunks by now.
    #[error("the token is of generation {token}, the manager was reset and is at {current}")]
    Reset {
        /// The token's generation.
        token: u64,
        /// The manager's generation.
        current: u64,
    },
    /// A store was completed as a load, or a load as a store.
    #[error("the token is not for this kind of job")]
    WrongKind,
    /// No such job is open.
    #[error("no such job is open")]
    NotOpen,
}

/// A layout whose size does not work out.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LayoutError {
    /// A count or size that must be at least one is zero.
    #[error("{field} must be at least 1")]
    Zero {
        /// The field.
        field: &'static str,
    },
    /// The product of the dimensions does not fit 64 bits.
    #[error(
        "a chunk of {layers} layers x {planes} planes x {page_bytes} bytes x {blocks_per_chunk} blocks does not fit 64 bits"
    )]
    Overflow {
        /// Layers.
        layers: u32,
        /// Planes a layer.
        planes: u32,
        /// Bytes a page.
        page_bytes: u64,
        /// Blocks a chunk.
        blocks_per_chunk: u32,
    },
}
