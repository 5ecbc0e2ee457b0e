//! Which chunk is where: the index, the slots, the policy and the events, kept in step with each other.
//!
//! Invariant: the index names exactly the slots that are writing or valid, each by the key of its tenant, and the
//! policy knows exactly these keys. Everything here is bookkeeping in memory and belongs to the one who owns the
//! store.

use std::{collections::TryReserveError, fmt, sync::Arc};

use hashbrown::{HashMap, HashSet};
use kvo_core::{EventKind, KeyPositions, Medium, OffloadEvent, OffloadKey, SlotId};
use kvo_policies::{
    AccessKind, CachePolicy, Eviction, KeyAccess, RequestAccesses, RequestRecency, Residents, SlotIndex,
};

use crate::{
    SlotCounts,
    format::{Record, RecordState},
    health::SlotVerdict,
    journal::{Entry, Recovered},
    slots::{SlotState, SlotTable, Tenant},
};

/// Where a key is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Residence {
    Absent,
    /// Being written into this slot.
    Writing(u32),
    /// Readable, in this slot.
    Valid {
        slot: u32,
        evictable: bool,
    },
}

/// A chunk that is held for one read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pinned {
    pub(crate) slot: u32,
    pub(crate) tenant: Tenant,
    pub(crate) checksum: u64,
}

/// What a record says of a chunk beside its key, its bytes and its write.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Origin {
    /// The request that writes it, by the store's own number.
    pub(crate) run: u64,
    pub(crate) end_token: Option<u32>,
}

/// A write that goes to another slot.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Moved {
    pub(crate) slot: u32,
    pub(crate) tenant: Tenant,
    /// Whether the first slot is used no more.
    pub(crate) is_quarantined: bool,
}

/// Chunks of an earlier opening that the policy is told of together.
const RESTORE_BATCH: usize = 1024;

pub(crate) struct Catalog {
    index: SlotIndex,
    slots: SlotTable,
    /// Of the slots that are being written.
    origins: HashMap<u32, Origin>,
    policy: Box<dyn CachePolicy>,
    events: EventLog,
    next_generation: u64,
    evicted: u64,
    dropped: u64,
    victims: Vec<SlotId>,
}

impl Catalog {
    /// A catalog of `capacity` slots that holds what was recovered. Generations count from `first_generation`.
    ///
    /// # Errors
    /// If there is no memory for so many slots.
    pub(crate) fn new(
        capacity: u32,
        policy: Box<dyn CachePolicy>,
        events: EventLog,
        first_generation: u64,
        recovered: &Recovered,
    ) -> Result<Self, TryReserveError> {
        let mut catalog = Self {
            index: SlotIndex::new(capacity)?,
            slots: SlotTable::new(capacity, &recovered.quarantined)?,
            origins: HashMap::new(),
            policy,
            events,
            next_generation: first_generation,
            evicted: 0,
            dropped: 0,
            victims: Vec::new(),
        };
        let (unproven, proven) = recovered.chunks.split_at(recovered.report.unproven as usize);
        for (chunks, is_unproven) in [(unproven, true), (proven, false)] {
            chunks.chunks(RESTORE_BATCH).for_each(|chunks| catalog.restore(chunks, is_unproven));
        }
        catalog.slots.list_free();
        Ok(catalog)
    }

    /// Takes chunks in, the next to be evicted first, as if one request had written them tail first.
    fn restore(&mut self, entries: &[Entry], unproven: bool) {
        let mut recency = RequestRecency::default();
        let mut keys = Vec::with_capacity(entries.len());
        for entry in entries {
            let RecordState::Chunk(record) = entry.state else { continue };
            let tenant = Tenant { key: record.key, generation: record.generation };
            self.slots.restore(entry.slot, tenant, record.checksum, unproven);
            self.enter(&record.key, entry.slot);
            let tier = Tier { slots: &self.slots, spared: None };
            self.policy.insert(&mut recency, SlotId(entry.slot), &record.key, None, &tier);
            self.policy.on_ready(SlotId(entry.slot));
            let (slot, kind) = (Some(SlotId(entry.slot)), AccessKind::Inserted);
            keys.push(KeyAccess { key: record.key, slot, end_token: None, kind });
        }
        keys.reverse();
        self.policy.on_request_finished(&mut recency, &keys, &Tier { slots: &self.slots, spared: None });
    }

    fn enter(&mut self, key: &OffloadKey, slot: u32) {
        let entry = self.index.insert(self.index.hash(key), SlotId(slot));
        self.slots.set_entry(slot, entry);
    }

    fn leave(&mut self, slot: u32) {
        self.index.remove(self.slots.entry(slot));
    }

