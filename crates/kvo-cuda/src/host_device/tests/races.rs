//! What the race detector finds, and what it leaves alone.

use super::*;

/// A device that detects, and its second stream. Nothing has to collide for a race to be found, so nothing is run.
fn detecting() -> (SteppedDevice, ComputeStream) {
    let slots = TestSlots::shared(4, 16);
    let mut stepped = SteppedDevice::new(options(), slots, 1).unwrap();
    attach_blocks(stepped.device_mut());
    let second = stepped.device_mut().create_stream().unwrap();
    (stepped, second)
}

fn kernel(stream: u32, position: u64) -> Job {
    Job::Kernel { stream, position }
}

fn transfer(ticket: Ticket, class: TransferClass) -> Job {
    Job::Transfer { ticket, class }
}

#[track_caller]
fn check(device: &HostDevice, kind: RaceKind, first: Job, second: Job, place: Place, range: Range<u64>) {
    assert_eq!(device.take_races(), [Race { kind, first, second, place, range }]);
}

fn block_range(block: u64) -> Range<u64> {
    at(block)..at(block + 1)
}

fn write(stream: &ComputeStream, block: u64) {
    stream.launch_write(at(block), vec![1; 16]).unwrap();
}

fn read(stream: &ComputeStream, block: u64) {
    stream.launch_read(at(block), 16, |_| {}).unwrap();
}

#[test]
fn a_store_without_a_fence_behind_the_kernel_that_writes() {
    let (mut stepped, second) = detecting();
    let device = stepped.device_mut();
    let early = fence(device);
    write(&second, 0);
    let of_first_stream = fence(device);
    for after in [early, of_first_stream] {
        let ticket = device.submit(store(0, ticket_slot(after), after)).unwrap();
        let job = transfer(ticket, TransferClass::Store);
        check(device, RaceKind::MissingFence, kernel(1, 0), job, Place::Device, block_range(0));
    }
    let right = device.record_fence(second.point()).unwrap();
    device.submit(store(0, 3, right)).unwrap();
    assert_eq!(device.take_races(), []);
}

/// A slot for each of the first fences.
fn ticket_slot(fence: Fence) -> u32 {
    u32::try_from(fence.sequence()).unwrap()
}

#[test]
fn a_load_without_a_fence_behind_the_kernel_that_reads() {
    let (mut stepped, _) = detecting();
    let device = stepped.device_mut();
    let early = fence(device);
    read(device.compute(), 2);
    let ticket = device.submit(load(0, 2, early)).unwrap();
    let job = transfer(ticket, TransferClass::Demand);
    check(device, RaceKind::MissingFence, kernel(0, 0), job, Place::Device, block_range(2));
    // A store only reads, as the kernel does.
    device.submit(store(2, 1, early)).unwrap();
    let [Race { kind: RaceKind::ReadBeforeReady, .. }] = device.take_races()[..] else {
        panic!("the load's block is not ready for a store");
    };
}

#[test]
fn a_kernel_that_does_not_wait_for_the_completion_of_a_transfer() {
    let (mut stepped, _) = detecting();
    let device = stepped.device_mut();
    let after = fence(device);
    let [loads, stores] =
        [load(0, 0, after), store(1, 1, after)].map(|transfer| device.submit(transfer).unwrap());
    let (loads, stores) = (transfer(loads, TransferClass::Demand), transfer(stores, TransferClass::Store));
    let compute = device.compute().clone();
    read(&compute, 0);
    check(device, RaceKind::ReadBeforeReady, loads, kernel(0, 0), Place::Device, block_range(0));
    write(&compute, 0);
    check(device, RaceKind::ReuseBeforeCompletion, loads, kernel(0, 1), Place::Device, block_range(0));
    read(&compute, 1);
    assert_eq!(device.take_races(), [], "both only read");
    write(&compute, 1);
    check(device, RaceKind::WriteWhileRead, stores, kernel(0, 3), Place::Device, block_range(1));
    // That it has ended is not enough: whoever does not know it only had luck.
    stepped.run();
    let compute = stepped.device().compute().clone();
    write(&compute, 1);
    assert_eq!(stepped.device().take_races().len(), 1);
    let mut done = Vec::new();
    stepped.device_mut().poll(&mut done);
    write(&compute, 1);
    read(&compute, 0);
    assert_eq!((done.len(), stepped.device().take_races()), (2, vec![]));
}

