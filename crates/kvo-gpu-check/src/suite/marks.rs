//! Compute that waits for a part of a load.

use kvo_core::{Fence, FenceError, MarkOrder, StreamHandle, Ticket, Transfer, TransferClass};

use super::rig::{Ground, Rig, SLOT, SLOT_LENGTH};
use crate::{
    bed::{BedOptions, Hold},
    pattern,
};

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

/// Of long parts, so that they are under way when a stream is put behind them. Compute looks at both of their ends: no
/// order of the bytes of a copy is promised.
pub(super) fn compute_behind_a_mark_finds_what_is_before_it(ground: &Ground<'_>) {
    let options = BedOptions { num_slots: PARTS, slot_bytes: LONG_PART, ..ground.options() };
    let part_bytes = LONG_PART as u64;
    let mut rig = ground.rig_of(&options, u64::from(PARTS) * part_bytes);
    let stream = rig.bed.create_stream();
    let mut num_ordered = 0;
    for round in 0..200_u64 {
        if round >= 20 && num_ordered >= 40 {
            break;
        }
        let class = TransferClass::ALL[usize::try_from(round % 3).expect("one of three")];
        (0..PARTS).for_each(|part| write_part(&rig, round, part));
        let mut hold = Some(rig.hold());
        let behind = rig.fence();
        let ops = (0..PARTS).map(|part| rig.op(u64::from(part) * part_bytes, part, 0, part_bytes)).collect();
        let load = Transfer { marks: (1..=PARTS).collect(), ..Transfer::new(class, ops, behind) };
        let ticket = rig.submit(load);
        let mut has_ended = false;
        for part in 0..PARTS {
            let found = wait_for(&mut rig, ticket, part, stream, &mut hold);
            num_ordered += u32::from(found == MarkOrder::Ordered);
            // What has ended says how with its completion.
            if found == MarkOrder::Ended && !has_ended {
                rig.succeed(&[ticket]);
                has_ended = true;
            }
            let address = rig.span.address() + u64::from(part) * part_bytes;
            let [first, last] = seeds(round, part);
            rig.bed.check(stream, address, END as u64, first);
            rig.bed.check(stream, address + part_bytes - END as u64, END as u64, last);
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

/// Bytes of a part that takes long enough to be met under way.
const LONG_PART: usize = 256 << 10;

/// Bytes at each end of such a part that compute looks at.
const END: usize = 200;

/// The patterns at both ends.
fn seeds(round: u64, part: u32) -> [u64; 2] {
    [1000 * round + u64::from(part), 1000 * round + u64::from(PARTS + part)]
}

fn write_part(rig: &Rig<'_>, round: u64, part: u32) {
    let [first, last] = seeds(round, part).map(|seed| pattern(seed, END));
    let mut bytes = vec![0; LONG_PART];
    bytes[..END].copy_from_slice(&first);
    bytes[LONG_PART - END..].copy_from_slice(&last);
    rig.write_slot(part, &bytes);
}

/// Puts a stream behind a mark. Where the device's own queue waits for compute that may be so before compute goes on;
/// elsewhere the hold is opened first.
#[track_caller]
fn wait_for(
    rig: &mut Rig<'_>,
    ticket: Ticket,
    mark: u32,
    stream: StreamHandle,
    hold: &mut Option<Hold>,
) -> MarkOrder {
    let mut found = MarkOrder::NotYet;
    for _ in 0..20 {
        found = order(rig, ticket, mark, stream);
        if found != MarkOrder::NotYet {
            return found;
        }
    }
    *hold = None;
    rig.spin_until("a mark is on its way", |rig| {
        found = order(rig, ticket, mark, stream);
        found != MarkOrder::NotYet
    });
    found
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
