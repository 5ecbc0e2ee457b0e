//! A policy with the tier that it needs: a table of slots, for tests that speak of keys.

use std::{cell::Cell, collections::BTreeMap};

use kvo_core::{OffloadKey, SlotId};
use kvo_policies::{AccessKind, CachePolicy, Eviction, KeyAccess, RequestRecency, Residents};

use super::{access, naive::State};

/// The table. It answers for slots that hold a chunk only, and counts what it is asked.
#[derive(Debug)]
pub struct Table {
    chunks: Vec<Option<Chunk>>,
    index: BTreeMap<OffloadKey, SlotId>,
    free: Vec<SlotId>,
    spared: Vec<OffloadKey>,
    /// Slots that evictions asked about, all together.
    pub asked: Cell<usize>,
}

#[derive(Clone, Copy, Debug)]
struct Chunk {
    key: OffloadKey,
    ready: bool,
    pins: u32,
}

impl Table {
    fn chunk(&self, slot: SlotId) -> &Chunk {
        let chunk = self.chunks.get(slot.0 as usize).unwrap_or_else(|| panic!("slot {slot} does not exist"));
        chunk.as_ref().unwrap_or_else(|| panic!("slot {slot} holds no chunk"))
    }

    fn chunk_mut(&mut self, slot: SlotId) -> &mut Chunk {
        self.chunks[slot.0 as usize].as_mut().expect("the slot holds a chunk")
    }

    pub fn find(&self, key: OffloadKey) -> Option<SlotId> {
        self.index.get(&key).copied()
    }

    fn put(&mut self, key: OffloadKey) -> SlotId {
        let slot = self.free.pop().expect("a slot is free");
        self.chunks[slot.0 as usize] = Some(Chunk { key, ready: false, pins: 0 });
        self.index.insert(key, slot);
        slot
    }

    fn take(&mut self, slot: SlotId) -> OffloadKey {
        let chunk = self.chunks[slot.0 as usize].take().expect("the slot holds a chunk");
        self.index.remove(&chunk.key);
        self.free.push(slot);
        chunk.key
    }

    fn clear(&mut self) {
        self.chunks.fill(None);
        self.index.clear();
        self.free = (0..u32::try_from(self.chunks.len()).unwrap()).map(SlotId).collect();
    }

    fn answer(&self, slot: SlotId) -> Eviction {
        match self.chunk(slot) {
            Chunk { ready: true, pins: 0, key } if self.spared.contains(key) => Eviction::Spared,
            Chunk { ready: true, pins: 0, .. } => Eviction::Allowed,
            _ => Eviction::Held,
        }
    }
}

impl Residents for Table {
    fn key(&self, slot: SlotId) -> OffloadKey {
        self.chunk(slot).key
    }

    fn may_evict(&self, slot: SlotId) -> Eviction {
        self.asked.set(self.asked.get() + 1);
        self.answer(slot)
    }
}

/// A policy that is told of keys. As the trait has it, pins are not announced, and the last one's end is: whether or
/// not the policy ever asked about the chunk.
#[derive(Debug)]
pub struct Driven<P> {
    pub policy: P,
    pub table: Table,
}

impl<P: CachePolicy> Driven<P> {
    /// A policy made for `capacity` slots, and its empty table.
    pub fn new(capacity: u32, policy: P) -> Self {
        let mut table = Table {
            chunks: vec![None; capacity as usize],
            index: BTreeMap::new(),
            free: Vec::new(),
            spared: Vec::new(),
            asked: Cell::new(0),
        };
        table.clear();
        Self { policy, table }
    }

    fn slot(&self, key: OffloadKey) -> SlotId {
        self.table.find(key).unwrap_or_else(|| panic!("{key} is resident"))
    }

    /// Puts an absent key into a free slot.
    pub fn insert(&mut self, req: &mut RequestRecency, key: OffloadKey, end_token: Option<u32>) {
        assert_eq!(self.table.find(key), None, "{key} is absent");
        let slot = self.table.put(key);
        self.policy.insert(req, slot, &key, end_token, &self.table);
    }

