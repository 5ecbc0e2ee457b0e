//! Choices: of a seed, by `SplitMix64`, or of a fuzzer's input.

use std::collections::VecDeque;

pub(crate) struct Random {
    state: u64,
    /// What is left of an input.
    input: VecDeque<u8>,
}

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self { state: seed, input: VecDeque::new() }
    }

    /// Choices that a fuzzer can lead: each is as few bytes of its input as it needs. Behind the end they are those of a
    /// seed.
    pub(crate) fn of_input(input: &[u8]) -> Self {
        Self { state: 1, input: input.iter().copied().collect() }
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.state)
    }

    /// A number below `bound`.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        if self.input.is_empty() {
            return self.next() % bound;
        }
        let (mut value, mut most) = (0_u64, bound - 1);
        while most > 0 {
            value = value << 8 | u64::from(self.input.pop_front().unwrap_or(0));
            most >>= 8;
        }
        value % bound
    }

    pub(crate) fn index(&mut self, bound: usize) -> usize {
        usize::try_from(self.below(bound as u64)).expect("it is below the bound")
    }

    /// True in one of `of` cases.
    pub(crate) fn one_in(&mut self, of: u64) -> bool {
        self.below(of) == 0
    }

    pub(crate) fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.index(of.len())]
    }
}

pub(crate) fn mix(mut value: u64) -> u64 {
    value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}
