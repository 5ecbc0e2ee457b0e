//! A tier between the manager and the one that ships: it passes everything on, late, in another order, twice, or never.

use std::{
    collections::{BTreeMap, BTreeSet},
    error::Error,
    sync::{Arc, Mutex, MutexGuard, TryLockError},
    time::Duration,
};

use kvo_core::{
    BlockHash, GroupIdx, JobId, JobRejected, Medium, OffloadEvent, OffloadKey, OffloadPolicy, RejectReason,
    ReleasedSlot, RequestContext, RequestId, SecondaryTier, SlotId, TierCompletion, TierDirection, TierJob,
    TierLookup, TierOutcome,
};
use kvo_nvme::{
    NvmeStore,
    testing::{HoldableMemory, Underneath},
};
use kvo_policies::CachePolicy;
use kvo_tiering::{MemoryTier, MemoryTierWorker};

use crate::{
    canary::Plant,
    host::Joined,
    random::Random,
    setup::{Rates, Trouble},
    violation::{Rule, check, violated},
};

/// Why a tier refuses what it has room for.
const REASONS: [RejectReason; 3] = [RejectReason::ReadOnly, RejectReason::Unavailable, RejectReason::Invalid];

/// A tier that ships.
#[expect(clippy::large_enum_variant, reason = "there are two of them in a process")]
pub(crate) enum Inner {
    Memory {
        tier: MemoryTier<Box<dyn CachePolicy>>,
        /// None if it is gone.
        worker: Option<MemoryTierWorker<Joined>>,
        wants_all: bool,
    },
    Nvme {
        /// Both are there until the process ends.
        store: Option<NvmeStore>,
        underneath: Option<Underneath>,
    },
}

/// A job that the tier in memory is to be given some time; until then its slots are held as if it had begun.
struct Accepted {
    job: TierJob,
    held: Vec<Box<dyn Send>>,
    /// It was reported as failed.
    is_late: bool,
}

/// A report that is to be given out.
struct Report {
    completion: TierCompletion,
    /// In a step no earlier than this.
    not_before: u64,
    /// It names what is none of its job's.
    is_malformed: bool,
}

impl Report {
    fn new(completion: TierCompletion) -> Self {
        Self { completion, not_before: 0, is_malformed: false }
    }
}

pub(crate) struct Tier {
    pub(crate) inner: Inner,
    memory: Arc<Joined>,
    pub(crate) random: Random,
    pub(crate) rates: Rates,
    pub(crate) plant: Option<Plant>,
    accepted: Vec<Accepted>,
    /// Jobs that were taken and whose report was not given out.
    pub(crate) open: BTreeMap<JobId, TierJob>,
    /// Jobs of the store that were reported as failed at its shut-down, and whose transfers go on.
    given_up: BTreeMap<JobId, TierJob>,
    /// Slots that were reported as held and were not let go.
    pub(crate) held: BTreeMap<(JobId, SlotId), TierDirection>,
    reports: Vec<Report>,
    releases: Vec<ReleasedSlot>,
    /// What lookups were told first: still looking, until that step.
    looking: BTreeMap<(RequestId, OffloadKey), u64>,
    pub(crate) is_dead: bool,
    is_shut: bool,
    step: u64,
    /// What it has said that makes no sense.
    pub(crate) invalid_reports: u64,
    pub(crate) invalid_releases: u64,
    /// How often it has said anything, so that it is known whether a call changed something by itself.
    pub(crate) said: u64,
    /// What has happened.
    pub(crate) struck: BTreeMap<Trouble, u64>,
}

pub(crate) type SharedTier = Arc<Mutex<Tier>>;

pub(crate) fn lock(tier: &SharedTier) -> MutexGuard<'_, Tier> {
    tier.try_lock().unwrap_or_else(|error| match error {
        TryLockError::Poisoned(poisoned) => poisoned.into_inner(),
        TryLockError::WouldBlock => panic!("a run has one thread, and takes each lock once"),
    })
}

