//! Every policy against its naive model, operation by operation.
//!
//! A failing run prints its seed; `KVO_TEST_SEED=<seed> cargo test -p kvo-policies --test model` replays it alone. The
//! fuzzer `policy-models` does the same by the bytes of its inputs.

#[cfg(test)]
#[path = "../../../fuzz/replay.rs"]
mod replay;
mod support;

use kvo_core::OffloadKey;
use kvo_policies::{AccessKind, CachePolicy, GhostHits, KeyAccess, PolicyKind, RequestRecency};
use support::{
    Driven, access, key_of,
    naive::{Naive, NaiveArc, NaiveLru, State},
    seeded::{Rng, explore, fuzz},
};

const NUM_REQUESTS: usize = 4;
const OPS_A_RUN: usize = 250;
/// In runs over many keys.
const OPS_A_WIDE_RUN: usize = 1_000;
const NUM_SEEDS: u64 = 3_600;

/// What the owner of a tier may do to its policy. An operation that does not fit the state (a key that is not pending
/// becomes ready, say) is left out by the run.
#[derive(Clone, Debug)]
enum Op {
    NewRequest { req: usize },
    Insert { req: usize, key: OffloadKey, end_token: Option<u32> },
    Ready { key: OffloadKey },
    Pin { key: OffloadKey },
    Unpin { key: OffloadKey },
    Remove { key: OffloadKey },
    Evict { count: usize, spared: Vec<OffloadKey> },
    Touch { keys: Vec<OffloadKey> },
    StoreMiss { keys: Vec<OffloadKey> },
    Access { req: usize, keys: Vec<KeyAccess> },
    Finish { req: usize, keys: Vec<KeyAccess> },
    Clear,
}

fn generate(rng: &mut Rng) -> Vec<Op> {
    // Few keys meet each other often; many fill more than one segment of an order.
    let (num_hashes, num_ops) =
        if rng.chance(30) { (30 + rng.below(40), OPS_A_WIDE_RUN) } else { (3 + rng.below(7), OPS_A_RUN) };
    let num_groups = 1 + rng.below(3);
    (0..num_ops).map(|_| one_op(rng, num_hashes, num_groups)).collect()
}

fn one_op(rng: &mut Rng, num_hashes: u64, num_groups: u64) -> Op {
    let some_key =
        |rng: &mut Rng| key_of(rng.below(num_hashes), u32::try_from(rng.below(num_groups)).unwrap());
    let some_keys = |rng: &mut Rng| {
        let mut keys: Vec<OffloadKey> = Vec::new();
        for _ in 0..rng.below(6) {
            let key = some_key(rng);
            if !keys.contains(&key) {
                keys.push(key);
            }
        }
        keys
    };
    // Few positions, so that many are equal; the ends of the range, where arithmetic wraps; and none.
    let some_end = |rng: &mut Rng| match rng.below(12) {
        0..3 => None,
        3 => Some(0),
        4 => Some(u32::MAX),
        _ => Some(16 * u32::try_from(rng.below(5)).unwrap()),
    };
    let some_accesses = |rng: &mut Rng| {
        let keys = some_keys(rng);
        keys.into_iter()
            .map(|key| access(key, some_end(rng), rng.pick(&[AccessKind::Inserted, AccessKind::Reused])))
            .collect::<Vec<_>>()
    };
    let (req, key) = (rng.index(NUM_REQUESTS), some_key(rng));
    match rng.below(100) {
        0..3 => Op::NewRequest { req },
        3..25 => Op::Insert { req, key, end_token: some_end(rng) },
        25..50 => Op::Ready { key },
        50..54 => Op::Pin { key },
        54..62 => Op::Unpin { key },
        62..64 => Op::Remove { key },
        64..78 => {
            let spared = if rng.chance(60) { Vec::new() } else { some_keys(rng) };
            let many = 5 + rng.index(20);
            Op::Evict { count: rng.pick(&[0, 1, 1, 1, 1, 1, 2, 2, 2, 3, 3, 4, 4, many]), spared }
        }
        78..82 => Op::Touch { keys: some_keys(rng) },
        82..87 => Op::StoreMiss { keys: some_keys(rng) },
        87..93 => Op::Access { req, keys: some_accesses(rng) },
        93..99 => Op::Finish { req, keys: some_accesses(rng) },
        _ if rng.chance(30) => Op::Clear,
        _ => Op::Finish { req, keys: some_accesses(rng) },
    }
}

