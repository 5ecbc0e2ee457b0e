//! Which chunk is where: the index, the slots, the policy and the events, kept in step with each other.
//!
//! Invariant: the index names exactly the slots that are writing or valid, each by the key of its tenant, and the
//! policy knows exactly these keys. Everything here is bookkeeping in memory and belongs to the one who owns the
//! store.

use std::{fmt, sync::Arc};

use hashbrown::{HashMap, HashSet};
use kvo_core::{EventKind, KeyPositions, Medium, OffloadEvent, OffloadKey, SlotId};
use kvo_policies::{CachePolicy, Eviction, KeyAccess, RequestAccesses, RequestRecency, Residents};

use crate::{
    SlotCounts,
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

/// What a read that ended says about the slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReadEnd {
    /// Nothing bad.
    Sound,
    /// The bytes are not those that were written.
    Corrupt,
    /// The disk failed.
    Broken,
}

pub(crate) struct Catalog {
    index: HashMap<OffloadKey, u32>,
    slots: SlotTable,
    policy: Box<dyn CachePolicy>,
    events: EventLog,
    next_generation: u64,
    evicted: u64,
    dropped: u64,
    victims: Vec<SlotId>,
}

impl Catalog {
    /// An empty catalog of `capacity` slots. Generations count from `first_generation`.
    pub(crate) fn new(
        capacity: u32,
        policy: Box<dyn CachePolicy>,
        events: EventLog,
        first_generation: u64,
    ) -> Self {
        Self {
            index: HashMap::with_capacity(capacity as usize),
            slots: SlotTable::new(capacity),
            policy,
            events,
            next_generation: first_generation,
            evicted: 0,
            dropped: 0,
            victims: Vec::new(),
        }
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
        let Some(&slot) = self.index.get(key) else { return Residence::Absent };
        match self.slots.state(slot) {
            SlotState::Valid { pins, .. } => Residence::Valid { slot, evictable: pins == 0 },
            SlotState::Writing { .. } => Residence::Writing(slot),
            state => unreachable!("the index names slot {slot}, which is {state:?}"),
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
            self.index.remove(&tenant.key);
            self.slots.set(slot, SlotState::Free);
            self.events.push(EventKind::Removed, tenant.key);
            self.evicted += 1;
            tracing::trace!(key = ?tenant.key, slot, "evicted");
        }
        self.victims = victims;
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
        let locate = |key: &OffloadKey, _| self.index.get(key).map(|slot| SlotId(*slot));
        accesses.take_into(&KeyPositions::default(), locate, keys);
        let tier = Tier { slots: &self.slots, spared: None };
        self.policy.on_request_finished(&mut accesses.recency, keys, &tier);
    }

    /// Gives the absent `key` a slot to be written into, if one is free.
    pub(crate) fn begin_write(
        &mut self,
        recency: &mut RequestRecency,
        key: OffloadKey,
        end_token: Option<u32>,
    ) -> Option<(u32, Tenant)> {
        let tenant = Tenant { key, generation: self.next_generation };
        let slot = self.slots.take(tenant)?;
        self.next_generation += 1;
        let before = self.index.insert(key, slot);
        assert_eq!(before, None, "{key:?} had slot {before:?} and was given {slot} too");
        let tier = Tier { slots: &self.slots, spared: None };
        self.policy.insert(recency, SlotId(slot), &key, end_token, &tier);
        Some((slot, tenant))
    }

    /// The write into `slot` has ended: with the checksum of its bytes, or not, and then perhaps because the slot is
    /// broken.
    pub(crate) fn end_write(&mut self, slot: u32, result: Result<u64, SlotBroken>) {
        let SlotState::Writing { tenant } = self.slots.state(slot) else {
            panic!("a write into slot {slot} ended, which is {:?}", self.slots.state(slot));
        };
        match result {
            Ok(checksum) => {
                self.slots.set(slot, SlotState::Valid { tenant, checksum, pins: 0 });
                self.policy.on_ready(SlotId(slot));
                self.events.push(EventKind::Stored, tenant.key);
            }
            Err(SlotBroken(broken)) => {
                self.index.remove(&tenant.key);
                self.policy.remove(SlotId(slot));
                self.slots.set(slot, if broken { SlotState::Quarantined } else { SlotState::Free });
            }
        }
    }

    /// Holds the chunk of `key` for a read, if it is readable.
    pub(crate) fn begin_read(&mut self, key: &OffloadKey) -> Option<Pinned> {
        let slot = *self.index.get(key)?;
        let SlotState::Valid { tenant, checksum, pins } = self.slots.state(slot) else { return None };
        assert_eq!(tenant.key, *key, "the index is wrong about slot {slot}");
        self.slots.set(slot, SlotState::Valid { tenant, checksum, pins: pins + 1 });
        Some(Pinned { slot, tenant, checksum })
    }

    /// A read of `slot` has ended. A chunk whose bytes are not good is dropped, its slot free (or quarantined) as
    /// soon as no other read of it runs.
    pub(crate) fn end_read(&mut self, slot: u32, end: ReadEnd) {
        match self.slots.state(slot) {
            SlotState::Valid { tenant, checksum, pins } if end == ReadEnd::Sound => {
                self.slots.set(slot, SlotState::Valid { tenant, checksum, pins: pins - 1 });
                if pins == 1 {
                    self.policy.on_unpin(SlotId(slot));
                }
            }
            SlotState::Valid { tenant, pins, .. } => {
                self.index.remove(&tenant.key);
                self.policy.remove(SlotId(slot));
                self.events.push(EventKind::Removed, tenant.key);
                self.dropped += 1;
                let broken = end == ReadEnd::Broken || self.slots.strike(slot);
                self.retire(slot, pins - 1, broken);
            }
            // The reads of one tenancy that were already running tell nothing new, unless the disk fails.
            SlotState::Retiring { pins, broken } => {
                self.retire(slot, pins - 1, broken || end == ReadEnd::Broken);
            }
            state => panic!("a read of slot {slot} ended, which is {state:?}"),
        }
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

/// Whether a failed write says that its slot is broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SlotBroken(pub(crate) bool);

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

#[cfg(test)]
impl Catalog {
    #[track_caller]
    pub(crate) fn assert_consistent(&self) {
        self.slots.assert_consistent();
        let mut indexed = 0;
        for (slot, state) in self.slots.states() {
            if let SlotState::Writing { tenant } | SlotState::Valid { tenant, .. } = state {
                assert_eq!(self.index.get(&tenant.key), Some(&slot), "{tenant:?}");
                indexed += 1;
            }
        }
        assert_eq!(self.index.len(), indexed);
    }

    pub(crate) fn slot_states(&self) -> impl Iterator<Item = (u32, SlotState)> {
        self.slots.states()
    }

    pub(crate) fn is_writing(&self, slot: u32) -> bool {
        matches!(self.slots.state(slot), SlotState::Writing { .. })
    }
}
