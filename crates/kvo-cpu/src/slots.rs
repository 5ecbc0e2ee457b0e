//! The slots and what is in them.
//!
//! ```text
//!             occupy                        make_ready                        pin
//!   Free ─────────────▶ Pending ──────────────────────────▶ Ready, 0 pins ◀───────▶ Ready, n pins
//!    ▲                     │                                      │          unpin        │
//!    ├────── fail ◀────────┤                                      │                       │
//!    ├────── free_evicted ◀┼──────────────────────────────────────┘                       │
//!    │                     │ park; reset, while a tier holds the slot                     │
//!    └── unpark ◀── Parked ◀──────────────────────────────────────────────────────────────┘
//! ```

use kvo_core::{BlockHash, ChunkCounts, GroupIdx, LookupResult, OffloadKey, SlotId, prefetch, reserve_table};
use kvo_policies::{Eviction, IndexEntry, KeyAccess, Residents, SlotIndex};

use crate::{ConfigError, CpuOptions};

/// Keys that are looked for together.
pub(crate) const BATCH: usize = SlotIndex::BATCH;

/// Every slot's state, the way from keys to slots, and the counts, which always add up.
#[derive(Debug)]
pub(crate) struct SlotTable {
    slots: Vec<Slot>,
    index: SlotIndex,
    free: Vec<SlotId>,
    pending: u32,
    pinned: u32,
    parked: u32,
    /// The number of the current offer.
    offer: u32,
}

#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
struct Slot {
    /// Of the chunk in the slot, if there is one.
    key: OffloadKey,
    state: SlotState,
    /// The last offer that named the chunk.
    offer: u32,
    /// Where the key is in the index.
    entry: IndexEntry,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SlotState {
    Free,
    /// Being written: by a tier if `held`, else by a device.
    Pending {
        held: bool,
    },
    /// `pins` load jobs and `holds` tier transfers read it.
    Ready {
        pins: u32,
        holds: u32,
    },
    /// Its chunk was dropped, by a reset or as a promotion that was given up, while `holds` tier transfers read or write
    /// it. Counted as pending.
    Parked {
        holds: u32,
    },
}

/// What a search for several keys has found.
#[derive(Debug, Default)]
pub(crate) struct Found {
    pub(crate) hashes: [u64; BATCH],
    pub(crate) slots: [Option<SlotId>; BATCH],
}

/// Who pins a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pin {
    /// A load job, or a reservation until the step ends: a reset voids it.
    Load,
    /// A tier transfer: it outlives a reset.
    Hold,
}

impl SlotTable {
    pub(crate) fn new(num_slots: u32) -> Result<Self, ConfigError> {
        let num_slots_max = CpuOptions::NUM_SLOTS_MAX;
        let too_many = |_| ConfigError::TooManySlots { num_slots, num_slots_max };
        let mut slots = reserve_table(num_slots as usize).map_err(too_many)?;
        let mut free = reserve_table(num_slots as usize).map_err(too_many)?;
        let key = OffloadKey::new(BlockHash([0; 32]), GroupIdx(0));
        slots.extend((0..num_slots).map(|_| Slot {
            key,
            state: SlotState::Free,
            offer: 0,
            entry: IndexEntry::default(),
        }));
        free.extend((0..num_slots).rev().map(SlotId));
        let index = SlotIndex::new(num_slots).map_err(too_many)?;
        Ok(Self { slots, index, free, pending: 0, pinned: 0, parked: 0, offer: 0 })
    }

    /// The slot of a chunk, pending or ready.
    pub(crate) fn find(&self, key: &OffloadKey) -> Option<SlotId> {
        self.find_hashed(key, self.hash(key))
    }

    /// The hash of a key, for the calls that take it.
    pub(crate) fn hash(&self, key: &OffloadKey) -> u64 {
        self.index.hash(key)
    }

    /// The slot of a chunk, given the hash of its key.
    pub(crate) fn find_hashed(&self, key: &OffloadKey, hash: u64) -> Option<SlotId> {
        self.index.get(hash, |slot| self.slots[slot.0 as usize].key == *key)
    }