#[test]
fn transfers_that_use_a_slot_at_the_same_time() {
    let (mut stepped, _) = detecting();
    let device = stepped.device_mut();
    let after = fence(device);
    let first = device.submit(store(0, 0, after)).unwrap();
    let slot = Place::Slot(SlotId(0));
    let first = transfer(first, TransferClass::Store);
    let reads = device.submit(load(0, 1, after)).unwrap();
    let reads = transfer(reads, TransferClass::Demand);
    check(device, RaceKind::ReadBeforeReady, first, reads, slot, 0..16);
    let half = CopyOp { slot_offset: 8, bytes: 8, ..op(2, 0) };
    let writes = device.submit(Transfer { ops: vec![half], ..store(0, 0, after) }).unwrap();
    let writes = transfer(writes, TransferClass::Store);
    let race = |kind, first| Race { kind, first, second: writes, place: slot, range: 8..16 };
    let expected = [race(RaceKind::ReuseBeforeCompletion, first), race(RaceKind::WriteWhileRead, reads)];
    assert_eq!(device.take_races(), expected);
    device.submit(load(1, 5, after)).unwrap();
    device.submit(load(1, 6, after)).unwrap();
    assert_eq!(device.take_races(), [], "two that read do not collide");
}

#[test]
fn a_slot_that_is_held_is_not_free_before_its_release_is_taken() {
    let (mut stepped, _) = detecting();
    let after = fence(stepped.device_mut());
    let deadline = Some(Duration::from_secs(1));
    let held = stepped.device_mut().submit(Transfer { deadline, ..store(0, 0, after) }).unwrap();
    while stepped.device().shared.lock().queue.on_device_bytes(Direction::Store) == 0 {
        stepped.step();
    }
    stepped.advance_to(Duration::from_secs(1));
    let mut done = Vec::new();
    stepped.device_mut().poll(&mut done);
    assert!(done[0].held);
    let second = stepped.device_mut().submit(store(1, 0, after)).unwrap();
    let jobs = [held, second].map(|ticket| transfer(ticket, TransferClass::Store));
    let slot = Place::Slot(SlotId(0));
    check(stepped.device(), RaceKind::ReuseBeforeCompletion, jobs[0], jobs[1], slot, 0..16);
    stepped.run();
    assert_eq!(released(stepped.device_mut(), 1), [held]);
    stepped.device_mut().poll(&mut done);
    stepped.device_mut().submit(store(1, 0, after)).unwrap();
    assert_eq!(stepped.device().take_races(), []);
}

#[test]
fn streams_that_do_not_wait_for_one_another() {
    let (stepped, second) = detecting();
    let device = stepped.device();
    let event = device.create_event();
    write(device.compute(), 0);
    device.compute().record(event).unwrap();
    write(device.compute(), 1);
    read(&second, 0);
    check(device, RaceKind::UnorderedKernels, kernel(0, 0), kernel(1, 0), Place::Device, block_range(0));
    second.wait_for(event).unwrap();
    read(&second, 0);
    assert_eq!(device.take_races(), []);
    read(&second, 1); // launched behind the event
    check(device, RaceKind::UnorderedKernels, kernel(0, 1), kernel(1, 3), Place::Device, block_range(1));
}

#[test]
fn a_stream_that_was_synchronized_with_is_known_to_be_done() {
    let (mut stepped, second) = detecting();
    write(stepped.device().compute(), 0);
    stepped.run();
    stepped.device().compute().synchronize(LONG).unwrap();
    read(&second, 0);
    let early = stepped.device_mut().record_fence(second.point()).unwrap();
    stepped.device_mut().submit(store(0, 0, early)).unwrap();
    assert_eq!(stepped.device().take_races(), []);
}

