//! B65: the end, in whatever state. `docs/SHUTDOWN.md` says in which order.
//!
//! A device's kernels and a store's copies wait at gates that the test opens, so what is open stays open.

use std::{
    path::Path,
    sync::{Arc, Condvar, Mutex, mpsc},
    time::{Duration, Instant},
};

use kvo_connector::{
    BlockHasher, Connector, ConnectorOptions, CopyFailure, CopyOutcome, GroupOptions, Namespace, PrefixMatch,
    RequestParams, Scheduled, StepInput, StepPlan, Worker, WorkerOptions, WorkerReport,
};
use kvo_core::{
    BlockId, ChunkLayout, DeviceSpan, HostMemory, ManualClock, RequestId, SecondaryTier, SlotAccessError,
    SlotId,
};
use kvo_cpu::{CpuManager, CpuOptions, HostRegion, RegionOptions};
use kvo_cuda::{BlockLayout, Fingerprint, HostDevice, HostDeviceOptions};
use kvo_nvme::{EngineKind, NvmeOptions, NvmeStore};
use kvo_policies::Lru;
use kvo_tiering::{TieringManager, TieringOptions};

const CHUNK: u32 = 4096;
const SLOTS: u32 = 8;
const NUM_BLOCKS: u32 = 8;
/// Too short for what does not end.
const SHORT: Duration = Duration::from_millis(20);
/// Longer than anything takes that ends.
const LONG: Duration = Duration::from_mins(1);

/// Somewhere to wait.
#[derive(Clone, Default)]
struct Gate(Arc<(Mutex<bool>, Condvar)>);

impl Gate {
    fn set(&self, is_open: bool) {
        *self.0.0.lock().unwrap() = is_open;
        self.0.1.notify_all();
    }

    fn pass(&self) {
        drop(self.0.1.wait_while(self.0.0.lock().unwrap(), |is_open| !*is_open).unwrap());
    }
}

/// The slots as the store sees them: behind a gate. Tells when nobody has them any more.
struct Gated {
    region: Arc<HostRegion>,
    gate: Gate,
    gone: mpsc::Sender<()>,
}

impl HostMemory for Gated {
    fn num_slots(&self) -> u32 {
        self.region.num_slots()
    }

    fn slot_bytes(&self) -> usize {
        self.region.slot_bytes()
    }

    fn with_read(&self, slot: SlotId, read: &mut dyn FnMut(&[u8])) -> Result<(), SlotAccessError> {
        self.gate.pass();
        self.region.with_read(slot, read)
    }

    fn with_write(&self, slot: SlotId, write: &mut dyn FnMut(&mut [u8])) -> Result<(), SlotAccessError> {
        self.gate.pass();
        self.region.with_write(slot, write)
    }
}

impl Drop for Gated {
    fn drop(&mut self) {
        let _ = self.gone.send(());
    }
}

struct Engine {
    connector: Connector<TieringManager<Lru>>,
    worker: Worker<HostDevice>,
    cache: DeviceSpan,
    /// Kernels wait here.
    device_gate: Gate,
    /// The store's copies wait here.
    store_gate: Gate,
    store_is_gone: mpsc::Receiver<()>,
    next: u64,
}

