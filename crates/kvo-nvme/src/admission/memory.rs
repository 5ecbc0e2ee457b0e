//! Which keys were offered lately, and whether by more than one request.

use std::collections::TryReserveError;

use kvo_core::{OffloadKey, SlotId, reserve_table};
use kvo_policies::{IndexEntry, SlotIndex};

const NONE: u32 = u32::MAX;

/// The keys that were offered last, up to a fixed number; beyond it the key that was not offered for longest is
/// forgotten, but never for a key of the same offer. Of the keys of one offer the tail is forgotten first, and if they
/// are more than can be remembered, it is the head that is.
#[derive(Debug)]
pub(super) struct OfferMemory {
    keys_max: u32,
    index: SlotIndex,
    /// By number, in a list from the one offered longest ago to the one offered last.
    entries: Vec<Entry>,
    oldest: u32,
    newest: u32,
    /// The number of the current offer, and the entries of its keys.
    offer: u64,
    places: Vec<Option<u32>>,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    key: OffloadKey,
    place: IndexEntry,
    /// The first request that offered it.
    by: u64,
    /// A second request has offered it.
    is_wanted: bool,
    /// The last offer that named it.
    offer: u64,
    older: u32,
    newer: u32,
}

impl OfferMemory {
    /// Room for `keys_max` keys, which may be none.
    ///
    /// # Errors
    /// If there is no memory for them.
    pub(super) fn new(keys_max: u32) -> Result<Self, TryReserveError> {
        Ok(Self {
            keys_max,
            index: SlotIndex::new(keys_max)?,
            entries: reserve_table(keys_max as usize)?,
            oldest: NONE,
            newest: NONE,
            offer: 0,
            places: Vec::new(),
        })
    }

    /// The request with the serial `by` offers `keys`, head to tail. Returns how many of them, from the first on, were
    /// offered by another request as well, as far as is remembered.
    pub(super) fn offer(&mut self, keys: &[OffloadKey], by: u64) -> usize {
        self.offer += 1;
        let mut places = std::mem::take(&mut self.places);
        places.clear();
        // First those that are known, so that none is forgotten for a new one.
        places.extend(keys.iter().map(|key| self.meet(key, by)));
        for (place, key) in places.iter_mut().zip(keys).filter(|(place, _)| place.is_none()) {
            *place = self.meet(key, by).or_else(|| self.remember(key, by));
        }
        for place in places.iter().rev().flatten() {
            self.unlink(*place);
            self.link_newest(*place);
        }
        let is_wanted = |place: &&Option<u32>| place.is_some_and(|at| self.entries[at as usize].is_wanted);
        let count = places.iter().take_while(is_wanted).count();
        self.places = places;
        count
    }

    /// Notes an offer of a key that is known.
    fn meet(&mut self, key: &OffloadKey, by: u64) -> Option<u32> {
        let is_key = |slot: SlotId| self.entries[slot.0 as usize].key == *key;
        let SlotId(at) = self.index.get(self.index.hash(key), is_key)?;
        let entry = &mut self.entries[at as usize];
        entry.is_wanted |= entry.by != by;
        entry.offer = self.offer;
        self.unlink(at);
        self.link_newest(at);
        Some(at)
    }

    /// Remembers a key that is not known, unless every key that is remembered is of this offer.
    fn remember(&mut self, key: &OffloadKey, by: u64) -> Option<u32> {
        let at = match u32::try_from(self.entries.len()) {
            Ok(next) if next < self.keys_max => next,
            _ => self.forget_oldest()?,
        };
        let place = self.index.insert(self.index.hash(key), SlotId(at));
        let (offer, older, newer) = (self.offer, NONE, NONE);
        let entry = Entry { key: *key, place, by, is_wanted: false, offer, older, newer };
        match self.entries.get_mut(at as usize) {
            Some(forgotten) => *forgotten = entry,
            None => self.entries.push(entry),
        }
        self.link_newest(at);
        Some(at)
    }

    /// Forgets the key that was not offered for longest; returns the number of its entry.
    fn forget_oldest(&mut self) -> Option<u32> {
        let at = self.oldest;
        let Entry { place, offer, .. } = *self.entries.get(at as usize)?;
        if offer == self.offer {
            return None;
        }
        self.index.remove(place);
        self.unlink(at);
        Some(at)
    }

    fn unlink(&mut self, at: u32) {
        let Entry { older, newer, .. } = self.entries[at as usize];
        match self.entries.get_mut(older as usize) {
            Some(entry) => entry.newer = newer,
            None => self.oldest = newer,
        }
        match self.entries.get_mut(newer as usize) {
            Some(entry) => entry.older = older,
            None => self.newest = older,
        }
    }

    fn link_newest(&mut self, at: u32) {
        let before = std::mem::replace(&mut self.newest, at);
        match self.entries.get_mut(before as usize) {
            Some(entry) => entry.newer = at,
            None => self.oldest = at,
        }
        let entry = &mut self.entries[at as usize];
        (entry.older, entry.newer) = (before, NONE);
    }

    /// The keys that are remembered, the one offered longest ago first, and whether a second request offered each.
    #[cfg(test)]
    pub(super) fn keys(&self) -> Vec<(OffloadKey, bool)> {
        let mut keys = Vec::new();
        let mut at = self.oldest;
        while let Some(entry) = self.entries.get(at as usize) {
            keys.push((entry.key, entry.is_wanted));
            at = entry.newer;
        }
        keys
    }

    /// The room of each table, which never grows but for `places`.
    #[cfg(test)]
    pub(super) fn room(&self) -> (usize, usize) {
        (self.entries.capacity(), self.places.capacity())
    }
}
