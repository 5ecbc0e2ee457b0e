//! The tiering manager over scripted tiers, in one thread, against a naive model of all of it.
//!
//! After each operation every count and counter, every key's state, the calls that reached the tiers and the events
//! must be those of the model; and, whatever the model says, no slot may be copied into while anyone else copies, and
//! no tier may be told of the end of a request twice, or write for it afterwards. A failing run prints its seed;
//! `KVO_TEST_SEED=<seed> cargo test -p kvo-tiering --test model` replays it alone. The fuzzer `tiering` does
//! the same by the bytes of its inputs.

#[cfg(test)]
#[path = "../../../fuzz/replay.rs"]
mod replay;
mod support;

use std::{cell::Cell, time::Duration};

use kvo_core::{
    CompleteErrorReason, JobId, JobKind, JobToken, LoadError, Locality, LookupResult, ManualClock, Medium,
    OffloadKey, OffloadManager, OffloadPolicy, ReleasedSlot, RequestContext, RequestError, RequestId, SlotId,
    StoreError, StoreOutcome, TierCompletion, TierDirection, TierFilter, TransferResult,
};
use kvo_cpu::{CpuManager, CpuOptions};
use kvo_policies::{CachePolicy, GhostHits, PolicyKind};
use kvo_tiering::{PressureOptions, TieringManager, TieringOptions};
use support::{
    audit::Audit,
    cpu::model::{Model as Primary, Offered},
    fake_tier::{Call, Spec, World},
    key_of,
    naive::Naive,
    ops::{How, Late, NUM_REQUESTS, Op, Stray, all_keys, generate, one_op},
    policies::naive::{Naive as NaivePolicy, NaiveArc, NaiveLru},
    seeded::{Rng, explore, fuzz},
};

struct Run {
    manager: TieringManager<Box<dyn CachePolicy>>,
    world: World,
    clock: ManualClock,
    slow: Option<usize>,
    contexts: Vec<RequestContext>,
    num_requests: u64,
    tokens: Vec<JobToken>,
    /// The slots that are in use, each by the model's number for it.
    slots: Vec<(SlotId, SlotId)>,
    /// The slots that tiers hold of jobs that they have reported or will report at their next poll; and those released.
    held: Vec<HeldSlot>,
    released: Vec<HeldSlot>,
    /// Slots that tiers held when the manager was reset, over all resets.
    held_at_resets: u64,
    audit: Audit,
    model: Naive,
}

/// A slot that a tier holds, by its number in the manager and in the model.
#[derive(Clone, Copy, Debug)]
struct HeldSlot {
    tier: usize,
    job: JobId,
    slot: SlotId,
    number: SlotId,
}

/// A slot that no manager has.
const NO_SLOT: SlotId = SlotId(u32::MAX);

type Outcome = Result<(), String>;

fn equal<T: PartialEq + std::fmt::Debug>(what: &str, actual: &T, expected: &T) -> Outcome {
    if actual == expected { Ok(()) } else { Err(format!("{what}: {actual:?}, the model has {expected:?}")) }
}

/// One to three tiers of all kinds.
fn specs(seed: u64) -> Vec<Spec> {
    let is = |bit: u64| seed >> bit & 1 == 1;
    let tier = |index: u64| Spec {
        medium: if index == 1 { Medium::Object } else { Medium::Ssd },
        locality: if index == 0 { Locality::Local } else { Locality::Remote },
        level: if is(index) { OffloadPolicy::RequestLevel } else { OffloadPolicy::ChunkLevel },
        async_lookup: is(3 + index) && is(6 + index),
        ..Spec::chunk_level(&format!("tier-{index}"))
    };
    (0..=seed % 3).map(tier).collect()
}

