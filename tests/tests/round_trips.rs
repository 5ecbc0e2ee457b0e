//! Bytes that go down through every tier come back as they were.

mod support;

use kvo_policies::{GhostHits, PolicyKind};
use support::{Arrangement, Engine, OverNvme, Setup, keys, memory_tier, prompt, push_down};

const ARRANGEMENTS: [Arrangement; 3] =
    [Arrangement::LayerFirst, Arrangement::Interleaved, Arrangement::BlockFirst];

/// Chunks that were read from a tier so far.
fn chunks_read(engine: &Engine, tier: usize) -> u64 {
    engine.manager().stats().tiers[tier].read.chunks
}

/// Two groups and 8 slots: 4 chunks of a prompt. Prompts of 3 chunks push each other down.
fn check_round_trips(arrangement: Arrangement, blocks_per_chunk: u32, policy: PolicyKind) {
    let setup = Setup { arrangement, blocks_per_chunk, num_groups: 2, ..Setup::new(8) };
    let OverNvme { mut engine, nvme, .. } = OverNvme::with_policy(setup, policy.build(8));
    let [first, second, third] = [1, 2, 3].map(|n| prompt(n, 3));
    let first_keys = [keys(&first, 0), keys(&first, 1)].concat();

    assert_eq!(engine.serve(&first, 0), 0, "nothing is there yet");
    assert_eq!(engine.serve(&first, 0), 3);
    assert_eq!(chunks_read(&engine, 0), 0, "all of it came from the primary tier");

    push_down(&mut engine, &first_keys, &[&second, &third]);
    let read = chunks_read(&engine, 0);
    assert_eq!(engine.serve(&first, 0), 3);
    assert_eq!(chunks_read(&engine, 0) - read, 6, "all of it came from the store, both groups");

    // Beginning inside a chunk: from the primary tier, then from the store.
    let skip = blocks_per_chunk - 1;
    assert_eq!(engine.serve(&first, skip), 3);
    assert_eq!(chunks_read(&engine, 0) - read, 6);
    push_down(&mut engine, &first_keys, &[&second, &third]);
    assert_eq!(engine.serve(&first, skip), 3);

    let written = nvme.look().backing.stats().write.chunks;
    assert_eq!(written, 18, "each chunk was written down once, though it was offered each time");
    let stats = engine.manager().stats();
    assert_eq!(stats.tiers[0].read.bytes, stats.tiers[0].read.chunks * setup.chunk().chunk_bytes());
    assert_eq!(stats.tiers[0].read.jobs_failed + stats.tiers[0].written.jobs_failed, 0);
}

#[test]
fn bytes_come_back_from_the_primary_tier_and_from_the_store_under_lru() {
    for arrangement in ARRANGEMENTS {
        for blocks_per_chunk in [1, 2, 3] {
            check_round_trips(arrangement, blocks_per_chunk, PolicyKind::Lru);
        }
    }
}

#[test]
fn bytes_come_back_from_the_primary_tier_and_from_the_store_under_arc() {
    for arrangement in ARRANGEMENTS {
        for blocks_per_chunk in [1, 2] {
            check_round_trips(arrangement, blocks_per_chunk, PolicyKind::Arc(GhostHits::T1));
        }
    }
}

#[test]
fn what_the_first_tier_has_lost_comes_back_from_the_second() {
    let setup = Setup::new(4);
    let dir = tempfile::tempdir().unwrap();
    let region = setup.region();
    // Room for one prompt in the primary tier, for two in the memory tier, for all of them in the store.
    let memory = memory_tier(8, &region);
    let nvme = setup.nvme(dir.path(), 64, &region);
    let mut engine = Engine::new(setup, region, PolicyKind::Lru.build(4), vec![]);
    engine.add_tier(memory.clone());
    engine.add_tier(nvme.clone());

    let prompts: Vec<_> = (1..=4).map(|n| prompt(n, 4)).collect();
    for prompt in &prompts {
        assert_eq!(engine.serve(prompt, 0), 0);
    }
    assert_eq!(engine.serve(&prompts[3], 0), 4, "the last prompt is in the primary tier");
    assert_eq!((chunks_read(&engine, 0), chunks_read(&engine, 1)), (0, 0));
    for prompt in &prompts[..2] {
        assert_eq!(engine.serve(prompt, 1), 4);
    }
    assert_eq!(
        (chunks_read(&engine, 0), chunks_read(&engine, 1)),
        (0, 8),
        "the memory tier had the last two"
    );
    // What was brought up from the store is in the memory tier now.
    assert_eq!(engine.serve(&prompts[0], 0), 4);
    assert_eq!((chunks_read(&engine, 0), chunks_read(&engine, 1)), (4, 8));
}

#[test]
fn a_longer_prompt_loads_the_prefix_that_it_shares_and_stores_only_the_rest() {
    let OverNvme { mut engine, nvme, .. } = OverNvme::new(Setup { num_groups: 2, ..Setup::new(16) });
    let shared = prompt(1, 3);
    let longer: Vec<u64> = shared.iter().copied().chain(prompt(2, 3)).collect();
    let branch: Vec<u64> = shared[..2].iter().copied().chain(prompt(3, 2)).collect();
    engine.serve(&shared, 0);
    assert_eq!(engine.serve(&longer, 1), 3);
    assert_eq!(engine.serve(&branch, 1), 2);
    let stats = engine.manager().stats();
    assert_eq!(stats.primary.chunks_stored, 2 * (3 + 3 + 2));
    assert_eq!(nvme.look().backing.stats().write.chunks, 2 * (3 + 3 + 2));
}
