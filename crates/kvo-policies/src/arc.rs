//! The adaptive replacement cache, request by request.

use std::collections::TryReserveError;

use hashbrown::HashSet;
use kvo_core::{OffloadKey, SlotId};

use crate::{
    AccessKind, CachePolicy, KeyAccess, RequestRecency, Residents,
    ghosts::Ghosts,
    order::{Orders, filled},
    policy::MEMORY,
};

/// Where a key that comes back while it has a ghost enters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum GhostHits {
    /// T1, as every new key: what vLLM 0.33 does.
    #[default]
    T1,
    /// T2, as in the paper. On real traces it gives more hits.
    T2,
    /// T2, and the ghost lists are bounded as in the paper: B1 together with T1 by the capacity, all four lists by
    /// twice the capacity.
    Canonical,
}

/// ARC: two lists of resident chunks and two ghost lists, balanced by what the ghosts tell.
///
/// T1 holds chunks that one request has met, T2 chunks that a later request met again; B1 and B2 hold the keys,
/// without data, of chunks lately evicted from each. The target for T1's size is a real number from 0 to the
/// capacity: a miss with a ghost in B1 raises it by max(1, |B2|/|B1|), one in B2 lowers it by max(1, |B1|/|B2|).
/// Victims come from the old end of T1 while T1, less the victims already chosen, holds at least the integer part of
/// the target, else of T2; each falls back to the other. Ghost lists are trimmed to the capacity.
///
/// From N. Megiddo and D. S. Modha, "ARC: A Self-Tuning, Low Overhead Replacement Cache", FAST 2003 (figure 4), with
/// these departures, all of them vLLM 0.33's:
///
/// - One request is one access: a chunk moves to T2 when a request that reused it finishes, once; a chunk that the
///   request stored itself only becomes the most recent of its list.
/// - The target adapts once per request and key, when the key is first offered and is missing.
/// - A key with a ghost enters T1 like any other, unless [`GhostHits::T2`] or [`GhostHits::Canonical`] is chosen. Until it
///   is stored, its ghost is the most recent of its list.
/// - T1 gives a victim also where it is as large as the integer part of the target; the paper's must be larger than the
///   target, or as large and the miss one of B2.
/// - B1 is trimmed to the capacity alone, not together with T1, unless [`GhostHits::Canonical`] is chosen; several
///   victims are chosen in one call.
///
/// Can strand chunks behind a missing head: a chunk met again outlives the head of its prefix that was not. Each
/// operation is constant per chunk, amortised, whatever is pinned.
#[derive(Debug)]
pub struct Arc {
    capacity: u32,
    ghost_hits: GhostHits,
    target_t1: f64,
    /// [`T1`] and [`T2`].
    order: Orders<2>,
    /// Of each slot: whether its bytes have arrived.
    ready: Vec<bool>,
    /// B1 in list [`T1`], B2 in list [`T2`].
    ghosts: Ghosts<2>,
    /// Keys of the last [`on_store_miss`](CachePolicy::on_store_miss) that had a ghost, unless all enter T1: the
    /// eviction that makes room for them may trim that ghost before they are inserted.
    missed_ghosts: HashSet<OffloadKey>,
    /// Whether there were insertions since the ghost lists were bounded; only for [`GhostHits::Canonical`].
    bounds_due: bool,
}

const T1: usize = 0;
const T2: usize = 1;

impl Arc {
    /// An empty policy for a tier of `capacity` chunks.
    ///
    /// # Panics
    /// If there is no memory for its tables.
    pub fn new(capacity: u32, ghost_hits: GhostHits) -> Self {
        Self::try_new(capacity, ghost_hits).expect(MEMORY)
    }

    pub(crate) fn try_new(capacity: u32, ghost_hits: GhostHits) -> Result<Self, TryReserveError> {
        Ok(Self {
            capacity,
            ghost_hits,
            target_t1: 0.0,
            order: Orders::new(capacity)?,
            ready: filled(capacity, false)?,
            // Each list may hold one more than the capacity until it is trimmed.
            ghosts: Ghosts::new(capacity.saturating_mul(2).saturating_add(2))?,
            missed_ghosts: HashSet::new(),
            bounds_due: false,
        })
    }

    /// Chunks that searches for victims have looked at so far.
    pub fn visits(&self) -> u64 {
        self.order.visits()
    }

    /// A key with a ghost was asked for.
    fn adapt(&mut self, key: &OffloadKey) {
        let Some(list) = self.ghosts.list_of(key) else { return };
        let (b1, b2) = (self.ghosts.len(T1) as f64, self.ghosts.len(T2) as f64);
        self.target_t1 = match list {
            T1 => (self.target_t1 + (b2 / b1).max(1.0)).min(f64::from(self.capacity)),
            _ => (self.target_t1 - (b1 / b2).max(1.0)).max(0.0),
        };
        self.ghosts.push(list, *key);
    }

