//! What fences cost, and how many there may be.

use std::time::Duration;

use kvo_core::{ComputePoint, DeviceBackend, FenceError};
use kvo_cuda::CudaOptions;
use kvo_fakecuda::{Compute, Hold};

use crate::rig::{Rig, SLOT_BYTES, options, raw, until};

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
fn no_more_than_64_fences_behind_events_are_pending_whatever_else_may_be() {
    let mut rig = Rig::new();
    let (held, event) = held_write(&rig, 1);
    let behind_event = ComputePoint::Event(rig.event_handle(&event));
    for _ in 0..64 {
        rig.device.record_fence(behind_event).unwrap();
    }
    let full = FenceError::Full { pending: 64, pending_max: 64 };
    assert_eq!(rig.device.record_fence(behind_event), Err(full));
    rig.fence_on(&held);
    rig.fake.release(Hold::All);
    held.synchronize().unwrap();
    until(|| rig.device.record_fence(behind_event).is_ok());
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
