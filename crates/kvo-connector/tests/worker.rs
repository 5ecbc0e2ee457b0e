//! Facts about a worker, one by one.

use std::{
    sync::{Arc, Condvar, Mutex},
    time::{Duration, Instant},
};

use kvo_connector::{
    BlockHasher, Connector, ConnectorOptions, CopyId, CopyResult, GroupOptions, LayerOrder, Namespace,
    PrefixMatch, RequestParams, Scheduled, StepInput, StepPlan, Worker, WorkerError, WorkerOptions,
    WorkerReport,
};
use kvo_core::{
    AttachError, BlockId, ChunkLayout, ComputePoint, DeviceBackend, DeviceHealth, DeviceInfo, DeviceSpan,
    DrainError, Fence, FenceError, HostMemory, ManualClock, MarkOrder, OwnerId, RegionId, RequestId,
    SlotAccessError, SlotId, StreamHandle, SubmitError, Ticket, Transfer, TransferCompletion,
    TransferFailure,
};
use kvo_cpu::{CpuManager, CpuOptions, HostRegion, RegionOptions};
use kvo_cuda::{BlockLayout, ComputeError, Fingerprint, HostDevice, HostDeviceOptions};
use kvo_policies::Lru;

const CHUNK: u32 = 16;
const NAMESPACE: Namespace = Namespace { fingerprint: Fingerprint([1; 32]), epoch: 1 };
/// Longer than anything takes that ends.
const LONG: Duration = Duration::from_secs(20);

fn chunk() -> ChunkLayout {
    ChunkLayout::new(1, 1, u64::from(CHUNK), 1).unwrap()
}

fn layout() -> BlockLayout {
    BlockLayout::layer_first(&chunk(), 8, 8 * chunk().block_bytes()).unwrap()
}

fn region() -> Arc<HostRegion> {
    let options =
        RegionOptions { huge_pages: false, prefault_threads: 0, ..RegionOptions::new(8, CHUNK as usize) };
    Arc::new(HostRegion::anonymous(&options).unwrap())
}

fn host_worker(
    host: Arc<dyn HostMemory>,
    options: HostDeviceOptions,
    deadline: Option<Duration>,
) -> (Worker<HostDevice>, DeviceSpan) {
    let device = HostDevice::new(options, host).unwrap();
    let cache = device.alloc(8 * chunk().block_bytes()).unwrap();
    let slots = (8, chunk().chunk_bytes());
    let options = WorkerOptions { deadline, ..WorkerOptions::default() };
    (Worker::new(device, &[cache], layout(), slots, options).unwrap(), cache)
}

/// A scheduler's side, for plans.
struct Plans(Connector<CpuManager<Lru>>);

impl Plans {
    fn new() -> Self {
        let options = ConnectorOptions::new(NAMESPACE, vec![GroupOptions::full(CHUNK)], CHUNK);
        let manager = CpuManager::new(CpuOptions::new(8), Lru::new(8)).unwrap();
        Self(Connector::new(options, manager, Box::new(ManualClock::default())).unwrap())
    }

    fn begin(&mut self, id: u64, document: u32, num: u32) {
        let tokens: Vec<u32> = (0..num).map(|nth| document * 1_000_000 + nth).collect();
        self.0.new_request(RequestId(id), num, RequestParams::default()).unwrap();
        let hashes = BlockHasher::new(b"worker").blocks(CHUNK as usize, &tokens);
        self.0.add_hashes(RequestId(id), num, &hashes).unwrap();
    }

    /// A request that computes one chunk in a block.
    fn store(&mut self, id: u64, document: u32, block: u32) -> StepPlan {
        self.begin(id, document, CHUNK);
        let new_blocks: [&[_]; 1] = [&[Some(BlockId(block))]];
        let scheduled = [Scheduled {
            request: RequestId(id),
            kept_blocks: &[],
            new_blocks: &new_blocks,
            computed: 0,
            settled: CHUNK,
        }];
        let plan = self.0.build_step(&StepInput { preempted: &[], scheduled: &scheduled }).unwrap();
        assert_eq!(plan.stores.len(), 1);
        plan
    }

