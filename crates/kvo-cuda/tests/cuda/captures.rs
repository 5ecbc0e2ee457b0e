//! Graphs that an engine captures meanwhile.

use cudarc::driver::sys::CUstreamCaptureMode::{
    CU_STREAM_CAPTURE_MODE_GLOBAL, CU_STREAM_CAPTURE_MODE_RELAXED,
};
use kvo_core::{ComputePoint, DeviceBackend, DeviceHealth, FenceError, MarkOrder, Transfer, TransferClass};
use kvo_fakecuda::Hold;

use crate::rig::{Rig, SLOT_BYTES, end_capture, is_capturing, pattern, until};

const CAPTURE_UNSUPPORTED: FenceError = FenceError::Refused { code: 900 };
const CAPTURED_EVENT: FenceError = FenceError::Refused { code: 907 };

#[test]
fn a_fence_behind_an_event_of_a_capture_is_refused_and_leaves_the_capture_whole() {
    let mut rig = Rig::new();
    let (engine, idle) = (rig.stream(), rig.stream());
    let captured = rig.context.new_event(None).unwrap();
    let free = idle.record_event(None).unwrap();
    let [captured_point, free_point] =
        [&captured, &free].map(|event| ComputePoint::Event(rig.event_handle(event)));
    engine.begin_capture(CU_STREAM_CAPTURE_MODE_RELAXED).unwrap();
    captured.record(&engine).unwrap();
    assert_eq!(rig.device.record_fence(captured_point), Err(CAPTURED_EVENT));
    assert_eq!(rig.device.health(), DeviceHealth::Healthy);
    // Other events do not meet the stream that waited for this one.
    rig.fill_device(0, &pattern(3, SLOT_BYTES));
    let after = rig.device.record_fence(free_point).unwrap();
    let store = rig.submit(rig.one_slot(TransferClass::Store, 0, after));
    rig.succeeds(store);
    assert_eq!(rig.slot(0), pattern(3, SLOT_BYTES));
    assert_eq!(end_capture(&engine), Ok(()));

    // It has left the capture, and is used again.
    let streams = rig.fake.counts().streams;
    rig.fake.hold(Hold::All);
    for _ in 0..2 {
        captured.record(&engine).unwrap();
        rig.device.record_fence(captured_point).unwrap();
    }
    assert_eq!(rig.fake.counts().streams, streams);
    rig.fake.release(Hold::All);
    rig.is_clean();
}

#[test]
fn many_fences_behind_events_of_a_capture_are_refused_and_use_few_streams() {
    let mut rig = Rig::new();
    let engine = rig.stream();
    let captured = rig.context.new_event(None).unwrap();
    engine.begin_capture(CU_STREAM_CAPTURE_MODE_RELAXED).unwrap();
    captured.record(&engine).unwrap();
    let point = ComputePoint::Event(rig.event_handle(&captured));
    let before = rig.fake.counts();
    let refused = (0..1000).filter(|_| rig.device.record_fence(point) == Err(CAPTURED_EVENT)).count();
    assert_eq!(refused, 64);
    assert!(matches!(rig.device.record_fence(point), Err(FenceError::Full { .. })));
    let after = rig.fake.counts();
    assert!(
        after.streams - before.streams <= 64 && after.events - before.events <= 1,
        "{before:?} {after:?}"
    );
    assert_eq!(end_capture(&engine), Ok(()));
    captured.record(&engine).unwrap();
    rig.device.record_fence(point).unwrap();
}

#[test]
fn a_device_that_is_dropped_during_a_capture_leaves_it_whole() {
    let mut rig = Rig::new();
    let engine = rig.stream();
    let captured = rig.context.new_event(None).unwrap();
    engine.begin_capture(CU_STREAM_CAPTURE_MODE_GLOBAL).unwrap();
    captured.record(&engine).unwrap();
    let point = ComputePoint::Event(rig.event_handle(&captured));
    assert_eq!(rig.device.record_fence(point), Err(CAPTURED_EVENT));
    let Rig { device, fake, .. } = rig;
    drop(device);
    assert_eq!(end_capture(&engine), Ok(()));
    assert_eq!(fake.violations(), []);
}

#[test]
fn a_stream_that_is_captured_gets_no_fence_and_waits_for_no_mark() {
    let mut rig = Rig::new();
    let (engine, after) = (rig.stream(), rig.passed());
    let handle = rig.handle(&engine);
    rig.fake.hold(Hold::ToDevice(0));
    let load = Transfer { marks: vec![1], ..rig.one_slot(TransferClass::Demand, 0, after) };
    let ticket = rig.submit(load);
    until(|| rig.device.stats().paths.memcpy.copies == 1);
    engine.begin_capture(CU_STREAM_CAPTURE_MODE_GLOBAL).unwrap();
    assert_eq!(rig.device.record_fence(ComputePoint::Stream(handle)), Err(CAPTURE_UNSUPPORTED));
    assert_eq!(rig.device.order_after(ticket, 0, handle), Err(CAPTURE_UNSUPPORTED));
    assert!(is_capturing(&engine));
    assert_eq!(end_capture(&engine), Ok(()));
    rig.device.record_fence(ComputePoint::Stream(handle)).unwrap();
    assert_eq!(rig.device.order_after(ticket, 0, handle), Ok(MarkOrder::Ordered));
    rig.fake.release(Hold::All);
    rig.succeeds(ticket);
}

/// Also in the mode in which a question of any thread spoils it.
#[test]
fn copies_beside_a_capture_leave_it_whole() {
    let mut rig = Rig::new();
    let (engine, other) = (rig.stream(), rig.stream());
    engine.begin_capture(CU_STREAM_CAPTURE_MODE_GLOBAL).unwrap();
    for slot in 0..4 {
        let after = rig.fence_on(&other);
        let load = rig.submit(rig.one_slot(TransferClass::Demand, slot, after));
        rig.succeeds(load);
        let store = rig.submit(rig.one_slot(TransferClass::Store, slot, after));
        rig.succeeds(store);
    }
    assert_eq!(end_capture(&engine), Ok(()));
}

#[test]
fn what_a_capture_forbids_a_fence_is_refused_and_ends_no_device() {
    for code in [900, 901, 902, 903, 904, 905, 906, 907, 908] {
        for call in ["cuStreamWaitEvent", "cuEventRecord", "cuStreamIsCapturing"] {
            let mut rig = Rig::new();
            let engine = rig.stream();
            let event = engine.record_event(None).unwrap();
            let point = ComputePoint::Event(rig.event_handle(&event));
            rig.fake.fail_calls(call, 1, 1, code);
            assert_eq!(rig.device.record_fence(point), Err(FenceError::Refused { code }), "{call}");
            assert_eq!(rig.device.health(), DeviceHealth::Healthy);
            let after = rig.device.record_fence(point).unwrap();
            let ticket = rig.submit(rig.one_slot(TransferClass::Demand, 0, after));
            rig.succeeds(ticket);
        }
    }
}
