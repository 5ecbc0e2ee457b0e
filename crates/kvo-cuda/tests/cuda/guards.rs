//! What keeps copies in their order where a call fails, a graph is captured, or nobody waits any more.

use std::time::Duration;

use cudarc::driver::{CudaContext, result};
use kvo_core::{
    ComputePoint, DeviceBackend, DeviceHealth, FenceError, Transfer, TransferClass, TransferFailure,
};
use kvo_cuda::CudaOptions;
use kvo_fakecuda::{Compute, Hold};

use crate::rig::{LONG, Rig, SLOT_BYTES, options, raw, until};

const TO_DEVICE: &str = "cuMemcpyHtoDAsync_v2";
const OUT_OF_MEMORY: u32 = 2;

#[test]
fn of_a_load_whose_wait_was_refused_nothing_is_copied() {
    let mut rig = Rig::new();
    let (passed, engine) = (rig.passed(), rig.stream());
    // What is behind this copy does not end.
    rig.fake.hold(Hold::ToDevice(0));
    let first = rig.submit(rig.one_slot(TransferClass::Demand, 0, passed));
    until(|| rig.fake.calls(TO_DEVICE) == 1);

    rig.fake.hold(Hold::Stream(raw(&engine)));
    rig.fake.enqueue(raw(&engine), Compute::Nothing, Duration::ZERO).unwrap();
    let after = rig.fence_on(&engine);
    rig.fake.fail_calls("cuStreamWaitEvent", 1, 1, OUT_OF_MEMORY);
    let slot = SLOT_BYTES as u64;
    let ops = vec![rig.op(slot, 1, 0, slot), rig.op(2 * slot, 2, 0, slot)];
    let load = Transfer { marks: vec![1, 2], ..Transfer::new(TransferClass::Demand, ops, after) };
    let second = rig.submit(load);
    rig.nothing_ends();

    rig.fake.release(Hold::ToDevice(0));
    rig.device.drain(LONG).unwrap();
    let mut done = Vec::new();
    rig.device.poll(&mut done);
    let refused = Err(TransferFailure::Refused { code: OUT_OF_MEMORY });
    let ended: Vec<_> = done.into_iter().map(|done| (done.ticket, done.result, done.held)).collect();
    assert_eq!(ended, [(first, Ok(slot), false), (second, refused, false)]);
    assert_eq!(rig.fake.calls(TO_DEVICE), 1, "compute still reads those blocks");
    rig.fake.release(Hold::All);
    rig.is_clean();
}

#[test]
fn only_a_load_that_a_step_waits_for_waits_on_the_devices_queue() {
    let mut rig = Rig::new();
    let engine = rig.stream();
    rig.fake.hold(Hold::Stream(raw(&engine)));
    rig.fake.enqueue(raw(&engine), Compute::Nothing, Duration::ZERO).unwrap();
    let after = rig.fence_on(&engine);
    let slot = SLOT_BYTES as u64;
    let classes = [TransferClass::Demand, TransferClass::Prefetch, TransferClass::Store];
    for (class, nth) in classes.into_iter().zip(0..) {
        let ops = vec![rig.op(u64::from(nth) * slot, nth, 0, slot)];
        rig.submit(Transfer::new(class, ops, after));
    }
    until(|| rig.device.stats().paths.memcpy.copies == 1);
    rig.nothing_ends();
    assert_eq!(rig.device.stats().paths.memcpy.copies, 1);
    rig.fake.release(Hold::All);
    rig.device.drain(LONG).unwrap();
    assert_eq!(rig.device.stats().paths.memcpy.copies, 3);
    rig.is_clean();
}

#[test]
fn what_a_capture_forbids_is_asked_again() {
    for code in [900, 901, 906] {
        let mut rig = Rig::new();
        let after = rig.passed();
        rig.fake.fail_calls("cuEventQuery", 1, 3, code);
        let ticket = rig.submit(rig.one_slot(TransferClass::Demand, 0, after));
        rig.succeeds(ticket);
        assert_eq!(rig.device.health(), DeviceHealth::Healthy);
    }
}

#[test]
fn an_event_that_cannot_be_had_fails_one_transfer_and_not_the_device() {
    let mut rig = Rig::new();
    let after = rig.passed();
    rig.fake.fail_calls("cuEventCreate", 1, 1, OUT_OF_MEMORY);
    let refused = rig.submit(rig.one_slot(TransferClass::Store, 0, after));
    let done = rig.next();
    assert_eq!((done.ticket, done.held), (refused, false));
    assert_eq!(done.result, Err(TransferFailure::Refused { code: OUT_OF_MEMORY }));
    let ticket = rig.submit(rig.one_slot(TransferClass::Store, 0, after));
    rig.succeeds(ticket);
    rig.is_clean();
}

#[test]
fn an_engines_thread_has_its_context_again_after_a_call_that_broke_another() {
    let mut rig = Rig::new();
    let stream = rig.stream();
    let point = ComputePoint::Stream(rig.handle(&stream));
    let other = CudaContext::new(1).unwrap();
    other.bind_to_thread().unwrap();
    let before = result::ctx::get_current().unwrap();
    rig.fake.fail_calls("cuEventRecord", 1, 1, 700);
    let error = rig.device.record_fence(point).unwrap_err();
    assert!(matches!(error, FenceError::Unhealthy(DeviceHealth::Dead { code: 700 })), "{error}");
    assert_eq!(result::ctx::get_current().unwrap(), before);
}

#[test]
fn a_device_that_was_dropped_under_a_copy_puts_no_further_one_there() {
    let slot = SLOT_BYTES as u64;
    let drop_timeout = Duration::from_millis(20);
    let small = CudaOptions { window_bytes: slot, quantum_bytes: slot, drop_timeout, ..options() };
    let mut rig = Rig::with(small, |_| ());
    let after = rig.passed();
    rig.fake.hold(Hold::ToDevice(0));
    let ops = (0..4).map(|nth| rig.op(u64::from(nth) * slot, nth, 0, slot)).collect();
    rig.submit(Transfer::new(TransferClass::Demand, ops, after));
    until(|| rig.fake.calls(TO_DEVICE) == 1);
    let Rig { device, fake, .. } = rig;
    drop(device);
    fake.release(Hold::All);
    until(|| fake.counts().registrations == 0);
    assert_eq!(fake.calls(TO_DEVICE), 1);
}
