//! The primary tier's state machine.

use std::{fmt, sync::Arc};

use hashbrown::{HashMap, HashSet};
use kvo_core::{
    ChunkCounts, CompleteError, CompleteErrorReason, EventKind, JobId, JobKind, JobToken, LoadError, LoadJob,
    LookupResult, Medium, OffloadEvent, OffloadKey, OffloadManager, OffloadPolicy, OwnerId, PrefixLookup,
    Refusal, RequestContext, RequestError, SlotId, StoreError, StoreJob, StoreOutcome, TransferResult,
};
use kvo_policies::{AccessKind, CachePolicy, KeyAccess, Meeting, Met, Residents};

use crate::{
    ConfigError, CpuOptions, CpuStats,
    accesses::RequestState,
    index::BATCH,
    slots::{Found, Pin, SlotTable},
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
    /// The slots of the last prefix that was looked up: what is loaded next, most often.
    looked_up: Vec<SlotId>,
    victims: Vec<SlotId>,
    evicted: Vec<OffloadKey>,
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
    /// Absent keys that may be stored.
    candidates: Vec<Candidate>,
    /// Candidates that the request had not missed before.
    first_missing: Vec<KeyAccess>,
    /// Keys that the request had not met before.
    first_met: Vec<KeyAccess>,
    /// How many of the offer's keys could be evicted, were they not its own.
    spared: usize,
    /// With a threshold: all keys, without repeats, in the order of the offer, and to find repeats.
    unique: Vec<OffloadKey>,
    seen: HashSet<OffloadKey>,
}

#[derive(Clone, Copy, Debug)]
struct Candidate {
    key: OffloadKey,
    hash: u64,
    end_token: Option<u32>,
    meeting: Meeting,
}

impl Offer {
    fn begin(&mut self) {
        let Self { candidates, first_missing, first_met, spared, unique, seen } = self;
        candidates.clear();
        first_missing.clear();
        first_met.clear();
        *spared = 0;
        unique.clear();
        seen.clear();
    }
}

impl<P: CachePolicy> CpuManager<P> {
    /// An empty tier.
    ///
    /// # Errors
    /// [`ConfigError`] names the option that cannot be.
    pub fn new(options: CpuOptions, policy: P) -> Result<Self, ConfigError> {
        options.check()?;
        let (num_slots, policy_slots) = (options.num_slots, policy.num_slots_max());
        if policy_slots < num_slots {
            return Err(ConfigError::PolicyTooSmall { num_slots, policy_slots });
        }
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
            looked_up: Vec::new(),
            victims: Vec::new(),
            evicted: Vec::new(),
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
        self.policy.on_ready(slot);
        key
    }

    pub(crate) fn fail(&mut self, slot: SlotId) -> OffloadKey {
        let key = self.slots.fail(slot);
        self.policy.remove(slot);
        self.stats.chunks_failed += 1;
        key
    }

    pub(crate) fn unpin(&mut self, slot: SlotId, pin: Pin) {
        if self.slots.unpin(slot, pin) {
            self.policy.on_unpin(slot);
        }
    }

