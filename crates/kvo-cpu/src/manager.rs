//! The primary tier's state machine.
//!
//! ```text
//!                 prepare_store, hold_for_promotion          complete_store(Done), release(Done)
//!        Free ─────────────────────────────────▶ Pending ─────────────────────────────▶ Ready { ref_count: 0 }
//!         ▲                                        │ │                                    │  ▲
//!         ├──────── complete_store(Failed) ────────┘ │                          pin, hold │  │ complete_load,
//!         ├──────── evict ◀──────────────────────────┼──── Ready { ref_count: 0 }         ▼  │ release
//!         │                                          │                          Ready { ref_count > 0 }
//!         └──── release ◀──── Parked ◀── reset, while a tier holds the slot ─────────────┘
//! ```

use hashbrown::{HashMap, HashSet};
use kvo_core::{
    ChunkCounts, CompleteError, CompleteErrorReason, EventKind, JobId, JobKind, JobToken, LoadError, LoadJob,
    LookupResult, Medium, OffloadEvent, OffloadKey, OffloadManager, OffloadPolicy, OwnerId, Refusal,
    RequestContext, RequestError, SlotId, StoreError, StoreJob, StoreOutcome, TransferResult,
};
use kvo_policies::{CachePolicy, KeyAccess};

use crate::{
    ConfigError, CpuOptions, CpuStats, HoldKind, Released, TierHold,
    accesses::{Met, RequestAccesses},
    tracker::OfferTracker,
};

/// The primary tier: which chunk is in which slot, in what state, pinned by whom, and in what order to evict.
///
/// It moves no bytes. One thread owns it; nothing blocks. Everything but construction and
/// [`reset_cache`](OffloadManager::reset_cache) costs in proportion to the keys of the call.
#[derive(Debug)]
pub struct CpuManager<P> {
    id: OwnerId,
    generation: u64,
    options: CpuOptions,
    name: std::sync::Arc<str>,
    policy: P,
    index: HashMap<OffloadKey, SlotId>,
    slots: Vec<Slot>,
    free: Vec<SlotId>,
    pending: u32,
    pinned: u32,
    parked: u32,
    jobs: HashMap<JobId, Job>,
    next_job: u64,
    tracker: Option<OfferTracker>,
    events: Vec<OffloadEvent>,
    stats: CpuStats,
    scratch: Scratch,
}

#[derive(Clone, Copy, Debug)]
enum SlotState {
    Free,
    Pending {
        key: OffloadKey,
    },
    Ready {
        key: OffloadKey,
        ref_count: u32,
    },
    /// Dropped by a reset while a tier was reading or writing it.
    Parked,
}

#[derive(Debug)]
struct Slot {
    state: SlotState,
}

#[derive(Debug)]
struct Job {
    kind: JobKind,
    slots: Vec<SlotId>,
}

/// Buffers of one call, kept to be used again.
#[derive(Debug, Default)]
struct Scratch {
    offered: HashSet<OffloadKey>,
    unique: Vec<OffloadKey>,
    candidates: Vec<OffloadKey>,
    first_missing: Vec<OffloadKey>,
    accesses: Vec<KeyAccess>,
}

