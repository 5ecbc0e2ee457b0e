//! Calls of the driver that do not return: who waits for whom.

use std::{
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

use kvo_core::{ComputePoint, DeviceBackend, TransferClass};
use kvo_cuda::CudaOptions;
use kvo_fakecuda::{Compute, FakeDriver, Hold, Leak};

use crate::rig::{LONG, Rig, SLOT_BYTES, allocate, options, raw, span, until};

/// Longer than any call takes that waits for nobody.
const WHILE: Duration = Duration::from_secs(2);

#[test]
fn the_owner_does_not_wait_for_a_call_of_the_thread() {
    for call in ["cuEventQuery", "cuStreamWaitEvent", "cuMemcpyHtoDAsync_v2", "cuEventRecord"] {
        let mut rig = Rig::new();
        let engine = rig.stream();
        rig.fake.hold(Hold::Stream(raw(&engine)));
        rig.fake.enqueue(raw(&engine), Compute::Nothing, Duration::ZERO).unwrap();
        let after = rig.fence_on(&engine);
        let fake: FakeDriver = **rig.fake;
        fake.hold(Hold::Calls(call));
        let first = rig.submit(rig.one_slot(TransferClass::Demand, 0, after));
        assert!(fake.wait_for_blocked(1), "{call}");
        // If the owner waits, somebody must end it.
        let (ends, ended) = mpsc::channel::<()>();
        let releaser = thread::spawn(move || {
            let _ = ended.recv_timeout(WHILE);
            fake.release(Hold::Calls(call));
        });
        let start = Instant::now();
        let second = rig.submit(rig.one_slot(TransferClass::Store, 1, after));
        rig.device.poll(&mut Vec::new());
        rig.device.take_released(&mut Vec::new());
        assert_eq!(rig.device.stats().transfers.inflight, 2);
        assert!(rig.device.drain(Duration::from_millis(1)).is_err());
        assert!(start.elapsed() < WHILE, "the owner waited for {call}");
        ends.send(()).unwrap();
        releaser.join().unwrap();
        rig.fake.release(Hold::All);
        rig.device.drain(LONG).unwrap();
        let mut done = Vec::new();
        rig.device.poll(&mut done);
        let mut tickets: Vec<_> = done.iter().map(|done| done.ticket).collect();
        tickets.sort_unstable();
        assert_eq!(tickets, [first, second]);
    }
}

/// While the owner is in `act`, which calls `call`, a copy ends and the next goes.
#[track_caller]
fn check_thread(call: &'static str, act: impl FnOnce(&mut Rig)) {
    let slot = SLOT_BYTES as u64;
    let small = CudaOptions { window_bytes: slot, quantum_bytes: slot, ..options() };
    let mut rig = Rig::with(small, |_| ());
    let after = rig.passed();
    rig.fake.hold(Hold::ToHost(0));
    for nth in 0..2 {
        rig.submit(rig.one_slot(TransferClass::Store, nth, after));
    }
    until(|| rig.device.stats().paths.memcpy.copies == 1);
    let fake: FakeDriver = **rig.fake;
    fake.hold(Hold::Calls(call));
    let watcher = thread::spawn(move || {
        let blocked = fake.wait_for_blocked(1);
        fake.release(Hold::ToHost(0));
        let start = Instant::now();
        while fake.counts().copies < 2 && start.elapsed() < WHILE {
            thread::sleep(Duration::from_millis(1));
        }
        let copies = fake.counts().copies;
        fake.release(Hold::Calls(call));
        (blocked, copies)
    });
    act(&mut rig);
    assert_eq!(watcher.join().unwrap(), (true, 2), "the thread waited for {call}");
    rig.device.drain(LONG).unwrap();
    rig.is_clean();
}

#[test]
fn the_thread_does_not_wait_for_a_call_of_the_owner() {
    for call in ["cuMemGetAddressRange_v2", "cuPointerGetAttribute"] {
        check_thread(call, |rig| {
            let address = allocate(&rig.context, 4096);
            rig.device.attach(span(address, 4096, 0)).unwrap();
        });
    }
    for call in ["cuStreamWaitEvent", "cuStreamIsCapturing"] {
        check_thread(call, |rig| {
            let event = rig.stream().record_event(None).unwrap();
            let point = ComputePoint::Event(rig.event_handle(&event));
            rig.device.record_fence(point).unwrap();
        });
    }
    check_thread("cuStreamIsCapturing", |rig| {
        let stream = rig.stream();
        rig.fence_on(&stream);
    });
}

/// The wait of a load is for its own fence, also if compute passes that, and the owner makes another, before the wait is
/// put on the stream.
#[test]
fn an_event_that_a_load_is_about_to_wait_for_is_used_for_no_other_fence() {
    let mut rig = Rig::new();
    let [early, late] = [rig.stream(), rig.stream()];
    for stream in [&early, &late] {
        rig.fake.hold(Hold::Stream(raw(stream)));
        rig.fake.enqueue(raw(stream), Compute::Nothing, Duration::ZERO).unwrap();
    }
    let after = rig.fence_on(&early);
    rig.fake.hold(Hold::Calls("cuStreamWaitEvent"));
    let load = rig.submit(rig.one_slot(TransferClass::Demand, 0, after));
    assert!(rig.fake.wait_for_blocked(1));
    rig.fake.release(Hold::Stream(raw(&early)));
    early.synchronize().unwrap();
    rig.fence_on(&late);
    assert_eq!(rig.device.stats().fences_pending, 1, "the first was let go of");
    rig.fake.release(Hold::Calls("cuStreamWaitEvent"));
    rig.succeeds(load);
    rig.fake.release(Hold::All);
    rig.is_clean();
}

/// Events and streams of fences are given back where the context is current, which it need not be for the owner.
#[test]
fn fences_are_given_back_whatever_thread_drops_the_device() {
    let mut rig = Rig::new();
    let (engine, idle) = (rig.stream(), rig.stream());
    rig.fake.hold(Hold::Stream(raw(&engine)));
    rig.fake.enqueue(raw(&engine), Compute::Nothing, Duration::ZERO).unwrap();
    let event = engine.record_event(None).unwrap();
    for _ in 0..3 {
        rig.fence_on(&engine);
        rig.fence_on(&idle);
        rig.device.record_fence(ComputePoint::Event(rig.event_handle(&event))).unwrap();
    }
    let after = rig.passed();
    let load = rig.submit(rig.one_slot(TransferClass::Demand, 0, after));
    rig.succeeds(load);
    let Rig { device, fake, context, address, .. } = rig;
    thread::spawn(move || drop(device)).join().unwrap();
    fake.release(Hold::All);
    drop((engine, idle, event, context));
    assert_eq!((fake.leaks(), fake.violations()), (vec![Leak::Allocation(address)], vec![]));
}
