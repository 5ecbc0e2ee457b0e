//! A policy alone, in a steady state.

use hashbrown::HashSet;
use kvo_core::{OffloadKey, SlotId};
use kvo_policies::{AccessKind, CachePolicy, Eviction, KeyAccess, PolicyKind, RequestRecency, Residents};

use crate::{
    allocations,
    support::{all_kinds, key},
};

/// Chunks that one request stores, or meets again, in a step.
const CHUNKS: usize = 20;

/// What is in each slot, and which are held.
struct Table {
    keys: Vec<OffloadKey>,
    held: Vec<bool>,
    resident: HashSet<OffloadKey>,
}

impl Residents for Table {
    fn key(&self, slot: SlotId) -> OffloadKey {
        self.keys[slot.0 as usize]
    }

    fn may_evict(&self, slot: SlotId) -> Eviction {
        if self.held[slot.0 as usize] { Eviction::Held } else { Eviction::Allowed }
    }
}

/// Four requests run at a time, each at another point of its life; some chunks stay pinned for a while.
struct Steady {
    capacity: usize,
    policy: Box<dyn CachePolicy>,
    table: Table,
    running: [(RequestRecency, Vec<KeyAccess>); 4],
    victims: Vec<SlotId>,
    missing: Vec<KeyAccess>,
    pinned: Vec<SlotId>,
    turn: usize,
    next_key: u64,
}

impl Steady {
    fn new(kind: PolicyKind, capacity: u32) -> Self {
        let slots = capacity as usize;
        let table = Table {
            keys: vec![key(0); slots],
            held: vec![false; slots],
            // Never more than half full, so that it has no need to grow.
            resident: HashSet::with_capacity(4 * slots),
        };
        let mut steady = Self {
            capacity: slots,
            policy: kind.build(capacity),
            table,
            running: std::array::from_fn(|_| (RequestRecency::default(), Vec::with_capacity(4 * CHUNKS))),
            victims: Vec::with_capacity(CHUNKS),
            missing: Vec::with_capacity(CHUNKS),
            pinned: Vec::with_capacity(slots),
            turn: 0,
            next_key: 1,
        };
        for slot in (0..capacity).map(SlotId) {
            let access = KeyAccess { end_token: None, ..steady.next_missing(0) };
            steady.fill(slot, 0, access);
            steady.table.held[slot.0 as usize] = false;
            steady.policy.on_ready(slot);
        }
        steady.running[0].1.clear();
        steady
    }

    /// Every other key was there before, a tier and a half ago, and may have a ghost.
    fn next_missing(&mut self, at: usize) -> KeyAccess {
        self.next_key += 1;
        let before = self.next_key.saturating_sub((3 * self.capacity as u64 / 2) | 1);
        let is_absent = before > 0 && !self.table.resident.contains(&key(before));
        let n = if self.next_key % 2 == 1 && is_absent { before } else { self.next_key };
        let end_token = Some(16 * u32::try_from(at).unwrap());
        KeyAccess { key: key(n), slot: None, end_token, kind: AccessKind::Inserted }
    }

    fn fill(&mut self, slot: SlotId, of: usize, missing: KeyAccess) {
        let Self { policy, table, running, .. } = self;
        let (recency, accesses) = &mut running[of];
        table.keys[slot.0 as usize] = missing.key;
        table.held[slot.0 as usize] = true;
        table.resident.insert(missing.key);
        policy.insert(recency, slot, &missing.key, missing.end_token, table);
        accesses.push(KeyAccess { slot: Some(slot), ..missing });
    }

    /// One request stores some chunks, and perhaps finishes.
    fn step(&mut self) {
        self.turn += 1;
        let of = self.turn % self.running.len();
        self.store(of);
        if self.pinned.len() > self.capacity / 2 {
            for slot in self.pinned.drain(..) {
                self.table.held[slot.0 as usize] = false;
                self.policy.on_unpin(slot);
            }
        }
        self.meet(of);
        if self.turn % 8 < 4 {
            self.finish(of);
        }
    }

    fn store(&mut self, of: usize) {
        let count = CHUNKS / 2;
        self.missing.clear();
        for index in 0..count {
            // Not in order of position, beyond what one segment holds.
            let missing = self.next_missing((index * 7 + self.turn) % CHUNKS);
            if !self.missing.iter().any(|other| other.key == missing.key) {
                self.missing.push(missing);
            }
        }
        self.policy.on_store_miss(&self.missing, &self.table);
        self.victims.clear();
        if self.turn.is_multiple_of(self.capacity / 1_000) {
            assert!(!self.policy.evict(self.capacity + 1, &self.table, &mut self.victims));
        }
        let count = self.missing.len();
        assert!(self.policy.evict(count, &self.table, &mut self.victims));
        for index in 0..count {
            let (slot, missing) = (self.victims[index], self.missing[index]);
            self.table.resident.remove(&self.table.keys[slot.0 as usize]);
            self.fill(slot, of, missing);
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
    }

    /// The request meets chunks of others.
    fn meet(&mut self, of: usize) {
        let Self { policy, table, running, turn, capacity, .. } = self;
        let (recency, accesses) = &mut running[of];
        let known = accesses.len();
        for at in 0..3 {
            let slot = SlotId(u32::try_from((*turn * 131 + at * 17) % *capacity).unwrap());
            let met = KeyAccess {
                key: table.keys[slot.0 as usize],
                slot: Some(slot),
                end_token: Some(16 * u32::try_from(CHUNKS + at).unwrap()),
                kind: AccessKind::Reused,
            };
            if !accesses.iter().any(|access| access.key == met.key) {
                accesses.push(met);
            }
        }
        policy.on_request_access(recency, &accesses[known..], table);
    }

    fn finish(&mut self, of: usize) {
        let Self { policy, table, running, .. } = self;
        let (recency, accesses) = &mut running[of];
        for access in accesses.iter_mut() {
            let is_there = access.slot.is_some_and(|slot| table.keys[slot.0 as usize] == access.key);
            access.slot = access.slot.filter(|_| is_there);
        }
        accesses.sort_unstable_by_key(|access| access.end_token);
        policy.on_request_finished(recency, accesses, table);
        accesses.clear();
    }
}

fn turn_over(steady: &mut Steady, times: usize) -> usize {
    let steps = times * steady.capacity / (CHUNKS / 2);
    allocations(|| (0..steps).for_each(|_| steady.step()))
}

/// Three turnovers bring tables near the size that they are to have; what doubles after that does so ever more seldom.
#[test]
fn a_policy_comes_to_allocate_nothing_at_all() {
    for kind in all_kinds() {
        let mut steady = Steady::new(kind, 1_000);
        turn_over(&mut steady, 53);
        assert_eq!(turn_over(&mut steady, 50), 0, "{kind}");
        let mut steady = Steady::new(kind, 8_000);
        turn_over(&mut steady, 3);
        let allocated = turn_over(&mut steady, 8);
        assert!(allocated <= 4, "{kind}: {allocated} allocations for 64,000 chunks");
    }
}
