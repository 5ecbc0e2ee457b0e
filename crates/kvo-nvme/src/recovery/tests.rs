//! Tables that are written here, with everything that can be wrong with them.

use kvo_core::{BlockHash, GroupIdx, OffloadKey};
use proptest::prelude::*;

use super::*;
use crate::{
    format::{EPOCH_MAX, StoreId, encode_order, first_generation, order_sum},
    testing::Rng,
};

const CHUNK_BYTES: u64 = 4096;

fn superblock(num_slots: u32) -> Superblock {
    Superblock {
        id: StoreId([7; 16]),
        sequence: 1,
        epoch: 3,
        chunk_bytes: CHUNK_BYTES,
        stride_bytes: CHUNK_BYTES,
        num_slots,
        asked_slots: num_slots,
        num_devices: 1,
        checksum_kind: 1,
        state: StoreState::Open,
        fingerprint: [0; 32],
        created_s: 0,
        written_bytes: 0,
        order_slots: 0,
        order_sum: 0,
    }
}

fn record(key: u64, generation: u64, run: u64, end_token: Option<u32>) -> Record {
    Record {
        key: OffloadKey::new(BlockHash::from_u64(key), GroupIdx(0)),
        length: u32::try_from(CHUNK_BYTES).unwrap(),
        generation: first_generation(2) + generation,
        checksum: key ^ generation,
        run,
        end_token,
    }
}

fn table(superblock: &Superblock, records: &[Option<RecordState>]) -> Vec<u8> {
    let encode = |(slot, record): (u32, &Option<RecordState>)| {
        record.map_or([0; RECORD_BYTES], |record| record.encode(superblock.id, slot))
    };
    (0..).zip(records).flat_map(encode).collect()
}

fn chunks(records: &[Record]) -> Vec<Option<RecordState>> {
    records.iter().map(|record| Some(RecordState::Chunk(*record))).collect()
}

/// Checks that these records, in slots 0, 1, .., are evicted in the order of these slots.
#[track_caller]
fn check_order(records: &[Record], order: &[u32]) {
    let superblock = superblock(u32::try_from(records.len()).unwrap());
    let recovered = recover(&superblock, &table(&superblock, &chunks(records)), None);
    assert_eq!(slots(&recovered), order);
    assert!(!recovered.report.clean && !recovered.report.order_damaged);
}

fn slots(recovered: &Recovered) -> Vec<u32> {
    recovered.chunks.iter().map(|entry| entry.slot).collect()
}

#[test]
fn the_newest_record_of_a_key_counts() {
    let superblock = superblock(4);
    let records =
        [record(1, 5, 0, None), record(2, 6, 0, None), record(1, 8, 0, None), record(1, 7, 0, None)];
    let recovered = recover(&superblock, &table(&superblock, &chunks(&records)), None);
    assert_eq!(slots(&recovered), [2, 1]);
    assert_eq!(recovered.chunks[0].state, RecordState::Chunk(records[2]));
    assert_eq!((recovered.report.chunks, recovered.report.superseded_records), (2, 2));
}

/// B50: what cannot be used is counted.
#[test]
fn what_is_not_ours_is_counted_and_left() {
    let superblock = superblock(8);
    let good = record(1, 1, 0, None);
    let mut records = chunks(&[
        good,
        Record { length: 4095, ..record(2, 2, 0, None) },
        Record { generation: first_generation(4), ..record(3, 0, 0, None) },
        Record { generation: first_generation(EPOCH_MAX), ..record(4, 0, 0, None) },
        record(5, 5, 0, None),
    ]);
    records.extend([Some(RecordState::Quarantined), None, Some(RecordState::Quarantined)]);
    let mut bytes = table(&superblock, &records);
    bytes[4 * RECORD_BYTES + 50] ^= 1;
    let recovered = recover(&superblock, &bytes, None);
    assert_eq!(recovered.chunks, [Entry { slot: 0, state: RecordState::Chunk(good) }]);
    assert_eq!(recovered.quarantined, [5, 7]);
    let expected = RecoveryReport {
        chunks: 1,
        unproven: 1,
        damaged_records: 1,
        foreign_records: 3,
        quarantined: 2,
        ..RecoveryReport::default()
    };
    assert_eq!(recovered.report, expected);
}

#[test]
fn records_of_the_current_epoch_count() {
    let superblock = superblock(1);
    let last = Record { generation: first_generation(4) - 1, ..record(1, 0, 0, None) };
    let recovered = recover(&superblock, &table(&superblock, &chunks(&[last])), None);
    assert_eq!(recovered.report.chunks, 1);
}

