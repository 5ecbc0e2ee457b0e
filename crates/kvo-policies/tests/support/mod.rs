//! What the tests of this crate, and the model test of `kvo-cpu`, share.

#![allow(dead_code, unreachable_pub, reason = "each test program uses its own part")]

pub mod naive;
pub mod seeded;

use kvo_core::{BlockHash, GroupIdx, OffloadKey};
use kvo_policies::{AccessKind, CachePolicy, KeyAccess};

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

/// One key of an access.
pub fn access(key: OffloadKey, end_token: Option<u32>, kind: AccessKind) -> KeyAccess {
    KeyAccess { key, end_token, kind }
}

/// Evicts one by one, everything allowed, until nothing is left.
pub fn drain(policy: &mut (impl CachePolicy + ?Sized)) -> Vec<OffloadKey> {
    let mut victims = Vec::new();
    while policy.evict(1, &mut |_| true, &mut victims) {}
    victims
}