    fn find(&self, key: &OffloadKey) -> Option<u32> {
        find(&self.index, &self.slots, key)
    }

    /// Every chunk in the order in which the policy lets them go, the next one first. The policy knows none of them any
    /// more then: for the end of a store. Of a policy that keeps something back there is no order, and it does not name
    /// what is unproven.
    pub(crate) fn take_eviction_order(&mut self) -> Vec<u32> {
        let evictable = self.slots.counts().evictable as usize;
        let mut order = Vec::with_capacity(evictable);
        let has_order = self.policy.evict(evictable, &Tier { slots: &self.slots, spared: None }, &mut order);
        order.retain(|slot| has_order && !self.slots.is_unproven(slot.0));
        order.into_iter().map(|slot| slot.0).collect()
    }

    pub(crate) fn counts(&self) -> SlotCounts {
        self.slots.counts()
    }

    /// Chunks evicted so far.
    pub(crate) fn evicted(&self) -> u64 {
        self.evicted
    }

    /// Chunks dropped so far because a read of them failed.
    pub(crate) fn dropped(&self) -> u64 {
        self.dropped
    }

    pub(crate) fn take_events(&mut self, events: &mut Vec<OffloadEvent>) {
        events.append(&mut self.events.events);
    }

    pub(crate) fn residence(&self, key: &OffloadKey) -> Residence {
        let Some(slot) = self.find(key) else { return Residence::Absent };
        match self.slots.state(slot) {
            SlotState::Valid { pins, .. } => Residence::Valid { slot, evictable: pins == 0 },
            SlotState::Writing { .. } => Residence::Writing(slot),
            state => unreachable!("the index names slot {slot}, which is {state:?}"),
        }
    }

    /// The bytes in a slot have been compared to their checksum.
    pub(crate) fn prove(&mut self, slot: u32) {
        self.slots.prove(slot);
    }

    /// Whether the bytes in a slot may be those of a later write than its chunk's.
    pub(crate) fn is_unproven(&self, slot: u32) -> bool {
        self.slots.is_unproven(slot)
    }

    /// Evicts the chunk of `key` if its bytes may not be its own, and nobody reads it: so that it is written anew. Says
    /// whether it did.
    pub(crate) fn evict_unproven(&mut self, key: &OffloadKey) -> bool {
        match self.residence(key) {
            Residence::Valid { slot, evictable: true } if self.slots.is_unproven(slot) => {
                self.policy.remove(SlotId(slot));
                self.evict(slot, *key);
                true
            }
            _ => false,
        }
    }

    /// Evicts what is needed for `wanted` free slots, as far as that goes; returns how many of `wanted` there are.
    ///
    /// Keys in `spared` stay; `num_spared` of them are evictable.
    pub(crate) fn make_room(&mut self, wanted: u32, spared: &HashSet<OffloadKey>, num_spared: u32) -> u32 {
        let counts = self.slots.counts();
        let short = wanted.saturating_sub(counts.free).min(counts.evictable - num_spared);
        if short > 0 {
            // A policy that knows better and refuses is obeyed: then there is only what was free.
            let tier = Tier { slots: &self.slots, spared: Some(spared) };
            if self.policy.evict(short as usize, &tier, &mut self.victims) {
                self.take_victims();
            }
        }
        wanted.min(self.slots.counts().free)
    }

    fn take_victims(&mut self) {
        let mut victims = std::mem::take(&mut self.victims);
        for SlotId(slot) in victims.drain(..) {
            let SlotState::Valid { tenant, pins: 0, .. } = self.slots.state(slot) else {
                panic!(
                    "a policy evicts only what it may, not slot {slot}, which is {:?}",
                    self.slots.state(slot)
                );
            };
            self.evict(slot, tenant.key);
        }
        self.victims = victims;
    }

    /// Frees the slot of a chunk that the policy has let go.
    fn evict(&mut self, slot: u32, key: OffloadKey) {
        self.leave(slot);
        self.slots.set(slot, SlotState::Free);
        self.events.push(EventKind::Removed, key);
        self.evicted += 1;
        tracing::trace!(?key, slot, "evicted");
    }

    /// A request meets keys for the first time.
    pub(crate) fn on_request_access(&mut self, recency: &mut RequestRecency, keys: &[KeyAccess]) {
        if !keys.is_empty() {
            self.policy.on_request_access(recency, keys, &Tier { slots: &self.slots, spared: None });
        }
    }

    /// A request misses keys for the first time.
    pub(crate) fn on_store_miss(&mut self, keys: &[KeyAccess]) {
        if !keys.is_empty() {
            self.policy.on_store_miss(keys, &Tier { slots: &self.slots, spared: None });
        }
    }