impl Engine {
    fn new(dir: &Path) -> Self {
        let chunk = ChunkLayout::new(1, 1, u64::from(CHUNK), 1).unwrap();
        let options = RegionOptions {
            huge_pages: false,
            prefault_threads: 0,
            ..RegionOptions::new(SLOTS, CHUNK as usize)
        };
        let region = Arc::new(HostRegion::anonymous(&options).unwrap());
        let (store_gate, device_gate) = (Gate::default(), Gate::default());
        store_gate.set(true);
        device_gate.set(true);
        let (gone, store_is_gone) = mpsc::channel();
        let gated = Gated { region: region.clone(), gate: store_gate.clone(), gone };
        let options = NvmeOptions {
            engine: EngineKind::Threads,
            num_threads: 2,
            ..NvmeOptions::new(dir, 32, u64::from(CHUNK))
        };
        let store = NvmeStore::open(options, Arc::new(gated)).unwrap();
        let primary = CpuManager::new(CpuOptions::new(SLOTS), Lru::new(SLOTS)).unwrap();
        let tiers: Vec<Box<dyn SecondaryTier>> = vec![Box::new(store)];
        let options = TieringOptions::new(chunk.chunk_bytes());
        let manager = TieringManager::new(primary, tiers, options, Box::new(ManualClock::default())).unwrap();
        let namespace = Namespace::new(Fingerprint([1; 32]), 1);
        let options = ConnectorOptions::new(namespace, vec![GroupOptions::full(CHUNK)], CHUNK);
        let connector = Connector::new(options, manager, Box::new(ManualClock::default())).unwrap();
        let options = HostDeviceOptions { drop_timeout: SHORT, ..HostDeviceOptions::default() };
        let device = HostDevice::new(options, region).unwrap();
        let cache = device.alloc(u64::from(NUM_BLOCKS) * chunk.block_bytes()).unwrap();
        let layout = BlockLayout::layer_first(&chunk, NUM_BLOCKS, cache.bytes()).unwrap();
        let slots = (SLOTS, chunk.chunk_bytes());
        let worker = Worker::new(device, &[cache], layout, slots, WorkerOptions::default()).unwrap();
        Self { connector, worker, cache, device_gate, store_gate, store_is_gone, next: 0 }
    }

    fn begin(&mut self, prompt: u32) -> RequestId {
        let id = RequestId(self.next);
        self.next += 1;
        let tokens: Vec<u32> = (0..=CHUNK).map(|nth| prompt * 10_000 + nth).collect();
        self.connector.new_request(id, CHUNK + 1, RequestParams::default()).unwrap();
        let hashes = BlockHasher::new(b"").blocks(CHUNK as usize, &tokens);
        self.connector.add_hashes(id, CHUNK + 1, &hashes).unwrap();
        id
    }

    /// A request that computes a chunk in a block; its store waits for the kernel.
    fn store(&mut self, prompt: u32, block: u32) -> RequestId {
        let id = self.begin(prompt);
        let new_blocks: [&[_]; 1] = [&[Some(BlockId(block))]];
        let scheduled = [Scheduled {
            request: id,
            kept_blocks: &[],
            new_blocks: &new_blocks,
            computed: 0,
            settled: CHUNK,
        }];
        let plan = self.connector.build_step(&StepInput { preempted: &[], scheduled: &scheduled }).unwrap();
        self.start(&plan);
        id
    }

    fn start(&mut self, plan: &StepPlan) {
        let stream = self.worker.device().compute().clone();
        let gate = self.device_gate.clone();
        stream.launch(move |_| gate.pass()).unwrap();
        self.worker.start_loads(plan, stream.point());
        self.worker.start_stores(plan, stream.point());
    }

    /// A request that loads a chunk that the primary has; it waits for the kernel.
    fn load(&mut self, prompt: u32, block: u32) -> RequestId {
        let id = self.begin(prompt);
        assert_eq!(self.connector.match_prefix(id, 0), Ok(PrefixMatch::Loadable(CHUNK)));
        self.connector.blocks_allocated(id, &[&[Some(BlockId(block))]]).unwrap();
        let plan = self.connector.build_step(&StepInput::default()).unwrap();
        self.start(&plan);
        id
    }

    /// Tells of all that workers report.
    fn report(&mut self) -> Vec<(CopyOutcome, Option<CopyFailure>)> {
        let mut reports = Vec::new();
        self.worker.poll(&mut reports);
        let ended = reports.into_iter().filter_map(|report| match report {
            WorkerReport::Ended { copy, result, failure } => {
                Some((self.connector.copy_reported(copy, 0, result).unwrap(), failure))
            }
            WorkerReport::Released { copy } => {
                self.connector.copy_released(copy, 0).unwrap();
                None
            }
        });
        ended.collect()
    }