impl<P: CachePolicy> CpuManager<P> {
    /// An empty tier.
    ///
    /// # Errors
    /// [`ConfigError`] names the option that cannot be.
    pub fn new(options: CpuOptions, policy: P) -> Result<Self, ConfigError> {
        options.check()?;
        let num_slots = options.num_slots;
        let too_many = |_| ConfigError::TooManySlots { num_slots };
        let (mut slots, mut free) = (Vec::new(), Vec::new());
        slots.try_reserve_exact(num_slots as usize).map_err(too_many)?;
        free.try_reserve_exact(num_slots as usize).map_err(too_many)?;
        slots.extend((0..num_slots).map(|_| Slot { state: SlotState::Free }));
        free.extend((0..num_slots).rev().map(SlotId));
        Ok(Self {
            id: OwnerId::unique(),
            generation: 0,
            name: options.name.as_str().into(),
            policy,
            index: HashMap::new(),
            slots,
            free,
            pending: 0,
            pinned: 0,
            parked: 0,
            jobs: HashMap::new(),
            next_job: 0,
            tracker: (options.store_threshold > 1).then(|| OfferTracker::new(options.tracker_keys_max)),
            events: Vec::new(),
            stats: CpuStats::default(),
            scratch: Scratch::default(),
            options,
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

    /// Whether a hold is of the current reset generation. The slot of an older one is parked.
    pub fn is_current(&self, hold: &TierHold) -> bool {
        hold.owner == self.id && hold.generation == self.generation
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
            parked_slots: self.parked,
            tracked_keys: self.tracker.as_ref().map_or(0, OfferTracker::len),
            ..self.stats
        }
    }

    /// Whether a chunk is absent, pending or ready, without counting a lookup.
    pub fn peek(&self, key: &OffloadKey) -> LookupResult {
        match self.index.get(key).map(|slot| self.state(*slot)) {
            None => LookupResult::Miss,
            Some(SlotState::Ready { .. }) => LookupResult::Hit,
            Some(_) => LookupResult::HitPending,
        }
    }

    /// Pins a ready chunk for a tier that reads it. It is no access.
    ///
    /// Returns nothing, and changes nothing, if the chunk is not ready.
    pub fn hold_for_cascade(&mut self, key: &OffloadKey) -> Option<TierHold> {
        let slot = *self.index.get(key)?;
        if !matches!(self.state(slot), SlotState::Ready { .. }) {
            return None;
        }
        self.pin(slot);
        Some(self.hold(*key, slot, HoldKind::Cascade))
    }

    /// Reserves a slot for a chunk that a tier is to write, evicting one if need be. The store threshold does not
    /// apply, and the promotion is no access; until a request meets the chunk it ranks with the chunks of `req`.
    ///
    /// Returns nothing, and changes nothing, if the chunk is there already or there is no room.
    pub fn hold_for_promotion(&mut self, req: &mut RequestContext, key: &OffloadKey) -> Option<TierHold> {
        if self.index.contains_key(key) {
            return None;
        }
        let generation = self.generation;
        let (accesses, positions) = req.state_mut::<RequestAccesses>(self.id);
        accesses.enter_generation(generation);
        let end_token = positions.end_token(key);
        if accesses.record(key, Met::Missing) {
            let access = KeyAccess { key: *key, end_token, kind: kvo_policies::AccessKind::Reused };
            self.policy.on_request_access(&mut accesses.recency, &[access]);
        }
        if accesses.first_miss(key) {
            self.policy.on_store_miss(&[*key]);
        }
        if self.free.is_empty() && !self.evict(1, &HashSet::new(), &mut Vec::new()) {
            return None;
        }
        let (accesses, _) = req.state_mut::<RequestAccesses>(self.id);
        let slot = self.free.pop().expect("a slot was free or has just been freed");
        self.policy.insert(&mut accesses.recency, *key, end_token);
        accesses.record(key, Met::Stored);
        self.occupy(*key, slot);
        Some(self.hold(*key, slot, HoldKind::Promotion))
    }

    /// Ends a hold. `result` matters for a promotion only: a failed one frees its slot.
    ///
    /// # Errors
    /// Hands the hold back, unchanged, if another manager made it.
    pub fn release(&mut self, hold: TierHold, result: TransferResult) -> Result<Released, TierHold> {
        if hold.owner != self.id {
            return Err(hold);
        }
        if hold.generation != self.generation {
            assert!(
                matches!(self.state(hold.slot), SlotState::Parked),
                "slot {} of an older hold must be parked, is {:?}",
                hold.slot,
                self.state(hold.slot)
            );
            self.parked -= 1;
            self.pending -= 1;
            self.set_state(hold.slot, SlotState::Free);
            self.free.push(hold.slot);
            return Ok(Released::Unparked);
        }
        Ok(match (hold.kind, result) {
            (HoldKind::Cascade, _) => {
                self.unpin(hold.slot);
                Released::Ready
            }
            (HoldKind::Promotion, TransferResult::Done) => {
                self.make_ready(hold.slot);
                self.stats.chunks_promoted += 1;
                Released::Ready
            }
            (HoldKind::Promotion, TransferResult::Failed) => {
                self.fail_pending(hold.slot);
                Released::Freed
            }
        })
    }

    /// Records that promoted chunks have arrived or failed, as one event each; for the tiering manager, which
    /// releases the holds of a job one by one.
    pub fn record_promotions(&mut self, stored: &[OffloadKey], failed: &[OffloadKey]) {
        self.record(EventKind::Stored, stored);
        self.record(EventKind::Discarded, failed);
    }

    /// As [`reset_cache`](OffloadManager::reset_cache), but the slots of `holds` stay parked until their holds are
    /// released: a tier is still reading or writing them.
    pub fn reset_cache_with_holds<'a>(&mut self, holds: impl IntoIterator<Item = &'a TierHold>) {
        let generation = self.generation;
        for hold in holds {
            if hold.owner == self.id && hold.generation == generation && !self.is_parked(hold.slot) {
                self.set_state(hold.slot, SlotState::Parked);
                self.parked += 1;
            }
        }
        self.generation += 1;
        self.index.clear();
        self.jobs.clear();
        self.policy.clear();
        self.pending = self.parked;
        self.pinned = 0;
        self.free.clear();
        for index in (0..self.options.num_slots).rev().map(SlotId) {
            if !self.is_parked(index) {
                self.set_state(index, SlotState::Free);
                self.free.push(index);
            }
        }
    }

    /// Checks every count and link against the slots, in time proportional to the capacity.
    ///
    /// # Panics
    /// If one of this manager's invariants is broken.
    #[cfg(any(test, feature = "testing"))]
    pub fn assert_consistent(&self) {
        let (mut free, mut pending, mut pinned, mut parked) = (0, 0, 0, 0);
        for (index, slot) in self.slots.iter().enumerate() {
            let id = SlotId(u32::try_from(index).expect("slots are counted in 32 bits"));
            match slot.state {
                SlotState::Free => free += 1,
                SlotState::Parked => (pending, parked) = (pending + 1, parked + 1),
                SlotState::Pending { key } => {
                    pending += 1;
                    assert_eq!(self.index.get(&key), Some(&id), "the index must lead to the slot of {key}");
                }
                SlotState::Ready { key, ref_count } => {
                    pinned += u32::from(ref_count > 0);
                    assert_eq!(self.index.get(&key), Some(&id), "the index must lead to the slot of {key}");
                }
            }
        }
        assert_eq!((free, pending, pinned, parked), {
            (u32::try_from(self.free.len()).unwrap(), self.pending, self.pinned, self.parked)
        });
        assert_eq!(self.index.len() as u32, self.options.num_slots - free - parked);
        assert!(self.counts().add_up(), "{:?}", self.counts());
    }

    fn state(&self, slot: SlotId) -> SlotState {
        self.slots[slot.0 as usize].state
    }

    fn set_state(&mut self, slot: SlotId, state: SlotState) {
        self.slots[slot.0 as usize].state = state;
    }

    fn is_parked(&self, slot: SlotId) -> bool {
        matches!(self.state(slot), SlotState::Parked)
    }

    fn hold(&self, key: OffloadKey, slot: SlotId, kind: HoldKind) -> TierHold {
        TierHold { owner: self.id, generation: self.generation, key, slot, kind }
    }

    fn occupy(&mut self, key: OffloadKey, slot: SlotId) {
        self.set_state(slot, SlotState::Pending { key });
        self.index.insert(key, slot);
        self.pending += 1;
    }

    fn make_ready(&mut self, slot: SlotId) -> OffloadKey {
        let SlotState::Pending { key } = self.state(slot) else {
            panic!("slot {slot} must be pending, is {:?}", self.state(slot));
        };
        self.set_state(slot, SlotState::Ready { key, ref_count: 0 });
        self.pending -= 1;
        self.policy.on_ready(&key);
        key
    }

    fn fail_pending(&mut self, slot: SlotId) -> OffloadKey {
        let SlotState::Pending { key } = self.state(slot) else {
            panic!("slot {slot} must be pending, is {:?}", self.state(slot));
        };
        self.policy.remove(&key);
        self.index.remove(&key);
        self.set_state(slot, SlotState::Free);
        self.free.push(slot);
        self.pending -= 1;
        self.stats.chunks_failed += 1;
        key
    }

    fn pin(&mut self, slot: SlotId) {
        let SlotState::Ready { key, ref_count } = self.state(slot) else {
            panic!("slot {slot} must be ready to be pinned, is {:?}", self.state(slot));
        };
        self.set_state(slot, SlotState::Ready { key, ref_count: ref_count + 1 });
        if ref_count == 0 {
            self.pinned += 1;
            self.policy.on_pin(&key);
        }
    }

    fn unpin(&mut self, slot: SlotId) {
        let SlotState::Ready { key, ref_count: 1.. } = self.state(slot) else {
            panic!("slot {slot} must be pinned, is {:?}", self.state(slot));
        };
        let SlotState::Ready { ref_count, .. } = &mut self.slots[slot.0 as usize].state else { return };
        *ref_count -= 1;
        if *ref_count == 0 {
            self.pinned -= 1;
            self.policy.on_unpin(&key);
        }
    }

    /// Evicts `count` chunks, none of them `spared`, and appends them to `victims`; or none.
    fn evict(&mut self, count: usize, spared: &HashSet<OffloadKey>, victims: &mut Vec<OffloadKey>) -> bool {
        let Self { policy, index, slots, .. } = self;
        let before = victims.len();
        let mut may_evict = |key: &OffloadKey| {
            let slot = index.get(key).map(|slot| &slots[slot.0 as usize].state);
            matches!(slot, Some(SlotState::Ready { ref_count: 0, .. })) && !spared.contains(key)
        };
        if !policy.evict(count, &mut may_evict, victims) {
            return false;
        }
        assert_eq!(victims.len() - before, count, "the policy must evict as many as it was asked to");
        for key in &victims[before..] {
            let slot = self.index.remove(key).expect("the policy must evict resident keys only");
            let state = self.state(slot);
            assert!(
                matches!(state, SlotState::Ready { ref_count: 0, .. }),
                "the policy must evict ready, unpinned keys only, {key} is {state:?}"
            );
            self.set_state(slot, SlotState::Free);
            self.free.push(slot);
        }
        self.stats.chunks_evicted += count as u64;
        let Self { events, name, options, .. } = self;
        record(options, name, events, EventKind::Removed, &victims[before..]);
        true
    }

    fn record(&mut self, kind: EventKind, keys: &[OffloadKey]) {
        record(&self.options, &self.name, &mut self.events, kind, keys);
    }

    fn open_job(&mut self, kind: JobKind, slots: Vec<SlotId>) -> JobToken {
        let id = JobId(self.next_job);
        self.next_job += 1;
        self.jobs.insert(id, Job { kind, slots });
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

    /// Classifies the keys of an offer into `scratch`, counts offers, and records the request's accesses.
    fn record_offer(&mut self, scratch: &mut Scratch, req: &mut RequestContext, keys: &[OffloadKey]) {
        let Scratch { offered, unique, candidates, first_missing, accesses: new } = scratch;
        offered.clear();
        unique.clear();
        candidates.clear();
        first_missing.clear();
        new.clear();
        unique.extend(keys.iter().filter(|key| offered.insert(**key)));

        let (accesses, positions) = req.state_mut::<RequestAccesses>(self.id);
        accesses.enter_generation(self.generation);
        if let Some(tracker) = &mut self.tracker {
            tracker.offer(unique);
        }
        for key in unique.iter() {
            let resident = match self.index.get(key).map(|slot| self.slots[slot.0 as usize].state) {
                Some(SlotState::Ready { .. }) => true,
                Some(_) => continue,
                None => false,
            };
            if !resident {
                if self
                    .tracker
                    .as_ref()
                    .is_some_and(|tracker| tracker.offers(key) < self.options.store_threshold)
                {
                    self.stats.keys_below_threshold += 1;
                    continue;
                }
                candidates.push(*key);
            }
            if accesses.record(key, if resident { Met::Ready } else { Met::Missing }) {
                new.push(KeyAccess {
                    key: *key,
                    end_token: positions.end_token(key),
                    kind: kvo_policies::AccessKind::Reused,
                });
            }
            if !resident && accesses.first_miss(key) {
                first_missing.push(*key);
            }
        }
        self.policy.on_request_access(&mut accesses.recency, new);
        if !first_missing.is_empty() {
            self.policy.on_store_miss(first_missing);
        }
    }

    fn offer(
        &mut self,
        scratch: &mut Scratch,
        req: &mut RequestContext,
        keys: &[OffloadKey],
    ) -> StoreOutcome {
        self.record_offer(scratch, req, keys);
        let candidates = &scratch.candidates;
        if candidates.is_empty() {
            return StoreOutcome::NothingToStore;
        }
        let missing_slots = candidates.len().saturating_sub(self.free.len());
        let mut evicted = Vec::new();
        if missing_slots > 0 && !self.evict(missing_slots, &scratch.offered, &mut evicted) {
            self.stats.offers_refused += 1;
            let counts = self.counts();
            return StoreOutcome::Refused(Refusal {
                needed: u32::try_from(candidates.len()).unwrap_or(u32::MAX),
                free: counts.free,
                evictable: counts.evictable,
            });
        }
        let mut slots = Vec::with_capacity(candidates.len());
        let (accesses, positions) = req.state_mut::<RequestAccesses>(self.id);
        for key in candidates {
            let slot = self.free.pop().expect("as many slots were freed as the offer needs");
            self.policy.insert(&mut accesses.recency, *key, positions.end_token(key));
            accesses.record(key, Met::Stored);
            self.occupy(*key, slot);
            slots.push(slot);
        }
        let token = self.open_job(JobKind::Store, slots.clone());
        StoreOutcome::Prepared(StoreJob { token, keys: candidates.clone(), slots, evicted })
    }

    /// Whether the request can still load and store here.
    ///
    /// # Errors
    /// [`RequestError::Finished`] if it is finished here.
    pub fn check_running(&self, req: &RequestContext) -> Result<(), RequestError> {
        match req.state::<RequestAccesses>(self.id) {
            Some(accesses) if accesses.finished => Err(RequestError::Finished { req: req.id() }),
            _ => Ok(()),
        }
    }
}

impl<P: CachePolicy> OffloadManager for CpuManager<P> {
    fn new_request(&mut self, req: &mut RequestContext) -> Result<OffloadPolicy, RequestError> {
        if req.state::<RequestAccesses>(self.id).is_some() {
            return Err(RequestError::Known { req: req.id() });
        }
        req.state_mut::<RequestAccesses>(self.id).0.enter_generation(self.generation);
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
        let mut scratch = std::mem::take(&mut self.scratch);
        let job = self.pin_all(&mut scratch, req, keys);
        self.scratch = scratch;
        job
    }

    fn complete_load(&mut self, token: JobToken) -> Result<(), CompleteError> {
        for slot in self.close_job(token, JobKind::Load)? {
            self.unpin(slot);
        }
        Ok(())
    }

    fn prepare_store(
        &mut self,
        req: &mut RequestContext,
        keys: &[OffloadKey],
    ) -> Result<StoreOutcome, StoreError> {
        self.check_running(req)?;
        let mut scratch = std::mem::take(&mut self.scratch);
        let outcome = self.offer(&mut scratch, req, keys);
        self.scratch = scratch;
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
                keys.extend(slots.into_iter().map(|slot| self.fail_pending(slot)));
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
        let (accesses, positions) = req.state_mut::<RequestAccesses>(self.id);
        accesses.enter_generation(self.generation);
        accesses.finished = true;
        accesses.take_into(positions, &mut self.scratch.accesses);
        if !self.scratch.accesses.is_empty() {
            self.policy.on_request_finished(&self.scratch.accesses);
        }
        Ok(())
    }

    fn on_schedule_end(&mut self) {}

    fn take_events(&mut self, events: &mut Vec<OffloadEvent>) {
        for mut event in self.events.drain(..) {
            if event.kind == EventKind::Discarded {
                event.keys.retain(|key| !self.index.contains_key(key));
            }
            if !event.keys.is_empty() {
                events.push(event);
            }
        }
    }

    fn counts(&self) -> ChunkCounts {
        let (capacity, free) = (self.options.num_slots, self.free.len() as u32);
        ChunkCounts {
            capacity,
            free,
            pending: self.pending,
            pinned: self.pinned,
            evictable: capacity - free - self.pending - self.pinned,
        }
    }

    fn reset_cache(&mut self) {
        self.reset_cache_with_holds([]);
    }
}

impl<P: CachePolicy> CpuManager<P> {
    fn pin_all(
        &mut self,
        scratch: &mut Scratch,
        req: &mut RequestContext,
        keys: &[OffloadKey],
    ) -> Result<LoadJob, LoadError> {
        scratch.offered.clear();
        let mut slots = Vec::with_capacity(keys.len());
        let (mut absent, mut pending) = (Vec::new(), Vec::new());
        for key in keys {
            if !scratch.offered.insert(*key) {
                return Err(LoadError::Repeated { key: *key });
            }
            match self.index.get(key).map(|slot| (*slot, self.state(*slot))) {
                Some((slot, SlotState::Ready { .. })) => slots.push(slot),
                Some(_) => pending.push(*key),
                None => absent.push(*key),
            }
        }
        if !(absent.is_empty() && pending.is_empty()) {
            return Err(LoadError::NotReady { absent, pending });
        }
        for slot in &slots {
            self.pin(*slot);
        }
        self.stats.chunks_loaded += slots.len() as u64;
        let (accesses, positions) = req.state_mut::<RequestAccesses>(self.id);
        accesses.enter_generation(self.generation);
        scratch.accesses.clear();
        scratch.accesses.extend(keys.iter().filter(|key| accesses.record(key, Met::Ready)).map(|key| {
            KeyAccess {
                key: *key,
                end_token: positions.end_token(key),
                kind: kvo_policies::AccessKind::Reused,
            }
        }));
        self.policy.on_request_access(&mut accesses.recency, &scratch.accesses);
        let token = self.open_job(JobKind::Load, slots.clone());
        Ok(LoadJob { token, slots })
    }
}

fn record(
    options: &CpuOptions,
    name: &std::sync::Arc<str>,
    events: &mut Vec<OffloadEvent>,
    kind: EventKind,
    keys: &[OffloadKey],
) {
    if options.record_events && !keys.is_empty() {
        events.push(OffloadEvent { tier: name.clone(), medium: Medium::Memory, kind, keys: keys.to_vec() });
    }
}
