//! What evictions, refusals and commits look at, up to a million chunks, whatever is pinned.
//!
//! The tier of these tests counts every question of a policy: whether a chunk may go, and what its key is. Holds are
//! not announced, so a held chunk is looked at by the first eviction that comes by it, and once more by the first after
//! it was moved; these looks are counted apart. All others are in proportion to the chunks that the call names or asks
//! for, call by call.

mod support;

use std::cell::Cell;

use kvo_core::{OffloadKey, SlotId};
use kvo_policies::{
    AccessKind, CachePolicy, Eviction, KeyAccess, PolicyKind, RequestRecency, Residents, S3FifoOptions,
};
use support::{all_kinds, key, seeded::Rng};

/// Looks for each chunk that a call names or asks for, and beyond: one whether it may go, one for its ghost.
const PER_CHUNK: u64 = 2;
const PER_CALL: u64 = 2;

struct Tier {
    numbers: Vec<u64>,
    held: Vec<bool>,
    /// Looks at chunks that are not held, and questions for keys.
    looks: Cell<u64>,
    looks_at_held: Cell<u64>,
}

impl Residents for Tier {
    fn key(&self, slot: SlotId) -> OffloadKey {
        self.looks.set(self.looks.get() + 1);
        key(self.numbers[slot.0 as usize])
    }

    fn may_evict(&self, slot: SlotId) -> Eviction {
        let is_held = self.held[slot.0 as usize];
        let looks = if is_held { &self.looks_at_held } else { &self.looks };
        looks.set(looks.get() + 1);
        if is_held { Eviction::Held } else { Eviction::Allowed }
    }
}

/// A policy, its tier, and what has been asked of it.
struct World {
    policy: Box<dyn CachePolicy>,
    tier: Tier,
    rng: Rng,
    next_number: u64,
    /// Slots that are pinned; pending ones are not among them.
    pinned: Vec<SlotId>,
    /// Chunks named or asked for by all calls since the last [`reset`](Self::reset).
    asked: u64,
    /// Holds that have begun since then.
    holds: u64,
    /// Of a single call, beyond [`PER_CHUNK`] for each of its chunks.
    most_beyond: u64,
}

impl World {
    /// Chains of 256 chunks, every third met again.
    fn new(kind: PolicyKind, capacity: u32) -> Self {
        let slots = capacity as usize;
        let tier = Tier {
            numbers: vec![0; slots],
            held: vec![false; slots],
            looks: Cell::new(0),
            looks_at_held: Cell::new(0),
        };
        let policy = kind.build(capacity);
        let (rng, pinned) = (Rng::new(u64::from(capacity)), Vec::new());
        let mut world =
            Self { policy, tier, rng, next_number: 0, pinned, asked: 0, holds: 0, most_beyond: 0 };
        let all: Vec<SlotId> = (0..capacity).map(SlotId).collect();
        for (number, chain) in all.chunks(256).enumerate() {
            world.store(chain);
            if number % 3 == 0 {
                world.meet(chain);
            }
        }
        world
    }

    fn capacity(&self) -> usize {
        self.tier.numbers.len()
    }

    fn num_evictable(&self) -> usize {
        self.capacity() - self.pinned.len()
    }

    fn reset(&mut self) {
        self.tier.looks.set(0);
        self.tier.looks_at_held.set(0);
        (self.asked, self.most_beyond) = (0, 0);
        self.holds = self.pinned.len() as u64;
    }

    /// Makes a call that names or asks for so many chunks.
    fn call<T>(&mut self, chunks: usize, call: impl FnOnce(&mut dyn CachePolicy, &Tier) -> T) -> T {
        let before = self.tier.looks.get();
        let result = call(&mut *self.policy, &self.tier);
        let looks = self.tier.looks.get() - before;
        self.asked += chunks as u64;
        self.most_beyond = self.most_beyond.max(looks.saturating_sub(PER_CHUNK * chunks as u64));
        result
    }

    fn evict(&mut self, count: usize) -> Option<Vec<SlotId>> {
        let mut victims = Vec::new();
        self.call(count, |policy, tier| policy.evict(count, tier, &mut victims)).then_some(victims)
    }

    fn accesses(&self, slots: &[SlotId], kind: AccessKind) -> Vec<KeyAccess> {
        let access = |(slot, end_token): (&SlotId, u32)| KeyAccess {
            key: key(self.tier.numbers[slot.0 as usize]),
            slot: Some(*slot),
            end_token: Some(16 * end_token),
            kind,
        };
        slots.iter().zip(1..).map(access).collect()
    }

