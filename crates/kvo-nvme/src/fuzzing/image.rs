//! A small store as it is in its files: two devices, a few chunks, one of them written twice, a slot that failed.

use kvo_core::{BlockHash, GroupIdx, OffloadKey};

use crate::{
    checksum::checksum,
    format::{
        DataHeader, RECORD_BYTES, RECORDS_START, Record, RecordState, StoreId, StoreState, Superblock,
        encode_order, first_generation, index_bytes, order_start, order_sum, record_start,
    },
};

pub(super) const NUM_SLOTS: u32 = 8;
pub(super) const NUM_DEVICES: u32 = 2;
pub(super) const CHUNK_BYTES: usize = 512;
const STRIDE_BYTES: usize = 4096;
const EPOCH: u64 = 3;

/// What has been written: the key, the count in its generation, the slot and the position; the next to be evicted first.
const WRITES: [(u64, u64, u32, Option<u32>); 6] = [
    (1, 1, 5, None),
    (2, 2, 0, Some(32)),
    (3, 3, 1, Some(16)),
    (4, 4, 2, None),
    (1, 9, 3, None),
    (5, 6, 4, None),
];
/// In this slot nothing is written any more.
const QUARANTINED: u32 = 6;

pub(super) fn key(n: u64) -> OffloadKey {
    OffloadKey::new(BlockHash::from_u64(n), GroupIdx(0))
}

/// The bytes of the chunk that was written with this key and generation: of no other one.
pub(super) fn payload(key: &OffloadKey, generation: u64) -> Vec<u8> {
    let seed = checksum(key, generation, &[]).to_le_bytes();
    (0_u8..=255).cycle().zip(seed.iter().cycle()).map(|(n, byte)| n ^ byte).take(CHUNK_BYTES).collect()
}

pub(super) fn superblock() -> Superblock {
    let order = encode_order(&order());
    Superblock {
        id: StoreId(*b"of the fuzzer.\0\0"),
        sequence: 7,
        epoch: EPOCH,
        chunk_bytes: CHUNK_BYTES as u64,
        stride_bytes: STRIDE_BYTES as u64,
        num_slots: NUM_SLOTS,
        asked_slots: NUM_SLOTS,
        num_devices: NUM_DEVICES,
        checksum_kind: 1,
        state: StoreState::Clean,
        fingerprint: [0; 32],
        created_s: 1_700_000_000,
        written_bytes: 6 * CHUNK_BYTES as u64,
        order_slots: NUM_SLOTS - 3,
        order_sum: order_sum(&order),
    }
}

pub(super) fn header(device: u32) -> DataHeader {
    DataHeader {
        id: superblock().id,
        device,
        num_devices: NUM_DEVICES,
        stride_bytes: STRIDE_BYTES as u64,
        num_slots: NUM_SLOTS / NUM_DEVICES,
    }
}

/// Of what is in the store: what was written over is not.
fn order() -> Vec<u32> {
    WRITES[1..].iter().map(|(_, _, slot, _)| *slot).collect()
}

/// Every key with the generation that it was written in.
pub(super) fn writes() -> impl Iterator<Item = (OffloadKey, u64)> {
    WRITES.iter().map(|(n, count, ..)| (key(*n), first_generation(EPOCH) + count))
}

/// The files of the store. What is between a header and the slots is a hole.
#[derive(Clone)]
pub(super) struct Image {
    pub(super) index: Vec<u8>,
    pub(super) data: Vec<DataImage>,
}

#[derive(Clone)]
pub(super) struct DataImage {
    pub(super) header: Vec<u8>,
    pub(super) slots: Vec<u8>,
}

impl Image {
    pub(super) fn new(state: StoreState) -> Self {
        let mut index = vec![0; usize_of(index_bytes(NUM_SLOTS))];
        let newest = Superblock { state, ..superblock() };
        let older =
            Superblock { state: StoreState::Open, order_slots: 0, order_sum: 0, sequence: 6, ..superblock() };
        put(&mut index, 0, &newest.encode());
        put(&mut index, usize_of(RECORDS_START) / 2, &older.encode());
        put(&mut index, usize_of(order_start(NUM_SLOTS)), &encode_order(&order()));
        let header = |device| header(device).encode().to_vec();
        let slots = vec![0; (NUM_SLOTS / NUM_DEVICES) as usize * STRIDE_BYTES];
        let data = (0..NUM_DEVICES).map(|device| DataImage { header: header(device), slots: slots.clone() });
        let mut image = Self { index, data: data.collect() };
        image.write_chunks();
        image
    }

    fn write_chunks(&mut self) {
        for ((key, generation), (_, _, slot, end_token)) in writes().zip(WRITES) {
            let payload = payload(&key, generation);
            let length = u32::try_from(CHUNK_BYTES).expect("a chunk is small");
            let checksum = checksum(&key, generation, &payload);
            let record = Record { key, length, generation, checksum, run: generation % 2, end_token };
            self.record(slot).copy_from_slice(&RecordState::Chunk(record).encode(superblock().id, slot));
            self.payload(slot).copy_from_slice(&payload);
        }
        let quarantined = RecordState::Quarantined.encode(superblock().id, QUARANTINED);
        self.record(QUARANTINED).copy_from_slice(&quarantined);
    }

    pub(super) fn record(&mut self, slot: u32) -> &mut [u8] {
        &mut self.index[usize_of(record_start(slot))..][..RECORD_BYTES]
    }

    pub(super) fn payload(&mut self, slot: u32) -> &mut [u8] {
        let (device, place) = (slot % NUM_DEVICES, (slot / NUM_DEVICES) as usize);
        &mut self.data[device as usize].slots[place * STRIDE_BYTES..][..CHUNK_BYTES]
    }
}

fn put(bytes: &mut [u8], at: usize, part: &[u8]) {
    bytes[at..at + part.len()].copy_from_slice(part);
}

/// A place in a small file.
pub(super) fn usize_of(bytes: u64) -> usize {
    usize::try_from(bytes).expect("the files are small")
}