    /// A request ends: commits what it met.
    pub(crate) fn finish(&mut self, accesses: &mut RequestAccesses, keys: &mut Vec<KeyAccess>) {
        let locate = |key: &OffloadKey, _| find(&self.index, &self.slots, key).map(SlotId);
        accesses.take_into(&KeyPositions::default(), locate, keys);
        let tier = Tier { slots: &self.slots, spared: None };
        self.policy.on_request_finished(&mut accesses.recency, keys, &tier);
    }

    /// Gives the absent `key` a slot to be written into, if one is free.
    pub(crate) fn begin_write(
        &mut self,
        recency: &mut RequestRecency,
        key: OffloadKey,
        origin: Origin,
    ) -> Option<(u32, Tenant)> {
        let tenant = Tenant { key, generation: self.next_generation };
        debug_assert_eq!(self.find(&key), None, "{key:?} must be absent to be written");
        let slot = self.slots.take(tenant)?;
        self.next_generation += 1;
        self.enter(&key, slot);
        self.origins.insert(slot, origin);
        let end_token = origin.end_token;
        let tier = Tier { slots: &self.slots, spared: None };
        self.policy.insert(recency, SlotId(slot), &key, end_token, &tier);
        Some((slot, tenant))
    }

    /// The write into `slot` has failed and the slot with it: gives its chunk another, if one is free or can be had,
    /// and that slot's tenant. The chunk is then being written there, by a write of its own. `spared` is as in
    /// [`make_room`](Self::make_room).
    pub(crate) fn move_write(
        &mut self,
        recency: &mut RequestRecency,
        slot: u32,
        verdict: SlotVerdict,
        (spared, num_spared): (&HashSet<OffloadKey>, u32),
    ) -> Option<Moved> {
        let SlotState::Writing { tenant } = self.slots.state(slot) else {
            panic!("a write into slot {slot} moved, which is {:?}", self.slots.state(slot));
        };
        let origin = self.origins[&slot];
        if self.make_room(1, spared, num_spared) == 0 {
            return None;
        }
        let is_quarantined = self.end_write(slot, Err(verdict));
        let (slot, tenant) = self.begin_write(recency, tenant.key, origin)?;
        Some(Moved { slot, tenant, is_quarantined })
    }

    /// The record of the chunk that is being written into `slot`, whose bytes have this checksum.
    pub(crate) fn record(&self, slot: u32, length: u32, checksum: u64) -> Record {
        let SlotState::Writing { tenant } = self.slots.state(slot) else {
            panic!("a write into slot {slot} ended, which is {:?}", self.slots.state(slot));
        };
        let Origin { run, end_token } = self.origins[&slot];
        let Tenant { key, generation } = tenant;
        Record { key, length, generation, checksum, run, end_token }
    }

    /// Whether the chunk of this write is being written into `slot`.
    pub(crate) fn is_writing(&self, slot: u32, generation: u64) -> bool {
        matches!(self.slots.state(slot), SlotState::Writing { tenant } if tenant.generation == generation)
    }

    /// The write into `slot` has ended: with the checksum of its bytes, or not, and what that says of the slot. Says
    /// whether the slot is quarantined by this.
    pub(crate) fn end_write(&mut self, slot: u32, result: Result<u64, SlotVerdict>) -> bool {
        let SlotState::Writing { tenant } = self.slots.state(slot) else {
            panic!("a write into slot {slot} ended, which is {:?}", self.slots.state(slot));
        };
        self.origins.remove(&slot);
        match result {
            Ok(checksum) => {
                self.slots.set(slot, SlotState::Valid { tenant, checksum, pins: 0 });
                self.policy.on_ready(SlotId(slot));
                self.events.push(EventKind::Stored, tenant.key);
                false
            }
            Err(verdict) => {
                self.leave(slot);
                self.policy.remove(SlotId(slot));
                let broken = self.is_broken(slot, verdict);
                self.slots.set(slot, if broken { SlotState::Quarantined } else { SlotState::Free });
                broken
            }
        }
    }

    /// Whether a slot is used no more after a failure.
    fn is_broken(&mut self, slot: u32, verdict: SlotVerdict) -> bool {
        match verdict {
            SlotVerdict::Kept => false,
            SlotVerdict::Strike => self.slots.strike(slot),
            SlotVerdict::Quarantine => true,
        }
    }

    /// Holds the chunk of `key` for a read, if it is readable.
    pub(crate) fn begin_read(&mut self, key: &OffloadKey) -> Option<Pinned> {
        let slot = self.find(key)?;
        let SlotState::Valid { tenant, checksum, pins } = self.slots.state(slot) else { return None };
        assert_eq!(tenant.key, *key, "the index is wrong about slot {slot}");
        self.slots.set(slot, SlotState::Valid { tenant, checksum, pins: pins + 1 });
        Some(Pinned { slot, tenant, checksum })
    }