    /// Everything under way comes to its end.
    fn settle(&mut self) {
        let start = Instant::now();
        self.worker.drain(LONG).unwrap();
        self.report();
        while self.connector.has_pending_work() {
            assert!(start.elapsed() < LONG, "the store does not get on");
            self.connector.build_step(&StepInput::default()).unwrap();
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// With copies of both directions open at the device, and jobs of both directions at the store.
    fn busy(dir: &Path) -> Self {
        let mut engine = Self::new(dir);
        for prompt in [1, 2] {
            let id = engine.store(prompt, prompt);
            engine.settle();
            let _ = engine.connector.request_finished(id).unwrap();
        }
        // Memory forgets both.
        let _ = engine.connector.reset();
        engine.store_gate.set(false);
        // A promotion that waits in the store, and a cascade.
        let id = engine.begin(1);
        assert_eq!(engine.connector.match_prefix(id, 0), Ok(PrefixMatch::AskAgain));
        engine.connector.build_step(&StepInput::default()).unwrap();
        engine.store(3, 3);
        engine.worker.drain(LONG).unwrap();
        engine.report();
        // A load of what is in memory now, and another store.
        engine.device_gate.set(false);
        engine.load(3, 4);
        engine.store(4, 5);
        engine
    }
}

#[test]
fn an_end_with_everything_open_is_bounded_and_what_may_be_touched_is_kept() {
    let dir = tempfile::tempdir().unwrap();
    let mut engine = Engine::busy(dir.path());
    // Neither comes to an end while the gates are closed: that these calls return is the fact.
    assert_eq!(engine.worker.shut_down(SHORT).unwrap_err().inflight, 2);
    assert_eq!(engine.report(), []);
    let (flush, left) = engine.connector.shut_down(SHORT);
    assert_eq!(flush.copies_open, 2);
    let [(name, error)] = left.tiers_failed.as_slice() else { panic!("{left:?}") };
    assert_eq!((name.as_str(), left.jobs_open, left.slots_held), ("nvme", 0, 2), "{error}");
    assert!(error.to_string().contains("2 transfers"), "{error}");
    // Again: the same.
    let (_, left) = engine.connector.shut_down(SHORT);
    assert_eq!((left.tiers_failed.len(), left.slots_held), (1, 2));
    assert!(engine.store_is_gone.try_recv().is_err(), "its threads have the memory");
    // What hung comes back: nothing is left, and a further end has nothing to do.
    engine.device_gate.set(true);
    engine.store_gate.set(true);
    engine.worker.shut_down(LONG).unwrap();
    assert!(engine.report().iter().all(|(outcome, _)| *outcome == CopyOutcome::Void));
    let (flush, left) = engine.connector.shut_down(LONG);
    assert!(left.is_clean(), "{left:?}");
    assert_eq!(flush.copies_open, 0);
    assert_eq!(engine.connector.counts().pending, 0, "every slot is free");
    assert!(engine.connector.shut_down(Duration::ZERO).1.is_clean());
    assert!(!engine.connector.has_pending_work());
    drop(engine.connector);
    engine.store_is_gone.recv_timeout(LONG).unwrap();
    // And the store was closed well.
    let store = NvmeStore::open_without_memory(NvmeOptions::new(dir.path(), 32, u64::from(CHUNK))).unwrap();
    assert!(store.recovery().clean, "{:?}", store.recovery());
}

#[test]
fn an_end_in_order_keeps_all_that_was_stored() {
    let dir = tempfile::tempdir().unwrap();
    let mut engine = Engine::new(dir.path());
    let id = engine.store(1, 1);
    engine.worker.shut_down(LONG).unwrap();
    assert_eq!(engine.report(), [(CopyOutcome::Stored { request: id }, None)]);
    let (_, left) = engine.connector.shut_down(LONG);
    assert!(left.is_clean(), "{left:?}");
    drop(engine);
    let mut engine = Engine::new(dir.path());
    let id = engine.begin(1);
    assert_eq!(engine.connector.match_prefix(id, 0), Ok(PrefixMatch::AskAgain), "the store has it");
}

#[test]
fn requests_go_on_without_offloading_after_the_end() {
    let dir = tempfile::tempdir().unwrap();
    let mut engine = Engine::new(dir.path());
    let first = engine.store(1, 1);
    engine.settle();
    assert!(engine.connector.shut_down(LONG).1.is_clean());
    engine.worker.shut_down(LONG).unwrap();
    // Requests of before and of now compute and finish; nothing is found, nothing is stored.
    let second = engine.begin(1);
    assert_eq!(engine.connector.match_prefix(second, 0), Ok(PrefixMatch::Loadable(0)));
    let new_blocks: [&[_]; 1] = [&[Some(BlockId(2))]];
    let scheduled = [Scheduled {
        request: second,
        kept_blocks: &[],
        new_blocks: &new_blocks,
        computed: 0,
        settled: CHUNK,
    }];
    let plan = engine.connector.build_step(&StepInput { preempted: &[], scheduled: &scheduled }).unwrap();
    assert_eq!(plan, StepPlan::default());
    for id in [first, second] {
        let _ = engine.connector.request_finished(id).unwrap();
    }
    engine.connector.build_step(&StepInput::default()).unwrap();
    assert_eq!(engine.connector.manager().stats().open_requests, 0);
}

#[test]
fn a_plan_that_comes_after_the_end_of_its_worker_has_failed() {
    let dir = tempfile::tempdir().unwrap();
    let mut engine = Engine::new(dir.path());
    engine.worker.shut_down(LONG).unwrap();
    let id = engine.store(1, 1);
    let failed = (CopyOutcome::StoreFailed { request: id }, Some(CopyFailure::ShutDown));
    assert_eq!(engine.report(), [failed]);
}

#[test]
fn a_copy_that_was_queued_behind_another_has_failed_at_the_end() {
    let dir = tempfile::tempdir().unwrap();
    let mut engine = Engine::new(dir.path());
    engine.device_gate.set(false);
    let first = engine.store(1, 1);
    let _ = engine.connector.request_finished(first).unwrap();
    // The load of another request goes into the same block, behind the store.
    engine.device_gate.set(true);
    engine.worker.drain(LONG).unwrap();
    engine.report();
    engine.device_gate.set(false);
    engine.store(2, 5);
    let loading = engine.load(1, 5);
    assert_eq!(engine.worker.shut_down(SHORT).unwrap_err().inflight, 1);
    let failed = CopyOutcome::LoadFailed { request: loading, computed: 0 };
    assert_eq!(engine.report(), [(failed, Some(CopyFailure::ShutDown))]);
    engine.device_gate.set(true);
    engine.worker.shut_down(LONG).unwrap();
    assert!(matches!(engine.report().as_slice(), [(CopyOutcome::Stored { .. }, None)]));
}

/// Whoever drops what is busy, in any order, waits for a while, frees nothing under a copy, and leaves what hangs behind.
#[test]
fn a_drop_without_an_end_lets_go_in_any_order() {
    for device_first in [true, false] {
        let dir = tempfile::tempdir().unwrap();
        let engine = Engine::busy(dir.path());
        let Engine { connector, worker, cache, device_gate, store_gate, store_is_gone, .. } = engine;
        assert!(cache.bytes() > 0);
        if device_first {
            // Its kernel hangs: its threads are left behind, with all they touch.
            drop(worker);
            device_gate.set(true);
        }
        // The store's copies come to their end while it is waited for.
        let dropper = std::thread::spawn(move || drop(connector));
        assert!(store_is_gone.try_recv().is_err(), "the store has I/O");
        store_gate.set(true);
        dropper.join().unwrap();
        store_is_gone.recv_timeout(LONG).unwrap();
        device_gate.set(true);
    }
}
