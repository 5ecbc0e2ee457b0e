//! What the scheduler's path costs in memory, counted by an allocator.
//!
//! Jobs, and the records of a request, are allocated as they come. Everything else is there from the start, or after
//! as many chunks and requests were there at a time as ever are.

mod support;

use std::{
    alloc::{GlobalAlloc, Layout, System},
    cell::Cell,
    hint::black_box,
};

use kvo_core::{OffloadKey, OffloadManager, SlotId, StoreOutcome};
use kvo_policies::{
    AccessKind, Arc, CachePolicy, Eviction, GhostHits, KeyAccess, Lru, RequestRecency, Residents,
};
use support::{begin, finish, key, keys, load, loaded, store, stored, with_policy};

thread_local! {
    static ALLOCATIONS: Cell<usize> = const { Cell::new(0) };
}

struct Counting;

// SAFETY: each method hands its arguments on to the system's allocator as they are.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: the caller's promises are those that the system's allocator asks for.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Allocations that this thread makes in `call`.
fn allocations(call: impl FnOnce()) -> usize {
    let before = ALLOCATIONS.get();
    call();
    ALLOCATIONS.get() - before
}

#[test]
fn the_allocator_counts() {
    assert_eq!(allocations(|| drop(black_box(Box::new(1)))), 1);
    assert_eq!(allocations(|| drop(Vec::<u8>::new())), 0);
}

/// B60.
#[track_caller]
fn check_refusals<P: CachePolicy>(policy: P) {
    let mut manager = with_policy(8, policy);
    let mut writer = begin(&mut manager, 1);
    let resident = keys([1, 2, 3, 4, 5, 6, 7, 8]);
    store(&mut manager, &mut writer, &resident);
    let _pins = load(&mut manager, &mut writer, &resident);
    let mut req = begin(&mut manager, 2);
    let wanted = [1, 11, 12, 13, 14].map(key);
    let mut refuse = || {
        let outcome = manager.prepare_store(&mut req, &wanted);
        assert!(matches!(outcome, Ok(StoreOutcome::Refused(_))));
    };
    refuse();
    assert_eq!(allocations(|| (0..1_000).for_each(|_| refuse())), 0);
}

#[test]
fn a_refused_offer_allocates_nothing() {
    check_refusals(Lru::new(8));
    check_refusals(Arc::new(8, GhostHits::T1));
    check_refusals(Arc::new(8, GhostHits::T2));
}

/// As [`check_refusals`], when there would be room if the offer did not spare it.
#[track_caller]
fn check_spared<P: CachePolicy>(policy: P) {
    let mut manager = with_policy(8, policy);
    let mut writer = begin(&mut manager, 1);
    store(&mut manager, &mut writer, &keys([1, 2, 3, 4, 5, 6, 7, 8]));
    let mut req = begin(&mut manager, 2);
    let wanted = [1, 2, 3, 4, 11, 12, 13, 14, 15].map(key);
    let mut refuse = || {
        let outcome = manager.prepare_store(&mut req, &wanted);
        assert!(matches!(outcome, Ok(StoreOutcome::Refused(_))));
    };
    refuse();
    assert_eq!(allocations(|| (0..1_000).for_each(|_| refuse())), 0);
}

#[test]
fn an_offer_that_is_refused_for_what_it_spares_allocates_nothing() {
    check_spared(Lru::new(8));
    check_spared(Arc::new(8, GhostHits::T1));
    check_spared(Arc::new(8, GhostHits::T2));
}

#[track_caller]
fn check_nothing_to_store<P: CachePolicy>(policy: P) {
    let mut manager = with_policy(4, policy);
    let mut req = begin(&mut manager, 1);
    let all = keys([1, 2, 3, 4]);
    store(&mut manager, &mut req, &all);
    support::events(&mut manager);
    let mut step = || {
        all.iter().chain(&keys([9])).for_each(|key| {
            black_box(manager.lookup(&mut req, key));
        });
        let outcome = manager.prepare_store(&mut req, &all);
        assert!(matches!(outcome, Ok(StoreOutcome::NothingToStore)));
        manager.on_schedule_end();
        let _ = manager.counts();
    };
    step();
    assert_eq!(allocations(|| (0..1_000).for_each(|_| step())), 0);
}

#[test]
fn lookups_and_offers_with_nothing_to_store_allocate_nothing() {
    check_nothing_to_store(Lru::new(4));
    check_nothing_to_store(Arc::new(4, GhostHits::T1));
    check_nothing_to_store(Arc::new(4, GhostHits::T2));
}

/// A tier's table for a policy alone: what is in each slot, and which are held.
struct Table {
    keys: Vec<OffloadKey>,
    held: Vec<bool>,
}

impl Residents for Table {
    fn key(&self, slot: SlotId) -> OffloadKey {
        self.keys[slot.0 as usize]
    }

    fn may_evict(&self, slot: SlotId) -> Eviction {
        if self.held[slot.0 as usize] { Eviction::Held } else { Eviction::Allowed }
    }
}

const CAPACITY: u32 = 1_000;
/// Chunks that one request stores, and then loads.
const CHUNKS: usize = 20;

/// Four requests run at a time, each at another point of its life; some chunks stay pinned for a while.
struct Steady<P> {
    policy: P,
    table: Table,
    running: [(RequestRecency, Vec<KeyAccess>); 4],
    victims: Vec<SlotId>,
    pinned: Vec<SlotId>,
    turn: usize,
    next_key: u64,
}

