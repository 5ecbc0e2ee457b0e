//! What a CPU manager is built with, and what it reports.

use kvo_core::ChunkCounts;

use crate::ConfigError;

/// Options of a [`CpuManager`](crate::CpuManager), checked by its constructor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CpuOptions {
    /// Slots: chunks that the tier can hold. From 1 to [`NUM_SLOTS_MAX`](Self::NUM_SLOTS_MAX).
    pub num_slots: u32,
    /// A key is stored at its n-th offer; 1 stores everything at once. At least 1.
    pub store_threshold: u32,
    /// Keys whose offers are counted for the threshold, also those that are there; beyond that the one not offered for
    /// longest is forgotten. At least 1.
    pub tracker_keys_max: u32,
    /// Whether to record events. If so, drain them: they are kept until they are taken.
    pub record_events: bool,
    /// The tier's name in events.
    pub name: String,
}

impl CpuOptions {
    /// The most slots that a manager can have.
    pub const NUM_SLOTS_MAX: u32 = 1 << 28;

    /// Options for `num_slots` slots: no threshold, no events, named `cpu`.
    pub fn new(num_slots: u32) -> Self {
        Self {
            num_slots,
            store_threshold: 1,
            tracker_keys_max: 64_000,
            record_events: false,
            name: "cpu".to_owned(),
        }
    }

    pub(crate) fn check(&self) -> Result<(), ConfigError> {
        for (field, value) in [
            ("num_slots", self.num_slots),
            ("store_threshold", self.store_threshold),
            ("tracker_keys_max", self.tracker_keys_max),
        ] {
            if value == 0 {
                return Err(ConfigError::Zero { field });
            }
        }
        if self.num_slots > Self::NUM_SLOTS_MAX {
            return Err(ConfigError::TooManySlots {
                num_slots: self.num_slots,
                num_slots_max: Self::NUM_SLOTS_MAX,
            });
        }
        Ok(())
    }
}

/// A snapshot of a [`CpuManager`](crate::CpuManager). The counters count from construction, resets included.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CpuStats {
    /// Where the slots are.
    pub counts: ChunkCounts,
    /// How many resets there were.
    pub generation: u64,
    /// Store and load jobs that are open.
    pub open_jobs: usize,
    /// Slots whose chunk was dropped, by a reset or as a promotion that was given up, while a tier was using them, and
    /// that it uses still. Part of the pending ones.
    pub parked_slots: u32,
    /// Lookups that found a chunk ready.
    pub lookup_hits: u64,
    /// Lookups that found a chunk pending.
    pub lookup_pending: u64,
    /// Lookups that found nothing.
    pub lookup_misses: u64,
    /// Chunks pinned for loads.
    pub chunks_loaded: u64,
    /// Chunks that became ready by a store.
    pub chunks_stored: u64,
    /// Chunks that became ready by a promotion.
    pub chunks_promoted: u64,
    /// Chunks whose store or promotion failed.
    pub chunks_failed: u64,
    /// Chunks evicted.
    pub chunks_evicted: u64,
    /// Offers that were refused for want of room.
    pub offers_refused: u64,
    /// Keys that the store threshold held back, one count an offer.
    pub keys_below_threshold: u64,
    /// Keys whose offers the threshold counts now.
    pub tracked_keys: usize,
}
