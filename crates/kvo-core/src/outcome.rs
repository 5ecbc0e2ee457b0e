//! Outcomes of calls: none of these is an error.

use crate::StoreJob;

/// What a manager answers to a lookup of one key. A lookup never changes recency.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LookupResult {
    /// No tier has the chunk, or there is no room to bring it up.
    Miss,
    /// The primary has a slot for the chunk and the write into it is in flight. Ask again in a later step.
    HitPending,
    /// The primary has the chunk; it can be loaded in this step.
    Hit,
    /// A tier is still looking. Ask again in a later step.
    Retry,
}

/// What a manager answers to a lookup of a prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PrefixLookup {
    /// How many of the leading keys are ready.
    pub ready: usize,
    /// What the key after them is: never [`LookupResult::Hit`], and nothing if all keys are ready.
    pub end: Option<LookupResult>,
}

/// What a secondary tier answers to a lookup of one key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TierLookup {
    /// The tier does not have the chunk, or does not have it yet.
    Miss,
    /// The tier has the chunk whole and readable.
    Hit,
    /// The tier is still looking; it will answer otherwise in a later step.
    Retry,
}

/// What a tier wants to be given for a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum OffloadPolicy {
    /// The chunks that are newly stored into the primary.
    #[default]
    ChunkLevel,
    /// All chunks of the request, also those that the primary had already.
    RequestLevel,
}

/// How a transfer ended, as the one who ran it reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TransferResult {
    /// Every byte arrived.
    Done,
    /// The bytes are not to be trusted.
    Failed,
}

/// What became of an offer of keys to the primary tier.
#[derive(Debug)]
#[must_use = "a prepared store holds slots until it is completed"]
pub enum StoreOutcome {
    /// Slots are reserved: copy the chunks into them, then complete the job.
    Prepared(StoreJob),
    /// Every key is there already, is being stored by someone, or was held back by the store threshold.
    NothingToStore,
    /// There is no room; nothing was evicted.
    Refused(Refusal),
}

/// Why an offer was refused, in chunks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// Slots that the offer needs.
    pub needed: u32,
    /// Slots that are free.
    pub free: u32,
    /// Chunks that are ready and unpinned, those of the offer itself included: an upper bound of what eviction
    /// could have freed.
    pub evictable: u32,
}
