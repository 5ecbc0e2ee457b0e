//! What happened to chunks, for routers and directories that follow a cache from outside.

use std::sync::Arc;

use crate::{Medium, OffloadKey};

/// What happened to the keys of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum EventKind {
    /// The chunks are there and readable.
    Stored,
    /// The chunks are no longer there.
    Removed,
    /// The chunks were on their way and never arrived. They were not announced as stored, so only what a consumer
    /// kept about them beforehand is to be dropped. Keys that are there again are left out.
    Discarded,
}

/// Something that happened to chunks in one tier. Events are delivered once, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OffloadEvent {
    /// The tier's name.
    pub tier: Arc<str>,
    /// What the tier keeps its chunks on.
    pub medium: Medium,
    /// What happened.
    pub kind: EventKind,
    /// To which chunks; never empty.
    pub keys: Vec<OffloadKey>,
}