impl Run {
    fn new(kind: PolicyKind, seed: u64) -> Self {
        let capacity = u32::try_from(1 + seed / 3 % 9).unwrap();
        let policy: Box<dyn NaivePolicy> = match kind {
            PolicyKind::Lru => Box::new(NaiveLru::default()),
            PolicyKind::Arc(ghosts) => Box::new(NaiveArc::new(capacity as usize, ghosts == GhostHits::T2)),
            other => panic!("{other} has no model yet"),
        };
        let cpu = CpuOptions {
            record_events: true,
            store_threshold: if seed.is_multiple_of(7) { 2 } else { 1 },
            ..CpuOptions::new(capacity)
        };
        let options = TieringOptions {
            inflight_cascades_max: [256, 1, 2, 256][usize::try_from(seed / 5 % 4).unwrap()],
            retry_failed_jobs: (seed / 2).is_multiple_of(4),
            // The model knows none.
            ..TieringOptions::new(support::CHUNK_BYTES).with_pressure(PressureOptions::NONE)
        };
        let (world, tiers) = World::new(&specs(seed));
        let clock = ManualClock::default();
        let primary = CpuManager::new(cpu.clone(), kind.build(capacity)).unwrap();
        let manager = TieringManager::new(primary, tiers, options.clone(), Box::new(clock.clone())).unwrap();
        let primary = Primary::new(cpu, policy, NUM_REQUESTS);
        let mut run = Self {
            manager,
            model: Naive::new(primary, world.clone(), options, NUM_REQUESTS),
            world,
            clock,
            slow: (seed % 4 == 1).then_some(0),
            contexts: (0..NUM_REQUESTS).map(|_| RequestContext::new(RequestId(0))).collect(),
            num_requests: 0,
            tokens: Vec::new(),
            slots: Vec::new(),
            held: Vec::new(),
            released: Vec::new(),
            held_at_resets: 0,
            audit: Audit::default(),
        };
        for tier in 0..specs(seed).len() {
            run.world.put(tier, &all_keys().skip(tier).step_by(3).collect::<Vec<_>>());
        }
        (0..NUM_REQUESTS).for_each(|req| run.new_request(req, 0).expect("the requests are new"));
        run.compare().expect("an empty manager equals an empty model");
        run
    }

    fn new_request(&mut self, req: usize, filter: u64) -> Outcome {
        let filter = match filter {
            1 => TierFilter::all().only_media([Medium::Object]),
            2 => TierFilter::all().only_localities([Locality::Local]),
            3 => TierFilter::all().only_media([Medium::Ssd]).only_localities([Locality::Remote]),
            4 => TierFilter::all().only_media([]),
            _ => TierFilter::all(),
        };
        self.num_requests += 1;
        let id = RequestId(self.num_requests);
        self.contexts[req] = RequestContext::new(id).with_tier_filter(filter.clone());
        let policy = self.manager.new_request(&mut self.contexts[req]).map_err(|error| error.to_string())?;
        equal("the policy", &policy, &self.model.new_request(req, id, filter))
    }

    /// The error of a request that does not run any more.
    fn stopped(&self, req: usize) -> Option<RequestError> {
        self.model.is_finished(req).then(|| RequestError::Finished { req: self.contexts[req].id() })
    }

    fn apply(&mut self, op: &Op) -> Outcome {
        match op {
            Op::NewRequest { req, filter } => {
                if self.stopped(*req).is_none() {
                    self.finish(*req)?;
                }
                self.new_request(*req, *filter)?;
            }
            Op::SetPositions { req, positions } => {
                for (key, at) in positions {
                    if !self.model.primary.has_position(*req, *key) {
                        self.contexts[*req].set_positions([(*key, *at)]);
                        self.model.set_position(*req, *key, *at);
                    }
                }
            }
            Op::Lookup { req, key } => {
                // First the model, which asks the tiers what they would answer.
                let expected = self.model.lookup(*req, *key);
                equal("a lookup", &self.manager.lookup(&mut self.contexts[*req], key), &expected)?;
            }
            Op::PrepareLoad { req, keys } => self.load(*req, keys)?,
            Op::LoadReady { req, keys } => {
                let mut ready: Vec<OffloadKey> = Vec::new();
                for key in keys {
                    if self.model.primary.peek(*key) == LookupResult::Hit && !ready.contains(key) {
                        ready.push(*key);
                    }
                }
                self.load(*req, &ready)?;
            }
            Op::PrepareStore { req, keys } => self.offer(*req, keys)?,
            Op::Complete { job, done } => self.complete(*job, *done)?,
            Op::Touch { keys } => {
                let mut unique: Vec<OffloadKey> = Vec::new();
                for key in keys {
                    if !unique.contains(key) {
                        unique.push(*key);
                    }
                }
                self.manager.touch(&unique);
                self.model.primary.touch(&unique);
            }
            Op::Finish { req } => self.finish(*req)?,
            Op::ScheduleEnd => {
                self.manager.on_schedule_end();
                self.model.schedule_end();
            }
            Op::TakeEvents => self.take_events()?,
            Op::Advance { ms } => {
                self.clock.advance(Duration::from_millis(*ms));
                self.model.now += Duration::from_millis(*ms);
            }
            Op::Reset => self.reset()?,
            Op::ResetFlushed => {
                self.manager.on_reset_flushed();
                self.model.reset_flushed();
            }
            Op::TierJobDone { job, how, pressed } => self.tier_job_done(*job, *how, *pressed),
            Op::Release { held } => {
                if !self.held.is_empty() {
                    let held = self.held.remove(held % self.held.len());
                    self.release(held);
                    self.released.push(held);
                }
            }
            Op::StrayRelease { pick, stray } => self.stray_release(*pick, *stray),
            Op::StrayReport { .. } | Op::TierRefuses { .. } | Op::TierFinds { .. } | Op::TierLoses { .. } => {
                self.tier_changes(op);
            }
        }
        self.compare()
    }

