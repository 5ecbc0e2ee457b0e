//! The primary tier's state machine.

use std::{fmt, sync::Arc};

use hashbrown::{HashMap, HashSet, hash_map::Entry};
use kvo_core::{
    ChunkCounts, CompleteError, CompleteErrorReason, EventKind, JobId, JobKind, JobToken, KeyPositions,
    LoadError, LoadJob, LookupResult, Medium, OffloadEvent, OffloadKey, OffloadManager, OffloadPolicy,
    OwnerId, PrefixLookup, Refusal, RequestContext, RequestError, SlotId, StoreError, StoreJob, StoreOutcome,
    TransferResult,
};
use kvo_policies::{AccessKind, CachePolicy, KeyAccess, Meeting, Met, RequestAccesses, Residents};

use crate::{
    ConfigError, CpuOptions, CpuStats,
    accesses::RequestState,
    slots::{BATCH, Found, Pin, SlotTable},
    tracker::OfferTracker,
};

/// How many ended jobs and requests leave their room for others, and room for how many keys: one huge request is not to
/// hold memory for ever.
const SPARE_MAX: usize = 64;
const SPARE_KEYS_MAX: usize = 1 << 14;

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
    /// Pinned until the step ends, once for each time that they are here.
    reserved: Vec<SlotId>,
    store_threshold: u32,
    /// Only with a threshold above 1.
    tracker: Option<OfferTracker>,
    name: Arc<str>,
    /// Only if events are to be recorded.
    events: Option<Vec<OffloadEvent>>,
    offer: Offer,
    /// With a threshold: the offer's keys without repeats, in its order. And to find repeats.
    unique: Vec<OffloadKey>,
    seen: HashSet<OffloadKey>,
    /// Room that ended jobs and requests have left, for the next ones.
    spare_slots: Vec<Vec<SlotId>>,
    spare_accesses: Vec<RequestAccesses>,
    /// The slots of the last prefix that was looked up: what is loaded next, most often.
    looked_up: Vec<SlotId>,
    victims: Vec<SlotId>,
    pub(crate) evicted: Vec<OffloadKey>,
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
    /// Absent keys that may be stored, and what else is known of each.
    missing: Vec<KeyAccess>,
    candidates: Vec<Candidate>,
    /// Those of them that the request had not missed before, if they are not all.
    first_missing: Vec<KeyAccess>,
    /// Ready keys that the request had not met before.
    first_met: Vec<KeyAccess>,
    /// How many of the offer's keys could be evicted, were they not its own.
    spared: usize,
}

#[derive(Clone, Copy, Debug)]
struct Candidate {
    hash: u64,
    meeting: Meeting,
    is_first_miss: bool,
}

impl Offer {
    fn begin(&mut self) {
        let Self { missing, candidates, first_missing, first_met, spared } = self;
        missing.clear();
        candidates.clear();
        first_missing.clear();
        first_met.clear();
        *spared = 0;
    }