    pub fn ready(&mut self, key: OffloadKey) {
        let slot = self.slot(key);
        let chunk = self.table.chunk_mut(slot);
        assert!(!std::mem::replace(&mut chunk.ready, true), "{key} is pending");
        self.policy.on_ready(slot);
    }

    /// One more pin on a ready chunk, of which the policy is not told.
    pub fn pin(&mut self, key: OffloadKey) {
        let slot = self.slot(key);
        let chunk = self.table.chunk_mut(slot);
        assert!(chunk.ready, "{key} is ready");
        chunk.pins += 1;
    }

    /// One pin less; says whether it was the last.
    pub fn unpin(&mut self, key: OffloadKey) -> bool {
        let slot = self.slot(key);
        let chunk = self.table.chunk_mut(slot);
        chunk.pins = chunk.pins.checked_sub(1).expect("there is a pin");
        let last = chunk.pins == 0;
        if last {
            self.policy.on_unpin(slot);
        }
        last
    }

    pub fn remove(&mut self, key: OffloadKey) {
        let slot = self.slot(key);
        self.table.take(slot);
        self.policy.remove(slot);
    }

    /// Appends the victims' keys.
    ///
    /// # Panics
    /// If a victim may not go, or was a victim before; or if what was in the list of victims before has changed.
    pub fn evict(&mut self, count: usize, spared: &[OffloadKey], victims: &mut Vec<OffloadKey>) -> bool {
        self.table.spared = spared.to_vec();
        let before = SlotId(u32::MAX);
        let mut slots = vec![before];
        let done = self.policy.evict(count, &self.table, &mut slots);
        assert_eq!(slots.remove(0), before, "victims are appended");
        assert_eq!(slots.len(), if done { count } else { 0 }, "as many as asked for, or none");
        for slot in slots {
            assert_eq!(self.table.answer(slot), Eviction::Allowed, "slot {slot} is a victim");
            victims.push(self.table.take(slot));
        }
        self.table.spared.clear();
        done
    }

    /// The accesses as they are, with the slots of today.
    fn located(&self, keys: &[KeyAccess]) -> Vec<KeyAccess> {
        keys.iter().map(|access| KeyAccess { slot: self.table.find(access.key), ..*access }).collect()
    }

    fn without_position(&self, keys: &[OffloadKey], kind: AccessKind) -> Vec<KeyAccess> {
        keys.iter().map(|key| KeyAccess { slot: self.table.find(*key), ..access(*key, None, kind) }).collect()
    }

    pub fn touch(&mut self, keys: &[OffloadKey]) {
        let keys = self.without_position(keys, AccessKind::Reused);
        self.policy.touch(&keys, &self.table);
    }

    pub fn store_miss(&mut self, keys: &[OffloadKey]) {
        let keys = self.without_position(keys, AccessKind::Inserted);
        assert!(keys.iter().all(|access| access.slot.is_none()), "what is missed is absent");
        self.policy.on_store_miss(&keys, &self.table);
    }

    pub fn access(&mut self, req: &mut RequestRecency, keys: &[KeyAccess]) {
        let keys = self.located(keys);
        self.policy.on_request_access(req, &keys, &self.table);
    }

    pub fn finish(&mut self, req: &mut RequestRecency, keys: &[KeyAccess]) {
        let keys = self.located(keys);
        self.policy.on_request_finished(req, &keys, &self.table);
    }

    pub fn clear(&mut self) {
        self.policy.clear();
        self.table.clear();
    }

    /// What a resident key is.
    pub fn state(&self, key: OffloadKey) -> Option<State> {
        let slot = self.table.find(key)?;
        Some(match self.table.chunk(slot) {
            Chunk { ready: false, .. } => State::Pending,
            Chunk { pins: 0, .. } => State::Free,
            _ => State::Pinned,
        })
    }

    /// Evicts one by one, everything allowed, until nothing is left.
    pub fn drain(&mut self) -> Vec<OffloadKey> {
        let mut victims = Vec::new();
        while self.evict(1, &[], &mut victims) {}
        victims
    }
}