impl Tier {
    pub(crate) fn new(
        inner: Inner,
        memory: Arc<Joined>,
        random: Random,
        rates: Rates,
        plant: Option<Plant>,
    ) -> Self {
        Self {
            inner,
            memory,
            random,
            rates,
            plant,
            accepted: Vec::new(),
            open: BTreeMap::new(),
            given_up: BTreeMap::new(),
            held: BTreeMap::new(),
            reports: Vec::new(),
            releases: Vec::new(),
            looking: BTreeMap::new(),
            is_dead: false,
            is_shut: false,
            step: 0,
            invalid_reports: 0,
            invalid_releases: 0,
            said: 0,
            struck: BTreeMap::new(),
        }
    }

    fn strikes(&mut self, trouble: Trouble) -> bool {
        let strikes = self.rates.strikes(trouble, &mut self.random);
        *self.struck.entry(trouble).or_default() += u64::from(strikes);
        strikes
    }

    fn tier(&mut self) -> &mut dyn SecondaryTier {
        match &mut self.inner {
            Inner::Memory { tier, .. } => tier,
            Inner::Nvme { store, .. } => store.as_mut().expect("it is there until the process ends"),
        }
    }

    fn is_memory(&self) -> bool {
        matches!(self.inner, Inner::Memory { .. })
    }

    /// Goes on with its transfers, by so much.
    pub(crate) fn work(&mut self, count: u64) {
        for _ in 0..count {
            let nth = self.random.index(1 << 16);
            let what = self.random.below(5);
            match &self.inner {
                Inner::Memory { .. } => self.run(nth),
                Inner::Nvme { underneath, .. } => {
                    let underneath = underneath.as_ref().expect("it is there until the process ends");
                    match what {
                        0..2 => drop(underneath.begin(nth)),
                        2..4 => drop(underneath.end(nth)),
                        _ => underneath.record(),
                    }
                }
            }
        }
    }

    /// The tier in memory does one of the jobs that it has accepted.
    fn run(&mut self, nth: usize) {
        if self.accepted.is_empty() {
            return;
        }
        let at = nth % self.accepted.len();
        if self.plant == Some(Plant::ReportedBeforeItsEnd)
            && !self.accepted[at].is_late
            && nth.is_multiple_of(3)
        {
            let id = self.accepted[at].job.id;
            self.accepted[at].is_late = true;
            self.reports.push(Report::new(TierCompletion::done(id)));
            return;
        }
        let Accepted { job, held, is_late } = self.accepted.swap_remove(at);
        drop(held);
        let (id, slots) = (job.id, slots_of(&job));
        let Inner::Memory { tier, worker, .. } = &mut self.inner else { return };
        let taken = tier.submit(job);
        if let Some(worker) = worker {
            worker.run_queued();
        }
        if taken.is_err() && !is_late {
            self.reports.push(Report::new(TierCompletion::failed(id)));
        }
        if is_late {
            self.releases.extend(slots.into_iter().map(|slot| ReleasedSlot { job: id, slot }));
        }
    }

    /// One of the jobs is given up, and its transfers go on.
    fn give_up_one(&mut self) {
        let open: Vec<usize> = (0..self.accepted.len()).filter(|at| !self.accepted[*at].is_late).collect();
        if !open.is_empty() {
            let at = self.random.pick(&open);
            self.give_up(at);
        }
    }

    fn give_up(&mut self, at: usize) {
        let accepted = &mut self.accepted[at];
        accepted.is_late = true;
        let completion = TierCompletion::failed(accepted.job.id).with_held(slots_of(&accepted.job));
        if self.plant == Some(Plant::LetGoTooEarly) {
            let job = accepted.job.id;
            let releases = completion.held.iter().map(|slot| ReleasedSlot { job, slot: *slot });
            self.releases.extend(releases);
        }
        self.reports.push(Report::new(completion));
    }

