//! The manager against a naive model of all of it, operation by operation.
//!
//! After each operation the counts must add up, and counts, counters, every key's state, the slots and the events must
//! be those of the model; and the manager must keep what the trait promises to policies. A failing run prints its seed; `KVO_TEST_SEED=<seed> cargo test -p kvo-cpu --test model`
//! replays it alone. The fuzzer `cpu` does the same by the bytes of its inputs.

#[cfg(test)]
#[path = "../../../fuzz/replay.rs"]
mod replay;
mod support;

use kvo_core::{
    CompleteErrorReason, EventKind, JobKind, JobToken, LoadError, OffloadKey, OffloadManager, RequestContext,
    RequestError, RequestId, StoreError, StoreOutcome, TransferResult,
};
use kvo_cpu::{CpuManager, CpuOptions, HoldKind, TierHold};
use kvo_policies::{AccessKind, CachePolicy, GhostHits, KeyAccess, PolicyKind, RunSummary};
use support::{
    key_of,
    model::{Model, Offered},
    policies::{
        naive::{Naive, NaiveArc, NaiveLru},
        seeded::{Rng, explore, fuzz},
    },
    strict::Strict,
};

const NUM_REQUESTS: usize = 4;
const OPS_A_RUN: usize = 250;
const NUM_HASHES: u64 = 9;
const NUM_GROUPS: u32 = 2;

/// What an engine and a tiering manager may do, misuse included. Jobs and holds are named by their place among the
/// open ones, round and round.
#[derive(Clone, Debug)]
enum Op {
    /// With positions that are close to each other, many of them equal if `spacing` is small, none if it is 0.
    NewRequest {
        req: usize,
        spacing: u32,
    },
    AnnounceAgain {
        req: usize,
    },
    SetPositions {
        req: usize,
        positions: Vec<(OffloadKey, u32)>,
    },
    Lookup {
        req: usize,
        key: OffloadKey,
    },
    PrepareLoad {
        req: usize,
        keys: Vec<OffloadKey>,
    },
    Reserve {
        keys: Vec<OffloadKey>,
    },
    /// Loads those of the keys that are ready.
    LoadReady {
        req: usize,
        keys: Vec<OffloadKey>,
    },
    PrepareStore {
        req: usize,
        keys: Vec<OffloadKey>,
    },
    Complete {
        job: usize,
        done: bool,
    },
    CompleteAsOtherKind {
        job: usize,
    },
    Touch {
        keys: Vec<OffloadKey>,
    },
    Finish {
        req: usize,
    },
    HoldForCascade {
        key: OffloadKey,
    },
    HoldForPromotion {
        req: usize,
        key: OffloadKey,
    },
    Release {
        hold: usize,
        done: bool,
    },
    GiveUp {
        hold: usize,
    },
    TakeEvents,
    ScheduleEnd,
    Reset,
}

fn all_keys() -> impl Iterator<Item = OffloadKey> {
    (0..NUM_HASHES).flat_map(|n| (0..NUM_GROUPS).map(move |group| key_of(n, group)))
}

fn generate(rng: &mut Rng) -> Vec<Op> {
    (0..OPS_A_RUN).map(|_| one_op(rng)).collect()
}

fn one_op(rng: &mut Rng) -> Op {
    let some_key = |rng: &mut Rng| key_of(rng.below(NUM_HASHES), u32::from(rng.chance(25)));
    let some_keys =
        |rng: &mut Rng| (0..rng.pick(&[0, 1, 1, 2, 2, 3, 4])).map(|_| some_key(rng)).collect::<Vec<_>>();
    let req = rng.index(NUM_REQUESTS);
    match rng.below(100) {
        0..8 => Op::NewRequest { req, spacing: rng.pick(&[0, 1, 2, 4, 16]) },
        8 => Op::AnnounceAgain { req },
        9..11 => {
            // Small, often equal positions, not always those of the prefix.
            let positions = some_keys(rng);
            let position = |rng: &mut Rng, key: OffloadKey| {
                let n = u32::from(key.hash().0[31]);
                if rng.chance(80) { 16 * n } else { 16 * u32::try_from(rng.below(4)).unwrap() }
            };
            Op::SetPositions {
                req,
                positions: positions.into_iter().map(|k| (k, position(rng, k))).collect(),
            }
        }
        11..14 => Op::Lookup { req, key: some_key(rng) },
        14 => Op::Reserve { keys: some_keys(rng) },
        15..18 => Op::PrepareLoad { req, keys: some_keys(rng) },
        18..29 => Op::LoadReady { req, keys: some_keys(rng) },
        29..53 => Op::PrepareStore { req, keys: some_keys(rng) },
        53..74 => Op::Complete { job: rng.index(64), done: rng.chance(85) },
        74 => Op::CompleteAsOtherKind { job: rng.index(64) },
        75..77 => Op::Touch { keys: some_keys(rng) },
        77..81 => Op::Finish { req },
        81..84 => Op::HoldForCascade { key: some_key(rng) },
        84..88 => Op::HoldForPromotion { req, key: some_key(rng) },
        88..94 => Op::Release { hold: rng.index(64), done: rng.chance(75) },
        94 => Op::GiveUp { hold: rng.index(64) },
        95..97 => Op::TakeEvents,
        97..99 => Op::ScheduleEnd,
        _ if rng.chance(30) => Op::Reset,
        _ => Op::TakeEvents,
    }
}