    /// The hashes and slots of up to [`BATCH`] chunks, looked for together.
    #[inline]
    pub(crate) fn find_batch(&self, keys: &[OffloadKey], found: &mut Found) {
        for (key, hash) in keys.iter().zip(&mut found.hashes) {
            *hash = self.index.hash(key);
            self.index.prefetch(*hash);
        }
        let soon = |slot: SlotId| prefetch(&self.slots[slot.0 as usize]);
        let is_key = |nth: usize, slot: SlotId| self.slots[slot.0 as usize].key == keys[nth];
        self.index.get_batch(&found.hashes[..keys.len()], &mut found.slots, soon, is_key);
    }

    /// The slot of a chunk that was in `hint` when it was last seen.
    pub(crate) fn find_near(&self, key: &OffloadKey, hint: Option<SlotId>) -> Option<SlotId> {
        let is_there = |slot: &SlotId| {
            let slot = &self.slots[slot.0 as usize];
            matches!(slot.state, SlotState::Pending { .. } | SlotState::Ready { .. }) && slot.key == *key
        };
        hint.filter(is_there).or_else(|| self.find(key))
    }

    pub(crate) fn lookup(&self, key: &OffloadKey) -> LookupResult {
        self.find(key).map_or(LookupResult::Miss, |slot| self.lookup_slot(slot))
    }

    /// What a lookup of the chunk in a slot answers.
    pub(crate) fn lookup_slot(&self, slot: SlotId) -> LookupResult {
        match self.state(slot) {
            SlotState::Ready { .. } => LookupResult::Hit,
            _ => LookupResult::HitPending,
        }
    }

    /// Whether the chunk in a slot is ready.
    #[inline]
    pub(crate) fn is_ready(&self, slot: SlotId) -> bool {
        matches!(self.state(slot), SlotState::Ready { .. })
    }

    /// Whether a slot holds the chunk with this key, and it is ready.
    #[inline]
    pub(crate) fn is_ready_for(&self, slot: SlotId, key: &OffloadKey) -> bool {
        let slot = &self.slots[slot.0 as usize];
        matches!(slot.state, SlotState::Ready { .. }) && slot.key == *key
    }

    /// The slot of a ready chunk.
    pub(crate) fn ready(&self, key: &OffloadKey) -> Option<SlotId> {
        self.find(key).filter(|slot| self.is_ready(*slot))
    }

    pub(crate) fn contains(&self, key: &OffloadKey) -> bool {
        self.find(key).is_some()
    }

    /// An offer begins: nothing is spared.
    pub(crate) fn begin_offer(&mut self) {
        self.offer = self.offer.wrapping_add(1);
        if self.offer == 0 {
            // Once in four billion offers: marks of long ago must not be taken for this one's.
            self.slots.iter_mut().for_each(|slot| slot.offer = 0);
            self.offer = 1;
        }
    }

    /// The number of the current offer; never 0.
    pub(crate) fn offer(&self) -> u32 {
        self.offer
    }

    /// Marks the chunk in `slot` as named in the current offer, so that it is not evicted for it; says whether it was
    /// already.
    #[inline]
    pub(crate) fn name(&mut self, slot: SlotId) -> bool {
        std::mem::replace(&mut self.slots[slot.0 as usize].offer, self.offer) == self.offer
    }

    /// Whether the chunk in `slot` is ready and unpinned.
    #[inline]
    pub(crate) fn is_evictable(&self, slot: SlotId) -> bool {
        self.state(slot) == SlotState::Ready { pins: 0, holds: 0 }
    }

    pub(crate) fn num_free(&self) -> usize {
        self.free.len()
    }

    /// Takes a free slot for each of `chunks`, absent keys whose hashes are given; says whether each got one. There must
    /// be enough. A key that is named twice gets one slot, where it is named first.
    pub(crate) fn occupy_all(&mut self, chunks: &mut [KeyAccess], hashes: impl Iterator<Item = u64>) -> bool {
        let mut are_different = true;
        for (chunk, hash) in chunks.iter_mut().zip(hashes) {
            if self.index.may_have(hash) && self.find_hashed(&chunk.key, hash).is_some() {
                are_different = false;
            } else {
                chunk.slot = Some(self.take_free(&chunk.key, hash, false));
            }
        }
        are_different
    }

