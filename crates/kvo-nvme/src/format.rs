//! What is on disk, byte by byte: `docs/FORMAT.md` says it in words, and this is the only code that knows it.
//!
//! Nothing here does I/O, and nothing trusts a length or a number that it reads: whatever is not exactly what some
//! version of this code has written is told apart from it, never guessed at.

mod header;
mod record;
mod superblock;

use std::fmt;

pub(crate) use self::{
    header::DataHeader,
    record::{Record, RecordState},
    superblock::{Superblock, newest},
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

/// The name of one store, drawn at random when it is made; in every one of its files, and in the checksum of every
/// record.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct StoreId(pub(crate) [u8; 16]);

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

/// Why bytes are not what they should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Damage {
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

/// XXH3-64 of all but the last eight bytes, seeded.
fn sum_of(bytes: &[u8], seed: u64) -> u64 {
    twox_hash::XxHash3_64::oneshot_with_seed(seed, &bytes[..bytes.len() - 8])
}

fn seal(bytes: &mut [u8], seed: u64) {
    let sum = sum_of(bytes, seed);
    let at = bytes.len() - 8;
    bytes[at..].copy_from_slice(&sum.to_le_bytes());
}

fn is_sealed(bytes: &[u8], seed: u64) -> bool {
    bytes[bytes.len() - 8..] == sum_of(bytes, seed).to_le_bytes()
}
