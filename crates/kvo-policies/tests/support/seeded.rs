//! Random runs that can be replayed.
//!
//! A run is a list of operations made from one seed. Each test tries a fixed range of seeds, so it does the same work
//! everywhere. A run that fails is cut down to the operations that matter and reported with its seed; with
//! `KVO_TEST_SEED=<seed>` in the environment each test runs that seed alone.

use std::{
    collections::VecDeque,
    fmt::{Debug, Write as _},
    ops::Range,
    panic::{AssertUnwindSafe, catch_unwind},
};

/// Choices: of a seed, by Steele, Lea and Flood's split-mix generator (OOPSLA 2014), or of a fuzzer's input.
pub struct Rng {
    state: u64,
    /// What is left of an input.
    input: Option<VecDeque<u8>>,
}

impl Rng {
    pub fn new(seed: u64) -> Self {
        Self { state: seed, input: None }
    }

    /// Choices that a fuzzer can lead: each is as few bytes of its input as it needs, and 0 behind the end.
    pub fn of_input(input: &[u8]) -> Self {
        Self { state: 0, input: Some(input.iter().copied().collect()) }
    }

    /// Whether an input has come to its end.
    pub fn is_spent(&self) -> bool {
        self.input.as_ref().is_some_and(VecDeque::is_empty)
    }

    pub fn next(&mut self) -> u64 {
        if self.input.is_some() {
            return self.below(u64::MAX);
        }
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `bound`.
    pub fn below(&mut self, bound: u64) -> u64 {
        let Some(input) = &mut self.input else { return self.next() % bound };
        let (mut value, mut most) = (0_u64, bound - 1);
        while most > 0 {
            value = value << 8 | u64::from(input.pop_front().unwrap_or(0));
            most >>= 8;
        }
        value % bound
    }

    /// An index below `bound`.
    pub fn index(&mut self, bound: usize) -> usize {
        usize::try_from(self.below(bound as u64)).expect("it is below a usize")
    }

    /// True in `percent` of all cases.
    pub fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    pub fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.index(of.len())]
    }
}

/// Runs `run` on what `generate` makes of each seed, and prints how many operations that were.
///
/// # Panics
/// If a run returns an error or panics, with the seed and the shortest list of operations found that still fails; or
/// if all seeds together made fewer than `ops_min` operations.
pub fn explore<Op: Clone + Debug>(
    seeds: Range<u64>,
    ops_min: usize,
    generate: impl Fn(&mut Rng) -> Vec<Op>,
    run: impl Fn(u64, &[Op]) -> Result<(), String>,
) {
    let chosen = std::env::var("KVO_TEST_SEED").ok();
    let (seeds, ops_min) = match chosen.map(|seed| seed.parse::<u64>().expect("KVO_TEST_SEED is a number")) {
        Some(seed) => (seed..seed + 1, 0),
        None => (seeds, ops_min),
    };
    let attempt = |seed, ops: &[Op]| match catch_unwind(AssertUnwindSafe(|| run(seed, ops))) {
        Ok(result) => result,
        Err(panic) => Err(match panic.downcast_ref::<String>() {
            Some(message) => format!("panicked: {message}"),
            None => format!("panicked: {:?}", panic.downcast_ref::<&str>()),
        }),
    };
    let mut num_ops = 0;
    for seed in seeds {
        let ops = generate(&mut Rng::new(seed));
        num_ops += ops.len();
        if let Err(first) = attempt(seed, &ops) {
            let shortest = shorten(ops, |ops| attempt(seed, ops).is_err());
            let message = attempt(seed, &shortest).err().unwrap_or(first);
            let mut listed = String::new();
            for op in &shortest {
                let _ = writeln!(listed, "  {op:?}");
            }
            panic!("KVO_TEST_SEED={seed}: {message}\nafter\n{listed}");
        }
    }
    println!("{num_ops} operations");
    assert!(num_ops >= ops_min, "{num_ops} operations were tried, {ops_min} were promised");
}

/// Runs `run` on the operations that the rest of a fuzzer's input is.
///
/// # Panics
/// If the run returns an error, with the operations.
pub fn fuzz<Op: Debug>(
    rng: &mut Rng,
    mut one_op: impl FnMut(&mut Rng) -> Op,
    run: impl FnOnce(&[Op]) -> Result<(), String>,
) {
    let ops: Vec<Op> = std::iter::from_fn(|| if rng.is_spent() { None } else { Some(one_op(rng)) }).collect();
    if let Err(wrong) = run(&ops) {
        panic!("{wrong}\nafter\n{ops:#?}");
    }
}

/// Leaves out operations, in ever smaller pieces, as long as the rest still fails.
fn shorten<Op: Clone>(mut ops: Vec<Op>, fails: impl Fn(&[Op]) -> bool) -> Vec<Op> {
    let mut piece = ops.len() / 2;
    while piece > 0 {
        let mut start = 0;
        while start < ops.len() {
            let mut rest = ops.clone();
            rest.drain(start..(start + piece).min(ops.len()));
            if fails(&rest) {
                ops = rest;
            } else {
                start += piece;
            }
        }
        piece /= 2;
    }
    ops
}