    /// New chunks come into `slots`, head to tail; the request goes on.
    fn insert(&mut self, req: &mut RequestRecency, slots: &[SlotId], from: u32) {
        for (slot, at) in slots.iter().zip(from..) {
            self.next_number += 1;
            let number = self.next_number;
            self.tier.numbers[slot.0 as usize] = number;
            self.begin_hold(*slot);
            self.call(1, |policy, tier| policy.insert(req, *slot, &key(number), Some(16 * (at + 1)), tier));
        }
    }

    fn begin_hold(&mut self, slot: SlotId) {
        self.tier.held[slot.0 as usize] = true;
        self.holds += 1;
    }

    fn ready(&mut self, slots: &[SlotId]) {
        for slot in slots {
            self.tier.held[slot.0 as usize] = false;
            self.call(1, |policy, _| policy.on_ready(*slot));
        }
    }

    fn finish(&mut self, req: &mut RequestRecency, accesses: &[KeyAccess]) {
        self.call(accesses.len(), |policy, tier| policy.on_request_finished(req, accesses, tier));
    }

    /// A request stores a chain and finishes.
    fn store(&mut self, slots: &[SlotId]) {
        let mut req = RequestRecency::default();
        self.insert(&mut req, slots, 0);
        self.ready(slots);
        let accesses = self.accesses(slots, AccessKind::Inserted);
        self.finish(&mut req, &accesses);
    }

    /// A request meets resident chunks and finishes.
    fn meet(&mut self, slots: &[SlotId]) {
        let mut req = RequestRecency::default();
        let accesses = self.accesses(slots, AccessKind::Reused);
        self.call(slots.len(), |policy, tier| policy.on_request_access(&mut req, &accesses, tier));
        self.finish(&mut req, &accesses);
    }

    fn some_slot(&mut self) -> SlotId {
        SlotId(u32::try_from(self.rng.index(self.capacity())).unwrap())
    }

    fn pin(&mut self, slot: SlotId) {
        self.begin_hold(slot);
        self.pinned.push(slot);
    }

    /// Pins chunks at random until so many of a hundred are.
    fn pin_percent(&mut self, percent: usize) {
        while self.pinned.len() < self.capacity() / 100 * percent {
            let slot = self.some_slot();
            if !self.tier.held[slot.0 as usize] {
                self.pin(slot);
            }
        }
    }

    fn unpin_some(&mut self) {
        if !self.pinned.is_empty() {
            let at = self.rng.index(self.pinned.len());
            let slot = self.pinned.swap_remove(at);
            self.tier.held[slot.0 as usize] = false;
            self.call(1, |policy, _| policy.on_unpin(slot));
        }
    }

    /// A request stores a chain in place of others, another meets some chunks, and some pins end and others begin.
    fn round(&mut self, percent: usize) {
        let count = self.rng.pick(&[1, 2, 16, 32, 256]).min(self.num_evictable() / 4);
        let victims = self.evict(count).expect("there are enough");
        self.store(&victims);
        let mut met: Vec<SlotId> = (0..8).map(|_| self.some_slot()).collect();
        met.sort_unstable();
        met.dedup();
        self.meet(&met);
        (0..4).for_each(|_| self.unpin_some());
        self.pin_percent(percent);
    }

    /// Checks all calls since the last [`reset`](Self::reset).
    #[track_caller]
    fn check(&self, kind: PolicyKind, what: &str) {
        let (looks, asked, beyond) = (self.tier.looks.get(), self.asked, self.most_beyond);
        let (per_chunk, beyond_max) = match kind {
            // A turn of the main list looks at what was met since the last one, in one call.
            PolicyKind::S3Fifo(S3FifoOptions { leaf_only: false, .. }) => {
                (2 * PER_CHUNK, self.capacity() as u64)
            }
            // Where all leaves are pinned, an eviction may pass over all of main, and the next one again.
            PolicyKind::S3Fifo(_) if !self.pinned.is_empty() => (u64::MAX, self.capacity() as u64),
            PolicyKind::S3Fifo(_) => (2 * PER_CHUNK, self.capacity() as u64),
            // It compares four queues, and looks ahead in each, within a segment of 14.
            PolicyKind::Ylru => (PER_CHUNK, PER_CALL + 4 * 14),
            _ => (PER_CHUNK, PER_CALL),
        };
        let looks_max = per_chunk.saturating_mul(asked);
        assert!(looks <= looks_max, "{kind}, {what}: {looks} looks for {asked} chunks, {looks_max} at most");
        assert!(
            beyond <= beyond_max,
            "{kind}, {what}: {beyond} looks beyond a call's share, {beyond_max} at most"
        );
        let (at_held, holds) = (self.tier.looks_at_held.get(), self.holds);
        assert!(at_held <= holds + asked, "{kind}, {what}: {at_held} looks at {holds} holds");
    }
}

