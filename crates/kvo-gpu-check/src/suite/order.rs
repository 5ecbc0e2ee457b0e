//! Copies against compute.

use kvo_core::{ComputePoint, FenceError, TransferClass};

use super::rig::{Ground, Rig, SLOT_LENGTH, same};
use crate::pattern;

/// B35: a store waits for the compute that it is of.
pub(super) fn a_store_has_what_compute_wrote_before_its_fence(ground: &Ground<'_>) {
    let mut rig = ground.rig();
    let hold = rig.hold();
    rig.fill_block(0, 5);
    let after = rig.fence();
    let ticket = rig.start(TransferClass::Store, 0, 3, after);
    let early = rig.ended_early();
    hold.open();
    if early.is_empty() {
        rig.succeed(&[ticket]);
    }
    same(&rig.slot(3), &pattern(5, SLOT_LENGTH), "the slot has what compute wrote");
    assert_eq!(early, [], "the store waits for compute");
    rig.nothing_is_left();
}

pub(super) fn a_load_leaves_a_block_alone_that_compute_still_reads(ground: &Ground<'_>) {
    let classes = [TransferClass::Demand, TransferClass::Expedited, TransferClass::Prefetch];
    for (class, seed) in classes.into_iter().zip(10..) {
        let mut rig = ground.rig();
        rig.write_slot(2, &pattern(seed, SLOT_LENGTH));
        rig.fill_block(1, 6);
        rig.compute_found_all("nothing was looked for");
        let hold = rig.hold();
        rig.check_block(1, 6);
        let after = rig.fence();
        let ticket = rig.start(class, 1, 2, after);
        let early = rig.ended_early();
        hold.open();
        rig.compute_found_all("a load has overwritten what compute still read");
        if early.is_empty() {
            rig.succeed(&[ticket]);
        }
        assert_eq!(early, [], "the load waits for compute");
        same(&rig.block(1), &pattern(seed, SLOT_LENGTH), "the block has what was loaded");
        rig.nothing_is_left();
    }
}

pub(super) fn a_fence_behind_an_event_that_is_recorded_again_holds_nobody_up(ground: &Ground<'_>) {
    let mut rig = ground.rig();
    let (event, other) = (rig.bed.create_event(), rig.bed.create_stream());
    rig.fill_block(0, 7);
    let stream = rig.stream;
    rig.bed.record(event, stream);
    let after = rig.fence_after(event);
    let hold = rig.bed.hold(other);
    rig.bed.record(event, other);
    let ticket = rig.start(TransferClass::Store, 0, 0, after);
    rig.succeed(&[ticket]);
    same(&rig.slot(0), &pattern(7, SLOT_LENGTH), "the store came after the write");
    hold.open();
    rig.nothing_is_left();
}

pub(super) fn a_fence_does_not_move_with_its_event(ground: &Ground<'_>) {
    let mut rig = ground.rig();
    let (event, idle, stream) = (rig.bed.create_event(), rig.bed.create_stream(), rig.stream);
    let hold = rig.hold();
    rig.fill_block(0, 8);
    rig.bed.record(event, stream);
    let after = rig.fence_after(event);
    rig.bed.record(event, idle);
    rig.bed.synchronize(idle);
    let ticket = rig.start(TransferClass::Store, 0, 0, after);
    let early = rig.ended_early();
    hold.open();
    if early.is_empty() {
        rig.succeed(&[ticket]);
    }
    same(
        &rig.slot(0),
        &pattern(8, SLOT_LENGTH),
        "the fence stays behind the write that its event was recorded behind",
    );
    assert_eq!(early, [], "the store waits for compute");
}

