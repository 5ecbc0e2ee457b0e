//! A policy around another one that insists on what the trait promises to policies, and counts calls.

use std::{
    cell::Cell,
    collections::{BTreeMap, BTreeSet},
};

use kvo_core::{OffloadKey, SlotId};
use kvo_policies::{CachePolicy, Eviction, KeyAccess, RequestRecency, Residents, RunSummary};

/// Panics when its owner breaks the contract of [`CachePolicy`].
#[derive(Debug)]
pub struct Strict<P> {
    inner: P,
    resident: BTreeMap<SlotId, Resident>,
    /// Slots that evictions asked about, all together.
    pub asked: usize,
    /// Of those, slots that were held.
    pub asked_of_held: usize,
    /// Keys given to `on_request_access`, all together.
    pub met: usize,
    /// Keys given to `on_store_miss`, all together.
    pub missed: usize,
    /// Whether the policy may commit a request without the list of its keys.
    pub takes_runs: bool,
    /// Keys of the last finish; or what was said of them, if the policy could do without.
    pub committed: Vec<KeyAccess>,
    pub committed_run: Option<RunSummary>,
}

#[derive(Clone, Copy, Debug)]
struct Resident {
    key: OffloadKey,
    pending: bool,
    /// An eviction, of this policy or only of this check, was told that the chunk is held, and no notice came since.
    held: bool,
}

/// The owner's table, of which it is counted what the policy asks.
struct Counted<'a> {
    tier: &'a dyn Residents,
    asked: Cell<usize>,
    asked_of_held: Cell<usize>,
}

impl Residents for Counted<'_> {
    fn key(&self, slot: SlotId) -> OffloadKey {
        self.tier.key(slot)
    }

    fn may_evict(&self, slot: SlotId) -> Eviction {
        let eviction = self.tier.may_evict(slot);
        self.asked.set(self.asked.get() + 1);
        self.asked_of_held.set(self.asked_of_held.get() + usize::from(eviction == Eviction::Held));
        eviction
    }
}

impl<P> Strict<P> {
    pub fn new(inner: P) -> Self {
        Self {
            inner,
            resident: BTreeMap::new(),
            asked: 0,
            asked_of_held: 0,
            met: 0,
            missed: 0,
            takes_runs: true,
            committed: Vec::new(),
            committed_run: None,
        }
    }

    /// How many keys the last finish committed.
    pub fn num_committed(&self) -> usize {
        self.committed_run.map_or(self.committed.len(), |run| run.num_keys)
    }

    #[track_caller]
    fn resident(&mut self, slot: SlotId) -> &mut Resident {
        self.resident.get_mut(&slot).unwrap_or_else(|| panic!("slot {slot} must be resident"))
    }

    /// The owner's table has the same chunks under the same keys, and what it once said is held, still is.
    fn check_table(&mut self, tier: &dyn Residents) {
        for (slot, resident) in &mut self.resident {
            assert_eq!(tier.key(*slot), resident.key, "the key in slot {slot}");
            let held = tier.may_evict(*slot) == Eviction::Held;
            assert!(held || !resident.held, "slot {slot} is held no longer, and there was no notice");
            assert!(held || !resident.pending, "slot {slot} is pending");
            resident.held = held;
        }
    }

    /// Every key has the slot that it is in, or none.
    #[track_caller]
    fn check_keys(&self, keys: &[KeyAccess]) {
        let mut seen = BTreeSet::new();
        for KeyAccess { key, slot, .. } in keys {
            assert!(seen.insert(*key), "keys are without repeats");
            let at = self.resident.iter().find(|(_, resident)| resident.key == *key).map(|(at, _)| *at);
            assert_eq!(*slot, at, "the slot of {key}");
        }
    }
}