    /// Takes the first of `keys` as candidates, as many as are absent and the next that the request meets in order;
    /// returns how many.
    fn take_new<'a>(
        &mut self,
        keys: &[OffloadKey],
        found: impl Iterator<Item = (&'a Option<SlotId>, &'a u64)> + Clone,
        accesses: &mut RequestAccesses,
        positions: &KeyPositions,
        offer: u32,
    ) -> usize {
        let num_absent = found.clone().take(keys.len()).take_while(|(slot, _)| slot.is_none()).count();
        let (places, first) = accesses.ask_next(&keys[..num_absent], positions, offer);
        let num_new = places.len();
        let entries = &positions.entries()[places];
        self.missing.extend(entries.iter().map(|(key, end_token)| missing(key, Some(*end_token))));
        let candidates = (0..).zip(found).take(num_new).map(|(later, (_, hash))| Candidate {
            hash: *hash,
            meeting: first.later(later),
            is_first_miss: true,
        });
        self.candidates.extend(candidates);
        num_new
    }

    /// Drops candidates that got no slot: their keys are among the others. The request's positions name them twice.
    #[cold]
    fn drop_repeats(&mut self) {
        let mut has_slot = self.missing.iter().map(|access| access.slot.is_some());
        self.candidates.retain(|_| has_slot.next().expect("one a candidate"));
        self.missing.retain(|access| access.slot.is_some());
    }

    /// The candidates that the request had not missed before.
    fn first_missing(&mut self) -> &[KeyAccess] {
        if self.candidates.iter().all(|candidate| candidate.is_first_miss) {
            return &self.missing;
        }
        let missing = self.missing.iter().zip(&self.candidates);
        let first = missing.filter_map(|(access, candidate)| candidate.is_first_miss.then_some(*access));
        self.first_missing.extend(first);
        &self.first_missing
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
            reserved: Vec::new(),
            store_threshold: options.store_threshold,
            tracker: (options.store_threshold > 1).then(|| OfferTracker::new(options.tracker_keys_max)),
            name: options.name.into(),
            events: options.record_events.then(Vec::new),
            offer: Offer::default(),
            unique: Vec::new(),
            seen: HashSet::new(),
            spare_slots: Vec::new(),
            spare_accesses: Vec::new(),
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
            Some(state) if state.is_finished() => Err(RequestError::Finished { req: req.id() }),
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

    pub(crate) fn make_ready(&mut self, slot: SlotId) {
        self.slots.make_ready(slot);
        self.policy.on_ready(slot);
    }

    pub(crate) fn fail(&mut self, slot: SlotId) {
        self.slots.fail(slot);
        self.policy.remove(slot);
        self.stats.chunks_failed += 1;
    }

    #[inline]
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
        evicted.reserve_exact(count);
        slots.free_evicted(victims, evicted);
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
        } else if let Entry::Occupied(job) = self.jobs.entry(token.id())
            && job.get().kind == kind
        {
            return Ok(job.remove().slots);
        } else {
            CompleteErrorReason::NotOpen
        };
        Err(CompleteError { token, reason })
    }

    /// Keeps the room of a job that has ended.
    fn keep_room(&mut self, mut slots: Vec<SlotId>) {
        if self.spare_slots.len() < SPARE_MAX && slots.capacity() <= SPARE_KEYS_MAX {
            slots.clear();
            self.spare_slots.push(slots);
        }
    }

    /// Sorts an offer's keys out, counts them for the threshold, and records what the request meets.
    fn sort_out(&mut self, accesses: &mut RequestAccesses, positions: &KeyPositions, keys: &[OffloadKey]) {
        let Self { offer, unique, seen, slots, policy, tracker, stats, store_threshold, .. } = self;
        offer.begin();
        let mut keys = keys;
        if let Some(tracker) = tracker {
            unique.clear();
            seen.clear();
            unique.extend(keys.iter().filter(|key| seen.insert(**key)));
            tracker.offer(unique);
            keys = unique;
        }
        slots.begin_offer();
        let mut found = Found::default();
        for keys in keys.chunks(BATCH) {
            slots.find_batch(keys, &mut found);
            let found = found.slots.iter().zip(&found.hashes);
            // Most often a request stores the keys that follow those it has met.
            let num_new = match tracker {
                None => offer.take_new(keys, found.clone(), accesses, positions, slots.offer()),
                Some(_) => 0,
            };
            for (key, (slot, hash)) in keys.iter().zip(found).skip(num_new) {
                if let Some(slot) = *slot {
                    let repeated = slots.name(slot);
                    if repeated || !slots.is_ready(slot) {
                        continue;
                    }
                    offer.spared += usize::from(slots.is_evictable(slot));
                    let at = positions.find(key);
                    if accesses.meet(key, at, positions, Some(slot), Met::Ready).is_first() {
                        offer.first_met.push(reuse(key, slot, at.map(|position| position.end_token)));
                    }
                    continue;
                }
                if tracker.as_ref().is_some_and(|tracker| tracker.offers(key) < *store_threshold) {
                    stats.keys_below_threshold += 1;
                    continue;
                }
                let at = positions.find(key);
                if let Some((meeting, is_first_miss)) = accesses.ask(key, at, positions, slots.offer()) {
                    offer.candidates.push(Candidate { hash: *hash, meeting, is_first_miss });
                    offer.missing.push(missing(key, at.map(|position| position.end_token)));
                }
            }
        }
        if !offer.first_met.is_empty() {
            policy.on_request_access(&mut accesses.recency, &offer.first_met, slots);
        }
        let first_missing = offer.first_missing();
        if !first_missing.is_empty() {
            policy.on_store_miss(first_missing, slots);
        }
    }

    /// Reserves slots for the candidates of an offer.
    fn store(&mut self, accesses: &mut RequestAccesses) -> StoreOutcome {
        let needed = self.offer.candidates.len();
        if needed == 0 {
            return StoreOutcome::NothingToStore;
        }
        let short = needed.saturating_sub(self.slots.num_free());
        self.evicted = Vec::new();
        if short > 0 && !self.evict(short, self.offer.spared) {
            self.stats.offers_refused += 1;
            let ChunkCounts { free, evictable, .. } = self.counts();
            let needed = u32::try_from(needed).unwrap_or(u32::MAX);
            return StoreOutcome::Refused(Refusal { needed, free, evictable });
        }
        let Self { offer, slots: table, policy, spare_slots, .. } = self;
        let mut slots = spare_slots.pop().unwrap_or_default();
        if !table.occupy_all(&mut offer.missing, offer.candidates.iter().map(|candidate| candidate.hash)) {
            offer.drop_repeats();
        }
        slots.extend(offer.missing.iter().filter_map(|access| access.slot));
        for (slot, candidate) in slots.iter().zip(&offer.candidates) {
            accesses.store(candidate.meeting, *slot);
        }
        policy.insert_all(&mut accesses.recency, &offer.missing, table);
        let keys = offer.missing.iter().map(|access| access.key).collect();
        let evicted = std::mem::take(&mut self.evicted);
        let of_job = slots.clone();
        let token = self.open_job(JobKind::Store, slots);
        StoreOutcome::Prepared(StoreJob { token, keys, slots: of_job, evicted })
    }

    /// The slots of `keys`, if every one is ready and named once.
    fn ready_slots(&mut self, keys: &[OffloadKey]) -> Result<Vec<SlotId>, LoadError> {
        let mut slots = self.spare_slots.pop().unwrap_or_default();
        let is_ready = |(key, slot): &(&OffloadKey, &SlotId)| self.slots.is_ready_for(**slot, key);
        slots.extend(keys.iter().zip(&self.looked_up).take_while(is_ready).map(|(_, slot)| *slot));
        let mut found = Found::default();
        for keys in keys[slots.len()..].chunks(BATCH) {
            self.slots.find_batch(keys, &mut found);
            let found = found.slots[..keys.len()].iter().flatten();
            slots.extend(found.filter(|slot| self.slots.is_ready(**slot)));
        }
        if slots.len() < keys.len() {
            self.seen.clear();
            if let Some(key) = keys.iter().find(|key| !self.seen.insert(**key)) {
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
        let (state, _) = req.state_mut::<RequestState>(self.id);
        state.begin(self.spare_accesses.pop().unwrap_or_default());
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

    fn peek(&self, key: &OffloadKey) -> LookupResult {
        Self::peek(self, key)
    }

    fn reserve(&mut self, keys: &[OffloadKey]) -> usize {
        let before = self.reserved.len();
        let Self { slots, reserved, .. } = self;
        reserved.extend(keys.iter().map_while(|key| slots.ready(key)));
        for slot in &reserved[before..] {
            slots.pin(*slot, Pin::Load);
        }
        let ready = reserved.len() - before;
        self.stats.lookup_hits += ready as u64;
        ready
    }

    fn prepare_load(&mut self, req: &mut RequestContext, keys: &[OffloadKey]) -> Result<LoadJob, LoadError> {
        let (state, positions) = running(req, self.id)?;
        let slots = self.ready_slots(keys)?;
        let accesses = state.accesses(self.generation, positions);
        self.accesses.clear();
        for slot in &slots {
            self.slots.pin(*slot, Pin::Load);
        }
        // Most often a request loads the keys that follow those it has met.
        let next = accesses.meet_next(keys, &slots, positions);
        let num_next = next.len();
        self.accesses.extend(
            positions.entries()[next]
                .iter()
                .zip(&slots)
                .map(|((key, end_token), slot)| reuse(key, *slot, Some(*end_token))),
        );
        for (key, slot) in keys.iter().zip(&slots).skip(num_next) {
            let at = positions.find(key);
            if accesses.meet(key, at, positions, Some(*slot), Met::Ready).is_first() {
                self.accesses.push(reuse(key, *slot, at.map(|position| position.end_token)));
            }
        }
        self.stats.chunks_loaded += slots.len() as u64;
        self.policy.on_request_access(&mut accesses.recency, &self.accesses, &self.slots);
        let of_job = slots.clone();
        let token = self.open_job(JobKind::Load, slots);
        Ok(LoadJob { token, slots: of_job })
    }

    fn complete_load(&mut self, token: JobToken) -> Result<(), CompleteError> {
        let slots = self.close_job(token, JobKind::Load)?;
        for slot in &slots {
            self.unpin(*slot, Pin::Load);
        }
        self.keep_room(slots);
        Ok(())
    }

    fn prepare_store(
        &mut self,
        req: &mut RequestContext,
        keys: &[OffloadKey],
    ) -> Result<StoreOutcome, StoreError> {
        let (state, positions) = running(req, self.id)?;
        let accesses = state.accesses(self.generation, positions);
        self.sort_out(accesses, positions, keys);
        Ok(self.store(accesses))
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
        if self.events.is_some() {
            let keys: Vec<_> = slots.iter().map(|slot| self.slots.key(*slot)).collect();
            self.record(kind, &keys);
        }
        for slot in &slots {
            match result {
                TransferResult::Done => self.make_ready(*slot),
                TransferResult::Failed => self.fail(*slot),
            }
        }
        self.keep_room(slots);
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
        let (state, positions) = running(req, self.id)?;
        let mut accesses = state.finish(self.generation, positions);
        let in_order = accesses.in_order(positions);
        if !in_order.is_some_and(|summary| self.policy.commit_run(&mut accesses.recency, summary)) {
            let locate = |key: &OffloadKey, slot| self.slots.find_near(key, slot);
            accesses.take_into(positions, locate, &mut self.accesses);
            if !self.accesses.is_empty() {
                self.policy.on_request_finished(&mut accesses.recency, &self.accesses, &self.slots);
            }
        }
        if self.spare_accesses.len() < SPARE_MAX && accesses.capacity() <= SPARE_KEYS_MAX {
            accesses.clear();
            self.spare_accesses.push(accesses);
        }
        Ok(())
    }

    fn on_schedule_end(&mut self) {
        let mut reserved = std::mem::take(&mut self.reserved);
        for slot in reserved.drain(..) {
            self.unpin(slot, Pin::Load);
        }
        self.reserved = reserved;
    }

    fn primary_name(&self) -> &str {
        self.name()
    }

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
        self.reserved.clear();
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

/// The state of a request that is not finished here, and its positions.
fn running(
    req: &mut RequestContext,
    id: OwnerId,
) -> Result<(&mut RequestState, &KeyPositions), RequestError> {
    let of = req.id();
    let (state, positions) = req.state_mut::<RequestState>(id);
    if state.is_finished() { Err(RequestError::Finished { req: of }) } else { Ok((state, positions)) }
}

/// The access to an absent key.
fn missing(key: &OffloadKey, end_token: Option<u32>) -> KeyAccess {
    KeyAccess { key: *key, slot: None, end_token, kind: AccessKind::Inserted }
}

/// The access to a key that is ready in `slot`.
fn reuse(key: &OffloadKey, slot: SlotId, end_token: Option<u32>) -> KeyAccess {
    KeyAccess { key: *key, slot: Some(slot), end_token, kind: AccessKind::Reused }
}

fn record(events: &mut Option<Vec<OffloadEvent>>, tier: &Arc<str>, kind: EventKind, keys: &[OffloadKey]) {
    if let Some(events) = events
        && !keys.is_empty()
    {
        events.push(OffloadEvent { tier: tier.clone(), medium: Medium::Memory, kind, keys: keys.to_vec() });
    }
}
