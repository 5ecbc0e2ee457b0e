//! The primary tier's state machine.

use std::{fmt, sync::Arc};

use hashbrown::{HashMap, HashSet};
use kvo_core::{
    ChunkCounts, CompleteError, CompleteErrorReason, EventKind, JobId, JobKind, JobToken, LoadError, LoadJob,
    LookupResult, Medium, OffloadEvent, OffloadKey, OffloadManager, OffloadPolicy, OwnerId, Refusal,
    RequestContext, RequestError, SlotId, StoreError, StoreJob, StoreOutcome, TransferResult,
};
use kvo_policies::{CachePolicy, KeyAccess, Met};

use crate::{
    ConfigError, CpuOptions, CpuStats,
    accesses::RequestState,
    slots::{Pin, SlotTable},
    tracker::OfferTracker,
};

/// The primary tier: which chunk is in which slot, in what state, pinned by whom, and in what order to evict.
///
/// It moves no bytes. One thread owns it; nothing blocks. Everything but construction and
/// [`reset_cache`](OffloadManager::reset_cache) costs in proportion to the keys of the call.
pub struct CpuManager<P> {
    pub(crate) id: OwnerId,
    /// How many resets there were.
    pub(crate) generation: u64,
    pub(crate) policy: P,
    pub(crate) slots: SlotTable,
    pub(crate) stats: CpuStats,
    jobs: HashMap<JobId, OpenJob>,
    next_job: u64,
    store_threshold: u32,
    /// Only with a threshold above 1.
    tracker: Option<OfferTracker>,
    name: Arc<str>,
    /// Only if events are to be recorded.
    events: Option<Vec<OffloadEvent>>,
    offer: Offer,
    victims: Vec<OffloadKey>,
    accesses: Vec<KeyAccess>,
}

#[derive(Debug)]
struct OpenJob {
    kind: JobKind,
    slots: Vec<SlotId>,
}

/// The keys of one offer, sorted out. Kept between calls for its buffers.
#[derive(Debug, Default)]
struct Offer {
    /// All keys, to find repeats and to spare them.
    all: HashSet<OffloadKey>,
    /// All keys, without repeats, in the order of the offer.
    unique: Vec<OffloadKey>,
    /// Absent keys that may be stored.
    candidates: Vec<OffloadKey>,
    /// Candidates that the request had not missed before.
    first_missing: Vec<OffloadKey>,
    /// Keys that the request had not met before.
    first_met: Vec<KeyAccess>,
}

impl Offer {
    fn begin(&mut self, keys: &[OffloadKey]) {
        let Self { all, unique, candidates, first_missing, first_met } = self;
        all.clear();
        unique.clear();
        candidates.clear();
        first_missing.clear();
        first_met.clear();
        unique.extend(keys.iter().filter(|key| all.insert(**key)));
    }
}

impl<P: CachePolicy> CpuManager<P> {
    /// An empty tier.
    ///
    /// # Errors
    /// [`ConfigError`] names the option that cannot be.
    pub fn new(options: CpuOptions, policy: P) -> Result<Self, ConfigError> {
        options.check()?;
        Ok(Self {
            id: OwnerId::unique(),
            generation: 0,
            policy,
            slots: SlotTable::new(options.num_slots)?,
            stats: CpuStats::default(),
            jobs: HashMap::new(),
            next_job: 0,
            store_threshold: options.store_threshold,
            tracker: (options.store_threshold > 1).then(|| OfferTracker::new(options.tracker_keys_max)),
            name: options.name.into(),
            events: options.record_events.then(Vec::new),
            offer: Offer::default(),
            victims: Vec::new(),
            accesses: Vec::new(),
        })
    }

    /// The identity under which this manager keeps its state in a request's context.
    pub fn id(&self) -> OwnerId {
        self.id
    }

    /// The tier's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The policy, to look at.
    pub fn policy(&self) -> &P {
        &self.policy
    }

    /// A snapshot of the counters.
    pub fn stats(&self) -> CpuStats {
        CpuStats {
            counts: self.counts(),
            generation: self.generation,
            open_jobs: self.jobs.len(),
            parked_slots: self.slots.parked(),
            tracked_keys: self.tracker.as_ref().map_or(0, OfferTracker::len),
            ..self.stats
        }
    }