impl<P: CachePolicy> CachePolicy for Strict<P> {
    fn insert(
        &mut self,
        req: &mut RequestRecency,
        slot: SlotId,
        key: &OffloadKey,
        end_token: Option<u32>,
        tier: &dyn Residents,
    ) {
        let is_new = self.resident.values().all(|resident| resident.key != *key);
        assert!(is_new, "{key} must be absent to be inserted");
        let resident = Resident { key: *key, pending: true, held: true };
        assert!(self.resident.insert(slot, resident).is_none(), "slot {slot} must be free");
        assert_eq!(tier.key(slot), *key, "the table knows what is inserted");
        assert_eq!(tier.may_evict(slot), Eviction::Held, "{key} is pending");
        self.inner.insert(req, slot, key, end_token, tier);
    }

    fn on_ready(&mut self, slot: SlotId) {
        let resident = self.resident(slot);
        assert!(resident.pending, "slot {slot} must be pending to become ready");
        (resident.pending, resident.held) = (false, false);
        self.inner.on_ready(slot);
    }

    fn on_unpin(&mut self, slot: SlotId) {
        let resident = self.resident(slot);
        assert!(!resident.pending, "slot {slot} must be ready to lose a pin");
        resident.held = false;
        self.inner.on_unpin(slot);
    }

    fn remove(&mut self, slot: SlotId) {
        let removed = self.resident.remove(&slot).unwrap_or_else(|| panic!("slot {slot} must be resident"));
        assert!(removed.pending, "slot {slot}: only a failed store is removed");
        self.inner.remove(slot);
    }

    fn evict(&mut self, count: usize, tier: &dyn Residents, victims: &mut Vec<SlotId>) -> bool {
        assert!(count > 0, "nothing is to be evicted");
        self.check_table(tier);
        let before = victims.len();
        let counted = Counted { tier, asked: Cell::new(0), asked_of_held: Cell::new(0) };
        let done = self.inner.evict(count, &counted, victims);
        self.asked += counted.asked.get();
        self.asked_of_held += counted.asked_of_held.get();
        for slot in &victims[before..] {
            let victim = self.resident.remove(slot);
            assert!(victim.is_some_and(|victim| !victim.held), "slot {slot} is evicted");
        }
        done
    }

    fn num_slots_max(&self) -> u32 {
        self.inner.num_slots_max()
    }

    fn touch(&mut self, keys: &[KeyAccess], tier: &dyn Residents) {
        self.check_keys(keys);
        self.inner.touch(keys, tier);
    }

    fn on_store_miss(&mut self, keys: &[KeyAccess], tier: &dyn Residents) {
        self.check_keys(keys);
        assert!(keys.iter().all(|access| access.slot.is_none()), "missing keys are not resident");
        self.missed += keys.len();
        self.inner.on_store_miss(keys, tier);
    }

    fn on_request_access(&mut self, req: &mut RequestRecency, keys: &[KeyAccess], tier: &dyn Residents) {
        self.check_keys(keys);
        assert!(keys.iter().all(|access| access.slot.is_some()), "keys that are met are resident");
        self.met += keys.len();
        self.inner.on_request_access(req, keys, tier);
    }

    fn on_request_finished(&mut self, req: &mut RequestRecency, keys: &[KeyAccess], tier: &dyn Residents) {
        self.check_keys(keys);
        self.committed = keys.to_vec();
        self.committed_run = None;
        self.inner.on_request_finished(req, keys, tier);
        assert_eq!(*req, RequestRecency::default(), "nothing is kept of a finished request");
    }

    fn commit_run(&mut self, req: &mut RequestRecency, summary: RunSummary) -> bool {
        assert!(summary.num_keys > 0 && summary.num_reused <= summary.num_keys, "{summary:?}");
        let before = *req;
        let is_committed = self.takes_runs && self.inner.commit_run(req, summary);
        if is_committed {
            self.committed_run = Some(summary);
            assert_eq!(*req, RequestRecency::default(), "nothing is kept of a finished request");
        } else {
            assert_eq!(*req, before, "what cannot be done changes nothing");
        }
        is_committed
    }

    fn clear(&mut self) {
        self.resident.clear();
        self.inner.clear();
    }
}
