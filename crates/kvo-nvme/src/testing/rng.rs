//! Numbers from a seed.

#[cfg(test)]
use std::time::{SystemTime, UNIX_EPOCH};

/// The generator `SplitMix64`.
#[derive(Clone, Debug)]
pub(crate) struct Rng(u64);

impl Rng {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Of the seed in `KVO_NVME_SEED`, or of a fresh one; it is printed.
    #[cfg(test)]
    pub(crate) fn for_test() -> Self {
        let seed = match std::env::var("KVO_NVME_SEED") {
            Ok(seed) => seed.parse().expect("KVO_NVME_SEED is a number"),
            Err(_) => {
                u64::from(SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").subsec_nanos())
            }
        };
        eprintln!("KVO_NVME_SEED={seed}");
        Self(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    /// A place in something that is `len` long, which is not zero.
    pub(crate) fn index(&mut self, len: usize) -> usize {
        usize::try_from(self.below(len as u64)).expect("below a usize")
    }

    /// Whether a thing happens that happens once in `n` times; never, if `n` is zero.
    pub(crate) fn one_in(&mut self, n: u64) -> bool {
        n > 0 && self.below(n) == 0
    }

    pub(crate) fn pick<T: Copy>(&mut self, among: &[T]) -> T {
        among[self.index(among.len())]
    }

    /// Another generator, whose numbers do not depend on how many more are taken from this one.
    #[cfg(test)]
    pub(crate) fn split(&mut self) -> Self {
        Self(self.next())
    }
}
