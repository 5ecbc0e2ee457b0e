//! Facts about one device: what it refuses, how it ends transfers, how it dies. Order against compute is in
//! `tests/fences.rs`, whole round trips are in `tests/round_trips.rs`.

mod fences;
mod round_trips;

use std::sync::{
    Weak,
    atomic::{AtomicU32, Ordering},
};

use kvo_core::{CopyOp, SlotAccessError, SlotId, TransferFailure};

use super::*;
use crate::{ComputeError, DeviceAccessError, test_slots::TestSlots};

/// Long enough for anything that happens at all.
const LONG: Duration = Duration::from_mins(1);

const BLOCK: u64 = 16;

/// A device of 8 blocks of 16 bytes, over 4 slots of 16 bytes.
fn device() -> (HostDevice, Arc<TestSlots>) {
    let slots = TestSlots::shared(4, 16);
    (device_over(&slots), slots)
}

fn device_over(slots: &Arc<TestSlots>) -> HostDevice {
    let slots: Arc<TestSlots> = Arc::clone(slots);
    // Segments that no block fits into, so that every copy crosses borders.
    let options = HostDeviceOptions { segment_bytes: 10, ..HostDeviceOptions::new(8 * BLOCK) };
    HostDevice::new(options, slots).unwrap()
}

/// A copy between a whole block and a whole slot.
fn op(block: u64, slot: u32) -> CopyOp {
    CopyOp { device_offset: block * BLOCK, slot: SlotId(slot), slot_offset: 0, bytes: BLOCK }
}

fn store(block: u64, slot: u32, after: Fence) -> Transfer {
    Transfer { direction: Direction::Store, ops: vec![op(block, slot)], after }
}

fn load(slot: u32, block: u64, after: Fence) -> Transfer {
    Transfer { direction: Direction::Load, ops: vec![op(block, slot)], after }
}

fn block(device: &HostDevice, block: u64) -> [u8; 16] {
    let mut bytes = [0; 16];
    device.memory().read(block * BLOCK, &mut bytes).unwrap();
    bytes
}

/// Holds the compute stream until the gate is opened or dropped.
struct Gate(Sender<()>);