    /// A read of `slot` has ended, and says this of it. A chunk whose bytes are not good is dropped, its slot free (or
    /// quarantined) as soon as no other read of it runs. Says whether the slot is quarantined by this.
    pub(crate) fn end_read(&mut self, slot: u32, verdict: SlotVerdict) -> bool {
        match self.slots.state(slot) {
            SlotState::Valid { tenant, checksum, pins } if verdict == SlotVerdict::Kept => {
                self.slots.set(slot, SlotState::Valid { tenant, checksum, pins: pins - 1 });
                if pins == 1 {
                    self.policy.on_unpin(SlotId(slot));
                }
            }
            SlotState::Valid { tenant, pins, .. } => {
                self.leave(slot);
                self.policy.remove(SlotId(slot));
                self.events.push(EventKind::Removed, tenant.key);
                self.dropped += 1;
                let broken = self.is_broken(slot, verdict);
                self.retire(slot, pins - 1, broken);
            }
            // The reads of one tenancy that were already running tell nothing new, unless the disk fails.
            SlotState::Retiring { pins, broken } => {
                self.retire(slot, pins - 1, broken || verdict == SlotVerdict::Quarantine);
            }
            state => panic!("a read of slot {slot} ended, which is {state:?}"),
        }
        self.slots.state(slot) == SlotState::Quarantined
    }

    fn retire(&mut self, slot: u32, pins: u32, broken: bool) {
        let state = match (pins, broken) {
            (0, true) => SlotState::Quarantined,
            (0, false) => SlotState::Free,
            _ => SlotState::Retiring { pins, broken },
        };
        self.slots.set(slot, state);
    }
}

/// The slot that a key is in.
fn find(index: &SlotIndex, slots: &SlotTable, key: &OffloadKey) -> Option<u32> {
    let is_key = |slot: SlotId| slots.key(slot.0).is_some_and(|resident| resident == key);
    index.get(index.hash(key), is_key).map(|slot| slot.0)
}

/// The slots, as the policy sees them.
struct Tier<'a> {
    slots: &'a SlotTable,
    /// Keys that are not to go in this call.
    spared: Option<&'a HashSet<OffloadKey>>,
}

impl Residents for Tier<'_> {
    fn key(&self, slot: SlotId) -> OffloadKey {
        match self.slots.state(slot.0) {
            SlotState::Writing { tenant } | SlotState::Valid { tenant, .. } => tenant.key,
            state => panic!("slot {slot}, which is {state:?}, has no key"),
        }
    }

    fn may_evict(&self, slot: SlotId) -> Eviction {
        match self.slots.state(slot.0) {
            SlotState::Valid { tenant, pins: 0, .. } => {
                let spared = self.spared.is_some_and(|spared| spared.contains(&tenant.key));
                if spared { Eviction::Spared } else { Eviction::Allowed }
            }
            _ => Eviction::Held,
        }
    }
}

/// Events that nobody has taken yet. Neighbours of one kind share one event.
pub(crate) struct EventLog {
    tier: Arc<str>,
    enabled: bool,
    events: Vec<OffloadEvent>,
}

impl EventLog {
    pub(crate) fn new(tier: Arc<str>, enabled: bool) -> Self {
        Self { tier, enabled, events: Vec::new() }
    }

    fn push(&mut self, kind: EventKind, key: OffloadKey) {
        if !self.enabled {
            return;
        }
        match self.events.last_mut() {
            Some(last) if last.kind == kind => last.keys.push(key),
            _ => self.events.push(OffloadEvent {
                tier: Arc::clone(&self.tier),
                medium: Medium::Ssd,
                kind,
                keys: vec![key],
            }),
        }
    }
}

impl fmt::Debug for Catalog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Catalog").field("counts", &self.counts()).finish_non_exhaustive()
    }
}

#[cfg(any(test, feature = "testing"))]
impl Catalog {
    #[track_caller]
    pub(crate) fn assert_consistent(&self) {
        self.slots.assert_consistent();
        let mut indexed = 0;
        for (slot, state) in self.slots.states() {
            if let SlotState::Writing { tenant } | SlotState::Valid { tenant, .. } = state {
                assert_eq!(self.find(&tenant.key), Some(slot), "{tenant:?}");
                indexed += 1;
            }
            assert_eq!(self.origins.contains_key(&slot), matches!(state, SlotState::Writing { .. }));
        }
        assert_eq!(self.index.count_keys(), indexed);
    }

    pub(crate) fn slot_states(&self) -> impl Iterator<Item = (u32, SlotState)> {
        self.slots.states()
    }
}
