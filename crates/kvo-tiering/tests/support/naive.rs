//! The tiering manager once more, as plainly as it can be said, over the plain model of the primary.
//!
//! Slots are numbers of the model's own, never used again: which ones the manager takes is its choice.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use kvo_core::{
    EdgeStats, EventKind, JobId, LookupResult, OffloadKey, OffloadPolicy, ReleasedSlot, RequestId, SlotId,
    TierChunk, TierCompletion, TierDirection, TierFilter, TierJob, TierLookup, TierOutcome,
};
use kvo_cpu::{HoldKind, Released};
use kvo_tiering::{TierStats, TieringOptions, TieringStats};

use super::{
    cpu::model::{Model as Primary, Offered},
    fake_tier::{Call, World},
};

type Chunk = (OffloadKey, Option<u32>);

pub struct Naive {
    pub primary: Primary,
    /// Asked what the tiers would answer or refuse.
    world: World,
    options: TieringOptions,
    pub now: Duration,
    /// In the order in which they began.
    requests: Vec<Request>,
    /// The request of each place.
    current: Vec<(RequestId, TierFilter, BTreeMap<OffloadKey, u32>)>,
    queued: Vec<(usize, RequestId, Hold)>,
    stores: Vec<(JobId, RequestId, Vec<Chunk>)>,
    pub jobs: Vec<Job>,
    late: Vec<Late>,
    reports: Vec<Vec<TierCompletion>>,
    releases: Vec<Vec<ReleasedSlot>>,
    /// What the tiers have said that they hold, and not yet that they have let go.
    held: Vec<(usize, ReleasedSlot)>,
    pub next_job: u64,
    next_slot: u32,
    polled: bool,
    promotions_held: bool,
    without_room: u64,
    /// Requests, and tiers that a cascade of theirs did not reach, with its first chunk. The numbers of requests do not come
    /// again here.
    cut_off: BTreeMap<(RequestId, usize), OffloadKey>,
    tiers: Vec<TierStats>,
    calls: Vec<(usize, Call)>,
}

struct Request {
    id: RequestId,
    finished: bool,
    open_stores: usize,
    parked: Vec<Chunk>,
    failed: Vec<OffloadKey>,
}

/// A job that a tier has.
pub struct Job {
    pub id: JobId,
    pub tier: usize,
    pub direction: TierDirection,
    req: RequestId,
    holds: Vec<Hold>,
    submitted: Duration,
    /// Whether the tier will say so at its next poll.
    pub reported: bool,
}

/// A slot that a tier holds of a job that it has reported.
struct Late {
    at: (usize, ReleasedSlot),
    direction: TierDirection,
    holds: Vec<Hold>,
    /// Of a promotion that was given up.
    is_given_up: bool,
}

#[derive(Clone, Copy)]
struct Hold {
    key: OffloadKey,
    slot: SlotId,
    end_token: Option<u32>,
    generation: u64,
}

impl Job {
    pub fn keys(&self) -> Vec<OffloadKey> {
        self.holds.iter().map(|hold| hold.key).collect()
    }

    /// The slot of each chunk, by the model's number.
    pub fn slots(&self) -> Vec<SlotId> {
        self.holds.iter().map(|hold| hold.slot).collect()
    }
}

impl Naive {
    pub fn new(primary: Primary, world: World, options: TieringOptions, num_requests: usize) -> Self {
        let name = |script: &super::fake_tier::Script| script.spec.name.clone();
        let names: Vec<String> = world.lock().tiers.iter().map(name).collect();
        Self {
            primary,
            world,
            options,
            now: Duration::ZERO,
            requests: Vec::new(),
            current: vec![(RequestId(0), TierFilter::all(), BTreeMap::new()); num_requests],
            queued: Vec::new(),
            stores: Vec::new(),
            jobs: Vec::new(),
            late: Vec::new(),
            reports: names.iter().map(|_| Vec::new()).collect(),
            releases: names.iter().map(|_| Vec::new()).collect(),
            held: Vec::new(),
            next_job: 0,
            next_slot: 0,
            polled: false,
            promotions_held: false,
            without_room: 0,
            cut_off: BTreeMap::new(),
            tiers: names.into_iter().map(|name| TierStats { name, ..TierStats::default() }).collect(),
            calls: Vec::new(),
        }
    }

