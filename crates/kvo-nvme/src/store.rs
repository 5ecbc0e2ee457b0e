//! The store: jobs in, chunks out to the threads, completions back.

mod close;
mod direct;
mod ends;
mod job;
mod plan;
mod tier;

use std::{
    collections::VecDeque,
    fmt,
    fs::File,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use crossbeam_channel::Receiver;
use hashbrown::{HashMap, HashSet};
use kvo_core::{
    Clock, DrainError, HostMemory, JobId, OffloadKey, ReleasedSlot, RequestId, SlotAccessError, SlotId,
    TierCompletion,
};
use kvo_policies::{KeyAccess, RequestAccesses};

use crate::{
    Admission, EngineInfo, EngineKind, EngineStats, NvmeOptions, OpenError, RecoveryReport, SlotCounts,
    StoreStats, TierState, Wear,
    admission::Gate,
    catalog::{Catalog, EventLog},
    direct::{ALIGN_BYTES, DirectFile},
    engine::{self, Engine, Event, Op, Started},
    file::{ChunkFile, StableFile},
    files::{self, CleanAgain, OpenFiles},
    format::{RECORD_BYTES, first_generation},
    health::{Health, Pass},
    journal::{FileJournal, Journal, Recovered},
    options::Geometry,
    worker::Worker,
};

use self::job::{Job, Waiter};

#[cfg(any(test, feature = "testing"))]
use crate::slots::SlotState;

/// A bounded, checksummed, crash-safe store of chunks: a [`SecondaryTier`](kvo_core::SecondaryTier), or on its own.
///
/// One thread owns it. The calls of the trait neither block nor do I/O: they keep the books and talk to the store's
/// threads. [`drain`](Self::drain), [`wait`](Self::wait), [`write_chunk`](Self::write_chunk) and
/// [`read_chunk`](Self::read_chunk) do block; they are for programs without a scheduler to hold up.
///
/// [`close`](Self::close) it, or drop it: intake stops, what is queued is finished, and the index is left as the next
/// opening wants it; until then the threads own a share of the host memory. Jobs that were not reported by then never
/// will be. The files stay.
///
/// # What a job's report says
///
/// A write job is reported when each of its chunks is decided:
/// - written, or readable in the store already: done;
/// - being written by another job: decided as that write is, so that nothing is called done that cannot be read;
/// - no room, because everything else is pinned, being written, quarantined or of the same job: failed. The first
///   chunks of the job get what room there is, so that what is kept is closed towards the head;
/// - write failed: made once more, in another slot, if the fault was the slot's, which may be used no more then; else
///   failed (the host memory, a file system that became full or read-only);
/// - late: failed, when the job's deadline has passed; the report names the slots of the host memory that the device
///   may still touch.
///
/// A read job names as failed each key that is not readable when the job is submitted, a key that is still being
/// written among them, and each key whose read fails. A wrong checksum, an early end of the file, or an error of the
/// disk also drops the chunk from the store, and no other; a fault of the host memory drops nothing.
///
/// A key that is named twice in a job is written once and read twice.
pub struct NvmeStore {
    name: Arc<str>,
    /// Of the data files.
    paths: Vec<PathBuf>,
    /// Locked as long as the store is open.
    files: Vec<Arc<File>>,
    copied_bytes: Arc<AtomicU64>,
    copy_on_write: bool,
    recovery: RecoveryReport,
    queue_chunks_max: usize,
    durable: bool,
    /// How long a chunk may take.
    deadline: Duration,
    clock: Box<dyn Clock>,
    opened_at: Duration,
    /// Payload bytes written before this opening.
    written_before: u64,
    catalog: Catalog,
    requests: HashMap<RequestId, Request>,
    next_run: u64,
    jobs: HashMap<JobId, Job>,
    /// Those of them that are not decided.
    open_jobs: usize,
    /// The open jobs and some that have ended, by when they are late; deadlines ascend.
    deadlines: VecDeque<(Duration, JobId)>,
    /// Chunks of write jobs that wait for another job's write into this slot.
    waiters: HashMap<u32, Vec<Waiter>>,
    /// In durable mode: chunks that are written, and whose records are not yet safe, by slot.
    recording: HashMap<u32, Recording>,
    /// Slots of the host memory that late chunks have let go.
    released: Vec<ReleasedSlot>,
    /// Jobs that have ended and were not polled yet; they are still in `jobs`.
    completed: Vec<TierCompletion>,
    inflight_chunks: usize,
    /// Those of them that are read.
    inflight_reads: usize,
    /// Chunks that are read at once, a device.
    reads_inflight_max: usize,
    health: Health,
    /// What lets chunks in; none lets all in.
    gate: Option<Gate>,
    /// Chunks under way that try the device after a pause; almost always none.
    probes: Vec<Probe>,
    /// Counters only; the rest is filled in by [`stats`](Self::stats).
    stats: StoreStats,
    worker: Worker,
    engine: Box<dyn Engine>,
    journal: Box<dyn Journal>,
    info: EngineInfo,
    events: Receiver<Event>,
    life: Life,
    scratch: Scratch,
}

/// How far a store has come to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Life {
    Open,
    /// It takes nothing any more.
    Closed,
    /// It has no thread any more, and has left its index for the next opening as well as it could.
    Ended,
}

