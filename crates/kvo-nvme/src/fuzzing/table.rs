//! From a table of records to the chunks that a store begins with, beside what a slow search finds in the same table.

use std::{cmp::Reverse, ops::Range};

use kvo_core::OffloadKey;

use super::{image, input::Input};
use crate::{
    RecoveryReport,
    format::{
        Damage, RECORD_BYTES, Record, RecordState, StoreState, Superblock, decode_order, encode_order,
        epoch_of, first_generation, order_sum, reseal_record,
    },
    journal::Recovered,
    recovery::{Recovery, recover},
};

const NUM_SLOTS_MAX: usize = 24;

struct Table {
    superblock: Superblock,
    records: Vec<[u8; RECORD_BYTES]>,
    /// The eviction order, if it can be read.
    order: Option<Vec<u8>>,
    /// Slots whose records cannot be read.
    unreadable: Range<usize>,
}

pub(super) fn recovery(data: &[u8]) {
    let mut input = Input::new(data);
    let table = any_table(&mut input);
    let recovered = recover_in_pieces(&table, 1 + input.below(NUM_SLOTS_MAX));
    check_contents(&table, &recovered);
    check_order(&table, &recovered);
    check_again(&table, &recovered);
}

fn any_table(input: &mut Input<'_>) -> Table {
    let num_slots = 1 + input.below(NUM_SLOTS_MAX);
    let mut superblock = Superblock { num_slots: number(num_slots), ..image::superblock() };
    superblock.state = if input.flag() { StoreState::Clean } else { StoreState::Open };
    let mut records: Vec<[u8; RECORD_BYTES]> = Vec::new();
    for slot in 0..num_slots {
        let bytes = any_bytes(input, &superblock, &records, number(slot));
        records.push(bytes);
    }
    let order = (0..input.below(NUM_SLOTS_MAX)).map(|_| number(input.below(num_slots)));
    let mut order = encode_order(&order.collect::<Vec<_>>());
    superblock.order_slots = number(order.len() / 4);
    superblock.order_sum = order_sum(&order);
    if !order.is_empty() {
        input.patches(&mut order);
    }
    if input.flag() {
        superblock.order_sum = order_sum(&order);
    }
    let start = input.below(num_slots);
    let unreadable = start..(start + input.below(4)).min(num_slots);
    let order = (!input.flag()).then_some(order);
    Table { superblock, records, order, unreadable }
}

/// The bytes of one record: a good one or none, one of another slot, something near to these.
fn any_bytes(
    input: &mut Input<'_>,
    superblock: &Superblock,
    earlier: &[[u8; RECORD_BYTES]],
    slot: u32,
) -> [u8; RECORD_BYTES] {
    let how = input.u8();
    let mut bytes = match how % 8 {
        0 => [0; RECORD_BYTES],
        1 => RecordState::Quarantined.encode(superblock.id, slot),
        2 if !earlier.is_empty() => earlier[input.below(earlier.len())],
        _ => RecordState::Chunk(any_record(input, superblock)).encode(superblock.id, slot),
    };
    if how & 0x40 != 0 {
        input.patches(&mut bytes);
    }
    if how & 0x80 != 0 {
        reseal_record(&mut bytes, superblock.id, slot);
    }
    bytes
}

fn any_record(input: &mut Input<'_>, superblock: &Superblock) -> Record {
    let how = input.u8();
    let epoch = superblock.epoch + 1 - u64::from(how & 3);
    Record {
        key: image::key(u64::from(how >> 2 & 7)),
        length: number(image::CHUNK_BYTES) + u32::from(how >= 0xf8),
        generation: first_generation(epoch) + u64::from(input.u8()),
        checksum: 0,
        run: u64::from(input.u8() % 3),
        end_token: (how & 0x20 == 0).then(|| u32::from(input.u8() % 6)),
    }
}

fn recover_in_pieces(table: &Table, records_a_piece: usize) -> Recovered {
    let mut recovery = Recovery::new(&table.superblock);
    let Range { start, end } = table.unreadable;
    for piece in table.records[..start].chunks(records_a_piece) {
        recovery.take(piece.as_flattened());
    }
    recovery.skip(number(end - start));
    for piece in table.records[end..].chunks(records_a_piece) {
        recovery.take(piece.as_flattened());
    }
    // What fills the last block is no record.
    recovery.take(&[0xff; RECORD_BYTES]);
    recovery.finish(table.order.as_deref())
}

