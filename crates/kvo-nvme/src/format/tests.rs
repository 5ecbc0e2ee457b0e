//! What is written is read again, to the bit, and nothing else is.

use kvo_core::{BlockHash, GroupIdx, OffloadKey};
use proptest::prelude::*;

use super::*;

const ID: StoreId = StoreId(*b"a store's name.\0");

pub(crate) fn superblock() -> Superblock {
    Superblock {
        id: ID,
        sequence: 12,
        epoch: 5,
        chunk_bytes: 5000,
        stride_bytes: 8192,
        num_slots: 70,
        asked_slots: 100,
        num_devices: 2,
        checksum_kind: 1,
        state: StoreState::Clean,
        fingerprint: *b"fingerprint of model and layout.",
        created_s: 1_700_000_000,
        written_bytes: 123_456_789_012,
        order_slots: 3,
        order_sum: order_sum(&encode_order(&[4, 69, 0])),
    }
}

fn header() -> DataHeader {
    DataHeader { id: ID, device: 1, num_devices: 2, stride_bytes: 8192, num_slots: 35 }
}

fn chunk() -> RecordState {
    RecordState::Chunk(Record {
        key: OffloadKey::new(BlockHash(*b"0123456789abcdef0123456789ABCDEF"), GroupIdx(3)),
        length: 5000,
        generation: first_generation(5) + 77,
        checksum: 0x0123_4567_89ab_cdef,
        run: 42,
        end_token: Some(4096),
    })
}

#[test]
fn the_parts_of_an_index_lie_behind_each_other() {
    assert_eq!(record_start(0), 8192);
    assert_eq!(record_start(33), 8192 + 33 * 128);
    assert_eq!((order_start(1), index_bytes(1)), (12_288, 16_384));
    assert_eq!((order_start(32), order_start(33)), (12_288, 16_384));
    assert_eq!(index_bytes(1024), order_start(1024) + 4096);
    assert_eq!(index_bytes(1025), order_start(1025) + 8192);
    assert_eq!(index_bytes(u32::MAX), 8192 + (128 << 32) + (4 << 32));
}

#[test]
fn no_record_crosses_a_sector() {
    assert!((0..1000).all(|slot| record_start(slot) / 512 == (record_start(slot) + 127) / 512));
}

#[test]
fn generations_count_within_their_epoch() {
    assert_eq!(epoch_of(first_generation(7)), 7);
    assert_eq!(epoch_of(first_generation(8) - 1), 7);
    assert_eq!(epoch_of(first_generation(EPOCH_MAX)), EPOCH_MAX);
}

/// Checks that no flip of one bit leaves something that is accepted.
#[track_caller]
fn check_flips<const N: usize, T: fmt::Debug>(
    bytes: [u8; N],
    decode: impl Fn(&[u8; N]) -> Result<T, Damage>,
) {
    decode(&bytes).unwrap();
    for bit in 0..N * 8 {
        let mut flipped = bytes;
        flipped[bit / 8] ^= 1 << (bit % 8);
        decode(&flipped).expect_err(&format!("bit {bit}"));
    }
}

#[test]
fn a_superblock_with_a_flipped_bit_is_refused() {
    check_flips(superblock().encode(), Superblock::decode);
}

#[test]
fn a_header_with_a_flipped_bit_is_refused() {
    check_flips(header().encode(), DataHeader::decode);
}

#[test]
fn a_record_with_a_flipped_bit_is_refused() {
    check_flips(chunk().encode(ID, 7), |bytes| RecordState::decode(bytes, ID, 7));
    check_flips(RecordState::Quarantined.encode(ID, 7), |bytes| RecordState::decode(bytes, ID, 7));
}

#[test]
fn a_record_is_valid_in_its_place_only() {
    let bytes = chunk().encode(ID, 7);
    assert_eq!(RecordState::decode(&bytes, ID, 7), Ok(chunk()));
    assert_eq!(RecordState::decode(&bytes, ID, 8), Err(Damage::Checksum));
    assert_eq!(RecordState::decode(&bytes, StoreId([1; 16]), 7), Err(Damage::Checksum));
}

