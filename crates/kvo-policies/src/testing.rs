//! A small tier for the tests of policies.

use kvo_core::{BlockHash, GroupIdx, OffloadKey, SlotId};

use crate::{AccessKind, CachePolicy, Eviction, KeyAccess, RequestRecency, Residents};

/// Chunks by number, the slots that they are in, and which are held.
#[derive(Debug)]
pub(crate) struct Table {
    slots: Vec<Option<u64>>,
    held: Vec<bool>,
    spared: Vec<u64>,
}

impl Residents for Table {
    fn key(&self, slot: SlotId) -> OffloadKey {
        key(self.slots[slot.0 as usize].expect("the slot holds a chunk"))
    }

    fn may_evict(&self, slot: SlotId) -> Eviction {
        match self.slots[slot.0 as usize].expect("the slot holds a chunk") {
            _ if self.held[slot.0 as usize] => Eviction::Held,
            number if self.spared.contains(&number) => Eviction::Spared,
            _ => Eviction::Allowed,
        }
    }
}

impl Table {
    pub(crate) fn new(capacity: usize) -> Self {
        Self { slots: vec![None; capacity], held: vec![false; capacity], spared: Vec::new() }
    }

    pub(crate) fn slot(&self, number: u64) -> Option<SlotId> {
        let slot = self.slots.iter().position(|chunk| *chunk == Some(number))?;
        Some(SlotId(u32::try_from(slot).unwrap()))
    }

    pub(crate) fn numbers(&self, slots: &[SlotId]) -> Vec<u64> {
        slots.iter().map(|slot| self.slots[slot.0 as usize].expect("the slot holds a chunk")).collect()
    }

    pub(crate) fn accesses(&self, numbers: &[u64], kind: AccessKind) -> Vec<KeyAccess> {
        let access = |(number, end_token): (&u64, u32)| KeyAccess {
            key: key(*number),
            slot: self.slot(*number),
            end_token: Some(end_token),
            kind,
        };
        numbers.iter().zip((1..).map(|chunks| 16 * chunks)).map(access).collect()
    }

    /// A request meets the chunks, head to tail, stores those that are missing and finishes; returns what it evicts.
    pub(crate) fn serve(&mut self, policy: &mut dyn CachePolicy, numbers: &[u64]) -> Vec<u64> {
        let mut req = RequestRecency::default();
        let (evicted, mut accesses) = self.offer(policy, &mut req, numbers);
        for access in &mut accesses {
            access.slot = numbers.iter().find(|n| key(**n) == access.key).and_then(|n| self.slot(*n));
        }
        policy.on_request_finished(&mut req, &accesses, self);
        evicted
    }

    /// Stores chunks, all of them missing.
    #[track_caller]
    pub(crate) fn store(&mut self, policy: &mut dyn CachePolicy, numbers: &[u64]) {
        assert!(numbers.iter().all(|number| self.slot(*number).is_none()));
        assert!(self.serve(policy, numbers).is_empty());
    }

    /// Meets chunks, all of them resident.
    #[track_caller]
    pub(crate) fn reuse(&mut self, policy: &mut dyn CachePolicy, numbers: &[u64]) {
        assert!(numbers.iter().all(|number| self.slot(*number).is_some()));
        assert!(self.serve(policy, numbers).is_empty());
    }

    /// As [`serve`](Self::serve), but the request does not finish.
    pub(crate) fn begin(&mut self, policy: &mut dyn CachePolicy, numbers: &[u64]) -> RequestRecency {
        let mut req = RequestRecency::default();
        self.offer(policy, &mut req, numbers);
        req
    }

    pub(crate) fn pin(&mut self, number: u64) {
        let slot = self.slot(number).unwrap();
        self.held[slot.0 as usize] = true;
    }

    pub(crate) fn unpin(&mut self, policy: &mut dyn CachePolicy, number: u64) {
        let slot = self.slot(number).unwrap();
        self.held[slot.0 as usize] = false;
        policy.on_unpin(slot);
    }

    /// The victims' numbers, after their slots were freed.
    fn free(&mut self, victims: &[SlotId]) -> Vec<u64> {
        victims.iter().map(|slot| self.slots[slot.0 as usize].take().expect("a victim is resident")).collect()
    }

    /// A request meets chunks, head to tail, and stores those that are missing; returns what it evicts, and its accesses.
    pub(crate) fn offer(
        &mut self,
        policy: &mut dyn CachePolicy,
        req: &mut RequestRecency,
        numbers: &[u64],
    ) -> (Vec<u64>, Vec<KeyAccess>) {
        let mut accesses = self.accesses(numbers, AccessKind::Reused);
        for access in accesses.iter_mut().filter(|access| access.slot.is_none()) {
            access.kind = AccessKind::Inserted;
        }
        policy.on_request_access(req, &accesses, self);
        let missing: Vec<_> = accesses.iter().copied().filter(|access| access.slot.is_none()).collect();
        if !missing.is_empty() {
            policy.on_store_miss(&missing, self);
        }
        self.spared = numbers.to_vec();
        let free = self.slots.iter().filter(|slot| slot.is_none()).count();
        let mut victims = Vec::new();
        assert!(policy.evict(missing.len().saturating_sub(free), self, &mut victims));
        self.spared.clear();
        let evicted = self.free(&victims);
        for access in &missing {
            let number = numbers.iter().find(|number| key(**number) == access.key).unwrap();
            let slot = self.slots.iter().position(Option::is_none).unwrap();
            self.slots[slot] = Some(*number);
            let slot = SlotId(u32::try_from(slot).unwrap());
            policy.insert(req, slot, &access.key, access.end_token, self);
            policy.on_ready(slot);
        }
        (evicted, accesses)
    }
}

pub(crate) fn key(number: u64) -> OffloadKey {
    OffloadKey::new(BlockHash::from_u64(number), GroupIdx(0))
}

#[track_caller]
pub(crate) fn check_evicts(policy: &mut dyn CachePolicy, table: &mut Table, expected: &[u64]) {
    let mut victims = Vec::new();
    assert!(policy.evict(expected.len(), table, &mut victims), "enough can be had");
    assert_eq!(table.free(&victims), expected);
}