    fn finish(&mut self, req: usize) -> Outcome {
        let expected = self.stopped(req).map_or(Ok(()), Err);
        if expected.is_ok() {
            self.model.finish(req);
        }
        equal("a finish", &self.manager.on_request_finished(&mut self.contexts[req]), &expected)
    }

    fn load(&mut self, req: usize, keys: &[OffloadKey]) -> Outcome {
        let result = self.manager.prepare_load(&mut self.contexts[req], keys);
        if let Some(error) = self.stopped(req) {
            return equal("a late load", &result, &Err(LoadError::Request(error)));
        }
        if let Some((_, again)) = keys.iter().enumerate().find(|(at, key)| keys[..*at].contains(key)) {
            return equal("a repeated key", &result, &Err(LoadError::Repeated { key: *again }));
        }
        let (absent, pending) = self.model.primary.load(req, keys);
        if !(absent.is_empty() && pending.is_empty()) {
            return equal("a load", &result, &Err(LoadError::NotReady { absent, pending }));
        }
        let job = result.map_err(|error| format!("a load of ready keys: {error}"))?;
        self.audit.load(job.token.id(), &job.slots)?;
        for (key, slot) in keys.iter().zip(&job.slots) {
            self.agree(self.model.primary.slot(*key).unwrap(), *slot)?;
        }
        self.model.primary.open(job.token.id(), JobKind::Load, keys.to_vec());
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
        self.compare_calls()?;
        self.audit.store(job.token.id(), &job.slots)?;
        for (slot, actual) in self.model.occupy(req, &job.keys).into_iter().zip(&job.slots) {
            self.agree(slot, *actual)?;
        }
        self.model.open_store(req, job.token.id(), job.keys);
        self.tokens.push(job.token);
        Ok(())
    }

    fn complete(&mut self, job: usize, done: bool) -> Outcome {
        if self.tokens.is_empty() {
            return Ok(());
        }
        let token = self.tokens.remove(job % self.tokens.len());
        let (id, kind, generation) = (token.id(), token.kind(), token.generation());
        let result = match (kind, done) {
            (JobKind::Load, _) => self.manager.complete_load(token),
            (JobKind::Store, true) => self.manager.complete_store(token, TransferResult::Done),
            (JobKind::Store, false) => self.manager.complete_store(token, TransferResult::Failed),
        };
        let current = self.model.primary.generation;
        if generation != current {
            let expected = Err((CompleteErrorReason::Reset { token: generation, current }, id));
            let actual = result.map_err(|error| (error.reason, error.token.id()));
            return equal("a stale completion", &actual, &expected);
        }
        self.audit.completed(id);
        match kind {
            JobKind::Load => self.model.primary.complete(id, done),
            JobKind::Store => self.model.complete_store(id, done),
        }
        equal("a completion", &result, &Ok(()))
    }

    fn take_events(&mut self) -> Outcome {
        let actual: Vec<_> =
            support::events(&mut self.manager).into_iter().map(|event| (event.kind, event.keys)).collect();
        equal("the events", &actual, &self.model.take_events())
    }

