//! Names of chunks.

use std::{
    fmt,
    hash::{Hash, Hasher},
};

/// Hash of a block's tokens and of every token before it, made by the engine: equal hashes mean an equal prefix.
///
/// This crate computes none and shortens none: two keys are equal only if all 32 bytes are. In a key it may also be a name
/// that is made of such a hash and of what else must be equal, as `kvo-connector` makes them.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct BlockHash(pub [u8; 32]);

impl BlockHash {
    /// The integer as 32 big-endian bytes: for traces and tests, where blocks are numbered.
    pub fn from_u64(value: u64) -> Self {
        let mut bytes = [0; 32];
        bytes[24..].copy_from_slice(&value.to_be_bytes());
        Self(bytes)
    }
}

impl Hash for BlockHash {
    fn hash<H: Hasher>(&self, state: &mut H) {
        // No length prefix: the length never varies.
        state.write(&self.0);
    }
}

impl fmt::Display for BlockHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for BlockHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Leading zero bytes say nothing; numbered blocks of traces stay readable.
        let first = self.0.iter().position(|&byte| byte != 0).unwrap_or(31);
        self.0[first..].iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// Index of a KV cache group: layers that share one block table (full attention, sliding window, ...).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GroupIdx(pub u32);

/// Name of a chunk: the hash of its last block and its KV group.
///
/// The order is that of the bytes, hash first, then the group as big-endian bytes. It decides between chunks of
/// equal recency, so it is part of the contract.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OffloadKey {
    hash: BlockHash,
    group: GroupIdx,
}

impl OffloadKey {
    /// Names the chunk of `group` whose prefix hashes to `hash`.
    pub fn new(hash: BlockHash, group: GroupIdx) -> Self {
        Self { hash, group }
    }

    /// The prefix hash.
    pub fn hash(&self) -> BlockHash {
        self.hash
    }

    /// The KV cache group.
    pub fn group(&self) -> GroupIdx {
        self.group
    }

    /// Hash and group as 36 bytes, the group big-endian: the form that goes to disk. Its order is the key's order.
    pub fn to_bytes(self) -> [u8; 36] {
        let mut bytes = [0; 36];
        bytes[..32].copy_from_slice(&self.hash.0);
        bytes[32..].copy_from_slice(&self.group.0.to_be_bytes());
        bytes
    }

    /// The key that [`to_bytes`](Self::to_bytes) wrote.
    pub fn from_bytes(bytes: [u8; 36]) -> Self {
        let (mut hash, mut group) = ([0; 32], [0; 4]);
        hash.copy_from_slice(&bytes[..32]);
        group.copy_from_slice(&bytes[32..]);
        Self { hash: BlockHash(hash), group: GroupIdx(u32::from_be_bytes(group)) }
    }
}

impl fmt::Debug for OffloadKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}/{}", self.hash, self.group.0)
    }
}

impl fmt::Display for OffloadKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.hash, self.group.0)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn key() -> impl Strategy<Value = OffloadKey> {
        (any::<[u8; 32]>(), any::<u32>())
            .prop_map(|(hash, group)| OffloadKey::new(BlockHash(hash), GroupIdx(group)))
    }

    proptest! {
        #[test]
        fn a_key_survives_its_bytes(key in key()) {
            prop_assert_eq!(OffloadKey::from_bytes(key.to_bytes()), key);
        }

        #[test]
        fn keys_order_as_their_bytes(a in key(), b in key(), group in any::<u32>()) {
            prop_assert_eq!(a.cmp(&b), a.to_bytes().cmp(&b.to_bytes()));
            let c = OffloadKey::new(a.hash(), GroupIdx(group));
            prop_assert_eq!(a.cmp(&c), a.to_bytes().cmp(&c.to_bytes()));
        }
    }
}