/// Checks what is in the store: of each key the newest write, each slot once, and numbers that add up.
fn check_contents(table: &Table, recovered: &Recovered) {
    let Table { superblock, .. } = table;
    let (mut expected, mut valid, mut quarantined) = (RecoveryReport::default(), Vec::new(), Vec::new());
    for (slot, bytes) in (0_u32..).zip(&table.records) {
        if table.unreadable.contains(&(slot as usize)) {
            expected.damaged_records += 1;
            continue;
        }
        match RecordState::decode(bytes, superblock.id, slot) {
            Ok(RecordState::Quarantined) => quarantined.push(slot),
            Ok(RecordState::Chunk(record)) if is_ours(&record, superblock) => valid.push((slot, record)),
            Ok(RecordState::Chunk(_)) => expected.foreign_records += 1,
            Err(Damage::Empty) => {}
            Err(_) => expected.damaged_records += 1,
        }
    }
    let kept = chunks_of(recovered);
    let mut keys: Vec<OffloadKey> = kept.iter().map(|(_, record)| record.key).collect();
    keys.sort_unstable();
    assert!(keys.windows(2).all(|two| two[0] != two[1]), "a key is there twice");
    for (slot, record) in &kept {
        assert!(valid.contains(&(*slot, *record)), "no record says that slot {slot} has {record:?}");
    }
    for (_, record) in &valid {
        let found = kept.iter().find(|(_, kept)| kept.key == record.key).expect("a chunk is not lost");
        assert!(found.1.generation >= record.generation, "there is a newer one: {record:?}");
    }
    assert_eq!(recovered.quarantined, quarantined);
    expected.chunks = number(kept.len());
    expected.superseded_records = number(valid.len() - kept.len());
    expected.quarantined = number(quarantined.len());
    expected.clean = superblock.state == StoreState::Clean;
    let order = good_order(table);
    expected.order_damaged = expected.clean && order.is_none();
    let is_named = |slot: &u32| order.as_ref().is_some_and(|order| order.contains(slot));
    expected.unproven = number(kept.iter().filter(|(slot, _)| !is_named(slot)).count());
    assert_eq!(recovered.report, expected);
}

fn is_ours(record: &Record, superblock: &Superblock) -> bool {
    u64::from(record.length) == superblock.chunk_bytes && epoch_of(record.generation) <= superblock.epoch
}

fn good_order(table: &Table) -> Option<Vec<u32>> {
    let bytes = table.order.as_ref().filter(|_| table.superblock.state == StoreState::Clean)?;
    decode_order(bytes, &table.superblock)
}

/// Checks which chunk is evicted before which: as the order of a close has them, else the older run first, and within a
/// run the tail.
fn check_order(table: &Table, recovered: &Recovered) {
    let order = good_order(table).unwrap_or_default();
    let kept = chunks_of(recovered);
    let run_of = |record: &Record| (epoch_of(record.generation), record.run);
    let age = |of: &Record| {
        let same = kept.iter().filter(|(_, record)| run_of(record) == run_of(of));
        same.map(|(_, record)| record.generation).max()
    };
    // None, for slots that the order does not name, is below every place in it.
    let place = |slot: u32| order.iter().rposition(|named| *named == slot);
    for two in kept.windows(2) {
        let [(a_slot, a), (b_slot, b)] = two else { unreachable!("windows are of two") };
        let (a_place, b_place) = (place(*a_slot), place(*b_slot));
        assert!(a_place <= b_place, "slots {a_slot} and {b_slot} are not in the order of the close");
        if a_place == b_place {
            assert!(age(a) <= age(b), "the older run is evicted first: {a:?} {b:?}");
        }
        if a_place == b_place && run_of(a) == run_of(b) {
            let tail_first = |record: &Record| (record.end_token.is_none(), Reverse(record.end_token));
            assert!(tail_first(a) <= tail_first(b), "the tail is evicted before its head: {a:?} {b:?}");
        }
    }
}

/// Checks that what was recovered is recovered again, after a close as after a kill.
fn check_again(table: &Table, recovered: &Recovered) {
    let mut records = vec![[0; RECORD_BYTES]; table.records.len()];
    for entry in &recovered.chunks {
        records[entry.slot as usize] = entry.state.encode(table.superblock.id, entry.slot);
    }
    for &slot in &recovered.quarantined {
        records[slot as usize] = RecordState::Quarantined.encode(table.superblock.id, slot);
    }
    let slots: Vec<u32> = recovered.chunks.iter().map(|entry| entry.slot).collect();
    let order = encode_order(&slots);
    let clean = Superblock {
        state: StoreState::Clean,
        order_slots: number(slots.len()),
        order_sum: order_sum(&order),
        ..table.superblock.clone()
    };
    let closed = recover(&clean, records.as_flattened(), Some(&order));
    assert_eq!(closed.chunks, recovered.chunks);
    assert_eq!(closed.quarantined, recovered.quarantined);
    let expected = RecoveryReport {
        clean: true,
        chunks: number(slots.len()),
        quarantined: number(recovered.quarantined.len()),
        ..RecoveryReport::default()
    };
    assert_eq!(closed.report, expected);
    // Of two writes with one number nobody knows which was first. There are none but in forged records.
    let mut generations: Vec<u64> =
        chunks_of(recovered).iter().map(|(_, record)| record.generation).collect();
    generations.sort_unstable();
    let are_told_apart = generations.windows(2).all(|two| two[0] != two[1]);
    if good_order(table).is_none() && are_told_apart {
        let open = Superblock { state: StoreState::Open, ..clean };
        assert_eq!(recover(&open, records.as_flattened(), None).chunks, recovered.chunks);
    }
}

fn chunks_of(recovered: &Recovered) -> Vec<(u32, Record)> {
    let chunk = |entry: &crate::journal::Entry| match entry.state {
        RecordState::Chunk(record) => (entry.slot, record),
        RecordState::Quarantined => panic!("slot {} is no chunk", entry.slot),
    };
    recovered.chunks.iter().map(chunk).collect()
}

fn number(count: usize) -> u32 {
    u32::try_from(count).expect("the tables are small")
}