pub(super) fn a_fence_waits_for_nothing_but_what_was_on_its_stream(ground: &Ground<'_>) {
    let mut rig = ground.rig();
    let (event, late, other) = (rig.bed.create_event(), rig.bed.create_event(), rig.bed.create_stream());
    rig.fill_block(0, 9);
    let stream = rig.stream;
    rig.bed.record(event, stream);
    let before = rig.fence();
    // From here on both streams are held up by something that is behind these fences, or beside them.
    let hold = rig.hold();
    rig.fill_block(30, 1);
    rig.bed.record(late, stream);
    let held = rig.fence_after(late);
    let fences = [before, rig.fence_after(event), rig.fence_on(other)];
    let waits = rig.start(TransferClass::Prefetch, 9, 9, held);
    for (after, slot) in fences.into_iter().zip(0..) {
        let ticket = rig.start(TransferClass::Store, 0, slot, after);
        rig.succeed(&[ticket]);
    }
    same(&rig.slot(0), &pattern(9, SLOT_LENGTH), "what was in the block");
    hold.open();
    rig.succeed(&[waits]);
    rig.nothing_is_left();
}

pub(super) fn an_event_that_was_never_recorded_holds_nobody_up(ground: &Ground<'_>) {
    let mut rig = ground.rig();
    let event = rig.bed.create_event();
    let hold = rig.hold();
    let after = rig.fence_after(event);
    let ticket = rig.start(TransferClass::Demand, 0, 0, after);
    rig.succeed(&[ticket]);
    hold.open();
}

pub(super) fn any_number_of_transfers_wait_for_a_fence_before_and_after_it_is_passed(ground: &Ground<'_>) {
    let mut rig = ground.rig();
    let hold = rig.hold();
    rig.fill_block(0, 11);
    let after = rig.fence();
    let start = |rig: &mut Rig<'_>, slots: std::ops::Range<u32>| -> Vec<_> {
        let classes = TransferClass::ALL.into_iter().cycle();
        let one = |(slot, class)| {
            let block = if class == TransferClass::Store { 0 } else { 1 + u64::from(slot) };
            rig.start(class, block, slot, after)
        };
        slots.zip(classes).map(one).collect()
    };
    let before = start(&mut rig, 0..8);
    rig.nothing_ends();
    hold.open();
    rig.succeed(&before);
    let behind = start(&mut rig, 8..16);
    rig.succeed(&behind);
    for slot in [3, 7, 11, 15] {
        same(&rig.slot(slot), &pattern(11, SLOT_LENGTH), "a store behind the fence");
    }
    rig.nothing_is_left();
}

/// B35: compute that waits for a store changes nothing of what was stored.
pub(super) fn a_block_that_is_rewritten_behind_its_store_was_stored_as_it_was(ground: &Ground<'_>) {
    let mut rig = ground.rig();
    for round in 0..20 {
        rig.fill_block(2, round);
        let after = rig.fence();
        let ticket = rig.start(TransferClass::Store, 2, 1, after);
        rig.succeed(&[ticket]);
        rig.fill_block(2, !round);
        same(&rig.slot(1), &pattern(round, SLOT_LENGTH), "what was in the block");
    }
}

pub(super) fn fences_that_are_too_many_are_refused_until_compute_goes_on(ground: &Ground<'_>) {
    /// More than any device has.
    const MANY: usize = 10_000;
    let mut rig = ground.rig();
    let (event, stream) = (rig.bed.create_event(), rig.stream);
    for by_event in [false, true] {
        let hold = rig.hold();
        rig.fill_block(0, 12);
        rig.bed.record(event, stream);
        let point = if by_event { ComputePoint::Event(event) } else { ComputePoint::Stream(stream) };
        let first = rig.device().record_fence(point).expect("the first of many");
        let refused = (1..MANY).find_map(|_| rig.device().record_fence(point).err());
        if let Some(error) = refused {
            assert!(
                matches!(&error, FenceError::Full { pending, pending_max } if pending >= pending_max),
                "{error}"
            );
        }
        let ticket = rig.start(TransferClass::Store, 0, 0, first);
        rig.nothing_ends();
        hold.open();
        rig.succeed(&[ticket]);
        same(&rig.slot(0), &pattern(12, SLOT_LENGTH), "the first fence is behind the write");
        rig.bed.synchronize(stream);
        rig.until("there are fences again", |rig| rig.device().record_fence(point).is_ok());
    }
}
