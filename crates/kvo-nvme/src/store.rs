//! The store: jobs in, chunks out to the threads, completions back.

mod direct;
mod job;
mod tier;

use std::{
    fmt, fs,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use crossbeam_channel::Receiver;
use hashbrown::{HashMap, HashSet};
use kvo_core::{
    DrainError, HostMemory, JobId, OffloadKey, RequestId, SlotAccessError, SlotId, TierCompletion,
};
use kvo_policies::{KeyAccess, RequestAccesses};

use crate::{
    NvmeOptions, OpenError, SlotCounts, StoreStats,
    catalog::{Catalog, EventLog},
    engine::{Engine, Event, Op, Pool},
    options::Geometry,
    room::{self, Room},
    worker::Worker,
};

use self::job::{Job, Waiter};

#[cfg(test)]
use crate::slots::SlotState;

/// A bounded, checksummed store of chunks in one file: a [`SecondaryTier`](kvo_core::SecondaryTier), or on its own.
///
/// One thread owns it. The calls of the trait neither block nor do I/O: they keep the books and talk to the store's
/// threads. [`drain`](Self::drain), [`write_chunk`](Self::write_chunk) and [`read_chunk`](Self::read_chunk) do block;
/// they are for programs without a scheduler to hold up.
///
/// Dropping the store stops intake, lets the threads finish what is queued, and joins them; until then they own a
/// share of the host memory. Jobs that were not reported by then never will be. The file stays.
///
/// # What a job's report says
///
/// A write job is reported when each of its chunks is decided:
/// - written, or readable in the store already: done;
/// - being written by another job: decided as that write is, so that nothing is called done that cannot be read;
/// - no room, because everything else is pinned, being written, quarantined or of the same job: failed. The first
///   chunks of the job get what room there is, so that what is kept is closed towards the head;
/// - write failed: failed, and its slot is quarantined, unless the fault was not the slot's (the host memory, a
///   file system that became full or read-only).
///
/// A read job names as failed each key that is not readable when the job is submitted, a key that is still being
/// written among them, and each key whose read fails. A wrong checksum, an early end of the file, or an error of the
/// disk also drops the chunk from the store, and no other; a fault of the host memory drops nothing.
///
/// A key that is named twice in a job is written once and read twice.
pub struct NvmeStore {
    name: Arc<str>,
    path: PathBuf,
    queue_chunks_max: usize,
    catalog: Catalog,
    requests: HashMap<RequestId, RequestAccesses>,
    jobs: HashMap<JobId, Job>,
    /// Chunks of write jobs that wait for another job's write into this slot.
    waiters: HashMap<u32, Vec<Waiter>>,
    /// Jobs that have ended and were not polled yet; they are still in `jobs`.
    completed: Vec<TierCompletion>,
    inflight_chunks: usize,
    /// Counters only; the rest is filled in by [`stats`](Self::stats).
    stats: StoreStats,
    worker: Worker,
    engine: Box<dyn Engine>,
    events: Receiver<Event>,
    scratch: Scratch,
}

/// Room that jobs use while they are submitted, kept so that a steady state allocates nothing.
#[derive(Default)]
struct Scratch {
    keys: HashSet<OffloadKey>,
    slots: HashSet<SlotId>,
    absent: Vec<u32>,
    accesses: Vec<KeyAccess>,
    missed: Vec<KeyAccess>,
    ops: Vec<Op>,
}

impl NvmeStore {
    /// Opens the store for jobs between its file and `memory`.
    ///
    /// The file is [`FILE_NAME`](crate::FILE_NAME) in `options.dir`, locked against every other store, and has all
    /// its blocks when this returns: on file systems without `fallocate` it is filled with zeroes, which can take
    /// minutes. A file that an earlier store left there is used as room; what it held is forgotten.
    ///
    /// # Errors
    /// See [`OpenError`]; nothing is left behind.
    pub fn open(options: NvmeOptions, memory: Arc<dyn HostMemory>) -> Result<Self, OpenError> {
        let geometry = options.geometry(Some(&*memory))?;
        Self::open_checked(options, geometry, memory)
    }

    /// Opens the store for direct calls only: it has no host memory, and hands every job back as
    /// [`Invalid`](kvo_core::RejectReason::Invalid).
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn open_without_memory(options: NvmeOptions) -> Result<Self, OpenError> {
        let geometry = options.geometry(None)?;
        // Nothing can be queued, so one thread is more than enough; direct calls work on the caller's.
        let options = NvmeOptions { num_threads: 1, ..options };
        Self::open_checked(options, geometry, Arc::new(NoMemory { slot_bytes: geometry.chunk_bytes }))
    }

    fn open_checked(
        options: NvmeOptions,
        geometry: Geometry,
        memory: Arc<dyn HostMemory>,
    ) -> Result<Self, OpenError> {
        let Room { file, path, created } = room::prepare(&options.dirs[0], geometry.file_bytes(0))?;
        let worker = Worker { files: Arc::new([Arc::new(file) as _]), memory, geometry };
        let (sender, events) = crossbeam_channel::unbounded();
        let pool = Pool::start(options.num_threads, &worker, &sender).inspect_err(|_| {
            if created {
                // What cannot be removed is room for the next store.
                let _ = fs::remove_file(&path);
            }
        })?;
        Ok(Self::assemble(options, path, worker, (Box::new(pool), events), first_generation()))
    }

    pub(crate) fn assemble(
        options: NvmeOptions,
        path: PathBuf,
        worker: Worker,
        (engine, events): (Box<dyn Engine>, Receiver<Event>),
        first_generation: u64,
    ) -> Self {
        let name: Arc<str> = options.name.into();
        let capacity = options.capacity_chunks;
        tracing::debug!(tier = &*name, ?path, capacity, policy = %options.policy, "opened");
        let log = EventLog::new(Arc::clone(&name), options.record_events);
        Self {
            name,
            path,
            queue_chunks_max: options.queue_chunks_max,
            catalog: Catalog::new(capacity, options.policy.build(capacity), log, first_generation),
            requests: HashMap::new(),
            jobs: HashMap::new(),
            waiters: HashMap::new(),
            completed: Vec::new(),
            inflight_chunks: 0,
            stats: StoreStats::default(),
            worker,
            engine,
            events,
            scratch: Scratch::default(),
        }
    }

    /// The store's file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Bytes of a chunk.
    pub fn chunk_bytes(&self) -> usize {
        self.worker.geometry.chunk_bytes
    }

    /// Bytes that the file has, all of them backed by blocks from the start.
    pub fn file_bytes(&self) -> u64 {
        self.worker.geometry.file_bytes(0)
    }

    /// Where the slots are.
    pub fn counts(&self) -> SlotCounts {
        self.catalog.counts()
    }

    /// What the store has done so far.
    pub fn stats(&self) -> StoreStats {
        StoreStats {
            counts: self.catalog.counts(),
            chunks_evicted: self.catalog.evicted(),
            chunks_dropped: self.catalog.dropped(),
            jobs_inflight: self.jobs.len(),
            chunks_inflight: self.inflight_chunks,
            ..self.stats
        }
    }

    /// Waits up to `timeout` until nothing is in flight; the jobs that end on the way come with the next poll.
    ///
    /// Not for the scheduler's path: there, poll.
    ///
    /// # Errors
    /// [`DrainError`] with the number of jobs that are still open; the store goes on as before.
    pub fn drain(&mut self, timeout: Duration) -> Result<(), DrainError> {
        let start = Instant::now();
        // A timeout beyond the clock's range is as good as a year.
        let deadline = start + timeout.min(Duration::from_hours(365 * 24));
        while self.inflight_chunks > 0 {
            let Ok(event) = self.events.recv_deadline(deadline) else {
                let inflight = self.jobs.len() - self.completed.len();
                return Err(DrainError { inflight, waited: start.elapsed() });
            };
            self.take_in(event);
        }
        Ok(())
    }
}

/// How long a store that is dropped waits for what is under way.
const PATIENCE: Duration = Duration::from_mins(1);

/// Generations start at the time of opening, in nanoseconds. Each write takes one, which is far slower than the
/// clock, so no generation of an earlier store on the same file comes again.
fn first_generation() -> u64 {
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since_epoch.as_nanos()).unwrap_or(u64::MAX / 2)
}

