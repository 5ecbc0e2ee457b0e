//! Keys of the workload.

use std::ops::Range;

use kvo_core::{BlockHash, GroupIdx, OffloadKey};

/// Keys a request.
pub const CHAIN: usize = 256;

const SEED: u64 = 0x6b76_6f5f_6d69_6372;

/// The keys of some chains, one chain behind the other, each head to tail. A chain's number says all of it.
pub fn chains(numbers: impl IntoIterator<Item = u64>) -> Vec<OffloadKey> {
    numbers.into_iter().flat_map(|chain| (0..CHAIN as u64).map(move |at| key(chain, at))).collect()
}

fn key(chain: u64, at: u64) -> OffloadKey {
    let mut state = mix(SEED ^ mix(chain * CHAIN as u64 + at));
    let mut digest = [0; 32];
    for word in digest.chunks_exact_mut(8) {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        word.copy_from_slice(&mix(state).to_le_bytes());
    }
    OffloadKey::new(BlockHash(digest), GroupIdx(0))
}

/// Takes a victim into the hash of all, in order.
pub fn fold_victim(victims: u64, key: &OffloadKey) -> u64 {
    let BlockHash(digest) = key.hash();
    let (words, _) = digest.as_chunks::<8>();
    (victims.rotate_left(5) ^ u64::from_le_bytes(words[0])).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// The finaliser of `SplitMix64`.
pub(crate) fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Puts `items` into an order that depends on `seed` alone.
pub fn shuffle<T>(items: &mut [T], seed: u64) {
    let mut state = mix(SEED ^ seed);
    for last in (1..items.len()).rev() {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        items.swap(last, below(mix(state), last + 1));
    }
}

/// `count` of `from`, with repeats if there are fewer, shuffled.
pub(crate) fn some_of(from: Range<u64>, count: usize, seed: u64) -> Vec<u64> {
    let mut numbers: Vec<u64> = from.collect();
    shuffle(&mut numbers, seed);
    numbers.into_iter().cycle().take(count).collect()
}

fn below(random: u64, bound: usize) -> usize {
    // A multiplication in place of a division; the product's high half is below the bound.
    let high = (u128::from(random) * bound as u128) >> u64::BITS;
    usize::try_from(high).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_depend_on_their_number_alone_and_differ() {
        let keys = chains([0, 1, 2]);
        assert_eq!(keys[CHAIN..], chains([1, 2]));
        let mut sorted = keys.clone();
        sorted.sort();
        sorted.dedup();
        assert_eq!(sorted.len(), keys.len());
    }

    #[test]
    fn a_shuffle_loses_nothing() {
        let mut numbers: Vec<u32> = (0..1000).collect();
        shuffle(&mut numbers, 1);
        assert_ne!(numbers[..10], [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]);
        numbers.sort_unstable();
        assert!(numbers.into_iter().eq(0..1000));
        assert_eq!(some_of(5..7, 5, 3).len(), 5);
    }
}
