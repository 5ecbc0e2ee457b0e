//! What a store is opened with.

use std::{path::PathBuf, time::Duration};

use kvo_core::HostMemory;
use kvo_policies::PolicyKind;

use crate::{OpenError, format::DATA_START};

/// Slots lie in the file at multiples of this many bytes.
const ALIGN_BYTES: u64 = 4096;

/// The most I/O threads a store starts. A device is saturated by far fewer.
const NUM_THREADS_MAX: usize = 256;

/// What a store is opened with; checked once, by [`NvmeStore::open`](crate::NvmeStore::open).
#[derive(Clone, Debug)]
pub struct NvmeOptions {
    /// One directory a device, each to itself. They must exist. Chunks are dealt to them in turns; the index is in the
    /// first.
    pub dirs: Vec<PathBuf>,
    /// Chunks that the store holds at most, over all devices. All of their room is taken from the file systems at once.
    pub capacity_chunks: u32,
    /// Bytes of a chunk: those of a slot of the host memory, below 4 GiB. In the files they are rounded up to 4 KiB.
    pub chunk_bytes: u64,
    /// What the bytes mean: model, dtype, layout and whatever else makes them useless to another. A store that was made
    /// with another fingerprint is another store.
    pub fingerprint: [u8; 32],
    /// What to do with a store in the directories that is not this one.
    pub if_other: IfOther,
    /// What to do if the file systems have less room than the chunks need.
    pub if_no_room: IfNoRoom,
    /// Whether to write every block once when the store is made.
    pub preinit: Preinit,
    /// Whether a write is reported only when it would survive a loss of power. Slower; without it such a loss costs
    /// the chunks that the kernel had not yet given to the device, and never a wrong byte.
    pub durable: bool,
    /// What is computed over each chunk.
    pub checksum: ChecksumKind,
    /// The tier's name in events, stats and spans.
    pub name: String,
    /// Which chunk goes first when the store is full.
    pub policy: PolicyKind,
    /// Which chunks are let in.
    pub admission: Admission,
    /// What moves the bytes.
    pub engine: EngineKind,
    /// Threads of the engine that uses threads, over all devices. Each runs one chunk at a time, so this is also the
    /// depth of the devices' queues: with fewer than 8 an SSD is not busy.
    pub num_threads: usize,
    /// Threads that compute checksums for the engine that uses `io_uring`. One keeps up with more than 20 GB/s.
    pub checksum_threads: usize,
    /// Chunks that the kernel reads at once, a device, at most 1024; further ones wait their turn. For `io_uring`.
    pub reads_inflight_max: usize,
    /// Bytes that the kernel writes at once, a device, but at least one chunk. For `io_uring`.
    pub write_bytes_max: u64,
    /// The same while reads wait or run, and for 10 ms after: writes would slow them down several times. Longer chunks
    /// are then written in pieces of this length, but at least 256 KiB, one after the other. For `io_uring`.
    pub write_bytes_while_reading_max: u64,
    /// How long a chunk may take, from its submission; then it is reported as failed, whatever the device does. Its
    /// slots stay taken until the device has ended with them.
    pub deadline: Duration,
    /// When errors close the store for a while.
    pub breaker: BreakerOptions,
    /// Chunks that may wait for the engine or be with it. A job that would go beyond it is handed back as
    /// [`Busy`](kvo_core::RejectReason::Busy); but an idle store takes a job of any size, so that none is refused for
    /// ever.
    pub queue_chunks_max: usize,
    /// Whether to record events. If so, drain them: they are kept until they are taken.
    pub record_events: bool,
}

/// What to do with a store that was made with other options, or that is damaged: its superblocks or the header of a data
/// file cannot be read, or a file has another length or is missing. And with files that are no store of this version.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum IfOther {
    /// Refuse to open, and touch nothing.
    #[default]
    Refuse,
    /// Empty it: make a new store in its place. Also one that lacks a data file only because a disk is not mounted there, as
    /// long as its directory is.
    Empty,
}

/// What to do if there is too little room for the chunks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum IfNoRoom {
    /// Refuse to open.
    #[default]
    Refuse,
    /// Make the store smaller: as many chunks as fit while a hundredth of the file system stays free, at least one.
    Shrink,
}

/// Whether a store that is made writes its blocks once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Preinit {
    /// No: the first write to each block is slower, by half on some file systems.
    #[default]
    None,
    /// All of them before the store is opened: minutes for a terabyte.
    Full,
}

/// What is computed over each chunk, and compared when it is read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum ChecksumKind {
    /// XXH3-64.
    #[default]
    Xxh3,
    /// Nothing, to measure what the rest costs: a wrong byte is not noticed, so a store made like this is opened with
    /// this kind only, and no tier should.
    #[cfg(feature = "testing")]
    Off,
}