    pub fn take_calls(&mut self) -> Vec<(usize, Call)> {
        std::mem::take(&mut self.calls)
    }

    pub fn stats(&self) -> TieringStats {
        let with_active = |(tier, stats): (usize, &TierStats)| TierStats {
            active_jobs: self.jobs.iter().filter(|job| job.tier == tier).count() as u64,
            held_slots: self.late.iter().filter(|late| late.at.0 == tier).count() as u64,
            ..stats.clone()
        };
        TieringStats {
            primary: self.primary.stats(),
            tiers: self.tiers.iter().enumerate().map(with_active).collect(),
            promotions_without_room: self.without_room,
            open_requests: self.requests.len(),
            ..TieringStats::default()
        }
    }

    pub fn has_pending_work(&self) -> bool {
        let parked = self.requests.iter().any(|request| !request.parked.is_empty());
        !self.jobs.is_empty() || !self.queued.is_empty() || parked
    }

    pub fn is_finished(&self, place: usize) -> bool {
        self.primary.requests[place].finished
    }

    pub fn new_request(&mut self, place: usize, id: RequestId, filter: TierFilter) -> OffloadPolicy {
        self.primary.new_request(place);
        self.current[place] = (id, filter, BTreeMap::new());
        let (parked, failed) = (Vec::new(), Vec::new());
        self.requests.push(Request { id, finished: false, open_stores: 0, parked, failed });
        self.call_all(&Call::NewRequest(id));
        if self.wanting_all().is_empty() { OffloadPolicy::ChunkLevel } else { OffloadPolicy::RequestLevel }
    }

    pub fn set_position(&mut self, place: usize, key: OffloadKey, end_token: u32) {
        self.primary.set_position(place, key, end_token);
        self.current[place].2.insert(key, end_token);
    }

    pub fn lookup(&mut self, place: usize, key: OffloadKey) -> LookupResult {
        if !self.polled {
            self.poll();
        }
        let result = self.primary.lookup(key);
        if result != LookupResult::Miss {
            return result;
        }
        let (id, filter, positions) = self.current[place].clone();
        let failed = self.request(id).is_none_or(|request| request.failed.contains(&key));
        if self.promotions_held || failed || self.is_finished(place) {
            return LookupResult::Miss;
        }
        let mut result = LookupResult::Miss;
        for tier in 0..self.tiers.len() {
            let (asked, answer) = {
                let state = self.world.lock();
                let script = &state.tiers[tier];
                (filter.allows(script.spec.medium, script.spec.locality), script.answer(id, &key))
            };
            if !asked {
                continue;
            }
            self.calls.push((tier, Call::Lookup(id, key)));
            self.tiers[tier].queries += 1;
            match answer {
                TierLookup::Miss => {}
                TierLookup::Retry => {
                    self.tiers[tier].retries += 1;
                    result = LookupResult::Retry;
                }
                TierLookup::Hit => {
                    self.tiers[tier].hits += 1;
                    if !self.primary.promote(place, key) {
                        self.without_room += 1;
                        return LookupResult::Miss;
                    }
                    let slots = self.occupy(place, &[key]);
                    let hold = self.hold(key, slots[0], positions.get(&key).copied());
                    self.queued.push((tier, id, hold));
                    return LookupResult::HitPending;
                }
            }
        }
        result
    }

    /// Gives the model's slots to keys that are to be written.
    pub fn occupy(&mut self, place: usize, keys: &[OffloadKey]) -> Vec<SlotId> {
        let slots: Vec<SlotId> = (self.next_slot..).take(keys.len()).map(SlotId).collect();
        self.next_slot += u32::try_from(keys.len()).unwrap();
        self.primary.occupy(place, keys, &slots);
        slots
    }

