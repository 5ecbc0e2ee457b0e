//! A policy written outside of kvo, with nothing but the five methods that have no body.

use std::collections::VecDeque;

use kvo_core::{OffloadKey, SlotId};
use kvo_policies::{CachePolicy, Eviction, KeyAccess, RequestRecency, Residents};

/// First in, first out: the oldest that may go, goes.
#[derive(Debug, Default)]
pub struct Fifo(pub VecDeque<SlotId>);

impl CachePolicy for Fifo {
    fn insert(
        &mut self,
        _: &mut RequestRecency,
        slot: SlotId,
        _: &OffloadKey,
        _: Option<u32>,
        _: &dyn Residents,
    ) {
        self.0.push_back(slot);
    }

    fn remove(&mut self, slot: SlotId) {
        self.0.retain(|of| *of != slot);
    }

    fn evict(&mut self, count: usize, tier: &dyn Residents, victims: &mut Vec<SlotId>) -> bool {
        let may_go = |slot: &&SlotId| tier.may_evict(**slot) == Eviction::Allowed;
        let chosen: Vec<SlotId> = self.0.iter().filter(may_go).take(count).copied().collect();
        if chosen.len() < count {
            return false;
        }
        self.0.retain(|slot| !chosen.contains(slot));
        victims.extend(chosen);
        true
    }

    fn touch(&mut self, _: &[KeyAccess], _: &dyn Residents) {}

    fn clear(&mut self) {
        self.0.clear();
    }
}