#[test]
fn zeros_are_empty() {
    assert_eq!(Superblock::decode(&[0; BLOCK_BYTES]), Err(Damage::Empty));
    assert_eq!(DataHeader::decode(&[0; BLOCK_BYTES]), Err(Damage::Empty));
    assert_eq!(RecordState::decode(&[0; RECORD_BYTES], ID, 0), Err(Damage::Empty));
}

#[test]
fn a_later_version_is_told_from_damage() {
    let mut bytes = superblock().encode();
    bytes[8] = 2;
    assert_eq!(Superblock::decode(&bytes), Err(Damage::Checksum));
    seal(&mut bytes, 0);
    assert_eq!(Superblock::decode(&bytes), Err(Damage::Version(2)));
    bytes[0] = b'?';
    assert_eq!(Superblock::decode(&bytes), Err(Damage::Magic));
}

/// Checks that a sealed superblock with this change is refused for `field`.
#[track_caller]
fn check_field(change: impl Fn(&mut Superblock), field: &'static str) {
    let mut superblock = superblock();
    change(&mut superblock);
    assert_eq!(Superblock::decode(&superblock.encode()), Err(Damage::Field(field)));
}

#[test]
fn sealed_nonsense_is_refused() {
    check_field(|superblock| superblock.num_slots = 0, "num_slots");
    check_field(|superblock| superblock.num_slots = 1, "num_slots");
    check_field(|superblock| superblock.num_devices = 0, "num_devices");
    check_field(|superblock| superblock.asked_slots = 69, "asked_slots");
    check_field(|superblock| superblock.order_slots = 71, "order_slots");
    check_field(|superblock| superblock.chunk_bytes = 0, "chunk_bytes");
    check_field(|superblock| superblock.chunk_bytes = 1 << 32, "chunk_bytes");
    check_field(|superblock| superblock.stride_bytes = 4096, "stride_bytes");
    check_field(|superblock| superblock.epoch = EPOCH_MAX + 1, "epoch");
    check_field(|superblock| superblock.sequence = SEQUENCE_MAX + 1, "sequence");
    let mut bytes = superblock().encode();
    bytes[140] = 1;
    seal(&mut bytes, 0);
    assert_eq!(Superblock::decode(&bytes), Err(Damage::Field("the reserved part")));
    bytes = superblock().encode();
    bytes[12] = 3;
    seal(&mut bytes, 0);
    assert_eq!(Superblock::decode(&bytes), Err(Damage::Field("state")));
    let header = DataHeader { device: 2, ..header() };
    assert_eq!(DataHeader::decode(&header.encode()), Err(Damage::Field("device")));
    for (at, value, field) in [(0, 3, "kind"), (4, 0, "flags"), (4, 2, "flags"), (76, 1, "the reserved part")]
    {
        let mut bytes = chunk().encode(ID, 0);
        bytes[at] = value;
        record::reseal(&mut bytes, ID, 0);
        assert_eq!(RecordState::decode(&bytes, ID, 0), Err(Damage::Field(field)), "byte {at}");
    }
}

#[test]
fn the_newer_of_two_superblocks_counts() {
    let older = superblock();
    let newer = Superblock { sequence: 13, ..superblock() };
    let blocks = |a: &Superblock, b: &Superblock| [Ok(a.clone()), Ok(b.clone())];
    assert_eq!(newest(blocks(&older, &newer)), Ok((newer.clone(), 1)));
    assert_eq!(newest(blocks(&newer, &older)), Ok((newer.clone(), 0)));
    assert_eq!(newest([Err(Damage::Checksum), Ok(older.clone())]), Ok((older.clone(), 1)));
    assert_eq!(newest([Ok(older.clone()), Err(Damage::Magic)]), Ok((older, 0)));
    let damages = [Damage::Checksum, Damage::Empty];
    assert_eq!(newest(damages.map(Err)), Err(damages));
}