/// A request that was announced.
struct Request {
    accesses: RequestAccesses,
    /// The store's own number of it, for the records of what it writes.
    run: u64,
}

/// A chunk that waits for its record.
struct Recording {
    /// None for a direct call.
    op: Option<Op>,
    checksum: u64,
}

/// A chunk that tries the device.
struct Probe {
    job: JobId,
    index: u32,
    pass: Pass,
}

/// What a store is made of.
pub(crate) struct Parts {
    pub(crate) worker: Worker,
    pub(crate) engine: Box<dyn Engine>,
    pub(crate) info: EngineInfo,
    pub(crate) journal: Box<dyn Journal>,
    /// What the engine and the journal send to.
    pub(crate) events: Receiver<Event>,
    pub(crate) clock: Box<dyn Clock>,
    pub(crate) recovered: Recovered,
    /// Of this opening; below 2^24.
    pub(crate) epoch: u64,
    /// Payload bytes written in the store's life so far.
    pub(crate) written_before: u64,
    /// What direct I/O had to copy because it was not aligned.
    pub(crate) copied_bytes: Arc<AtomicU64>,
    pub(crate) copy_on_write: bool,
    /// The data files, as they were locked, and where they are.
    pub(crate) files: Vec<Arc<File>>,
    pub(crate) paths: Vec<PathBuf>,
}

/// Room that jobs use while they are submitted, kept so that a steady state allocates nothing.
#[derive(Default)]
struct Scratch {
    keys: HashSet<OffloadKey>,
    slots: HashSet<SlotId>,
    absent: Vec<u32>,
    /// Whether some of them have a slot, and are unproven.
    has_unproven: bool,
    offered: Vec<OffloadKey>,
    accesses: Vec<KeyAccess>,
    missed: Vec<KeyAccess>,
    ops: Vec<Op>,
}

