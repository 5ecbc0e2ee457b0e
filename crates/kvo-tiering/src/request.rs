//! What the manager remembers of a request until its last cascade is submitted.

use std::time::Duration;

use hashbrown::{HashMap, HashSet};
use kvo_core::{OffloadKey, RequestId};

/// A request that is running, or is finished with transfers still to come.
#[derive(Debug, Default)]
pub(crate) struct Request {
    /// Its place in the order in which requests began.
    pub(crate) arrival: u64,
    /// Which tiers want all of its chunks, by their place in the order of tiers.
    pub(crate) wants_all: TierSet,
    /// Tiers for which a cascade of it was left out, with its first chunk: until that is offered again, what comes after
    /// would be a tail without its head there.
    pub(crate) cut_off: Vec<(usize, OffloadKey)>,
    pub(crate) finished: bool,
    /// Store jobs at the primary that are open.
    pub(crate) open_stores: u32,
    /// Chunks that were pending when the request offered them, for the tiers that want all: `(key, end_token)` in
    /// the order of the offers.
    pub(crate) parked: Vec<(OffloadKey, Option<u32>)>,
    /// Keys whose promotion failed for this request, was evicted before it had loaded it, or was looked for too long.
    /// They stay misses for it.
    pub(crate) failed: HashSet<OffloadKey>,
    /// Since when lookups of a key have been answered with a retry, and when one was last.
    pub(crate) retries: HashMap<OffloadKey, (Duration, Duration)>,
    /// Tiers that are too slow to read from for it, and those that were not when it asked first.
    pub(crate) reads_left_out: TierSet,
    pub(crate) reads_let_in: TierSet,
}

impl Request {
    /// Whether lookups may bring `key` up for it.
    pub(crate) fn may_promote(&self, key: &OffloadKey) -> bool {
        !self.finished && !self.failed.contains(key)
    }

    /// Whether chunks are a tail whose head a tier did not get.
    pub(crate) fn is_cut_off(&self, tier: usize, chunks: &[(OffloadKey, Option<u32>)]) -> bool {
        let is_behind = |first: &OffloadKey| !chunks.iter().any(|(key, _)| key == first);
        self.cut_off.iter().any(|(of, first)| *of == tier && is_behind(first))
    }

    /// A cascade that begins with `first` does not reach a tier.
    pub(crate) fn cut_off(&mut self, tier: usize, first: OffloadKey) {
        if !self.cut_off.iter().any(|(of, _)| *of == tier) {
            self.cut_off.push((tier, first));
        }
    }

    /// What a tier had missed is on its way to it.
    pub(crate) fn goes_on(&mut self, tier: usize) {
        self.cut_off.retain(|(of, _)| *of != tier);
    }

    /// The primary was reset: everything is offered again, and looked for anew.
    pub(crate) fn reset(&mut self) {
        self.open_stores = 0;
        self.parked.clear();
        self.cut_off.clear();
        self.retries.clear();
    }

    /// Whether no further cascade can come of it.
    pub(crate) fn is_settled(&self) -> bool {
        self.finished && self.open_stores == 0 && self.parked.is_empty()
    }
}

/// Whose a job is. Numbers of requests may come again; arrivals do not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Owner {
    pub(crate) req: RequestId,
    pub(crate) arrival: u64,
}

impl Owner {
    /// The request, if it is still known.
    pub(crate) fn find(self, requests: &mut HashMap<RequestId, Request>) -> Option<&mut Request> {
        requests.get_mut(&self.req).filter(|request| request.arrival == self.arrival)
    }
}

/// A set of tiers, by their place in the order of tiers.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct TierSet(u64);

impl TierSet {
    /// As many tiers as a set can tell apart.
    pub(crate) const TIERS_MAX: usize = 64;

    /// Every tier.
    pub(crate) const ALL: Self = Self(u64::MAX);

    pub(crate) fn insert(&mut self, tier: usize) {
        self.0 |= 1 << tier;
    }

    pub(crate) fn contains(self, tier: usize) -> bool {
        self.0 >> tier & 1 == 1
    }

    pub(crate) fn is_empty(self) -> bool {
        self.0 == 0
    }
}