impl Gate {
    /// Returns when the stream has arrived at the gate.
    fn on(device: &HostDevice) -> Self {
        let (open, wait) = crossbeam_channel::bounded::<()>(0);
        let (arrive, arrived) = crossbeam_channel::bounded::<()>(1);
        let gate = move |_: &DeviceMemory| {
            arrive.send(()).unwrap();
            let _ = wait.recv();
        };
        device.compute().launch(gate).unwrap();
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

fn ended(ticket: Ticket, result: Result<u64, TransferFailure>) -> TransferCompletion {
    TransferCompletion { ticket, result }
}

#[test]
fn each_ticket_completes_once_in_the_order_of_its_lane() {
    let (mut device, _slots) = device();
    let after = device.record_fence();
    let tickets: Vec<_> = (0..40).map(|_| device.submit(store(1, 2, after)).unwrap()).collect();
    let done = all(&mut device);
    assert_eq!(done, tickets.into_iter().map(|ticket| ended(ticket, Ok(BLOCK))).collect::<Vec<_>>());
    assert_eq!(all(&mut device), []);
    assert_eq!(device.stats().inflight, 0);
}

#[test]
fn a_full_device_hands_the_transfer_back_until_a_completion_is_polled() {
    let slots = TestSlots::shared(4, 16);
    let options = HostDeviceOptions { inflight_max: 2, ..HostDeviceOptions::new(8 * BLOCK) };
    let mut device = HostDevice::new(options, slots).unwrap();
    let after = device.record_fence();
    device.submit(store(0, 0, after)).unwrap();
    device.submit(load(1, 1, after)).unwrap();
    device.drain(LONG).unwrap();
    let error = device.submit(store(2, 2, after)).unwrap_err();
    assert_eq!(error.reason, SubmitErrorReason::Full { inflight: 2, inflight_max: 2 });
    assert_eq!(error.transfer, store(2, 2, after));
    assert_eq!(all(&mut device).len(), 2);
    device.submit(error.transfer).unwrap();
}

#[test]
fn a_transfer_that_is_refused_changes_nothing() {
    let (mut device, slots) = device();
    let mut other = device_over(&slots);
    let after = device.record_fence();
    let out_of_bounds = CopyOp { device_offset: 8 * BLOCK - 1, bytes: 2, ..op(0, 0) };
    let no_bytes = CopyOp { bytes: 0, ..op(0, 0) };
    let no_slot = op(0, 4);
    let refused = [
        (store(0, 0, other.record_fence()), SubmitErrorReason::ForeignFence),
        (store(0, 0, Fence::new(after.device(), 1)), SubmitErrorReason::UnknownFence),
        (Transfer { ops: vec![], ..store(0, 0, after) }, SubmitErrorReason::Empty),
        (
            Transfer { ops: vec![op(1, 0), out_of_bounds], ..load(0, 0, after) },
            SubmitErrorReason::OutOfBounds { index: 1, op: out_of_bounds },
        ),
        (
            Transfer { ops: vec![no_bytes], ..store(0, 0, after) },
            SubmitErrorReason::OutOfBounds { index: 0, op: no_bytes },
        ),
        (store(0, 4, after), SubmitErrorReason::OutOfBounds { index: 0, op: no_slot }),
        (
            Transfer { ops: vec![op(0, 0), op(1, 0)], ..store(0, 0, after) },
            SubmitErrorReason::Overlap { index: 1, op: op(1, 0) },
        ),
    ];
    for (transfer, reason) in refused {
        let error = device.submit(transfer.clone()).unwrap_err();
        assert_eq!((error.reason, error.transfer), (reason, transfer));
        assert_eq!(device.stats(), DeviceStats::default());
        assert_eq!(device.health(), DeviceHealth::Healthy);
    }
    assert_eq!(all(&mut device), []);
    assert_eq!(device.submit(store(0, 0, after)).unwrap(), Ticket(0));
}

#[test]
fn a_slot_in_use_fails_only_its_transfer() {
    let (mut device, slots) = device();
    device.memory().write(0, &[7; 16]).unwrap();
    let after = device.record_fence();
    let held = slots.hold(SlotId(1));
    let busy = device.submit(store(0, 1, after)).unwrap();
    let free = device.submit(store(0, 2, after)).unwrap();
    let read = device.submit(load(1, 5, after)).unwrap(); // two readers do not conflict
    let mut done = all(&mut device);
    drop(held);
    done.sort_unstable_by_key(|completion| completion.ticket);
    let failure = TransferFailure::Slot(SlotAccessError::Busy { slot: SlotId(1) });
    assert_eq!(done, [ended(busy, Err(failure)), ended(free, Ok(BLOCK)), ended(read, Ok(BLOCK))]);
    assert_eq!(slots.bytes(SlotId(1)), [0xEE; 16]);
    assert_eq!(slots.bytes(SlotId(2)), [7; 16]);
    assert_eq!(device.health(), DeviceHealth::Healthy);
}

#[test]
fn a_device_that_fails_fails_each_open_ticket_once_and_takes_no_more() {
    let (mut device, slots) = device();
    let after = device.record_fence();
    let before = device.submit(store(0, 0, after)).unwrap();
    device.drain(LONG).unwrap();

    let gate = Gate::on(&device);
    let ran = Arc::new(AtomicU32::new(0));
    let count = Arc::clone(&ran);
    device.compute().launch(move |_| _ = count.fetch_add(1, Ordering::Relaxed)).unwrap();
    let behind = device.record_fence();
    let open = [
        device.submit(store(0, 1, behind)).unwrap(),
        device.submit(store(0, 2, behind)).unwrap(),
        device.submit(load(0, 3, behind)).unwrap(),
    ];
    device.fail(700);
    device.fail(701); // the first failure stays
    assert_eq!(device.health(), DeviceHealth::Dead { code: 700 });

    let mut done = all(&mut device);
    done.sort_unstable_by_key(|completion| completion.ticket);
    let failed = |ticket| ended(ticket, Err(TransferFailure::Device { code: 700 }));
    // What had ended before the failure is good.
    let mut expected = vec![ended(before, Ok(BLOCK))];
    expected.extend(open.map(failed));
    assert_eq!(done, expected);
    assert_eq!(all(&mut device), []);
    device.wait(LONG, &mut done); // returns at once: nothing is in flight
    assert_eq!(done.len(), 4);

    let error = device.submit(store(0, 3, after)).unwrap_err();
    let dead = DeviceHealth::Dead { code: 700 };
    assert_eq!(error.reason, SubmitErrorReason::Unhealthy(dead));
    assert_eq!(device.compute().launch(|_| ()), Err(ComputeError::Unhealthy(dead)));
    gate.open();
    drop(device);
    assert_eq!(ran.load(Ordering::Relaxed), 0, "a dead device runs no kernel");
    assert_eq!(slots.bytes(SlotId(1)), [0xEE; 16]);
}

#[test]
fn a_kernel_that_panics_kills_the_device() {
    let (mut device, _slots) = device();
    let compute = device.compute();
    let gate = Gate::on(&device);
    compute.launch(|_| panic!("a kernel faults, as it should in this test")).unwrap();
    compute.launch_write(0, vec![1; 16]).unwrap();
    let after = device.record_fence();
    let ticket = device.submit(store(0, 0, after)).unwrap();
    gate.open();
    let mut done = Vec::new();
    device.wait(LONG, &mut done);
    let code = HostDevice::KERNEL_PANICKED;
    assert_eq!(done, [ended(ticket, Err(TransferFailure::Device { code }))]);
    assert_eq!(compute.synchronize(LONG), Err(ComputeError::Unhealthy(DeviceHealth::Dead { code })));
    assert_eq!(block(&device, 0), [0; 16]);
}

#[test]
fn host_memory_that_panics_kills_the_device_and_hangs_nothing() {
    let hook = |slot| assert_ne!(slot, SlotId(1), "host memory fails, as it should in this test");
    let slots = Arc::new(TestSlots::new(4, 16).with_hook(hook));
    let mut device = device_over(&slots);
    let after = device.record_fence();
    let good = device.submit(store(0, 0, after)).unwrap();
    let bad = device.submit(store(0, 1, after)).unwrap();
    let late = device.submit(store(0, 2, after)).ok();
    let done = all(&mut device);
    let failure = Err(TransferFailure::Device { code: HostDevice::COPY_PANICKED });
    let mut expected = vec![ended(good, Ok(BLOCK)), ended(bad, failure.clone())];
    expected.extend(late.map(|late| ended(late, failure)));
    assert_eq!(done, expected);
    assert_eq!(device.health(), DeviceHealth::Dead { code: HostDevice::COPY_PANICKED });
}

/// Stops a store of block 0 to slots 0 and 1 when it has begun, lets `meanwhile` happen to the device, and returns how
/// the store ended and what the second slot holds.
fn interrupted(meanwhile: impl FnOnce(&mut HostDevice)) -> (Result<u64, TransferFailure>, Vec<u8>) {
    let (arrive, arrived) = crossbeam_channel::bounded(1);
    let (go, wait) = crossbeam_channel::bounded::<()>(1);
    let hook = move |slot| {
        if slot == SlotId(0) {
            arrive.send(()).unwrap();
            wait.recv().unwrap();
        }
    };
    let slots = Arc::new(TestSlots::new(4, 16).with_hook(hook));
    let mut device = device_over(&slots);
    let after = device.record_fence();
    device.submit(Transfer { ops: vec![op(0, 0), op(0, 1)], ..store(0, 0, after) }).unwrap();
    arrived.recv_timeout(LONG).unwrap();
    meanwhile(&mut device);
    go.send(()).unwrap();
    let mut done = all(&mut device);
    assert_eq!(done.len(), 1);
    (done.remove(0).result, slots.bytes(SlotId(1)))
}

#[test]
fn a_transfer_that_has_begun_stops_at_the_next_slot_when_the_device_fails() {
    let (result, second_slot) = interrupted(|device| device.fail(5));
    assert_eq!(result, Err(TransferFailure::Device { code: 5 }));
    assert_eq!(second_slot, [0xEE; 16]);
}

#[test]
fn a_transfer_that_has_begun_is_finished_when_the_device_is_shut_down() {
    let (result, second_slot) = interrupted(HostDevice::shut_down);
    assert_eq!(result, Ok(2 * BLOCK));
    assert_eq!(second_slot, [0; 16]);
}

#[test]
fn a_copy_that_ends_after_the_device_failed_is_not_trusted() {
    let (arrive, arrived) = crossbeam_channel::bounded(1);
    let (go, wait) = crossbeam_channel::bounded::<()>(1);
    let hook = move |_| {
        arrive.send(()).unwrap();
        wait.recv().unwrap();
    };
    let slots = Arc::new(TestSlots::new(4, 16).with_hook(hook));
    let mut device = device_over(&slots);
    let after = device.record_fence();
    let ticket = device.submit(load(2, 0, after)).unwrap();
    arrived.recv_timeout(LONG).unwrap();
    device.fail(6);
    assert_eq!(
        device.drain(Duration::ZERO).unwrap_err().inflight,
        1,
        "a ticket is open while its lane copies"
    );
    go.send(()).unwrap();
    assert_eq!(all(&mut device), [ended(ticket, Err(TransferFailure::Device { code: 6 }))]);
}

#[test]
fn a_device_that_is_shut_down_gives_up_what_has_not_begun() {
    let (mut device, slots) = device();
    let gate = Gate::on(&device);
    device.compute().launch_write(0, vec![5; 16]).unwrap();
    let after = device.record_fence();
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

#[test]
fn a_drop_runs_the_kernels_and_leaves_nothing_behind() {
    let (mut device, slots) = device();
    let gate = Gate::on(&device);
    let compute = device.compute();
    let ran = Arc::new(AtomicU32::new(0));
    for _ in 0..10 {
        let ran = Arc::clone(&ran);
        compute.launch(move |_| _ = ran.fetch_add(1, Ordering::Relaxed)).unwrap();
    }
    // The fence is far behind; a gate opens only after the drop has begun.
    let after = device.record_fence();
    device.submit(store(0, 0, after)).unwrap();
    device.submit(load(1, 1, after)).unwrap();
    let control = Arc::clone(&device.control);
    let opener = std::thread::spawn(move || {
        while control.health() == DeviceHealth::Healthy {
            std::thread::yield_now();
        }
        gate.open();
    });
    drop(device);
    opener.join().unwrap();
    assert_eq!(ran.load(Ordering::Relaxed), 10);
    assert_eq!(Arc::strong_count(&slots), 1, "no thread holds the host memory");
    assert!(compute.launch(|_| ()).is_err());
    assert_eq!(compute.record_fence(), after);
}

#[test]
fn a_drop_does_not_wait_for_ever_for_a_kernel_that_does_not_return() {
    let slots = TestSlots::shared(4, 16);
    let weak: Weak<TestSlots> = Arc::downgrade(&slots);
    let options = HostDeviceOptions { drop_timeout: Duration::ZERO, ..HostDeviceOptions::new(8 * BLOCK) };
    let mut device = HostDevice::new(options, slots).unwrap();
    let gate = Gate::on(&device);
    let (ran, has_run) = crossbeam_channel::bounded(1);
    device.compute().launch(move |memory| ran.send(memory.device_bytes()).unwrap()).unwrap();
    let after = device.record_fence();
    device.submit(store(0, 0, after)).unwrap();
    drop(device);
    // The threads own what they touch: the kernels still find their memory.
    gate.open();
    assert_eq!(has_run.recv_timeout(LONG), Ok(8 * BLOCK));
    while weak.strong_count() > 0 {
        std::thread::yield_now();
    }
}

#[test]
fn a_drain_that_runs_out_of_time_says_what_is_left() {
    let (mut device, _slots) = device();
    let after = device.record_fence();
    let done_before = device.submit(load(0, 1, after)).unwrap();
    device.drain(LONG).unwrap();
    let gate = Gate::on(&device);
    let behind = device.record_fence();
    let waiting = device.submit(store(0, 0, behind)).unwrap();
    let error = device.drain(Duration::ZERO).unwrap_err();
    assert_eq!(error, DrainError { inflight: 1, waited: Duration::ZERO });
    let mut done = Vec::new();
    device.wait(Duration::ZERO, &mut done);
    assert_eq!(done, [ended(done_before, Ok(BLOCK))]);
    device.wait(Duration::ZERO, &mut done);
    assert_eq!(done.len(), 1);
    gate.open();
    assert_eq!(all(&mut device), [ended(waiting, Ok(BLOCK))]);
}

#[test]
fn stats_count_what_arrived() {
    let (mut device, slots) = device();
    let after = device.record_fence();
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
    all(&mut device);
    assert_eq!(device.stats(), DeviceStats { inflight: 0, ..stats });
}

#[test]
fn options_that_are_zero_are_named() {
    let good = HostDeviceOptions::new(1);
    for (options, named) in [
        (HostDeviceOptions { device_bytes: 0, ..good.clone() }, "device_bytes"),
        (HostDeviceOptions { inflight_max: 0, ..good.clone() }, "inflight_max"),
        (HostDeviceOptions { segment_bytes: 0, ..good.clone() }, "segment_bytes"),
    ] {
        let error = HostDevice::new(options, TestSlots::shared(1, 1)).unwrap_err();
        assert!(matches!(error, HostDeviceError::Zero { field } if field == named), "{error}");
    }
    let huge = HostDeviceOptions { device_bytes: u64::MAX, ..good };
    let error = HostDevice::new(huge, TestSlots::shared(1, 1)).unwrap_err();
    assert!(matches!(error, HostDeviceError::OutOfMemory { .. }), "{error}");
}

#[test]
fn a_kernel_beyond_the_memory_is_refused_at_launch() {
    let (device, _slots) = device();
    let error = device.compute().launch_write(8 * BLOCK - 1, vec![0; 2]).unwrap_err();
    let access = DeviceAccessError { offset: 8 * BLOCK - 1, bytes: 2, device_bytes: 8 * BLOCK };
    assert_eq!(error, ComputeError::Access(access));
    assert_eq!(device.compute().record_fence().sequence(), 0);
    assert_eq!(device.health(), DeviceHealth::Healthy);
}
