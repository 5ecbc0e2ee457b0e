//! Some seeds, and that the net catches fish. `cargo xtask sim` runs many.
//!
//! `KVO_SIM_SEED=<seed> cargo test -p kvo-sim --test seeds` runs one alone.

#[path = "../../../fuzz/replay.rs"]
mod replay;

use kvo_sim::{Plant, Run, Tally, Trouble, fuzzed, shrink};

const NUM_SEEDS: u64 = 80;

/// B25 and B55: blocks that others write at once, and weights that change, at any time.
#[test]
fn no_seed_finds_what_must_not_be() {
    let given =
        std::env::var("KVO_SIM_SEED").ok().map(|seed| seed.parse().expect("KVO_SIM_SEED is a number"));
    let seeds = given.map_or(1..NUM_SEEDS + 1, |seed: u64| seed..seed + 1);
    let mut sum = Tally::default();
    for seed in seeds {
        let run = Run::new(seed, None);
        match run.run() {
            Ok(tally) => sum.add(&tally),
            Err(failure) => panic!("{failure}: `cargo xtask sim --seed {seed}` replays it\n{run}"),
        }
    }
    println!("{sum:?}");
    if given.is_none() {
        let much = [sum.answered, sum.loads, sum.loads_failed, sum.stores_failed, sum.promoted, sum.evicted];
        assert!(much.iter().all(|count| *count > 100), "{sum:?}");
        let Tally { further, outdated, wiped, failed_partly, by_layer, late, waits, jobs_late, .. } = sum;
        let some = [further, outdated, wiped, failed_partly, by_layer, late, waits, jobs_late];
        assert!(some.iter().all(|count| *count > 0), "{sum:?}");
        assert!(sum.ends.iter().all(|count| *count > 5), "{sum:?}");
        let missing =
            Trouble::ALL.iter().find(|trouble| sum.struck.get(trouble).is_none_or(|count| *count == 0));
        assert_eq!(missing, None, "{sum:?}");
    }
}

#[test]
fn no_input_of_the_fuzzer_finds_what_must_not_be() {
    replay::replay("sim", fuzzed);
}

#[test]
fn a_seed_runs_the_same_way_each_time() {
    for seed in 1..8 {
        let run = || Run::new(seed, None).run().expect("nothing is wrong");
        assert_eq!(run(), run(), "seed {seed}");
    }
}

/// Those that are found within few seeds; `cargo xtask sim --canary` has all of them.
#[test]
fn defects_are_found() {
    let rare = [Plant::ChecksumIgnored, Plant::OpenedUnsynced, Plant::OlderRecovered, Plant::LetGoTooEarly];
    for plant in Plant::ALL.into_iter().filter(|plant| !rare.contains(plant)) {
        let caught = (1..100).find(|seed| Run::new(*seed, Some(plant)).run().is_err());
        assert!(caught.is_some(), "{plant:?} is not found");
    }
}

#[test]
fn a_run_that_fails_is_made_smaller_and_fails_in_the_same_way() {
    let run = Run::new(1, Some(Plant::WorkerReportLost));
    let failure = run.run().unwrap_err();
    let (small, of_small) = shrink(&run, &failure);
    assert_eq!(of_small.violation.rule, failure.violation.rule);
    assert!(small.num_ops() * 4 < run.num_ops(), "{} of {}", small.num_ops(), run.num_ops());
    assert_eq!(small.run().unwrap_err().violation, of_small.violation);
    assert!(!small.trace().is_empty());
}
