//! What is left after errors.

use std::time::Duration;

use kvo_core::{
    ComputePoint, DeviceBackend, DeviceHealth, FenceError, HostMemory, SubmitErrorReason, TransferClass,
    TransferCompletion, TransferFailure,
};
use kvo_cuda::CudaOptions;
use kvo_fakecuda::Hold;

use crate::rig::{
    NUM_SLOTS, Panicky, Rig, SLOT_BYTES, drop_under_copies, fake, host_memory, options, task, until, warnings,
};

/// Every call of the driver that a device makes.
const CALLS: [&str; 13] = [
    "cuCtxSetCurrent",
    "cuCtxGetCurrent",
    "cuStreamWaitEvent",
    "cuStreamDestroy_v2",
    "cuStreamQuery",
    "cuEventRecord",
    "cuEventQuery",
    "cuEventDestroy_v2",
    "cuMemHostUnregister",
    "cuMemcpyHtoDAsync_v2",
    "cuMemcpyDtoHAsync_v2",
    "cuDevicePrimaryCtxRelease_v2",
    "cuGetErrorString",
];

fn calls(rig: &Rig) -> Vec<u64> {
    CALLS.iter().map(|call| rig.fake.calls(call)).collect()
}

/// Fills the device with transfers that cannot end, lets `happen` happen, and sees each ticket end once, as dead.
#[track_caller]
fn check_death(code: u32, happen: impl FnOnce(&mut Rig)) {
    let mut rig = Rig::new();
    let (after, stream) = (rig.passed(), rig.stream());
    rig.fake.hold(Hold::ToDevice(0));
    rig.fake.hold(Hold::ToHost(0));
    let mut tickets: Vec<_> = (0..NUM_SLOTS)
        .map(|slot| {
            let class = if slot % 2 == 0 { TransferClass::Store } else { TransferClass::Expedited };
            let op = rig.op(u64::from(slot) * SLOT_BYTES as u64, slot, 0, SLOT_BYTES as u64);
            rig.submit(kvo_core::Transfer::new(class, vec![op], after))
        })
        .collect();
    until(|| rig.device.stats().paths.memcpy.copies > 0);
    happen(&mut rig);
    let mut done = Vec::new();
    until(|| {
        rig.device.poll(&mut done);
        rig.device.health() != DeviceHealth::Healthy
    });
    rig.device.poll(&mut done);
    let dead = Err(TransferFailure::Device { code });
    assert!(done.iter().all(|done| done.result == dead), "{done:?}");
    let mut ended: Vec<_> = done.iter().map(|done| done.ticket).collect();
    ended.sort_unstable();
    tickets.sort_unstable();
    assert_eq!(ended, tickets, "each ends once");
    assert_eq!(rig.device.health(), DeviceHealth::Dead { code });

    // From its thread's end on nothing is called.
    until(|| task("kvo-cuda:0").is_none());
    let before = calls(&rig);
    let transfer = rig.one_slot(TransferClass::Store, 0, after);
    let error = rig.device.submit(transfer).unwrap_err();
    assert_eq!(error.reason, SubmitErrorReason::Unhealthy(DeviceHealth::Dead { code }));
    let point = ComputePoint::Stream(rig.handle(&stream));
    let unhealthy = DeviceHealth::Dead { code };
    assert_eq!(rig.device.record_fence(point), Err(FenceError::Unhealthy(unhealthy)));
    rig.device.wait(Duration::from_secs(1), &mut done);
    rig.device.drain(Duration::from_secs(1)).unwrap();
    assert_eq!(calls(&rig), before, "{CALLS:?}");

    // What copies were under way to or from is kept for ever; the rest of the host memory is free.
    // One that was about to be put on the device, and was not, is let go.
    let mut released = Vec::new();
    rig.device.take_released(&mut released);
    let is_held = |done: &&TransferCompletion| done.held && !released.contains(&done.ticket);
    let held: Vec<_> = done.iter().filter(is_held).map(|done| done.ticket.0).collect();
    assert!(!held.is_empty());
    let Rig { device, host, fake, context, .. } = rig;
    assert_eq!(warnings(|| drop(device)), 1, "copies had not ended");
    let after: Vec<u64> = CALLS.iter().map(|call| fake.calls(call)).collect();
    assert_eq!(after, before, "{CALLS:?}");
    for slot in 0..NUM_SLOTS {
        let is_free = host.with_write(kvo_core::SlotId(slot), &mut |_| ()).is_ok();
        assert_eq!(is_free, !held.contains(&u64::from(slot)), "slot {slot}");
    }
    // An engine's context that is dead complains when it is dropped.
    context.forget();
}

#[test]
fn a_dead_device_fails_every_ticket_once_and_is_not_called_again() {
    for code in [700, 719, 999, 214] {
        check_death(code, |rig| rig.fake.kill(0, code));
    }
}

/// Whoever takes every answer but yes for not yet asks for ever.
#[test]
fn an_error_that_an_event_tells_of_ends_the_device_whatever_it_is() {
    for code in [700, 1, 400, 77_777] {
        check_death(code, |rig| rig.fake.fail_calls("cuEventQuery", 1, u64::MAX, code));
    }
}

