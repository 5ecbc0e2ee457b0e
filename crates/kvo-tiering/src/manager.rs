//! The tiering manager.

mod below;
mod shut_down;

use std::{collections::BTreeMap, fmt, time::Duration};

use hashbrown::{HashMap, HashSet};
use kvo_core::{
    ChunkCounts, Clock, CompleteError, JobId, JobToken, LoadError, LoadJob, LookupResult, OffloadEvent,
    OffloadKey, OffloadManager, OffloadPolicy, RequestContext, RequestError, RequestId, SecondaryTier,
    ShutDown, StoreError, StoreJob, StoreOutcome, TierDirection, TierOutcome, TransferResult,
};
use kvo_cpu::{CpuManager, Released, TierHold};
use kvo_policies::CachePolicy;

use crate::{
    TieringConfigError, TieringOptions, TieringStats,
    pressure::Turns,
    request::{Owner, Request, TierSet},
    tiers::{EndedJob, Tiers},
};

/// A primary tier with secondary tiers below it: stores cascade down, lookups bring chunks up.
///
/// It has no thread, no clock of its own and does no I/O: it submits jobs to its tiers and polls their results, at
/// the first lookup of a step, before every offer, at the end of a step if nothing was polled in it, and at a reset.
pub struct TieringManager<P> {
    primary: CpuManager<P>,
    tiers: Tiers,
    options: TieringOptions,
    clock: Box<dyn Clock>,
    /// The latest time that there was: a clock that jumps back is one that stands still.
    last: Duration,
    requests: HashMap<RequestId, Request>,
    next_arrival: u64,
    /// Requests that have parked chunks, by arrival.
    parking: BTreeMap<u64, RequestId>,
    /// Store jobs open at the primary.
    stores: HashMap<JobId, OpenStore>,
    /// Promotions that lookups of this step have asked for, in order.
    queued: Vec<QueuedPromotion>,
    turns: Turns,
    polled_in_step: bool,
    promotions_held: bool,
    /// Counters only; the rest is filled in by [`stats`](Self::stats).
    stats: TieringStats,
    /// Tiers have ended, or have been told to.
    is_shut_down: bool,
}

/// What a store job at the primary will cascade.
#[derive(Debug)]
struct OpenStore {
    of: Owner,
    chunks: Vec<(OffloadKey, Option<u32>)>,
}

#[derive(Debug)]
struct QueuedPromotion {
    tier: usize,
    of: Owner,
    hold: TierHold,
    end_token: Option<u32>,
}

/// What a reset found, beside the primary's chunks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ResetReport {
    /// Promotions that were queued and are dropped.
    pub promotions_dropped: usize,
    /// Tier jobs that are still running. Their slots stay parked until the tiers report them.
    pub jobs_running: usize,
    /// Slots parked for them, and those that tiers hold of jobs that they have reported: so many fewer are free until
    /// then.
    pub slots_parked: u32,
}

impl<P: CachePolicy> TieringManager<P> {
    /// Puts `tiers` below `primary`, to be asked in this order.
    ///
    /// # Errors
    /// [`TieringConfigError`] names the option or the two tiers that cannot be.
    pub fn new(
        primary: CpuManager<P>,
        tiers: Vec<Box<dyn SecondaryTier>>,
        options: TieringOptions,
        clock: Box<dyn Clock>,
    ) -> Result<Self, TieringConfigError> {
        options.check()?;
        if tiers.len() > TierSet::TIERS_MAX {
            return Err(TieringConfigError::TooManyTiers {
                num_tiers: tiers.len(),
                num_tiers_max: TierSet::TIERS_MAX,
            });
        }
        let mut names: HashSet<String> = HashSet::new();
        names.insert(primary.name().to_owned());
        if let Some(twice) = tiers.iter().find(|tier| !names.insert(tier.name().to_owned())) {
            return Err(TieringConfigError::DuplicateTier { name: twice.name().to_owned() });
        }
        let num_slots = primary.counts().capacity;
        Ok(Self {
            primary,
            tiers: Tiers::new(tiers, options.chunk_bytes, &options.pressure, num_slots),
            turns: Turns::new(&options.pressure, num_slots),
            options,
            clock,
            last: Duration::ZERO,
            requests: HashMap::new(),
            next_arrival: 0,
            parking: BTreeMap::new(),
            stores: HashMap::new(),
            queued: Vec::new(),
            polled_in_step: false,
            promotions_held: false,
            stats: TieringStats::default(),
            is_shut_down: false,
        })
    }

