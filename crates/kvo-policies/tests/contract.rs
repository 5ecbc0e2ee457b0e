//! Every policy under any order of calls that the trait allows: several groups, positions that are equal or absent,
//! requests that overlap or are given up, stores that fail, resets.
//!
//! A failing run prints its seed; `KVO_TEST_SEED=<seed> cargo test -p kvo-policies --test contract` replays it alone. The
//! fuzzer `policies` does the same by the bytes of its inputs.

#[cfg(test)]
#[path = "../../../fuzz/replay.rs"]
mod replay;
mod support;

use std::collections::BTreeMap;

use kvo_core::OffloadKey;
use kvo_policies::{
    AccessKind, CachePolicy, GhostHits, KeyAccess, PolicyKind, RequestRecency, S3FifoOptions,
};
use support::{
    Driven, access, key_of,
    seeded::{Rng, explore, fuzz},
};

const KINDS: [PolicyKind; 8] = [
    PolicyKind::Lru,
    PolicyKind::Arc(GhostHits::Canonical),
    PolicyKind::Slru { protected_pct: 20 },
    PolicyKind::Aslru,
    PolicyKind::Ylru,
    PolicyKind::S3Fifo(S3FifoOptions { small_pct: 30, threshold: 1, leaf_only: true }),
    PolicyKind::S3Fifo(S3FifoOptions { small_pct: 10, threshold: 2, leaf_only: false }),
    PolicyKind::Fifo,
];
const NUM_REQUESTS: usize = 4;
const OPS_A_RUN: usize = 1_500;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Pending,
    Ready { pins: u32 },
}

#[derive(Clone, Debug)]
enum Op {
    NewRequest(usize),
    Insert(usize, KeyAccess),
    Ready(OffloadKey),
    Pin(OffloadKey),
    Unpin(OffloadKey),
    Remove(OffloadKey),
    Evict(usize, Vec<OffloadKey>),
    Touch(Vec<OffloadKey>),
    StoreMiss(Vec<OffloadKey>),
    Access(usize, Vec<KeyAccess>),
    Finish(usize, Vec<KeyAccess>),
    Clear,
}

fn accesses(rng: &mut Rng, num_hashes: u64) -> Vec<KeyAccess> {
    let mut all: Vec<KeyAccess> = Vec::new();
    for _ in 0..rng.below(12) {
        let key = key_of(rng.below(num_hashes), u32::try_from(rng.below(3)).unwrap());
        let end = rng.pick(&[None, Some(0), Some(16), Some(16), Some(32), Some(48), Some(u32::MAX)]);
        let kind = rng.pick(&[AccessKind::Inserted, AccessKind::Reused]);
        if all.iter().all(|other| other.key != key) {
            all.push(access(key, end, kind));
        }
    }
    all
}

fn one_op(rng: &mut Rng, num_hashes: u64) -> Op {
    let req = rng.index(NUM_REQUESTS);
    let all = accesses(rng, num_hashes);
    let keys = all.iter().map(|access| access.key).collect();
    let key = key_of(rng.below(num_hashes), u32::try_from(rng.below(3)).unwrap());
    let end = rng.pick(&[None, Some(16), Some(32), Some(48)]);
    match rng.below(100) {
        0..2 => Op::NewRequest(req),
        2..30 => Op::Insert(req, access(key, end, AccessKind::Inserted)),
        30..50 => Op::Ready(key),
        50..54 => Op::Pin(key),
        54..62 => Op::Unpin(key),
        62..64 => Op::Remove(key),
        64..72 => Op::Evict(rng.index(6), keys),
        72..74 => Op::Touch(keys),
        74..82 => Op::StoreMiss(keys),
        82..90 => Op::Access(req, all),
        90..99 => Op::Finish(req, all),
        _ if rng.chance(20) => Op::Clear,
        _ => Op::Finish(req, all),
    }
}

struct Run {
    policy: Driven<Box<dyn CachePolicy>>,
    capacity: usize,
    recency: [RequestRecency; NUM_REQUESTS],
    chunks: BTreeMap<OffloadKey, State>,
}

impl Run {
    fn new(kind: PolicyKind, capacity: u32) -> Self {
        Self {
            policy: Driven::new(capacity, kind.build(capacity)),
            capacity: capacity as usize,
            recency: Default::default(),
            chunks: BTreeMap::new(),
        }
    }