    /// Takes a free slot for an absent key, which a tier writes. There must be one.
    pub(crate) fn occupy_for_tier(&mut self, key: &OffloadKey, hash: u64) -> SlotId {
        self.take_free(key, hash, true)
    }

    #[expect(
        clippy::inline_always,
        reason = "it is a tenth of what storing a chunk costs, a fifth of that the call"
    )]
    #[inline(always)]
    fn take_free(&mut self, key: &OffloadKey, hash: u64, held: bool) -> SlotId {
        let slot = self.free.pop().expect("the caller made sure that a slot is free");
        let entry = self.index.insert(hash, slot);
        self.slots[slot.0 as usize] =
            Slot { key: *key, state: SlotState::Pending { held }, offer: self.offer, entry };
        self.pending += 1;
        slot
    }

    /// A pending chunk has arrived.
    #[inline]
    pub(crate) fn make_ready(&mut self, slot: SlotId) {
        let state = &mut self.slots[slot.0 as usize].state;
        assert!(matches!(state, SlotState::Pending { .. }), "slot {slot} must be pending, is {state:?}");
        *state = SlotState::Ready { pins: 0, holds: 0 };
        self.pending -= 1;
    }

    /// A pending chunk will not arrive.
    pub(crate) fn fail(&mut self, slot: SlotId) {
        let Slot { state, entry, .. } = self.slots[slot.0 as usize];
        assert!(matches!(state, SlotState::Pending { .. }), "slot {slot} must be pending, is {state:?}");
        self.index.remove(entry);
        self.pending -= 1;
        self.release_slot(slot);
    }

    /// A pending chunk that a tier writes will not arrive, and the tier may still write its slot.
    pub(crate) fn park(&mut self, slot: SlotId) {
        let Slot { state, entry, .. } = self.slots[slot.0 as usize];
        assert!(state == SlotState::Pending { held: true }, "slot {slot} must be a tier's, is {state:?}");
        self.index.remove(entry);
        self.parked += 1;
        self.set_state(slot, SlotState::Parked { holds: 1 });
    }

    /// Pins a ready chunk.
    #[inline]
    pub(crate) fn pin(&mut self, slot: SlotId, pin: Pin) {
        match &mut self.slots[slot.0 as usize].state {
            SlotState::Ready { pins, holds } => {
                self.pinned += u32::from(*pins + *holds == 0);
                *match pin {
                    Pin::Load => pins,
                    Pin::Hold => holds,
                } += 1;
            }
            state => panic!("slot {slot} must be ready, is {state:?}"),
        }
    }

    /// Takes one pin off a chunk; says whether that was its last.
    #[inline]
    pub(crate) fn unpin(&mut self, slot: SlotId, pin: Pin) -> bool {
        match (&mut self.slots[slot.0 as usize].state, pin) {
            (SlotState::Ready { pins: of @ 1.., holds: others }, Pin::Load)
            | (SlotState::Ready { pins: others, holds: of @ 1.. }, Pin::Hold) => {
                *of -= 1;
                let last = *of + *others == 0;
                self.pinned -= u32::from(last);
                last
            }
            (state, _) => panic!("slot {slot} must have a {pin:?} pin, is {state:?}"),
        }
    }

    /// Frees the slots of chunks that a policy chose to evict, and appends their keys to `evicted`.
    pub(crate) fn free_evicted(&mut self, victims: &[SlotId], evicted: &mut Vec<OffloadKey>) {
        for slot in victims {
            self.index.prefetch_entry(self.slots[slot.0 as usize].entry);
        }
        for slot in victims {
            let eviction = self.may_evict(*slot);
            assert!(eviction == Eviction::Allowed, "the policy must evict what it may only, not slot {slot}");
            let Slot { key, entry, state, .. } = &mut self.slots[slot.0 as usize];
            evicted.push(*key);
            *state = SlotState::Free;
            self.index.remove(*entry);
        }
        self.free.extend_from_slice(victims);
    }

    /// Ends one hold on a parked slot; says whether that freed it.
    pub(crate) fn unpark(&mut self, slot: SlotId) -> bool {
        match self.state(slot) {
            SlotState::Parked { holds: 1 } => {
                self.parked -= 1;
                self.pending -= 1;
                self.release_slot(slot);
                true
            }
            SlotState::Parked { holds } => {
                self.set_state(slot, SlotState::Parked { holds: holds - 1 });
                false
            }
            state => {
                panic!("slot {slot}, whose chunk was dropped under a hold, must be parked, is {state:?}")
            }
        }
    }

    /// Drops every chunk. Slots that tiers hold are parked until the last hold on them ends, the others are free.
    pub(crate) fn reset(&mut self) {
        self.index.clear();
        self.free.clear();
        (self.pending, self.pinned, self.parked) = (0, 0, 0);
        for index in (0..self.slots.len()).rev() {
            let holds = match self.slots[index].state {
                SlotState::Free => 0,
                SlotState::Pending { held, .. } => u32::from(held),
                SlotState::Ready { holds, .. } | SlotState::Parked { holds } => holds,
            };
            if holds > 0 {
                self.slots[index].state = SlotState::Parked { holds };
                self.parked += 1;
                self.pending += 1;
            } else {
                self.release_slot(SlotId(count(index)));
            }
        }
    }

    pub(crate) fn parked(&self) -> u32 {
        self.parked
    }

    pub(crate) fn counts(&self) -> ChunkCounts {
        let (capacity, free) = (count(self.slots.len()), count(self.free.len()));
        ChunkCounts {
            capacity,
            free,
            pending: self.pending,
            pinned: self.pinned,
            evictable: capacity - free - self.pending - self.pinned,
        }
    }

    /// Checks counts and links against the slots.
    #[cfg(any(test, feature = "testing"))]
    pub(crate) fn assert_consistent(&self) {
        let mut counted = ChunkCounts { capacity: count(self.slots.len()), ..ChunkCounts::default() };
        let mut parked = 0;
        for (index, slot) in self.slots.iter().enumerate() {
            match slot.state {
                SlotState::Free => {
                    counted.free += 1;
                    continue;
                }
                SlotState::Parked { holds } => {
                    assert!(holds > 0, "a parked slot must be held");
                    counted.pending += 1;
                    parked += 1;
                    continue;
                }
                SlotState::Pending { .. } => counted.pending += 1,
                SlotState::Ready { pins, holds } => {
                    *if pins + holds > 0 { &mut counted.pinned } else { &mut counted.evictable } += 1;
                }
            }
            assert_eq!(
                self.find(&slot.key),
                Some(SlotId(count(index))),
                "the index must lead to the slot of {}",
                slot.key
            );
        }
        assert_eq!((counted, parked), (self.counts(), self.parked), "counts must be those of the slots");
        assert!(counted.add_up(), "{counted:?}");
        let chunks = counted.capacity - counted.free - parked;
        assert_eq!(count(self.index.count_keys()), chunks, "the index must hold the resident chunks only");
        assert!(self.free.iter().all(|slot| self.state(*slot) == SlotState::Free), "free slots must be free");
    }

    fn state(&self, slot: SlotId) -> SlotState {
        self.slots[slot.0 as usize].state
    }

    fn set_state(&mut self, slot: SlotId, state: SlotState) {
        self.slots[slot.0 as usize].state = state;
    }

    fn release_slot(&mut self, slot: SlotId) {
        self.set_state(slot, SlotState::Free);
        self.free.push(slot);
    }
}

impl Residents for SlotTable {
    fn key(&self, slot: SlotId) -> OffloadKey {
        self.slots[slot.0 as usize].key
    }

    #[inline]
    fn may_evict(&self, slot: SlotId) -> Eviction {
        let Slot { state, offer, .. } = &self.slots[slot.0 as usize];
        match state {
            SlotState::Ready { pins: 0, holds: 0 } if *offer == self.offer => Eviction::Spared,
            SlotState::Ready { pins: 0, holds: 0 } => Eviction::Allowed,
            _ => Eviction::Held,
        }
    }

    fn may_evict_each(&self, slots: &[SlotId], answers: &mut [Eviction]) {
        for slot in slots {
            prefetch(&self.slots[slot.0 as usize]);
        }
        for (slot, answer) in slots.iter().zip(answers) {
            *answer = self.may_evict(*slot);
        }
    }
}

/// A number of slots; they are counted in 32 bits.
fn count(slots: usize) -> u32 {
    u32::try_from(slots).expect("slots are counted in 32 bits")
}
