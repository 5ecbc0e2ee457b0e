//! Facts of this device, beside those of every device, which are the suite of `kvo-gpu-check`: how it dies and is shut
//! down, what it counts. Its streams are in `tests/fences.rs`, trips through the planner in `tests/round_trips.rs`, what the detector finds in `tests/races.rs`, the
//! device that is stepped in `tests/stepping.rs`, and what each guard is for in `tests/guards.rs`.

mod fences;
mod guards;
mod held;
mod races;
mod random;
mod regions;
mod round_trips;
mod slots;
mod stepping;

use std::ops::Range;
use std::sync::{
    Weak,
    atomic::{AtomicU32, Ordering},
};

use kvo_core::{CopyOp, SlotId, SubmitErrorReason, TransferClass, TransferFailure};

use self::slots::TestSlots;
use super::{memory::FIRST_ADDRESS, *};

/// Long enough for anything that happens at all.
const LONG: Duration = Duration::from_mins(1);

const BLOCK: u64 = 16;

/// Small segments, that no block fits into, so that every copy crosses borders.
fn options() -> HostDeviceOptions {
    HostDeviceOptions { segment_bytes: 10, ..HostDeviceOptions::default() }
}

/// A device whose first region is 8 blocks of 16 bytes, over 4 slots of 16 bytes.
fn device() -> (HostDevice, Arc<TestSlots>) {
    let slots = TestSlots::shared(4, 16);
    (device_over(&slots, options()), slots)
}

fn device_over(slots: &Arc<TestSlots>, options: HostDeviceOptions) -> HostDevice {
    let slots: Arc<TestSlots> = Arc::clone(slots);
    let mut device = HostDevice::new(options, slots).unwrap();
    attach_blocks(&mut device);
    device
}

fn attach_blocks(device: &mut HostDevice) {
    let span = device.alloc(8 * BLOCK).unwrap();
    assert_eq!((device.attach(span).unwrap(), span.address()), (RegionId(0), FIRST_ADDRESS));
}

/// Where a block lies.
fn at(block: u64) -> u64 {
    FIRST_ADDRESS + block * BLOCK
}

/// A copy between a whole block and a whole slot.
fn op(block: u64, slot: u32) -> CopyOp {
    CopyOp {
        region: RegionId(0),
        device_offset: block * BLOCK,
        slot: SlotId(slot),
        slot_offset: 0,
        bytes: BLOCK,
    }
}

fn store(block: u64, slot: u32, after: Fence) -> Transfer {
    Transfer::new(TransferClass::Store, vec![op(block, slot)], after)
}

fn load(slot: u32, block: u64, after: Fence) -> Transfer {
    Transfer::new(TransferClass::Demand, vec![op(block, slot)], after)
}

/// A fence behind all that is on the first stream.
fn fence(device: &mut HostDevice) -> Fence {
    device.record_fence(device.compute().point()).unwrap()
}

fn block(device: &HostDevice, block: u64) -> [u8; 16] {
    let mut bytes = [0; 16];
    device.memory().read(at(block), &mut bytes).unwrap();
    bytes
}

/// Holds a compute stream until the gate is opened or dropped.
struct Gate(Sender<()>);

impl Gate {
    /// Returns when the first stream has arrived at the gate.
    fn on(device: &HostDevice) -> Self {
        Self::on_stream(device.compute())
    }

    fn on_stream(stream: &ComputeStream) -> Self {
        let (open, wait) = crossbeam_channel::bounded::<()>(0);
        let (arrive, arrived) = crossbeam_channel::bounded::<()>(1);
        let gate = move |_: &DeviceMemory| {
            arrive.send(()).unwrap();
            let _ = wait.recv();
        };
        stream.launch(gate).unwrap();
        arrived.recv_timeout(LONG).unwrap();
        Self(open)
    }

    fn open(self) {
        drop(self.0);
    }
}

/// Waits until nothing is in flight and returns all that ended.
#[track_caller]
fn all(device: &mut HostDevice) -> Vec<TransferCompletion> {
    device.drain(LONG).unwrap();
    let mut done = Vec::new();
    device.poll(&mut done);
    done
}

/// Waits until so many held transfers were released, and returns them.
#[track_caller]
fn released(device: &mut HostDevice, count: usize) -> Vec<Ticket> {
    let (started, mut released) = (Instant::now(), Vec::new());
    while released.len() < count {
        assert!(started.elapsed() < LONG, "{released:?} were released, not {count}");
        device.take_released(&mut released);
        std::thread::yield_now();
    }
    released
}

fn ended(ticket: Ticket, result: Result<u64, TransferFailure>) -> TransferCompletion {
    TransferCompletion { ticket, result, held: false }
}