struct Run {
    manager: CpuManager<Strict<Box<dyn CachePolicy>>>,
    contexts: Vec<RequestContext>,
    num_requests: u64,
    tokens: Vec<JobToken>,
    holds: Vec<Held>,
    model: Model,
}

struct Held {
    hold: TierHold,
    generation: u64,
    is_given_up: bool,
}

type Outcome = Result<(), String>;

fn equal<T: PartialEq + std::fmt::Debug>(what: &str, actual: &T, expected: &T) -> Outcome {
    if actual == expected { Ok(()) } else { Err(format!("{what}: {actual:?}, the model has {expected:?}")) }
}

impl Run {
    fn new(kind: PolicyKind, options: &CpuOptions, takes_runs: bool) -> Self {
        let capacity = options.num_slots;
        let policy: Box<dyn Naive> = match kind {
            PolicyKind::Lru => Box::new(NaiveLru::default()),
            PolicyKind::Arc(ghosts) => Box::new(NaiveArc::new(capacity as usize, ghosts == GhostHits::T2)),
            other => panic!("{other} has no model yet"),
        };
        let mut policy_under_test = Strict::new(kind.build(capacity));
        policy_under_test.takes_runs = takes_runs;
        let mut run = Self {
            manager: CpuManager::new(options.clone(), policy_under_test).unwrap(),
            contexts: (0..NUM_REQUESTS).map(|_| RequestContext::new(RequestId(0))).collect(),
            num_requests: 0,
            tokens: Vec::new(),
            holds: Vec::new(),
            model: Model::new(options.clone(), policy, NUM_REQUESTS),
        };
        (0..NUM_REQUESTS).for_each(|req| run.new_request(req));
        run
    }

    fn new_request(&mut self, req: usize) {
        self.num_requests += 1;
        self.contexts[req] = RequestContext::new(RequestId(self.num_requests));
        self.manager.new_request(&mut self.contexts[req]).expect("the request is new");
        self.model.new_request(req);
    }

    /// The error of a request that does not run any more.
    fn stopped(&self, req: usize) -> Option<RequestError> {
        self.model.requests[req].finished.then(|| RequestError::Finished { req: self.contexts[req].id() })
    }

