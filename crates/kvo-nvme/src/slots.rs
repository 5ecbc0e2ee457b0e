//! The slots of the file: what each holds, and how many are in which state.
//!
//! ```text
//!            take             written
//!   Free ──────────▶ Writing ─────────▶ Valid { pins } ──── evict (pins = 0) ───▶ Free
//!    ▲                  │                   │ a read failed
//!    │      write       │                   ▼             last pin
//!    ├──────failed──────┤              Retiring { pins } ──────────▶ Free
//!                       ▼                   │ last pin
//!                  Quarantined ◀────────────┘
//! ```
//!
//! The disk failed the slot at a write, or at a read with an error: quarantined at once. Its bytes were not those
//! that were written: free again the first time, quarantined the second.

use std::collections::{TryReserveError, VecDeque};

use kvo_core::{OffloadKey, reserve_table};
use kvo_policies::IndexEntry;

use crate::SlotCounts;

/// Failed checks after which a slot is quarantined.
const STRIKES_MAX: u8 = 2;

/// What a slot holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SlotState {
    Free,
    Writing { tenant: Tenant },
    Valid { tenant: Tenant, checksum: u64, pins: u32 },
    Retiring { pins: u32, broken: bool },
    Quarantined,
}

/// Whose bytes are in a slot, and by which of all writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tenant {
    pub(crate) key: OffloadKey,
    pub(crate) generation: u64,
}

#[derive(Clone, Copy, Debug)]
struct Slot {
    state: SlotState,
    /// Where its key is in the index, while it is there.
    entry: IndexEntry,
    strikes: u8,
    /// Whether the bytes of its chunk may be those of a later write: of one that was under way when the process ended.
    unproven: bool,
}

/// All slots. The counts change in one place, together with the state.
#[derive(Debug)]
pub(crate) struct SlotTable {
    slots: Vec<Slot>,
    /// The free ones. First in, first out: the disk sees ascending positions, and a suspicious slot rests.
    free: VecDeque<u32>,
    counts: SlotCounts,
}

impl SlotTable {
    /// Slots that are all free, but for those that failed before; [`list_free`](Self::list_free) follows.
    pub(crate) fn new(capacity: u32, quarantined: &[u32]) -> Result<Self, TryReserveError> {
        let entry = IndexEntry::default();
        let free = Slot { state: SlotState::Free, entry, strikes: 0, unproven: false };
        let mut slots = reserve_table(capacity as usize)?;
        slots.resize(capacity as usize, free);
        let counts = SlotCounts { capacity, free: capacity, ..SlotCounts::default() };
        let mut table = Self { slots, free: VecDeque::new(), counts };
        for &slot in quarantined {
            table.set(slot, SlotState::Quarantined);
        }
        table.free.try_reserve(capacity as usize)?;
        Ok(table)
    }

    /// Puts a chunk of an earlier opening into a slot that is free, before the free ones are listed.
    pub(crate) fn restore(&mut self, slot: u32, tenant: Tenant, checksum: u64, unproven: bool) {
        self.set(slot, SlotState::Valid { tenant, checksum, pins: 0 });
        self.slots[slot as usize].unproven = unproven;
    }

    pub(crate) fn is_unproven(&self, slot: u32) -> bool {
        self.slots[slot as usize].unproven
    }

    /// The bytes of a slot have been compared to their checksum.
    pub(crate) fn prove(&mut self, slot: u32) {
        self.slots[slot as usize].unproven = false;
    }

    /// Lists the free slots, ascending.
    pub(crate) fn list_free(&mut self) {
        self.free.clear();
        let slots = (0_u32..).zip(&self.slots);
        self.free.extend(slots.filter(|(_, slot)| slot.state == SlotState::Free).map(|(slot, _)| slot));
    }

    pub(crate) fn counts(&self) -> SlotCounts {
        self.counts
    }

    pub(crate) fn state(&self, slot: u32) -> SlotState {
        self.slots[slot as usize].state
    }

    /// The key of the chunk that is in the slot, or being written into it.
    pub(crate) fn key(&self, slot: u32) -> Option<&OffloadKey> {
        match &self.slots[slot as usize].state {
            SlotState::Writing { tenant } | SlotState::Valid { tenant, .. } => Some(&tenant.key),
            _ => None,
        }
    }

    /// Where the key of the slot is in the index.
    pub(crate) fn entry(&self, slot: u32) -> IndexEntry {
        self.slots[slot as usize].entry
    }

    pub(crate) fn set_entry(&mut self, slot: u32, entry: IndexEntry) {
        self.slots[slot as usize].entry = entry;
    }

    /// Takes a free slot, if there is one.
    pub(crate) fn take(&mut self, tenant: Tenant) -> Option<u32> {
        let slot = self.free.pop_front()?;
        self.set(slot, SlotState::Writing { tenant });
        self.prove(slot);
        Some(slot)
    }

    /// Moves a slot into another state.
    pub(crate) fn set(&mut self, slot: u32, state: SlotState) {
        let old = std::mem::replace(&mut self.slots[slot as usize].state, state);
        *self.count(old) -= 1;
        *self.count(state) += 1;
        if state == SlotState::Free {
            self.free.push_back(slot);
        }
    }

    /// Notes that the bytes of `slot` were not those written; says whether that was once too often.
    pub(crate) fn strike(&mut self, slot: u32) -> bool {
        let strikes = &mut self.slots[slot as usize].strikes;
        *strikes = strikes.saturating_add(1);
        *strikes >= STRIKES_MAX
    }

    fn count(&mut self, state: SlotState) -> &mut u32 {
        match state {
            SlotState::Free => &mut self.counts.free,
            SlotState::Writing { .. } => &mut self.counts.writing,
            SlotState::Valid { pins: 0, .. } => &mut self.counts.evictable,
            SlotState::Valid { .. } => &mut self.counts.pinned,
            SlotState::Retiring { .. } => &mut self.counts.retiring,
            SlotState::Quarantined => &mut self.counts.quarantined,
        }
    }
}

#[cfg(any(test, feature = "testing"))]
impl SlotTable {
    /// Counts everything anew and compares.
    #[track_caller]
    pub(crate) fn assert_consistent(&self) {
        let mut other = Self::new(self.counts.capacity, &[]).unwrap();
        for (slot, state) in (0..).zip(self.slots.iter().map(|slot| slot.state)) {
            *other.count(SlotState::Free) -= 1;
            *other.count(state) += 1;
            let in_free_list = self.free.iter().filter(|&&free| free == slot).count();
            assert_eq!(in_free_list, usize::from(state == SlotState::Free), "slot {slot}: {state:?}");
        }
        assert_eq!(other.counts, self.counts);
        assert!(self.counts.add_up(), "{:?}", self.counts);
    }

    pub(crate) fn states(&self) -> impl Iterator<Item = (u32, SlotState)> {
        (0..).zip(self.slots.iter().map(|slot| slot.state))
    }
}
