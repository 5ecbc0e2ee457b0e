//! A tier that is only a policy and a table of slots: for models in which chunks move as the CPU tier's manager has no
//! call for.

use kvo_core::{OffloadKey, SlotId};
use kvo_policies::{AccessKind, CachePolicy, Eviction, KeyAccess, PolicyKind, RequestRecency, Residents};

use crate::{model_r::key, named::Named};

/// Resident blocks and a policy that evicts them. Nothing is pending or pinned between two calls.
pub(crate) struct PolicyTier {
    policy: Box<dyn CachePolicy>,
    slots: Slots,
    /// Of each block, its slot if it is resident.
    slot_of: Vec<Option<SlotId>>,
    free: Vec<SlotId>,
    victims: Vec<SlotId>,
    accesses: Vec<KeyAccess>,
    missing: Vec<KeyAccess>,
    evicted: Vec<u32>,
    inserts: u64,
    evictions: u64,
}

/// What is in the slots, as the policy may ask.
struct Slots {
    /// Of each slot, its block; of a free one, whatever was there last.
    blocks: Vec<u32>,
    /// What the current access names.
    named: Named,
}

/// A block of a request, and where it ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Placed {
    pub(crate) block: u32,
    pub(crate) end_token: u32,
}

impl PolicyTier {
    /// An empty tier of `capacity` slots, for blocks below `num_unique`.
    pub(crate) fn new(policy: PolicyKind, capacity: u32, num_unique: u32) -> Self {
        let capacity = capacity.min(num_unique.max(1));
        Self {
            policy: policy.build(capacity),
            slots: Slots { blocks: vec![0; capacity as usize], named: Named::new(num_unique) },
            slot_of: vec![None; num_unique as usize],
            free: (0..capacity).rev().map(SlotId).collect(),
            victims: Vec::new(),
            accesses: Vec::new(),
            missing: Vec::new(),
            evicted: Vec::new(),
            inserts: 0,
            evictions: 0,
        }
    }

    pub(crate) fn contains(&self, block: u32) -> bool {
        self.slot_of[block as usize].is_some()
    }

    pub(crate) fn capacity(&self) -> usize {
        self.slots.blocks.len()
    }

    /// Blocks stored so far.
    pub(crate) fn inserts(&self) -> u64 {
        self.inserts
    }

    /// Blocks evicted so far.
    pub(crate) fn evictions(&self) -> u64 {
        self.evictions
    }

    /// One whole request over blocks listed head to tail, of which the first `capacity` count: stores what is absent,
    /// commits all as one access, and returns what was evicted, in that order.
    pub(crate) fn access(&mut self, blocks: impl Iterator<Item = Placed>) -> &[u32] {
        self.meet(blocks);
        self.evicted.clear();
        let mut recency = RequestRecency::default();
        self.policy.on_request_access(&mut recency, &self.accesses, &self.slots);
        if !self.missing.is_empty() {
            self.policy.on_store_miss(&self.missing, &self.slots);
        }
        self.make_room(self.missing.len());
        for access in &mut self.accesses {
            if access.slot.is_some() {
                continue;
            }
            let slot = self.free.pop().expect("as many were evicted as were short");
            let block = crate::model_r::block(&access.key);
            (access.slot, self.slots.blocks[slot.0 as usize]) = (Some(slot), block);
            self.slot_of[block as usize] = Some(slot);
            self.policy.insert(&mut recency, slot, &access.key, access.end_token, &self.slots);
            self.inserts += 1;
        }
        for access in self.accesses.iter().filter(|access| access.kind == AccessKind::Inserted) {
            access.slot.into_iter().for_each(|slot| self.policy.on_ready(slot));
        }
        if !self.accesses.is_empty() {
            self.policy.on_request_finished(&mut recency, &self.accesses, &self.slots);
        }
        &self.evicted
    }

    /// Takes a block out, if it is there. It leaves no ghost.
    pub(crate) fn remove(&mut self, block: u32) {
        if let Some(slot) = self.slot_of[block as usize].take() {
            self.policy.remove(slot);
            self.free.push(slot);
        }
    }

    /// Lists the blocks of a request, each once.
    fn meet(&mut self, blocks: impl Iterator<Item = Placed>) {
        self.slots.named.begin();
        self.accesses.clear();
        self.missing.clear();
        for Placed { block, end_token } in blocks.take(self.capacity()) {
            if !self.slots.named.is_first(block) {
                continue;
            }
            let slot = self.slot_of[block as usize];
            let kind = if slot.is_some() { AccessKind::Reused } else { AccessKind::Inserted };
            let access = KeyAccess { key: key(block), slot, end_token: Some(end_token), kind };
            self.accesses.push(access);
            if slot.is_none() {
                self.missing.push(access);
            }
        }
    }

    fn make_room(&mut self, needed: usize) {
        let short = needed.saturating_sub(self.free.len());
        if short == 0 {
            return;
        }
        self.victims.clear();
        // A request names at most as many blocks as there are slots, so enough others are there.
        assert!(self.policy.evict(short, &self.slots, &mut self.victims), "{short} victims were refused");
        for slot in &self.victims {
            let block = self.slots.blocks[slot.0 as usize];
            self.slot_of[block as usize] = None;
            self.free.push(*slot);
            self.evicted.push(block);
        }
        self.evictions += short as u64;
    }
}

impl Residents for Slots {
    fn key(&self, slot: SlotId) -> OffloadKey {
        key(self.blocks[slot.0 as usize])
    }

    fn may_evict(&self, slot: SlotId) -> Eviction {
        if self.named.contains(self.blocks[slot.0 as usize]) { Eviction::Spared } else { Eviction::Allowed }
    }
}

impl std::fmt::Debug for PolicyTier {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PolicyTier")
            .field("capacity", &self.capacity())
            .field("free", &self.free.len())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::ops::ControlFlow;

    use super::*;
    use crate::{Fingerprint, kvo_synth, run_model_r};

    fn placed(blocks: &[u32]) -> impl Iterator<Item = Placed> {
        (1..).zip(blocks).map(|(at, &block)| Placed { block, end_token: at })
    }

    #[test]
    fn every_policy_evicts_as_in_the_shipping_manager() {
        for name in ["lru", "arc", "arc:ghost-hits=t2", "arc:canonical", "slru", "aslru", "s3fifo", "fifo"] {
            let policy: PolicyKind = name.parse().unwrap();
            for (seed, capacity) in [(1, 30), (2, 100), (3, 400), (4, 5000)] {
                let trace = kvo_synth(300, seed);
                let expected = run_model_r(&trace, policy, capacity, || ControlFlow::Continue(())).unwrap();
                let mut tier = PolicyTier::new(policy, capacity, trace.num_unique);
                let mut order = Fingerprint::EMPTY;
                for request in &trace.requests {
                    order.extend(tier.access(placed(&request.blocks)).iter().copied());
                }
                assert_eq!(
                    (tier.inserts(), tier.evictions(), order),
                    (expected.inserts, expected.evictions, expected.eviction_order),
                    "{name} on seed {seed} at {capacity}"
                );
            }
        }
    }

    #[test]
    fn a_block_that_was_taken_out_makes_room() {
        let mut tier = PolicyTier::new(PolicyKind::Lru, 2, 9);
        tier.access(placed(&[0, 1]));
        tier.remove(0);
        tier.remove(7);
        assert_eq!(tier.access(placed(&[2])), [] as [u32; 0]);
        assert_eq!(tier.access(placed(&[3, 4, 5])), [1, 2]);
        assert!([3, 4].iter().all(|block| tier.contains(*block)) && !tier.contains(5));
    }
}