    /// What becomes of an offer, before a slot is taken.
    pub fn offer(&mut self, place: usize, keys: &[OffloadKey]) -> Offered {
        self.poll();
        let chunks = self.chunks(place, keys);
        let with = |model: &Self, result| {
            let of = |chunk: &&Chunk| model.primary.peek(chunk.0) == result;
            chunks.iter().filter(of).copied().collect::<Vec<_>>()
        };
        let (ready, pending) = (with(self, LookupResult::Hit), with(self, LookupResult::HitPending));
        let offered = self.primary.offer(place, keys);
        let wanting = self.wanting_all();
        if !matches!(offered, Offered::Refused(_)) && !wanting.is_empty() {
            let id = self.current[place].0;
            self.request_mut(id).unwrap().parked.extend(pending);
            self.cascade(id, &ready, &wanting);
        }
        offered
    }

    /// An offer was taken, and its keys have their slots.
    pub fn open_store(&mut self, place: usize, id: JobId, keys: Vec<OffloadKey>) {
        let req = self.current[place].0;
        self.stores.push((id, req, self.chunks(place, &keys)));
        self.request_mut(req).unwrap().open_stores += 1;
        self.primary.open(id, kvo_core::JobKind::Store, keys);
    }

    pub fn complete_store(&mut self, id: JobId, done: bool) {
        self.primary.complete(id, done);
        let at = self.stores.iter().position(|(of, ..)| *of == id).unwrap();
        let (_, req, chunks) = self.stores.remove(at);
        if done {
            let all: Vec<usize> = (0..self.tiers.len()).collect();
            self.cascade(req, &chunks, &all);
        }
        self.request_mut(req).unwrap().open_stores -= 1;
        self.settle();
    }

    pub fn finish(&mut self, place: usize) {
        self.primary.finish(place);
        let id = self.current[place].0;
        self.request_mut(id).unwrap().finished = true;
        self.settle();
    }

    pub fn schedule_end(&mut self) {
        if !self.polled {
            self.poll();
        }
        self.submit_promotions();
        let wanting = self.wanting_all();
        let ids: Vec<RequestId> = self.requests.iter().map(|request| request.id).collect();
        for id in ids {
            let parked = std::mem::take(&mut self.request_mut(id).unwrap().parked);
            let with = |model: &Self, result| {
                let of = |chunk: &&Chunk| model.primary.peek(chunk.0) == result;
                parked.iter().filter(of).copied().collect::<Vec<_>>()
            };
            let (ready, pending) = (with(self, LookupResult::Hit), with(self, LookupResult::HitPending));
            self.request_mut(id).unwrap().parked = pending;
            self.cascade(id, &ready, &wanting);
            self.settle();
        }
        self.call_all(&Call::ScheduleEnd);
        self.polled = false;
    }

    /// Promotions dropped and jobs running.
    pub fn reset(&mut self) -> (usize, usize) {
        self.poll();
        let current = self.primary.generation;
        let queued = std::mem::take(&mut self.queued);
        let late = self.late.iter().filter(|late| !late.is_given_up).flat_map(|late| &late.holds);
        let held = self.jobs.iter().flat_map(|job| &job.holds).chain(queued.iter().map(|(.., hold)| hold));
        let held = held.chain(late);
        let held: Vec<SlotId> =
            held.filter(|hold| hold.generation == current).map(|hold| hold.slot).collect();
        self.primary.reset(held);
        for (.., hold) in &queued {
            self.release(*hold, HoldKind::Promotion, false);
        }
        self.stores.clear();
        self.cut_off.clear();
        self.promotions_held = true;
        for request in &mut self.requests {
            request.open_stores = 0;
            request.parked.clear();
        }
        self.settle();
        (queued.len(), self.jobs.len())
    }

    pub fn reset_flushed(&mut self) {
        self.promotions_held = false;
    }

    pub fn take_events(&mut self) -> Vec<(EventKind, Vec<OffloadKey>)> {
        self.call_all(&Call::TakeEvents);
        self.primary.take_events()
    }