    /// Evicts `count` chunks, none of the current offer, of whose evictable chunks there are `spared`; or evicts none.
    /// Which they were, in order, is left in `evicted`.
    pub(crate) fn evict(&mut self, count: usize, spared: usize) -> bool {
        let Self { policy, slots, victims, evicted, .. } = self;
        evicted.clear();
        // A refusal is to cost nothing, however often it comes.
        if count > (slots.counts().evictable as usize).saturating_sub(spared) {
            return false;
        }
        victims.clear();
        if !policy.evict(count, slots, victims) {
            return false;
        }
        assert_eq!(victims.len(), count, "the policy must evict as many as it was asked to");
        evicted.extend(victims.iter().map(|slot| slots.free_evicted(*slot)));
        self.stats.chunks_evicted += count as u64;
        record(&mut self.events, &self.name, EventKind::Removed, &self.evicted);
        true
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
        offer.begin();
        let mut keys = keys;
        if let Some(tracker) = &mut self.tracker {
            offer.unique.extend(keys.iter().filter(|key| offer.seen.insert(**key)));
            tracker.offer(&offer.unique);
            keys = &offer.unique;
        }
        let (state, positions) = req.state_mut::<RequestState>(self.id);
        let accesses = state.accesses(self.generation, positions);
        self.slots.begin_offer();
        let mut found = Found::default();
        for keys in keys.chunks(BATCH) {
            self.slots.find_batch(keys, &mut found);
            for (key, (slot, hash)) in keys.iter().zip(found.slots.into_iter().zip(found.hashes)) {
                if let Some(slot) = slot {
                    let repeated = self.slots.name(slot);
                    if repeated || self.slots.lookup_slot(slot) == LookupResult::HitPending {
                        continue;
                    }
                    offer.spared += usize::from(self.slots.is_evictable(slot));
                    offer.first_met.extend(accesses.record(
                        key,
                        Some(slot),
                        positions.end_token(key),
                        Met::Ready,
                    ));
                    continue;
                }
                if self.tracker.as_ref().is_some_and(|tracker| tracker.offers(key) < self.store_threshold) {
                    self.stats.keys_below_threshold += 1;
                    continue;
                }
                let end_token = positions.end_token(key);
                let (meeting, first) = accesses.meet(key, None, end_token, Met::Missing);
                if accesses.name(meeting, self.slots.offer()) {
                    continue;
                }
                offer.candidates.push(Candidate { key: *key, hash, end_token, meeting });
                offer.first_met.extend(first);
                if accesses.miss(meeting) {
                    let kind = AccessKind::Inserted;
                    offer.first_missing.push(KeyAccess { key: *key, slot: None, end_token, kind });
                }
            }
        }
        self.policy.on_request_access(&mut accesses.recency, &offer.first_met, &self.slots);
        if !offer.first_missing.is_empty() {
            self.policy.on_store_miss(&offer.first_missing, &self.slots);
        }
    }

    /// Reserves slots for the candidates of an offer.
    fn store(&mut self, offer: &Offer, req: &mut RequestContext) -> StoreOutcome {
        let needed = offer.candidates.len();
        if needed == 0 {
            return StoreOutcome::NothingToStore;
        }
        let short = needed.saturating_sub(self.slots.num_free());
        self.evicted.clear();
        if short > 0 && !self.evict(short, offer.spared) {
            self.stats.offers_refused += 1;
            let ChunkCounts { free, evictable, .. } = self.counts();
            let needed = u32::try_from(needed).unwrap_or(u32::MAX);
            return StoreOutcome::Refused(Refusal { needed, free, evictable });
        }
        let (state, positions) = req.state_mut::<RequestState>(self.id);
        let accesses = state.accesses(self.generation, positions);
        let (mut keys, mut slots) = (Vec::with_capacity(needed), Vec::with_capacity(needed));
        for Candidate { key, hash, end_token, meeting } in &offer.candidates {
            let slot = self.slots.occupy(*key, *hash, false);
            self.policy.insert(&mut accesses.recency, slot, key, *end_token, &self.slots);
            accesses.store(*meeting, slot);
            keys.push(*key);
            slots.push(slot);
        }
        let evicted = self.evicted.clone();
        let token = self.open_job(JobKind::Store, slots.clone());
        StoreOutcome::Prepared(StoreJob { token, keys, slots, evicted })
    }

