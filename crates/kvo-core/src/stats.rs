//! Counts that managers and tiers report.

use std::time::Duration;

/// Where the slots of a primary tier are. The last four always add up to the capacity.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ChunkCounts {
    /// Slots there are.
    pub capacity: u32,
    /// Slots that hold nothing.
    pub free: u32,
    /// Slots that are being written.
    pub pending: u32,
    /// Chunks that are ready and not pinned.
    pub evictable: u32,
    /// Chunks that are ready and pinned.
    pub pinned: u32,
}

impl ChunkCounts {
    /// Whether the parts add up to the whole.
    pub fn add_up(&self) -> bool {
        u64::from(self.free) + u64::from(self.pending) + u64::from(self.evictable) + u64::from(self.pinned)
            == u64::from(self.capacity)
    }
}

/// What went over one edge between two places, in one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EdgeStats {
    /// Jobs that ended whole.
    pub jobs_done: u64,
    /// Jobs that ended with at least one chunk failed.
    pub jobs_failed: u64,
    /// Chunks that arrived.
    pub chunks: u64,
    /// Bytes that arrived.
    pub bytes: u64,
    /// Time from submission to the poll that saw the end, added up over jobs; jobs overlap, so it is no wall time.
    pub time: Duration,
}
