//! What the tests of this crate, and the model test of `kvo-cpu`, share.

#![allow(dead_code, unreachable_pub, unused_imports, reason = "each test program uses its own part")]

pub mod driven;
pub mod naive;
pub mod seeded;
pub mod ylru;

pub use driven::Driven;
use kvo_core::{BlockHash, GroupIdx, OffloadKey};
use kvo_policies::{AccessKind, KeyAccess};

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
