//! The adaptive replacement cache, request by request.

use std::collections::BTreeMap;

use hashbrown::{HashMap, HashSet};
use kvo_core::OffloadKey;

use crate::{AccessKind, CachePolicy, KeyAccess, RequestRecency};

/// Where a key that comes back while it has a ghost enters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum GhostHits {
    /// T1, as every new key: what vLLM 0.33 does.
    #[default]
    T1,
    /// T2, as in the paper. On real traces it gives more hits.
    T2,
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
/// - A key with a ghost enters T1 like any other, unless [`GhostHits::T2`] is chosen.
/// - B1 is trimmed to the capacity alone, not together with T1; several victims are chosen in one call.
///
/// Memory is proportional to the resident keys plus at most twice the capacity in ghosts; each operation is
/// logarithmic in that and does not depend on how many chunks are pinned.
#[derive(Debug)]
pub struct Arc {
    capacity: u32,
    ghost_hits: GhostHits,
    /// Keys of the last [`on_store_miss`](CachePolicy::on_store_miss) that had a ghost, for [`GhostHits::T2`]: the
    /// eviction that makes room for them may trim that ghost before they are inserted.
    missed_ghosts: HashSet<OffloadKey>,
    target_t1: f64,
    entries: HashMap<OffloadKey, Entry>,
    t1: List,
    t2: List,
    b1: List,
    b2: List,
    next_stamp: u64,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    place: Place,
    stamp: u64,
    state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    T1,
    T2,
    B1,
    B2,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Pending,
    Evictable,
    Pinned,
    Ghost,
}

/// One list, old end first. The order holds only what a scan may take: ghosts, and evictable chunks; a pinned chunk
/// keeps its stamp and so its place.
#[derive(Debug, Default)]
struct List {
    len: usize,
    order: BTreeMap<u64, OffloadKey>,
}

impl Arc {
    /// An empty policy for a tier of `capacity` chunks.
    pub fn new(capacity: u32, ghost_hits: GhostHits) -> Self {
        Self {
            capacity,
            ghost_hits,
            missed_ghosts: HashSet::new(),
            target_t1: 0.0,
            entries: HashMap::new(),
            t1: List::default(),
            t2: List::default(),
            b1: List::default(),
            b2: List::default(),
            next_stamp: 0,
        }
    }

    fn list(&mut self, place: Place) -> &mut List {
        match place {
            Place::T1 => &mut self.t1,
            Place::T2 => &mut self.t2,
            Place::B1 => &mut self.b1,
            Place::B2 => &mut self.b2,
        }
    }

    /// Puts `key`, which is in no list, at the recent end of `place`.
    fn push(&mut self, key: OffloadKey, place: Place, state: State) {
        self.next_stamp += 1;
        let stamp = self.next_stamp;
        self.entries.insert(key, Entry { place, stamp, state });
        let list = self.list(place);
        list.len += 1;
        if matches!(state, State::Evictable | State::Ghost) {
            list.order.insert(stamp, key);
        }
    }

    /// Takes `key` out of whichever list it is in.
    fn take(&mut self, key: &OffloadKey) -> Option<Entry> {
        let entry = self.entries.remove(key)?;
        let list = self.list(entry.place);
        list.len -= 1;
        list.order.remove(&entry.stamp);
        Some(entry)
    }

    /// Moves `key` to the recent end of `place`, keeping its state.
    fn move_to(&mut self, key: &OffloadKey, place: Place) {
        if let Some(entry) = self.take(key) {
            self.push(*key, place, entry.state);
        }
    }

    fn set_state(&mut self, key: &OffloadKey, state: State) {
        let Some(entry) = self.entries.get_mut(key) else { return };
        if entry.state == State::Ghost {
            return;
        }
        entry.state = state;
        let entry = *entry;
        let list = self.list(entry.place);
        if state == State::Evictable {
            list.order.insert(entry.stamp, *key);
        } else {
            list.order.remove(&entry.stamp);
        }
    }

    /// A key with a ghost was asked for.
    fn adapt(&mut self, key: &OffloadKey) {
        let (b1, b2) = (self.b1.len as f64, self.b2.len as f64);
        match self.entries.get(key).map(|entry| entry.place) {
            Some(Place::B1) => {
                self.target_t1 = (self.target_t1 + (b2 / b1).max(1.0)).min(f64::from(self.capacity));
                self.move_to(key, Place::B1);
            }
            Some(Place::B2) => {
                self.target_t1 = (self.target_t1 - (b1 / b2).max(1.0)).max(0.0);
                self.move_to(key, Place::B2);
            }
            _ => {}
        }
    }