    fn apply(&mut self, op: &Op) -> Outcome {
        match op {
            Op::NewRequest { req, spacing } => {
                self.new_request(*req);
                for (n, key) in (0..).zip(all_keys()).filter(|_| *spacing > 0) {
                    let end_token = n / NUM_GROUPS * spacing / 4;
                    self.contexts[*req].set_positions([(key, end_token)]);
                    self.model.set_position(*req, key, end_token);
                }
            }
            Op::AnnounceAgain { req } => {
                let expected = Err(RequestError::Known { req: self.contexts[*req].id() });
                equal(
                    "a second announcement",
                    &self.manager.new_request(&mut self.contexts[*req]),
                    &expected,
                )?;
            }
            Op::SetPositions { req, positions } => {
                // What it means to move a key that the request has met already is not said.
                for (key, at) in positions {
                    if !self.model.has_position(*req, *key) {
                        self.contexts[*req].set_positions([(*key, *at)]);
                        self.model.set_position(*req, *key, *at);
                    }
                }
            }
            Op::Lookup { req, key } => {
                let result = self.manager.lookup(&mut self.contexts[*req], key);
                equal("a lookup", &result, &self.model.lookup(*key))?;
            }
            Op::PrepareLoad { req, keys } => self.load(*req, keys)?,
            Op::Reserve { keys } => {
                equal("a reservation", &self.manager.reserve(keys), &self.model.reserve(keys))?;
            }
            Op::LoadReady { req, keys } => {
                let mut ready: Vec<OffloadKey> = Vec::new();
                for key in keys {
                    if self.model.peek(*key) == kvo_core::LookupResult::Hit && !ready.contains(key) {
                        ready.push(*key);
                    }
                }
                self.load(*req, &ready)?;
            }
            Op::PrepareStore { req, keys } => self.offer(*req, keys)?,
            Op::Complete { job, done } => self.complete(*job, *done)?,
            Op::CompleteAsOtherKind { job } => self.complete_as_other_kind(*job)?,
            Op::Touch { keys } => {
                let mut unique: Vec<OffloadKey> = Vec::new();
                for key in keys {
                    if !unique.contains(key) {
                        unique.push(*key);
                    }
                }
                self.manager.touch(&unique);
                self.model.touch(&unique);
            }
            Op::Finish { req } => {
                let expected = self.stopped(*req).map_or(Ok(()), Err);
                if expected.is_ok() {
                    self.model.finish(*req);
                }
                let result = self.manager.on_request_finished(&mut self.contexts[*req]);
                equal("a finish", &result, &expected)?;
            }
            Op::HoldForCascade { key } => {
                let hold = self.manager.hold_for_cascade(key);
                equal("whether it is held", &hold.is_some(), &self.model.cascade(*key))?;
                self.take_hold(hold, *key, HoldKind::Cascade)?;
            }
            Op::HoldForPromotion { req, key } => self.promote(*req, key)?,
            Op::Release { hold, done } => self.release(*hold, *done)?,
            Op::GiveUp { hold } => self.give_up(*hold)?,
            Op::TakeEvents => self.take_events()?,
            Op::ScheduleEnd => {
                self.manager.on_schedule_end();
                self.model.end_step();
            }
            Op::Reset => {
                self.manager.reset_cache();
                let current = self.model.generation;
                let is_held = |held: &&Held| held.generation == current && !held.is_given_up;
                self.model.reset(self.holds.iter().filter(is_held).map(|held| held.hold.slot()));
            }
        }
        self.compare()
    }

    fn load(&mut self, req: usize, keys: &[OffloadKey]) -> Outcome {
        let result = self.manager.prepare_load(&mut self.contexts[req], keys);
        if let Some(error) = self.stopped(req) {
            return equal("a late load", &result, &Err(LoadError::Request(error)));
        }
        if let Some((_, again)) = keys.iter().enumerate().find(|(at, key)| keys[..*at].contains(key)) {
            return equal("a repeated key", &result, &Err(LoadError::Repeated { key: *again }));
        }
        let (absent, pending) = self.model.load(req, keys);
        if !(absent.is_empty() && pending.is_empty()) {
            return equal("a load", &result, &Err(LoadError::NotReady { absent, pending }));
        }
        let job = result.map_err(|error| format!("a load of ready keys: {error}"))?;
        let slots: Vec<_> = keys.iter().filter_map(|key| self.model.slot(*key)).collect();
        equal("the slots of a load", &job.slots, &slots)?;
        self.model.open(job.token.id(), JobKind::Load, keys.to_vec());
        self.tokens.push(job.token);
        Ok(())
    }

    fn offer(&mut self, req: usize, keys: &[OffloadKey]) -> Outcome {
        let outcome = self.manager.prepare_store(&mut self.contexts[req], keys);
        if let Some(error) = self.stopped(req) {
            return equal("a late offer", &outcome.map(|_| ()), &Err(StoreError::Request(error)));
        }
        let expected = self.model.offer(req, keys);
        let job = match outcome.map_err(|error| error.to_string())? {
            StoreOutcome::Prepared(job) => job,
            StoreOutcome::NothingToStore => return equal("an offer", &Offered::NothingToStore, &expected),
            StoreOutcome::Refused(refusal) => {
                return equal("an offer", &Offered::Refused(refusal), &expected);
            }
        };
        let actual = Offered::Prepared { keys: job.keys.clone(), evicted: job.evicted };
        equal("an offer", &actual, &expected)?;
        equal("how many slots there are", &job.slots.len(), &job.keys.len())?;
        for (at, slot) in job.slots.iter().enumerate() {
            if self.model.is_used(*slot) || job.slots[..at].contains(slot) {
                return Err(format!("slot {slot} is handed out and is in use"));
            }
        }
        self.model.occupy(req, &job.keys, &job.slots);
        self.model.open(job.token.id(), JobKind::Store, job.keys);
        self.tokens.push(job.token);
        Ok(())
    }