    /// Whether a chunk is absent, pending or ready, without counting a lookup.
    pub fn peek(&self, key: &OffloadKey) -> LookupResult {
        self.slots.lookup(key)
    }

    /// Whether the request can still load and store here.
    ///
    /// # Errors
    /// [`RequestError::Finished`] if it is finished here.
    pub fn check_running(&self, req: &RequestContext) -> Result<(), RequestError> {
        match req.state::<RequestState>(self.id) {
            Some(state) if state.finished => Err(RequestError::Finished { req: req.id() }),
            _ => Ok(()),
        }
    }

    /// Checks every count and link against the slots, in time proportional to the capacity.
    ///
    /// # Panics
    /// If one of this manager's invariants is broken.
    #[cfg(any(test, feature = "testing"))]
    pub fn assert_consistent(&self) {
        self.slots.assert_consistent();
    }

    pub(crate) fn make_ready(&mut self, slot: SlotId) -> OffloadKey {
        let key = self.slots.make_ready(slot);
        self.policy.on_ready(&key);
        key
    }

    pub(crate) fn fail(&mut self, slot: SlotId) -> OffloadKey {
        let key = self.slots.fail(slot);
        self.policy.remove(&key);
        self.stats.chunks_failed += 1;
        key
    }

    pub(crate) fn pin(&mut self, slot: SlotId, pin: Pin) {
        if let Some(key) = self.slots.pin(slot, pin) {
            self.policy.on_pin(&key);
        }
    }

    pub(crate) fn unpin(&mut self, slot: SlotId, pin: Pin) {
        if let Some(key) = self.slots.unpin(slot, pin) {
            self.policy.on_unpin(&key);
        }
    }

    /// Evicts `count` chunks, none of them spared, and says which, in order; or evicts none.
    pub(crate) fn evict(
        &mut self,
        count: usize,
        spared: impl Fn(&OffloadKey) -> bool,
    ) -> Option<&[OffloadKey]> {
        let Self { policy, slots, victims, .. } = self;
        victims.clear();
        if !policy.evict(count, &mut |key| slots.is_evictable(key) && !spared(key), victims) {
            return None;
        }
        assert_eq!(victims.len(), count, "the policy must evict as many as it was asked to");
        for key in victims.iter() {
            assert!(!spared(key), "the policy must spare {key}");
            slots.free_evicted(key);
        }
        self.stats.chunks_evicted += count as u64;
        record(&mut self.events, &self.name, EventKind::Removed, &self.victims);
        Some(&self.victims)
    }

    pub(crate) fn record(&mut self, kind: EventKind, keys: &[OffloadKey]) {
        record(&mut self.events, &self.name, kind, keys);
    }

    fn open_job(&mut self, kind: JobKind, slots: Vec<SlotId>) -> JobToken {
        let id = JobId(self.next_job);
        self.next_job += 1;
        self.jobs.insert(id, OpenJob { kind, slots });
        JobToken::new(self.id, self.generation, id, kind)
    }

    /// Takes the slots of the job that `token` ends.
    fn close_job(&mut self, token: JobToken, kind: JobKind) -> Result<Vec<SlotId>, CompleteError> {
        let reason = if token.owner() != self.id {
            CompleteErrorReason::OtherManager
        } else if token.generation() != self.generation {
            CompleteErrorReason::Reset { token: token.generation(), current: self.generation }
        } else if token.kind() != kind {
            CompleteErrorReason::WrongKind
        } else if self.jobs.get(&token.id()).is_none_or(|job| job.kind != kind) {
            CompleteErrorReason::NotOpen
        } else {
            return Ok(self.jobs.remove(&token.id()).map(|job| job.slots).unwrap_or_default());
        };
        Err(CompleteError { token, reason })
    }

