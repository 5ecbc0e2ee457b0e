//! Stores that a test fills, reads and reopens, and processes of single tests.

use std::{
    collections::BTreeMap,
    ffi::OsStr,
    path::PathBuf,
    process::Command,
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use kvo_core::{
    BlockHash, EventKind, GroupIdx, HostMemory, JobId, OffloadKey, RequestId, SecondaryTier, SlotId,
    TierChunk, TierDirection, TierJob, TierOutcome,
};
use kvo_cpu::{HostRegion, RegionOptions};
use kvo_nvme::{EngineKind, NvmeOptions, NvmeStore, OpenError};

/// Bytes of a chunk, and from one slot to the next.
pub(crate) const CHUNK_BYTES: usize = 16 << 10;
/// Chunks of a job at most.
pub(crate) const JOB_CHUNKS: usize = 8;
/// Jobs at once at most.
pub(crate) const JOBS_MAX: usize = 4;
/// Where the records begin in an index file, and how long each is, as `docs/FORMAT.md` has it.
pub(crate) const RECORDS_START: u64 = 8192;
pub(crate) const RECORD_BYTES: usize = 128;
/// What nothing takes on a machine that works.
pub(crate) const LONG: Duration = Duration::from_secs(30);

pub(crate) fn key(n: u64) -> OffloadKey {
    OffloadKey::new(BlockHash::from_u64(n), GroupIdx(0))
}

/// The chunk whose key this is.
pub(crate) fn number(key: &OffloadKey) -> u64 {
    u64::from_be_bytes(key.hash().0[24..].try_into().unwrap())
}

/// The content of chunk `n`: no two are equal, nor two words of one.
pub(crate) fn content(n: u64) -> Vec<u8> {
    let mut words = Rng(n << 20);
    (0..CHUNK_BYTES / 8).flat_map(|_| words.next().to_le_bytes()).collect()
}

/// Numbers that look random (`SplitMix64`).
#[derive(Debug)]
pub(crate) struct Rng(u64);

impl Rng {
    /// Of the seed in `KVO_NVME_SEED`, or of a fresh one; it is printed.
    pub(crate) fn of_test(test: &str) -> Self {
        let seed = match std::env::var("KVO_NVME_SEED") {
            Ok(seed) => seed.parse().expect("KVO_NVME_SEED is a number"),
            Err(_) => u64::from(SystemTime::now().duration_since(UNIX_EPOCH).unwrap().subsec_nanos()),
        };
        eprintln!("{test}: KVO_NVME_SEED={seed}");
        Self(seed)
    }

    pub(crate) fn of(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// One of the numbers below `end`.
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    /// So many different numbers below `end`.
    pub(crate) fn some_below(&mut self, count: usize, end: u64) -> Vec<u64> {
        let mut all: Vec<u64> = (0..end).collect();
        (0..count).map(|_| all.swap_remove(usize::try_from(self.below(all.len() as u64)).unwrap())).collect()
    }
}

pub(crate) fn options(dir: impl Into<PathBuf>, capacity: u32) -> NvmeOptions {
    NvmeOptions { record_events: true, ..NvmeOptions::new(dir, capacity, CHUNK_BYTES as u64) }
}

/// The engines that work here; says so if one does not.
pub(crate) fn engines() -> Vec<EngineKind> {
    let works = |engine| {
        let dir = tempfile::tempdir().unwrap();
        let opened = Rig::try_open(&NvmeOptions { engine, ..options(dir.path(), 1) });
        if let Err(error) = &opened {
            eprintln!("SKIPPED {engine:?}: {error:?}");
        }
        opened.is_ok()
    };
    let engines: Vec<_> =
        [EngineKind::Uring, EngineKind::Threads].into_iter().filter(|kind| works(*kind)).collect();
    assert!(!engines.is_empty(), "threads work everywhere");
    engines
}

/// What reads have found; wrong bytes fail the test at once.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Found {
    pub(crate) hits: Vec<u64>,
    pub(crate) misses: Vec<u64>,
}

/// A store with the host memory of its jobs.
pub(crate) struct Rig {
    pub(crate) store: NvmeStore,
    memory: Arc<HostRegion>,
    jobs: BTreeMap<JobId, (TierDirection, Vec<u64>)>,
    next_job: u64,
}

/// The first slot of a job's host memory.
fn lane(job: JobId) -> usize {
    usize::try_from(job.0).unwrap() % JOBS_MAX * JOB_CHUNKS
}

/// A job that has ended.
pub(crate) struct Ended {
    pub(crate) direction: TierDirection,
    pub(crate) done: Vec<u64>,
    pub(crate) failed: Vec<u64>,
}

impl Rig {
    pub(crate) fn open(options: &NvmeOptions) -> Self {
        Self::try_open(options).unwrap()
    }

    pub(crate) fn try_open(options: &NvmeOptions) -> Result<Self, OpenError> {
        let num_slots = u32::try_from(JOBS_MAX * JOB_CHUNKS).unwrap();
        let region = RegionOptions { prefault_threads: 0, ..RegionOptions::new(num_slots, CHUNK_BYTES) };
        let memory = Arc::new(HostRegion::anonymous(&region).unwrap());
        let store = NvmeStore::open(options.clone(), Arc::clone(&memory) as Arc<dyn HostMemory>)?;
        Ok(Self { store, memory, jobs: BTreeMap::new(), next_job: 0 })
    }

    pub(crate) fn num_jobs(&self) -> usize {
        self.jobs.len()
    }

    /// Starts a job; false if the store hands it back.
    pub(crate) fn submit(&mut self, direction: TierDirection, ns: &[u64]) -> bool {
        assert!(ns.len() <= JOB_CHUNKS && self.jobs.len() < JOBS_MAX);
        let id = JobId(self.next_job);
        assert!(self.may_submit());
        self.next_job += 1;
        let slots = (lane(id)..).map(|slot| SlotId(u32::try_from(slot).unwrap()));
        let chunks: Vec<_> =
            ns.iter().zip(slots).map(|(&n, slot)| TierChunk { key: key(n), slot, end_token: None }).collect();
        for (chunk, &n) in chunks.iter().zip(ns) {
            let bytes = if direction == TierDirection::Write { content(n) } else { vec![0; CHUNK_BYTES] };
            self.memory.with_write(chunk.slot, &mut |slot| slot.copy_from_slice(&bytes)).unwrap();
        }
        if self.store.submit(TierJob { id, req: RequestId(id.0), direction, chunks }).is_err() {
            return false;
        }
        self.jobs.insert(id, (direction, ns.to_vec()));
        true
    }

    /// Whether the next job's host memory is in no other job's hands.
    pub(crate) fn may_submit(&self) -> bool {
        !self.jobs.keys().any(|job| lane(*job) == lane(JobId(self.next_job)))
    }

    /// The jobs that have ended; what was read is compared.
    pub(crate) fn poll(&mut self) -> Vec<Ended> {
        let mut completions = Vec::new();
        self.store.poll(&mut completions);
        completions.into_iter().map(|completion| self.ended(completion.job, &completion.outcome)).collect()
    }

    fn ended(&mut self, id: JobId, outcome: &TierOutcome) -> Ended {
        let (direction, ns) = self.jobs.remove(&id).expect("each job is reported once");
        let is_failed = |n: &u64| match outcome {
            TierOutcome::Done => false,
            TierOutcome::Partial { failed } => failed.contains(&key(*n)),
            TierOutcome::Failed => true,
        };
        if direction == TierDirection::Read {
            for (at, n) in ns.iter().enumerate().filter(|(_, n)| !is_failed(n)) {
                let slot = SlotId(u32::try_from(lane(id) + at).unwrap());
                let mut is_right = false;
                self.memory.with_read(slot, &mut |bytes| is_right = bytes == content(*n)).unwrap();
                assert!(is_right, "chunk {n} came back with wrong bytes");
            }
        }
        let (failed, done) = ns.into_iter().partition(is_failed);
        Ended { direction, done, failed }
    }

    /// Runs jobs one after the other; the chunks that were moved, and the others.
    fn run(&mut self, direction: TierDirection, ns: impl IntoIterator<Item = u64>) -> Found {
        let mut found = Found::default();
        for ns in ns.into_iter().collect::<Vec<_>>().chunks(JOB_CHUNKS) {
            if !self.submit(direction, ns) {
                found.misses.extend(ns);
                continue;
            }
            self.store.drain(LONG).unwrap();
            for ended in self.poll() {
                found.hits.extend(ended.done);
                found.misses.extend(ended.failed);
            }
        }
        found
    }

    /// Writes chunks by jobs.
    pub(crate) fn put(&mut self, ns: impl IntoIterator<Item = u64>) -> Found {
        self.run(TierDirection::Write, ns)
    }

    /// Reads chunks by jobs, and compares them.
    pub(crate) fn get(&mut self, ns: impl IntoIterator<Item = u64>) -> Found {
        self.run(TierDirection::Read, ns)
    }

    /// What has happened to chunks since the last call, in the store's order.
    pub(crate) fn events(&mut self) -> Vec<(EventKind, u64)> {
        let mut events = Vec::new();
        self.store.take_events(&mut events);
        events.iter().flat_map(|event| event.keys.iter().map(|key| (event.kind, number(key)))).collect()
    }

    pub(crate) fn close(self) {
        self.store.close(LONG).unwrap();
    }
}

/// Reads every chunk below `end` on its own; wrong bytes fail the test.
pub(crate) fn read_all(store: &mut NvmeStore, end: u64) -> Found {
    let (mut found, mut bytes) = (Found::default(), vec![0; CHUNK_BYTES]);
    for n in 0..end {
        if store.read_chunk(&key(n), &mut bytes).unwrap() {
            assert!(bytes == content(n), "chunk {n} came back with wrong bytes");
            found.hits.push(n);
        } else {
            found.misses.push(n);
        }
    }
    found
}

const CHILD: &str = "KVO_NVME_KERNEL_CHILD";

/// What the process that runs this test was told, if it was started by [`child`].
pub(crate) fn told() -> Option<String> {
    std::env::var(CHILD).ok()
}

/// A process that runs one test of this program, and is told something.
pub(crate) fn child(module: &str, test: &str, told: impl AsRef<OsStr>) -> Command {
    let (_, module) = module.split_once("::").unwrap();
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args([&format!("{module}::{test}"), "--exact", "--nocapture", "--test-threads=1"])
        .env(CHILD, told);
    command
}

/// Whether this is the process of a test alone. If not, such a process is started, and must end well.
#[track_caller]
pub(crate) fn is_alone(module: &str, test: &str) -> bool {
    if told().is_some() {
        return true;
    }
    let output = child(module, test, "").output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    eprint!("{said}");
    let ran = String::from_utf8_lossy(&output.stdout).contains("1 passed");
    assert!(output.status.success() && ran, "{test}: {:?}", output.status);
    false
}
