//! What the tests of this crate share.

#![allow(dead_code, unreachable_pub, unused_imports, reason = "each test program uses its own part")]

pub mod fifo;
pub mod model;
#[path = "../../../kvo-policies/tests/support/mod.rs"]
pub mod policies;
pub mod strict;

pub use fifo::Fifo;
use kvo_core::{
    JobToken, LoadJob, LookupResult, OffloadEvent, OffloadKey, OffloadManager, RequestContext, RequestId,
    StoreJob, StoreOutcome, TransferResult,
};
use kvo_cpu::{CpuManager, CpuOptions, CpuStats};
use kvo_policies::{CachePolicy, Lru};
pub use policies::{all_kinds, key, key_of, keys};

/// A manager with LRU and no threshold.
pub fn lru(num_slots: u32) -> CpuManager<Lru> {
    with_policy(num_slots, Lru::new(num_slots))
}

/// A manager without threshold that records events.
pub fn with_policy<P: CachePolicy>(num_slots: u32, policy: P) -> CpuManager<P> {
    let options = CpuOptions { record_events: true, ..CpuOptions::new(num_slots) };
    CpuManager::new(options, policy).expect("the options are valid")
}

/// A request that has begun at `manager`.
pub fn begin(manager: &mut impl OffloadManager, id: u64) -> RequestContext {
    let mut req = RequestContext::new(RequestId(id));
    manager.new_request(&mut req).expect("the request is new");
    req
}

/// The job of an offer that must be taken.
#[track_caller]
pub fn offer(manager: &mut impl OffloadManager, req: &mut RequestContext, keys: &[OffloadKey]) -> StoreJob {
    match manager.prepare_store(req, keys).expect("the request runs") {
        StoreOutcome::Prepared(job) => job,
        other => panic!("{keys:?} must be taken, got {other:?}"),
    }
}

/// Completes a store.
#[track_caller]
pub fn stored(manager: &mut impl OffloadManager, token: JobToken) {
    manager.complete_store(token, TransferResult::Done).expect("the job is open");
}

/// Stores keys that must be taken; gives those that were evicted for them.
#[track_caller]
pub fn store(
    manager: &mut impl OffloadManager,
    req: &mut RequestContext,
    keys: &[OffloadKey],
) -> Vec<OffloadKey> {
    let job = offer(manager, req, keys);
    stored(manager, job.token);
    job.evicted
}

/// Pins keys that must be ready.
#[track_caller]
pub fn load(manager: &mut impl OffloadManager, req: &mut RequestContext, keys: &[OffloadKey]) -> LoadJob {
    manager.prepare_load(req, keys).expect("the keys are ready")
}

/// Ends a load.
#[track_caller]
pub fn loaded(manager: &mut impl OffloadManager, token: JobToken) {
    manager.complete_load(token).expect("the job is open");
}

/// Ends a request.
#[track_caller]
pub fn finish(manager: &mut impl OffloadManager, req: &mut RequestContext) {
    manager.on_request_finished(req).expect("the request runs");
}

/// The events since the last call.
pub fn events(manager: &mut impl OffloadManager) -> Vec<OffloadEvent> {
    let mut events = Vec::new();
    manager.take_events(&mut events);
    events
}

/// All that can be seen of a manager without changing it: its counts and counters, and what `keys` are.
pub fn seen<P: CachePolicy>(manager: &CpuManager<P>, keys: &[OffloadKey]) -> (CpuStats, Vec<LookupResult>) {
    manager.assert_consistent();
    (manager.stats(), keys.iter().map(|key| manager.peek(key)).collect())
}

/// Offers new keys one at a time until every chunk that was there is gone; gives the order in which they went.
pub fn eviction_order<P: CachePolicy>(manager: &mut CpuManager<P>) -> Vec<OffloadKey> {
    let counts = manager.counts();
    assert_eq!((counts.pending, counts.pinned), (0, 0), "nothing may be in flight");
    let mut req = begin(manager, 1_000_000);
    let mut order = Vec::new();
    let mut open = Vec::new();
    for n in 0..u64::from(counts.capacity) {
        let job = offer(manager, &mut req, &[key_of(1_000_000 + n, 7)]);
        order.extend(job.evicted);
        // Left open: the new ones are pending, and no victims.
        open.push(job.token);
    }
    drop(open);
    order
}