    /// A request that loads one chunk into a block.
    fn load(&mut self, id: u64, document: u32, block: u32) -> StepPlan {
        self.begin(id, document, CHUNK + 1);
        self.0.match_prefix(RequestId(id), 0).unwrap();
        self.0.blocks_allocated(RequestId(id), &[&[Some(BlockId(block))]]).unwrap();
        self.0.build_step(&StepInput::default()).unwrap()
    }

    fn done(&mut self, copy: CopyId) {
        self.0.copy_reported(copy, 0, CopyResult::Done).unwrap();
    }
}

/// Something that waits until it is opened.
#[derive(Clone, Default)]
struct Gate(Arc<(Mutex<bool>, Condvar)>);

impl Gate {
    fn open(&self) {
        *self.0.0.lock().unwrap() = true;
        self.0.1.notify_all();
    }

    fn pass(&self) {
        let is_closed = |is_open: &mut bool| !*is_open;
        drop(self.0.1.wait_while(self.0.0.lock().unwrap(), is_closed).unwrap());
    }
}

#[test]
fn who_waits_for_a_layer_of_a_load_that_waits_itself_gets_on() {
    let mut plans = Plans::new();
    let first = plans.store(1, 1, 0).stores[0].copy;
    plans.done(first);
    let (mut worker, _) = host_worker(region(), HostDeviceOptions::default(), None);
    let stream = worker.device().compute().clone();
    let gate = Gate::default();
    let kernel = gate.clone();
    stream.launch(move |_| kernel.pass()).unwrap();
    let stored = plans.store(2, 2, 3);
    worker.start_stores(&stored, stream.point());
    let loaded = plans.load(3, 1, 3);
    assert_eq!(loaded.loads[0].after, [stored.stores[0].copy]);
    worker.start_loads(&loaded, stream.point());
    gate.open();
    let start = Instant::now();
    while worker.order_layer(loaded.loads[0].copy, 0, stream.handle()).unwrap() == LayerOrder::NotYet {
        assert!(start.elapsed() < Duration::from_secs(2), "it was asked again and again");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// B25: a preempted request's blocks are others' at once, and what is stored of them is what was in them before.
#[test]
fn blocks_of_a_preempted_request_are_stored_as_they_were() {
    let (mut plans, host) = (Plans::new(), region());
    let (mut worker, cache) = host_worker(host.clone(), HostDeviceOptions::default(), None);
    let stream = worker.device().compute().clone();
    let address = cache.address() + 3 * u64::from(CHUNK);
    let gate = Gate::default();
    let kernel = gate.clone();
    stream.launch(move |_| kernel.pass()).unwrap();
    stream.launch_write(address, vec![1; CHUNK as usize]).unwrap();
    // Its store waits for compute that has not come to an end when the request is preempted.
    let first = plans.store(1, 1, 3);
    worker.start_stores(&first, stream.point());
    plans.begin(2, 2, CHUNK);
    let new_blocks: [&[_]; 1] = [&[Some(BlockId(3))]];
    let of = |request| Scheduled {
        request: RequestId(request),
        kept_blocks: &[],
        new_blocks: &new_blocks,
        computed: 0,
        settled: CHUNK,
    };
    let step = StepInput { preempted: &[RequestId(1)], scheduled: &[of(2)] };
    let second = plans.0.build_step(&step).unwrap();
    let mut wait_for = second.wait_for.clone();
    assert_eq!(wait_for, [first.stores[0].copy]);
    wait_for = worker.order_behind(&wait_for, stream.handle()).unwrap();
    gate.open();
    while !wait_for.is_empty() {
        wait_for = worker.order_behind(&wait_for, stream.handle()).unwrap();
    }
    stream.launch_write(address, vec![2; CHUNK as usize]).unwrap();
    worker.start_stores(&second, stream.point());
    worker.drain(LONG).unwrap();
    let mut reports = Vec::new();
    worker.poll(&mut reports);
    for report in reports {
        let WorkerReport::Ended { copy, result: CopyResult::Done, .. } = report else { panic!("{report:?}") };
        plans.done(copy);
    }
    for (plan, expected) in [(&first, 1), (&second, 2)] {
        let slot = plan.stores[0].chunks().next().unwrap().slot;
        let mut found = Vec::new();
        host.with_read(slot, &mut |bytes| found = bytes.to_vec()).unwrap();
        assert_eq!(found, [expected; CHUNK as usize]);
    }
    // It computes anew, in other blocks, and its chunk is there.
    let new_blocks: [&[_]; 1] = [&[Some(BlockId(5))]];
    let again = Scheduled { new_blocks: &new_blocks, ..of(1) };
    let plan = plans.0.build_step(&StepInput { preempted: &[], scheduled: &[again] }).unwrap();
    assert_eq!((plan.stores.len(), plans.0.counts().evictable), (0, 2));
}

/// B43: a device with fewer slots than plans may name is refused with both numbers; one with more is not.
#[test]
fn a_worker_has_all_the_slots_that_plans_may_name() {
    for (num_slots, slot_bytes, is_taken) in [(9, 16, false), (8, 17, false), (8, 16, true), (7, 16, true)] {
        let device = HostDevice::new(HostDeviceOptions::default(), region()).unwrap();
        let cache = device.alloc(8 * chunk().block_bytes()).unwrap();
        let slots = (num_slots, slot_bytes);
        let worker = Worker::new(device, &[cache], layout(), slots, WorkerOptions::default());
        let refused = WorkerError::HostMemory { num_slots, slot_bytes, of_device: 8, bytes_of_device: 16 };
        assert_eq!(worker.err(), (!is_taken).then_some(refused));
    }
}

/// A device that times out at once, and holds on to everything.
struct Holding {
    info: DeviceInfo,
    tickets: u64,
    done: Vec<TransferCompletion>,
    waits: u64,
}

impl DeviceBackend for Holding {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn attach(&mut self, _: DeviceSpan) -> Result<RegionId, AttachError> {
        Ok(RegionId(0))
    }

    fn detach(&mut self, _: RegionId) -> Result<(), AttachError> {
        Ok(())
    }

    fn record_fence(&mut self, _: ComputePoint) -> Result<Fence, FenceError> {
        Ok(Fence::new(self.info.id, 0))
    }

    fn submit(&mut self, _: Transfer) -> Result<Ticket, SubmitError> {
        let ticket = Ticket(self.tickets);
        self.tickets += 1;
        let failure = TransferFailure::TimedOut { after: Duration::ZERO };
        self.done.push(TransferCompletion { ticket, result: Err(failure), held: true });
        Ok(ticket)
    }

    fn order_after(&mut self, _: Ticket, _: u32, _: StreamHandle) -> Result<MarkOrder, FenceError> {
        Ok(MarkOrder::Ended)
    }

    fn poll(&mut self, done: &mut Vec<TransferCompletion>) {
        done.append(&mut self.done);
    }

    /// As devices do, it waits for nothing when nothing is in flight.
    fn wait(&mut self, _: Duration, done: &mut Vec<TransferCompletion>) {
        self.waits += 1;
        done.append(&mut self.done);
    }

    fn take_released(&mut self, _: &mut Vec<Ticket>) {}

    fn health(&self) -> DeviceHealth {
        DeviceHealth::Healthy
    }

    fn drain(&mut self, _: Duration) -> Result<(), DrainError> {
        Ok(())
    }
}

/// With a store that the device holds; and a point to start copies at.
fn holding(plans: &mut Plans) -> (Worker<Holding>, ComputePoint, CopyId) {
    let (other, cache) = host_worker(region(), HostDeviceOptions::default(), None);
    let point = other.device().compute().point();
    let info = DeviceInfo {
        name: "holding".into(),
        ordinal: 0,
        id: OwnerId::unique(),
        num_slots: 8,
        slot_bytes: chunk().chunk_bytes(),
    };
    let device = Holding { info, tickets: 0, done: Vec::new(), waits: 0 };
    let slots = (8, chunk().chunk_bytes());
    let mut worker = Worker::new(device, &[cache], layout(), slots, WorkerOptions::default()).unwrap();
    let stored = plans.store(2, 2, 3);
    worker.start_stores(&stored, point);
    let mut reports = Vec::new();
    worker.poll(&mut reports);
    let copy = stored.stores[0].copy;
    assert!(matches!(reports[..], [WorkerReport::Ended { result: CopyResult::FailedAndHeld, .. }]));
    (worker, point, copy)
}

#[test]
fn waiting_for_a_copy_that_is_held_keeps_no_core_busy() {
    let (mut worker, _, _) = holding(&mut Plans::new());
    worker.wait(Duration::from_millis(50), &mut Vec::new());
    let waits = worker.device().waits;
    assert!(waits <= 200, "{waits} times in 50 ms");
}

#[test]
fn a_load_into_a_block_that_is_held_fails() {
    let mut plans = Plans::new();
    let first = plans.store(1, 1, 0).stores[0].copy;
    plans.done(first);
    let (mut worker, point, held) = holding(&mut plans);
    let loaded = plans.load(3, 1, 3);
    assert_eq!(loaded.loads[0].after, [held]);
    worker.start_loads(&loaded, point);
    let mut reports = Vec::new();
    worker.poll(&mut reports);
    assert!(
        matches!(reports[..], [WorkerReport::Ended { copy, result: CopyResult::Failed, .. }] if copy == loaded.loads[0].copy),
        "{reports:?}"
    );
    assert!(worker.drain(Duration::from_millis(1)).is_ok());
}

#[test]
fn a_plan_that_comes_twice_is_run_once() {
    let options = HostDeviceOptions { inflight_max: 1, ..HostDeviceOptions::default() };
    let (mut worker, _) = host_worker(region(), options, None);
    let point = worker.device().compute().point();
    let stored = Plans::new().store(1, 1, 0);
    worker.start_stores(&stored, point);
    worker.start_stores(&stored, point);
    worker.drain(Duration::from_secs(5)).unwrap();
    let mut reports = Vec::new();
    worker.poll(&mut reports);
    assert_eq!(reports.len(), 1);
}

/// Memory that takes its time to be read.
struct Slow(Arc<HostRegion>, Gate);

impl HostMemory for Slow {
    fn num_slots(&self) -> u32 {
        self.0.num_slots()
    }

    fn slot_bytes(&self) -> usize {
        self.0.slot_bytes()
    }

    fn with_read(&self, slot: SlotId, read: &mut dyn FnMut(&[u8])) -> Result<(), SlotAccessError> {
        self.1.pass();
        self.0.with_read(slot, read)
    }

    fn with_write(&self, slot: SlotId, write: &mut dyn FnMut(&mut [u8])) -> Result<(), SlotAccessError> {
        self.0.with_write(slot, write)
    }
}

/// What a timed-out load still writes comes before compute that was put behind it.
#[test]
fn compute_behind_a_load_that_times_out_writes_after_the_load_does() {
    let mut plans = Plans::new();
    let first = plans.store(1, 1, 0).stores[0].copy;
    plans.done(first);
    let gate = Gate::default();
    let host = Arc::new(Slow(region(), gate.clone()));
    let (mut worker, cache) =
        host_worker(host, HostDeviceOptions::default(), Some(Duration::from_millis(20)));
    let stream = worker.device().compute().clone();
    let loaded = plans.load(3, 1, 3);
    worker.start_loads(&loaded, stream.point());
    // The request is preempted, its block is another's, whose compute waits for the load.
    let mut wait_for = vec![loaded.loads[0].copy];
    while !wait_for.is_empty() {
        wait_for = worker.order_behind(&wait_for, stream.handle()).unwrap();
    }
    let address = cache.address() + 3 * u64::from(CHUNK);
    stream.launch_write(address, vec![7; CHUNK as usize]).unwrap();
    let mut reports = Vec::new();
    worker.wait(LONG, &mut reports);
    assert!(
        matches!(reports[..], [WorkerReport::Ended { result: CopyResult::FailedAndHeld, .. }]),
        "{reports:?}"
    );
    // More compute comes meanwhile.
    stream.launch(|_| ()).unwrap();
    let behind = stream.synchronize(Duration::from_millis(50));
    assert!(matches!(behind, Err(ComputeError::TimedOut { .. })), "{behind:?} while the load still writes");
    gate.open();
    while worker.num_open() > 0 {
        worker.wait(Duration::from_millis(10), &mut reports);
    }
    stream.synchronize(LONG).unwrap();
    let mut found = vec![0; CHUNK as usize];
    worker.device().memory().read(address, &mut found).unwrap();
    assert_eq!(found, [7; CHUNK as usize]);
}

/// What is on the device, what waits its turn, and what comes after: each is told once, and no pin is left.
#[test]
fn copies_of_a_device_that_dies_fail_each_once_and_the_scheduler_goes_on() {
    let mut plans = Plans::new();
    for (id, document) in [(1, 1), (2, 2)] {
        let stored = plans.store(id, document, 0).stores[0].copy;
        plans.done(stored);
    }
    let (mut worker, _) = host_worker(region(), HostDeviceOptions::default(), None);
    let stream = worker.device().compute().clone();
    let gate = Gate::default();
    let kernel = gate.clone();
    stream
        .launch(move |_| {
            kernel.pass();
            panic!("a kernel that faults");
        })
        .unwrap();
    // One behind the kernel, and one behind the blocks of the first.
    let load = plans.load(3, 1, 5);
    worker.start_loads(&load, stream.point());
    let behind = plans.load(4, 2, 5);
    assert_eq!(behind.loads[0].after, [load.loads[0].copy]);
    worker.start_loads(&behind, stream.point());
    let store = plans.store(5, 3, 6);
    worker.start_stores(&store, stream.point());
    assert_eq!(worker.num_open(), 3);
    gate.open();
    let mut reports = Vec::new();
    let start = Instant::now();
    while worker.num_open() > 0 {
        worker.wait(Duration::from_millis(10), &mut reports);
        assert!(start.elapsed() < LONG, "{worker:?}");
    }
    // And what comes when it is dead.
    let late = plans.store(6, 4, 7);
    worker.start_stores(&late, stream.point());
    worker.poll(&mut reports);
    let mut failed = Vec::new();
    for report in &reports {
        match report {
            WorkerReport::Ended { copy, result: CopyResult::Done, .. } => panic!("{copy:?} went well"),
            WorkerReport::Ended { copy, result, .. } => {
                failed.push(*copy);
                plans.0.copy_reported(*copy, 0, *result).unwrap();
            }
            WorkerReport::Released { copy } => plans.0.copy_released(*copy, 0).unwrap(),
        }
    }
    failed.sort_unstable();
    let copies = [&load.loads[0], &behind.loads[0], &store.stores[0], &late.stores[0]];
    assert_eq!(failed, copies.map(|copy| copy.copy));
    assert!(matches!(worker.device().health(), DeviceHealth::Dead { .. }));
    let counts = plans.0.counts();
    assert_eq!((counts.pinned, counts.pending), (0, 0));
    assert!(!plans.0.has_pending_work());
    assert_eq!(plans.0.stats().blocks_in_use, 0);
    // They compute, on whatever device the engine has next, and what is in the tiers is there for it.
    assert_eq!(plans.0.match_prefix(RequestId(3), 0), Ok(PrefixMatch::Loadable(0)));
    plans.begin(7, 1, CHUNK + 1);
    assert_eq!(plans.0.match_prefix(RequestId(7), 0), Ok(PrefixMatch::Loadable(CHUNK)));
}
