//! The connector and its worker beside a small engine, on a device that is stepped in virtual time from a seed.
//!
//! The engine computes no model: the bytes of a token are a function of it and all tokens before it, of whose they are and of
//! the weights that computed each, and whatever attends to a token compares its bytes first. So a block that holds anything but what it should is found by the compute that
//! would have been wrong. The race detector of the device is on throughout.
//!
//! `KVO_SEED=<seed> cargo test -p kvo-connector --test simulated` replays a run alone. The fuzzer
//! `connector` makes shorter runs by the bytes of its inputs.

mod engine;
mod fuzzed;
mod memory;
mod random;
mod rank;
#[path = "../../../../fuzz/replay.rs"]
mod replay;
mod request;

use engine::{Engine, Setup};
use kvo_connector::GroupOptions;
use random::Random;

/// Calls `run` with many seeds, or with that of `KVO_SEED`. Says whether it was with all.
#[track_caller]
fn with_seeds(num: u64, mut run: impl FnMut(&mut Random)) -> bool {
    let given = std::env::var("KVO_SEED").ok().map(|seed| seed.parse().expect("KVO_SEED is a number"));
    let seeds = given.map_or(1..num + 1, |seed: u64| seed..seed + 1);
    for seed in seeds {
        eprintln!("KVO_SEED={seed}");
        run(&mut Random::new(seed));
    }
    given.is_none()
}

fn setup(random: &mut Random) -> Setup {
    let kinds = random.below(6);
    let per_chunk = |random: &mut Random| 1 + u32::try_from(random.below(3)).unwrap();
    let full = GroupOptions::full(4).with_blocks_per_chunk(per_chunk(random));
    let window = GroupOptions { pool: 1, ..GroupOptions::window(4, 9) };
    let groups = match kinds {
        0 | 1 => vec![full],
        2 => vec![window.with_blocks_per_chunk(per_chunk(random))],
        3 => vec![full, window],
        4 => vec![GroupOptions { block_tokens: 8, ..full }, GroupOptions { block_tokens: 4, ..window }],
        _ => vec![full, window, GroupOptions { pool: 2, ..GroupOptions::full(2) }],
    };
    Setup {
        groups,
        num_slots: 4 + u32::try_from(random.below(40)).unwrap(),
        num_blocks: 24 + u32::try_from(random.below(40)).unwrap(),
        lower_chunks: if random.one_in(2) { 0 } else { 200 },
        arc: random.one_in(2),
        steps: 150,
        faults: false,
        resets: false,
        drafts: random.one_in(3),
        load_chunks_max: if random.one_in(2) { 1 + random.index(3) } else { usize::MAX },
        num_workers: 1,
    }
}

/// B25: requests are preempted at any time, and their blocks written by others at once.
#[test]
fn whatever_an_engine_does_compute_finds_the_bytes_that_it_should() {
    with_seeds(150, |random| {
        let setup = setup(random);
        Engine::new(setup, random).run(random);
    });
}

#[test]
fn copies_that_fail_or_hang_cost_time_and_nothing_else() {
    with_seeds(150, |random| {
        let setup = Setup { faults: true, ..setup(random) };
        Engine::new(setup, random).run(random);
    });
}

/// B55: and what other weights have computed comes back under those weights only.
#[test]
fn a_reset_at_any_time_brings_nothing_of_before_back() {
    with_seeds(100, |random| {
        let setup = Setup { resets: true, faults: random.one_in(2), ..setup(random) };
        Engine::new(setup, random).run(random);
    });
}

#[test]
fn behind_a_copy_of_a_load_that_fails_all_is_computed_and_nothing_in_front_of_it() {
    let mut sums = engine::Sums::default();
    let were_all = with_seeds(40, |random| {
        let full = |pool| GroupOptions { pool, ..GroupOptions::full(4) };
        let small = GroupOptions { block_tokens: 2, ..full(1) }.with_blocks_per_chunk(3);
        let groups = if random.one_in(2) { vec![full(0)] } else { vec![full(0), small] };
        let usual = setup(random);
        let several = Setup {
            groups,
            num_blocks: 2 * usual.num_blocks,
            load_chunks_max: 1 + random.index(2),
            num_slots: 60,
            faults: true,
            resets: random.one_in(4),
            ..usual
        };
        sums.add(&Engine::new(several, random).run(random));
    });
    eprintln!("{sums:?}");
    assert!(!were_all || sums.failed_partly > 0, "{sums:?}");
}

#[test]
fn the_corpus_of_the_fuzzer_is_computed_on_the_bytes_that_there_should_be() {
    replay::replay("connector", fuzzed::fuzzed);
}

/// B10: what one worker has done is not done by the others, nor over where it has failed.
#[test]
fn several_workers_go_at_their_own_pace() {
    let mut sums = engine::Sums::default();
    let were_all = with_seeds(60, |random| {
        let faults = random.one_in(2);
        let resets = random.one_in(4);
        let num_workers = 2 + u32::try_from(random.below(2)).unwrap();
        let several = Setup { num_workers, lower_chunks: 0, faults, resets, ..setup(random) };
        sums.add(&Engine::new(several, random).run(random));
    });
    eprintln!("{sums:?}");
    let have_happened = sums.loads_failed > 0 && sums.by_layer > 0 && sums.resets > 0;
    assert!(!were_all || have_happened, "{sums:?}");
}

/// So that the tests above are known to reach what they are about.
#[test]
fn runs_load_store_wait_preempt_and_fail() {
    let mut sums = engine::Sums::default();
    for seed in 1..40 {
        let mut random = Random::new(seed);
        let setup = Setup { faults: seed % 2 == 0, resets: seed % 3 == 0, ..setup(&mut random) };
        sums.add(&Engine::new(setup, &mut random).run(&mut random));
    }
    eprintln!("{sums:?}");
    assert!(sums.all_happened(), "{sums:?}");
}