impl<P: CachePolicy> Steady<P> {
    fn new(policy: P) -> Self {
        let table = Table { keys: vec![key(0); CAPACITY as usize], held: vec![false; CAPACITY as usize] };
        let running = std::array::from_fn(|_| (RequestRecency::default(), Vec::with_capacity(2 * CHUNKS)));
        let (victims, pinned) = (Vec::with_capacity(CHUNKS), Vec::with_capacity(CAPACITY as usize));
        let mut steady = Self { policy, table, running, victims, pinned, turn: 0, next_key: 1 };
        for slot in (0..CAPACITY).map(SlotId) {
            steady.fill(slot, 0, None);
            steady.table.held[slot.0 as usize] = false;
            steady.policy.on_ready(slot);
        }
        steady.running[0].1.clear();
        steady
    }

    /// Half of the keys were there before, and may have a ghost.
    fn fill(&mut self, slot: SlotId, of: usize, end_token: Option<u32>) {
        let Self { policy, table, running, .. } = self;
        let (recency, accesses) = &mut running[of];
        self.next_key += 1;
        let n =
            if self.next_key.is_multiple_of(2) { self.next_key } else { self.next_key.saturating_sub(1_501) };
        let key = key(n);
        table.keys[slot.0 as usize] = key;
        table.held[slot.0 as usize] = true;
        policy.insert(recency, slot, &key, end_token, table);
        accesses.push(KeyAccess { key, slot: Some(slot), end_token, kind: AccessKind::Inserted });
    }

    fn step(&mut self) {
        self.turn += 1;
        let of = self.turn % self.running.len();
        self.victims.clear();
        let count = CHUNKS / 2;
        let missing = [1, 3, 5].map(|back| KeyAccess {
            key: key((self.next_key + back).saturating_sub(1_501)),
            slot: None,
            end_token: Some(16),
            kind: AccessKind::Inserted,
        });
        // Of these the ones that are there are none of the policy's business here.
        let absent = |access: &KeyAccess| !self.table.keys.contains(&access.key);
        if missing.iter().all(absent) {
            self.policy.on_store_miss(&missing, &self.table);
        }
        assert!(!self.policy.evict(CAPACITY as usize + 1, &self.table, &mut self.victims));
        assert!(self.policy.evict(count, &self.table, &mut self.victims));
        for index in 0..count {
            let slot = self.victims[index];
            // Not in order of position, beyond what one segment holds.
            let at = (index * 7 + self.turn) % CHUNKS;
            self.fill(slot, of, Some(16 * u32::try_from(at).unwrap()));
        }
        for index in 0..count {
            let slot = self.victims[index];
            if index % 5 == 0 {
                self.pinned.push(slot);
            } else {
                self.table.held[slot.0 as usize] = false;
            }
            self.policy.on_ready(slot);
        }
        if self.pinned.len() > CAPACITY as usize / 2 {
            for slot in self.pinned.drain(..) {
                self.table.held[slot.0 as usize] = false;
                self.policy.on_unpin(slot);
            }
        }
        if self.turn % 8 < 4 {
            let Self { policy, table, running, .. } = self;
            let (recency, accesses) = &mut running[of];
            for access in accesses.iter_mut() {
                let is_there = access.slot.is_some_and(|slot| table.keys[slot.0 as usize] == access.key);
                access.slot = access.slot.filter(|_| is_there);
            }
            accesses.sort_unstable_by_key(|access| access.end_token);
            policy.on_request_access(recency, accesses, table);
            policy.on_request_finished(recency, accesses, table);
            accesses.clear();
        }
    }
}

#[track_caller]
fn check_steady<P: CachePolicy>(policy: P) {
    let mut steady = Steady::new(policy);
    (0..10_000).for_each(|_| steady.step());
    assert_eq!(allocations(|| (0..4_000).for_each(|_| steady.step())), 0);
}

#[test]
fn a_policy_in_a_steady_state_allocates_nothing() {
    check_steady(Lru::new(CAPACITY));
    check_steady(Arc::new(CAPACITY, GhostHits::T1));
    check_steady(Arc::new(CAPACITY, GhostHits::T2));
}

/// Jobs are handed out as vectors. A manager makes no other ones: not for each chunk, and no more as time goes on.
#[track_caller]
fn check_cycle<P: CachePolicy>(policy: P) {
    let mut manager = with_policy(256, policy);
    let mut id = 0;
    let mut cycle = |chunks: u64| {
        id += 1;
        let wanted: Vec<OffloadKey> = (0..chunks).map(|n| key(1_000 * id + n)).collect();
        let mut req = begin(&mut manager, id);
        allocations(|| {
            let StoreOutcome::Prepared(job) = manager.prepare_store(&mut req, &wanted).unwrap() else {
                panic!("there is room")
            };
            stored(&mut manager, job.token);
            let job = load(&mut manager, &mut req, &wanted);
            loaded(&mut manager, job.token);
            finish(&mut manager, &mut req);
            drop(support::events(&mut manager));
        })
    };
    (0..200).for_each(|_| {
        cycle(64);
    });
    let early = (0..100).map(|_| cycle(64)).max();
    (0..1_000).for_each(|_| {
        cycle(64);
    });
    let late = (0..100).map(|_| cycle(64)).max().unwrap();
    assert!(Some(late) <= early, "{late} allocations for one request, earlier {early:?}");
    assert!(late < 64, "{late} allocations for 64 chunks");
}

#[test]
fn a_request_allocates_its_jobs_and_records_and_nothing_for_each_chunk() {
    check_cycle(Lru::new(256));
    check_cycle(Arc::new(256, GhostHits::T1));
    check_cycle(Arc::new(256, GhostHits::T2));
}