    /// A tier will say this at its next poll.
    pub fn report(&mut self, tier: usize, report: TierCompletion) {
        if let Some(job) = self.jobs.iter_mut().find(|job| job.id == report.job && job.tier == tier) {
            job.reported = true;
        }
        self.reports[tier].push(report);
    }

    /// A tier will say this after its next poll.
    pub fn release_held(&mut self, tier: usize, release: ReleasedSlot) {
        self.releases[tier].push(release);
    }

    fn poll(&mut self) {
        self.polled = true;
        let mut ended: Vec<(Job, TierOutcome, Vec<SlotId>)> = Vec::new();
        let mut released = Vec::new();
        for tier in 0..self.tiers.len() {
            self.calls.push((tier, Call::Poll));
            for report in std::mem::take(&mut self.reports[tier]) {
                match self.jobs.iter().position(|job| job.id == report.job && job.tier == tier) {
                    None => self.tiers[tier].invalid_reports += 1,
                    Some(at) => {
                        let (id, job) = (report.job, self.jobs.remove(at));
                        let held: BTreeSet<SlotId> =
                            job.slots().into_iter().filter(|slot| report.held.contains(slot)).collect();
                        if !held.is_empty() {
                            self.calls.push((tier, Call::Held(id, held.iter().copied().collect())));
                            let of_job = |slot| (tier, ReleasedSlot { job: id, slot });
                            self.held.extend(held.into_iter().map(of_job));
                        }
                        self.calls.push((tier, Call::Ended(id)));
                        ended.push((job, report.outcome, report.held));
                    }
                }
            }
            for release in std::mem::take(&mut self.releases[tier]) {
                match self.held.iter().position(|held| *held == (tier, release)) {
                    None => self.tiers[tier].invalid_releases += 1,
                    Some(at) => {
                        self.calls.push((tier, Call::Released(release)));
                        released.push(self.held.remove(at));
                    }
                }
            }
        }
        for (job, outcome, held) in ended {
            self.end(&job, outcome, &held);
        }
        for at in released {
            let place = self.late.iter().position(|late| late.at == at).unwrap();
            let late = self.late.remove(place);
            self.let_go(&late);
        }
    }

    fn let_go(&mut self, late: &Late) {
        for hold in &late.holds {
            match late.direction {
                TierDirection::Read if late.is_given_up => {
                    self.primary.release_given_up(hold.slot);
                }
                TierDirection::Read => {
                    self.release(*hold, HoldKind::Promotion, false);
                }
                TierDirection::Write => {
                    self.release(*hold, HoldKind::Cascade, false);
                }
            }
        }
    }

    /// Whether a report says something of its job that cannot be.
    fn is_senseless(job: &Job, outcome: &TierOutcome, held: &[SlotId]) -> bool {
        let failed = |key: &OffloadKey| match outcome {
            TierOutcome::Done => false,
            TierOutcome::Partial { failed } => failed.contains(key),
            TierOutcome::Failed => true,
        };
        let strange_key = matches!(outcome, TierOutcome::Partial { failed } if failed.iter().any(|key| !job.keys().contains(key)));
        let strange_slot = held.iter().any(|slot| !job.slots().contains(slot));
        let arrived = job.holds.iter().any(|hold| held.contains(&hold.slot) && !failed(&hold.key));
        strange_key || strange_slot || arrived
    }