/// The memory of a store that has none.
struct NoMemory {
    slot_bytes: usize,
}

impl HostMemory for NoMemory {
    fn num_slots(&self) -> u32 {
        0
    }

    fn slot_bytes(&self) -> usize {
        self.slot_bytes
    }

    fn with_read(&self, slot: SlotId, _: &mut dyn FnMut(&[u8])) -> Result<(), SlotAccessError> {
        Err(SlotAccessError::OutOfRange { slot, num_slots: 0 })
    }

    fn with_write(&self, slot: SlotId, _: &mut dyn FnMut(&mut [u8])) -> Result<(), SlotAccessError> {
        Err(SlotAccessError::OutOfRange { slot, num_slots: 0 })
    }
}

impl fmt::Debug for NvmeStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NvmeStore")
            .field("name", &self.name)
            .field("path", &self.path)
            .field("stats", &self.stats())
            .finish_non_exhaustive()
    }
}

impl Drop for NvmeStore {
    fn drop(&mut self) {
        if let Err(stuck) = self.engine.stop(PATIENCE) {
            tracing::error!(tier = &*self.name, %stuck, "dropped; the host memory under them is never unmapped");
        }
    }
}

#[cfg(test)]
impl NvmeStore {
    /// Checks that the books agree with each other.
    #[track_caller]
    pub(crate) fn assert_consistent(&self) {
        self.catalog.assert_consistent();
        for slot in self.waiters.keys() {
            assert!(
                self.catalog.is_writing(*slot),
                "chunks wait for slot {slot}, which is not being written"
            );
        }
        let open: usize = self.jobs.values().map(Job::undecided).sum();
        let waiting: usize = self.waiters.values().map(Vec::len).sum();
        assert_eq!(open, self.inflight_chunks + waiting);
        if self.jobs.is_empty() {
            let counts = self.counts();
            assert_eq!((counts.writing, counts.pinned, counts.retiring), (0, 0, 0), "{counts:?}");
        }
    }

    /// What each slot holds.
    pub(crate) fn slot_states(&self) -> impl Iterator<Item = (u32, SlotState)> {
        self.catalog.slot_states()
    }

    /// Requests that were announced and have not finished.
    pub(crate) fn num_requests(&self) -> usize {
        self.requests.len()
    }
}
