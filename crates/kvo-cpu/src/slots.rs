//! The slots and what is in them.
//!
//! ```text
//!             occupy                        make_ready                        pin
//!   Free ─────────────▶ Pending ──────────────────────────▶ Ready, 0 pins ◀───────▶ Ready, n pins
//!    ▲                     │                                      │          unpin        │
//!    ├────── fail ◀────────┤                                      │                       │
//!    ├────── free_evicted ◀┼──────────────────────────────────────┘                       │
//!    │                     │ reset, while a tier holds the slot                           │
//!    └── unpark ◀── Parked ◀──────────────────────────────────────────────────────────────┘
//! ```

use hashbrown::HashMap;
use kvo_core::{ChunkCounts, LookupResult, OffloadKey, SlotId};

use crate::{ConfigError, CpuOptions};

/// Every slot's state, the way from keys to slots, and the counts, which always add up.
#[derive(Debug)]
pub(crate) struct SlotTable {
    slots: Vec<SlotState>,
    index: HashMap<OffloadKey, SlotId>,
    free: Vec<SlotId>,
    pending: u32,
    pinned: u32,
    parked: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SlotState {
    Free,
    /// Being written: by a tier if `held`, else by a device.
    Pending {
        key: OffloadKey,
        held: bool,
    },
    /// `pins` load jobs and `holds` tier transfers read it.
    Ready {
        key: OffloadKey,
        pins: u32,
        holds: u32,
    },
    /// Dropped by a reset while `holds` tier transfers read or write it. Counted as pending.
    Parked {
        holds: u32,
    },
}

/// Who pins a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pin {
    /// A load job: a reset voids it.
    Load,
    /// A tier transfer: it outlives a reset.
    Hold,
}

impl SlotTable {
    pub(crate) fn new(num_slots: u32) -> Result<Self, ConfigError> {
        let num_slots_max = CpuOptions::NUM_SLOTS_MAX;
        let too_many = |_| ConfigError::TooManySlots { num_slots, num_slots_max };
        let (mut slots, mut free) = (Vec::new(), Vec::new());
        slots.try_reserve_exact(num_slots as usize).map_err(too_many)?;
        free.try_reserve_exact(num_slots as usize).map_err(too_many)?;
        slots.extend((0..num_slots).map(|_| SlotState::Free));
        free.extend((0..num_slots).rev().map(SlotId));
        Ok(Self { slots, index: HashMap::new(), free, pending: 0, pinned: 0, parked: 0 })
    }

    pub(crate) fn lookup(&self, key: &OffloadKey) -> LookupResult {
        match self.index.get(key).map(|slot| self.state(*slot)) {
            None => LookupResult::Miss,
            Some(SlotState::Ready { .. }) => LookupResult::Hit,
            Some(_) => LookupResult::HitPending,
        }
    }

    /// The slot of a ready chunk.
    pub(crate) fn ready(&self, key: &OffloadKey) -> Option<SlotId> {
        let slot = *self.index.get(key)?;
        matches!(self.state(slot), SlotState::Ready { .. }).then_some(slot)
    }

    pub(crate) fn contains(&self, key: &OffloadKey) -> bool {
        self.index.contains_key(key)
    }

    pub(crate) fn is_evictable(&self, key: &OffloadKey) -> bool {
        let state = self.index.get(key).map(|slot| self.state(*slot));
        matches!(state, Some(SlotState::Ready { pins: 0, holds: 0, .. }))
    }

    pub(crate) fn num_free(&self) -> usize {
        self.free.len()
    }

    /// Takes a free slot for an absent key. There must be one.
    pub(crate) fn occupy(&mut self, key: OffloadKey, held: bool) -> SlotId {
        let slot = self.free.pop().expect("the caller made sure that a slot is free");
        self.set_state(slot, SlotState::Pending { key, held });
        let before = self.index.insert(key, slot);
        assert_eq!(before, None, "{key} must be absent to get a slot");
        self.pending += 1;
        slot
    }

    /// A pending chunk has arrived.
    pub(crate) fn make_ready(&mut self, slot: SlotId) -> OffloadKey {
        let key = self.pending_key(slot);
        self.set_state(slot, SlotState::Ready { key, pins: 0, holds: 0 });
        self.pending -= 1;
        key
    }

    /// A pending chunk will not arrive.
    pub(crate) fn fail(&mut self, slot: SlotId) -> OffloadKey {
        let key = self.pending_key(slot);
        self.index.remove(&key);
        self.pending -= 1;
        self.release_slot(slot);
        key
    }