#[test]
fn an_order_is_whole_or_none() {
    let order = [4, 69, 0];
    let bytes = encode_order(&order);
    assert_eq!(decode_order(&bytes, &superblock()), Some(order.to_vec()));
    for bit in 0..bytes.len() * 8 {
        let mut flipped = bytes.clone();
        flipped[bit / 8] ^= 1 << (bit % 8);
        assert_eq!(decode_order(&flipped, &superblock()), None, "bit {bit}");
    }
    assert_eq!(decode_order(&bytes[..8], &superblock()), None);
    assert_eq!(decode_order(&bytes[..11], &superblock()), None);
    let beyond = encode_order(&[4, 70, 0]);
    let superblock = Superblock { order_sum: order_sum(&beyond), ..superblock() };
    assert_eq!(decode_order(&beyond, &superblock), None);
}

/// Checks that a golden file is what is written today, and is read as what it was then.
#[track_caller]
fn check_golden<const N: usize, T: PartialEq + fmt::Debug>(
    golden: [u8; N],
    written: [u8; N],
    read: &T,
    value: &T,
) {
    assert!(golden == written, "today's bytes differ from the golden file");
    assert_eq!(read, value);
}

/// A golden file of version 1. `KVO_WRITE_GOLDEN=1` writes it anew: for a new version, never for an old one.
fn golden<const N: usize>(name: &str, written: &[u8; N]) -> [u8; N] {
    let path = format!("{}/tests/golden/v1/{name}.bin", env!("CARGO_MANIFEST_DIR"));
    if std::env::var_os("KVO_WRITE_GOLDEN").is_some() {
        std::fs::write(&path, written).unwrap();
    }
    std::fs::read(&path).unwrap().try_into().expect("it is as long as what is written today")
}

#[test]
fn version_1_is_read_and_written_as_ever() {
    let written = superblock().encode();
    let bytes = golden("superblock", &written);
    check_golden(bytes, written, &Superblock::decode(&bytes), &Ok(superblock()));

    let written = header().encode();
    let bytes = golden("header", &written);
    check_golden(bytes, written, &DataHeader::decode(&bytes), &Ok(header()));

    let records = golden_records();
    let mut written = [0; 4 * RECORD_BYTES];
    for ((slot, record), bytes) in (0..).zip(records).zip(written.as_chunks_mut().0) {
        *bytes = record.map_or([0; RECORD_BYTES], |record| record.encode(ID, slot));
    }
    let bytes = golden("records", &written);
    assert!(bytes == written, "today's bytes differ from the golden file");
    for ((slot, record), bytes) in (0..).zip(records).zip(bytes.as_chunks().0) {
        assert_eq!(RecordState::decode(bytes, ID, slot), record.ok_or(Damage::Empty));
    }

    let written: [u8; 12] = encode_order(&[4, 69, 0]).try_into().unwrap();
    let bytes = golden("order", &written);
    check_golden(bytes, written, &decode_order(&bytes, &superblock()), &Some(vec![4, 69, 0]));
}

/// A chunk with a position, one without, a slot that failed, a free one.
fn golden_records() -> [Option<RecordState>; 4] {
    let RecordState::Chunk(record) = chunk() else { panic!("it is a chunk") };
    let without = Record { end_token: None, run: 43, generation: record.generation + 1, ..record };
    [Some(chunk()), Some(RecordState::Chunk(without)), Some(RecordState::Quarantined), None]
}