/// The policy, a second one that is spared every eviction that must fail, and the model of both.
struct Run {
    capacity: usize,
    policy: Driven<Box<dyn CachePolicy>>,
    unrefused: Driven<Box<dyn CachePolicy>>,
    recency: [[RequestRecency; NUM_REQUESTS]; 2],
    model: Box<dyn Naive>,
}

impl Run {
    fn new(kind: PolicyKind, capacity: u32) -> Self {
        let model: Box<dyn Naive> = match kind {
            PolicyKind::Lru => Box::new(NaiveLru::default()),
            PolicyKind::Arc(ghost_hits) => {
                Box::new(NaiveArc::new(capacity as usize, ghost_hits == GhostHits::T2))
            }
            other => panic!("{other} has no model yet"),
        };
        let recency = [[RequestRecency::default(); NUM_REQUESTS]; 2];
        Self {
            capacity: capacity as usize,
            policy: Driven::new(capacity, kind.build(capacity)),
            unrefused: Driven::new(capacity, kind.build(capacity)),
            recency,
            model,
        }
    }

    fn both(&mut self, call: impl Fn(&mut Driven<Box<dyn CachePolicy>>)) {
        call(&mut self.policy);
        call(&mut self.unrefused);
    }

    fn apply(&mut self, op: &Op) -> Result<(), String> {
        match op {
            Op::NewRequest { req } => {
                // The one before ends without a word, as when its engine gives it up.
                self.recency.iter_mut().for_each(|of| of[*req] = RequestRecency::default());
                self.model.forget_request(*req);
            }
            Op::Insert { req, key, end_token } => {
                if self.model.state(*key).is_none() && self.model.resident().len() < self.capacity {
                    self.policy.insert(&mut self.recency[0][*req], *key, *end_token);
                    self.unrefused.insert(&mut self.recency[1][*req], *key, *end_token);
                    self.model.insert(*req, *key, *end_token);
                }
            }
            Op::Ready { key } => {
                if self.model.state(*key) == Some(State::Pending) {
                    self.both(|policy| policy.ready(*key));
                    self.model.set(*key, State::Free);
                }
            }
            Op::Pin { key } => {
                if matches!(self.model.state(*key), Some(State::Free | State::Pinned)) {
                    self.both(|policy| policy.pin(*key));
                    self.model.set(*key, State::Pinned);
                }
            }
            Op::Unpin { key } => {
                if self.model.state(*key) == Some(State::Pinned) {
                    self.unrefused.unpin(*key);
                    if self.policy.unpin(*key) {
                        self.model.set(*key, State::Free);
                    }
                }
            }
            Op::Remove { key } => {
                // A failed store is pending; a tier may also drop a ready chunk, but never a pinned one.
                if matches!(self.model.state(*key), Some(State::Pending | State::Free)) {
                    self.both(|policy| policy.remove(*key));
                    self.model.remove(*key);
                }
            }
            Op::Evict { count, spared } => self.evict(*count, spared)?,
            Op::Touch { keys } => {
                self.both(|policy| policy.touch(keys));
                self.model.touch(keys);
            }
            Op::StoreMiss { keys } => {
                let missing: Vec<_> =
                    keys.iter().filter(|key| self.model.state(**key).is_none()).copied().collect();
                self.both(|policy| policy.store_miss(&missing));
                self.model.store_miss(&missing);
            }
            Op::Access { req, keys } => {
                self.policy.access(&mut self.recency[0][*req], keys);
                self.unrefused.access(&mut self.recency[1][*req], keys);
                self.model.access(*req, keys);
            }
            Op::Finish { req, keys } => {
                self.policy.finish(&mut self.recency[0][*req], keys);
                self.unrefused.finish(&mut self.recency[1][*req], keys);
                for recency in &self.recency {
                    equal("what is kept of a finished request", &recency[*req], &RequestRecency::default())?;
                }
                self.model.finish(keys);
                self.model.forget_request(*req);
            }
            Op::Clear => {
                self.both(Driven::clear);
                self.recency = Default::default();
                self.model.clear();
            }
        }
        Ok(())
    }