    /// The primary tier, to look at.
    pub fn primary(&self) -> &CpuManager<P> {
        &self.primary
    }

    /// A snapshot of the counters.
    pub fn stats(&self) -> TieringStats {
        TieringStats {
            primary: self.primary.stats(),
            tiers: self.tiers.stats(),
            chunks_unread: self.turns.num_unread() as u64,
            open_requests: self.requests.len(),
            ..self.stats.clone()
        }
    }

    /// Whether a later step has something to collect: an engine without requests to run keeps stepping while this
    /// holds.
    ///
    /// Slots that a tier holds on to after it has reported their job are not counted: a device that hangs may never let
    /// them go, nothing waits for them but room, and the next step there is collects them. An engine that does want to
    /// wait for them looks at [`TierStats::held_slots`](crate::TierStats::held_slots). Nor are jobs that are overdue.
    pub fn has_pending_work(&self) -> bool {
        self.tiers.is_waited_for() || !self.queued.is_empty() || !self.parking.is_empty()
    }

    /// Drops every chunk of the primary tier, as [`OffloadManager::reset_cache`], and says what was under way.
    ///
    /// Queued promotions are dropped, requests that only waited for their last cascades are finalised, the secondary
    /// tiers keep their chunks. The slots of tier jobs that are still running are parked, not waited for: they come
    /// back when their tier reports the job, or lets go of those that it holds on to. No promotion begins before
    /// [`on_reset_flushed`](Self::on_reset_flushed).
    pub fn reset(&mut self) -> ResetReport {
        self.poll();
        let promotions_dropped = self.queued.len();
        self.stores.clear();
        self.parking.clear();
        self.primary.reset_cache();
        for QueuedPromotion { hold, .. } in self.take_queued() {
            // Nothing is copied yet, so the slot, parked by the reset, is free at once.
            self.primary
                .release(hold, TransferResult::Failed)
                .expect("the holds of promotions are the primary's own");
        }
        self.turns.reset();
        self.promotions_held = true;
        let mut settled = BTreeMap::new();
        for (id, request) in &mut self.requests {
            request.reset();
            if request.is_settled() {
                settled.insert(request.arrival, *id);
            }
        }
        for id in settled.into_values() {
            self.finalise_if_settled(id);
        }
        ResetReport {
            promotions_dropped,
            jobs_running: self.tiers.open.len(),
            slots_parked: self.primary.stats().parked_slots,
        }
    }

    /// The engine's workers have ended every copy that was in flight at the reset: promotions may begin again.
    pub fn on_reset_flushed(&mut self) {
        self.promotions_held = false;
    }

    /// Takes the promotions of the step, which are no longer queued.
    fn take_queued(&mut self) -> Vec<QueuedPromotion> {
        self.tiers.none_queued();
        std::mem::take(&mut self.queued)
    }

    fn now(&mut self) -> Duration {
        self.last = self.last.max(self.clock.now());
        self.last
    }

    /// Collects what the tiers report: cascades unpin, promotions become ready or free their slots; and the slots that
    /// tiers held on to and have let go.
    fn poll(&mut self) {
        self.polled_in_step = true;
        let now = self.now();
        for ended in self.tiers.poll(now) {
            self.end(ended);
        }
        for hold in self.tiers.take_released() {
            self.primary
                .release(hold, TransferResult::Failed)
                .expect("the holds of tier jobs are the primary's own");
        }
        for id in self.tiers.take_overdue(now) {
            self.give_up(id);
        }
    }

    /// A job goes unreported for too long: what it was to bring is waited for no more. Its slots stay parked until the
    /// tier reports it.
    fn give_up(&mut self, id: JobId) {
        let Some(job) = self.tiers.open.get_mut(&id) else { return };
        let of = job.of;
        let mut lost = Vec::new();
        for hold in &mut job.holds {
            if self.primary.give_up(hold) {
                lost.push(hold.key());
            }
        }
        self.primary.record_promotions(&[], &lost);
        self.turns.fail(&lost);
        if let Some(request) = of.find(&mut self.requests) {
            request.failed.extend(lost);
        }
    }