    fn apply(&mut self, op: &Op) -> Result<(), String> {
        match op {
            Op::NewRequest(req) => self.recency[*req] = RequestRecency::default(),
            Op::Insert(req, access) => {
                if !self.chunks.contains_key(&access.key) && self.chunks.len() < self.capacity {
                    self.policy.insert(&mut self.recency[*req], access.key, access.end_token);
                    self.chunks.insert(access.key, State::Pending);
                }
            }
            Op::Ready(key) => {
                if self.chunks.get(key) == Some(&State::Pending) {
                    self.policy.ready(*key);
                    self.chunks.insert(*key, State::Ready { pins: 0 });
                }
            }
            Op::Pin(key) => {
                if let Some(State::Ready { pins }) = self.chunks.get_mut(key) {
                    self.policy.pin(*key);
                    *pins += 1;
                }
            }
            Op::Unpin(key) => {
                if let Some(State::Ready { pins: pins @ 1.. }) = self.chunks.get_mut(key) {
                    self.policy.unpin(*key);
                    *pins -= 1;
                }
            }
            Op::Remove(key) => {
                if matches!(self.chunks.get(key), Some(State::Pending | State::Ready { pins: 0 })) {
                    self.policy.remove(*key);
                    self.chunks.remove(key);
                }
            }
            Op::Evict(count, spared) => self.evict(*count, spared)?,
            Op::Touch(keys) => self.policy.touch(keys),
            Op::StoreMiss(keys) => {
                let missing: Vec<_> =
                    keys.iter().copied().filter(|key| !self.chunks.contains_key(key)).collect();
                self.policy.store_miss(&missing);
            }
            Op::Access(req, keys) => self.policy.access(&mut self.recency[*req], keys),
            Op::Finish(req, keys) => {
                self.policy.finish(&mut self.recency[*req], keys);
                self.recency[*req] = RequestRecency::default();
            }
            Op::Clear => {
                self.policy.clear();
                self.chunks.clear();
                self.recency = Default::default();
            }
        }
        Ok(())
    }

    /// [`Driven`] sees to it that a victim may go and that there are as many as asked for.
    fn evict(&mut self, count: usize, spared: &[OffloadKey]) -> Result<(), String> {
        let may_go = |(key, state): &(&OffloadKey, &State)| {
            **state == State::Ready { pins: 0 } && !spared.contains(key)
        };
        let num_may_go = self.chunks.iter().filter(may_go).count();
        let mut victims = Vec::new();
        let is_done = self.policy.evict(count, spared, &mut victims);
        if is_done != (count <= num_may_go) {
            return Err(format!("{num_may_go} may go, {count} were asked for, evicted: {is_done}"));
        }
        victims.iter().try_for_each(|victim| match self.chunks.remove(victim) {
            Some(_) => Ok(()),
            None => Err(format!("{victim} is no chunk")),
        })
    }

    /// Everything becomes ready and unpinned and goes.
    fn drain(&mut self) -> Result<(), String> {
        for (key, state) in self.chunks.clone() {
            match state {
                State::Pending => self.apply(&Op::Ready(key))?,
                State::Ready { pins } => (0..pins).try_for_each(|_| self.apply(&Op::Unpin(key)))?,
            }
        }
        self.evict(self.chunks.len() + 1, &[])?;
        self.evict(self.chunks.len(), &[])
    }
}

#[track_caller]
fn check(kind: PolicyKind) {
    let generate = |rng: &mut Rng| {
        let num_hashes = 2 + rng.below(30);
        (0..OPS_A_RUN).map(|_| one_op(rng, num_hashes)).collect()
    };
    explore(0..150, 200_000, generate, |seed, ops| {
        run_twice(kind, u32::try_from(1 + seed % 47).unwrap(), ops)
    });
}

fn run_twice(kind: PolicyKind, capacity: u32, ops: &[Op]) -> Result<(), String> {
    let mut run = Run::new(kind, capacity);
    ops.iter().try_for_each(|op| run.apply(op))?;
    run.drain()?;
    ops.iter().rev().try_for_each(|op| run.apply(op))?;
    run.drain()
}

/// What the fuzzer `policies` runs.
pub fn fuzzed(input: &[u8]) {
    let rng = &mut Rng::of_input(input);
    let (kind, capacity) = (rng.pick(&KINDS), u32::try_from(1 + rng.below(64)).unwrap());
    let num_hashes = 1 + rng.below(64);
    fuzz(rng, |rng| one_op(rng, num_hashes), |ops| run_twice(kind, capacity, ops));
}

#[test]
fn the_corpus_of_the_fuzzer_keeps_the_contract() {
    replay::replay("policies", fuzzed);
}

#[test]
fn every_policy_keeps_the_contract_under_any_calls_that_it_allows() {
    for kind in KINDS {
        println!("{kind}");
        check(kind);
    }
}
