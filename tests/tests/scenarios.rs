//! What has gone wrong in systems of this kind, over every tier at once. `docs/RELIABILITY.md` has the whole list, and
//! where the others are shown.

mod support;

use std::{
    path::Path,
    sync::{Arc, mpsc::Sender},
    time::Instant,
};

use kvo_core::{HostMemory, OffloadKey, OffloadManager, RequestId, SecondaryTier, TierDirection, TierLookup};
use kvo_nvme::{NvmeOptions, NvmeStore};
use kvo_policies::{GhostHits, Lru, PolicyKind, S3FifoOptions};
use support::{
    Engine, LONG, Offered, OverNvme, Setup, Watched, check_resident, chunk_content, key, keys, memory_tier,
    prompt, push_down,
};

/// B05: what every request finds in the primary is met in the store as well. Else it would be the oldest there, go first,
/// and leave tails that nobody can ever load.
#[test]
fn the_head_that_all_requests_share_outlives_their_tails_in_the_store() {
    for kind in [PolicyKind::Lru, PolicyKind::Arc(GhostHits::T1), PolicyKind::Aslru, PolicyKind::Ylru] {
        let setup = Setup { num_blocks: 64, ..Setup::new(16) };
        let dir = tempfile::tempdir().unwrap();
        let region = setup.region();
        let (nvme, memory) = (over_policy(setup, dir.path(), 4, kind, &region), memory_tier(4, &region));
        let mut engine = Engine::new(setup, region, PolicyKind::Lru.build(16), vec![]);
        engine.add_tier(nvme.clone());
        engine.add_tier(memory.clone());
        for n in 1..=9 {
            engine.serve(&[0, n], 0);
        }
        let stats = nvme.look().backing.stats();
        assert_eq!((stats.write.chunks, stats.chunks_evicted), (10, 6), "{kind}: each was written once");
        let found = |tier: &mut dyn SecondaryTier| {
            (0..10).filter(|n| tier.lookup(RequestId(0), &key(*n, 0)) == TierLookup::Hit).collect::<Vec<_>>()
        };
        assert_eq!(found(&mut nvme.look().backing), [0, 7, 8, 9], "{kind}");
        assert_eq!(found(&mut memory.look().backing), [0, 7, 8, 9]);
        engine.reset();
        engine.manager_mut().on_reset_flushed();
        assert_eq!(engine.serve(&[0, 9], 0), 2, "{kind}: after a restart of the primary");
    }
}

/// A store of so many chunks under a policy.
fn over_policy(
    setup: Setup,
    dir: &Path,
    capacity_chunks: u32,
    policy: PolicyKind,
    region: &Arc<dyn HostMemory>,
) -> Watched<NvmeStore> {
    let options = NvmeOptions::new(dir, capacity_chunks, setup.chunk_bytes() as u64);
    let options = NvmeOptions { policy, record_events: true, ..options };
    Watched::new(NvmeStore::open(options, Arc::clone(region)).unwrap())
}

/// B20: what is still on the GPU, or in the tier below, can go from the primary like anything else.
#[test]
fn a_small_primary_passes_everything_on_to_the_store() {
    let OverNvme { mut engine, nvme, .. } = OverNvme::new(Setup { num_blocks: 256, ..Setup::new(4) });
    // Requests that hold their blocks until all are served.
    let mut requests = Vec::new();
    for n in 0..64 {
        let mut req = engine.begin(&prompt(n, 1));
        engine.compute(&mut req, 0..1);
        assert!(matches!(engine.offer(&mut req, 0..1), Offered::Running(_)), "request {n}");
        engine.complete_all();
        engine.settle();
        requests.push(req);
    }
    assert_eq!(nvme.look().backing.counts().evictable, 64);
    assert_eq!(engine.manager().counts().evictable, 4);
    for req in &mut requests {
        engine.finish(req);
    }
    engine.settle();
    engine.check_quiet();
    for n in 0..64 {
        assert_eq!(engine.serve(&prompt(n, 1), 0), 1);
    }
}

/// B26: whoever needs room meanwhile gets other slots, or none.
#[test]
fn slots_of_a_promotion_whose_request_is_gone_are_its_own_until_it_ends() {
    let OverNvme { mut engine, nvme, .. } = OverNvme::new(Setup { num_blocks: 128, ..Setup::new(8) });
    let [wanted, small, large] = [(1, 5), (2, 3), (3, 4)].map(|(n, len)| prompt(n, len));
    engine.serve(&wanted, 0);
    push_down(&mut engine, &keys(&wanted, 0), &[&prompt(8, 8), &prompt(9, 8)]);
    nvme.look().script.hold_jobs = true;
    let mut aborted = engine.begin(&wanted);
    assert_eq!(engine.look(&mut aborted), (0, true));
    engine.end_step();
    assert_eq!(nvme.jobs(aborted.id(), TierDirection::Read), [keys(&wanted, 0)]);
    engine.finish(&mut aborted);
    engine.end_step();
    assert_eq!(engine.manager().counts().pending, 5, "the tier may write there at any time");

    let mut other = engine.begin(&large);
    engine.compute(&mut other, 0..4);
    let refused = engine.offer(&mut other, 0..4);
    assert!(matches!(refused, Offered::Refused(refusal) if refusal.evictable == 3), "{refused:?}");
    engine.finish(&mut other);
    let mut fits = engine.begin(&small);
    engine.compute(&mut fits, 0..3);
    assert!(matches!(engine.offer(&mut fits, 0..3), Offered::Running(_)));
    assert!(engine.complete_all()[0].arrived);

    // The old reads go on, beside the load of what was stored meanwhile.
    nvme.open();
    engine.load(&mut fits, 3, 0).unwrap();
    engine.drain_tiers();
    assert!(engine.complete_all()[0].arrived, "not a byte of it has changed");
    engine.finish(&mut fits);
    engine.settle();
    engine.check_quiet();
    check_resident(&engine, &keys(&wanted, 0), true);
    assert_eq!(nvme.finishes(aborted.id()), 1);
    for (chunks, len) in [(&wanted, 5), (&small, 3)] {
        assert_eq!(engine.serve(chunks, 0), len);
    }
}

