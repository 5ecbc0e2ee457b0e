//! What a fence is behind.

use std::time::Duration;

use kvo_core::{ComputePoint, DeviceBackend, Fence, FenceError, OwnerId, SubmitErrorReason, TransferClass};
use kvo_cuda::CudaOptions;
use kvo_fakecuda::{Compute, Hold};

use crate::rig::{Rig, SLOT_BYTES, options, pattern, raw, until};

const SLOT: u64 = SLOT_BYTES as u64;

/// Has compute that writes the region's start wait on a held stream, with an event behind it.
fn held_write(
    rig: &Rig,
    seed: u64,
) -> (std::sync::Arc<cudarc::driver::CudaStream>, cudarc::driver::CudaEvent) {
    let stream = rig.stream();
    rig.fake.hold(Hold::Stream(raw(&stream)));
    let write = Compute::Write { address: rig.address, bytes: SLOT, seed };
    rig.fake.enqueue(raw(&stream), write, Duration::ZERO).unwrap();
    let event = rig.context.new_event(None).unwrap();
    event.record(&stream).unwrap();
    (stream, event)
}

#[test]
fn a_store_waits_for_the_compute_that_writes() {
    for class in [TransferClass::Store, TransferClass::Demand, TransferClass::Prefetch] {
        let mut rig = Rig::new();
        let (stream, _) = held_write(&rig, 5);
        let after = rig.fence_on(&stream);
        let ticket = rig.submit(rig.one_slot(class, 0, after));
        rig.nothing_ends();
        rig.fake.release(Hold::All);
        rig.succeeds(ticket);
        if class == TransferClass::Store {
            assert_eq!(rig.slot(0), pattern(5, SLOT_BYTES));
        } else {
            assert_eq!(rig.on_device(0, SLOT_BYTES), vec![0; SLOT_BYTES], "the load came after the write");
        }
    }
}

/// The fence is behind what the event was recorded behind at the time of the call. Whoever asks the engine's own event
/// later is told of something else.
#[test]
fn an_event_that_is_recorded_again_does_not_move_the_fence() {
    let mut rig = Rig::new();
    let (_held, event) = held_write(&rig, 6);
    let idle = rig.stream();
    let behind_write = ComputePoint::Event(rig.event_handle(&event));
    let late = rig.device.record_fence(behind_write).unwrap();
    event.record(&idle).unwrap();
    idle.synchronize().unwrap();
    let store = rig.submit(rig.one_slot(TransferClass::Store, 0, late));
    rig.nothing_ends();
    rig.fake.release(Hold::All);
    rig.succeeds(store);
    assert_eq!(rig.slot(0), pattern(6, SLOT_BYTES));

    // And the other way: what was passed stays passed.
    let early = rig.device.record_fence(behind_write).unwrap();
    let (again, _) = held_write(&rig, 7);
    event.record(&again).unwrap();
    let store = rig.submit(rig.one_slot(TransferClass::Store, 1, early));
    rig.succeeds(store);
    assert_eq!(rig.slot(1), pattern(6, SLOT_BYTES));
}

#[test]
fn a_fence_behind_an_event_waits_for_no_other_fence() {
    let mut rig = Rig::new();
    let (_held, late) = held_write(&rig, 8);
    let idle = rig.stream();
    let early = idle.record_event(None).unwrap();
    let points = [&late, &early].map(|event| ComputePoint::Event(rig.event_handle(event)));
    let [late, early] = points.map(|point| rig.device.record_fence(point).unwrap());
    let held = rig.submit(rig.one_slot(TransferClass::Prefetch, 0, late));
    let free = rig.submit(rig.one_slot(TransferClass::Expedited, 1, early));
    rig.succeeds(free);
    rig.nothing_ends();
    rig.fake.release(Hold::All);
    rig.succeeds(held);
}

#[test]
fn fences_use_few_events_however_many_there_are() {
    let mut rig = Rig::new();
    let engine = rig.stream();
    let event = engine.record_event(None).unwrap();
    let before = rig.fake.counts();
    for _ in 0..2000 {
        rig.fence_on(&engine);
        let point = ComputePoint::Event(rig.event_handle(&event));
        // The driver's threads may be slower than this loop.
        until(|| rig.device.record_fence(point).is_ok());
    }
    let after = rig.fake.counts();
    assert!(after.events - before.events <= 1024, "{before:?} {after:?}");
    assert!(after.streams - before.streams <= 64, "{before:?} {after:?}");
    rig.is_clean();
}

#[test]
fn a_limit_of_fences_that_compute_has_not_passed_is_kept_and_said() {
    let mut rig = Rig::with(CudaOptions { fences_max: 3, ..options() }, |_| ());
    let (held, event) = held_write(&rig, 1);
    let point = ComputePoint::Stream(rig.handle(&held));
    for _ in 0..3 {
        rig.device.record_fence(point).unwrap();
    }
    let full = FenceError::Full { pending: 3, pending_max: 3 };
    assert_eq!(rig.device.record_fence(point), Err(full.clone()));
    assert_eq!(rig.device.record_fence(ComputePoint::Event(rig.event_handle(&event))), Err(full));
    rig.fake.release(Hold::All);
    held.synchronize().unwrap();
    rig.device.record_fence(point).unwrap();
    assert_eq!(rig.device.stats().fences_pending, 1);
}

#[test]
fn fences_and_handles_of_others_are_refused() {
    let mut rig = Rig::new();
    let own = rig.passed();
    let foreign = Fence::new(OwnerId::unique(), 0);
    let future = Fence::new(own.device(), own.sequence() + 1);
    for (fence, reason) in
        [(foreign, SubmitErrorReason::ForeignFence), (future, SubmitErrorReason::UnknownFence)]
    {
        let transfer = rig.one_slot(TransferClass::Store, 0, fence);
        let error = rig.device.submit(transfer.clone()).unwrap_err();
        assert_eq!((error.transfer, error.reason), (transfer, reason));
    }
    let other = crate::rig::host_memory(1, 4096);
    let mut second = kvo_cuda::CudaDevice::new(options(), other).unwrap();
    let point = ComputePoint::Stream(rig.handle(&rig.stream()));
    assert_eq!(second.record_fence(point), Err(FenceError::ForeignHandle));
}
