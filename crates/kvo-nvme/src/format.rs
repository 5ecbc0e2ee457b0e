//! What is on disk, byte by byte: `docs/FORMAT.md` says it in words, and this is the only code that knows it.
//!
//! Nothing here does I/O, and nothing trusts a length or a number that it reads: whatever is not exactly what some
//! version of this code has written is told apart from it, never guessed at.

mod header;
mod record;
mod superblock;

use std::fmt;

#[cfg(any(test, kvo_fuzzing))]
pub(crate) use self::record::reseal as reseal_record;
pub use self::superblock::StoreState;
pub(crate) use self::{
    header::DataHeader,
    record::{Record, RecordState},
    superblock::{Superblock, newest, number_of},
};

/// The version of the format that this code writes and reads.
pub(crate) const FORMAT_VERSION: u32 = 1;
/// Superblocks and headers are this long, the two superblocks begin the index file.
pub(crate) const BLOCK_BYTES: usize = 4096;
/// Where the records begin in the index file.
pub(crate) const RECORDS_START: u64 = 2 * BLOCK_BYTES as u64;
/// Bytes of a record: a quarter of a sector, so that none crosses one.
pub(crate) const RECORD_BYTES: usize = 128;
/// Where the slots begin in a data file.
pub(crate) const DATA_START: u64 = 2 << 20;

/// Bytes of the checksum that ends a superblock, a header or a record.
pub(crate) const SEAL_BYTES: usize = 8;

/// The upper bits of a generation are the epoch of the store in which it was given, the lower ones a count.
const EPOCH_SHIFT: u32 = 40;
/// The last epoch whose generations fit 64 bits.
pub(crate) const EPOCH_MAX: u64 = u64::MAX >> EPOCH_SHIFT;

/// The epoch of a store whose records are being emptied: no record is of it, and none of an earlier one.
pub(crate) const WIPED_EPOCH: u64 = 0;

/// The highest number of a superblock: one more for each write of one, and none of ours writes so many.
pub(crate) const SEQUENCE_MAX: u64 = u64::MAX >> 1;

/// The first generation of an epoch. Generations never come again, whatever was lost of an earlier epoch.
pub(crate) fn first_generation(epoch: u64) -> u64 {
    epoch << EPOCH_SHIFT
}

/// The epoch in which a generation was given.
pub(crate) fn epoch_of(generation: u64) -> u64 {
    generation >> EPOCH_SHIFT
}

/// Where the record of a slot begins in the index file.
pub(crate) fn record_start(slot: u32) -> u64 {
    RECORDS_START + u64::from(slot) * RECORD_BYTES as u64
}

/// Where the eviction order begins in the index file: behind the records, on the next block.
pub(crate) fn order_start(num_slots: u32) -> u64 {
    record_start(num_slots).next_multiple_of(BLOCK_BYTES as u64)
}

/// Bytes of the whole index file.
pub(crate) fn index_bytes(num_slots: u32) -> u64 {
    (order_start(num_slots) + u64::from(num_slots) * 4).next_multiple_of(BLOCK_BYTES as u64)
}

/// The eviction order as it is written: slots of 32 bits, the next victim first.
pub(crate) fn encode_order(order: &[u32]) -> Vec<u8> {
    order.iter().flat_map(|slot| slot.to_le_bytes()).collect()
}

/// What a superblock says the bytes of the eviction order must sum up to.
pub(crate) fn order_sum(bytes: &[u8]) -> u64 {
    twox_hash::XxHash3_64::oneshot(bytes)
}

/// The slots of an eviction order, if it is whole: the number of bytes and their sum are those of `superblock`, and
/// each slot is one of the store's.
pub(crate) fn decode_order(bytes: &[u8], superblock: &Superblock) -> Option<Vec<u32>> {
    let (slots, rest) = bytes.as_chunks::<4>();
    let is_whole = rest.is_empty()
        && slots.len() == superblock.order_slots as usize
        && order_sum(bytes) == superblock.order_sum;
    let slots = is_whole.then(|| slots.iter().map(|slot| u32::from_le_bytes(*slot)))?;
    slots.map(|slot| (slot < superblock.num_slots).then_some(slot)).collect()
}

