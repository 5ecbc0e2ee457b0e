//! Random lists of slices, and what they should leave in memory.
//!
//! With `KVO_TEST_SEED=<seed>` in the environment each random test runs that seed alone.

use super::Slice;

/// Sources are below, destinations from here on.
const SOURCES_END: usize = 24 << 10;
const MEMORY_BYTES: usize = 64 << 10;

/// Splitmix64.
pub(super) struct Random(u64);

impl Random {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The first `count` seeds, or the one that the environment names.
    pub(super) fn seeds(count: u64) -> std::ops::Range<u64> {
        match std::env::var("KVO_TEST_SEED") {
            Ok(seed) => {
                let seed = seed.parse().expect("KVO_TEST_SEED is a number");
                seed..seed + 1
            }
            Err(_) => 0..count,
        }
    }

    pub(super) fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        usize::try_from((mixed ^ (mixed >> 31)) % bound as u64).unwrap()
    }

    pub(super) fn bytes(&mut self, count: usize) -> Vec<u8> {
        (0..count).map(|_| self.below(256).to_le_bytes()[0]).collect()
    }
}

/// Memory before and after, and the slices between them. Addresses count from the memory's start.
pub(super) struct List {
    pub(super) slices: Vec<Slice>,
    pub(super) before: Vec<u8>,
    pub(super) after: Vec<u8>,
    /// All slices are of the aligned entry.
    pub(super) is_aligned: bool,
}

impl List {
    /// Slices over random bytes: sources overlap, destinations do not and have at least a byte between them.
    pub(super) fn random(random: &mut Random) -> Self {
        let before = random.bytes(MEMORY_BYTES);
        let is_aligned = random.below(4) == 0;
        let mut slices = Vec::new();
        let mut end = SOURCES_END;
        for _ in 0..random.below(28) {
            let unit = if is_aligned { 16 } else { [1, 1, 8, 16][random.below(4)] };
            let mut bytes = length(random);
            let mut destination = end + 1 + random.below(40);
            if is_aligned {
                bytes -= bytes % 16;
                destination = destination.next_multiple_of(16);
            }
            if destination + bytes >= MEMORY_BYTES {
                break;
            }
            // As far from a multiple of the unit as the destination.
            let source = random.below(SOURCES_END - bytes - 32) / unit * unit + destination % unit;
            slices.push(Slice {
                source: source as u64,
                destination: destination as u64,
                bytes: bytes as u64,
            });
            end = destination + bytes;
        }
        for last in (1..slices.len()).rev() {
            slices.swap(last, random.below(last + 1));
        }
        Self { after: copied(&before, &slices), before, slices, is_aligned }
    }
}

fn length(random: &mut Random) -> usize {
    match random.below(16) {
        0 => 0,
        1..=4 => random.below(17),
        5..=9 => random.below(100),
        10..=13 => random.below(1200),
        14 => random.below(5) * 4096,
        _ => random.below(9000),
    }
}

/// The memory with each slice copied from the memory as it was.
pub(super) fn copied(before: &[u8], slices: &[Slice]) -> Vec<u8> {
    let mut after = before.to_vec();
    for slice in slices {
        after[range(slice.destination, slice.bytes)]
            .copy_from_slice(&before[range(slice.source, slice.bytes)]);
    }
    after
}

pub(super) fn range(start: u64, bytes: u64) -> std::ops::Range<usize> {
    let start = usize::try_from(start).unwrap();
    start..start + usize::try_from(bytes).unwrap()
}