/// B05: after a crash the tail goes first, with its head or without.
#[test]
fn the_tail_of_a_request_is_evicted_before_its_head() {
    let run = |key, end_token| record(key, key, 9, Some(end_token));
    check_order(&[run(1, 16), run(2, 32), run(3, 48)], &[2, 1, 0]);
    // However late the head was written.
    check_order(&[run(7, 16), run(2, 32), run(3, 48)], &[2, 1, 0]);
}

#[test]
fn the_run_whose_last_write_is_oldest_is_evicted_first() {
    let records = [
        record(1, 1, 10, Some(16)),
        record(2, 2, 20, Some(16)),
        record(3, 3, 20, Some(32)),
        record(4, 4, 10, Some(32)),
    ];
    check_order(&records, &[2, 1, 3, 0]);
}

#[test]
fn chunks_without_a_position_go_last_the_newest_first() {
    let records =
        [record(1, 1, 0, None), record(2, 2, 0, Some(16)), record(3, 3, 0, None), record(4, 4, 0, Some(0))];
    check_order(&records, &[1, 3, 2, 0]);
}

#[test]
fn runs_of_two_epochs_are_two_runs() {
    let old = record(1, 0, 1, Some(16));
    let new = Record { generation: first_generation(3), ..record(2, 0, 1, Some(32)) };
    // One run would have its tail, the second one, go first.
    check_order(&[old, new], &[0, 1]);
}

/// A clean store of four chunks of one run, whose order was written as `order`.
fn clean(order: &[u32]) -> (Superblock, Vec<u8>) {
    let superblock = Superblock {
        state: StoreState::Clean,
        order_slots: u32::try_from(order.len()).unwrap(),
        order_sum: order_sum(&encode_order(order)),
        ..superblock(4)
    };
    let records = [1, 2, 3, 4].map(|n| record(n, n, 0, Some(u32::try_from(n).unwrap())));
    let bytes = table(&superblock, &chunks(&records));
    (superblock, bytes)
}

#[test]
fn a_clean_close_leaves_the_order() {
    let order = [1, 3, 0, 2];
    let (superblock, records) = clean(&order);
    let recovered = recover(&superblock, &records, Some(&encode_order(&order)));
    assert_eq!(slots(&recovered), order);
    assert!(recovered.report.clean && !recovered.report.order_damaged);
}

#[test]
fn what_the_order_does_not_name_goes_first() {
    let order = [0, 2];
    let (superblock, records) = clean(&order);
    let recovered = recover(&superblock, &records, Some(&encode_order(&order)));
    assert_eq!(slots(&recovered), [3, 1, 0, 2]);
}

#[test]
fn an_order_that_names_slots_without_a_chunk_is_used() {
    let order = [0, 1, 3, 2];
    let (superblock, mut records) = clean(&order);
    records[RECORD_BYTES..2 * RECORD_BYTES].fill(0);
    let recovered = recover(&superblock, &records, Some(&encode_order(&order)));
    assert_eq!(slots(&recovered), [0, 3, 2]);
}

#[test]
fn a_damaged_order_gives_way_to_the_runs() {
    let (superblock, records) = clean(&[1, 3, 0, 2]);
    for order in [Some(encode_order(&[1, 3, 2, 0])), Some(Vec::new()), None] {
        let recovered = recover(&superblock, &records, order.as_deref());
        assert_eq!(slots(&recovered), [3, 2, 1, 0]);
        assert!(recovered.report.clean && recovered.report.order_damaged);
    }
}

#[test]
fn the_order_of_an_earlier_close_is_no_order() {
    let order = [1, 3, 0, 2];
    let (superblock, records) = clean(&order);
    let superblock = Superblock { state: StoreState::Open, ..superblock };
    let recovered = recover(&superblock, &records, Some(&encode_order(&order)));
    assert_eq!(slots(&recovered), [3, 2, 1, 0]);
}

#[test]
fn a_table_comes_in_pieces_as_well_as_whole() {
    let (superblock, records) = clean(&[]);
    let whole = recover(&superblock, &records, None);
    let mut recovery = Recovery::new(&superblock);
    for piece in records.chunks(RECORD_BYTES) {
        recovery.take(piece);
    }
    // Padding behind the last slot, which would be read as records otherwise.
    recovery.take(&[0xff; 2 * RECORD_BYTES]);
    let recovered = recovery.finish(None);
    assert_eq!((recovered.chunks, recovered.report), (whole.chunks, whole.report));
}

