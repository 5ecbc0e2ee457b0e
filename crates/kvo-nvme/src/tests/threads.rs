//! Real files and real threads.

use std::{
    collections::HashSet,
    fs::OpenOptions,
    os::unix::fs::FileExt,
    sync::{Arc, mpsc},
    time::Duration,
};

use kvo_core::{
    HostMemory, JobId, RequestId, SecondaryTier, SlotAccessError, SlotId, TierChunk, TierCompletion,
    TierDirection, TierJob, TierLookup,
};

use kvo_cpu::{HostRegion, RegionOptions};

use super::{Memory, Trap, content, key, keys};
use crate::{EngineKind, NvmeOptions, NvmeStore, OpenError, TierState};

const BYTES: usize = 20_000;
const STRIDE: u64 = 20_480;
/// Where the slots begin in the file.
const START: u64 = 2 << 20;
const LONG: Duration = Duration::from_mins(1);

/// A job for chunks `ns` in the host slots `first_slot`, `first_slot + 1`, ...
fn job(id: u64, direction: TierDirection, first_slot: u32, ns: impl IntoIterator<Item = u64>) -> TierJob {
    let chunks = ns.into_iter().zip(first_slot..).map(|(n, slot)| TierChunk {
        key: key(n),
        slot: SlotId(slot),
        end_token: None,
    });
    TierJob { id: JobId(id), req: RequestId(1), direction, chunks: chunks.collect() }
}

/// Writes chunks 0 to 15 from the host slots of the same numbers, and waits.
fn filled(dir: &std::path::Path, memory: &Arc<Memory>) -> NvmeStore {
    let mut store = NvmeStore::open(NvmeOptions::new(dir, 16, BYTES as u64), memory.clone()).unwrap();
    for n in 0..16 {
        memory.fill(n, &content(u64::from(n), 0, BYTES));
    }
    store.submit(job(1, TierDirection::Write, 0, 0..16)).unwrap();
    store.drain(LONG).unwrap();
    assert_eq!(polled(&mut store), [TierCompletion::done(JobId(1))]);
    store
}

fn polled(store: &mut NvmeStore) -> Vec<TierCompletion> {
    let mut done = Vec::new();
    store.poll(&mut done);
    store.assert_consistent();
    done
}

#[track_caller]
fn read_all(store: &mut NvmeStore, memory: &Memory, failed: &[u64]) {
    store.submit(job(2, TierDirection::Read, 16, 0..16)).unwrap();
    store.drain(LONG).unwrap();
    let failed_keys = keys(failed.iter().copied());
    assert_eq!(polled(store), [TierCompletion::except(JobId(2), failed_keys)]);
    for n in (0..16).filter(|n| !failed.contains(&u64::from(*n))) {
        assert_eq!(memory.bytes(16 + n), content(u64::from(n), 0, BYTES), "chunk {n}");
    }
}

#[test]
fn chunks_go_to_the_file_and_come_back() {
    let dir = tempfile::tempdir().unwrap();
    let memory = Memory::new(32, BYTES);
    let mut store = filled(dir.path(), &memory);
    read_all(&mut store, &memory, &[]);
    assert_eq!(store.stats().read.bytes, 16 * BYTES as u64);
}

#[test]
fn a_bit_flipped_on_disk_costs_exactly_that_chunk() {
    let dir = tempfile::tempdir().unwrap();
    let memory = Memory::new(32, BYTES);
    let mut store = filled(dir.path(), &memory);
    let file = OpenOptions::new().read(true).write(true).open(store.path()).unwrap();
    let (mut byte, at) = ([0], START + 5 * STRIDE + 12_345);
    file.read_exact_at(&mut byte, at).unwrap();
    file.write_all_at(&[byte[0] ^ 0x40], at).unwrap();
    read_all(&mut store, &memory, &[5]);
    assert_eq!(store.lookup(RequestId(1), &key(5)), TierLookup::Miss);
    assert_eq!(store.stats().checksum_failures, 1);
}

#[test]
fn a_file_cut_under_the_store_costs_misses() {
    let dir = tempfile::tempdir().unwrap();
    let memory = Memory::new(32, BYTES);
    let mut store = filled(dir.path(), &memory);
    let file = OpenOptions::new().write(true).open(store.path()).unwrap();
    file.set_len(START + 3 * STRIDE + 100).unwrap();
    read_all(&mut store, &memory, &(3..16).collect::<Vec<_>>());
    assert_eq!((store.counts().free, store.counts().quarantined), (13, 0));
    // The slots are written anew.
    store.submit(job(3, TierDirection::Write, 0, 0..16)).unwrap();
    store.drain(LONG).unwrap();
    assert_eq!(polled(&mut store), [TierCompletion::done(JobId(3)).with_copied(13)]);
    read_all(&mut store, &memory, &[]);
}