/// A device with a store of slot 3 under way, and one whose claim panics.
fn panicked(options: CudaOptions) -> (Rig, [kvo_core::Ticket; 2]) {
    let fake = fake();
    let context = cudarc::driver::CudaContext::new(0).unwrap();
    let host = host_memory(NUM_SLOTS, SLOT_BYTES);
    let panicky = std::sync::Arc::new(Panicky { memory: host.clone(), bad: kvo_core::SlotId(9), parts: 1 });
    let device = kvo_cuda::CudaDevice::new(options, panicky).unwrap();
    let mut rig = Rig::around(device, host, context, fake);
    let after = rig.passed();
    rig.fake.hold(Hold::ToHost(0));
    let under_way = rig.submit(rig.one_slot(TransferClass::Store, 3, after));
    until(|| rig.device.stats().paths.memcpy.copies == 1);
    let panics = rig.submit(rig.one_slot(TransferClass::Store, 9, after));
    let mut done = Vec::new();
    until(|| {
        rig.device.poll(&mut done);
        done.len() == 2
    });
    let dead = Err(TransferFailure::Device { code: 999 });
    assert!(done.iter().all(|done| done.result == dead), "{done:?}");
    assert!([under_way, panics].iter().all(|ticket| done.iter().any(|done| done.ticket == *ticket)));
    assert_eq!(rig.device.health(), DeviceHealth::Dead { code: 999 });
    (rig, [under_way, panics])
}

/// B65: a thread that panics under copies. Whatever panics in the device's thread, nothing is given back that the
/// device may still touch.
#[test]
fn a_panic_ends_the_device_and_gives_back_nothing_that_is_under_way() {
    let (rig, _) = panicked(CudaOptions { drop_timeout: Duration::from_millis(20), ..options() });
    let Rig { device, host, fake, .. } = rig;
    assert_eq!(warnings(|| drop(device)), 1);
    assert!(host.with_write(kvo_core::SlotId(3), &mut |_| ()).is_err(), "the copy is still under way");
    assert_eq!(fake.counts().registrations, 1);
    // Should it end after all, so does everything else.
    fake.release(Hold::All);
    until(|| fake.counts().registrations == 0);
    host.with_write(kvo_core::SlotId(3), &mut |_| ()).unwrap();
    assert_eq!(fake.violations(), []);
}

#[test]
fn after_a_panic_what_was_under_way_ends_and_is_given_back() {
    let (mut rig, held) = panicked(options());
    let mut released = Vec::new();
    rig.device.take_released(&mut released);
    assert_eq!(released, []);
    assert!(rig.device.detach(rig.region).is_err(), "the copy is still under way");
    rig.fake.release(Hold::All);
    until(|| {
        rig.device.take_released(&mut released);
        !released.is_empty()
    });
    assert_eq!(released, held);
    rig.device.detach(rig.region).unwrap();
    for slot in [3, 9] {
        rig.fill_slot(slot, &[1]);
    }
    let Rig { device, fake, .. } = rig;
    assert_eq!(warnings(|| drop(device)), 0);
    assert_eq!(fake.counts().registrations, 0);
    assert_eq!(fake.violations(), []);
}

#[test]
fn copies_that_no_event_is_behind_are_waited_for_by_a_drop() {
    let mut rig = Rig::new();
    let after = rig.passed();
    rig.fake.hold(Hold::ToHost(0));
    rig.fake.fail_calls("cuEventRecord", 1, 1, 2);
    let ticket = rig.submit(rig.one_slot(TransferClass::Store, 3, after));
    let done = rig.next();
    let dead = Err(TransferFailure::Device { code: 2 });
    assert_eq!((done.ticket, done.result, done.held), (ticket, dead, true));
    let Rig { device, host, fake, .. } = rig;
    // The device still reads the engine's memory.
    let dropped = drop_under_copies(&fake, device, "cuStreamQuery");
    assert_eq!(fake.counts().registrations, 1);
    fake.release(Hold::All);
    dropped.join().unwrap();
    host.with_write(kvo_core::SlotId(3), &mut |_| ()).unwrap();
    assert_eq!(fake.counts().registrations, 0);
    assert_eq!(fake.violations(), []);
}

/// What is put on the streams by a launch has a list of its own, which is given back too.
#[test]
fn launches_that_no_event_is_behind_give_their_lists_back() {
    let table = Some(crate::rig::favour(kvo_cuda::CopyPath::Kernel));
    let mut rig = Rig::with(CudaOptions { table, kernel_ctas: 2, ..options() }, |_| ());
    let after = rig.passed();
    rig.fake.fail_calls("cuEventRecord", 1, 1, 2);
    let ops = (0..16).map(|nth| rig.op(nth * 100, 0, (nth ^ 1) * 100, 100)).collect();
    let ticket = rig.submit(kvo_core::Transfer::new(TransferClass::Store, ops, after));
    assert_eq!(rig.next().ticket, ticket);
    let Rig { device, fake, .. } = rig;
    drop(device);
    assert_eq!((fake.counts().registrations, fake.counts().modules), (0, 0));
}

#[test]
fn a_refused_copy_fails_its_transfer_once_and_no_other() {
    let mut rig = Rig::new();
    let after = rig.passed();
    rig.fake.fail_calls("cuMemcpyHtoDAsync_v2", 2, 1, 1);
    let ops = (0..4).map(|slot| rig.op(u64::from(slot) << 16, slot, 0, SLOT_BYTES as u64)).collect();
    let ticket = rig.submit(kvo_core::Transfer::new(TransferClass::Demand, ops, after));
    let done = rig.next();
    assert_eq!(
        (done.ticket, done.result, done.held),
        (ticket, Err(TransferFailure::Refused { code: 1 }), false)
    );
    assert_eq!(rig.device.health(), DeviceHealth::Healthy);
    let ticket = rig.submit(rig.one_slot(TransferClass::Demand, 0, after));
    rig.succeeds(ticket);
    for slot in 0..4 {
        rig.fill_slot(slot, &[1]);
    }
}
