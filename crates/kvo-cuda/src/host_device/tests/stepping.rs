//! The device that is stepped: one seed, one thread, any order.

use std::collections::HashSet;

use super::*;

fn stepped(slots: &Arc<TestSlots>, options: HostDeviceOptions, seed: u64) -> SteppedDevice {
    let slots: Arc<TestSlots> = Arc::clone(slots);
    let mut stepped = SteppedDevice::new(options, slots, seed).unwrap();
    attach_blocks(stepped.device_mut());
    stepped
}

#[track_caller]
fn polled(stepped: &mut SteppedDevice) -> Vec<TransferCompletion> {
    let mut done = Vec::new();
    stepped.device_mut().poll(&mut done);
    done
}

#[test]
fn nothing_happens_but_in_a_step() {
    let slots = TestSlots::shared(4, 16);
    let mut stepped = stepped(&slots, options(), 1);
    let device = stepped.device_mut();
    device.compute().launch_write(at(0), vec![3; 16]).unwrap();
    let after = fence(device);
    let ticket = device.submit(store(0, 1, after)).unwrap();
    let mut done = Vec::new();
    device.wait(LONG, &mut done);
    assert_eq!(device.drain(LONG).unwrap_err().inflight, 1);
    assert!(matches!(device.compute().synchronize(LONG), Err(ComputeError::TimedOut { .. })));
    assert_eq!((done, block(device, 0)), (vec![], [0; 16]));
    // The kernel, the piece, its copy, its end.
    for _ in 0..4 {
        assert_eq!(stepped.step(), Step::Done);
    }
    assert_eq!(stepped.step(), Step::Idle { until: None });
    assert_eq!(polled(&mut stepped), [ended(ticket, Ok(BLOCK))]);
    assert_eq!(slots.bytes(SlotId(1)), [3; 16]);
    assert_eq!(stepped.device().take_races(), []);
}

#[test]
fn a_link_ends_pieces_in_virtual_time() {
    let slots = TestSlots::shared(4, 16);
    let link = LinkModel { gb_per_s: 0.001, transfer_us: 100.0, op_us: 10.0 }; // a byte a microsecond
    let mut stepped = stepped(&slots, HostDeviceOptions { link: Some(link), ..options() }, 1);
    let after = fence(stepped.device_mut());
    let two = Transfer { ops: vec![op(0, 0), op(1, 1)], ..store(0, 0, after) };
    let stores =
        [stepped.device_mut().submit(two).unwrap(), stepped.device_mut().submit(store(2, 2, after)).unwrap()];
    let loads = stepped.device_mut().submit(load(3, 3, after)).unwrap();
    let us = Duration::from_micros;
    let mut ends = Vec::new();
    while stepped.device().stats().inflight > 0 {
        match stepped.step() {
            Step::Done => {}
            Step::Idle { until } => stepped.advance_to(until.expect("something is on its way")),
        }
        ends.extend(polled(&mut stepped).into_iter().map(|completion| (completion.ticket, stepped.now())));
    }
    let expected = [(loads, us(126)), (stores[0], us(152)), (stores[1], us(278))];
    assert_eq!(ends, expected);
}

#[test]
fn a_deadline_is_of_virtual_time() {
    let slots = TestSlots::shared(4, 16);
    let mut stepped = stepped(&slots, options(), 1);
    let after = fence(stepped.device_mut());
    let deadline = Duration::from_secs(5);
    let late = Transfer { deadline: Some(deadline), ..store(0, 0, after) };
    let held = stepped.device_mut().submit(late.clone()).unwrap();
    while stepped.device().shared.lock().queue.on_device_bytes(Direction::Store) == 0 {
        stepped.step();
    }
    let queued = stepped.device_mut().submit(Transfer { ops: vec![op(1, 1)], ..late }).unwrap();
    stepped.advance_to(deadline);
    let timed_out = Err(TransferFailure::TimedOut { after: deadline });
    let expected = [
        TransferCompletion { ticket: held, result: timed_out.clone(), held: true },
        ended(queued, timed_out),
    ];
    assert_eq!(polled(&mut stepped), expected);
    stepped.run();
    assert_eq!(released(stepped.device_mut(), 1), [held]);
    assert_eq!(slots.bytes(SlotId(1)), [0xEE; 16]);
}