    /// Takes in what the tier below has said, and does to it what can be done to it.
    fn take_in(&mut self) {
        if self.strikes(Trouble::TierHeld) {
            self.give_up_one();
        }
        let (mut done, mut released) = (Vec::new(), Vec::new());
        self.tier().poll(&mut done);
        self.tier().take_released(&mut released);
        self.releases.append(&mut released);
        for completion in done {
            if let Some(job) = self.given_up.remove(&completion.job) {
                let id = job.id;
                // The store may itself have given up transfers that go on.
                let slots = slots_of(&job).into_iter().filter(|slot| !completion.held.contains(slot));
                self.releases.extend(slots.map(|slot| ReleasedSlot { job: id, slot }));
                continue;
            }
            if !self.open.contains_key(&completion.job) {
                // It was given up before.
                check(self.is_memory(), Rule::OneResult, || format!("{completion:?} of no open job"));
                continue;
            }
            let is_queued = self.reports.iter().any(|report| report.completion.job == completion.job);
            if is_queued && self.is_memory() {
                continue;
            }
            self.distort(completion);
        }
        if self.strikes(Trouble::TierUnknown) {
            self.say_nonsense();
        }
    }

    fn distort(&mut self, mut completion: TierCompletion) {
        let job = &self.open[&completion.job];
        let keys: Vec<OffloadKey> = job.chunks.iter().map(|chunk| chunk.key).collect();
        let is_read = job.direction == TierDirection::Read;
        let has_failed = completion.outcome != TierOutcome::Done;
        if self.plant == Some(Plant::FailedReadTakenForDone) && is_read && has_failed {
            completion = TierCompletion::done(completion.job);
        }
        if self.plant == Some(Plant::TierReportLost) && self.random.one_in(8) {
            return;
        }
        let mut is_malformed = false;
        if completion.held.is_empty() && completion.outcome == TierOutcome::Done {
            if self.strikes(Trouble::TierPartial) {
                let failed = keys.iter().filter(|_| self.random.one_in(2)).copied().collect();
                completion = TierCompletion::except(completion.job, failed);
            } else if self.strikes(Trouble::TierFailed) {
                completion = TierCompletion::failed(completion.job);
            } else if self.rates.of(Trouble::TierUnknown) > 0 && self.strikes(Trouble::TierUnknown) {
                // The job counts as failed.
                is_malformed = true;
                completion = if self.random.one_in(2) {
                    TierCompletion::except(completion.job, vec![nobodys_key()])
                } else {
                    completion.with_copied(keys.len() + 1)
                };
            }
        }
        let not_before = match () {
            () if self.strikes(Trouble::TierNever) => u64::MAX,
            () if self.strikes(Trouble::TierSlow) => self.step + self.random.below(12),
            () => 0,
        };
        if self.strikes(Trouble::TierDoubled) {
            let again = not_before.max(self.step + self.random.below(6));
            self.reports.push(Report { completion: completion.clone(), not_before: again, is_malformed });
        }
        self.reports.push(Report { completion, not_before, is_malformed });
    }

    /// It takes no job any more, and finds nothing: what has not ended is reported as failed, and its slots stay held.
    fn shut(&mut self) {
        self.is_shut = true;
        self.take_in();
        self.reports.iter_mut().for_each(|report| report.not_before = 0);
        for at in 0..self.accepted.len() {
            if !self.accepted[at].is_late {
                self.give_up(at);
            }
        }
        let is_reported = |id: &JobId| self.reports.iter().any(|report| report.completion.job == *id);
        let left: Vec<TierJob> = self.open.values().filter(|job| !is_reported(&job.id)).cloned().collect();
        for job in left {
            self.reports.push(Report::new(TierCompletion::failed(job.id).with_held(slots_of(&job))));
            self.given_up.insert(job.id, job);
        }
    }

    /// Reports and lets go of what nobody has.
    fn say_nonsense(&mut self) {
        let job = JobId(u64::MAX - self.random.below(3));
        if self.random.one_in(2) {
            self.reports.push(Report::new(TierCompletion::done(job)));
        } else {
            let slot = SlotId(self.random.small(4));
            self.releases.push(ReleasedSlot { job, slot });
        }
    }

