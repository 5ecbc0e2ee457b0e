//! A policy written outside the crates.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use kvo_core::{OffloadKey, SlotId};
use kvo_policies::{CachePolicy, Eviction, KeyAccess, RequestRecency, Residents};

/// First in, first out: the five methods that a policy must have. A clone looks at the same queue.
#[derive(Clone, Default)]
pub struct Fifo(Arc<Mutex<VecDeque<(SlotId, OffloadKey)>>>);

impl Fifo {
    pub fn queue(&self) -> MutexGuard<'_, VecDeque<(SlotId, OffloadKey)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl CachePolicy for Fifo {
    fn insert(
        &mut self,
        _: &mut RequestRecency,
        slot: SlotId,
        key: &OffloadKey,
        _: Option<u32>,
        _: &dyn Residents,
    ) {
        self.queue().push_back((slot, *key));
    }

    fn remove(&mut self, slot: SlotId) {
        self.queue().retain(|(other, _)| *other != slot);
    }

    fn evict(&mut self, count: usize, tier: &dyn Residents, victims: &mut Vec<SlotId>) -> bool {
        let mut queue = self.queue();
        let slots = queue.iter().map(|(slot, _)| *slot);
        let may_go = slots.filter(|slot| tier.may_evict(*slot) == Eviction::Allowed);
        let chosen: Vec<SlotId> = may_go.take(count).collect();
        if chosen.len() < count {
            return false;
        }
        queue.retain(|(slot, key)| {
            assert_eq!(tier.key(*slot), *key, "slot {slot} holds what was put there");
            !chosen.contains(slot)
        });
        victims.extend(chosen);
        true
    }

    fn touch(&mut self, _: &[KeyAccess], _: &dyn Residents) {}

    fn clear(&mut self) {
        self.queue().clear();
    }
}
