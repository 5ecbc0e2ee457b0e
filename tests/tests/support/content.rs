//! What is in a chunk: bytes that follow from its key, so that any byte can be checked anywhere.

use kvo_core::{BlockHash, GroupIdx, OffloadKey};

/// The generator of Steele, Lea and Flood's `SplitMix` (OOPSLA 2014).
#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// An index below `bound`.
    pub fn index(&mut self, bound: usize) -> usize {
        usize::try_from(self.next() % bound as u64).expect("it is below a usize")
    }

    /// True in `percent` of all cases.
    pub fn chance(&mut self, percent: u64) -> bool {
        self.next() % 100 < percent
    }

    /// Moves a random item out of `items`.
    pub fn take<T>(&mut self, items: &mut Vec<T>) -> Option<T> {
        if items.is_empty() {
            return None;
        }
        let index = self.index(items.len());
        Some(items.swap_remove(index))
    }
}

/// The chunk number `n` of a KV group. All 32 bytes of its hash differ from those of its neighbours.
pub fn key(n: u64, group: u32) -> OffloadKey {
    let mut rng = Rng::new(n);
    let mut hash = [0; 32];
    for word in hash.chunks_mut(8) {
        word.copy_from_slice(&rng.next().to_be_bytes());
    }
    OffloadKey::new(BlockHash(hash), GroupIdx(group))
}

/// A key that no request has: what it says is the canary of a block.
pub fn canary_key(n: u64) -> OffloadKey {
    OffloadKey::new(BlockHash::from_u64(n), GroupIdx(u32::MAX))
}

/// The first `bytes` bytes of a chunk, as they stand in a slot.
pub fn chunk_content(key: &OffloadKey, bytes: usize) -> Vec<u8> {
    let seed = key.to_bytes().chunks(4).fold(0, |seed, part| {
        let part = part.iter().fold(0, |part, byte| part << 8 | u64::from(*byte));
        Rng::new(seed ^ part).next()
    });
    let mut rng = Rng::new(seed);
    let mut content = Vec::with_capacity(bytes + 8);
    while content.len() < bytes {
        content.extend_from_slice(&rng.next().to_le_bytes());
    }
    content.truncate(bytes);
    content
}
