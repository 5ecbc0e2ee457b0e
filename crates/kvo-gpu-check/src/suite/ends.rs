//! How transfers end: once, late, held, or not at all.

use std::{
    collections::HashMap,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use kvo_core::{
    AttachError, DeviceHealth, DrainError, HostMemory, ReadClaim, SlotAccessError, SlotId, StableMemory,
    Ticket, Transfer, TransferClass, TransferFailure,
};

use super::rig::{Ground, NUM_SLOTS, Rig, SLOT, SLOT_LENGTH, same};
use crate::{bed::BedOptions, pattern};

/// Far more than a call takes that does not wait, and far less than a patience.
const AT_ONCE: Duration = Duration::from_secs(2);

pub(super) fn each_ticket_completes_once_however_it_is_polled(ground: &Ground<'_>) {
    const COUNT: usize = 400;
    let mut rig = ground.rig();
    let (after, patience) = (rig.fence(), rig.patience());
    // Each that is open has a block and a slot of its own.
    let mut free: Vec<u32> = (0..NUM_SLOTS).collect();
    let mut open: HashMap<Ticket, u32> = HashMap::new();
    let mut num_ended = 0;
    let (mut num_started, mut turn) = (0, 0);
    while num_ended < COUNT {
        turn += 1;
        if num_started < COUNT
            && turn % 5 != 0
            && let Some(slot) = free.pop()
        {
            let class = TransferClass::ALL[num_started % 4];
            open.insert(rig.start(class, u64::from(slot), slot, after), slot);
            num_started += 1;
            continue;
        }
        let time = [Duration::ZERO, Duration::from_micros(20), patience][turn % 3];
        for done in rig.wait(time) {
            assert_eq!((done.result, done.held), (Ok(SLOT), false));
            free.push(open.remove(&done.ticket).expect("a ticket that was given"));
            num_ended += 1;
        }
    }
    rig.nothing_is_left();
}

pub(super) fn each_ticket_completes_once_however_late_it_is_polled(ground: &Ground<'_>) {
    let mut rig = ground.rig();
    let (after, patience) = (rig.fence(), rig.patience());
    let loads = (0..40).map(|nth| {
        let load = Transfer::new(TransferClass::Demand, vec![rig.op(nth * 2000, 0, 0, 2000)], after);
        rig.submit(load)
    });
    let tickets: Vec<_> = loads.collect();
    let drained = rig.device().drain(patience);
    assert_eq!(drained, Ok(()), "all end though nobody polls");
    let mut done = rig.wait(Duration::ZERO);
    done.extend(rig.wait(Duration::ZERO));
    let mut ended: Vec<_> = done.iter().map(|done| done.ticket).collect();
    ended.sort_unstable();
    assert_eq!(ended, tickets, "no completion is lost");
    rig.nothing_is_left();
}

#[track_caller]
fn at_once<T>(what: impl FnOnce() -> T) -> T {
    let start = Instant::now();
    let result = what();
    assert!(start.elapsed() < AT_ONCE, "it took {:?}", start.elapsed());
    result
}

pub(super) fn a_wait_with_nothing_in_flight_returns_at_once(ground: &Ground<'_>) {
    let mut rig = ground.rig();
    let long = Duration::from_secs(30);
    assert_eq!(at_once(|| rig.wait(long)), []);
    let after = rig.fence();
    let ticket = rig.start(TransferClass::Store, 0, 0, after);
    rig.succeed(&[ticket]);
    assert_eq!(at_once(|| rig.wait(long)), []);
    assert_eq!(at_once(|| rig.device().drain(long)), Ok(()));
}

pub(super) fn a_wait_without_time_returns_at_once(ground: &Ground<'_>) {
    let mut rig = ground.rig();
    let hold = rig.hold();
    let after = rig.fence();
    let ticket = rig.start(TransferClass::Store, 0, 0, after);
    assert_eq!(at_once(|| rig.wait(Duration::ZERO)), []);
    assert_eq!(at_once(|| rig.wait(Duration::from_millis(1))), []);
    hold.open();
    rig.succeed(&[ticket]);
}

pub(super) fn a_drain_that_takes_too_long_says_what_is_left(ground: &Ground<'_>) {
    let mut rig = ground.rig();
    let after = rig.fence();
    let ended = rig.start(TransferClass::Demand, 0, 0, after);
    let patience = rig.patience();
    assert_eq!(rig.device().drain(patience), Ok(()));
    let hold = rig.hold();
    let behind = rig.fence();
    let open = [1, 2].map(|slot| rig.start(TransferClass::Store, 5, slot, behind));
    for waited in [Duration::ZERO, Duration::from_millis(5)] {
        assert_eq!(rig.device().drain(waited), Err(DrainError { inflight: 2, waited }));
    }
    // What ended on the way comes with the next poll, and once.
    assert_eq!(rig.succeed(&[ended]), [ended]);
    hold.open();
    assert_eq!(rig.device().drain(patience), Ok(()));
    rig.succeed(&open);
    rig.nothing_is_left();
}

pub(super) fn a_slot_is_free_when_its_transfer_has_completed(ground: &Ground<'_>) {
    let mut rig = ground.rig();
    let after = rig.fence();
    for round in 0..100 {
        let class = if round % 2 == 0 { TransferClass::Store } else { TransferClass::Demand };
        let ticket = rig.start(class, 0, round % NUM_SLOTS, after);
        rig.succeed(&[ticket]);
        rig.write_slot(round % NUM_SLOTS, &[1]);
    }
}

pub(super) fn a_slot_in_use_fails_its_transfer_alone(ground: &Ground<'_>) {
    let mut rig = ground.rig();
    rig.fill_block(0, 3);
    let after = rig.fence();
    let memory: Arc<dyn StableMemory> = rig.bed.host();
    let claim = ReadClaim::new(memory, SlotId(1)).expect("nobody uses the slot");
    let ops = vec![rig.op(0, 0, 0, SLOT), rig.op(0, 1, 0, SLOT)];
    let busy = rig.submit(Transfer::new(TransferClass::Store, ops, after));
    let free = rig.start(TransferClass::Store, 0, 2, after);
    let done = rig.ends(&[busy, free]);
    let failure = TransferFailure::Slot(SlotAccessError::Busy { slot: SlotId(1) });
    for done in done {
        let expected = if done.ticket == busy { Err(failure.clone()) } else { Ok(SLOT) };
        assert_eq!((done.result, done.held), (expected, false));
    }
    // Two readers do not conflict.
    let read = rig.start(TransferClass::Demand, 5, 1, after);
    rig.succeed(&[read]);
    drop(claim);
    same(&rig.slot(1), &Rig::poisoned(SLOT), "the slot in use is as it was");
    same(&rig.slot(2), &pattern(3, SLOT_LENGTH), "another transfer");
    assert_eq!(rig.device().health(), DeviceHealth::Healthy);
    // Nothing of the failed one is kept.
    let again = rig.start(TransferClass::Store, 0, 0, after);
    rig.succeed(&[again]);
    let again = rig.start(TransferClass::Store, 0, 1, after);
    rig.succeed(&[again]);
}

pub(super) fn a_late_transfer_is_reported_once_and_kept_until_it_is_released(ground: &Ground<'_>) {
    for class in TransferClass::ALL {
        let mut rig = ground.rig();
        let hold = rig.hold();
        let behind = rig.fence();
        let deadline = Duration::from_millis(20);
        let late = Transfer { deadline: Some(deadline), ..rig.transfer(class, 0, 2, behind) };
        let in_time = Duration::from_hours(1);
        let other = Transfer { deadline: Some(in_time), ..rig.transfer(class, 1, 3, behind) };
        let (ticket, other) = (rig.submit(late), rig.submit(other));
        let (failure, held) = rig.fails(ticket);
        assert_eq!(failure, TransferFailure::TimedOut { after: deadline }, "{class:?}");
        rig.nothing_ends();
        let mut released = Vec::new();
        rig.device().take_released(&mut released);
        assert_eq!(released, [], "{class:?}: nothing is over while compute is held");
        assert_eq!(rig.is_slot_free(2), !held, "{class:?}: a slot is claimed if it may still be touched");
        let (region, inflight) = (rig.region, if held { 2 } else { 1 });
        assert_eq!(rig.device().detach(region), Err(AttachError::InUse { region, inflight }));
        assert_eq!(rig.device().drain(Duration::ZERO).map_err(|error| error.inflight), Err(1));

        hold.open();
        rig.succeed(&[other]);
        rig.are_released(held.then_some(ticket).as_slice());
        assert!(rig.is_slot_free(2), "{class:?}");
        rig.nothing_is_left();
        assert_eq!(rig.device().health(), DeviceHealth::Healthy);
        assert_eq!(rig.device().detach(region), Ok(()));
    }
}

/// Before it has begun, while it is copied, and when it is over: in each case it ends once, and what is held of it is let
/// go once.
pub(super) fn a_transfer_may_be_late_at_any_moment(ground: &Ground<'_>) {
    const SLOT: u64 = 1 << 20;
    let options =
        BedOptions { num_slots: 4, slot_bytes: 1 << 20, quantum_bytes: 100_000, ..ground.options() };
    let mut rig = ground.rig_of(&options, 4 * SLOT);
    let after = rig.fence();
    for (round, us) in [0, 1, 20, 50, 100, 200, 400, 800, 1600, 3200].into_iter().cycle().take(40).enumerate()
    {
        let class = TransferClass::ALL[round % 4];
        let ops = (0..4).map(|slot| rig.op(u64::from(slot) * SLOT, slot, 0, SLOT)).collect();
        let deadline = Duration::from_micros(us);
        let transfer = Transfer { deadline: Some(deadline), ..Transfer::new(class, ops, after) };
        let ticket = rig.submit(transfer);
        let done = rig.ends(&[ticket]).remove(0);
        match done.result {
            Ok(bytes) => assert_eq!((bytes, done.held), (4 * SLOT, false)),
            Err(failure) => assert_eq!(failure, TransferFailure::TimedOut { after: deadline }),
        }
        rig.are_released(done.held.then_some(ticket).as_slice());
        for slot in 0..4 {
            assert!(rig.is_slot_free(slot), "slot {slot} after {us} us");
        }
    }
    rig.nothing_is_left();
    // Of a late one the bytes are anything; the next is as good as any.
    rig.write_slot(0, &pattern(1, 1 << 20));
    let load = Transfer::new(TransferClass::Demand, vec![rig.op(SLOT, 0, 0, SLOT)], after);
    let ticket = rig.submit(load);
    rig.succeed(&[ticket]);
    same(&rig.region_bytes()[1 << 20..2 << 20], &pattern(1, 1 << 20), "a load after late ones");
}

pub(super) fn a_dropped_device_ends_its_work_and_frees_its_slots(ground: &Ground<'_>) {
    let mut rig = ground.rig();
    let host = rig.bed.host();
    let passed = rig.fence();
    let hold = rig.hold();
    rig.fill_block(0, 1);
    let behind = rig.fence();
    for (nth, class) in (0..).zip(TransferClass::ALL) {
        rig.start(class, u64::from(nth), nth, behind);
        rig.start(class, 4 + u64::from(nth), 4 + nth, passed);
    }
    // Compute goes on when the drop has begun.
    let opener = thread::spawn(move || {
        thread::sleep(Duration::from_millis(30));
        hold.open();
    });
    drop(rig);
    opener.join().expect("it does nothing that can fail");
    for slot in (0..NUM_SLOTS).map(SlotId) {
        let claimed = host.with_write(slot, &mut |_| ());
        assert_eq!(claimed, Ok(()), "a device that is gone claims no slot");
    }
}