#[test]
fn a_device_that_fails_fails_each_open_ticket_once_and_takes_no_more() {
    let (mut device, slots) = device();
    let after = fence(&mut device);
    let before = device.submit(store(0, 0, after)).unwrap();
    device.drain(LONG).unwrap();

    let gate = Gate::on(&device);
    let ran = Arc::new(AtomicU32::new(0));
    let count = Arc::clone(&ran);
    device.compute().launch(move |_| _ = count.fetch_add(1, Ordering::Relaxed)).unwrap();
    let behind = fence(&mut device);
    let open = [
        device.submit(store(0, 1, behind)).unwrap(),
        device.submit(store(0, 2, behind)).unwrap(),
        device.submit(load(0, 3, behind)).unwrap(),
    ];
    device.fail(700);
    device.fail(701); // the first failure stays
    let dead = DeviceHealth::Dead { code: 700 };
    assert_eq!(device.health(), dead);

    // What had ended before the failure is good.
    let mut expected = vec![ended(before, Ok(BLOCK))];
    expected.extend(open.map(|ticket| ended(ticket, Err(TransferFailure::Device { code: 700 }))));
    let mut done = all(&mut device);
    assert_eq!(done, expected);
    assert_eq!(all(&mut device), []);
    device.wait(LONG, &mut done); // returns at once: nothing is in flight
    assert_eq!(done.len(), 4);

    let error = device.submit(store(0, 3, after)).unwrap_err();
    assert_eq!(error.reason, SubmitErrorReason::Unhealthy(dead));
    assert_eq!(device.compute().launch(|_| ()), Err(ComputeError::Unhealthy(dead)));
    let point = device.compute().point();
    assert_eq!(device.record_fence(point), Err(FenceError::Unhealthy(dead)));
    gate.open();
    drop(device);
    assert_eq!(ran.load(Ordering::Relaxed), 0, "a dead device runs no kernel");
    assert_eq!(slots.bytes(SlotId(1)), [0xEE; 16]);
}

#[test]
fn a_kernel_that_panics_kills_the_device() {
    let (mut device, _slots) = device();
    let compute = device.compute().clone();
    let gate = Gate::on(&device);
    compute.launch(|_| panic!("a kernel faults, as it should in this test")).unwrap();
    compute.launch_write(at(0), vec![1; 16]).unwrap();
    let after = fence(&mut device);
    let ticket = device.submit(store(0, 0, after)).unwrap();
    gate.open();
    let mut done = Vec::new();
    device.wait(LONG, &mut done);
    let code = HostDevice::KERNEL_PANICKED;
    assert_eq!(done, [ended(ticket, Err(TransferFailure::Device { code }))]);
    assert_eq!(compute.synchronize(LONG), Err(ComputeError::Unhealthy(DeviceHealth::Dead { code })));
    assert_eq!(block(&device, 0), [0; 16]);
}

/// B26: what waits in the queue then is never begun, and is reported.
#[test]
fn a_device_that_is_shut_down_gives_up_what_has_not_begun() {
    let (mut device, slots) = device();
    let gate = Gate::on(&device);
    device.compute().launch_write(at(0), vec![5; 16]).unwrap();
    let after = fence(&mut device);
    let tickets = [device.submit(store(0, 0, after)).unwrap(), device.submit(store(0, 1, after)).unwrap()];
    device.shut_down();
    let shut_down = DeviceHealth::ShutDown;
    assert_eq!(device.health(), shut_down);
    let error = device.submit(store(0, 3, after)).unwrap_err();
    assert_eq!(error.reason, SubmitErrorReason::Unhealthy(shut_down));
    let done = all(&mut device);
    assert_eq!(done, tickets.map(|ticket| ended(ticket, Err(TransferFailure::ShutDown))));
    assert_eq!(slots.bytes(SlotId(0)), [0xEE; 16]);
    gate.open();
    device.compute().synchronize(LONG).unwrap();
    assert_eq!(block(&device, 0), [5; 16], "kernels that were launched still run");
}

/// B65: with both directions open.
#[test]
fn a_drop_runs_the_kernels_and_leaves_nothing_behind() {
    let (mut device, slots) = device();
    let gate = Gate::on(&device);
    let compute = device.compute().clone();
    let ran = Arc::new(AtomicU32::new(0));
    for _ in 0..10 {
        let ran = Arc::clone(&ran);
        compute.launch(move |_| _ = ran.fetch_add(1, Ordering::Relaxed)).unwrap();
    }
    // The fence is far behind; the gate opens only after the drop has begun.
    let after = fence(&mut device);
    device.submit(store(0, 0, after)).unwrap();
    device.submit(load(1, 1, after)).unwrap();
    let shared = Arc::clone(&device.shared);
    let opener = std::thread::spawn(move || {
        while shared.lock().queue.health() == DeviceHealth::Healthy {
            std::thread::yield_now();
        }
        gate.open();
    });
    drop(device);
    opener.join().unwrap();
    assert_eq!(ran.load(Ordering::Relaxed), 10);
    assert_eq!(Arc::strong_count(&slots), 1, "no thread holds the host memory");
    assert!(compute.launch(|_| ()).is_err());
}