/// What moves the bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum EngineKind {
    /// `io_uring`, if the files are open for direct I/O and it passes a probe when the store is opened, else threads.
    #[default]
    Auto,
    /// `io_uring`, or the store does not open.
    Uring,
    /// Threads with positional I/O.
    Threads,
}

/// Which chunks are let in. A chunk that is not counts as failed for its job, and in
/// [`chunks_unadmitted`](crate::StoreStats::chunks_unadmitted).
///
/// A tail without its head is of no use. So of a job nothing is let in behind the first chunk that is not; nor of later
/// jobs of its request, until the chunks that it was refused are in the store or it offers them again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Admission {
    /// Which of those offered.
    pub rule: AdmissionRule,
    /// Bytes that may be written a day, to spare a device; none is without end. The budget begins empty, fills up evenly,
    /// and holds an hour's worth, but at least one chunk: by so much at most any 24 hours can exceed it.
    pub bytes_per_day_max: Option<u64>,
    /// Whether to let nothing in while more chunks are being read than [`reads_inflight_max`](NvmeOptions::reads_inflight_max)
    /// for each device, all devices together; whatever moves the bytes, and however the reads are spread.
    pub skip_while_reads_wait: bool,
}

/// Which of the chunks that are offered are let in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum AdmissionRule {
    /// All.
    #[default]
    Always,
    /// Those that are offered by a second request, as far as `keys_max` keys are remembered. A chunk that was refused for
    /// another reason was offered all the same.
    SecondOffer {
        /// Keys that are remembered, the latest.
        keys_max: u32,
    },
}

impl Default for Admission {
    /// Everything.
    fn default() -> Self {
        Self { rule: AdmissionRule::Always, bytes_per_day_max: None, skip_while_reads_wait: false }
    }
}

/// When errors close the store for a while: then every lookup is a miss, jobs are handed back, and after the pause a
/// single chunk tries whether the device is back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BreakerOptions {
    /// So many errors of the device,
    pub errors: u32,
    /// within this time, close it
    pub window: Duration,
    /// for this long.
    pub pause: Duration,
}

impl Default for BreakerOptions {
    /// 8 errors in 10 seconds, 10 seconds.
    fn default() -> Self {
        Self { errors: 8, window: Duration::from_secs(10), pause: Duration::from_secs(10) }
    }
}

impl NvmeOptions {
    /// A store of `capacity_chunks` chunks of `chunk_bytes` each in `dir`: named `nvme`, LRU, everything let in, not
    /// durable, `io_uring` where that works, without events; it refuses what is not its own, and too little room.
    pub fn new(dir: impl Into<PathBuf>, capacity_chunks: u32, chunk_bytes: u64) -> Self {
        Self {
            dirs: vec![dir.into()],
            capacity_chunks,
            chunk_bytes,
            fingerprint: [0; 32],
            if_other: IfOther::Refuse,
            if_no_room: IfNoRoom::Refuse,
            preinit: Preinit::None,
            durable: false,
            checksum: ChecksumKind::Xxh3,
            name: "nvme".to_owned(),
            policy: PolicyKind::Lru,
            admission: Admission::default(),
            engine: EngineKind::Auto,
            num_threads: 8,
            checksum_threads: 1,
            reads_inflight_max: 16,
            write_bytes_max: 8 << 20,
            write_bytes_while_reading_max: 1 << 20,
            deadline: Duration::from_secs(30),
            breaker: BreakerOptions::default(),
            queue_chunks_max: 1024,
            record_events: false,
        }
    }

    /// Checks every number and works out where the slots lie.
    pub(crate) fn geometry(&self, memory: Option<&dyn HostMemory>) -> Result<Geometry, OpenError> {
        let num_devices = u32::try_from(self.dirs.len()).unwrap_or(u32::MAX);
        for (field, zero) in [
            ("dirs", num_devices == 0),
            ("capacity_chunks", self.capacity_chunks == 0),
            ("chunk_bytes", self.chunk_bytes == 0),
            ("num_threads", self.num_threads == 0),
            ("checksum_threads", self.checksum_threads == 0),
            ("reads_inflight_max", self.reads_inflight_max == 0),
            ("deadline", self.deadline.is_zero()),
            ("breaker.errors", self.breaker.errors == 0),
            (
                "admission.rule.keys_max",
                matches!(self.admission.rule, AdmissionRule::SecondOffer { keys_max: 0 }),
            ),
            ("admission.bytes_per_day_max", self.admission.bytes_per_day_max == Some(0)),
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
        if self.capacity_chunks < num_devices {
            return Err(OpenError::TooFew { capacity_chunks: self.capacity_chunks, num_devices });
        }
        if let Some(slot_bytes) = memory.map(|memory| memory.slot_bytes() as u64)
            && slot_bytes != self.chunk_bytes
        {
            return Err(OpenError::ChunkBytes { chunk_bytes: self.chunk_bytes, slot_bytes });
        }
        Geometry::new(self.capacity_chunks, num_devices, self.chunk_bytes).ok_or(OpenError::Overflow {
            capacity_chunks: self.capacity_chunks,
            chunk_bytes: self.chunk_bytes,
        })
    }
}

/// Where the slots lie in the files: slot `n` of `d` devices is slot `n / d` of device `n % d`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Geometry {
    pub(crate) capacity: u32,
    pub(crate) num_devices: u32,
    /// Bytes of a chunk.
    pub(crate) chunk_bytes: usize,
    /// From one slot of a file to the next, in bytes.
    pub(crate) stride_bytes: u64,
}

