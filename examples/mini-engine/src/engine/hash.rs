//! Names of blocks.

use kvo_core::BlockHash;
use sha2::{Digest, Sha256};

/// Said first, so that another way to hash would never give the same names.
const DOMAIN: &[u8] = b"kvo-mini-engine block hash 1";

/// Brings `hashes` up to date: one for each full block of `tokens`.
///
/// The chain is a contract, so that names survive releases: the root is SHA-256 of `kvo-mini-engine block hash 1` and
/// the salt as 8 bytes, little-endian; the hash of a block is SHA-256 of its parent's hash (the root, for the first
/// block) and its tokens, 4 bytes each, little-endian. What else decides the bytes of a block (model, data type,
/// geometry) is no part of it: that is the business of whoever keeps blocks of several models.
pub(crate) fn extend(hashes: &mut Vec<BlockHash>, tokens: &[u32], block_tokens: u32, salt: u64) {
    let blocks = tokens.chunks_exact(block_tokens as usize);
    for block in blocks.skip(hashes.len()) {
        let parent = hashes.last().copied().unwrap_or_else(|| root(salt));
        let mut hasher = Sha256::new();
        hasher.update(parent.0);
        for token in block {
            hasher.update(token.to_le_bytes());
        }
        hashes.push(BlockHash(hasher.finalize().into()));
    }
}

fn root(salt: u64) -> BlockHash {
    let mut hasher = Sha256::new();
    hasher.update(DOMAIN);
    hasher.update(salt.to_le_bytes());
    BlockHash(hasher.finalize().into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hashes(tokens: &[u32], block_tokens: u32, salt: u64) -> Vec<BlockHash> {
        let mut hashes = Vec::new();
        extend(&mut hashes, tokens, block_tokens, salt);
        hashes
    }

    #[test]
    fn the_hashes_are_those_of_every_release() {
        let found: Vec<String> = hashes(&[1, 2, 3, 4, 5], 2, 0).iter().map(ToString::to_string).collect();
        assert_eq!(
            found,
            [
                "fea86ce64be7a062dcf0f06b622acce1e50c9bd81f7cb0c7d9b1f6ee7ba90c33",
                "1520ffd4826d0826096f9d0924a28d6cd45dbc5ad5082b7fcdc3648e29e0fce1",
            ]
        );
    }

    #[test]
    fn a_hash_names_all_tokens_before_it_and_the_salt() {
        let tokens: Vec<u32> = (0..64).collect();
        let all = hashes(&tokens, 8, 3);
        assert_eq!(all.len(), 8);
        for position in 0..64 {
            let mut other = tokens.clone();
            other[position] += 1;
            let other = hashes(&other, 8, 3);
            let same = all.iter().zip(&other).take_while(|(a, b)| a == b).count();
            let later = all.iter().zip(&other).skip(position / 8).filter(|(a, b)| a == b).count();
            assert_eq!((same, later), (position / 8, 0));
        }
        assert!(hashes(&tokens, 8, 4).iter().zip(&all).all(|(a, b)| a != b));
        let mut grown = hashes(&tokens[..20], 8, 3);
        extend(&mut grown, &tokens, 8, 3);
        assert_eq!(grown, all);
    }
}