    /// Pins a ready chunk; names it if this is its first pin.
    pub(crate) fn pin(&mut self, slot: SlotId, pin: Pin) -> Option<OffloadKey> {
        let (key, pins, holds) = self.ready_pins(slot);
        let state = match pin {
            Pin::Load => SlotState::Ready { key, pins: pins + 1, holds },
            Pin::Hold => SlotState::Ready { key, pins, holds: holds + 1 },
        };
        self.set_state(slot, state);
        let first = pins + holds == 0;
        self.pinned += u32::from(first);
        first.then_some(key)
    }

    /// Takes one pin off a chunk; names it if that was its last.
    pub(crate) fn unpin(&mut self, slot: SlotId, pin: Pin) -> Option<OffloadKey> {
        let (key, pins, holds) = self.ready_pins(slot);
        let state = match (pin, pins, holds) {
            (Pin::Load, 1.., _) => SlotState::Ready { key, pins: pins - 1, holds },
            (Pin::Hold, _, 1..) => SlotState::Ready { key, pins, holds: holds - 1 },
            _ => panic!("slot {slot} must have a {pin:?} pin, has {pins} load pins and {holds} holds"),
        };
        self.set_state(slot, state);
        let last = pins + holds == 1;
        self.pinned -= u32::from(last);
        last.then_some(key)
    }

    /// Frees the slot of a chunk that a policy chose to evict.
    pub(crate) fn free_evicted(&mut self, key: &OffloadKey) {
        assert!(self.is_evictable(key), "the policy must evict ready, unpinned keys only, not {key}");
        let slot = self.index.remove(key).expect("an evictable key has a slot");
        self.release_slot(slot);
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
            state => panic!("slot {slot} of a hold from before a reset must be parked, is {state:?}"),
        }
    }

    /// Drops every chunk. Slots that tiers hold are parked until the last hold on them ends, the others are free.
    pub(crate) fn reset(&mut self) {
        self.index.clear();
        self.free.clear();
        (self.pending, self.pinned, self.parked) = (0, 0, 0);
        for index in (0..self.slots.len()).rev() {
            let holds = match self.slots[index] {
                SlotState::Free => 0,
                SlotState::Pending { held, .. } => u32::from(held),
                SlotState::Ready { holds, .. } | SlotState::Parked { holds } => holds,
            };
            if holds > 0 {
                self.slots[index] = SlotState::Parked { holds };
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
        for (index, state) in self.slots.iter().enumerate() {
            let key = match *state {
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
                SlotState::Pending { key, .. } => {
                    counted.pending += 1;
                    key
                }
                SlotState::Ready { key, pins, holds } => {
                    *if pins + holds > 0 { &mut counted.pinned } else { &mut counted.evictable } += 1;
                    key
                }
            };
            assert_eq!(
                self.index.get(&key),
                Some(&SlotId(count(index))),
                "the index must lead to the slot of {key}"
            );
        }
        assert_eq!((counted, parked), (self.counts(), self.parked), "counts must be those of the slots");
        assert!(counted.add_up(), "{counted:?}");
        let chunks = counted.capacity - counted.free - parked;
        assert_eq!(count(self.index.len()), chunks, "the index must hold the resident chunks only");
        assert!(self.free.iter().all(|slot| self.state(*slot) == SlotState::Free), "free slots must be free");
    }

    fn state(&self, slot: SlotId) -> SlotState {
        self.slots[slot.0 as usize]
    }

    fn set_state(&mut self, slot: SlotId, state: SlotState) {
        self.slots[slot.0 as usize] = state;
    }

    fn release_slot(&mut self, slot: SlotId) {
        self.set_state(slot, SlotState::Free);
        self.free.push(slot);
    }

    fn pending_key(&self, slot: SlotId) -> OffloadKey {
        match self.state(slot) {
            SlotState::Pending { key, .. } => key,
            state => panic!("slot {slot} must be pending, is {state:?}"),
        }
    }

    fn ready_pins(&self, slot: SlotId) -> (OffloadKey, u32, u32) {
        match self.state(slot) {
            SlotState::Ready { key, pins, holds } => (key, pins, holds),
            state => panic!("slot {slot} must be ready, is {state:?}"),
        }
    }
}

/// A number of slots; they are counted in 32 bits.
fn count(slots: usize) -> u32 {
    u32::try_from(slots).expect("slots are counted in 32 bits")
}