impl NvmeStore {
    /// Opens the store for jobs between its files and `memory`.
    ///
    /// Its files are [`FILE_NAME`](crate::FILE_NAME) in each of `options.dirs` and
    /// [`INDEX_FILE_NAME`](crate::INDEX_FILE_NAME) in the first, locked against every other store. They are made if
    /// none of them is there, and have all their blocks when this returns: on file systems without `fallocate` they are
    /// filled with zeroes, which can take minutes. A store that is there is taken over with all that it held.
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
        let options = NvmeOptions { engine: EngineKind::Threads, num_threads: 1, ..options };
        Self::open_checked(options, geometry, Arc::new(NoMemory { slot_bytes: geometry.chunk_bytes }))
    }

    fn open_checked(
        options: NvmeOptions,
        geometry: Geometry,
        memory: Arc<dyn HostMemory>,
    ) -> Result<Self, OpenError> {
        // The kernel wants whole pages; what is not a multiple of them goes through the page cache.
        let direct = geometry.chunk_bytes.is_multiple_of(ALIGN_BYTES);
        let mut files = files::open(&options, geometry, direct)?;
        let (made, clean_again) = (std::mem::take(&mut files.made), files.clean_again.take());
        // What was opened over them has ended with them when it comes back with an error.
        Self::open_over(files, options, memory).inspect_err(|_| {
            files::remove(&made);
            clean_again.into_iter().for_each(CleanAgain::write);
        })
    }

    fn open_over(
        mut files: OpenFiles,
        options: NvmeOptions,
        memory: Arc<dyn HostMemory>,
    ) -> Result<Self, OpenError> {
        let data: Vec<_> = files.data.drain(..).map(|data| (Arc::new(data.file), data.path)).collect();
        let copied_bytes = Arc::<AtomicU64>::default();
        let chunk_file = |file: &Arc<File>| -> Arc<dyn ChunkFile> {
            if files.direct {
                Arc::new(DirectFile::new(Arc::clone(file), Arc::clone(&copied_bytes)))
            } else {
                Arc::clone(file) as _
            }
        };
        let worker = Worker {
            files: data.iter().map(|(file, _)| chunk_file(file)).collect(),
            memory,
            geometry: files.geometry,
            checksum: options.checksum,
        };
        let (sender, events) = crossbeam_channel::unbounded();
        let handles: Vec<_> = data.iter().map(|(file, _)| Arc::clone(file)).collect();
        let Started { engine, info } = engine::start(&options, &handles, &worker, &sender)?;
        let stable = data.iter().map(|(file, _)| Arc::clone(file) as Arc<dyn StableFile>).collect();
        let superblock = files.index.superblock.clone();
        let journal = FileJournal::start(files.index, stable, &options, sender)?;
        let started = Instant::now();
        let parts = Parts {
            worker,
            engine,
            info,
            journal: Box::new(journal),
            events,
            clock: Box::new(move || started.elapsed()),
            recovered: files.recovered,
            epoch: superblock.epoch,
            written_before: superblock.written_bytes,
            copied_bytes,
            copy_on_write: files.copy_on_write,
            files: handles,
            paths: data.into_iter().map(|(_, path)| path).collect(),
        };
        Self::assemble(options, parts)
    }

    /// Puts a store together that holds what was recovered.
    ///
    /// # Errors
    /// [`OpenError::Memory`] if there is too little memory for the books.
    pub(crate) fn assemble(options: NvmeOptions, parts: Parts) -> Result<Self, OpenError> {
        let Parts {
            worker,
            engine,
            info,
            journal,
            events,
            clock,
            recovered,
            epoch,
            written_before,
            copied_bytes,
            copy_on_write,
            files,
            paths,
        } = parts;
        let name: Arc<str> = options.name.into();
        let capacity = worker.geometry.capacity;
        let first = first_generation(epoch);
        let log = EventLog::new(Arc::clone(&name), options.record_events);
        let catalog = options
            .policy
            .try_build(capacity)
            .and_then(|policy| Catalog::new(capacity, policy, log, first, &recovered))
            .map_err(|_| OpenError::Memory { num_slots: capacity })?;
        let gate = (options.admission != Admission::default())
            .then(|| Gate::new(&options.admission, options.chunk_bytes))
            .transpose()
            .map_err(|_| OpenError::Memory { num_slots: capacity })?;
        tracing::debug!(tier = &*name, ?paths, capacity, epoch, policy = %options.policy, "opened");
        Ok(Self {
            name,
            paths,
            files,
            copied_bytes,
            copy_on_write,
            recovery: recovered.report,
            queue_chunks_max: options.queue_chunks_max,
            durable: options.durable,
            deadline: options.deadline,
            opened_at: clock.now(),
            written_before,
            clock,
            catalog,
            requests: HashMap::new(),
            next_run: first,
            jobs: HashMap::new(),
            open_jobs: 0,
            deadlines: VecDeque::new(),
            waiters: HashMap::new(),
            recording: HashMap::new(),
            released: Vec::new(),
            completed: Vec::new(),
            inflight_chunks: 0,
            inflight_reads: 0,
            reads_inflight_max: options.reads_inflight_max,
            gate,
            health: Health::new(options.breaker, options.durable),
            probes: Vec::new(),
            stats: StoreStats::default(),
            worker,
            engine,
            journal,
            info,
            events,
            life: Life::Open,
            scratch: Scratch::default(),
        })
    }

    fn new_request(&mut self) -> Request {
        self.next_run += 1;
        Request { accesses: RequestAccesses::default(), run: self.next_run }
    }

    /// The files of chunks, one a device.
    pub fn paths(&self) -> &[PathBuf] {
        &self.paths
    }

    /// The first of them.
    pub fn path(&self) -> &Path {
        &self.paths[0]
    }

    /// What opening the store has found in its index.
    pub fn recovery(&self) -> RecoveryReport {
        self.recovery
    }

    /// Whether a file lies on a file system that writes elsewhere what is overwritten (btrfs, zfs): there a write can
    /// meet a full disk although every block was allocated.
    pub fn is_on_copy_on_write(&self) -> bool {
        self.copy_on_write
    }

    /// Bytes of a chunk.
    pub fn chunk_bytes(&self) -> usize {
        self.worker.geometry.chunk_bytes
    }

    /// Chunks that fit: as many as were asked for, unless the store was made smaller.
    pub fn capacity_chunks(&self) -> u32 {
        self.worker.geometry.capacity
    }

    /// Bytes that the files of chunks have, all of them backed by blocks from the start.
    pub fn file_bytes(&self) -> u64 {
        let geometry = &self.worker.geometry;
        (0..geometry.num_devices).map(|device| geometry.file_bytes(device)).sum()
    }

    /// Where the slots are.
    pub fn counts(&self) -> SlotCounts {
        self.catalog.counts()
    }

    /// How the store is.
    pub fn state(&self) -> TierState {
        self.health.state()
    }

    /// What the store has done so far.
    pub fn stats(&self) -> StoreStats {
        StoreStats {
            counts: self.catalog.counts(),
            chunks_evicted: self.catalog.evicted(),
            chunks_dropped: self.catalog.dropped(),
            copied_bytes: self.copied_bytes.load(Ordering::Relaxed),
            state: self.state(),
            breaker_opened: self.health.counts().opened,
            read_only: self.health.counts().read_only,
            probes: self.health.counts().probes,
            durability_lost: self.health.durability_lost(),
            jobs_inflight: self.jobs.len(),
            chunks_inflight: self.inflight_chunks,
            ..self.stats
        }
    }

    /// What the store has cost its devices.
    pub fn wear(&self) -> Wear {
        let geometry = &self.worker.geometry;
        let slots_bytes = self.stats.write.chunks * geometry.stride_bytes;
        let files_bytes = slots_bytes + self.stats.records * RECORD_BYTES as u64;
        let written_bytes = self.stats.write.bytes;
        let open_days = self.clock.now().saturating_sub(self.opened_at).as_secs_f64() / 86_400.0;
        let capacity_bytes = u64::from(geometry.capacity) * geometry.stride_bytes;
        Wear {
            written_bytes,
            written_bytes_in_life: self.written_in_life(),
            write_amplification: if written_bytes == 0 {
                1.0
            } else {
                files_bytes as f64 / written_bytes as f64
            },
            drive_writes_per_day: if open_days == 0.0 {
                0.0
            } else {
                slots_bytes as f64 / capacity_bytes as f64 / open_days
            },
        }
    }

    /// What a superblock says of earlier openings may be any number.
    fn written_in_life(&self) -> u64 {
        self.written_before.saturating_add(self.stats.write.bytes)
    }

    /// What moves the bytes, and why.
    pub fn engine_info(&self) -> &EngineInfo {
        &self.info
    }

    /// What the engine has done so far.
    pub fn engine_stats(&self) -> EngineStats {
        self.engine.stats()
    }

    /// Waits up to `timeout` until nothing is in flight; the jobs that end on the way come with the next poll.
    ///
    /// Not for the scheduler's path: there, poll.
    ///
    /// # Errors
    /// [`DrainError`] with the number of jobs that are still open; the store goes on as before.
    pub fn drain(&mut self, timeout: Duration) -> Result<(), DrainError> {
        let start = Instant::now();
        self.wait_while(timeout, |store| store.open_jobs > 0);
        match self.open_jobs {
            0 => Ok(()),
            inflight => Err(DrainError { inflight, waited: start.elapsed() }),
        }
    }

    /// Waits up to `timeout` until a job has ended that the next poll reports; says whether one has. It does not wait
    /// where nothing is in flight.
    ///
    /// Not for the scheduler's path: there, poll. It is for a worker that has nothing else to do until then.
    pub fn wait(&mut self, timeout: Duration) -> bool {
        self.wait_while(timeout, |store| store.completed.is_empty() && store.open_jobs > 0);
        !self.completed.is_empty()
    }

    /// Takes events in while `goes_on`, up to `timeout`.
    fn wait_while(&mut self, timeout: Duration, goes_on: impl Fn(&Self) -> bool) {
        // A timeout beyond the clock's range is as good as a year.
        let deadline = Instant::now() + timeout.min(Duration::from_hours(365 * 24));
        self.absorb();
        while goes_on(self) {
            // Now and then, to give up what is late.
            let until = deadline.min(Instant::now() + Duration::from_millis(100));
            match self.events.recv_deadline(until) {
                Ok(event) => self.take_in(event),
                Err(_) if Instant::now() >= deadline => return,
                Err(_) => {}
            }
            self.absorb();
        }
    }
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
            .field("paths", &self.paths)
            .field("stats", &self.stats())
            .finish_non_exhaustive()
    }
}