    fn end(&mut self, job: &Job, mut outcome: TierOutcome, held: &[SlotId]) {
        if Self::is_senseless(job, &outcome, held) {
            self.tiers[job.tier].invalid_reports += 1;
            outcome = TierOutcome::Failed;
        }
        let is_late = job.holds.iter().any(|hold| held.contains(&hold.slot));
        self.tiers[job.tier].jobs_late += u64::from(is_late);
        let arrived = |key: &OffloadKey| match &outcome {
            TierOutcome::Done => true,
            TierOutcome::Partial { failed } => !failed.contains(key),
            TierOutcome::Failed => false,
        };
        self.count(job, job.keys().iter().filter(|key| arrived(key)).count() as u64);
        let kind = match job.direction {
            TierDirection::Write => HoldKind::Cascade,
            TierDirection::Read => HoldKind::Promotion,
        };
        let may_retry = self.options.retry_failed_jobs && outcome == TierOutcome::Failed;
        let (mut stored, mut lost, mut failed) = (Vec::new(), Vec::new(), Vec::new());
        for hold in &job.holds {
            if held.contains(&hold.slot) {
                if self.hold_on(job, *hold) {
                    lost.push(hold.key);
                    failed.push(hold.key);
                }
                continue;
            }
            match self.release(*hold, kind, arrived(&hold.key)) {
                Released::Ready if kind == HoldKind::Promotion => stored.push(hold.key),
                Released::Freed => {
                    lost.push(hold.key);
                    if !may_retry {
                        failed.push(hold.key);
                    }
                }
                _ => {}
            }
        }
        self.primary.record(EventKind::Stored, &stored);
        self.primary.record(EventKind::Discarded, &lost);
        if let Some(request) = self.request_mut(job.req) {
            request.failed.extend(failed);
        }
    }

    /// The tier holds on to the slot of a hold; says whether a chunk is lost by that.
    fn hold_on(&mut self, job: &Job, hold: Hold) -> bool {
        let at = (job.tier, ReleasedSlot { job: job.id, slot: hold.slot });
        if let Some(late) = self.late.iter_mut().find(|late| late.at == at) {
            late.holds.push(hold);
            return false;
        }
        let is_given_up = job.direction == TierDirection::Read
            && self.primary.give_up(hold.key, hold.slot, hold.generation);
        self.late.push(Late { at, direction: job.direction, holds: vec![hold], is_given_up });
        is_given_up
    }

    fn count(&mut self, job: &Job, arrived: u64) {
        let (now, chunk_bytes) = (self.now, self.options.chunk_bytes);
        let stats = &mut self.tiers[job.tier];
        let edge: &mut EdgeStats = match job.direction {
            TierDirection::Write => &mut stats.written,
            TierDirection::Read => &mut stats.read,
        };
        let whole = arrived == job.holds.len() as u64;
        *if whole { &mut edge.jobs_done } else { &mut edge.jobs_failed } += 1;
        edge.chunks += arrived;
        edge.bytes += arrived * chunk_bytes;
        edge.time += now.saturating_sub(job.submitted);
    }

    fn submit_promotions(&mut self) {
        let queued = std::mem::take(&mut self.queued);
        let mut tiers: Vec<usize> = Vec::new();
        let mut pairs: Vec<(usize, RequestId)> = Vec::new();
        for (tier, id, _) in &queued {
            if !tiers.contains(tier) {
                tiers.push(*tier);
            }
            if !pairs.contains(&(*tier, *id)) {
                pairs.push((*tier, *id));
            }
        }
        for tier in tiers {
            for (_, id) in pairs.iter().filter(|(of, _)| *of == tier) {
                let of_job = |queued: &&(usize, RequestId, Hold)| (queued.0, queued.1) == (tier, *id);
                let holds: Vec<Hold> = queued.iter().filter(of_job).map(|(.., hold)| *hold).collect();
                if self.submit(tier, *id, TierDirection::Read, &holds) {
                    continue;
                }
                let lost: Vec<OffloadKey> = holds.iter().map(|hold| hold.key).collect();
                for hold in holds {
                    self.release(hold, HoldKind::Promotion, false);
                }
                self.primary.record(EventKind::Discarded, &lost);
                if let Some(request) = self.request_mut(*id) {
                    request.failed.extend(lost);
                }
            }
        }
    }

