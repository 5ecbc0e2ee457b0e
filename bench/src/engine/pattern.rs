//! The bytes of blocks: a function of each block's hash.

use kvo_core::{BlockId, OffloadKey};
use kvo_cuda::{BlockLayout, DeviceAccessError, DeviceMemory};

/// Writes and reads blocks where a layout puts their pages.
///
/// Byte n of a block, its pages in the order of planes, is byte n mod 8 of the word `mix(hash + n / 8)`, so that any
/// two blocks, and any two places of a block, differ almost everywhere.
#[derive(Debug)]
pub(super) struct Pattern {
    layout: BlockLayout,
}

impl Pattern {
    pub(super) fn new(layout: BlockLayout) -> Self {
        Self { layout }
    }

    /// Writes what each block must hold: the kernel that computes them.
    pub(super) fn write_blocks(&self, blocks: &[(OffloadKey, BlockId)], memory: &DeviceMemory) {
        let block_bytes = usize::try_from(self.layout.chunk().block_bytes()).expect("a block fits memory");
        let mut bytes = vec![0; block_bytes];
        for (key, id) in blocks {
            fill(key, &mut bytes);
            for (page, offset) in bytes.chunks_exact(self.page_bytes()).zip(self.pages(*id)) {
                memory.write(offset, page).expect("the layout keeps pages within the device's memory");
            }
        }
    }

    /// Reads a block's pages, in the order of planes, into `bytes`.
    pub(super) fn read_block(
        &self,
        id: BlockId,
        memory: &DeviceMemory,
        bytes: &mut [u8],
    ) -> Result<(), DeviceAccessError> {
        for (page, offset) in bytes.chunks_exact_mut(self.page_bytes()).zip(self.pages(id)) {
            memory.read(offset, page)?;
        }
        Ok(())
    }

    /// Damages a block by one bit.
    pub(super) fn flip_bit(&self, id: BlockId, memory: &DeviceMemory) -> Result<(), DeviceAccessError> {
        let Some(offset) = self.pages(id).last() else { return Ok(()) };
        let mut byte = [0];
        memory.read(offset, &mut byte)?;
        memory.write(offset, &[byte[0] ^ 0x10])
    }

    /// Whether `bytes` are what the block of `key` must hold.
    pub(super) fn holds(key: &OffloadKey, bytes: &[u8]) -> bool {
        let (words, rest) = bytes.as_chunks::<8>();
        let words_hold = words
            .iter()
            .zip(words_of(key))
            .map(|(found, word)| u64::from_le_bytes(*found) ^ word)
            .fold(0, |a, b| a | b)
            == 0;
        let rest_word = words_of(key).nth(words.len()).unwrap_or_default().to_le_bytes();
        words_hold && rest == &rest_word[..rest.len()]
    }

    fn page_bytes(&self) -> usize {
        usize::try_from(self.layout.chunk().page_bytes()).expect("a page fits memory")
    }

    fn pages(&self, id: BlockId) -> impl Iterator<Item = u64> {
        (0..self.layout.page_bases().len()).filter_map(move |plane| self.layout.page_offset(plane, id))
    }
}

fn fill(key: &OffloadKey, bytes: &mut [u8]) {
    let (words, rest) = bytes.as_chunks_mut::<8>();
    for (place, word) in words.iter_mut().zip(words_of(key)) {
        *place = word.to_le_bytes();
    }
    let rest_word = words_of(key).nth(words.len()).unwrap_or_default().to_le_bytes();
    rest.copy_from_slice(&rest_word[..rest.len()]);
}

fn words_of(key: &OffloadKey) -> impl Iterator<Item = u64> {
    let seed = key.to_bytes().chunks(8).fold(0, |seed, bytes| {
        let mut word = [0; 8];
        word[..bytes.len()].copy_from_slice(bytes);
        mix(seed ^ u64::from_le_bytes(word))
    });
    (0u64..).map(move |index| mix(seed.wrapping_add(index)))
}

/// Spreads a number over 64 bits; the multiplier is the golden ratio's, as in Fibonacci hashing.
fn mix(value: u64) -> u64 {
    let value = (value ^ value >> 32).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    value ^ value >> 29
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key;

    #[test]
    fn a_block_holds_its_own_bytes_and_no_others() {
        for len in [1, 7, 8, 64, 65] {
            let mut bytes = vec![0; len];
            fill(&key(7), &mut bytes);
            assert!(Pattern::holds(&key(7), &bytes));
            assert!(!Pattern::holds(&key(8), &bytes));
            for index in 0..len {
                bytes[index] ^= 1;
                assert!(!Pattern::holds(&key(7), &bytes), "byte {index} of {len} differs");
                bytes[index] ^= 1;
            }
        }
    }

    #[test]
    fn words_differ_within_a_block_and_between_blocks() {
        let mut seen = std::collections::HashSet::new();
        for block in 0..64 {
            assert!(words_of(&key(block)).take(64).all(|word| seen.insert(word)));
        }
    }
}
