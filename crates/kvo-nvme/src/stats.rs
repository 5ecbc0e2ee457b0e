//! Counts that a store reports.

use std::sync::atomic::{AtomicU64, Ordering};

use kvo_core::EdgeStats;

/// Where the slots of a store are. All but the first always add up to the capacity.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SlotCounts {
    /// Slots there are.
    pub capacity: u32,
    /// Slots that hold nothing.
    pub free: u32,
    /// Slots that are being written.
    pub writing: u32,
    /// Chunks that are readable and that nothing reads.
    pub evictable: u32,
    /// Chunks that are readable and being read.
    pub pinned: u32,
    /// Slots whose chunk was dropped after a failed read, while other reads of it still run.
    pub retiring: u32,
    /// Slots that failed and are used no more.
    pub quarantined: u32,
}

impl SlotCounts {
    /// Whether the parts add up to the whole.
    pub fn add_up(&self) -> bool {
        let parts = [self.free, self.writing, self.evictable, self.pinned, self.retiring, self.quarantined];
        parts.iter().map(|&part| u64::from(part)).sum::<u64>() == u64::from(self.capacity)
    }
}

/// How a store is, after what has become of its reads and writes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum TierState {
    /// Everything goes on.
    #[default]
    Up,
    /// Nothing can be written; reads go on.
    ReadOnly,
    /// The device failed too often: every lookup is a miss, and every job is handed back.
    Open,
    /// One chunk is on its way to try the device; everything else is as in `Open`.
    HalfOpen,
}

/// What a store has done since it was opened, and where its slots are now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StoreStats {
    /// Where the slots are.
    pub counts: SlotCounts,
    /// How the store is.
    pub state: TierState,
    /// Times that errors closed the store, after a try that failed included.
    pub breaker_opened: u64,
    /// Times that nothing could be written any more, after a try that failed included.
    pub read_only: u64,
    /// Chunks that tried whether the device is back.
    pub probes: u64,
    /// Write jobs, and the chunks and bytes that they wrote. A chunk that was there already is not counted.
    pub write: EdgeStats,
    /// Read jobs, and the chunks and bytes that they read.
    pub read: EdgeStats,
    /// Jobs that were taken and not yet reported, and late ones that were, as long as a chunk of them is in flight.
    pub jobs_inflight: usize,
    /// Chunks of jobs that are with the engine or wait for it, late ones among them; in a durable store also those that wait
    /// for their records.
    pub chunks_inflight: usize,
    /// Jobs that were handed back.
    pub jobs_rejected: u64,
    /// Lookups that found a readable chunk.
    pub lookup_hits: u64,
    /// Lookups that did not.
    pub lookup_misses: u64,
    /// Chunks of read jobs that were not there (any more) when the job was submitted.
    pub read_misses: u64,
    /// Chunks of write jobs that were there already, or on their way by another write, and cost no I/O.
    pub chunks_present: u64,
    /// Chunks of write jobs for which there was no room, and chunks of any job that were not to be moved because the
    /// device had failed.
    pub chunks_refused: u64,
    /// Chunks of write jobs that admission did not let in.
    pub chunks_unadmitted: u64,
    /// Chunks that were evicted to make room.
    pub chunks_evicted: u64,
    /// Chunks that were dropped because a read of them failed.
    pub chunks_dropped: u64,
    /// Reads whose bytes had another checksum than those that were written.
    pub checksum_failures: u64,
    /// Reads that failed otherwise, the end of a truncated file among them.
    pub read_errors: u64,
    /// Writes that failed.
    pub write_errors: u64,
    /// Writes that were begun anew in another slot, because their first failed.
    pub writes_again: u64,
    /// Chunks that were reported as failed because they took too long.
    pub late: u64,
    /// Those of them that the device has ended with since.
    pub late_ended: u64,
    /// Whether a sync has failed, or the journal, since the store was opened: what is written cannot be called durable
    /// any more, and a durable store takes no more writes.
    pub durability_lost: bool,
    /// Records that were given to the index.
    pub records: u64,
    /// Records that could not be written, or not be made safe.
    pub record_errors: u64,
    /// Payload bytes that were copied on their way because they were not aligned as direct I/O wants it: those of direct
    /// calls, and of host memory without page boundaries. Between a region and the files nothing is copied.
    pub copied_bytes: u64,
    /// Transfers that never reached the disk because the host memory, or the thread, failed.
    pub memory_errors: u64,
}

/// What a store has cost its devices.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct Wear {
    /// Payload bytes written since the store was opened.
    pub written_bytes: u64,
    /// Payload bytes written in the store's life, this opening included.
    pub written_bytes_in_life: u64,
    /// Bytes written to the files over payload bytes, since the store was opened: what lies between is slots that are
    /// rounded up, and the index. Nothing is known of what the device makes of it.
    pub write_amplification: f64,
    /// How often a day the store's capacity would be written, at the rate since it was opened.
    pub drive_writes_per_day: f64,
}

/// What the engine of a store has done since it was started. For `io_uring`; threads count nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct EngineStats {
    /// Operations that were given to the kernel, those that wait to be woken among them.
    pub sqes: u64,
    /// Calls that gave them to the kernel or waited for it.
    pub enters: u64,
    /// Operations that moved fewer bytes than they were asked to, and were gone on with.
    pub short_transfers: u64,
    /// Operations that were tried again because the kernel could not do them just then.
    pub retries: u64,
    /// Completions that belonged to no operation: a defect, of the kernel or ours.
    pub strange_completions: u64,
    /// The most bytes of writes that were with the kernel at once, of any one device.
    pub write_bytes_inflight_max: u64,
    /// The most chunks to be written that had their checksums made, or had them and waited, at once, of any one device.
    /// Further ones wait without a claim on the host memory.
    pub write_chunks_ahead_max: u64,
    /// Times that a waiting thread was woken for new work.
    pub wakeups: u64,
    /// Bytes of chunks that were copied between the host memory and the kernel: none, by how engines are made.
    pub copied_bytes: u64,
}

/// The same as it is counted, by all threads of an engine.
#[derive(Debug, Default)]
pub(crate) struct EngineCounters {
    pub(crate) sqes: Counter,
    pub(crate) enters: Counter,
    pub(crate) short_transfers: Counter,
    pub(crate) retries: Counter,
    pub(crate) strange_completions: Counter,
    pub(crate) write_bytes_inflight_max: Counter,
    pub(crate) write_chunks_ahead_max: Counter,
    pub(crate) wakeups: Counter,
}

/// A number that threads add to. It orders nothing.
#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    pub(crate) fn add(&self, count: u64) {
        if count > 0 {
            self.0.fetch_add(count, Ordering::Relaxed);
        }
    }

    /// Makes it at least `value`.
    pub(crate) fn raise(&self, value: u64) {
        self.0.fetch_max(value, Ordering::Relaxed);
    }

    fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

impl EngineCounters {
    pub(crate) fn snapshot(&self) -> EngineStats {
        EngineStats {
            sqes: self.sqes.get(),
            enters: self.enters.get(),
            short_transfers: self.short_transfers.get(),
            retries: self.retries.get(),
            strange_completions: self.strange_completions.get(),
            write_bytes_inflight_max: self.write_bytes_inflight_max.get(),
            write_chunks_ahead_max: self.write_chunks_ahead_max.get(),
            wakeups: self.wakeups.get(),
            copied_bytes: 0,
        }
    }
}