#[test]
fn records_that_cannot_be_read_cost_themselves_only() {
    let (superblock, records) = clean(&[]);
    let mut recovery = Recovery::new(&superblock);
    recovery.take(&records[..RECORD_BYTES]);
    recovery.skip(2);
    recovery.take(&records[3 * RECORD_BYTES..]);
    recovery.skip(9);
    let recovered = recovery.finish(None);
    assert_eq!(slots(&recovered), [3, 0]);
    assert_eq!(recovered.report.damaged_records, 2);
}

/// B52: opening changes nothing of what is found.
#[test]
fn what_was_recovered_is_recovered_again() {
    let mut rng = Rng::for_test();
    for _ in 0..200 {
        let num_slots = u32::try_from(1 + rng.below(60)).unwrap();
        let superblock = superblock(num_slots);
        let records: Vec<_> = (0..num_slots)
            .map(|slot| match rng.below(8) {
                0 => None,
                1 => Some(RecordState::Quarantined),
                _ => {
                    let end_token = (rng.below(3) > 0).then(|| u32::try_from(rng.below(5)).unwrap());
                    // Each generation once, in no order of the slots.
                    let generation = rng.below(1000) * 100 + u64::from(slot);
                    Some(RecordState::Chunk(record(rng.below(30), generation, rng.below(5), end_token)))
                }
            })
            .collect();
        let first = recover(&superblock, &table(&superblock, &records), None);
        let mut kept = vec![None; num_slots as usize];
        for entry in &first.chunks {
            kept[entry.slot as usize] = Some(entry.state);
        }
        for &slot in &first.quarantined {
            kept[slot as usize] = Some(RecordState::Quarantined);
        }
        let second = recover(&superblock, &table(&superblock, &kept), None);
        assert_eq!((&second.chunks, &second.quarantined), (&first.chunks, &first.quarantined));
        assert_eq!(second.report.superseded_records, 0);
        check_newest(&records, &first);
    }
}

/// Checks by search that each key is there once, in the slot of its newest generation.
#[track_caller]
fn check_newest(records: &[Option<RecordState>], recovered: &Recovered) {
    let chunk = |record: &Option<RecordState>| match record {
        Some(RecordState::Chunk(record)) => Some(*record),
        _ => None,
    };
    let all: Vec<Record> = records.iter().filter_map(chunk).collect();
    let mut kept: Vec<Record> =
        recovered.chunks.iter().filter_map(|entry| chunk(&Some(entry.state))).collect();
    let mut newest: Vec<Record> = (all.iter().copied())
        .filter(|record| !all.iter().any(|o| o.key == record.key && o.generation > record.generation))
        .collect();
    kept.sort_by_key(|record| record.key);
    newest.sort_by_key(|record| record.key);
    assert_eq!(kept, newest);
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    // Nothing that stands in a table makes more of it than is there.
    #[test]
    fn any_bytes_are_recovered_as_what_is_sealed_of_them(
        mut bytes in prop::collection::vec(any::<u8>(), 0..2000),
        order in prop::option::of(prop::collection::vec(any::<u8>(), 0..40)),
        num_slots in 1..20_u32,
        good in prop::option::of(0..20_u32),
        state in prop_oneof![Just(StoreState::Open), Just(StoreState::Clean)],
    ) {
        let order_slots = num_slots.min(order.as_ref().map_or(0, |order| count(order.len() / 4)));
        let order_sum = order.as_ref().map_or(0, |order| order_sum(order));
        let superblock = Superblock { state, order_slots, order_sum, ..superblock(num_slots) };
        let good = good.filter(|&slot| slot < num_slots && (slot as usize + 1) * RECORD_BYTES <= bytes.len());
        if let Some(slot) = good {
            let record = RecordState::Chunk(record(1, 1, 0, None)).encode(superblock.id, slot);
            bytes[slot as usize * RECORD_BYTES..][..RECORD_BYTES].copy_from_slice(&record);
        }
        let recovered = recover(&superblock, &bytes, order.as_deref());
        prop_assert_eq!(slots(&recovered), Vec::from_iter(good));
        let whole = count(bytes.len() / RECORD_BYTES).min(num_slots);
        prop_assert_eq!(recovered.report.damaged_records + recovered.report.chunks, whole);
    }
}