    /// Ends a job that its tier has reported. Slots that the tier may still touch stay pinned or parked.
    fn end(&mut self, mut ended: EndedJob) {
        let is_read = ended.job.direction == TierDirection::Read;
        let may_retry = self.options.retry_failed_jobs && ended.outcome == TierOutcome::Failed;
        let (mut arrived, mut lost, mut failed, mut held) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        for mut hold in std::mem::take(&mut ended.job.holds) {
            let key = hold.key();
            if ended.is_held(hold.slot()) {
                if self.primary.give_up(&mut hold) {
                    lost.push(key);
                    // Another try would only put another slot out of use.
                    failed.push(key);
                }
                held.push(hold);
                continue;
            }
            let was_given_up = hold.is_given_up();
            let result = ended.result(&key);
            let released =
                self.primary.release(hold, result).expect("the holds of tier jobs are the primary's own");
            match released {
                Released::Ready if is_read => arrived.push(key),
                Released::Freed if was_given_up => {}
                Released::Freed => {
                    lost.push(key);
                    failed.extend((!may_retry).then_some(key));
                }
                Released::Ready | Released::Stale => {}
            }
        }
        self.primary.record_promotions(&arrived, &lost);
        self.turns.come(&arrived, self.last);
        self.turns.fail(&lost);
        if let Some(request) = ended.job.of.find(&mut self.requests) {
            request.failed.extend(failed);
        }
        if !held.is_empty() {
            self.tiers.keep(ended, held);
        }
    }

    /// Gives the chunks, where ready, to every tier that `wants` selects.
    fn cascade(&mut self, of: Owner, chunks: &[(OffloadKey, Option<u32>)], wants: TierSet) {
        let is_ready = |(key, _): &(OffloadKey, Option<u32>)| self.primary.peek(key) == LookupResult::Hit;
        if self.is_shut_down || !chunks.iter().any(is_ready) {
            return;
        }
        let now = self.now();
        // For nobody else there is room to be left.
        let num_chunks = (self.requests.len() > 1).then_some(chunks.len());
        for tier in (0..self.tiers.all.len()).filter(|tier| wants.contains(*tier)) {
            let is_cut_off =
                of.find(&mut self.requests).is_some_and(|request| request.is_cut_off(tier, chunks));
            let jobs_max = self.options.inflight_cascades_max;
            if !is_cut_off && !self.tiers.may_pin(tier, num_chunks) {
                // Some may have ended since.
                self.poll();
            }
            if is_cut_off || !self.tiers.may_write(tier, num_chunks, jobs_max, now) {
                self.tiers.all[tier].stats.cascades_throttled += 1;
                self.cut_off(of, tier, chunks);
                continue;
            }
            let mut holds = Vec::with_capacity(chunks.len());
            for (key, end_token) in chunks {
                holds.extend(self.primary.hold_for_cascade(key).map(|hold| (hold, *end_token)));
            }
            if let Err(holds) = self.tiers.submit(tier, of, TierDirection::Write, holds, now) {
                for hold in holds {
                    self.primary
                        .release(hold, TransferResult::Failed)
                        .expect("the holds of cascades are the primary's own");
                }
                self.cut_off(of, tier, chunks);
            } else if let Some(request) = of.find(&mut self.requests) {
                request.goes_on(tier);
            }
        }
    }

    /// A cascade of the request did not reach a tier: the rest would be a tail without its head there.
    fn cut_off(&mut self, of: Owner, tier: usize, chunks: &[(OffloadKey, Option<u32>)]) {
        if let (Some(request), Some((first, _))) = (of.find(&mut self.requests), chunks.first()) {
            request.cut_off(tier, *first);
        }
    }

    /// For tiers that want all chunks of the request: gives them those of the offer that were ready before it, and
    /// parks those that were pending.
    fn cascade_residents(&mut self, req: &RequestContext, residents: Residents) {
        let Some(request) = self.requests.get_mut(&req.id()) else { return };
        if !residents.pending.is_empty() && !self.is_shut_down {
            self.parking.insert(request.arrival, req.id());
            request.parked.extend(residents.pending);
        }
        let (of, wants_all) = (Owner { req: req.id(), arrival: request.arrival }, request.wants_all);
        self.cascade(of, &residents.ready, wants_all);
    }

