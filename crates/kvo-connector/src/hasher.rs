//! Hashes of blocks, for engines that have none.

use kvo_core::BlockHash;
use sha2::{Digest, Sha256};

/// Hashes blocks of token ids, each together with all in front of it, by SHA-256.
///
/// The hash of a block is that of: the hash of the block before it, or for the first block the hash of the namespace; the
/// number of its tokens; its tokens. Numbers are of 64 and 32 bits, little-endian. What goes in is told apart by a word
/// in front, so that no namespace is taken for a block. This does not change between releases: chunks on disk are found
/// by it.
///
/// A connector puts its own [`Namespace`](crate::Namespace) into the name of every chunk, with each request's adapter and
/// salt; that of the hashes is for whatever else is to tell them apart, and may be empty.
///
/// ```
/// use kvo_connector::BlockHasher;
///
/// let hasher = BlockHasher::new(b"");
/// let hashes = hasher.blocks(4, &[1, 2, 3, 4, 5, 6, 7, 8, 9]);
/// assert_eq!(hashes.len(), 2); // the third block is not full
/// assert_eq!(hasher.block(Some(hashes[0]), &[5, 6, 7, 8]), hashes[1]);
/// ```
#[derive(Clone, Debug)]
pub struct BlockHasher {
    root: [u8; 32],
}

impl BlockHasher {
    /// A hasher for a namespace: whatever has an influence on the KV of the same tokens, as the model and an adapter.
    pub fn new(namespace: &[u8]) -> Self {
        let mut hash = Sha256::new_with_prefix(b"kvo namespace\0");
        hash.update(namespace);
        Self { root: hash.finalize().into() }
    }

    /// The hash of a block behind another one, or of a first block.
    pub fn block(&self, parent: Option<BlockHash>, tokens: &[u32]) -> BlockHash {
        let mut hash = Sha256::new_with_prefix(b"kvo block\0");
        hash.update(parent.map_or(self.root, |parent| parent.0));
        hash.update((tokens.len() as u64).to_le_bytes());
        for token in tokens {
            hash.update(token.to_le_bytes());
        }
        BlockHash(hash.finalize().into())
    }

    /// The hashes of all full blocks of a request's tokens.
    ///
    /// # Panics
    /// If `block_tokens` is 0.
    pub fn blocks(&self, block_tokens: usize, tokens: &[u32]) -> Vec<BlockHash> {
        let mut parent = None;
        let mut hashes = Vec::with_capacity(tokens.len() / block_tokens);
        for block in tokens.chunks_exact(block_tokens) {
            let hash = self.block(parent, block);
            hashes.push(hash);
            parent = Some(hash);
        }
        hashes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hash_is_what_it_was_in_every_release() {
        let hashes = BlockHasher::new(b"").blocks(2, &[1, 2, 3, 4]);
        assert_eq!(
            hashes.map_to_strings(),
            [
                "bedd22b954067e3b95c0fa3a56bd1bcc55c6ffc11b92a204d1d0a0c2e070817b",
                "9dba27f61501eab3345e05ed5755b69fc00d50417ee9fa73d79cd1242af4a006",
            ]
        );
    }

    #[test]
    fn a_hash_tells_apart_what_differs_anywhere_before() {
        let hasher = BlockHasher::new(b"a");
        let last = |hasher: &BlockHasher, tokens: &[u32]| *hasher.blocks(2, tokens).last().unwrap();
        let hash = last(&hasher, &[1, 2, 3, 4]);
        for other in [[9, 2, 3, 4], [1, 9, 3, 4], [1, 2, 9, 4], [1, 2, 3, 9]] {
            assert_ne!(last(&hasher, &other), hash);
        }
        assert_ne!(last(&BlockHasher::new(b"b"), &[1, 2, 3, 4]), hash);
        assert_ne!(hasher.block(None, &[1, 2]), hasher.block(None, &[1, 2, 0]));
    }

    trait Named {
        fn map_to_strings(&self) -> Vec<String>;
    }

    impl Named for Vec<BlockHash> {
        fn map_to_strings(&self) -> Vec<String> {
            self.iter().map(ToString::to_string).collect()
        }
    }
}