    fn reset(&mut self) -> Outcome {
        let report = self.manager.reset();
        self.held_at_resets += self.manager.stats().tiers.iter().map(|tier| tier.held_slots).sum::<u64>();
        let (dropped, running) = self.model.reset();
        let parked = self.model.primary.stats().parked_slots;
        let actual = (report.promotions_dropped, report.jobs_running, report.slots_parked);
        equal("the report of a reset", &actual, &(dropped, running, parked))?;
        self.compare_calls()?;
        self.audit.reset();
        Ok(())
    }

    fn report(&mut self, tier: usize, report: TierCompletion) {
        self.world.report(tier, report.clone());
        self.model.report(tier, report);
    }

    /// A tier will report some chunks as late, and hold their slots.
    fn report_late(&mut self, tier: usize, id: JobId, mask: u8, late: Late) {
        let job = self.model.jobs.iter().find(|job| job.id == id).unwrap();
        let (keys, numbers) = (job.keys(), job.slots());
        let open = self.world.open_jobs().into_iter().find(|(_, job)| job.id == id).unwrap().1;
        let is_in = |at: usize| if mask == 0 { at == 0 } else { mask >> (at % 8) & 1 == 1 };
        let late_places: Vec<usize> = (0..keys.len()).filter(|at| is_in(*at)).collect();
        let held_of = |at: usize| HeldSlot { tier, job: id, slot: open.chunks[at].slot, number: numbers[at] };
        let held: Vec<HeldSlot> = late_places.iter().map(|at| held_of(*at)).collect();
        let named = late_places.iter().map(|at| keys[*at]).collect();
        let report = match late {
            Late::AsAWhole => TierCompletion::failed(id),
            Late::Unnamed => TierCompletion::done(id),
            Late::Named | Late::Twice | Late::WithAnother => TierCompletion::except(id, named),
        };
        let also = if matches!(late, Late::WithAnother) { vec![NO_SLOT] } else { vec![] };
        let times = if matches!(late, Late::Twice) { 2 } else { 1 };
        let with = |slot: fn(&HeldSlot) -> SlotId| {
            [held.iter().map(slot).collect::<Vec<_>>().repeat(times), also.clone()].concat()
        };
        self.world.report(tier, report.clone().with_held(with(|held| held.slot)));
        self.model.report(tier, report.with_held(with(|held| held.number)));
        // A chunk that the job names twice has one slot.
        for held in held {
            if !self.held.iter().any(|known| (known.job, known.slot) == (id, held.slot)) {
                self.held.push(held);
            }
        }
    }

    fn release(&mut self, HeldSlot { tier, job, slot, number }: HeldSlot) {
        self.world.release(tier, job, slot);
        self.model.release_held(tier, ReleasedSlot { job, slot: number });
    }

    fn stray_release(&mut self, pick: usize, stray: Stray) {
        let num_tiers = self.world.lock().tiers.len();
        let open = || {
            let jobs: Vec<_> = self.model.jobs.iter().filter(|job| !job.reported).collect();
            let job = jobs.get(pick % jobs.len().max(1))?;
            let (_, known) = self.world.open_jobs().into_iter().find(|(_, open)| open.id == job.id)?;
            let (slot, number) = (known.chunks[0].slot, job.slots()[0]);
            Some(HeldSlot { tier: job.tier, job: job.id, slot, number })
        };
        let of = |all: &[HeldSlot]| all.get(pick % all.len().max(1)).copied();
        let release = match stray {
            Stray::OfNoJob => {
                let (tier, job) = (pick % num_tiers, JobId(self.model.next_job + pick as u64));
                Some(HeldSlot { tier, job, slot: NO_SLOT, number: NO_SLOT })
            }
            Stray::OfAnOpenJob => open(),
            Stray::Again => of(&self.released),
            Stray::OfAnother => of(&self.held)
                .filter(|_| num_tiers > 1)
                .map(|held| HeldSlot { tier: (held.tier + 1) % num_tiers, ..held }),
        };
        if let Some(release) = release {
            self.release(release);
        }
    }