    /// Sorts an offer's keys out, counts them for the threshold, and records what the request meets.
    fn sort_out(&mut self, offer: &mut Offer, req: &mut RequestContext, keys: &[OffloadKey]) {
        offer.begin(keys);
        if let Some(tracker) = &mut self.tracker {
            tracker.offer(&offer.unique);
        }
        let (state, positions) = req.state_mut::<RequestState>(self.id);
        let accesses = state.accesses(self.generation);
        for key in &offer.unique {
            let met = match self.slots.lookup(key) {
                LookupResult::HitPending => continue,
                LookupResult::Hit => Met::Ready,
                LookupResult::Miss | LookupResult::Retry => {
                    if self.tracker.as_ref().is_some_and(|tracker| tracker.offers(key) < self.store_threshold)
                    {
                        self.stats.keys_below_threshold += 1;
                        continue;
                    }
                    offer.candidates.push(*key);
                    if accesses.first_miss(key) {
                        offer.first_missing.push(*key);
                    }
                    Met::Missing
                }
            };
            offer.first_met.extend(accesses.record(key, positions.end_token(key), met));
        }
        self.policy.on_request_access(&mut accesses.recency, &offer.first_met);
        if !offer.first_missing.is_empty() {
            self.policy.on_store_miss(&offer.first_missing);
        }
    }

    /// Reserves slots for the candidates of an offer.
    fn store(&mut self, offer: &Offer, req: &mut RequestContext) -> StoreOutcome {
        let needed = offer.candidates.len();
        if needed == 0 {
            return StoreOutcome::NothingToStore;
        }
        let mut evicted = Vec::new();
        let short = needed.saturating_sub(self.slots.num_free());
        if short > 0 {
            let Some(victims) = self.evict(short, |key| offer.all.contains(key)) else {
                self.stats.offers_refused += 1;
                let ChunkCounts { free, evictable, .. } = self.counts();
                let needed = u32::try_from(needed).unwrap_or(u32::MAX);
                return StoreOutcome::Refused(Refusal { needed, free, evictable });
            };
            evicted.extend_from_slice(victims);
        }
        let (state, positions) = req.state_mut::<RequestState>(self.id);
        let accesses = state.accesses(self.generation);
        let mut slots = Vec::with_capacity(needed);
        for key in &offer.candidates {
            let end_token = positions.end_token(key);
            self.policy.insert(&mut accesses.recency, *key, end_token);
            accesses.record(key, end_token, Met::Stored);
            slots.push(self.slots.occupy(*key, false));
        }
        let token = self.open_job(JobKind::Store, slots.clone());
        StoreOutcome::Prepared(StoreJob { token, keys: offer.candidates.clone(), slots, evicted })
    }

    /// The slots of `keys`, if every one is ready and named once.
    fn ready_slots(&mut self, keys: &[OffloadKey]) -> Result<Vec<SlotId>, LoadError> {
        let seen = &mut self.offer.all;
        seen.clear();
        if let Some(key) = keys.iter().find(|key| !seen.insert(**key)) {
            return Err(LoadError::Repeated { key: *key });
        }
        let mut slots = Vec::with_capacity(keys.len());
        slots.extend(keys.iter().map_while(|key| self.slots.ready(key)));
        if slots.len() == keys.len() {
            return Ok(slots);
        }
        let of = |result| keys.iter().filter(|key| self.peek(key) == result).copied().collect();
        Err(LoadError::NotReady { absent: of(LookupResult::Miss), pending: of(LookupResult::HitPending) })
    }
}

impl<P: CachePolicy> OffloadManager for CpuManager<P> {
    fn new_request(&mut self, req: &mut RequestContext) -> Result<OffloadPolicy, RequestError> {
        if req.state::<RequestState>(self.id).is_some() {
            return Err(RequestError::Known { req: req.id() });
        }
        req.state_mut::<RequestState>(self.id);
        Ok(OffloadPolicy::ChunkLevel)
    }

    fn lookup(&mut self, _req: &mut RequestContext, key: &OffloadKey) -> LookupResult {
        let result = self.peek(key);
        *match result {
            LookupResult::Hit => &mut self.stats.lookup_hits,
            LookupResult::HitPending => &mut self.stats.lookup_pending,
            LookupResult::Miss | LookupResult::Retry => &mut self.stats.lookup_misses,
        } += 1;
        result
    }