    /// The keys of an offer that the primary has before the offer, if any tier wants all chunks of the request.
    fn residents(&self, req: &RequestContext, keys: &[OffloadKey]) -> Residents {
        let mut residents = Residents::default();
        if self.requests.get(&req.id()).is_some_and(|request| !request.wants_all.is_empty()) {
            for key in keys {
                let chunk = (*key, req.positions().end_token(key));
                match self.primary.peek(key) {
                    LookupResult::Hit => residents.ready.push(chunk),
                    LookupResult::HitPending => residents.pending.push(chunk),
                    LookupResult::Miss | LookupResult::Retry => {}
                }
            }
        }
        residents
    }

    /// Cascades the parked chunks that have become ready, forgets those that failed.
    fn resolve_parked(&mut self) {
        for (arrival, id) in std::mem::take(&mut self.parking) {
            let Some(request) = self.requests.get_mut(&id) else { continue };
            let (mut ready, mut still_pending) = (Vec::new(), Vec::new());
            for chunk in std::mem::take(&mut request.parked) {
                match self.primary.peek(&chunk.0) {
                    LookupResult::Hit => ready.push(chunk),
                    LookupResult::HitPending => still_pending.push(chunk),
                    LookupResult::Miss | LookupResult::Retry => {}
                }
            }
            if !still_pending.is_empty() {
                self.parking.insert(arrival, id);
            }
            request.parked = still_pending;
            let wants_all = request.wants_all;
            self.cascade(Owner { req: id, arrival }, &ready, wants_all);
            self.finalise_if_settled(id);
        }
    }

    /// Tells the tiers that the request will cause no further writes, once that is so, and forgets it.
    fn finalise_if_settled(&mut self, id: RequestId) {
        if self.requests.get(&id).is_some_and(Request::is_settled) {
            self.requests.remove(&id);
            for tier in &mut self.tiers.all {
                tier.inner.on_request_finished(id);
            }
        }
    }

    /// The request runs, or is over: what was promoted for it and it has not loaded is nobody's in particular.
    fn stop_waiting(&mut self, id: RequestId) {
        if let Some(request) = self.requests.get_mut(&id) {
            request.retries.clear();
            self.turns.end_all(request.arrival);
        }
    }

    fn check_known(&self, req: &RequestContext) -> Result<(), RequestError> {
        self.primary.check_running(req)?;
        match self.requests.get(&req.id()) {
            Some(_) => Ok(()),
            None => Err(RequestError::Unknown { req: req.id() }),
        }
    }

    fn remember_store(&mut self, req: &RequestContext, job: &StoreJob) {
        let Some(request) = self.requests.get_mut(&req.id()) else { return };
        request.open_stores += 1;
        let of = Owner { req: req.id(), arrival: request.arrival };
        let chunks = job.keys.iter().map(|key| (*key, req.positions().end_token(key))).collect();
        self.stores.insert(job.token.id(), OpenStore { of, chunks });
    }
}

/// Keys of an offer that were in the primary before it, with their positions.
#[derive(Debug, Default)]
struct Residents {
    ready: Vec<(OffloadKey, Option<u32>)>,
    pending: Vec<(OffloadKey, Option<u32>)>,
}

impl<P: CachePolicy> OffloadManager for TieringManager<P> {
    fn new_request(&mut self, req: &mut RequestContext) -> Result<OffloadPolicy, RequestError> {
        if self.requests.contains_key(&req.id()) {
            return Err(RequestError::Known { req: req.id() });
        }
        self.primary.new_request(req)?;
        let mut wants_all = TierSet::default();
        for (index, tier) in self.tiers.all.iter_mut().enumerate() {
            if tier.inner.on_new_request(req) == OffloadPolicy::RequestLevel {
                wants_all.insert(index);
            }
        }
        self.requests
            .insert(req.id(), Request { arrival: self.next_arrival, wants_all, ..Request::default() });
        self.next_arrival += 1;
        Ok(if wants_all.is_empty() { OffloadPolicy::ChunkLevel } else { OffloadPolicy::RequestLevel })
    }

    fn lookup(&mut self, req: &mut RequestContext, key: &OffloadKey) -> LookupResult {
        if !self.polled_in_step {
            self.poll();
        }
        match self.primary.lookup(req, key) {
            LookupResult::Miss => self.lookup_below(req, key),
            found => {
                // It waits for what is on its way to it, and for what is to come behind that.
                if found == LookupResult::HitPending
                    && self.turns.are_any_waiting()
                    && let Some(request) = self.requests.get(&req.id())
                {
                    self.turns.still_asks(request.arrival, self.last);
                }
                found
            }
        }
    }