#[test]
fn many_jobs_at_once_are_each_reported_once() {
    let dir = tempfile::tempdir().unwrap();
    let memory = Memory::new(256, 512);
    let options = NvmeOptions { queue_chunks_max: 64, ..NvmeOptions::new(dir.path(), 40, 512) };
    let mut store = NvmeStore::open(options, memory.clone()).unwrap();
    let mut reported = HashSet::new();
    let mut open = HashSet::new();
    for id in 0..2000_u64 {
        // Each job has a stretch of the host memory of its own, as long as it is open.
        let first_slot = u32::try_from(id % 32 * 8).unwrap();
        while open.contains(&first_slot) {
            for done in polled(&mut store) {
                assert!(reported.insert(done.job), "{done:?}");
                open.remove(&u32::try_from(done.job.0 % 32 * 8).unwrap());
            }
            std::thread::yield_now();
        }
        let direction = if id % 3 == 0 { TierDirection::Write } else { TierDirection::Read };
        let ns = (0..8).map(|i| (id / 5 + i * 7) % 60);
        if direction == TierDirection::Write {
            for (n, slot) in ns.clone().zip(first_slot..) {
                memory.fill(slot, &content(n, 0, 512));
            }
        }
        let mut offered = job(id, direction, first_slot, ns);
        while let Err(rejected) = store.submit(offered) {
            offered = rejected.job;
            std::thread::yield_now();
        }
        open.insert(first_slot);
    }
    store.drain(LONG).unwrap();
    reported.extend(polled(&mut store).into_iter().map(|done| done.job));
    assert_eq!(reported.len(), 2000);
    let stats = store.stats();
    assert_eq!((stats.checksum_failures, stats.read_errors, stats.memory_errors), (0, 0, 0), "{stats:?}");
    assert!(stats.read.chunks > 0 && stats.chunks_evicted > 0, "{stats:?}");
}

/// Memory whose reads wait for the test, and which tells when it is gone.
struct Gate {
    inner: Arc<Memory>,
    open: std::sync::Mutex<mpsc::Receiver<()>>,
    gone: mpsc::Sender<()>,
}

impl HostMemory for Gate {
    fn num_slots(&self) -> u32 {
        self.inner.num_slots()
    }

    fn slot_bytes(&self) -> usize {
        self.inner.slot_bytes()
    }

    fn with_read(&self, slot: SlotId, read: &mut dyn FnMut(&[u8])) -> Result<(), SlotAccessError> {
        // An error means that the gate stands open for good.
        let _ = self.open.lock().unwrap().recv();
        self.inner.with_read(slot, read)
    }

    fn with_write(&self, slot: SlotId, write: &mut dyn FnMut(&mut [u8])) -> Result<(), SlotAccessError> {
        self.inner.with_write(slot, write)
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        let _ = self.gone.send(());
    }
}

#[test]
fn a_wait_ends_with_the_first_job_and_does_not_begin_where_nothing_is_in_flight() {
    let dir = tempfile::tempdir().unwrap();
    let (gate, open) = mpsc::channel();
    let (gone, _) = mpsc::channel();
    let memory = Arc::new(Gate { inner: Memory::new(8, BYTES), open: open.into(), gone });
    let options = NvmeOptions { num_threads: 1, ..NvmeOptions::new(dir.path(), 8, BYTES as u64) };
    let mut store = NvmeStore::open(options, memory).unwrap();
    assert!(!store.wait(LONG), "nothing is in flight");
    store.submit(job(1, TierDirection::Write, 0, [0])).unwrap();
    store.submit(job(2, TierDirection::Write, 1, 1..8)).unwrap();
    assert!(!store.wait(Duration::from_millis(5)), "nothing has ended");
    gate.send(()).unwrap();
    assert!(store.wait(LONG));
    assert!(store.wait(LONG), "what has ended waits for a poll");
    assert_eq!(polled(&mut store), [TierCompletion::done(JobId(1))]);
    drop(gate);
    assert!(store.wait(LONG));
    assert_eq!(polled(&mut store), [TierCompletion::done(JobId(2))]);
}

/// B34 and B65: the memory is let go when nothing touches it any more.
#[test]
fn a_dropped_store_finishes_what_is_queued_and_then_lets_the_memory_go() {
    let dir = tempfile::tempdir().unwrap();
    let inner = Memory::new(8, BYTES);
    for n in 0..8 {
        inner.fill(n, &content(u64::from(n), 0, BYTES));
    }
    let (gate, open) = mpsc::channel();
    let (gone, is_gone) = mpsc::channel();
    let memory = Arc::new(Gate { inner, open: open.into(), gone });
    let mut store = NvmeStore::open(NvmeOptions::new(dir.path(), 8, BYTES as u64), memory).unwrap();
    store.submit(job(1, TierDirection::Write, 0, 0..8)).unwrap();
    assert_eq!(store.drain(Duration::from_millis(20)).unwrap_err().inflight, 1);
    assert_eq!(polled(&mut store), []);
    let path = store.path().to_path_buf();
    let dropper = std::thread::spawn(move || drop(store));
    assert!(is_gone.recv_timeout(Duration::from_millis(50)).is_err(), "I/O is still running");
    drop(gate);
    dropper.join().unwrap();
    is_gone.recv_timeout(LONG).unwrap();
    let bytes = std::fs::read(path).unwrap();
    for n in 0..8_u64 {
        let at = usize::try_from(START + n * STRIDE).unwrap();
        assert_eq!(bytes[at..at + BYTES], content(n, 0, BYTES), "chunk {n} was queued and is written");
    }
}