#[test]
fn a_drop_does_not_wait_for_ever_for_a_kernel_that_does_not_return() {
    let slots = TestSlots::shared(4, 16);
    let weak: Weak<TestSlots> = Arc::downgrade(&slots);
    let mut device = device_over(&slots, HostDeviceOptions { drop_timeout: Duration::ZERO, ..options() });
    drop(slots);
    let gate = Gate::on(&device);
    let (ran, has_run) = crossbeam_channel::bounded(1);
    let read = move |bytes: &[u8]| ran.send(bytes.len()).unwrap();
    device.compute().launch_read(at(0), 128, read).unwrap();
    let after = fence(&mut device);
    device.submit(store(0, 0, after)).unwrap();
    drop(device);
    // The threads own what they touch: the kernels still find their memory.
    gate.open();
    assert_eq!(has_run.recv_timeout(LONG), Ok(128));
    while weak.strong_count() > 0 {
        std::thread::yield_now();
    }
}

#[test]
fn stats_count_what_arrived() {
    let (mut device, slots) = device();
    let after = fence(&mut device);
    let two = Transfer { ops: vec![op(0, 0), op(1, 2)], ..store(0, 0, after) };
    device.submit(two).unwrap();
    device.submit(load(3, 3, after)).unwrap();
    device.drain(LONG).unwrap();
    let held = slots.hold(SlotId(1));
    device.submit(store(0, 1, after)).unwrap();
    device.drain(LONG).unwrap();
    drop(held);
    let stats = device.stats();
    assert_eq!(stats.inflight, 3, "ended, but not polled");
    assert_eq!((stats.stores.jobs_done, stats.stores.jobs_failed), (1, 1));
    assert_eq!((stats.stores.chunks, stats.stores.bytes), (2, 2 * BLOCK));
    assert_eq!((stats.loads.jobs_done, stats.loads.chunks, stats.loads.bytes), (1, 1, BLOCK));
    assert!(stats.stores.time > Duration::ZERO);
    assert!(!stats.is_model);
    all(&mut device);
    assert_eq!(device.stats(), DeviceStats { inflight: 0, ..stats });
}

#[test]
fn a_link_holds_copies_up_and_says_that_it_is_a_model() {
    let slots = TestSlots::shared(4, 16);
    let link = LinkModel { gb_per_s: 1.0, transfer_us: 20_000.0, op_us: 0.0 };
    let mut device = device_over(&slots, HostDeviceOptions { link: Some(link), ..options() });
    assert_eq!(device.info().name, "host (model)");
    let (after, started) = (fence(&mut device), Instant::now());
    let both = [device.submit(store(0, 0, after)).unwrap(), device.submit(store(1, 1, after)).unwrap()];
    assert_eq!(all(&mut device), both.map(|ticket| ended(ticket, Ok(BLOCK))));
    assert!(started.elapsed() >= Duration::from_millis(40), "{:?}", started.elapsed());
    assert!(device.stats().is_model);
}

#[test]
fn options_that_are_zero_are_named() {
    let good = HostDeviceOptions::default();
    for (options, named) in [
        (HostDeviceOptions { inflight_max: 0, ..good.clone() }, "inflight_max"),
        (HostDeviceOptions { pending_fences_max: 0, ..good.clone() }, "pending_fences_max"),
        (HostDeviceOptions { segment_bytes: 0, ..good.clone() }, "segment_bytes"),
        (HostDeviceOptions { quantum_bytes: 0, ..good.clone() }, "quantum_bytes"),
        (HostDeviceOptions { link: Some(LinkModel::new(0.0)), ..good.clone() }, "link.gb_per_s"),
        (HostDeviceOptions { link: Some(LinkModel::new(f64::NAN)), ..good.clone() }, "link.gb_per_s"),
    ] {
        let error = HostDevice::new(options, TestSlots::shared(1, 1)).unwrap_err();
        assert!(matches!(error, HostDeviceError::Zero { field } if field == named), "{error}");
    }
}

#[test]
fn a_latency_that_cannot_be_is_named() {
    let link = LinkModel::new(1.0);
    for (link, message) in [
        (
            LinkModel { transfer_us: -1.0, ..link },
            "link.transfer_us must be at least 0, and finite, but is -1",
        ),
        (LinkModel { op_us: f64::INFINITY, ..link }, "link.op_us must be at least 0, and finite, but is inf"),
    ] {
        let options = HostDeviceOptions { link: Some(link), ..HostDeviceOptions::default() };
        let error = HostDevice::new(options, TestSlots::shared(1, 1)).unwrap_err();
        assert_eq!(error.to_string(), message);
    }
}

#[test]
fn a_name_that_no_thread_can_have_is_refused() {
    let options = HostDeviceOptions { name: "a\0b".to_owned(), ..HostDeviceOptions::default() };
    let error = HostDevice::new(options, TestSlots::shared(1, 1)).unwrap_err();
    assert!(matches!(error, HostDeviceError::Spawn(_)), "{error}");
}

#[test]
fn a_kernel_beyond_the_memory_is_refused_at_launch() {
    let (device, _slots) = device();
    let error = device.compute().launch_write(at(8) - 1, vec![0; 2]).unwrap_err();
    assert_eq!(error, ComputeError::Access(DeviceAccessError { address: at(8) - 1, bytes: 2 }));
    device.compute().synchronize(LONG).unwrap();
    assert_eq!(device.health(), DeviceHealth::Healthy);
}
