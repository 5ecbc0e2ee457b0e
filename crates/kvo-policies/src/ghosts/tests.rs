//! Ghost lists against plain vectors.

use kvo_core::{BlockHash, GroupIdx};

use super::*;
use crate::AccessKind;

fn key(n: u64) -> OffloadKey {
    OffloadKey::new(BlockHash::from_u64(n), GroupIdx(u32::from(n.is_multiple_of(3))))
}

/// Steele, Lea and Flood's split-mix generator (OOPSLA 2014).
struct Rng(u64);

impl Rng {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % bound
    }
}

/// Both lists as vectors, the oldest first, and the lists themselves.
struct Pair {
    ghosts: Ghosts<2>,
    capacity: usize,
    model: [Vec<OffloadKey>; 2],
}

impl Pair {
    fn forget(&mut self, key: &OffloadKey) -> Option<usize> {
        let list = self.model.iter().position(|list| list.contains(key))?;
        self.model[list].retain(|of| of != key);
        Some(list)
    }

    fn check_batch(&self, rng: &mut Rng) {
        let access = |n| KeyAccess { key: key(n), slot: None, end_token: None, kind: AccessKind::Inserted };
        let num_keys = usize::try_from(rng.below(SlotIndex::BATCH as u64 + 1)).unwrap();
        let keys: Vec<_> =
            std::iter::repeat_with(|| access(rng.below(3 * self.capacity as u64))).take(num_keys).collect();
        for (access, ghost) in keys.iter().zip(self.ghosts.find_batch(&keys)) {
            assert_eq!(ghost.and_then(|ghost| self.ghosts.order.queue_of(ghost)), self.list_of(&access.key));
        }
    }

    fn list_of(&self, key: &OffloadKey) -> Option<usize> {
        self.model.iter().position(|list| list.contains(key))
    }

    fn step(&mut self, rng: &mut Rng) {
        let (list, key) = (usize::try_from(rng.below(2)).unwrap(), key(rng.below(3 * self.capacity as u64)));
        let len = usize::try_from(rng.below(self.capacity as u64 + 1)).unwrap();
        match rng.below(1_000) {
            0..700 => {
                // Make room first, as the contract says.
                let is_new = !self.model.iter().any(|list| list.contains(&key));
                if is_new && self.model[0].len() + self.model[1].len() == self.capacity {
                    let full = if self.model[list].is_empty() { 1 - list } else { list };
                    self.ghosts.trim(full, self.model[full].len() - 1);
                    self.model[full].remove(0);
                }
                if is_new && rng.below(2) == 0 {
                    self.ghosts.push_new(list, key, ());
                } else {
                    self.ghosts.push(list, key);
                }
                self.forget(&key);
                self.model[list].push(key);
            }
            700..950 => assert_eq!(self.ghosts.remove(&key), self.forget(&key)),
            950..999 => {
                self.ghosts.trim(list, len);
                let excess = self.model[list].len().saturating_sub(len);
                self.model[list].drain(..excess);
            }
            _ => {
                self.ghosts.clear();
                self.model = [Vec::new(), Vec::new()];
            }
        }
        for list in 0..2 {
            assert_eq!(self.ghosts.keys(list), self.model[list]);
            assert_eq!(self.ghosts.len(list), self.model[list].len());
        }
        let num_keys = self.model[0].len() + self.model[1].len();
        assert_eq!(self.ghosts.index.count_keys(), num_keys);
        assert_eq!(self.ghosts.free.len(), self.ghosts.entries.len() - num_keys);
        self.check_batch(rng);
        assert_eq!(self.ghosts.list_of(&key), self.list_of(&key));
        self.ghosts.order.assert_consistent();
    }
}

#[test]
fn ghost_lists_equal_vectors_and_never_outgrow_their_room() {
    for (capacity, num_ops, seed) in
        [(1, 20_000, 1), (2, 20_000, 2), (13, 60_000, 3), (40, 100_000, 4), (100, 100_000, 5)]
    {
        let ghosts = Ghosts::new(u32::try_from(capacity).unwrap()).unwrap();
        let mut pair = Pair { ghosts, capacity, model: [Vec::new(), Vec::new()] };
        let mut rng = Rng(seed);
        (0..num_ops).for_each(|_| pair.step(&mut rng));
        // Nothing was allocated beyond the room: entries of forgotten keys are used again.
        assert!(pair.ghosts.entries.len() <= capacity);
    }
}

#[test]
#[should_panic(expected = "trimmed before they outgrow their room")]
fn a_ghost_too_many_is_caught() {
    let mut ghosts = Ghosts::<2>::new(2).unwrap();
    for n in 0..3 {
        ghosts.push(0, key(n));
    }
}

#[test]
fn a_ghost_that_moves_is_in_one_list_only() {
    let mut ghosts = Ghosts::<2>::new(3).unwrap();
    for n in 1..=3 {
        ghosts.push(0, key(n));
    }
    ghosts.push(1, key(2));
    ghosts.push(0, key(1));
    assert_eq!((ghosts.keys(0), ghosts.keys(1)), (vec![key(3), key(1)], vec![key(2)]));
    assert_eq!([1, 2, 3, 4].map(|n| ghosts.list_of(&key(n))), [Some(0), Some(1), Some(0), None]);
    ghosts.trim(0, 1);
    assert_eq!((ghosts.keys(0), ghosts.keys(1)), (vec![key(1)], vec![key(2)]));
    assert_eq!(ghosts.remove(&key(2)), Some(1));
    assert_eq!(ghosts.remove(&key(2)), None);
}

#[test]
fn a_value_moves_with_its_key_and_goes_with_it() {
    let mut ghosts = Ghosts::<2, u64>::new(3).unwrap();
    ghosts.push_new(0, key(1), 10);
    ghosts.push_new(0, key(2), 20);
    ghosts.push(1, key(1));
    assert_eq!(ghosts.pop_oldest(1), Some(10));
    assert_eq!(ghosts.pop_oldest(1), None);
    ghosts.push(1, key(1));
    assert_eq!(ghosts.take(&key(1)), Some((1, 0)), "it is another ghost");
    ghosts.push(1, key(2));
    assert_eq!(ghosts.take(&key(2)), Some((1, 20)));
    assert_eq!(ghosts.take(&key(2)), None);
}
