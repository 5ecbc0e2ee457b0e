//! What the tests of this crate, and the model test of `kvo-cpu`, share.

#![allow(dead_code, unreachable_pub, unused_imports, reason = "each test program uses its own part")]

pub mod driven;
pub mod naive;
pub mod seeded;
pub mod ylru;

pub use driven::Driven;
use kvo_core::{BlockHash, GroupIdx, OffloadKey};
use kvo_policies::{AccessKind, GhostHits, KeyAccess, PolicyKind, S3FifoOptions};

/// Those that look at a chunk once in an eviction.
pub const SINGLE_LOOK_KINDS: [PolicyKind; 8] = [
    PolicyKind::Lru,
    PolicyKind::Arc(GhostHits::T1),
    PolicyKind::Arc(GhostHits::T2),
    PolicyKind::Arc(GhostHits::Canonical),
    PolicyKind::Slru { protected_pct: 20 },
    PolicyKind::Aslru,
    PolicyKind::Ylru,
    PolicyKind::Fifo,
];

/// Every policy: those, and S3-FIFO, which may come by a chunk several times before it goes.
pub fn all_kinds() -> impl Iterator<Item = PolicyKind> {
    let leaf_only = [false, true].map(|leaf_only| S3FifoOptions { leaf_only, ..S3FifoOptions::default() });
    SINGLE_LOOK_KINDS.into_iter().chain(leaf_only.map(PolicyKind::S3Fifo))
}

/// Key `n` of group 0.
pub fn key(n: u64) -> OffloadKey {
    key_of(n, 0)
}

/// Key `n` of a group.
pub fn key_of(n: u64, group: u32) -> OffloadKey {
    OffloadKey::new(BlockHash::from_u64(n), GroupIdx(group))
}

/// Keys of group 0.
pub fn keys<const N: usize>(numbers: [u64; N]) -> [OffloadKey; N] {
    numbers.map(key)
}

/// One key of an access; [`Driven`] fills in its slot.
pub fn access(key: OffloadKey, end_token: Option<u32>, kind: AccessKind) -> KeyAccess {
    KeyAccess { key, slot: None, end_token, kind }
}