    /// A resident key is touched: one that is still being written only becomes the most recent of T1.
    fn touch_resident(&mut self, key: &OffloadKey) {
        match self.entries.get(key) {
            Some(Entry { place: Place::T1, state: State::Pending, .. }) => self.move_to(key, Place::T1),
            Some(Entry { place: Place::T1 | Place::T2, .. }) => self.move_to(key, Place::T2),
            _ => {}
        }
    }

    fn trim_ghosts(&mut self) {
        for place in [Place::B1, Place::B2] {
            let capacity = self.capacity as usize;
            while self.list(place).len > capacity {
                let oldest =
                    *self.list(place).order.first_key_value().expect("a ghost list orders all it holds").1;
                self.take(&oldest);
            }
        }
    }
}

impl CachePolicy for Arc {
    fn insert(&mut self, _req: &mut RequestRecency, key: OffloadKey, _end_token: Option<u32>) {
        let had_ghost = self.missed_ghosts.remove(&key);
        let was_ghost = self.take(&key).is_some_and(|entry| entry.state == State::Ghost) || had_ghost;
        let place = if was_ghost && self.ghost_hits == GhostHits::T2 { Place::T2 } else { Place::T1 };
        self.push(key, place, State::Pending);
    }

    fn on_ready(&mut self, key: &OffloadKey) {
        self.set_state(key, State::Evictable);
    }

    fn on_pin(&mut self, key: &OffloadKey) {
        self.set_state(key, State::Pinned);
    }

    fn on_unpin(&mut self, key: &OffloadKey) {
        self.set_state(key, State::Evictable);
    }

    fn remove(&mut self, key: &OffloadKey) {
        self.take(key);
    }

    fn evict(
        &mut self,
        count: usize,
        may_evict: &mut dyn FnMut(&OffloadKey) -> bool,
        victims: &mut Vec<OffloadKey>,
    ) -> bool {
        let before = victims.len();
        if count > self.t1.order.len() + self.t2.order.len() {
            return false;
        }
        // The target is never negative, and never above a capacity of 32 bits.
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "see above")]
        let target = self.target_t1 as usize;
        let mut t1_len = self.t1.len;
        {
            let mut t1 = self.t1.order.values();
            let mut t2 = self.t2.order.values();
            for _ in 0..count {
                let from_t1 = t1_len >= target;
                let mut victim = None;
                for t1_turn in [from_t1, !from_t1] {
                    victim =
                        if t1_turn { t1.find(|key| may_evict(key)) } else { t2.find(|key| may_evict(key)) };
                    if victim.is_some() {
                        t1_len -= usize::from(t1_turn);
                        break;
                    }
                }
                let Some(victim) = victim else {
                    victims.truncate(before);
                    return false;
                };
                victims.push(*victim);
            }
        }
        for key in &victims[before..] {
            let entry = self.take(key).expect("a victim was just found in a list");
            let ghosts = if entry.place == Place::T1 { Place::B1 } else { Place::B2 };
            self.push(*key, ghosts, State::Ghost);
        }
        self.trim_ghosts();
        true
    }

    fn touch(&mut self, keys: &[OffloadKey]) {
        for key in keys.iter().rev() {
            self.touch_resident(key);
            self.adapt(key);
        }
    }

    fn on_store_miss(&mut self, keys: &[OffloadKey]) {
        self.missed_ghosts.clear();
        for key in keys.iter().rev() {
            if self.ghost_hits == GhostHits::T2
                && self.entries.get(key).is_some_and(|e| e.state == State::Ghost)
            {
                self.missed_ghosts.insert(*key);
            }
            self.adapt(key);
        }
    }

    fn on_request_finished(&mut self, keys: &[KeyAccess]) {
        for access in keys.iter().rev() {
            match (access.kind, self.entries.get(&access.key).map(|entry| entry.place)) {
                (_, None | Some(Place::B1 | Place::B2)) => {}
                (AccessKind::Inserted, Some(place)) => self.move_to(&access.key, place),
                (AccessKind::Reused, Some(_)) => self.move_to(&access.key, Place::T2),
            }
        }
    }

    fn clear(&mut self) {
        *self = Self::new(self.capacity, self.ghost_hits);
    }
}

#[cfg(test)]
mod tests;