/// A place in one of the files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) device: u32,
    pub(crate) offset: u64,
}

impl Geometry {
    pub(crate) fn new(capacity: u32, num_devices: u32, chunk_bytes: u64) -> Option<Self> {
        let stride_bytes = chunk_bytes.checked_next_multiple_of(ALIGN_BYTES)?;
        let all = stride_bytes.checked_mul(u64::from(capacity))?.checked_add(DATA_START)?;
        i64::try_from(all).ok()?;
        // A record keeps the length in 32 bits.
        let chunk_bytes = usize::try_from(u32::try_from(chunk_bytes).ok()?).ok()?;
        Some(Self { capacity, num_devices, chunk_bytes, stride_bytes })
    }

    /// The same with another number of slots, not more than there were.
    pub(crate) fn with_capacity(&self, capacity: u32) -> Self {
        debug_assert!(capacity <= self.capacity, "{capacity} slots of {}", self.capacity);
        Self { capacity, ..*self }
    }

    /// Where `slot` begins. Below the file's length, which fits an `i64`, so it cannot overflow.
    pub(crate) fn place(&self, slot: u32) -> Place {
        debug_assert!(slot < self.capacity, "slot {slot} of {}", self.capacity);
        let offset = DATA_START + u64::from(slot / self.num_devices) * self.stride_bytes;
        Place { device: slot % self.num_devices, offset }
    }

    /// Slots in the file of `device`.
    pub(crate) fn slots_of(&self, device: u32) -> u32 {
        self.capacity / self.num_devices + u32::from(device < self.capacity % self.num_devices)
    }

    /// Bytes of the file of `device`.
    pub(crate) fn file_bytes(&self, device: u32) -> u64 {
        DATA_START + u64::from(self.slots_of(device)) * self.stride_bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(capacity: u32, chunk_bytes: u64, slots_bytes: Option<u64>) {
        let geometry = Geometry::new(capacity, 1, chunk_bytes);
        assert_eq!(geometry.map(|geometry| geometry.file_bytes(0) - DATA_START), slots_bytes);
    }

    #[test]
    fn slots_are_rounded_up_to_pages() {
        check(3, 1, Some(3 * 4096));
        check(3, 4096, Some(3 * 4096));
        check(3, 4097, Some(3 * 8192));
        let geometry = Geometry::new(3, 1, 5000).unwrap();
        assert_eq!([0, 1, 2].map(|slot| geometry.place(slot).offset - DATA_START), [0, 8192, 16384]);
    }

    #[test]
    fn slots_are_dealt_to_the_devices_in_turns() {
        let geometry = Geometry::new(7, 3, 4096).unwrap();
        let places = [0, 1, 2, 3, 6].map(|slot| geometry.place(slot));
        let place = |device, index: u64| Place { device, offset: DATA_START + index * 4096 };
        assert_eq!(places, [place(0, 0), place(1, 0), place(2, 0), place(0, 1), place(0, 2)]);
        assert_eq!([0, 1, 2].map(|device| geometry.slots_of(device)), [3, 2, 2]);
        assert_eq!(geometry.file_bytes(1), DATA_START + 2 * 4096);
    }

    /// B38: a chunk of 4 GiB, whose length would be lost, is refused before anything is made.
    #[test]
    fn sizes_that_overflow_are_found() {
        check(1, u64::MAX, None);
        check(1, u64::MAX - 4094, None);
        check(1, (1 << 32) - 1, Some(1 << 32));
        check(1, 1 << 32, None);
        check(1, (1 << 32) + 1, None);
        check(u32::MAX, 1 << 31, Some(u64::from(u32::MAX) << 31));
        check(u32::MAX, (1 << 31) + 1, None);
    }
}
