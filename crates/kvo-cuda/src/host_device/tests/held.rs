//! Transfers that end before the device is done with them: late ones, and those of a device that dies or panics.

use super::*;

/// Host memory that stops at the first access of slot 0 until it may go on.
struct Stop {
    arrived: Receiver<()>,
    go: Sender<()>,
}

impl Stop {
    fn slots() -> (Self, Arc<TestSlots>) {
        let (arrive, arrived) = crossbeam_channel::bounded(1);
        let (go, wait) = crossbeam_channel::bounded::<()>(1);
        let hook = move |slot| {
            if slot == SlotId(0) {
                arrive.send(()).unwrap();
                wait.recv().unwrap();
            }
        };
        (Self { arrived, go }, Arc::new(TestSlots::new(4, 16).with_hook(hook)))
    }

    /// Returns when a copy has stopped.
    #[track_caller]
    fn arrived(&self) {
        self.arrived.recv_timeout(LONG).unwrap();
    }

    fn go(&self) {
        self.go.send(()).unwrap();
    }
}

/// Stores block 0 to slots 0 and 1.
fn two(after: Fence) -> Transfer {
    Transfer { ops: vec![op(0, 0), op(0, 1)], ..store(0, 0, after) }
}

#[test]
fn what_a_lane_copies_when_the_device_fails_is_held_until_it_stops_at_the_next_slot() {
    let (stop, slots) = Stop::slots();
    let mut device = device_over(&slots, options());
    let after = fence(&mut device);
    let ticket = device.submit(two(after)).unwrap();
    stop.arrived();
    device.fail(5);
    let failure = Err(TransferFailure::Device { code: 5 });
    assert_eq!(all(&mut device), [TransferCompletion { ticket, result: failure, held: true }]);
    let mut none = Vec::new();
    device.take_released(&mut none);
    assert_eq!((none, device.stats().held), (vec![], 1));
    let in_use = AttachError::InUse { region: RegionId(0), inflight: 1 };
    assert_eq!(device.detach(RegionId(0)), Err(in_use));
    stop.go();
    assert_eq!(released(&mut device, 1), [ticket]);
    assert_eq!(slots.bytes(SlotId(1)), [0xEE; 16]);
    assert_eq!((all(&mut device), device.stats().held), (vec![], 0));
    assert_eq!(device.detach(RegionId(0)), Ok(()));
}

#[test]
fn what_a_lane_copies_when_the_device_is_shut_down_is_finished() {
    let (stop, slots) = Stop::slots();
    let mut device = device_over(&slots, options());
    let after = fence(&mut device);
    let ticket = device.submit(two(after)).unwrap();
    stop.arrived();
    device.shut_down();
    assert_eq!(
        device.drain(Duration::ZERO).unwrap_err().inflight,
        1,
        "a ticket is open while its lane copies"
    );
    stop.go();
    assert_eq!(all(&mut device), [ended(ticket, Ok(2 * BLOCK))]);
    assert_eq!(slots.bytes(SlotId(1)), [0; 16]);
}

/// B26: what was given up before it began is never begun, and is reported.
#[test]
fn a_late_transfer_is_held_if_it_has_begun_and_over_if_it_has_not() {
    let (stop, slots) = Stop::slots();
    let mut device = device_over(&slots, options());
    let after = fence(&mut device);
    let deadline = Duration::from_millis(20);
    let begun = device.submit(Transfer { deadline: Some(deadline), ..two(after) }).unwrap();
    stop.arrived();
    let queued = device.submit(Transfer { deadline: Some(deadline), ..store(0, 2, after) }).unwrap();
    let behind = device.submit(store(0, 3, after)).unwrap();
    let mut done = Vec::new();
    while done.len() < 2 {
        device.wait(LONG, &mut done);
    }
    let timed_out = Err(TransferFailure::TimedOut { after: deadline });
    let expected = [
        TransferCompletion { ticket: begun, result: timed_out.clone(), held: true },
        ended(queued, timed_out),
    ];
    assert_eq!(done, expected);
    stop.go();
    assert_eq!(released(&mut device, 1), [begun]);
    assert_eq!(all(&mut device), [ended(behind, Ok(BLOCK))], "the device works on");
    assert_eq!(device.health(), DeviceHealth::Healthy);
    assert_eq!(slots.bytes(SlotId(2)), [0xEE; 16], "what was over before it began moved no byte");
}

/// B65: a thread that panics in a copy.
#[test]
fn host_memory_that_panics_kills_the_device_and_hangs_nothing() {
    let hook = |slot| assert_ne!(slot, SlotId(1), "host memory fails, as it should in this test");
    let slots = Arc::new(TestSlots::new(4, 16).with_hook(hook));
    let mut device = device_over(&slots, options());
    let after = fence(&mut device);
    let good = device.submit(store(0, 0, after)).unwrap();
    let bad = device.submit(store(0, 1, after)).unwrap();
    let late = device.submit(store(0, 2, after)).ok();
    let done = all(&mut device);
    let failure = Err(TransferFailure::Device { code: HostDevice::COPY_PANICKED });
    let held = TransferCompletion { ticket: bad, result: failure.clone(), held: true };
    let mut expected = vec![ended(good, Ok(BLOCK)), held];
    expected.extend(late.map(|late| ended(late, failure)));
    assert_eq!(done, expected);
    assert_eq!(released(&mut device, 1), [bad]);
    assert_eq!(device.health(), DeviceHealth::Dead { code: HostDevice::COPY_PANICKED });
}