    fn complete(&mut self, job: usize, done: bool) -> Outcome {
        if self.tokens.is_empty() {
            return Ok(());
        }
        let token = self.tokens.remove(job % self.tokens.len());
        let (id, kind, generation) = (token.id(), token.kind(), token.generation());
        let result = match kind {
            JobKind::Load => self.manager.complete_load(token),
            JobKind::Store => self.manager.complete_store(token, transfer(done)),
        };
        if generation == self.model.generation {
            self.model.complete(id, done);
            return equal("a completion", &result, &Ok(()));
        }
        let current = self.model.generation;
        let expected = Err((CompleteErrorReason::Reset { token: generation, current }, id));
        equal("a stale completion", &result.map_err(|error| (error.reason, error.token.id())), &expected)
    }

    fn complete_as_other_kind(&mut self, job: usize) -> Outcome {
        if self.tokens.is_empty() {
            return Ok(());
        }
        let token = self.tokens.remove(job % self.tokens.len());
        let stale = token.generation() != self.model.generation;
        let result = match token.kind() {
            JobKind::Store => self.manager.complete_load(token),
            JobKind::Load => self.manager.complete_store(token, TransferResult::Failed),
        };
        let error = result.err().ok_or("a token ends a job of the other kind")?;
        equal("whether it is the kind", &(error.reason == CompleteErrorReason::WrongKind), &!stale)?;
        self.tokens.push(error.token);
        Ok(())
    }

    fn take_hold(&mut self, hold: Option<TierHold>, key: OffloadKey, kind: HoldKind) -> Outcome {
        let Some(hold) = hold else { return Ok(()) };
        equal("the key of a hold", &hold.key(), &key)?;
        equal("the kind of a hold", &hold.kind(), &kind)?;
        equal("the slot of a hold", &Some(hold.slot()), &self.model.slot(key))?;
        self.holds.push(Held { hold, generation: self.model.generation, is_given_up: false });
        Ok(())
    }

    fn promote(&mut self, req: usize, key: &OffloadKey) -> Outcome {
        // What a promotion for a finished request means is not said.
        if self.model.requests[req].finished {
            return Ok(());
        }
        let hold = self.manager.hold_for_promotion(&mut self.contexts[req], key);
        equal("whether it is promoted", &hold.is_some(), &self.model.promote(req, *key))?;
        if let Some(hold) = &hold {
            equal("whether its slot is used", &self.model.is_used(hold.slot()), &false)?;
            self.model.occupy(req, &[*key], &[hold.slot()]);
        }
        self.take_hold(hold, *key, HoldKind::Promotion)
    }

    fn release(&mut self, hold: usize, done: bool) -> Outcome {
        if self.holds.is_empty() {
            return Ok(());
        }
        let Held { hold, generation, is_given_up } = self.holds.remove(hold % self.holds.len());
        let (key, slot, kind) = (hold.key(), hold.slot(), hold.kind());
        let released = self.manager.release(hold, transfer(done));
        if is_given_up {
            return equal("a late release", &released, &Ok(self.model.release_given_up(slot)));
        }
        equal("a release", &released, &Ok(self.model.release(key, slot, (generation, kind), done)))?;
        if kind == HoldKind::Promotion && generation == self.model.generation {
            let (stored, failed) = if done { (vec![key], vec![]) } else { (vec![], vec![key]) };
            self.manager.record_promotions(&stored, &failed);
            self.model.record(EventKind::Stored, &stored);
            self.model.record(EventKind::Discarded, &failed);
        }
        Ok(())
    }

    fn give_up(&mut self, hold: usize) -> Outcome {
        if self.holds.is_empty() {
            return Ok(());
        }
        let at = hold % self.holds.len();
        let Held { hold, generation, is_given_up } = &mut self.holds[at];
        let (key, slot) = (hold.key(), hold.slot());
        let is_promotion = hold.kind() == HoldKind::Promotion && !*is_given_up;
        let expected = is_promotion && self.model.give_up(key, slot, *generation);
        equal("whether it is given up", &self.manager.give_up(hold), &expected)?;
        if expected {
            *is_given_up = true;
            self.manager.record_promotions(&[], &[key]);
            self.model.record(EventKind::Discarded, &[key]);
        }
        Ok(())
    }

    fn take_events(&mut self) -> Outcome {
        let events = support::events(&mut self.manager);
        let named =
            events.iter().all(|event| &*event.tier == "cpu" && event.medium == kvo_core::Medium::Memory);
        equal("whether events name their tier", &named, &true)?;
        let actual: Vec<_> = events.into_iter().map(|event| (event.kind, event.keys)).collect();
        equal("the events", &actual, &self.model.take_events())
    }

