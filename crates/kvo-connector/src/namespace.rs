//! Names of chunks: whose data it is goes into every one of them.

use std::fmt;

use kvo_core::BlockHash;
use kvo_cuda::Fingerprint;
use sha2::{Digest, Sha256};

/// Whose data chunks are. It is part of the name of every chunk of a [`Connector`](crate::Connector): no lookup, in
/// memory or on disk, in this process or a later one, is answered with data of another namespace.
///
/// Requests divide a namespace further, by [`adapter`](crate::RequestParams::adapter) and
/// [`salt`](crate::RequestParams::salt).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Namespace {
    /// What a chunk is: of which model, in which numbers and which layout. See
    /// [`BlockLayout::fingerprint`](kvo_cuda::BlockLayout::fingerprint).
    pub fingerprint: Fingerprint,
    /// Which weights of the model computed it: another number each time that they change, the same one when an engine
    /// starts again with the same weights. See [`reset_to`](crate::Connector::reset_to).
    pub epoch: u64,
}

impl Namespace {
    /// The data of this kind, computed by these weights.
    pub fn new(fingerprint: Fingerprint, epoch: u64) -> Self {
        Self { fingerprint, epoch }
    }

    /// The names of the chunks of requests with this adapter and this salt.
    pub fn names(&self, adapter: Option<&[u8; 32]>, salt: Option<&[u8; 32]>) -> ChunkNames {
        let mut root = Sha256::new_with_prefix(b"kvo chunk root\0");
        root.update(self.fingerprint.0);
        root.update(self.epoch.to_le_bytes());
        for part in [adapter, salt] {
            root.update([u8::from(part.is_some())]);
            root.update(part.map_or(&[][..], |bytes| &bytes[..]));
        }
        let mut start = Sha256::new_with_prefix(b"kvo chunk name, of root and hash");
        start.update(root.finalize());
        ChunkNames { start }
    }
}

/// Names chunks by the hashes of their last blocks: for routers, who are [told](crate::BlockEvent) of names.
///
/// A name is SHA-256 over a word of 32 bytes, the root, and the hash. The root is SHA-256 over another word, the
/// fingerprint, the epoch as 64 bits, little-endian, and of the adapter and the salt each a byte that says whether there is
/// one, and its bytes. This does not change between releases: chunks on disk are found by it.
///
/// ```
/// use kvo_connector::{BlockHasher, Namespace};
/// use kvo_cuda::Fingerprint;
///
/// let namespace = Namespace::new(Fingerprint([7; 32]), 1);
/// let hash = BlockHasher::new(b"").block(None, &[1, 2, 3, 4]);
/// let name = namespace.names(None, None).name(hash);
/// assert_ne!(name, namespace.names(None, Some(&[1; 32])).name(hash));
/// assert_ne!(name, Namespace { epoch: 2, ..namespace }.names(None, None).name(hash));
/// ```
#[derive(Clone)]
pub struct ChunkNames {
    /// One block of the hash's, so that a name costs another one.
    start: Sha256,
}

impl ChunkNames {
    /// The name of the chunk that ends with the block of this hash.
    pub fn name(&self, hash: BlockHash) -> BlockHash {
        BlockHash(self.start.clone().chain_update(hash.0).finalize().into())
    }
}

impl fmt::Debug for ChunkNames {
    /// Nothing of the salt that is in it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ChunkNames").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAMESPACE: Namespace = Namespace { fingerprint: Fingerprint([1; 32]), epoch: 2 };
    const HASH: BlockHash = BlockHash([3; 32]);

    #[test]
    fn a_name_is_what_it_was_in_every_release() {
        let names = [
            NAMESPACE.names(None, None),
            NAMESPACE.names(Some(&[4; 32]), None),
            NAMESPACE.names(None, Some(&[5; 32])),
            NAMESPACE.names(Some(&[4; 32]), Some(&[5; 32])),
        ];
        assert_eq!(names.map(|names| names.name(HASH).to_string()), GOLDEN);
    }

    #[test]
    fn a_name_tells_apart_whatever_differs() {
        let other_kind = Namespace { fingerprint: Fingerprint([9; 32]), ..NAMESPACE };
        let other_weights = Namespace { epoch: 3, ..NAMESPACE };
        let (x, y) = ([4; 32], [5; 32]);
        let all = [
            NAMESPACE.names(None, None).name(HASH),
            NAMESPACE.names(None, None).name(BlockHash([9; 32])),
            other_kind.names(None, None).name(HASH),
            other_weights.names(None, None).name(HASH),
            NAMESPACE.names(Some(&x), None).name(HASH),
            NAMESPACE.names(Some(&y), None).name(HASH),
            // What is an adapter to one is no salt to another.
            NAMESPACE.names(None, Some(&x)).name(HASH),
            NAMESPACE.names(Some(&x), Some(&y)).name(HASH),
            NAMESPACE.names(Some(&y), Some(&x)).name(HASH),
            // Where the salts alone differ.
            NAMESPACE.names(None, Some(&y)).name(HASH),
            NAMESPACE.names(Some(&x), Some(&x)).name(HASH),
            HASH,
        ];
        for (nth, name) in all.iter().enumerate() {
            assert!(!all[..nth].contains(name), "{nth}");
        }
    }

    /// Made by another implementation of SHA-256.
    const GOLDEN: [&str; 4] = [
        "d323c6412b7af7aa9abceda0c1ab6aea162c88d87576fcc75ae02fae32d18470",
        "1d79f7cb250a2ab831b9114ece1e0cba3a2357e792415e9b5feb45449382ece4",
        "45165b8e15e27e82557fdcedf7f73605c4773d0d0a6609f2415c5ab3d0f6bfe1",
        "5356693b25dd1f5e3c77777874ff13a7d46acf9d6ee694fb9ac772a61c440500",
    ];
}