    fn prepare_load(&mut self, req: &mut RequestContext, keys: &[OffloadKey]) -> Result<LoadJob, LoadError> {
        self.check_running(req)?;
        let slots = self.ready_slots(keys)?;
        for slot in &slots {
            self.pin(*slot, Pin::Load);
        }
        self.stats.chunks_loaded += slots.len() as u64;

        let (state, positions) = req.state_mut::<RequestState>(self.id);
        let accesses = state.accesses(self.generation);
        self.accesses.clear();
        self.accesses
            .extend(keys.iter().filter_map(|key| accesses.record(key, positions.end_token(key), Met::Ready)));
        self.policy.on_request_access(&mut accesses.recency, &self.accesses);
        let token = self.open_job(JobKind::Load, slots.clone());
        Ok(LoadJob { token, slots })
    }

    fn complete_load(&mut self, token: JobToken) -> Result<(), CompleteError> {
        for slot in self.close_job(token, JobKind::Load)? {
            self.unpin(slot, Pin::Load);
        }
        Ok(())
    }

    fn prepare_store(
        &mut self,
        req: &mut RequestContext,
        keys: &[OffloadKey],
    ) -> Result<StoreOutcome, StoreError> {
        self.check_running(req)?;
        let mut offer = std::mem::take(&mut self.offer);
        self.sort_out(&mut offer, req, keys);
        let outcome = self.store(&offer, req);
        self.offer = offer;
        Ok(outcome)
    }

    fn complete_store(&mut self, token: JobToken, result: TransferResult) -> Result<(), CompleteError> {
        let slots = self.close_job(token, JobKind::Store)?;
        let mut keys = Vec::with_capacity(slots.len());
        match result {
            TransferResult::Done => {
                keys.extend(slots.into_iter().map(|slot| self.make_ready(slot)));
                self.stats.chunks_stored += keys.len() as u64;
                self.record(EventKind::Stored, &keys);
            }
            TransferResult::Failed => {
                keys.extend(slots.into_iter().map(|slot| self.fail(slot)));
                self.record(EventKind::Discarded, &keys);
            }
        }
        Ok(())
    }

    fn touch(&mut self, keys: &[OffloadKey]) {
        self.policy.touch(keys);
    }

    fn on_request_finished(&mut self, req: &mut RequestContext) -> Result<(), RequestError> {
        self.check_running(req)?;
        let (state, positions) = req.state_mut::<RequestState>(self.id);
        let accesses = state.accesses(self.generation);
        accesses.take_into(|key| positions.end_token(key), &mut self.accesses);
        state.finished = true;
        if !self.accesses.is_empty() {
            self.policy.on_request_finished(&self.accesses);
        }
        Ok(())
    }

    fn on_schedule_end(&mut self) {}

    fn take_events(&mut self, events: &mut Vec<OffloadEvent>) {
        for mut event in self.events.iter_mut().flat_map(|recorded| recorded.drain(..)) {
            if event.kind == EventKind::Discarded {
                event.keys.retain(|key| !self.slots.contains(key));
            }
            if !event.keys.is_empty() {
                events.push(event);
            }
        }
    }

    fn counts(&self) -> ChunkCounts {
        self.slots.counts()
    }

    /// Slots that tiers hold are parked, counted as pending, until the last hold on them is released.
    fn reset_cache(&mut self) {
        self.generation += 1;
        self.jobs.clear();
        self.policy.clear();
        self.slots.reset();
    }
}

impl<P> fmt::Debug for CpuManager<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CpuManager")
            .field("name", &self.name)
            .field("generation", &self.generation)
            .field("counts", &self.slots.counts())
            .field("open_jobs", &self.jobs.len())
            .finish_non_exhaustive()
    }
}

fn record(events: &mut Option<Vec<OffloadEvent>>, tier: &Arc<str>, kind: EventKind, keys: &[OffloadKey]) {
    if let Some(events) = events
        && !keys.is_empty()
    {
        events.push(OffloadEvent { tier: tier.clone(), medium: Medium::Memory, kind, keys: keys.to_vec() });
    }
}