    /// The slots of `keys`, if every one is ready and named once.
    fn ready_slots(&mut self, keys: &[OffloadKey]) -> Result<Vec<SlotId>, LoadError> {
        let mut slots = Vec::with_capacity(keys.len());
        let is_ready = |(key, slot): &(&OffloadKey, &SlotId)| {
            self.slots.is_ready(**slot) && self.slots.key(**slot) == **key
        };
        slots.extend(keys.iter().zip(&self.looked_up).take_while(is_ready).map(|(_, slot)| *slot));
        let mut found = Found::default();
        for keys in keys[slots.len()..].chunks(BATCH) {
            self.slots.find_batch(keys, &mut found);
            let found = found.slots[..keys.len()].iter().flatten();
            slots.extend(found.filter(|slot| self.slots.is_ready(**slot)));
        }
        if slots.len() < keys.len() {
            let seen = &mut self.offer.seen;
            seen.clear();
            if let Some(key) = keys.iter().find(|key| !seen.insert(**key)) {
                return Err(LoadError::Repeated { key: *key });
            }
            let of = |result| keys.iter().filter(|key| self.peek(key) == result).copied().collect();
            return Err(LoadError::NotReady {
                absent: of(LookupResult::Miss),
                pending: of(LookupResult::HitPending),
            });
        }
        self.slots.begin_offer();
        match keys.iter().zip(&slots).find(|(_, slot)| self.slots.name(**slot)) {
            Some((key, _)) => Err(LoadError::Repeated { key: *key }),
            None => Ok(slots),
        }
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

    fn lookup_prefix(&mut self, _req: &mut RequestContext, keys: &[OffloadKey]) -> PrefixLookup {
        let Self { slots, looked_up, .. } = self;
        looked_up.clear();
        let mut take = |slot: Option<SlotId>| match slot {
            Some(slot) if slots.is_ready(slot) => {
                looked_up.push(slot);
                None
            }
            Some(slot) => Some(slots.lookup_slot(slot)),
            None => Some(LookupResult::Miss),
        };
        // The first key alone decides most lookups that fail.
        let (first, rest) = keys.split_at(keys.len().min(1));
        let mut end = first.first().and_then(|key| take(slots.find(key)));
        if end.is_none() && !rest.is_empty() {
            let mut found = Found::default();
            for batch in rest.chunks(BATCH) {
                slots.find_batch(batch, &mut found);
                end = found.slots[..batch.len()].iter().find_map(|slot| take(*slot));
                if end.is_some() {
                    break;
                }
            }
        }
        let ready = self.looked_up.len();
        self.stats.lookup_hits += ready as u64;
        match end {
            Some(LookupResult::HitPending) => self.stats.lookup_pending += 1,
            Some(_) => self.stats.lookup_misses += 1,
            None => {}
        }
        PrefixLookup { ready, end }
    }

    fn prepare_load(&mut self, req: &mut RequestContext, keys: &[OffloadKey]) -> Result<LoadJob, LoadError> {
        self.check_running(req)?;
        let slots = self.ready_slots(keys)?;
        for slot in &slots {
            self.slots.pin(*slot, Pin::Load);
        }
        self.stats.chunks_loaded += slots.len() as u64;

        let (state, positions) = req.state_mut::<RequestState>(self.id);
        let accesses = state.accesses(self.generation, positions);
        self.accesses.clear();
        self.accesses.extend(keys.iter().zip(&slots).filter_map(|(key, slot)| {
            accesses.record(key, Some(*slot), positions.end_token(key), Met::Ready)
        }));
        self.policy.on_request_access(&mut accesses.recency, &self.accesses, &self.slots);
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
        let kind = match result {
            TransferResult::Done => {
                self.stats.chunks_stored += slots.len() as u64;
                EventKind::Stored
            }
            TransferResult::Failed => EventKind::Discarded,
        };
        let mut keys = Vec::new();
        for slot in slots {
            let key = match result {
                TransferResult::Done => self.make_ready(slot),
                TransferResult::Failed => self.fail(slot),
            };
            if self.events.is_some() {
                keys.push(key);
            }
        }
        self.record(kind, &keys);
        Ok(())
    }

    fn touch(&mut self, keys: &[OffloadKey]) {
        self.accesses.clear();
        self.accesses.extend(keys.iter().map(|key| KeyAccess {
            key: *key,
            slot: self.slots.find(key),
            end_token: None,
            kind: AccessKind::Reused,
        }));
        self.policy.touch(&self.accesses, &self.slots);
    }

    fn on_request_finished(&mut self, req: &mut RequestContext) -> Result<(), RequestError> {
        self.check_running(req)?;
        let (state, positions) = req.state_mut::<RequestState>(self.id);
        let accesses = state.accesses(self.generation, positions);
        accesses.take_into(
            |key, slot| self.slots.find_near(key, slot),
            |key| positions.end_token(key),
            &mut self.accesses,
        );
        if !self.accesses.is_empty() {
            self.policy.on_request_finished(&mut accesses.recency, &self.accesses, &self.slots);
        }
        state.finished = true;
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