#[test]
fn a_panic_on_a_thread_fails_its_chunk_and_the_thread_goes_on() {
    let dir = tempfile::tempdir().unwrap();
    let options = NvmeOptions { num_threads: 1, ..NvmeOptions::new(dir.path(), 8, BYTES as u64) };
    let mut store = NvmeStore::open(options, Arc::new(Trap(Memory::new(8, BYTES)))).unwrap();
    store.submit(job(1, TierDirection::Write, 0, 0..8)).unwrap();
    store.drain(LONG).unwrap();
    assert_eq!(polled(&mut store), [TierCompletion::except(JobId(1), keys([3]))]);
    assert_eq!((store.counts().evictable, store.counts().free), (7, 1));
}

#[test]
fn a_store_over_real_host_memory_uses_io_uring_where_it_works() {
    let dir = tempfile::tempdir().unwrap();
    let memory = Arc::new(HostRegion::anonymous(&RegionOptions::new(8, BYTES)).unwrap());
    let options = NvmeOptions::new(dir.path(), 4, BYTES as u64);
    let mut store =
        match NvmeStore::open(NvmeOptions { engine: EngineKind::Uring, ..options.clone() }, memory.clone()) {
            Ok(store) => store,
            Err(OpenError::Uring { step, source }) => {
                eprintln!("SKIPPED, no io_uring: {step}: {source}");
                return;
            }
            Err(error) => panic!("{error}"),
        };
    for n in 0..4 {
        memory
            .with_write(SlotId(n), &mut |bytes| bytes.copy_from_slice(&content(n.into(), 0, BYTES)))
            .unwrap();
    }
    store.submit(job(1, TierDirection::Write, 0, 0..4)).unwrap();
    store.drain(LONG).unwrap();
    store.submit(job(2, TierDirection::Read, 4, 0..4)).unwrap();
    store.drain(LONG).unwrap();
    assert_eq!(polled(&mut store), [1, 2].map(|id| TierCompletion::done(JobId(id))));
    for n in 0..4 {
        let expected = content(n.into(), 0, BYTES);
        memory.with_read(SlotId(4 + n), &mut |bytes| assert_eq!(bytes, expected)).unwrap();
    }
    assert!(store.engine_stats().sqes >= 8, "{:?}", store.engine_stats());
    // Without being told to, too, but not through the page cache.
    let other = tempfile::tempdir().unwrap();
    let store = NvmeStore::open(NvmeOptions::new(other.path(), 4, BYTES as u64), memory).unwrap();
    let info = store.engine_info();
    if info.direct_io {
        assert_eq!((info.kind, &info.fallback), (EngineKind::Uring, &None));
    } else {
        eprintln!("SKIPPED: no direct I/O in {}", other.path().display());
        assert_eq!(info.kind, EngineKind::Threads);
    }
}

#[test]
fn a_ring_whose_thread_has_ended_leaves_no_hits_that_cannot_be_loaded() {
    let dir = tempfile::tempdir().unwrap();
    let memory = Arc::new(HostRegion::anonymous(&RegionOptions::new(8, BYTES)).unwrap());
    let options = NvmeOptions { engine: EngineKind::Uring, ..NvmeOptions::new(dir.path(), 4, BYTES as u64) };
    let Ok(mut store) = NvmeStore::open(options, memory) else {
        eprintln!("SKIPPED, no io_uring");
        return;
    };
    store.submit(job(1, TierDirection::Write, 0, 0..4)).unwrap();
    store.drain(LONG).unwrap();
    assert_eq!(polled(&mut store), [TierCompletion::done(JobId(1))]);
    store.break_device(0);
    store.submit(job(2, TierDirection::Read, 4, 0..2)).unwrap();
    store.drain(LONG).unwrap();
    assert_eq!(polled(&mut store), [TierCompletion::except(JobId(2), keys([0, 1]))]);
    assert_eq!(store.lookup(RequestId(1), &key(3)), TierLookup::Miss);
    assert_eq!((store.state(), store.counts().evictable), (TierState::Open, 4), "what is there is kept");
    // The next opening finds all of it.
    store.close(LONG).unwrap();
    let memory = Arc::new(HostRegion::anonymous(&RegionOptions::new(8, BYTES)).unwrap());
    let mut store = NvmeStore::open(NvmeOptions::new(dir.path(), 4, BYTES as u64), memory).unwrap();
    assert_eq!(store.lookup(RequestId(1), &key(3)), TierLookup::Hit);
}