#[track_caller]
fn check_rounds(kind: PolicyKind, capacity: u32) {
    let mut world = World::new(kind, capacity);
    world.check(kind, "construction");
    for percent in [0, 50, 99] {
        world.pin_percent(percent);
        world.reset();
        (0..600).for_each(|_| world.round(percent));
        world.check(kind, &format!("{percent} % pinned"));
        // One chunk more than there is. The second time, no hold is news.
        for looks_at_held_max in [u64::MAX, 0] {
            world.reset();
            assert_eq!(world.evict(world.num_evictable() + 1), None);
            world.check(kind, &format!("refused with {percent} % pinned"));
            assert!(world.tier.looks_at_held.get() <= looks_at_held_max, "{kind}: a hold is looked at again");
        }
    }
}

/// B59, for every call.
#[test]
fn looks_are_in_proportion_to_what_is_asked_for_among_a_million_chunks() {
    for kind in all_kinds() {
        check_rounds(kind, 1_000_000);
    }
}

/// B59, for every call.
#[test]
fn looks_are_in_proportion_to_what_is_asked_for_among_ten_thousand_chunks() {
    for kind in all_kinds() {
        check_rounds(kind, 10_000);
    }
}

/// A step stores 100,000 chunks of 400 requests, all of them under way at a time, 32 a call.
fn step_of_many(world: &mut World) {
    let mut running: Vec<(RequestRecency, Vec<SlotId>)> =
        (0..400).map(|_| (RequestRecency::default(), Vec::new())).collect();
    for _ in 0..8 {
        for (req, slots) in &mut running {
            let victims = world.evict(32).expect("there are enough");
            world.insert(req, &victims, u32::try_from(slots.len()).unwrap());
            slots.extend(victims);
        }
    }
    for (req, slots) in &mut running {
        world.ready(slots);
        let accesses = world.accesses(slots, AccessKind::Inserted);
        world.finish(req, &accesses);
        let _ = world.evict(1).map(|victims| world.store(&victims));
    }
}

/// A step stores 100,000 chunks of one request; a small one comes between.
fn step_of_one(world: &mut World) {
    let (mut req, mut slots) = (RequestRecency::default(), Vec::new());
    while slots.len() < 100_000 {
        let victims = world.evict(1_000).expect("there are enough");
        world.insert(&mut req, &victims, u32::try_from(slots.len()).unwrap());
        slots.extend(victims);
        let _ = world.evict(1).map(|victims| world.store(&victims));
    }
    world.ready(&slots);
    let accesses = world.accesses(&slots, AccessKind::Inserted);
    world.finish(&mut req, &accesses);
    let _ = world.evict(1).map(|victims| world.store(&victims));
}

/// A step reads 100,000 chunks, pinned meanwhile, and has evictions while they are and when they no longer are.
fn step_of_loads(world: &mut World) {
    let slots: Vec<SlotId> = (0..100_000).map(SlotId).collect();
    for slot in &slots {
        world.pin(*slot);
    }
    for chain in slots.chunks(256) {
        let mut req = RequestRecency::default();
        let accesses = world.accesses(chain, AccessKind::Reused);
        world.call(chain.len(), |policy, tier| policy.on_request_access(&mut req, &accesses, tier));
        let _ = world.evict(1).map(|victims| world.store(&victims));
        world.finish(&mut req, &accesses);
    }
    while !world.pinned.is_empty() {
        world.unpin_some();
    }
    for count in [1, 1, 32] {
        let _ = world.evict(count).map(|victims| world.store(&victims));
    }
}

/// B59, for every call. No call of a large step looks at more than its own share, small ones between and behind
/// included.
#[test]
fn a_step_of_100_000_chunks_leaves_no_call_with_more_than_its_share() {
    for kind in all_kinds() {
        let mut world = World::new(kind, 200_000);
        for (step, what) in [
            (step_of_many as fn(&mut World), "400 requests"),
            (step_of_one, "one request"),
            (step_of_loads, "loads"),
        ] {
            world.reset();
            step(&mut world);
            assert!(world.asked >= 100_000);
            world.check(kind, what);
        }
    }
}
