//! One record a slot: whose bytes are in it.

use kvo_core::OffloadKey;
use twox_hash::XxHash3_64;

use super::{Damage, RECORD_BYTES, Reader, SEAL_BYTES, StoreId, Writer, is_sealed, seal};

/// A chunk, as its slot's record says it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Record {
    pub(crate) key: OffloadKey,
    /// Bytes of the payload.
    pub(crate) length: u32,
    /// Of the write: the store's epoch above, a count below; it never comes again.
    pub(crate) generation: u64,
    /// Of the payload, seeded with the key and the generation.
    pub(crate) checksum: u64,
    /// The request that wrote it, by a number of the store's own: its chunks are evicted tail first.
    pub(crate) run: u64,
    /// Where it lies in that request.
    pub(crate) end_token: Option<u32>,
}

/// What a record says of its slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RecordState {
    /// It holds a chunk.
    Chunk(Record),
    /// It failed, and is used no more.
    Quarantined,
}

const CHUNK: u32 = 1;
const QUARANTINED: u32 = 2;
/// An end token is there.
const HAS_POSITION: u32 = 1;

impl RecordState {
    /// The record as the bytes at `slot` of the index of the store `id`; nowhere else are they valid.
    pub(crate) fn encode(&self, id: StoreId, slot: u32) -> [u8; RECORD_BYTES] {
        let mut bytes = [0; RECORD_BYTES];
        let mut writer = Writer::new(&mut bytes);
        match self {
            Self::Chunk(record) => {
                writer.put(&CHUNK.to_le_bytes());
                writer.put(&u32::from(record.end_token.is_some()).to_le_bytes());
                writer.put(&record.key.to_bytes());
                writer.put(&record.length.to_le_bytes());
                writer.put(&record.generation.to_le_bytes());
                writer.put(&record.checksum.to_le_bytes());
                writer.put(&record.run.to_le_bytes());
                writer.put(&record.end_token.unwrap_or(0).to_le_bytes());
            }
            Self::Quarantined => writer.put(&QUARANTINED.to_le_bytes()),
        }
        seal(&mut bytes, seed(id, slot));
        bytes
    }

    pub(crate) fn decode(bytes: &[u8; RECORD_BYTES], id: StoreId, slot: u32) -> Result<Self, Damage> {
        let mut reader = Reader::new(&bytes[..RECORD_BYTES - SEAL_BYTES]);
        if *bytes == [0; RECORD_BYTES] {
            return Err(Damage::Empty);
        }
        if !is_sealed(bytes, seed(id, slot)) {
            return Err(Damage::Checksum);
        }
        match reader.u32() {
            CHUNK => {}
            QUARANTINED if reader.rest_is_zero() => return Ok(Self::Quarantined),
            _ => return Err(Damage::Field("kind")),
        }
        let flags = reader.u32();
        let record = Record {
            key: OffloadKey::from_bytes(reader.take()),
            length: reader.u32(),
            generation: reader.u64(),
            checksum: reader.u64(),
            run: reader.u64(),
            end_token: Some(reader.u32()),
        };
        let record = match (flags, record.end_token) {
            (HAS_POSITION, Some(_)) => record,
            (0, Some(0)) => Record { end_token: None, ..record },
            _ => return Err(Damage::Field("flags")),
        };
        if reader.rest_is_zero() { Ok(Self::Chunk(record)) } else { Err(Damage::Field("the reserved part")) }
    }
}

/// A record is valid in its own place of its own store only.
fn seed(id: StoreId, slot: u32) -> u64 {
    XxHash3_64::oneshot_with_seed(u64::from(slot), &id.0)
}

/// Seals a record again after bytes of it were changed.
#[cfg(any(test, kvo_fuzzing))]
pub(crate) fn reseal(bytes: &mut [u8; RECORD_BYTES], id: StoreId, slot: u32) {
    seal(bytes, seed(id, slot));
}