#[test]
fn a_transfer_tells_of_what_was_before_its_fence() {
    let (mut stepped, second) = detecting();
    let device = stepped.device_mut();
    write(device.compute(), 0);
    let after = fence(device);
    device.submit(store(1, 1, after)).unwrap();
    stepped.run();
    let mut done = Vec::new();
    stepped.device_mut().poll(&mut done);
    write(&second, 0);
    assert_eq!(stepped.device().take_races(), []);
}

#[test]
fn a_stream_behind_a_mark_knows_of_the_copies_before_it_only() {
    let (mut stepped, second) = detecting();
    let device = stepped.device_mut();
    let after = fence(device);
    let ops = vec![op(0, 0), op(1, 1)];
    let ticket = device.submit(Transfer { ops, marks: vec![1, 2], ..load(0, 0, after) }).unwrap();
    while stepped.device_mut().order_after(ticket, 0, second.handle()) == Ok(MarkOrder::NotYet) {
        stepped.step();
    }
    read(&second, 0);
    assert_eq!(stepped.device().take_races(), []);
    read(&second, 1);
    let (first, then) = (transfer(ticket, TransferClass::Demand), kernel(1, 2));
    check(stepped.device(), RaceKind::ReadBeforeReady, first, then, Place::Device, block_range(1));
}

#[test]
fn a_kernel_that_says_nothing_is_seen_by_the_poison_it_disturbs() {
    for seed in 0..20 {
        let slots = TestSlots::shared(4, 16);
        let mut stepped = SteppedDevice::new(options(), slots.clone(), seed).unwrap();
        attach_blocks(stepped.device_mut());
        let after = fence(stepped.device_mut());
        let ops = vec![op(0, 0), op(1, 1), op(2, 2), op(3, 3)];
        let ticket = stepped.device_mut().submit(Transfer { ops, ..load(0, 0, after) }).unwrap();
        // Two steps: the piece is given out, and one of its copies is done.
        for _ in 0..2 {
            stepped.step();
        }
        let poisoned: Vec<u64> = (0..4).filter(|nth| block(stepped.device(), *nth) == [0xDB; 16]).collect();
        assert_eq!(poisoned.len(), 3, "seed {seed}: whoever reads too early finds poison");
        let disturbed = poisoned[0];
        let kernel = move |memory: &DeviceMemory| memory.write(at(disturbed), &[1; 16]).unwrap();
        stepped.device().compute().launch(kernel).unwrap();
        // The kernel runs before what is left of the transfer.
        let item = stepped.device().shared.lock().streams.take(0).unwrap();
        compute::run_item(&stepped.device().shared, 0, item);
        stepped.run();
        let job = transfer(ticket, TransferClass::Demand);
        let (kind, range) = (RaceKind::PoisonDisturbed, block_range(disturbed));
        check(stepped.device(), kind, job, Job::Outside, Place::Device, range);
    }
}

#[test]
fn a_slot_that_somebody_else_writes_while_it_is_stored_is_disturbed() {
    let slots = TestSlots::shared(4, 16);
    let mut stepped = SteppedDevice::new(options(), slots.clone(), 3).unwrap();
    attach_blocks(stepped.device_mut());
    let after = fence(stepped.device_mut());
    let ops = vec![op(0, 0), op(1, 1)];
    let ticket = stepped.device_mut().submit(Transfer { ops, ..store(0, 0, after) }).unwrap();
    for _ in 0..2 {
        stepped.step();
    }
    let poisoned = (0..2).map(SlotId).find(|slot| slots.bytes(*slot) == [0xDB; 16]).unwrap();
    slots.fill(poisoned, &[9]);
    stepped.run();
    let (job, place) = (transfer(ticket, TransferClass::Store), Place::Slot(poisoned));
    check(stepped.device(), RaceKind::PoisonDisturbed, job, Job::Outside, place, 0..16);
}