    fn compare(&mut self) -> Outcome {
        self.manager.assert_consistent();
        let counts = self.manager.counts();
        equal("whether the counts add up", &counts.add_up(), &true)?;
        equal("the counts", &counts, &self.model.counts())?;
        let policy = self.manager.policy();
        equal("keys met and missed first", &(policy.met, policy.missed), &self.model.first)?;
        match policy.committed_run {
            Some(run) => {
                let is_reuse = |access: &&KeyAccess| access.kind == AccessKind::Reused;
                let num_reused = self.model.committed.iter().filter(is_reuse).count();
                let expected = RunSummary { num_keys: self.model.committed.len(), num_reused };
                equal("the last access", &run, &expected)?;
            }
            None => equal("the last access", &policy.committed, &self.model.committed)?,
        }
        equal("the stats", &self.manager.stats(), &self.model.stats())?;
        for key in all_keys() {
            if self.manager.peek(&key) != self.model.peek(key) {
                return Err(format!(
                    "{key:?} is {:?}, in the model {:?}",
                    self.manager.peek(&key),
                    self.model.peek(key)
                ));
            }
        }
        Ok(())
    }

    /// Ends all jobs and holds, then evicts everything, one chunk at a time.
    fn close(&mut self) -> Outcome {
        while !self.tokens.is_empty() {
            self.apply(&Op::Complete { job: 0, done: true })?;
        }
        while !self.holds.is_empty() {
            self.apply(&Op::Release { hold: 0, done: true })?;
        }
        self.apply(&Op::ScheduleEnd)?;
        let counts = self.manager.counts();
        equal("what is in flight", &(counts.pending, counts.pinned), &(0, 0))?;
        self.apply(&Op::NewRequest { req: 0, spacing: 0 })?;
        for n in 0..2 * u64::from(counts.capacity) {
            // Twice and thrice, for the threshold. Each stays pending, so the next takes an older one.
            for _ in 0..3 {
                self.apply(&Op::PrepareStore { req: 0, keys: vec![key_of(1_000 + n, 0)] })?;
            }
        }
        self.apply(&Op::TakeEvents)
    }
}

fn transfer(done: bool) -> TransferResult {
    if done { TransferResult::Done } else { TransferResult::Failed }
}

/// All capacities from 1 to 13, thresholds from 1 to 3, trackers from one key to many, in turn; every other time the
/// policy may commit requests without the list of their keys.
#[track_caller]
fn check(kind: PolicyKind) {
    explore(0..2_400, 600_000, generate, |seed, ops| {
        let of = |bound: u64, of: u64| u32::try_from(of % bound).unwrap();
        let options = CpuOptions {
            store_threshold: [1, 1, 2, 3][of(4, seed) as usize],
            tracker_keys_max: [1, 3, 6, 64][of(4, seed / 4) as usize],
            record_events: seed % 5 != 0,
            ..CpuOptions::new(1 + of(13, seed))
        };
        let mut run = Run::new(kind, &options, seed % 2 == 0);
        ops.iter().try_for_each(|op| run.apply(op))?;
        run.close()
    });
}

/// What the fuzzer `cpu` runs.
pub fn fuzzed(input: &[u8]) {
    let rng = &mut Rng::of_input(input);
    let kinds = [PolicyKind::Lru, PolicyKind::Arc(GhostHits::T1), PolicyKind::Arc(GhostHits::T2)];
    let (kind, takes_runs) = (rng.pick(&kinds), rng.chance(50));
    let options = CpuOptions {
        store_threshold: rng.pick(&[1, 2, 3]),
        tracker_keys_max: rng.pick(&[1, 3, 6, 64]),
        record_events: rng.chance(80),
        ..CpuOptions::new(1 + u32::try_from(rng.below(13)).unwrap())
    };
    fuzz(rng, one_op, |ops| {
        let mut run = Run::new(kind, &options, takes_runs);
        ops.iter().try_for_each(|op| run.apply(op))?;
        run.close()
    });
}

#[test]
fn the_corpus_of_the_fuzzer_equals_the_model() {
    replay::replay("cpu", fuzzed);
}

#[test]
fn a_manager_with_lru_equals_its_model() {
    check(PolicyKind::Lru);
}

#[test]
fn a_manager_with_arc_equals_its_model() {
    check(PolicyKind::Arc(GhostHits::T1));
}

#[test]
fn a_manager_with_arc_and_ghosts_to_t2_equals_its_model() {
    check(PolicyKind::Arc(GhostHits::T2));
}
