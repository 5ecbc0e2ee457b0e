//! Counts how often keys were offered, whatever the tier has of them.

use std::collections::BTreeMap;

use hashbrown::HashMap;
use kvo_core::OffloadKey;

/// A bounded counter of offers per key, for the store threshold. When it is full, the key that was not offered for
/// longest is forgotten; a key of the current offer never is.
#[derive(Debug)]
pub(crate) struct OfferTracker {
    capacity: usize,
    entries: HashMap<OffloadKey, Entry>,
    /// Keys by the time of their last offer, oldest first.
    order: BTreeMap<u64, OffloadKey>,
    next_stamp: u64,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    offers: u32,
    stamp: u64,
}

impl OfferTracker {
    pub(crate) fn new(capacity: u32) -> Self {
        Self { capacity: capacity as usize, entries: HashMap::new(), order: BTreeMap::new(), next_stamp: 0 }
    }

    /// Counts one offer of each of `keys`, which are without repeats, and forgets what exceeds the bound.
    ///
    /// Keys that were tracked before count as offered longer ago than those that are new.
    pub(crate) fn offer(&mut self, keys: &[OffloadKey]) {
        let first_stamp = self.next_stamp;
        for key in keys {
            if let Some(entry) = self.entries.get_mut(key) {
                self.order.remove(&entry.stamp);
                entry.offers = entry.offers.saturating_add(1);
                entry.stamp = self.next_stamp;
                self.order.insert(entry.stamp, *key);
                self.next_stamp += 1;
            }
        }
        for key in keys {
            if !self.entries.contains_key(key) {
                self.entries.insert(*key, Entry { offers: 1, stamp: self.next_stamp });
                self.order.insert(self.next_stamp, *key);
                self.next_stamp += 1;
            }
        }
        while self.entries.len() > self.capacity
            && let Some(oldest) = self.order.first_entry()
            && *oldest.key() < first_stamp
        {
            self.entries.remove(&oldest.remove());
        }
    }

    /// How often `key` was offered, as far as is remembered.
    pub(crate) fn offers(&self, key: &OffloadKey) -> u32 {
        self.entries.get(key).map_or(0, |entry| entry.offers)
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }
}