#[test]
fn a_kernel_that_reaches_into_a_guard_zone_or_beyond_what_it_said() {
    let (mut stepped, _) = detecting();
    let compute = stepped.device().compute().clone();
    compute.launch(|memory| assert!(memory.write(at(8) - 4, &[1; 8]).is_err())).unwrap();
    let (reads, writes) = (vec![block_range(0), block_range(1)], vec![block_range(2)]);
    let said = Accesses { reads, writes };
    compute
        .launch_with(said, |memory| {
            let mut bytes = [0; 16];
            memory.read(at(1), &mut bytes).unwrap();
            memory.read(at(2), &mut bytes).unwrap();
            memory.write(at(2), &bytes).unwrap();
            memory.write(at(1), &bytes).unwrap();
        })
        .unwrap();
    stepped.run();
    let race = |kind, position, range| Race {
        kind,
        first: kernel(0, position),
        second: Job::Outside,
        place: Place::Device,
        range,
    };
    let expected =
        [race(RaceKind::GuardZone, 0, at(8) - 4..at(8) + 4), race(RaceKind::Undeclared, 1, block_range(1))];
    assert_eq!(stepped.device().take_races(), expected);
}

/// Nobody takes them, and the kernel runs for ever.
#[test]
fn a_kernel_that_goes_wrong_again_and_again_does_not_fill_the_memory() {
    let (mut stepped, compute) = detecting();
    let in_turn = |memory: &DeviceMemory| {
        for nth in 0..10_000_u64 {
            _ = memory.read(at(nth % 2 * 8), &mut [0]);
        }
    };
    compute.launch_with(Accesses::default(), in_turn).unwrap();
    stepped.run();
    let races = stepped.device().take_races().len();
    assert!((1..=4096).contains(&races), "{races}");
}

#[test]
fn the_detector_finds_the_same_on_a_device_with_threads_and_is_off_unless_it_is_asked_for() {
    for detect_races in [false, true] {
        let slots = TestSlots::shared(4, 16);
        let mut device = device_over(&slots, HostDeviceOptions { detect_races, ..options() });
        let early = fence(&mut device);
        write(device.compute(), 0);
        device.compute().synchronize(LONG).unwrap();
        write(device.compute(), 1);
        device.submit(store(0, 0, early)).unwrap();
        device.submit(store(1, 1, early)).unwrap();
        all(&mut device);
        let kinds: Vec<RaceKind> = device.take_races().iter().map(|race| race.kind).collect();
        assert_eq!(kinds, if detect_races { vec![RaceKind::MissingFence] } else { vec![] });
    }
}

/// An engine that leaves out one fence in `one_in`: says whether the detector found it.
fn finds(seed: u64, without_fence: bool) -> bool {
    let (mut stepped, _) = detecting();
    let mut rng = random::Rng::new(seed);
    let early = fence(stepped.device_mut());
    let mut free: Vec<u32> = (0..4).collect();
    let mut open = Vec::new();
    for _ in 0..30 {
        let Some(slot) = free.pop() else {
            stepped.run();
            let mut done = Vec::new();
            stepped.device_mut().poll(&mut done);
            free.append(&mut open);
            continue;
        };
        let block = u64::from(slot) * 2;
        write(stepped.device().compute(), block);
        let after = if without_fence && rng.below(4) == 0 { early } else { fence(stepped.device_mut()) };
        stepped.device_mut().submit(store(block, slot, after)).unwrap();
        open.push(slot);
        for _ in 0..rng.below(4) {
            stepped.step();
        }
    }
    stepped.device().take_races().iter().any(|race| race.kind == RaceKind::MissingFence)
}

#[test]
fn a_missing_fence_is_found_under_every_seed_and_none_where_all_are_there() {
    for seed in 0..200 {
        assert!(finds(seed, true), "seed {seed}");
        assert!(!finds(seed, false), "seed {seed}");
    }
}