fn any_superblock() -> impl Strategy<Value = Superblock> {
    let state = prop_oneof![Just(StoreState::Creating), Just(StoreState::Open), Just(StoreState::Clean)];
    let shape = (1_u32..100, any::<u16>(), any::<u16>(), 1..u64::from(u32::MAX));
    let numbers = (0..=SEQUENCE_MAX, 0..=EPOCH_MAX, any::<u64>(), any::<u64>(), any::<u64>(), any::<u32>());
    (any::<[u8; 16]>(), any::<[u8; 32]>(), state, shape, numbers).prop_map(
        |(id, fingerprint, state, (num_devices, more, asked, chunk_bytes), numbers)| {
            let (sequence, epoch, created_s, written_bytes, order_sum, kind) = numbers;
            let num_slots = num_devices + u32::from(more);
            Superblock {
                id: StoreId(id),
                sequence,
                epoch,
                chunk_bytes,
                stride_bytes: chunk_bytes.next_multiple_of(4096),
                num_slots,
                asked_slots: num_slots + u32::from(asked),
                num_devices,
                checksum_kind: kind,
                state,
                fingerprint,
                created_s,
                written_bytes,
                order_slots: num_slots / 2,
                order_sum,
            }
        },
    )
}

fn any_record() -> impl Strategy<Value = RecordState> {
    let chunk = (any::<[u8; 36]>(), any::<u32>(), any::<[u64; 3]>(), any::<Option<u32>>()).prop_map(
        |(key, length, [generation, checksum, run], end_token)| {
            let key = OffloadKey::from_bytes(key);
            RecordState::Chunk(Record { key, length, generation, checksum, run, end_token })
        },
    );
    prop_oneof![9 => chunk, 1 => Just(RecordState::Quarantined)]
}

/// Bytes that are often nearly right: what `seed` gives, with some bytes replaced, sealed or not.
fn resembling<const N: usize>(
    whole: impl Strategy<Value = [u8; N]>,
    reseal: fn(&mut [u8; N]),
) -> impl Strategy<Value = [u8; N]> {
    let changes = prop::collection::vec((0..N.min(160), any::<u8>()), 0..4);
    (whole, changes, any::<bool>()).prop_map(move |(mut bytes, changes, sealed)| {
        for (at, byte) in changes {
            bytes[at] = byte;
        }
        if sealed {
            reseal(&mut bytes);
        }
        bytes
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn superblocks_survive_their_bytes(superblock in any_superblock()) {
        prop_assert_eq!(Superblock::decode(&superblock.encode()), Ok(superblock));
    }

    #[test]
    fn records_survive_their_bytes(record in any_record(), id in any::<[u8; 16]>(), slot in any::<u32>()) {
        let id = StoreId(id);
        prop_assert_eq!(RecordState::decode(&record.encode(id, slot), id, slot), Ok(record));
    }

    #[test]
    fn headers_survive_their_bytes(
        id in any::<[u8; 16]>(), device in 0..u32::MAX, more in 1..9_u32, stride_bytes: u64, num_slots: u32,
    ) {
        let num_devices = device.saturating_add(more);
        let header = DataHeader { id: StoreId(id), device, num_devices, stride_bytes, num_slots };
        prop_assert_eq!(DataHeader::decode(&header.encode()), Ok(header));
    }

    // Whatever is accepted is exactly what would be written for it.
    #[test]
    fn no_bytes_are_taken_for_a_superblock_that_is_none(
        bytes in resembling(any_superblock().prop_map(|block| block.encode()), |bytes| seal(bytes, 0)),
    ) {
        if let Ok(superblock) = Superblock::decode(&bytes) {
            prop_assert!(superblock.encode() == bytes);
        }
    }

    #[test]
    fn no_bytes_are_taken_for_a_header_that_is_none(
        bytes in resembling(Just(header().encode()), |bytes| seal(bytes, 0)),
    ) {
        if let Ok(header) = DataHeader::decode(&bytes) {
            prop_assert!(header.encode() == bytes);
        }
    }

    #[test]
    fn no_bytes_are_taken_for_a_record_that_is_none(
        bytes in resembling(
            any_record().prop_map(|record| record.encode(ID, 3)),
            |bytes| record::reseal(bytes, ID, 3),
        ),
    ) {
        if let Ok(record) = RecordState::decode(&bytes, ID, 3) {
            prop_assert_eq!(record.encode(ID, 3), bytes);
        }
    }
}
