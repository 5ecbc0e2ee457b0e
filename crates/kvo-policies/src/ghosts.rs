//! Keys of chunks that were evicted lately, without data.

use std::collections::TryReserveError;

use kvo_core::{OffloadKey, SlotId, prefetch, reserve_table};

use crate::{
    KeyAccess,
    index::{IndexEntry, SlotIndex},
    order::Orders,
};

/// `Q` ghost lists, oldest first, each key in at most one, with a value if the policy has any. Never more keys than it
/// was built for.
///
/// Its memory is reserved at once, and used as ghosts come.
#[derive(Debug)]
pub(crate) struct Ghosts<const Q: usize, T = ()> {
    order: Orders<Q>,
    index: SlotIndex,
    /// By number.
    entries: Vec<Ghost<T>>,
    free: Vec<SlotId>,
    capacity: u32,
}

#[derive(Clone, Copy, Debug)]
struct Ghost<T> {
    key: OffloadKey,
    entry: IndexEntry,
    value: T,
}

/// Which of up to a batch of keys have a ghost.
pub(crate) type Found = [Option<SlotId>; SlotIndex::BATCH];

impl<const Q: usize, T: Copy + Default> Ghosts<Q, T> {
    /// Empty lists with room for `capacity` keys together, if there is memory for them.
    pub(crate) fn new(capacity: u32) -> Result<Self, TryReserveError> {
        Ok(Self {
            order: Orders::new(capacity)?,
            index: SlotIndex::new(capacity)?,
            entries: reserve_table(capacity as usize)?,
            free: reserve_table(capacity as usize)?,
            capacity,
        })
    }

    /// Keys in one list.
    pub(crate) fn len(&self, list: usize) -> usize {
        self.order.len(list)
    }

    /// The list that a key is in.
    pub(crate) fn list_of(&self, key: &OffloadKey) -> Option<usize> {
        self.find(key).and_then(|ghost| self.order.queue_of(ghost))
    }

    /// Finds the ghosts of the keys, no more than a batch, together.
    pub(crate) fn find_batch(&self, keys: &[KeyAccess]) -> Found {
        let (mut hashes, mut found) = ([0; SlotIndex::BATCH], [None; SlotIndex::BATCH]);
        for (hash, access) in hashes.iter_mut().zip(keys) {
            *hash = self.index.hash(&access.key);
            self.index.prefetch(*hash);
        }
        let is_key = |nth: usize, ghost: SlotId| self.entries[ghost.0 as usize].key == keys[nth].key;
        let soon = |ghost: SlotId| prefetch(&self.entries[ghost.0 as usize]);
        self.index.get_batch(&hashes[..keys.len()], &mut found, soon, is_key);
        found
    }

    /// Puts a key, wherever it is, at the recent end of a list. There must be room for it. It keeps its value.
    pub(crate) fn push(&mut self, list: usize, key: OffloadKey) {
        match self.find(&key) {
            Some(ghost) => self.order.push(list, ghost),
            None => self.push_new(list, key, T::default()),
        }
    }

    /// As [`push`](Self::push), of a key that has no ghost, with its value.
    pub(crate) fn push_new(&mut self, list: usize, key: OffloadKey, value: T) {
        let entry = IndexEntry::default();
        let ghost = self.free.pop().unwrap_or_else(|| {
            let next = u32::try_from(self.entries.len()).expect("no more than the capacity");
            assert!(next < self.capacity, "the lists are trimmed before they outgrow their room");
            self.entries.push(Ghost { key, entry, value });
            SlotId(next)
        });
        let entry = self.index.insert(self.index.hash(&key), ghost);
        self.entries[ghost.0 as usize] = Ghost { key, entry, value };
        self.order.push(list, ghost);
    }

    /// Forgets a key; says which list it was in.
    pub(crate) fn remove(&mut self, key: &OffloadKey) -> Option<usize> {
        self.take(key).map(|(list, _)| list)
    }

    /// Forgets a key; says which list it was in, and its value.
    pub(crate) fn take(&mut self, key: &OffloadKey) -> Option<(usize, T)> {
        let ghost = self.find(key)?;
        let list = self.order.queue_of(ghost)?;
        Some((list, self.forget(ghost)))
    }

    /// Forgets the oldest key of a list; returns its value.
    pub(crate) fn pop_oldest(&mut self, list: usize) -> Option<T> {
        let oldest = self.order.oldest(list)?;
        Some(self.forget(oldest))
    }

    /// Forgets the oldest keys of a list until it has no more than `len`.
    pub(crate) fn trim(&mut self, list: usize, len: usize) {
        while self.order.len(list) > len {
            self.pop_oldest(list);
        }
    }

    pub(crate) fn clear(&mut self) {
        self.order.clear();
        self.index.clear();
        self.entries.clear();
        self.free.clear();
    }

    fn find(&self, key: &OffloadKey) -> Option<SlotId> {
        self.index.get(self.index.hash(key), |ghost| self.entries[ghost.0 as usize].key == *key)
    }

    /// Forgets a ghost; returns its value.
    fn forget(&mut self, ghost: SlotId) -> T {
        let Ghost { entry, value, .. } = self.entries[ghost.0 as usize];
        self.index.remove(entry);
        self.order.remove(ghost);
        self.free.push(ghost);
        value
    }

    /// The keys of a list, oldest first. For tests.
    #[cfg(test)]
    pub(crate) fn keys(&self, list: usize) -> Vec<OffloadKey> {
        self.order.list(list).into_iter().map(|ghost| self.entries[ghost.0 as usize].key).collect()
    }
}

#[cfg(test)]
mod tests;