    fn peek(&self, key: &OffloadKey) -> LookupResult {
        self.primary.peek(key)
    }

    fn reserve(&mut self, keys: &[OffloadKey]) -> usize {
        self.primary.reserve(keys)
    }

    fn prepare_load(&mut self, req: &mut RequestContext, keys: &[OffloadKey]) -> Result<LoadJob, LoadError> {
        self.check_known(req)?;
        let job = self.primary.prepare_load(req, keys)?;
        self.turns.load(job.token.id(), keys);
        self.stop_waiting(req.id());
        Ok(job)
    }

    fn complete_load(&mut self, token: JobToken) -> Result<(), CompleteError> {
        let id = token.id();
        self.primary.complete_load(token)?;
        self.turns.end_load(id);
        Ok(())
    }

    fn prepare_store(
        &mut self,
        req: &mut RequestContext,
        keys: &[OffloadKey],
    ) -> Result<StoreOutcome, StoreError> {
        self.check_known(req)?;
        self.poll();
        let residents = self.residents(req, keys);
        let outcome = self.primary.prepare_store(req, keys)?;
        self.stop_waiting(req.id());
        match &outcome {
            StoreOutcome::Refused(_) => return Ok(outcome),
            StoreOutcome::NothingToStore => {}
            StoreOutcome::Prepared(job) => {
                self.lose(&job.evicted, self.last);
                self.remember_store(req, job);
            }
        }
        self.cascade_residents(req, residents);
        Ok(outcome)
    }

    fn complete_store(&mut self, token: JobToken, result: TransferResult) -> Result<(), CompleteError> {
        let id = token.id();
        self.primary.complete_store(token, result)?;
        let store = self.stores.remove(&id).expect("each store job of the primary is remembered here");
        if result == TransferResult::Done {
            self.cascade(store.of, &store.chunks, TierSet::ALL);
        }
        if let Some(request) = store.of.find(&mut self.requests) {
            request.open_stores -= 1;
        }
        self.finalise_if_settled(store.of.req);
        Ok(())
    }

    fn touch(&mut self, keys: &[OffloadKey]) {
        self.primary.touch(keys);
    }

    fn on_request_finished(&mut self, req: &mut RequestContext) -> Result<(), RequestError> {
        self.check_known(req)?;
        self.primary.on_request_finished(req)?;
        self.stop_waiting(req.id());
        if let Some(request) = self.requests.get_mut(&req.id()) {
            request.finished = true;
        }
        self.finalise_if_settled(req.id());
        Ok(())
    }

    fn on_schedule_end(&mut self) {
        if !self.polled_in_step {
            self.poll();
        }
        self.primary.on_schedule_end();
        self.submit_promotions();
        self.resolve_parked();
        for tier in &mut self.tiers.all {
            tier.inner.on_schedule_end();
        }
        self.turns.on_step_end();
        self.polled_in_step = false;
    }

    fn primary_name(&self) -> &str {
        self.primary.name()
    }

    fn secondary_names(&self) -> Vec<&str> {
        self.tiers.all.iter().map(|tier| tier.inner.name()).collect()
    }

    fn cascading(&self) -> Vec<OffloadKey> {
        self.tiers.cascading()
    }

    fn take_events(&mut self, events: &mut Vec<OffloadEvent>) {
        self.primary.take_events(events);
        for tier in &mut self.tiers.all {
            tier.inner.take_events(events);
        }
    }

    fn counts(&self) -> ChunkCounts {
        self.primary.counts()
    }

    fn reset_cache(&mut self) {
        self.reset();
    }

    fn on_reset_flushed(&mut self) {
        Self::on_reset_flushed(self);
    }

    fn has_pending_work(&self) -> bool {
        Self::has_pending_work(self)
    }

    fn shut_down(&mut self, timeout: Duration) -> ShutDown {
        self.shut_down_tiers(timeout)
    }
}

impl<P> fmt::Debug for TieringManager<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TieringManager")
            .field("primary", &self.primary)
            .field("tiers", &self.tiers.stats())
            .field("num_requests", &self.requests.len())
            .field("promotions_held", &self.promotions_held)
            .finish_non_exhaustive()
    }
}