#[cfg(any(test, feature = "testing"))]
impl NvmeStore {
    /// Checks that the books agree with each other.
    #[track_caller]
    pub(crate) fn assert_consistent(&self) {
        self.catalog.assert_consistent();
        let open: usize = self.jobs.values().map(Job::open_chunks).sum();
        let waiting: usize = self.waiters.values().map(Vec::len).sum();
        assert_eq!(open, self.inflight_chunks + waiting);
        assert_eq!(self.open_jobs, self.jobs.values().filter(|job| !job.is_decided()).count());
        if self.jobs.is_empty() {
            let counts = self.counts();
            // A chunk written alone can be late, too.
            let late = u32::try_from(self.recording.len()).expect("no more than slots");
            assert_eq!((counts.writing, counts.pinned, counts.retiring), (late, 0, 0), "{counts:?}");
        }
    }

    /// What each slot holds.
    pub(crate) fn slot_states(&self) -> impl Iterator<Item = (u32, SlotState)> {
        self.catalog.slot_states()
    }
}

#[cfg(test)]
impl NvmeStore {
    /// The data files, with their locks.
    pub(crate) fn files_for_tests(&self) -> Vec<Arc<File>> {
        self.files.clone()
    }

    /// Makes the thread of a device panic, if it has one of its own.
    pub(crate) fn break_device(&self, device: usize) {
        self.engine.break_device(device);
    }

    /// Requests that were announced and have not finished.
    pub(crate) fn num_requests(&self) -> usize {
        self.requests.len()
    }
}
