//! Keys of chunks that were evicted lately, without data.

use hashbrown::HashMap;
use kvo_core::{BlockHash, GroupIdx, OffloadKey, SlotId};

use crate::order::Orders;

/// `Q` ghost lists, oldest first, each key in at most one, with a value if the policy has any. Never more keys than it
/// was built for.
#[derive(Debug)]
pub(crate) struct Ghosts<const Q: usize, T = ()> {
    order: Orders<Q>,
    index: HashMap<OffloadKey, SlotId>,
    keys: Vec<(OffloadKey, T)>,
    free: Vec<SlotId>,
}

impl<const Q: usize, T: Copy + Default> Ghosts<Q, T> {
    /// Empty lists with room for `capacity` keys together.
    pub(crate) fn new(capacity: u32) -> Self {
        Self {
            order: Orders::new(capacity),
            index: HashMap::with_capacity(capacity as usize),
            keys: vec![(OffloadKey::new(BlockHash([0; 32]), GroupIdx(0)), T::default()); capacity as usize],
            free: (0..capacity).rev().map(SlotId).collect(),
        }
    }

    /// Keys in one list.
    pub(crate) fn len(&self, list: usize) -> usize {
        self.order.len(list)
    }

    /// The list that a key is in.
    pub(crate) fn list_of(&self, key: &OffloadKey) -> Option<usize> {
        self.index.get(key).and_then(|ghost| self.order.queue_of(*ghost))
    }

    /// Puts a key, wherever it is, at the recent end of a list. There must be room for it. It keeps its value.
    pub(crate) fn push(&mut self, list: usize, key: OffloadKey) {
        self.place(list, key);
    }

    /// As [`push`](Self::push), with a new value.
    pub(crate) fn push_with(&mut self, list: usize, key: OffloadKey, value: T) {
        let ghost = self.place(list, key);
        self.keys[ghost.0 as usize].1 = value;
    }

    fn place(&mut self, list: usize, key: OffloadKey) -> SlotId {
        let Self { order, index, keys, free } = self;
        let ghost = *index.entry(key).or_insert_with(|| {
            let ghost = free.pop().expect("the lists are trimmed before they outgrow their room");
            keys[ghost.0 as usize] = (key, T::default());
            ghost
        });
        order.push(list, ghost);
        ghost
    }

    /// Forgets a key; says which list it was in.
    pub(crate) fn remove(&mut self, key: &OffloadKey) -> Option<usize> {
        self.take(key).map(|(list, _)| list)
    }

    /// Forgets a key; says which list it was in, and its value.
    pub(crate) fn take(&mut self, key: &OffloadKey) -> Option<(usize, T)> {
        let ghost = self.index.remove(key)?;
        let list = self.order.queue_of(ghost);
        self.order.remove(ghost);
        self.free.push(ghost);
        list.map(|list| (list, self.keys[ghost.0 as usize].1))
    }

    /// Forgets the oldest key of a list; returns its value.
    pub(crate) fn pop_oldest(&mut self, list: usize) -> Option<T> {
        let oldest = self.order.oldest(list)?;
        let key = self.keys[oldest.0 as usize].0;
        self.take(&key).map(|(_, value)| value)
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
        self.free.clear();
        self.free.extend(
            (0..self.keys.len()).rev().map(|ghost| SlotId(u32::try_from(ghost).expect("counted in 32 bits"))),
        );
    }
    /// The keys of a list, oldest first. For tests.
    #[cfg(test)]
    pub(crate) fn keys(&self, list: usize) -> Vec<OffloadKey> {
        self.order.list(list).into_iter().map(|ghost| self.keys[ghost.0 as usize].0).collect()
    }
}

#[cfg(test)]
mod tests;
