//! Copies that do not end in time.

use std::{sync::Arc, time::Duration};

use kvo_core::{AttachError, DeviceBackend, HostMemory, SlotId, Transfer, TransferClass, TransferFailure};
use kvo_cuda::CudaOptions;
use kvo_fakecuda::Hold;

use crate::rig::{LONG, Rig, SLOT_BYTES, drop_under_copies, options, pattern, until};

#[test]
fn a_late_transfer_is_reported_once_and_keeps_its_slot_until_the_device_is_done() {
    let mut rig = Rig::new();
    let after = rig.passed();
    rig.fill_device(0, &pattern(9, SLOT_BYTES));
    rig.fake.hold(Hold::ToHost(0));
    // On a busy machine a short deadline is over before the thread has begun; then nothing is held.
    let mut ticket = None;
    for deadline in [20, 200, 2000].map(Duration::from_millis) {
        let store = Transfer { deadline: Some(deadline), ..rig.one_slot(TransferClass::Store, 2, after) };
        let of_try = rig.submit(store);
        let done = rig.next();
        let timed_out = Err(TransferFailure::TimedOut { after: deadline });
        assert_eq!((done.ticket, done.result), (of_try, timed_out));
        if done.held {
            ticket = Some(of_try);
            break;
        }
    }
    let ticket = ticket.expect("the thread begins within two seconds");
    let mut released = Vec::new();
    rig.device.take_released(&mut released);
    assert_eq!(released, []);
    assert!(rig.host.with_read(SlotId(2), &mut |_| ()).is_err(), "the device may still write there");
    let in_use = AttachError::InUse { region: rig.region, inflight: 1 };
    assert_eq!(rig.device.detach(rig.region), Err(in_use));
    assert_eq!(rig.device.stats().transfers.held, 1);

    rig.fake.release(Hold::All);
    until(|| {
        rig.device.take_released(&mut released);
        !released.is_empty()
    });
    assert_eq!(released, [ticket]);
    assert_eq!(rig.slot(2), pattern(9, SLOT_BYTES));
    rig.device.detach(rig.region).unwrap();
    let mut done = Vec::new();
    rig.device.poll(&mut done);
    assert_eq!(done, [], "it was reported before");
}

#[test]
fn an_urgent_load_overtakes_all_but_a_window() {
    let small = CudaOptions { window_bytes: 2 * SLOT_BYTES as u64, ..options() };
    let mut rig = Rig::with(small, |_| ());
    let after = rig.passed();
    rig.fake.hold(Hold::ToDevice(0));
    let prefetches: Vec<_> =
        (0..6).map(|slot| rig.submit(rig.one_slot(TransferClass::Prefetch, slot, after))).collect();
    until(|| rig.device.stats().paths.memcpy.copies == 2);
    let demand = rig.submit(rig.one_slot(TransferClass::Demand, 9, after));
    rig.fake.release(Hold::All);
    rig.device.drain(LONG).unwrap();
    let mut done = Vec::new();
    rig.device.poll(&mut done);
    let order: Vec<_> = done.iter().map(|done| done.ticket).collect();
    assert_eq!(order[..3], [prefetches[0], prefetches[1], demand]);
}

/// B65: copies first, then the registrations, then the memory.
#[test]
fn a_dropped_device_waits_for_its_copies_and_leaves_nothing() {
    let mut rig = Rig::new();
    let after = rig.passed();
    rig.fake.hold(Hold::ToHost(0));
    rig.submit(rig.one_slot(TransferClass::Store, 0, after));
    until(|| rig.device.stats().paths.memcpy.copies == 1);
    let before = rig.fake.counts();
    let Rig { device, host, fake, context, .. } = rig;
    let dropped = drop_under_copies(&fake, device, "cuEventQuery");
    assert_eq!(fake.counts().registrations, 1);
    fake.release(Hold::All);
    dropped.join().unwrap();
    host.with_write(SlotId(0), &mut |_| ()).unwrap();
    let after = fake.counts();
    assert_eq!((before.registrations, after.registrations), (1, 0));
    assert_eq!(after.retains, 1, "the engine's share is left");
    drop(context);
    assert_eq!(fake.violations(), []);
}

/// B34 and B65: memory is rather kept than taken from under a copy.
#[test]
fn a_device_whose_copies_never_end_is_dropped_all_the_same_and_frees_nothing() {
    let mut rig = Rig::with(CudaOptions { drop_timeout: Duration::from_millis(20), ..options() }, |_| ());
    let after = rig.passed();
    rig.fill_device(0, &pattern(3, SLOT_BYTES));
    rig.fake.hold(Hold::ToHost(0));
    rig.submit(rig.one_slot(TransferClass::Store, 0, after));
    until(|| rig.device.stats().paths.memcpy.copies == 1);
    let Rig { device, host, fake, context, .. } = rig;
    drop(device);
    assert_eq!(fake.counts().registrations, 1);
    let others = Arc::strong_count(&host);
    assert!(others > 1, "the device's thread keeps the memory");
    assert!(host.with_read(SlotId(0), &mut |_| ()).is_err());
    // Should they end after all, so does everything else.
    fake.release(Hold::All);
    until(|| fake.counts().registrations == 0 && Arc::strong_count(&host) == 1);
    let mut first = 0;
    host.with_read(SlotId(0), &mut |bytes| first = bytes[0]).unwrap();
    assert_eq!(first, pattern(3, 1)[0]);
    drop(context);
    assert_eq!(fake.violations(), []);
}

#[test]
fn a_device_that_is_shut_down_ends_what_it_has_begun() {
    let small = CudaOptions { window_bytes: SLOT_BYTES as u64, ..options() };
    let mut rig = Rig::with(small, |_| ());
    let after = rig.passed();
    rig.fake.hold(Hold::ToHost(0));
    let begun = rig.submit(rig.one_slot(TransferClass::Store, 0, after));
    let waiting = rig.submit(rig.one_slot(TransferClass::Store, 1, after));
    until(|| rig.device.stats().paths.memcpy.copies == 1);
    rig.device.shut_down();
    let done = rig.next();
    assert_eq!((done.ticket, done.result), (waiting, Err(TransferFailure::ShutDown)));
    rig.fake.release(Hold::All);
    rig.succeeds(begun);
}
