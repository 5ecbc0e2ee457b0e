//! What goes wrong in an engine.

use std::time::Duration;

use kvo_connector::{ConnectorError, CopyId, WorkerError};
use kvo_core::{LayoutError, RequestId};
use kvo_cuda::{ComputeError, GeometryError, HostDeviceError};

/// An engine cannot be made, or cannot go on.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EngineError {
    /// A request is not taken.
    #[error(transparent)]
    Refused(#[from] RequestRefused),
    /// There is no such request.
    #[error(transparent)]
    Unknown(#[from] UnknownRequest),
    /// An option is zero.
    #[error("{field} must not be 0")]
    Zero {
        /// The field of [`EngineOptions`](crate::EngineOptions).
        field: &'static str,
    },
    /// The threads for compute did not start.
    #[error("threads for compute")]
    Threads(#[from] rayon::ThreadPoolBuildError),
    /// The device could not be made, or has no memory left.
    #[error(transparent)]
    Device(#[from] HostDeviceError),
    /// A chunk is too large.
    #[error(transparent)]
    Layout(#[from] LayoutError),
    /// The arenas cannot be described.
    #[error(transparent)]
    Geometry(#[from] GeometryError),
    /// Compute was not taken, or has failed.
    #[error(transparent)]
    Compute(#[from] ComputeError),
    /// A call of the engine's does not fit what the connector knows.
    #[error(transparent)]
    Connector(#[from] ConnectorError),
    /// The worker cannot be made, or no stream can be made to wait for its copies.
    #[error(transparent)]
    Worker(#[from] WorkerError),
    /// A copy that a step waits for did not end.
    #[error("copy {} did not end within {waited:?}", copy.0)]
    CopyTimedOut {
        /// The copy.
        copy: CopyId,
        /// How long it was waited for.
        waited: Duration,
    },
}

/// A request is not taken. Nothing has changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RequestRefused {
    /// It has no tokens.
    #[error("a prompt has at least one token")]
    EmptyPrompt,
    /// It asks for no tokens.
    #[error("a request asks for at least one token")]
    NothingAsked,
    /// The model has no such token.
    #[error("token {token} at {index} is not one of the model's {vocabulary}")]
    UnknownToken {
        /// Its place in the prompt.
        index: usize,
        /// The token.
        token: u32,
        /// Tokens there are.
        vocabulary: usize,
    },
    /// It would not fit into the KV cache if it were alone.
    #[error("{tokens} tokens take {needed} blocks, there are {num_blocks}")]
    TooLong {
        /// Tokens of prompt and answer.
        tokens: usize,
        /// Blocks that a group would need.
        needed: u64,
        /// Blocks it has.
        num_blocks: u32,
    },
    /// A temperature is not a positive number.
    #[error("a temperature is above 0")]
    Temperature,
}

/// There is no such request, or not any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is no request {0}")]
pub struct UnknownRequest(pub RequestId);