/// The order in which the copies of two transfers were done, the first of which has a mark behind its second copy.
fn order(seed: u64) -> Vec<u32> {
    let (send, seen) = crossbeam_channel::unbounded();
    let slots = Arc::new(TestSlots::new(6, 16).with_hook(move |slot| send.send(slot.0).unwrap()));
    let mut stepped = SteppedDevice::without_detector(options(), slots, seed).unwrap();
    attach_blocks(stepped.device_mut());
    let after = fence(stepped.device_mut());
    let with_mark =
        Transfer { ops: (0..4).map(|n| op(n.into(), n)).collect(), marks: vec![2], ..load(0, 0, after) };
    stepped.device_mut().submit(with_mark).unwrap();
    stepped.device_mut().submit(store(4, 4, after)).unwrap();
    stepped.device_mut().submit(Transfer { class: TransferClass::Prefetch, ..load(5, 5, after) }).unwrap();
    stepped.run();
    assert!(polled(&mut stepped).iter().all(|completion| completion.result.is_ok()));
    seen.try_iter().collect()
}

#[test]
fn a_seed_is_one_order_and_seeds_are_many_but_none_crosses_a_mark() {
    let mut orders = HashSet::new();
    for seed in 0..300 {
        let order = order(seed);
        assert_eq!(order, self::order(seed), "seed {seed}");
        let place = |slot| order.iter().position(|seen| *seen == slot).unwrap();
        assert!(place(0).max(place(1)) < place(2).min(place(3)), "seed {seed}: {order:?}");
        orders.insert(order);
    }
    assert!(orders.len() > 50, "only {} orders", orders.len());
}

#[test]
fn whole_systems_run_from_a_seed_and_are_clean_if_they_keep_the_rules() {
    for seed in 0..40 {
        let slots = TestSlots::shared(24, 96);
        let options = HostDeviceOptions { quantum_bytes: 40, ..options() };
        let mut stepped = SteppedDevice::new(options, slots.clone(), seed).unwrap();
        let spans = [400, 200].map(|bytes| stepped.device().alloc(bytes).unwrap());
        let regions = spans.map(|span| stepped.device_mut().attach(span).unwrap());
        let streams = [stepped.device().compute().clone(), stepped.device_mut().create_stream().unwrap()];
        let mut traffic = random::Traffic::new(seed, &spans, &regions, &slots);
        let mut rng = random::Rng::new(seed);
        for _ in 0..1500 {
            traffic.go_on(stepped.device_mut(), &streams);
            for _ in 0..rng.below(8) {
                stepped.step();
            }
        }
        stepped.run();
        traffic.finish(stepped.device_mut(), &streams);
        assert!(traffic.num_ended() > 300, "seed {seed}: {}", traffic.num_ended());
        assert_eq!(stepped.device().take_races(), [], "seed {seed}");
    }
}

#[test]
fn a_dead_device_stops_and_lets_go() {
    for seed in 0..50 {
        let slots = TestSlots::shared(4, 16);
        let mut stepped = stepped(&slots, options(), seed);
        let after = fence(stepped.device_mut());
        let ops = vec![op(0, 0), op(1, 1), op(2, 2)];
        let ticket = stepped.device_mut().submit(Transfer { ops, ..store(0, 0, after) }).unwrap();
        for _ in 0..seed % 5 {
            stepped.step();
        }
        stepped.device().fail(700);
        let [TransferCompletion { ticket: of, ref result, held }] = polled(&mut stepped)[..] else {
            panic!("seed {seed}: it completes once");
        };
        stepped.run();
        let mut released = Vec::new();
        stepped.device_mut().take_released(&mut released);
        if result.is_ok() {
            assert_eq!((held, released), (false, vec![]), "seed {seed}");
        } else {
            assert_eq!((of, released), (ticket, if held { vec![ticket] } else { vec![] }), "seed {seed}");
        }
        assert_eq!((polled(&mut stepped), stepped.device().stats().held), (vec![], 0));
    }
}

/// What was not poisoned is not disturbed; and of a transfer that has failed nothing more is copied.
#[test]
fn a_store_whose_slot_is_in_use_fails_without_a_race() {
    for seed in 0..50 {
        let slots = TestSlots::shared(4, 16);
        let mut stepped = stepped(&slots, HostDeviceOptions { quantum_bytes: 16, ..options() }, seed);
        let after = fence(stepped.device_mut());
        let two = Transfer { ops: vec![op(0, 0), op(1, 1), op(2, 2)], ..store(0, 0, after) };
        let ticket = stepped.device_mut().submit(two).unwrap();
        let held = slots.hold(SlotId(1));
        assert_eq!(stepped.step(), Step::Done);
        drop(held);
        stepped.run();
        let failure = TransferFailure::Slot(kvo_core::SlotAccessError::Busy { slot: SlotId(1) });
        assert_eq!(polled(&mut stepped), [ended(ticket, Err(failure))], "seed {seed}");
        assert_eq!(stepped.device().take_races(), [], "seed {seed}");
        assert_eq!(slots.bytes(SlotId(2)), [0xEE; 16], "seed {seed}");
    }
}
