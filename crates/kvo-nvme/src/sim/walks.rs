//! The walks from many seeds.

use super::walk::{Tally, walk};
use crate::testing::Kind;

const NUM_SEEDS: u64 = 10_000;

#[test]
fn no_seed_finds_a_wrong_byte_or_a_lost_job() {
    let seeds = match (number("KVO_NVME_SIM_SEED"), number("KVO_NVME_SIM_SEEDS")) {
        (Some(seed), _) => seed..seed + 1,
        (None, seeds) => 1..seeds.unwrap_or(NUM_SEEDS) + 1,
    };
    println!("seeds {seeds:?}");
    let mut tally = Tally::default();
    for seed in seeds.clone() {
        tally.add(&walk(seed, None));
    }
    let Tally { steps, jobs, reads_compared, lives, struck } = tally;
    println!("{steps} steps, {jobs} jobs, {reads_compared} reads compared, {lives:?}");
    for (kind, struck) in Kind::ALL.iter().zip(struck) {
        println!("{kind:?}: {struck} times");
    }
    if seeds.end - seeds.start >= NUM_SEEDS {
        assert!(jobs > 200_000 && reads_compared > 50_000);
        assert!(lives.ends.iter().all(|&ends| ends > 5000) && lives.chunks_recovered > 100_000);
        assert!(struck.iter().all(|&struck| struck > 100));
    }
}

#[test]
fn a_seed_walks_the_same_way_each_time() {
    for seed in 1..100 {
        assert_eq!(walk(seed, None), walk(seed, None), "seed {seed}");
    }
}

fn number(variable: &str) -> Option<u64> {
    let value = std::env::var(variable).ok()?;
    Some(value.parse().unwrap_or_else(|_| panic!("{variable} is a number, not {value}")))
}