/// The name of one store, drawn at random when it is made; in every one of its files, and in the checksum of every
/// record.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct StoreId(pub(crate) [u8; 16]);

impl fmt::Debug for StoreId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for StoreId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// Why a block or a record is not what it should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Damage {
    /// There are only zeros.
    #[error("empty")]
    Empty,
    /// Not of this format at all.
    #[error("not a kvo file: it does not begin with the magic bytes")]
    Magic,
    /// A version that this code does not know.
    #[error("format version {0}, this is version {FORMAT_VERSION}")]
    Version(u32),
    /// The checksum is wrong.
    #[error("wrong checksum")]
    Checksum,
    /// The checksum is right and a field is not: nothing of ours wrote it.
    #[error("field {0} has a value that it cannot have")]
    Field(&'static str),
    /// The system could not read it.
    #[error("cannot be read")]
    Unreadable,
}

/// Puts fields one behind the other.
struct Writer<'a> {
    bytes: &'a mut [u8],
    at: usize,
}

impl<'a> Writer<'a> {
    fn new(bytes: &'a mut [u8]) -> Self {
        Self { bytes, at: 0 }
    }

    fn put(&mut self, field: &[u8]) {
        self.bytes[self.at..self.at + field.len()].copy_from_slice(field);
        self.at += field.len();
    }
}

/// Takes fields one behind the other.
struct Reader<'a> {
    bytes: &'a [u8],
}

impl<'a> Reader<'a> {
    fn new(bytes: &'a [u8]) -> Self {
        Self { bytes }
    }

    fn take<const N: usize>(&mut self) -> [u8; N] {
        let (field, rest) =
            self.bytes.split_first_chunk().expect("blocks and records are longer than their fields");
        self.bytes = rest;
        *field
    }

    fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.take())
    }

    fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.take())
    }

    /// Whether what is left, which is reserved, is all zeros.
    fn rest_is_zero(&self) -> bool {
        self.bytes.iter().all(|&byte| byte == 0)
    }
}

/// Takes the magic and the version from a superblock or a header, which must be sealed.
///
/// Magic, version and seal lie where they do in every version, so a later version is told from damage.
fn open_block(bytes: &[u8; BLOCK_BYTES], magic: [u8; 8]) -> Result<Reader<'_>, Damage> {
    if *bytes == [0; BLOCK_BYTES] {
        return Err(Damage::Empty);
    }
    let mut reader = Reader::new(&bytes[..BLOCK_BYTES - SEAL_BYTES]);
    if reader.take() != magic {
        return Err(Damage::Magic);
    }
    if !is_sealed(bytes, 0) {
        return Err(Damage::Checksum);
    }
    match reader.u32() {
        FORMAT_VERSION => Ok(reader),
        version => Err(Damage::Version(version)),
    }
}

/// XXH3-64 of all but the seal, seeded.
fn sum_of(bytes: &[u8], seed: u64) -> u64 {
    twox_hash::XxHash3_64::oneshot_with_seed(seed, &bytes[..bytes.len() - SEAL_BYTES])
}

fn seal(bytes: &mut [u8], seed: u64) {
    let sum = sum_of(bytes, seed);
    let at = bytes.len() - SEAL_BYTES;
    bytes[at..].copy_from_slice(&sum.to_le_bytes());
}

/// Seals a superblock or a header again after bytes of it were changed.
#[cfg(any(test, kvo_fuzzing))]
pub(crate) fn reseal_block(bytes: &mut [u8; BLOCK_BYTES]) {
    seal(bytes, 0);
}

fn is_sealed(bytes: &[u8], seed: u64) -> bool {
    bytes[bytes.len() - SEAL_BYTES..] == sum_of(bytes, seed).to_le_bytes()
}

#[cfg(test)]
mod tests;
