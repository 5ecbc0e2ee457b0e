//! The checksum of a chunk.

use kvo_core::OffloadKey;
use twox_hash::XxHash3_64;

use crate::{ChecksumKind, slots::Tenant};

/// XXH3-64 of `payload`, seeded with the tenancy: the key and the generation of the write.
///
/// So the sum says not only which bytes, but whose, and of which write: a sum that is compared for another key, or for
/// another write of the same key, fails however intact the bytes are.
pub(crate) fn checksum(key: &OffloadKey, generation: u64, payload: &[u8]) -> u64 {
    let tenancy = XxHash3_64::oneshot_with_seed(generation, &key.to_bytes());
    XxHash3_64::oneshot_with_seed(tenancy, payload)
}

impl ChecksumKind {
    /// The checksum of a tenant's payload; of this kind.
    pub(crate) fn sum(self, tenant: &Tenant, payload: &[u8]) -> u64 {
        match self {
            Self::Xxh3 => checksum(&tenant.key, tenant.generation, payload),
            #[cfg(feature = "testing")]
            Self::Off => 0,
        }
    }

    /// Whether every payload has the same checksum, so that none need be read for it.
    pub(crate) fn is_off(self) -> bool {
        match self {
            Self::Xxh3 => false,
            #[cfg(feature = "testing")]
            Self::Off => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use kvo_core::{BlockHash, GroupIdx};

    use super::*;

    /// B53: the sum is of the whole key too.
    #[test]
    fn any_other_byte_key_group_or_generation_gives_another_sum() {
        let key = |n, group| OffloadKey::new(BlockHash::from_u64(n), GroupIdx(group));
        let mut payload = vec![7_u8; 5000];
        let sum = checksum(&key(1, 0), 1, &payload);
        assert_eq!(sum, checksum(&key(1, 0), 1, &payload));
        assert_ne!(sum, checksum(&key(2, 0), 1, &payload));
        assert_ne!(sum, checksum(&key(1, 1), 1, &payload));
        assert_ne!(sum, checksum(&key(1, 0), 2, &payload));
        for at in [0, 1, 239, 240, 4095, 4999] {
            payload[at] ^= 0x10;
            assert_ne!(sum, checksum(&key(1, 0), 1, &payload), "byte {at}");
            payload[at] ^= 0x10;
        }
    }

    #[test]
    fn the_function_is_xxh3() {
        // The published value of XXH3-64 for no bytes and seed 0.
        assert_eq!(XxHash3_64::oneshot_with_seed(0, &[]), 0x2d06_8005_38d3_94c2);
    }
}
