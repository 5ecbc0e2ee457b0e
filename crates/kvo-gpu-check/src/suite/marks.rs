//! Compute that waits for a part of a load.

use kvo_core::{Fence, FenceError, MarkOrder, StreamHandle, Ticket, Transfer, TransferClass};

use super::rig::{Ground, Rig, SLOT, SLOT_LENGTH};
use crate::pattern;

/// Parts of a load: one slot each.
const PARTS: u32 = 8;

/// A load of 8 slots to 8 blocks with a mark behind each, and one more that repeats the last.
fn layered(rig: &Rig<'_>, class: TransferClass, seed: u64, after: Fence) -> Transfer {
    let ops = (0..PARTS).map(|part| rig.op(u64::from(part) * SLOT, part, 0, SLOT)).collect();
    for part in 0..PARTS {
        rig.write_slot(part, &pattern(seed + u64::from(part), SLOT_LENGTH));
    }
    Transfer { marks: (1..=PARTS).chain([PARTS]).collect(), ..Transfer::new(class, ops, after) }
}

#[track_caller]
fn order(rig: &mut Rig<'_>, ticket: Ticket, mark: u32, stream: StreamHandle) -> MarkOrder {
    let order = rig.device().order_after(ticket, mark, stream);
    order.unwrap_or_else(|error| panic!("mark {mark} of ticket {}: {error}", ticket.0))
}

pub(super) fn compute_behind_a_mark_finds_what_is_before_it(ground: &Ground<'_>) {
    let mut rig = ground.rig();
    let stream = rig.bed.create_stream();
    for round in 0..40_u64 {
        let class = TransferClass::ALL[usize::try_from(round % 3).expect("one of three")];
        let hold = rig.hold();
        let behind = rig.fence();
        let (seed, mut hold) = (100 * round, Some(hold));
        let load = layered(&rig, class, seed, behind);
        let ticket = rig.submit(load);
        let mut has_ended = false;
        for part in 0..PARTS {
            // Where the device's own queue waits for compute, a stream can be put behind it before compute has gone on.
            let early = (0..20).any(|_| order(&mut rig, ticket, part, stream) != MarkOrder::NotYet);
            if !early {
                drop(hold.take());
                rig.until("a mark is on its way", |rig| {
                    order(rig, ticket, part, stream) != MarkOrder::NotYet
                });
            }
            // What has ended says how with its completion.
            if !has_ended && order(&mut rig, ticket, part, stream) == MarkOrder::Ended {
                rig.succeed(&[ticket]);
                has_ended = true;
            }
            let address = rig.at(u64::from(part));
            rig.bed.check(stream, address, SLOT, seed + u64::from(part));
        }
        drop(hold);
        if !has_ended {
            rig.succeed(&[ticket]);
        }
        let wrong = rig.bed.synchronize(stream);
        assert_eq!(wrong, 0, "round {round}: compute behind a mark has found {wrong} wrong bytes");
    }
    rig.nothing_is_left();
}

pub(super) fn marks_come_in_their_order(ground: &Ground<'_>) {
    let mut rig = ground.rig();
    let stream = rig.bed.create_stream();
    for round in 0..40 {
        let hold = rig.hold();
        let behind = rig.fence();
        let load = layered(&rig, TransferClass::Expedited, round, behind);
        let ticket = rig.submit(load);
        hold.open();
        let mut is_over = false;
        while !is_over {
            let orders: Vec<_> =
                (0..=PARTS).rev().map(|mark| order(&mut rig, ticket, mark, stream)).collect();
            let first = orders.iter().position(|order| *order != MarkOrder::NotYet);
            let behind = &orders[first.unwrap_or(orders.len())..];
            assert!(!behind.contains(&MarkOrder::NotYet), "from the last mark to the first: {orders:?}");
            is_over = orders[0] == MarkOrder::Ended;
        }
        rig.succeed(&[ticket]);
    }
}

pub(super) fn a_mark_that_is_not_on_its_way_is_asked_for_again(ground: &Ground<'_>) {
    let mut rig = ground.rig();
    let stream = rig.bed.create_stream();
    let hold = rig.hold();
    let behind = rig.fence();
    // A load that no running step waits for is not on the device's queue before compute has passed its fence.
    let load = layered(&rig, TransferClass::Prefetch, 1, behind);
    let ticket = rig.submit(load);
    rig.nothing_ends();
    assert_eq!(order(&mut rig, ticket, 0, stream), MarkOrder::NotYet);
    assert_eq!(order(&mut rig, ticket, PARTS - 1, stream), MarkOrder::NotYet);
    // Nothing holds the stream up.
    rig.bed.synchronize(stream);
    hold.open();
    rig.until("it is on its way", |rig| order(rig, ticket, PARTS - 1, stream) != MarkOrder::NotYet);
    rig.succeed(&[ticket]);
}

pub(super) fn marks_that_are_not_there_or_over_are_said(ground: &Ground<'_>) {
    let mut rig = ground.rig();
    let (stream, passed) = (rig.bed.create_stream(), rig.fence());
    let hold = rig.hold();
    let behind = rig.fence();
    let load = layered(&rig, TransferClass::Demand, 1, behind);
    let ticket = rig.submit(load);
    let unknown = |ticket, mark| Err(FenceError::UnknownMark { ticket, mark });
    assert_eq!(rig.device().order_after(ticket, PARTS + 1, stream), unknown(ticket, PARTS + 1));
    let never = Ticket(ticket.0 + 1);
    assert_eq!(rig.device().order_after(never, 0, stream), unknown(never, 0));
    hold.open();
    rig.succeed(&[ticket]);
    for mark in 0..=PARTS {
        assert_eq!(order(&mut rig, ticket, mark, stream), MarkOrder::Ended);
    }
    // A store has marks like a load.
    let ops = (0..2).map(|slot| rig.op(u64::from(slot) * SLOT, slot, 0, SLOT)).collect();
    let store = Transfer { marks: vec![0, 1], ..Transfer::new(TransferClass::Store, ops, passed) };
    let ticket = rig.submit(store);
    rig.succeed(&[ticket]);
    assert_eq!(order(&mut rig, ticket, 1, stream), MarkOrder::Ended);
}
