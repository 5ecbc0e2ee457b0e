//! Every policy against its naive model, operation by operation.
//!
//! A failing run prints its seed; `KVO_TEST_SEED=<seed> cargo test -p kvo-policies --test model` replays it alone.

mod support;

use kvo_core::OffloadKey;
use kvo_policies::{AccessKind, CachePolicy, GhostHits, KeyAccess, PolicyKind, RequestRecency};
use support::{
    access, key_of,
    naive::{Naive, NaiveArc, NaiveLru, State},
    seeded::{Rng, explore},
};

const NUM_REQUESTS: usize = 4;
const OPS_A_RUN: usize = 250;
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
    Finish { keys: Vec<KeyAccess> },
    Clear,
}

fn generate(rng: &mut Rng) -> Vec<Op> {
    let (num_hashes, num_groups) = (3 + rng.below(7), 1 + rng.below(3));
    (0..OPS_A_RUN).map(|_| one_op(rng, num_hashes, num_groups)).collect()
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
            Op::Evict { count: rng.pick(&[0, 1, 1, 1, 2, 2, 3, 4]), spared }
        }
        78..82 => Op::Touch { keys: some_keys(rng) },
        82..87 => Op::StoreMiss { keys: some_keys(rng) },
        87..93 => Op::Access { req, keys: some_accesses(rng) },
        93..99 => Op::Finish { keys: some_accesses(rng) },
        _ if rng.chance(30) => Op::Clear,
        _ => Op::Finish { keys: some_accesses(rng) },
    }
}

/// The policy, a second one that is spared every eviction that must fail, and the model of both.
struct Run {
    capacity: usize,
    policy: Box<dyn CachePolicy>,
    unrefused: Box<dyn CachePolicy>,
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
            policy: kind.build(capacity),
            unrefused: kind.build(capacity),
            recency,
            model,
        }
    }

    fn both(&mut self, call: impl Fn(&mut dyn CachePolicy)) {
        call(&mut *self.policy);
        call(&mut *self.unrefused);
    }

    fn apply(&mut self, op: &Op) -> Result<(), String> {
        match op {
            Op::NewRequest { req } => {
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
                self.change(*key, State::Pending, State::Free, |policy, key| policy.on_ready(key));
            }
            Op::Pin { key } => {
                self.change(*key, State::Free, State::Pinned, |policy, key| policy.on_pin(key));
            }
            Op::Unpin { key } => {
                self.change(*key, State::Pinned, State::Free, |policy, key| policy.on_unpin(key));
            }
            Op::Remove { key } => {
                // A failed store is pending; a tier may also drop a ready chunk, but never a pinned one. What is not
                // resident is skipped; a ghost is left out, for the contract does not say whether it goes.
                if self.model.state(*key) != Some(State::Pinned) && !self.model.ghosts().contains(key) {
                    self.both(|policy| policy.remove(key));
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
                self.both(|policy| policy.on_store_miss(&missing));
                self.model.store_miss(&missing);
            }
            Op::Access { req, keys } => {
                self.policy.on_request_access(&mut self.recency[0][*req], keys);
                self.unrefused.on_request_access(&mut self.recency[1][*req], keys);
                self.model.access(*req, keys);
            }
            Op::Finish { keys } => {
                self.both(|policy| policy.on_request_finished(keys));
                self.model.finish(keys);
            }
            Op::Clear => {
                self.both(|policy| policy.clear());
                self.recency = Default::default();
                self.model.clear();
            }
        }
        Ok(())
    }

    /// Tells the policy what became of a key: of one that is in `from`, or of one that is not resident at all.
    fn change(
        &mut self,
        key: OffloadKey,
        from: State,
        to: State,
        tell: fn(&mut dyn CachePolicy, &OffloadKey),
    ) {
        match self.model.state(key) {
            Some(state) if state == from => {
                self.both(|policy| tell(policy, &key));
                self.model.set(key, to);
            }
            Some(_) => {}
            None => self.both(|policy| tell(policy, &key)),
        }
    }

    fn evict(&mut self, count: usize, spared: &[OffloadKey]) -> Result<(), String> {
        let before = self.model.resident();
        let mut calls = 0;
        let mut stray = None;
        let mut may_evict = |key: &OffloadKey| {
            calls += 1;
            let ready = before.contains(&(*key, State::Free));
            if !ready {
                stray = Some(*key);
            }
            ready && !spared.contains(key)
        };
        let expected = self.model.evict(count, spared);
        // Victims are appended: what was there stays.
        let mut victims = vec![key_of(999, 9)];
        let done = self.policy.evict(count, &mut may_evict, &mut victims);
        equal("the first of the victims", &victims.remove(0), &key_of(999, 9))?;
        equal("the victims", &done.then(|| victims.clone()), &expected)?;
        if let Some(key) = stray {
            return Err(format!("{key} was asked about, which is not ready and unpinned"));
        }
        if calls > count + spared.len() {
            return Err(format!("{calls} calls to evict {count} with {} spared", spared.len()));
        }
        if done {
            let mut again = Vec::new();
            let may_evict =
                &mut |key: &OffloadKey| before.contains(&(*key, State::Free)) && !spared.contains(key);
            equal("whether the other evicts", &self.unrefused.evict(count, may_evict, &mut again), &true)?;
            equal("the other's victims", &again, &victims)?;
        } else if !victims.is_empty() {
            return Err(format!("a refused eviction left the victims {victims:?}"));
        }
        Ok(())
    }

    /// Everything becomes ready and unpinned and goes, one by one or at once.
    fn drain(&mut self, at_once: bool) -> Result<(), String> {
        for (key, state) in self.model.resident() {
            match state {
                State::Pending => self.apply(&Op::Ready { key })?,
                State::Pinned => self.apply(&Op::Unpin { key })?,
                State::Free => {}
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
    explore(0..NUM_SEEDS, 900_000, generate, |seed, ops| {
        let mut run = Run::new(kind, 1 + u32::try_from(seed % 13).unwrap());
        ops.iter().try_for_each(|op| run.apply(op))?;
        run.drain(seed % 2 == 0)?;
        // Ghosts survive a drain: the second filling adapts to them.
        ops.iter().rev().try_for_each(|op| run.apply(op))?;
        run.drain(seed % 2 != 0)
    });
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
