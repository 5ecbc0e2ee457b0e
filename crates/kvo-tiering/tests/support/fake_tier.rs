//! Secondary tiers that a test drives: nothing ends, is found or is refused unless the test says so.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use kvo_core::{
    JobId, JobRejected, Locality, Medium, OffloadEvent, OffloadKey, OffloadPolicy, RejectReason,
    ReleasedSlot, RequestContext, RequestId, SecondaryTier, SlotId, TierCompletion, TierDirection, TierJob,
    TierLookup, TierOutcome,
};

/// What a tier is.
#[derive(Clone, Debug)]
pub struct Spec {
    pub name: String,
    pub medium: Medium,
    pub locality: Locality,
    pub level: OffloadPolicy,
    /// Whether the first lookup of a (request, key) is answered in a later step only.
    pub async_lookup: bool,
}

impl Spec {
    /// A local disk that wants new chunks only and answers at once.
    pub fn chunk_level(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            medium: Medium::Ssd,
            locality: Locality::Local,
            level: OffloadPolicy::ChunkLevel,
            async_lookup: false,
        }
    }

    /// A local disk that wants all chunks of a request.
    pub fn request_level(name: &str) -> Self {
        Self { level: OffloadPolicy::RequestLevel, ..Self::chunk_level(name) }
    }
}

/// A call that reached a tier.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Call {
    NewRequest(RequestId),
    Lookup(RequestId, OffloadKey),
    Job(TierJob),
    Rejected(TierJob),
    Poll,
    /// The tier is about to report this job, which it had, and will still touch these slots of it. Not a call.
    Held(JobId, Vec<SlotId>),
    /// The tier reported this job, which it had. Not a call, but from here on the tier touches no slot of it that it
    /// does not hold.
    Ended(JobId),
    /// The tier released this slot, which it held. Not a call.
    Released(ReleasedSlot),
    Finished(RequestId),
    ScheduleEnd,
    TakeEvents,
}

/// What a test sets and reads of one tier.
#[derive(Debug)]
pub struct Script {
    pub spec: Spec,
    /// What the tier can be found to have. A write that ends well adds to it.
    pub resident: BTreeSet<OffloadKey>,
    pub open: Vec<TierJob>,
    /// Given out at the next poll.
    pub reports: Vec<TierCompletion>,
    pub releases: Vec<ReleasedSlot>,
    /// What it has reported as held and not released.
    held: Vec<ReleasedSlot>,
    pub events: Vec<OffloadEvent>,
    pub refuses_reads: bool,
    pub refuses_writes: bool,
    /// Why.
    pub refusal: RejectReason,
    /// With asynchronous lookups: the pairs that were asked, and whether the answer has arrived.
    asked: BTreeMap<(RequestId, OffloadKey), bool>,
}

impl Script {
    /// What a lookup would be answered now.
    pub fn answer(&self, req: RequestId, key: &OffloadKey) -> TierLookup {
        if self.spec.async_lookup && self.asked.get(&(req, *key)) != Some(&true) {
            TierLookup::Retry
        } else if self.resident.contains(key) {
            TierLookup::Hit
        } else {
            TierLookup::Miss
        }
    }

    pub fn refuses(&self, direction: TierDirection) -> bool {
        match direction {
            TierDirection::Read => self.refuses_reads,
            TierDirection::Write => self.refuses_writes,
        }
    }
}

/// The tests' side of all tiers of a manager.
#[derive(Clone, Debug, Default)]
pub struct World(Arc<Mutex<State>>);

#[derive(Debug, Default)]
pub struct State {
    /// Calls that reached the tiers, in order over all of them.
    pub log: Vec<(usize, Call)>,
    pub tiers: Vec<Script>,
}

impl World {
    pub fn new(specs: &[Spec]) -> (Self, Vec<Box<dyn SecondaryTier>>) {
        let world = Self::default();
        let mut tiers: Vec<Box<dyn SecondaryTier>> = Vec::new();
        for (index, spec) in specs.iter().enumerate() {
            world.lock().tiers.push(Script {
                spec: spec.clone(),
                resident: BTreeSet::new(),
                open: Vec::new(),
                reports: Vec::new(),
                releases: Vec::new(),
                held: Vec::new(),
                events: Vec::new(),
                refuses_reads: false,
                refuses_writes: false,
                refusal: RejectReason::Busy,
                asked: BTreeMap::new(),
            });
            tiers.push(Box::new(FakeTier { world: world.clone(), index, spec: spec.clone() }));
        }
        (world, tiers)
    }

    pub fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The calls since the last time, in order.
    pub fn calls(&self) -> Vec<(usize, Call)> {
        std::mem::take(&mut self.lock().log)
    }

    /// The jobs among the calls since the last time, those that were not taken left out.
    pub fn new_jobs(&self) -> Vec<(usize, TierJob)> {
        let job = |(tier, call)| match call {
            Call::Job(job) => Some((tier, job)),
            _ => None,
        };
        self.calls().into_iter().filter_map(job).collect()
    }

