//! What the tests of this crate share.

#![allow(dead_code, unreachable_pub, unused_imports, reason = "each test program uses its own part")]

pub mod audit;
#[path = "../../../kvo-cpu/tests/support/mod.rs"]
pub mod cpu;
pub mod fake_tier;
pub mod naive;
pub mod ops;

pub use cpu::{
    begin, events, finish, key, key_of, keys, load, loaded, offer,
    policies::{self, seeded},
    store, stored, with_policy,
};
use kvo_core::{
    Clock, LookupResult, ManualClock, OffloadKey, OffloadManager, RequestContext, SecondaryTier,
    TierCompletion, TransferResult,
};
use kvo_policies::{CachePolicy, Lru};
use kvo_tiering::{PressureOptions, TieringManager, TieringOptions};

use fake_tier::{Spec, World};

/// Bytes of a chunk in these tests, where it matters.
pub const CHUNK_BYTES: u64 = 4096;

/// A manager with LRU over fake tiers, without bounds on what they take, and the tests' side of the tiers.
pub fn manager(num_slots: u32, specs: &[Spec]) -> (TieringManager<Lru>, World) {
    manager_with(num_slots, specs, unbounded())
}

/// Options without bounds on tiers and waiting requests: a share of three slots is nothing.
pub fn unbounded() -> TieringOptions {
    TieringOptions::new(CHUNK_BYTES).with_pressure(PressureOptions::NONE)
}

/// As [`manager`], with options.
pub fn manager_with(num_slots: u32, specs: &[Spec], options: TieringOptions) -> (TieringManager<Lru>, World) {
    let (world, tiers) = World::new(specs);
    (over(num_slots, tiers, options, ManualClock::default()), world)
}

/// A manager with LRU over any tiers.
pub fn over(
    num_slots: u32,
    tiers: Vec<Box<dyn SecondaryTier>>,
    options: TieringOptions,
    clock: impl Clock + 'static,
) -> TieringManager<Lru> {
    TieringManager::new(with_policy(num_slots, Lru::new(num_slots)), tiers, options, Box::new(clock))
        .expect("the options are valid")
}

/// What lookups of `keys` answer, one after the other.
pub fn lookups(
    manager: &mut impl OffloadManager,
    req: &mut RequestContext,
    keys: &[OffloadKey],
) -> Vec<LookupResult> {
    keys.iter().map(|key| manager.lookup(req, key)).collect()
}

/// Checks that the counts add up, the primary's links hold, and nothing is pending, pinned or remembered.
#[track_caller]
pub fn check_quiet<P: CachePolicy>(manager: &TieringManager<P>) {
    let counts = check_sound(manager);
    assert_eq!((counts.pending, counts.pinned), (0, 0), "nothing may be in flight: {counts:?}");
    let stats = manager.stats();
    assert_eq!(stats.open_requests, 0, "no request may be remembered");
    assert!(stats.tiers.iter().all(|tier| tier.active_jobs == 0), "no job may be open: {stats:?}");
    assert!(!manager.has_pending_work(), "nothing may be left to collect");
}

/// Checks that the counts add up and the primary's links hold.
#[track_caller]
pub fn check_sound<P: CachePolicy>(manager: &TieringManager<P>) -> kvo_core::ChunkCounts {
    manager.primary().assert_consistent();
    let counts = manager.counts();
    assert!(counts.add_up(), "{counts:?}");
    counts
}

/// Ends the step, then every open job of every tier, well; then a step that sees it.
pub fn serve(manager: &mut impl OffloadManager, world: &World) {
    manager.on_schedule_end();
    for (tier, job) in world.open_jobs() {
        world.report(tier, TierCompletion::done(job.id));
    }
    manager.on_schedule_end();
}

/// Fails a store at the device.
#[track_caller]
pub fn store_failed(manager: &mut impl OffloadManager, token: kvo_core::JobToken) {
    manager.complete_store(token, TransferResult::Failed).expect("the job is open");
}
