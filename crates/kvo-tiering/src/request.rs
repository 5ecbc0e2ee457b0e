//! What the manager remembers of a request until its last cascade is submitted.

use hashbrown::HashSet;
use kvo_core::OffloadKey;

/// A request that is running, or is finished with transfers still to come.
#[derive(Debug, Default)]
pub(crate) struct Request {
    /// Its place in the order in which requests began.
    pub(crate) arrival: u64,
    /// Which tiers want all of its chunks, in the tiers' order.
    pub(crate) wants_all: Vec<bool>,
    pub(crate) finished: bool,
    /// Store jobs at the primary that are open.
    pub(crate) open_stores: u32,
    /// Chunks that were pending when the request offered them, for the tiers that want all: `(key, end_token)` in
    /// the order of the offers.
    pub(crate) parked: Vec<(OffloadKey, Option<u32>)>,
    /// Keys whose promotion failed for this request. They stay misses for it.
    pub(crate) failed: HashSet<OffloadKey>,
}

impl Request {
    /// Whether no further cascade can come of it.
    pub(crate) fn is_settled(&self) -> bool {
        self.finished && self.open_stores == 0 && self.parked.is_empty()
    }
}