    fn evict(&mut self, count: usize, spared: &[OffloadKey]) -> Result<(), String> {
        let held: Vec<_> =
            self.model.resident().into_iter().filter(|(_, state)| *state != State::Free).collect();
        for (key, state) in &held {
            equal("the state of a held chunk", &self.policy.state(*key), &Some(*state))?;
        }
        let asked_before = self.policy.table.asked.get();
        let expected = self.model.evict(count, spared);
        let mut victims = Vec::new();
        let done = self.policy.evict(count, spared, &mut victims);
        equal("the victims", &done.then(|| victims.clone()), &expected)?;
        let asked = self.policy.table.asked.get() - asked_before;
        if asked > count + spared.len() + held.len() {
            let (spared, held) = (spared.len(), held.len());
            return Err(format!("{asked} looks to evict {count} with {spared} spared and {held} held"));
        }
        if done {
            let mut again = Vec::new();
            equal("whether the other evicts", &self.unrefused.evict(count, spared, &mut again), &true)?;
            equal("the other's victims", &again, &victims)?;
        }
        Ok(())
    }

    /// Everything becomes ready and unpinned and goes, one by one or at once.
    fn drain(&mut self, at_once: bool) -> Result<(), String> {
        for (key, state) in self.model.resident() {
            if state == State::Pending {
                self.apply(&Op::Ready { key })?;
            }
            while self.model.state(key) == Some(State::Pinned) {
                self.apply(&Op::Unpin { key })?;
            }
        }
        let all = self.model.resident().len();
        self.evict(all + 1, &[])?;
        if at_once {
            self.evict(all, &[])?;
        } else {
            (0..all).try_for_each(|_| self.evict(1, &[]))?;
        }
        equal("what is left", &self.model.resident().len(), &0)?;
        self.evict(1, &[])
    }
}

fn equal<T: PartialEq + std::fmt::Debug>(what: &str, actual: &T, expected: &T) -> Result<(), String> {
    if actual == expected { Ok(()) } else { Err(format!("{what}: {actual:?}, the model has {expected:?}")) }
}

#[track_caller]
fn check(kind: PolicyKind) {
    explore(0..NUM_SEEDS, 1_600_000, generate, |seed, ops| {
        let capacity = if seed % 4 == 3 { 20 + seed % 61 } else { 1 + seed % 13 };
        run_twice(kind, u32::try_from(capacity).unwrap(), seed % 2 == 0, ops)
    });
}

/// Runs operations forwards and backwards; everything goes in between and at the end, once at once and once one by one.
fn run_twice(kind: PolicyKind, capacity: u32, at_once: bool, ops: &[Op]) -> Result<(), String> {
    let mut run = Run::new(kind, capacity);
    ops.iter().try_for_each(|op| run.apply(op))?;
    run.drain(at_once)?;
    // Ghosts survive a drain: the second filling adapts to them.
    ops.iter().rev().try_for_each(|op| run.apply(op))?;
    run.drain(!at_once)
}

/// What the fuzzer `policy-models` runs.
pub fn fuzzed(input: &[u8]) {
    let rng = &mut Rng::of_input(input);
    let kinds = [PolicyKind::Lru, PolicyKind::Arc(GhostHits::T1), PolicyKind::Arc(GhostHits::T2)];
    let (kind, capacity, at_once) = (rng.pick(&kinds), 1 + rng.below(64), rng.chance(50));
    let (num_hashes, num_groups) = (1 + rng.below(64), 1 + rng.below(3));
    let capacity = u32::try_from(capacity).unwrap();
    fuzz(rng, |rng| one_op(rng, num_hashes, num_groups), |ops| run_twice(kind, capacity, at_once, ops));
}

#[test]
fn the_corpus_of_the_fuzzer_equals_the_models() {
    replay::replay("policy-models", fuzzed);
}

#[test]
fn lru_equals_its_model() {
    check(PolicyKind::Lru);
}

#[test]
fn arc_with_ghosts_to_t1_equals_its_model() {
    check(PolicyKind::Arc(GhostHits::T1));
}

#[test]
fn arc_with_ghosts_to_t2_equals_its_model() {
    check(PolicyKind::Arc(GhostHits::T2));
}
