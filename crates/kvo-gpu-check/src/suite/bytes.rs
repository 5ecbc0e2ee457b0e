//! What comes back, to the byte.

use kvo_core::{CopyOp, Direction, Transfer, TransferClass};

use super::rig::{Ground, Rig, same};
use crate::{bed::BedOptions, handles, pattern};

fn index(number: u64) -> usize {
    usize::try_from(number).expect("a place in memory")
}

/// Stores by `ops` from a region full of one pattern, loads by them from slots full of another, and compares every byte
/// of both memories: those that no copy names, too.
#[track_caller]
fn check(rig: &mut Rig<'_>, ops: &[CopyOp], seed: u64) {
    let bytes: u64 = ops.iter().map(|op| op.bytes).sum();
    let mut device = pattern(seed, index(rig.span.bytes()));
    rig.write_region(&device);
    let mut slots = rig.slots();
    for (slot, expected) in (0..).zip(&mut slots) {
        *expected = pattern(seed + 1000 + u64::from(slot), expected.len());
        rig.write_slot(slot, expected);
    }
    let after = rig.fence();
    for direction in [Direction::Store, Direction::Load] {
        let class = if direction == Direction::Store { TransferClass::Store } else { TransferClass::Demand };
        let ticket = rig.submit(Transfer::new(class, ops.to_vec(), after));
        let done = rig.ends(&[ticket]).remove(0);
        assert_eq!((done.result, done.held), (Ok(bytes), false));
        for op in ops {
            let range = |start: u64| index(start)..index(start + op.bytes);
            let on_device = &mut device[range(op.device_offset)];
            let in_slot = &mut slots[op.slot.0 as usize][range(op.slot_offset)];
            match direction {
                Direction::Store => in_slot.copy_from_slice(on_device),
                Direction::Load => on_device.copy_from_slice(in_slot),
            }
        }
        for (slot, expected) in (0..).zip(&mut slots) {
            same(&rig.slot(slot), expected, &format!("slot {slot} after a {direction:?}"));
            // What is loaded then is not what was stored.
            if direction == Direction::Store {
                *expected = pattern(seed + 2000 + u64::from(slot), expected.len());
                rig.write_slot(slot, expected);
            }
        }
        same(&rig.region_bytes(), &device, &format!("the device's memory after a {direction:?}"));
    }
}

pub(super) fn copies_of_any_alignment_and_length_come_to_the_byte(ground: &Ground<'_>) {
    const ALIGNMENTS: [u64; 8] = [0, 1, 2, 3, 4, 7, 8, 13];
    const LENGTHS: [u64; 16] = [1, 2, 3, 5, 8, 15, 16, 17, 31, 33, 64, 127, 128, 257, 512, 1009];
    let options = BedOptions { num_slots: 8, slot_bytes: 9 << 10, ..ground.options() };
    let mut rig = ground.rig_of(&options, 66 << 10);
    for (length, seed) in LENGTHS.into_iter().zip(0..) {
        let step = (length + 15).next_multiple_of(16);
        let places = (0..8).flat_map(|nth| (0..8).map(move |slot| (nth, slot)));
        let ops: Vec<_> = places
            .map(|(nth, slot)| {
                let device_offset = (u64::from(slot) * 8 + nth) * step + ALIGNMENTS[index(nth)];
                rig.op(device_offset, slot, nth * step + ALIGNMENTS[slot as usize], length)
            })
            .collect();
        check(&mut rig, &ops, 10 * seed);
    }
}

/// As pages of a KV cache lie: 20 of one length at constant steps, and three others.
pub(super) fn pages_at_constant_steps_come_to_the_byte(ground: &Ground<'_>) {
    const PAGE: u64 = 3000;
    let options = BedOptions { num_slots: 2, slot_bytes: 64 << 10, ..ground.options() };
    let mut rig = ground.rig_of(&options, 256 << 10);
    for (step, seed) in [10_000, PAGE, 4096].into_iter().zip(1..) {
        let mut ops: Vec<_> = (0..20).map(|nth| rig.op(nth * step, 1, nth * PAGE, PAGE)).collect();
        ops.push(rig.op(250_000, 1, 60_000, 17));
        ops.push(rig.op(240_000, 1, 61_000, 1));
        ops.push(rig.op(230_000, 1, 60_500, 400));
        check(&mut rig, &ops, seed);
    }
}

pub(super) fn thousands_of_copies_come_to_the_byte(ground: &Ground<'_>) {
    const COUNT: u64 = 2500;
    let options = BedOptions { num_slots: 3, slot_bytes: 100 << 10, ..ground.options() };
    let mut rig = ground.rig_of(&options, 60 << 10);
    // Of three slots in turn, and in no order that is a row.
    let op = |nth: u64| {
        let place = nth * 1171 % COUNT;
        rig.op(
            place * 24 + nth % 2,
            u32::try_from(nth % 3).expect("one of three"),
            (COUNT - 1 - nth) * 40,
            20,
        )
    };
    let ops: Vec<_> = (0..COUNT).map(op).collect();
    check(&mut rig, &ops, 77);
}

/// B38: what is longer than a device takes at once goes in pieces.
pub(super) fn copies_longer_than_a_window_come_whole(ground: &Ground<'_>) {
    let bytes = 64 << 10;
    for (window_bytes, quantum_bytes) in [(10_000, 7001), (1, 20_000), (3000, 4096), (u64::MAX, u64::MAX)] {
        let options = BedOptions {
            num_slots: 2,
            slot_bytes: 64 << 10,
            window_bytes,
            quantum_bytes,
            ..ground.options()
        };
        let mut rig = ground.rig_of(&options, 2 * bytes);
        let ops = [rig.op(100, 0, 0, bytes), rig.op(bytes + 100, 1, 5, 20_011)];
        check(&mut rig, &ops, window_bytes % 100);
    }
}

pub(super) fn a_transfer_may_name_several_regions_and_parts_of_allocations(ground: &Ground<'_>) {
    let mut rig = ground.rig();
    let (other, stream) = (rig.bed.allocate(1000), rig.stream);
    let part = handles::span(other.address() + 40, 400, other.ordinal());
    let second = rig.device().attach(part).expect("a part of an allocation");
    rig.bed.fill(stream, rig.span.address() + 77, 300, 1);
    rig.bed.fill(stream, other.address() + 64, 376, 2);
    let after = rig.fence();
    let of_second = CopyOp { region: second, ..rig.op(24, 3, 11, 376) };
    let first = rig.op(77, 3, 500, 300);
    let store = Transfer::new(TransferClass::Store, vec![first, of_second], after);
    let ticket = rig.submit(store);
    rig.succeed(&[ticket]);
    let mut expected = Rig::poisoned(rig.slot(3).len() as u64);
    expected[500..800].copy_from_slice(&pattern(1, 300));
    expected[11..387].copy_from_slice(&pattern(2, 376));
    same(&rig.slot(3), &expected, "a slot with bytes of two regions");

    let load =
        vec![CopyOp { slot_offset: 500, bytes: 300, ..of_second }, CopyOp { slot_offset: 11, ..first }];
    let ticket = rig.submit(Transfer::new(TransferClass::Expedited, load, after));
    rig.succeed(&[ticket]);
    let mut found = vec![0; 1000];
    rig.bed.read(other.address(), &mut found);
    let mut expected = Rig::poisoned(1000);
    expected[64..440].copy_from_slice(&pattern(2, 376));
    expected[64..364].copy_from_slice(&pattern(1, 300));
    same(&found, &expected, "the other allocation");
    same(&rig.region_bytes()[77..377], &pattern(2, 376)[..300], "the first region");
}