    /// Nothing goes wrong any more, and what was never to be is now.
    pub(crate) fn recover(&mut self) {
        self.rates = Rates::NONE;
        self.is_dead = false;
        self.looking.clear();
        self.reports.iter_mut().for_each(|report| report.not_before = 0);
    }

    /// Does all that is to be done.
    pub(crate) fn finish(&mut self) {
        if let Inner::Nvme { underneath: Some(underneath), .. } = &self.inner {
            underneath.unstick();
            underneath.finish();
        }
        let count = self.accepted.len() as u64;
        self.work(count);
    }

    /// The worker of a tier in memory is gone, and with it every byte.
    pub(crate) fn lose_worker(&mut self) {
        if let Inner::Memory { worker, .. } = &mut self.inner {
            *worker = None;
        }
    }

    /// Those of some chunks that can be found, in their order.
    pub(crate) fn keys_of(&mut self, keys: &BTreeSet<OffloadKey>) -> Vec<OffloadKey> {
        let of_store: BTreeSet<OffloadKey> = self.nvme_keys().into_iter().collect();
        let is_there = |key: &&OffloadKey| match &mut self.inner {
            Inner::Memory { tier, .. } => tier.lookup(RequestId(u64::MAX), key) == TierLookup::Hit,
            Inner::Nvme { .. } => of_store.contains(*key),
        };
        keys.iter().filter(is_there).copied().collect()
    }

    /// Whether some lookup is to be answered later.
    pub(crate) fn is_looking(&self) -> bool {
        self.looking.values().any(|until| *until > self.step)
    }

    /// How many chunks can be found.
    pub(crate) fn num_chunks(&self) -> usize {
        match &self.inner {
            Inner::Memory { tier, .. } => tier.num_ready(),
            Inner::Nvme { .. } => self.nvme_keys().len(),
        }
    }

    pub(crate) fn nvme_keys(&self) -> Vec<OffloadKey> {
        match &self.inner {
            Inner::Nvme { store: Some(store), underneath: Some(underneath) } => underneath.keys(store),
            _ => Vec::new(),
        }
    }

    /// The slots that its jobs have, as far as the manager has heard of them.
    pub(crate) fn slots(&self) -> Vec<(JobId, SlotId, TierDirection)> {
        let mut slots: Vec<_> =
            self.held.iter().map(|((job, slot), direction)| (*job, *slot, *direction)).collect();
        for job in self.open.values() {
            slots.extend(slots_of(job).into_iter().map(|slot| (job.id, slot, job.direction)));
        }
        slots
    }

    pub(crate) fn check_books(&self) {
        if let Inner::Nvme { store: Some(store), underneath: Some(underneath) } = &self.inner {
            check(store.counts().add_up(), Rule::Counts, || format!("{:?}", store.counts()));
            underneath.check(store);
        }
    }
}

/// The slots of a job, each once.
fn slots_of(job: &TierJob) -> Vec<SlotId> {
    let slots: BTreeSet<SlotId> = job.chunks.iter().map(|chunk| chunk.slot).collect();
    slots.into_iter().collect()
}

fn nobodys_key() -> OffloadKey {
    OffloadKey::new(BlockHash::from_u64(u64::MAX), GroupIdx(0))
}

/// The manager's side of a [`Tier`].
pub(crate) struct Scripted {
    pub(crate) tier: SharedTier,
    pub(crate) name: &'static str,
}

impl SecondaryTier for Scripted {
    fn name(&self) -> &str {
        self.name
    }

    fn medium(&self) -> Medium {
        lock(&self.tier).tier().medium()
    }

    fn on_new_request(&mut self, req: &RequestContext) -> OffloadPolicy {
        let mut tier = lock(&self.tier);
        let policy = tier.tier().on_new_request(req);
        match tier.inner {
            Inner::Memory { wants_all: true, .. } => OffloadPolicy::RequestLevel,
            _ => policy,
        }
    }

