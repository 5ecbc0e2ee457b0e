//! Bytes that begin where direct I/O wants them to.

use crate::format::BLOCK_BYTES;

/// Bytes that begin at a multiple of the size of a block.
pub(crate) struct AlignedBytes {
    bytes: Vec<u8>,
    start: usize,
    len: usize,
}

impl AlignedBytes {
    pub(crate) fn zeroed(len: usize) -> Self {
        let bytes = vec![0; len + BLOCK_BYTES];
        let start = bytes.as_ptr().align_offset(BLOCK_BYTES);
        assert!(start < BLOCK_BYTES, "a block begins within any {BLOCK_BYTES} bytes");
        Self { bytes, start, len }
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes[self.start..self.start + self.len]
    }

    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[self.start..self.start + self.len]
    }
}