    fn cascade(&mut self, req: RequestId, offered: &[Chunk], tiers: &[usize]) {
        let ready = |model: &Self, key| model.primary.peek(key) == LookupResult::Hit;
        let chunks: Vec<Chunk> = offered.iter().filter(|(key, _)| ready(self, *key)).copied().collect();
        if chunks.is_empty() {
            return;
        }
        for tier in tiers {
            let writes = |job: &&Job| job.tier == *tier && job.direction == TierDirection::Write;
            let late = self.late.iter().filter(|late| late.at.0 == *tier);
            let late = late.filter(|late| late.direction == TierDirection::Write).map(|late| late.at.1.job);
            let num_late = late.collect::<BTreeSet<JobId>>().len();
            let in_flight = self.jobs.iter().filter(writes).count() + num_late;
            let full = in_flight >= self.options.inflight_cascades_max as usize;
            let missed = self.cut_off.get(&(req, *tier));
            if full || missed.is_some_and(|first| offered.iter().all(|(key, _)| key != first)) {
                self.tiers[*tier].cascades_throttled += 1;
                self.cut_off.entry((req, *tier)).or_insert(offered[0].0);
                continue;
            }
            let mut holds = Vec::new();
            for (key, end_token) in &chunks {
                self.primary.cascade(*key);
                holds.push(self.hold(*key, self.primary.slot(*key).unwrap(), *end_token));
            }
            if self.submit(*tier, req, TierDirection::Write, &holds) {
                self.cut_off.remove(&(req, *tier));
                continue;
            }
            for hold in holds {
                self.release(hold, HoldKind::Cascade, false);
            }
            // A tail without its head is of no use.
            self.cut_off.entry((req, *tier)).or_insert(offered[0].0);
        }
    }

    /// Whether the tier takes the job.
    fn submit(&mut self, tier: usize, req: RequestId, direction: TierDirection, holds: &[Hold]) -> bool {
        let id = JobId(self.next_job);
        self.next_job += 1;
        let chunks = holds
            .iter()
            .map(|hold| TierChunk { key: hold.key, slot: hold.slot, end_token: hold.end_token })
            .collect();
        let job = TierJob { id, req, direction, chunks };
        if self.world.lock().tiers[tier].refuses(direction) {
            self.calls.push((tier, Call::Rejected(job)));
            self.tiers[tier].jobs_rejected += 1;
            return false;
        }
        self.calls.push((tier, Call::Job(job)));
        let (holds, submitted) = (holds.to_vec(), self.now);
        self.jobs.push(Job { id, tier, direction, req, holds, submitted, reported: false });
        true
    }

    fn release(&mut self, hold: Hold, kind: HoldKind, done: bool) -> Released {
        self.primary.release(hold.key, hold.slot, (hold.generation, kind), done)
    }

    fn hold(&self, key: OffloadKey, slot: SlotId, end_token: Option<u32>) -> Hold {
        Hold { key, slot, end_token, generation: self.primary.generation }
    }

    /// Tells the tiers of the requests that can cause no further writes, and forgets these.
    fn settle(&mut self) {
        let is_settled =
            |request: &Request| request.finished && request.open_stores == 0 && request.parked.is_empty();
        while let Some(at) = self.requests.iter().position(is_settled) {
            let request = self.requests.remove(at);
            self.call_all(&Call::Finished(request.id));
        }
    }

    fn call_all(&mut self, call: &Call) {
        self.calls.extend((0..self.tiers.len()).map(|tier| (tier, call.clone())));
    }

    fn wanting_all(&self) -> Vec<usize> {
        let state = self.world.lock();
        let wants = |tier: &usize| state.tiers[*tier].spec.level == OffloadPolicy::RequestLevel;
        (0..self.tiers.len()).filter(wants).collect()
    }

    fn chunks(&self, place: usize, keys: &[OffloadKey]) -> Vec<Chunk> {
        keys.iter().map(|key| (*key, self.current[place].2.get(key).copied())).collect()
    }

    fn request(&self, id: RequestId) -> Option<&Request> {
        self.requests.iter().find(|request| request.id == id)
    }

    fn request_mut(&mut self, id: RequestId) -> Option<&mut Request> {
        self.requests.iter_mut().find(|request| request.id == id)
    }
}