    fn tier_job_done(&mut self, job: usize, how: How, pressed: bool) {
        let slow = self.slow.filter(|_| !pressed);
        let open: Vec<_> = self
            .model
            .jobs
            .iter()
            .filter(|job| !job.reported && Some(job.tier) != slow)
            .map(|job| (job.tier, job.id, job.direction, job.keys()))
            .collect();
        if open.is_empty() {
            return;
        }
        let (tier, id, direction, keys) = open[job % open.len()].clone();
        let masked = |mask: u8| {
            let is_in = |at: &usize| mask >> (at % 8) & 1 == 1;
            (0..keys.len()).filter(is_in).map(|at| keys[at]).collect::<Vec<_>>()
        };
        let report = match how {
            How::Late(mask, late) => return self.report_late(tier, id, mask, late),
            How::Done => TierCompletion::done(id),
            How::Failed => TierCompletion::failed(id),
            How::Partial(mask) => TierCompletion::except(id, masked(mask)),
            How::Strange(mask) => {
                let mut failed = masked(mask);
                failed.push(key_of(77, 0));
                TierCompletion::except(id, failed)
            }
        };
        if direction == TierDirection::Read && matches!(how, How::Partial(mask) if mask % 2 == 0) {
            // A file that proved bad is not found again.
            for key in &keys {
                self.world.lock().tiers[tier].resident.remove(key);
            }
        }
        self.report(tier, report);
    }

    fn tier_changes(&mut self, op: &Op) {
        let num_tiers = self.world.lock().tiers.len();
        match op {
            Op::StrayReport { tier, job } => {
                let (tier, id) = (tier % num_tiers, JobId(job % (self.model.next_job + 1)));
                let has = self.model.jobs.iter().any(|job| job.id == id && job.tier == tier && !job.reported);
                if !has {
                    self.report(tier, TierCompletion::done(id));
                }
            }
            Op::TierRefuses { tier, reads, writes } => {
                let script = &mut self.world.lock().tiers[tier % num_tiers];
                (script.refuses_reads, script.refuses_writes) = (*reads, *writes);
            }
            Op::TierFinds { tier, key } => self.world.put(tier % num_tiers, &[*key]),
            Op::TierLoses { tier, key } => {
                self.world.lock().tiers[tier % num_tiers].resident.remove(key);
            }
            _ => {}
        }
    }

    /// The model's number for a slot, and the slot: whoever has one has the other.
    fn agree(&mut self, number: SlotId, slot: SlotId) -> Outcome {
        let Self { slots, model, .. } = self;
        slots.retain(|(number, _)| model.primary.is_used(*number));
        if let Some((_, known)) = slots.iter().find(|(of, _)| *of == number) {
            return equal("the slot of a chunk", &slot, known);
        }
        if !model.primary.is_used(number) {
            // A job that was not taken, or an end in the same operation.
            return Ok(());
        }
        if slots.iter().any(|(_, used)| *used == slot) {
            return Err(format!("slot {slot} is handed out and is in use"));
        }
        slots.push((number, slot));
        Ok(())
    }

    fn compare_calls(&mut self) -> Outcome {
        let (actual, expected) = (self.world.calls(), self.model.take_calls());
        let without_slots = |calls: &[(usize, Call)]| {
            let mut calls = calls.to_vec();
            for (_, call) in &mut calls {
                match call {
                    Call::Job(job) | Call::Rejected(job) => {
                        job.chunks.iter_mut().for_each(|chunk| chunk.slot = SlotId(0));
                    }
                    Call::Held(_, slots) => slots.fill(SlotId(0)),
                    Call::Released(released) => released.slot = SlotId(0),
                    _ => {}
                }
            }
            calls
        };
        equal("the calls to the tiers", &without_slots(&actual), &without_slots(&expected))?;
        for ((tier, actual), (_, expected)) in actual.iter().zip(&expected) {
            self.audit.call(*tier, actual)?;
            if let (Call::Job(actual), Call::Job(expected)) = (actual, expected) {
                for (actual, expected) in actual.chunks.iter().zip(&expected.chunks) {
                    self.agree(expected.slot, actual.slot)?;
                }
            }
        }
        Ok(())
    }

