//! Choices: of a seed, by `SplitMix64`, or of a fuzzer's input.

use std::collections::VecDeque;

#[derive(Clone, Debug)]
pub(crate) struct Random {
    state: u64,
    /// What is left of an input.
    input: VecDeque<u8>,
}

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self { state: seed, input: VecDeque::new() }
    }

    /// Choices that a fuzzer can lead: each takes as few bytes of its input as it needs. Behind the end they are those of a
    /// seed.
    pub(crate) fn of_input(input: &[u8]) -> Self {
        Self { state: 1, input: input.iter().copied().collect() }
    }

    /// Whether there is more of an input.
    pub(crate) fn has_input(&self) -> bool {
        !self.input.is_empty()
    }

    /// Of an input one of 256 numbers.
    pub(crate) fn next(&mut self) -> u64 {
        if let Some(byte) = self.input.pop_front() {
            return mix(u64::from(byte));
        }
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.state)
    }

    /// A number below `bound`, which is at least 1.
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

    /// The same, of 32 bits.
    pub(crate) fn small(&mut self, bound: u32) -> u32 {
        u32::try_from(self.below(u64::from(bound))).expect("it is below the bound")
    }

    pub(crate) fn index(&mut self, bound: usize) -> usize {
        usize::try_from(self.below(bound as u64)).expect("it is below the bound")
    }

    /// True in one of `of` cases; never, if that is 0.
    pub(crate) fn one_in(&mut self, of: u64) -> bool {
        of > 0 && self.below(of) == 0
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