    fn lookup(&mut self, req: RequestId, key: &OffloadKey) -> TierLookup {
        let mut tier = lock(&self.tier);
        if tier.is_dead || tier.is_shut {
            return TierLookup::Miss;
        }
        let before = tier.looking.get(&(req, *key)).copied();
        let until = before.unwrap_or_else(|| match tier.strikes(Trouble::TierLooking) {
            false => 0,
            true if tier.random.one_in(4) => u64::MAX,
            true => tier.step + 1 + tier.random.below(8),
        });
        tier.looking.insert((req, *key), until);
        if until > tier.step { TierLookup::Retry } else { tier.tier().lookup(req, key) }
    }

    fn submit(&mut self, job: TierJob) -> Result<(), JobRejected> {
        let mut tier = lock(&self.tier);
        if tier.is_dead || tier.is_shut {
            return Err(JobRejected { job, reason: RejectReason::Unavailable });
        }
        if tier.strikes(Trouble::TierFull) {
            return Err(JobRejected { job, reason: RejectReason::Busy });
        }
        if tier.strikes(Trouble::TierRefuses) {
            return Err(JobRejected { job, reason: tier.random.pick(&REASONS) });
        }
        if tier.is_memory() {
            let memory = Arc::clone(&tier.memory);
            let hold = |slot| match memory.hold(slot, job.direction) {
                Ok(held) => held,
                Err(error) => violated(Rule::InUse, format!("{job:?}: {error}")),
            };
            let held = slots_of(&job).into_iter().map(hold).collect();
            tier.accepted.push(Accepted { job: job.clone(), held, is_late: false });
        } else {
            tier.tier().submit(job.clone())?;
        }
        let before = tier.open.insert(job.id, job);
        check(before.is_none(), Rule::OneResult, || format!("{before:?} comes again"));
        Ok(())
    }

    fn poll(&mut self, done: &mut Vec<TierCompletion>) {
        let mut tier = lock(&self.tier);
        tier.take_in();
        if tier.is_dead {
            return;
        }
        let step = tier.step;
        let mut ready: Vec<_> = tier.reports.extract_if(.., |report| report.not_before <= step).collect();
        if tier.rates.of(Trouble::TierSlow) > 0 && tier.random.one_in(2) {
            ready.reverse();
        }
        for Report { completion, is_malformed, .. } in ready {
            tier.said += 1;
            let job = tier.open.remove(&completion.job);
            tier.invalid_reports += u64::from(job.is_none() || is_malformed);
            if let Some(job) = job {
                tier.held.extend(completion.held.iter().map(|slot| ((job.id, *slot), job.direction)));
            }
            done.push(completion);
        }
    }

    fn take_released(&mut self, released: &mut Vec<ReleasedSlot>) {
        let mut tier = lock(&self.tier);
        if tier.is_dead {
            return;
        }
        let Tier { releases, open, held, said, invalid_releases, .. } = &mut *tier;
        // Not before the report that announces them.
        for release in releases.extract_if(.., |release| !open.contains_key(&release.job)) {
            *said += 1;
            *invalid_releases += u64::from(held.remove(&(release.job, release.slot)).is_none());
            released.push(release);
        }
    }

    fn on_request_finished(&mut self, req: RequestId) {
        let mut tier = lock(&self.tier);
        tier.looking.retain(|(of, _), _| *of != req);
        tier.tier().on_request_finished(req);
    }

    fn on_schedule_end(&mut self) {
        let mut tier = lock(&self.tier);
        tier.step += 1;
        tier.tier().on_schedule_end();
    }

    fn take_events(&mut self, events: &mut Vec<OffloadEvent>) {
        lock(&self.tier).tier().take_events(events);
    }

    fn shut_down(&mut self, _: Duration) -> Result<(), Box<dyn Error + Send + Sync>> {
        let mut tier = lock(&self.tier);
        if tier.is_dead {
            return Err("it is dead".into());
        }
        if !tier.is_shut {
            tier.shut();
        }
        Ok(())
    }
}
