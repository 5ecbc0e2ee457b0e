//! What a store is opened with.

use std::path::PathBuf;

use kvo_core::HostMemory;
use kvo_policies::PolicyKind;

use crate::OpenError;

/// Slots lie in the file at multiples of this many bytes.
const ALIGN_BYTES: u64 = 4096;

/// The most I/O threads a store starts. A device is saturated by far fewer.
const NUM_THREADS_MAX: usize = 256;

/// What a store is opened with; checked once, by [`NvmeStore::open`](crate::NvmeStore::open).
#[derive(Clone, Debug)]
pub struct NvmeOptions {
    /// The directory of the store's file. It must exist; a store has its directory to itself.
    pub dir: PathBuf,
    /// Chunks that the store holds at most. All of their room is taken from the file system at once.
    pub capacity_chunks: u32,
    /// Bytes of a chunk: those of a slot of the host memory. In the file they are rounded up to 4 KiB.
    pub chunk_bytes: u64,
    /// The tier's name in events, stats and spans.
    pub name: String,
    /// Which chunk goes first when the store is full.
    pub policy: PolicyKind,
    /// I/O threads. Each runs one chunk at a time, so this is also the depth of the device's queue.
    pub num_threads: usize,
    /// Chunks that may wait for a thread or be with one. A job that would go beyond it is handed back as
    /// [`Busy`](kvo_core::RejectReason::Busy); but an idle store takes a job of any size, so that none is refused for
    /// ever.
    pub queue_chunks_max: usize,
    /// Whether to record events. If so, drain them: they are kept until they are taken.
    pub record_events: bool,
}

impl NvmeOptions {
    /// A store of `capacity_chunks` chunks of `chunk_bytes` each in `dir`: named `nvme`, LRU, 4 threads, 1024 chunks
    /// in the queue, without events.
    pub fn new(dir: impl Into<PathBuf>, capacity_chunks: u32, chunk_bytes: u64) -> Self {
        Self {
            dir: dir.into(),
            capacity_chunks,
            chunk_bytes,
            name: "nvme".to_owned(),
            policy: PolicyKind::Lru,
            num_threads: 4,
            queue_chunks_max: 1024,
            record_events: false,
        }
    }

    /// Checks every number and works out where the slots lie.
    pub(crate) fn geometry(&self, memory: Option<&dyn HostMemory>) -> Result<Geometry, OpenError> {
        for (field, zero) in [
            ("capacity_chunks", self.capacity_chunks == 0),
            ("chunk_bytes", self.chunk_bytes == 0),
            ("num_threads", self.num_threads == 0),
            ("queue_chunks_max", self.queue_chunks_max == 0),
        ] {
            if zero {
                return Err(OpenError::Zero { field });
            }
        }
        if self.num_threads > NUM_THREADS_MAX {
            let (value, max) = (self.num_threads as u64, NUM_THREADS_MAX as u64);
            return Err(OpenError::TooLarge { field: "num_threads", value, max });
        }
        if let Some(slot_bytes) = memory.map(|memory| memory.slot_bytes() as u64)
            && slot_bytes != self.chunk_bytes
        {
            return Err(OpenError::ChunkBytes { chunk_bytes: self.chunk_bytes, slot_bytes });
        }
        Geometry::new(self.capacity_chunks, self.chunk_bytes).ok_or(OpenError::Overflow {
            capacity_chunks: self.capacity_chunks,
            chunk_bytes: self.chunk_bytes,
        })
    }
}

/// Where the slots lie in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Geometry {
    pub(crate) capacity: u32,
    /// Bytes of a chunk.
    pub(crate) chunk_bytes: usize,
    /// From one slot of the file to the next, in bytes.
    stride_bytes: u64,
    /// Bytes of the whole file; fits an `i64`, as every offset in it does.
    pub(crate) file_bytes: u64,
}

impl Geometry {
    fn new(capacity: u32, chunk_bytes: u64) -> Option<Self> {
        let stride_bytes = chunk_bytes.checked_next_multiple_of(ALIGN_BYTES)?;
        let file_bytes = stride_bytes.checked_mul(u64::from(capacity))?;
        i64::try_from(file_bytes).ok()?;
        Some(Self { capacity, chunk_bytes: usize::try_from(chunk_bytes).ok()?, stride_bytes, file_bytes })
    }

    /// Where `slot` begins. Below `file_bytes`, so it cannot overflow.
    pub(crate) fn offset(&self, slot: u32) -> u64 {
        debug_assert!(slot < self.capacity, "slot {slot} of {}", self.capacity);
        u64::from(slot) * self.stride_bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(capacity: u32, chunk_bytes: u64, file_bytes: Option<u64>) {
        assert_eq!(Geometry::new(capacity, chunk_bytes).map(|geometry| geometry.file_bytes), file_bytes);
    }

    #[test]
    fn slots_are_rounded_up_to_pages() {
        check(3, 1, Some(3 * 4096));
        check(3, 4096, Some(3 * 4096));
        check(3, 4097, Some(3 * 8192));
        let geometry = Geometry::new(3, 5000).unwrap();
        assert_eq!([0, 1, 2].map(|slot| geometry.offset(slot)), [0, 8192, 16384]);
    }

    #[test]
    fn sizes_that_overflow_are_found() {
        check(1, u64::MAX, None);
        check(1, u64::MAX - 4094, None);
        check(2, 1 << 63, None);
        check(1, 1 << 63, None);
        check(u32::MAX, 1 << 31, Some(u64::from(u32::MAX) << 31));
        check(u32::MAX, (1 << 31) + 1, None);
    }
}