    /// The one job that reached a tier since the last time.
    #[track_caller]
    pub fn new_job(&self) -> TierJob {
        let mut jobs = self.new_jobs();
        assert_eq!(jobs.len(), 1, "one job must have reached the tiers: {jobs:?}");
        jobs.remove(0).1
    }

    /// The jobs that the tiers have.
    pub fn open_jobs(&self) -> Vec<(usize, TierJob)> {
        let state = self.lock();
        let of = |(tier, script): (usize, &Script)| {
            script.open.iter().map(|job| (tier, job.clone())).collect::<Vec<_>>()
        };
        state.tiers.iter().enumerate().flat_map(of).collect()
    }

    /// Lets `tier` say this at its next poll, be it true or not.
    pub fn report(&self, tier: usize, report: TierCompletion) {
        let script = &mut self.lock().tiers[tier];
        let written = |job: &&TierJob| job.id == report.job && job.direction == TierDirection::Write;
        if report.outcome == TierOutcome::Done
            && let Some(job) = script.open.iter().find(written)
        {
            script.resident.extend(job.chunks.iter().map(|chunk| chunk.key));
        }
        script.reports.push(report);
    }

    /// Lets `tier` say after its next poll that it has let a slot go, be it true or not.
    pub fn release(&self, tier: usize, job: JobId, slot: SlotId) {
        self.lock().tiers[tier].releases.push(ReleasedSlot { job, slot });
    }

    /// Makes `tier` have chunks.
    pub fn put(&self, tier: usize, keys: &[OffloadKey]) {
        self.lock().tiers[tier].resident.extend(keys);
    }

    /// How often `tier` was told that the request is finished, since the calls were last taken.
    pub fn finishes(&self, tier: usize, req: RequestId) -> usize {
        self.lock().log.iter().filter(|logged| **logged == (tier, Call::Finished(req))).count()
    }
}

#[derive(Debug)]
struct FakeTier {
    world: World,
    index: usize,
    spec: Spec,
}

impl FakeTier {
    fn log(&self, call: Call) {
        self.world.lock().log.push((self.index, call));
    }
}

impl SecondaryTier for FakeTier {
    fn name(&self) -> &str {
        &self.spec.name
    }

    fn medium(&self) -> Medium {
        self.spec.medium
    }

    fn locality(&self) -> Locality {
        self.spec.locality
    }

    fn on_new_request(&mut self, req: &RequestContext) -> OffloadPolicy {
        self.log(Call::NewRequest(req.id()));
        self.spec.level
    }

    fn lookup(&mut self, req: RequestId, key: &OffloadKey) -> TierLookup {
        self.log(Call::Lookup(req, *key));
        let mut state = self.world.lock();
        let script = &mut state.tiers[self.index];
        let answer = script.answer(req, key);
        script.asked.entry((req, *key)).or_insert(false);
        answer
    }

    fn submit(&mut self, job: TierJob) -> Result<(), JobRejected> {
        let (refused, reason) = {
            let script = &self.world.lock().tiers[self.index];
            (script.refuses(job.direction), script.refusal)
        };
        if refused {
            self.log(Call::Rejected(job.clone()));
            return Err(JobRejected { job, reason });
        }
        self.log(Call::Job(job.clone()));
        self.world.lock().tiers[self.index].open.push(job);
        Ok(())
    }

    fn poll(&mut self, done: &mut Vec<TierCompletion>) {
        let mut guard = self.world.lock();
        let State { log, tiers } = &mut *guard;
        let script = &mut tiers[self.index];
        log.push((self.index, Call::Poll));
        for report in script.reports.drain(..) {
            if let Some(at) = script.open.iter().position(|job| job.id == report.job) {
                let job = script.open.remove(at);
                let is_held = |slot: &SlotId| report.held.contains(slot);
                let mut held: Vec<SlotId> =
                    job.chunks.iter().map(|chunk| chunk.slot).filter(is_held).collect();
                held.sort_unstable();
                held.dedup();
                if !held.is_empty() {
                    script.held.extend(held.iter().map(|slot| ReleasedSlot { job: job.id, slot: *slot }));
                    log.push((self.index, Call::Held(job.id, held)));
                }
                log.push((self.index, Call::Ended(report.job)));
            }
            done.push(report);
        }
    }

    fn take_released(&mut self, released: &mut Vec<ReleasedSlot>) {
        let mut guard = self.world.lock();
        let State { log, tiers } = &mut *guard;
        let script = &mut tiers[self.index];
        for release in script.releases.drain(..) {
            if let Some(at) = script.held.iter().position(|held| *held == release) {
                script.held.remove(at);
                log.push((self.index, Call::Released(release)));
            }
            released.push(release);
        }
    }

    fn on_request_finished(&mut self, req: RequestId) {
        self.log(Call::Finished(req));
        self.world.lock().tiers[self.index].asked.retain(|(of, _), _| *of != req);
    }

    fn on_schedule_end(&mut self) {
        self.log(Call::ScheduleEnd);
        self.world.lock().tiers[self.index].asked.values_mut().for_each(|answered| *answered = true);
    }

    fn take_events(&mut self, events: &mut Vec<OffloadEvent>) {
        self.log(Call::TakeEvents);
        events.append(&mut self.world.lock().tiers[self.index].events);
    }
}