    /// Keeps the paper's bounds, |T1| + |B1| by the capacity, all four lists by twice the capacity, once all
    /// insertions of an offer are done.
    fn bound_ghosts(&mut self) {
        if !std::mem::take(&mut self.bounds_due) {
            return;
        }
        let capacity = self.capacity as usize;
        let (t1, t2) = (self.order.len(T1), self.order.len(T2));
        self.ghosts.trim(T1, capacity.saturating_sub(t1));
        self.ghosts.trim(T2, (2 * capacity).saturating_sub(t1 + t2 + self.ghosts.len(T1)));
    }

    fn is_ready(&self, slot: SlotId) -> bool {
        self.ready[slot.0 as usize]
    }
}

impl CachePolicy for Arc {
    fn num_slots_max(&self) -> u32 {
        self.order.capacity()
    }

    fn insert(
        &mut self,
        _req: &mut RequestRecency,
        slot: SlotId,
        key: &OffloadKey,
        _end_token: Option<u32>,
        _tier: &dyn Residents,
    ) {
        let had_ghost = self.missed_ghosts.remove(key);
        let was_ghost = self.ghosts.remove(key).is_some() || had_ghost;
        let list = if was_ghost && self.ghost_hits != GhostHits::T1 { T2 } else { T1 };
        self.ready[slot.0 as usize] = false;
        self.order.push(list, slot);
        self.bounds_due = self.ghost_hits == GhostHits::Canonical;
    }

    fn on_ready(&mut self, slot: SlotId) {
        self.ready[slot.0 as usize] = true;
        self.order.wake(slot);
    }

    fn on_unpin(&mut self, slot: SlotId) {
        self.order.wake(slot);
    }

    fn remove(&mut self, slot: SlotId) {
        self.bound_ghosts();
        self.order.remove(slot);
    }

    fn evict(&mut self, count: usize, tier: &dyn Residents, victims: &mut Vec<SlotId>) -> bool {
        self.bound_ghosts();
        let before = victims.len();
        // The target is never negative, and never above a capacity of 32 bits.
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "see above")]
        let target = self.target_t1 as usize;
        let mut t1_len = self.order.len(T1);
        let mut scans = [self.order.scan(T1), self.order.scan(T2)];
        for _ in 0..count {
            let turns = if t1_len >= target { [T1, T2] } else { [T2, T1] };
            let victim =
                turns.into_iter().find_map(|list| Some((list, self.order.next(&mut scans[list], tier)?)));
            let Some((list, victim)) = victim else {
                victims.truncate(before);
                return false;
            };
            t1_len -= usize::from(list == T1);
            victims.push(victim);
        }
        for victim in &victims[before..] {
            let list = self.order.queue_of(*victim).expect("a victim was just found in a list");
            self.order.remove(*victim);
            self.ghosts.push(list, tier.key(*victim));
            self.ghosts.trim(list, self.capacity as usize);
        }
        true
    }

    fn touch(&mut self, keys: &[KeyAccess], _tier: &dyn Residents) {
        self.bound_ghosts();
        for access in keys.iter().rev() {
            let Some(slot) = access.slot else {
                self.adapt(&access.key);
                continue;
            };
            // A chunk that is still being written only becomes the most recent of T1.
            let list = if self.order.queue_of(slot) == Some(T1) && !self.is_ready(slot) { T1 } else { T2 };
            self.order.push(list, slot);
        }
    }

    fn on_store_miss(&mut self, keys: &[KeyAccess], _tier: &dyn Residents) {
        self.bound_ghosts();
        self.missed_ghosts.clear();
        for access in keys.iter().rev() {
            if self.ghost_hits != GhostHits::T1 && self.ghosts.list_of(&access.key).is_some() {
                self.missed_ghosts.insert(access.key);
            }
            self.adapt(&access.key);
        }
    }

    fn on_request_finished(&mut self, _req: &mut RequestRecency, keys: &[KeyAccess], _tier: &dyn Residents) {
        self.bound_ghosts();
        for access in keys.iter().rev() {
            let Some(slot) = access.slot else { continue };
            let Some(list) = self.order.queue_of(slot) else { continue };
            self.order.push(if access.kind == AccessKind::Reused { T2 } else { list }, slot);
        }
    }

    fn clear(&mut self) {
        self.target_t1 = 0.0;
        self.order.clear();
        self.ghosts.clear();
        self.missed_ghosts.clear();
        self.bounds_due = false;
    }
}

#[cfg(test)]
mod tests;
