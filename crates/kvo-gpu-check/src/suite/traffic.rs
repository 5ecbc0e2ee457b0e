//! Random transfers among compute, with a model of every byte of both memories.
//!
//! The engine here keeps the rules. A transfer waits for a fence behind the compute of its blocks; a byte of the device is
//! written by one thing at a time, and by none while it is read; a slot is written by one transfer, or read by several.
//! So every byte has one value that it must have, whatever order the device chooses.

mod model;
mod round;

use std::{ops::AddAssign, time::SystemTime};

use kvo_cuda::CopyPath;

use self::round::Round;
use super::{Failure, caught, rig::Ground};
use crate::{
    bed::{BedMaker, BedOptions},
    pattern,
};

/// Transfers of one bed, after which comes another with other options.
const PER_BED: u64 = 2000;

/// Random transfers, as many as one wants, that are the same for the same seed as far as the device's timing lets them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Traffic {
    /// What they are made from.
    pub seed: u64,
    /// How many.
    pub transfers: u64,
}

/// What there was of random traffic.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct TrafficCounts {
    /// Transfers that ended, each once, with every byte as it had to be.
    pub transfers: u64,
    /// Of them, stores.
    pub stores: u64,
    /// Their copies.
    pub copies: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Kernels that wrote blocks.
    pub fills: u64,
    /// Kernels that looked at blocks.
    pub checks: u64,
    /// Streams that waited for a part of a load, and then looked at it.
    pub marks: u64,
    /// Times that a stream was held up for a while.
    pub holds: u64,
    /// Transfers that a full device handed back.
    pub handed_back: u64,
}

impl AddAssign for TrafficCounts {
    fn add_assign(&mut self, other: Self) {
        self.transfers += other.transfers;
        self.stores += other.stores;
        self.copies += other.copies;
        self.bytes += other.bytes;
        self.fills += other.fills;
        self.checks += other.checks;
        self.marks += other.marks;
        self.holds += other.holds;
        self.handed_back += other.handed_back;
    }
}

impl Traffic {
    /// So many, from the seed `$KVO_SEED`, or one of the time, which is printed.
    ///
    /// # Panics
    /// If `$KVO_SEED` is no number.
    pub fn new(transfers: u64) -> Self {
        let seed = match std::env::var("KVO_SEED") {
            Ok(seed) => seed.parse().unwrap_or_else(|_| panic!("KVO_SEED={seed} is no number")),
            Err(_) => SystemTime::UNIX_EPOCH.elapsed().map_or(1, |since| since.subsec_nanos().into()),
        };
        eprintln!("KVO_SEED={seed}");
        Self { seed, transfers }
    }

    /// Runs them over beds of the maker, spread over all its ways of copies.
    ///
    /// # Errors
    /// [`Failure`], with the seed, says what was not as it should be.
    pub fn run(&self, maker: &dyn BedMaker) -> Result<TrafficCounts, Failure> {
        let paths = maker.paths();
        let transfers = self.transfers.div_ceil(paths.len() as u64);
        let mut counts = TrafficCounts::default();
        for path in paths {
            counts += Self { transfers, ..*self }.run_by(maker, path)?;
        }
        Ok(counts)
    }

    /// Runs all of them with copies that go one way.
    ///
    /// # Errors
    /// As [`run`](Self::run).
    pub fn run_by(&self, maker: &dyn BedMaker, path: Option<CopyPath>) -> Result<TrafficCounts, Failure> {
        let ground = Ground::new(maker, path);
        let mut counts = TrafficCounts::default();
        let panic = caught(|| self.go(&ground, &mut counts)).err();
        let complaints = ground.into_complaints();
        if panic.is_none() && complaints.is_empty() {
            return Ok(counts);
        }
        let case = format!("random traffic (KVO_SEED={}, {path:?}, {counts:?})", self.seed);
        Err(Failure { case, panic, complaints })
    }

    fn go(&self, ground: &Ground<'_>, counts: &mut TrafficCounts) {
        let mut random = Random::new(self.seed);
        while counts.transfers < self.transfers {
            let options = options(ground, &mut random);
            let mut round = Round::new(ground, &options, random.fork());
            round.run(PER_BED.min(self.transfers - counts.transfers), counts);
        }
    }
}

pub(super) fn random_transfers_beside_compute_come_to_the_byte(ground: &Ground<'_>) {
    let mut counts = TrafficCounts::default();
    Traffic::new(600).go(ground, &mut counts);
    let TrafficCounts { stores, fills, checks, holds, .. } = counts;
    assert!([stores, fills, checks, holds].iter().all(|count| *count > 0), "it is mixed: {counts:?}");
}

/// Slots of 100 to 4,000 bytes, and windows from one copy at a time to all.
fn options(ground: &Ground<'_>, random: &mut Random) -> BedOptions {
    let defaults = ground.options();
    let (window_bytes, quantum_bytes) = match random.below(5) {
        0 => (300, 100),
        1 => (4000, 50),
        2 => (1, 500),
        _ => (defaults.window_bytes, defaults.quantum_bytes),
    };
    BedOptions {
        num_slots: 24,
        slot_bytes: 100 + random.below(3900),
        inflight_max: if random.one_in(4) { 5 } else { 64 },
        window_bytes,
        quantum_bytes,
        ..defaults
    }
}

/// Numbers that look random: words of a pattern.
#[derive(Clone, Debug)]
struct Random {
    seed: u64,
    nth: u64,
}

impl Random {
    fn new(seed: u64) -> Self {
        Self { seed, nth: 0 }
    }

    fn next(&mut self) -> u64 {
        self.nth += 1;
        pattern::word(self.seed, self.nth)
    }

    /// Others, that do not depend on how many of these are taken.
    fn fork(&mut self) -> Self {
        Self::new(self.next())
    }

    fn below(&mut self, bound: usize) -> usize {
        usize::try_from(self.next() % bound as u64).expect("it is below a number of that size")
    }

    /// From `least` to `most`.
    fn within(&mut self, least: usize, most: usize) -> usize {
        least + self.below(most - least + 1)
    }

    fn one_in(&mut self, times: usize) -> bool {
        self.below(times) == 0
    }
}