    fn compare(&mut self) -> Outcome {
        self.compare_calls()?;
        let counts = support::check_sound(&self.manager);
        equal("the counts", &counts, &self.model.primary.counts())?;
        equal("the stats", &self.manager.stats(), &self.model.stats())?;
        equal("pending work", &self.manager.has_pending_work(), &self.model.has_pending_work())?;
        for key in all_keys() {
            let actual = self.manager.primary().peek(&key);
            equal(&format!("the state of {key:?}"), &actual, &self.model.primary.peek(key))?;
        }
        Ok(())
    }

    /// Ends all jobs and requests, looks that nothing is left, then evicts everything, one chunk at a time.
    fn close(&mut self) -> Outcome {
        while !self.tokens.is_empty() {
            self.apply(&Op::Complete { job: 0, done: true })?;
        }
        for req in 0..NUM_REQUESTS {
            self.apply(&Op::Finish { req })?;
        }
        for _ in 0..3 {
            for _ in 0..self.model.jobs.len() {
                self.apply(&Op::TierJobDone { job: 0, how: How::Done, pressed: true })?;
            }
            self.apply(&Op::ScheduleEnd)?;
        }
        equal("work at rest", &self.manager.has_pending_work(), &false)?;
        while !self.held.is_empty() {
            self.apply(&Op::Release { held: 0 })?;
        }
        self.apply(&Op::ScheduleEnd)?;
        let counts = self.manager.counts();
        equal("what is in flight", &(counts.pending, counts.pinned), &(0, 0))?;
        equal("requests remembered", &self.manager.stats().open_requests, &0)?;
        self.audit.expect_quiet()?;

        self.apply(&Op::NewRequest { req: 0, filter: 0 })?;
        for n in 0..u64::from(counts.capacity) {
            // Twice, for the threshold. Each stays pending, so the next takes an older one.
            for _ in 0..2 {
                self.apply(&Op::PrepareStore { req: 0, keys: vec![key_of(1_000 + n, 0)] })?;
            }
        }
        self.apply(&Op::TakeEvents)
    }
}

/// What happened to late transfers over all runs, so that runs which test none of it are noticed.
#[derive(Debug, Default)]
struct LateTally {
    jobs_late: Cell<u64>,
    invalid_releases: Cell<u64>,
    held_at_resets: Cell<u64>,
}

impl LateTally {
    fn add(&self, run: &Run) {
        let tiers = run.manager.stats().tiers;
        self.jobs_late.update(|sum| sum + tiers.iter().map(|tier| tier.jobs_late).sum::<u64>());
        self.invalid_releases.update(|sum| sum + tiers.iter().map(|tier| tier.invalid_releases).sum::<u64>());
        self.held_at_resets.update(|sum| sum + run.held_at_resets);
    }
}

#[track_caller]
fn check(kind: PolicyKind) {
    let tally = LateTally::default();
    explore(0..1_600, 400_000, generate, |seed, ops| {
        let mut run = Run::new(kind, seed);
        ops.iter().try_for_each(|op| run.apply(op))?;
        run.close()?;
        tally.add(&run);
        Ok(())
    });
    println!("{tally:?}");
    if std::env::var_os("KVO_TEST_SEED").is_none() {
        let LateTally { jobs_late, invalid_releases, held_at_resets } = &tally;
        let counts = [jobs_late, invalid_releases, held_at_resets].map(Cell::get);
        assert!(counts.iter().all(|count| *count > 200), "too little was late: {tally:?}");
    }
}

/// What the fuzzer `tiering` runs. The first bytes choose the tiers and the options, as a seed does.
pub fn fuzzed(input: &[u8]) {
    let rng = &mut Rng::of_input(input);
    let kind = rng.pick(&[PolicyKind::Lru, PolicyKind::Arc(GhostHits::T1)]);
    let seed = rng.below(1 << 16);
    fuzz(rng, one_op, |ops| {
        let mut run = Run::new(kind, seed);
        ops.iter().try_for_each(|op| run.apply(op))?;
        run.close()
    });
}

#[test]
fn the_corpus_of_the_fuzzer_equals_the_model() {
    replay::replay("tiering", fuzzed);
}

/// B56: every count and every counter after each call.
#[test]
fn a_manager_with_lru_equals_its_model() {
    check(PolicyKind::Lru);
}

/// B56: every count and every counter after each call.
#[test]
fn a_manager_with_arc_equals_its_model() {
    check(PolicyKind::Arc(GhostHits::T1));
}