/// B64: whatever policy is accepted, both tiers live on it, however much comes.
#[test]
fn every_policy_serves_many_times_what_it_has_room_for() {
    let leaf_only = S3FifoOptions { small_pct: 30, threshold: 1, leaf_only: true };
    for kind in [
        PolicyKind::Lru,
        PolicyKind::Arc(GhostHits::T1),
        PolicyKind::Arc(GhostHits::T2),
        PolicyKind::Arc(GhostHits::Canonical),
        PolicyKind::Slru { protected_pct: 20 },
        PolicyKind::Aslru,
        PolicyKind::Ylru,
        PolicyKind::S3Fifo(leaf_only),
        PolicyKind::Fifo,
    ] {
        let setup = Setup { num_blocks: 32, ..Setup::new(6) };
        let dir = tempfile::tempdir().unwrap();
        let region = setup.region();
        let nvme = over_policy(setup, dir.path(), 9, kind, &region);
        let mut engine = Engine::new(setup, region, kind.build(6), vec![]);
        engine.add_tier(nvme.clone());
        for n in 0..40 {
            engine.serve(&prompt(n * n % 13, 3), 0);
        }
        let stats = nvme.look().backing.stats();
        assert!(stats.counts.add_up() && stats.chunks_evicted > 0, "{kind}: {stats:?}");
        assert_eq!((stats.counts.evictable, stats.chunks_refused), (9, 0), "{kind}");
        assert_eq!(engine.manager().counts().evictable, 6, "{kind}");
        assert_eq!(engine.manager().stats().primary.offers_refused, 0, "{kind}");
    }
}

/// Who goes first.
#[derive(Clone, Copy, Debug)]
enum First {
    Manager,
    Device,
    Memory,
    /// The device is told to end, twice, and then all go.
    ShutDown,
}

/// B65: with copies open both ways on both sides, whoever goes first, the memory stays until nothing touches it, and
/// what was on its way to the disk is there or is not, and never wrong.
#[test]
fn the_memory_outlives_every_copy_whoever_goes_first() {
    for first in [First::Manager, First::Device, First::Memory, First::ShutDown] {
        for _ in 0..3 {
            check_end(first);
        }
    }
}

#[track_caller]
fn check_end(first: First) {
    let setup = Setup::new(8);
    let dir = tempfile::tempdir().unwrap();
    let region = setup.region();
    let memory = Arc::downgrade(&region);
    let nvme = setup.nvme(dir.path(), 64, &region);
    let mut engine = Engine::new(setup, region, Box::new(Lru::new(8)), vec![]);
    engine.add_tier(nvme.clone());
    let [below, resident, cascading, storing] = [1, 2, 3, 4].map(|n| prompt(n, 2));
    engine.serve(&below, 0);
    push_down(&mut engine, &keys(&below, 0), &[&prompt(8, 8), &prompt(9, 8)]);
    engine.serve(&resident, 0);
    let mut cascades = engine.begin(&cascading);
    engine.compute(&mut cascades, 0..2);
    assert!(matches!(engine.offer(&mut cascades, 0..2), Offered::Running(_)));
    engine.complete_all();
    let mut promotes = engine.begin(&below);
    assert_eq!(engine.look(&mut promotes), (0, true));
    engine.end_step();
    assert_eq!(nvme.jobs(promotes.id(), TierDirection::Read).len(), 1);
    let gate = engine.hold_compute();
    let mut loads = engine.begin(&resident);
    engine.load(&mut loads, 2, 0).unwrap();
    let mut stores = engine.begin(&storing);
    engine.compute(&mut stores, 0..2);
    assert!(matches!(engine.offer(&mut stores, 0..2), Offered::Running(_)));

    end(first, engine, nvme, gate);
    let started = Instant::now();
    while memory.strong_count() > 0 {
        assert!(started.elapsed() < LONG, "{first:?}: somebody still has the memory");
        std::thread::yield_now();
    }
    let options = NvmeOptions::new(dir.path(), 64, setup.chunk_bytes() as u64);
    let mut store = NvmeStore::open_without_memory(options).unwrap();
    let mut is_there = |key: &OffloadKey| {
        let mut bytes = vec![0; store.chunk_bytes()];
        let found = store.read_chunk(key, &mut bytes).unwrap();
        assert!(!found || bytes == chunk_content(key, bytes.len()), "{first:?}: {key:?}");
        found
    };
    for chunks in [&below, &resident, &cascading] {
        assert!(keys(chunks, 0).iter().all(&mut is_there), "{first:?}: {chunks:?}");
    }
    assert!(!keys(&storing, 0).iter().any(is_there), "{first:?}: nobody has stored these");
}

/// Lets all of it go while it is at work.
fn end(first: First, mut engine: Engine, nvme: Watched<NvmeStore>, gate: Sender<()>) {
    match first {
        First::Manager => {
            drop(gate);
            drop(engine);
            drop(nvme);
        }
        First::Device => {
            drop(gate);
            drop(engine.device);
        }
        First::Memory => {
            drop(engine.region);
            drop(gate);
        }
        First::ShutDown => {
            for ended in [2, 0] {
                engine.device.shut_down();
                let completions = engine.complete_all();
                assert_eq!(completions.len(), ended, "each copy ends once");
                assert!(completions.iter().all(|completion| !completion.arrived));
            }
            drop(gate);
        }
    }
}
