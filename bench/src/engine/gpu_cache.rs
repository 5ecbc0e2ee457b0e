//! Which blocks the GPU holds: an LRU over requests, as an engine has.

use hashbrown::{HashMap, HashSet};
use kvo_core::{BlockId, OffloadKey};
use kvo_policies::{CachePolicy, Lru, Met, RequestAccesses};

/// The block table of an engine that runs one request at a time.
#[derive(Debug)]
pub(super) struct GpuCache {
    blocks: HashMap<OffloadKey, BlockId>,
    free: Vec<BlockId>,
    policy: Lru,
}

impl GpuCache {
    pub(super) fn new(num_blocks: u32) -> Self {
        Self {
            blocks: HashMap::new(),
            free: (0..num_blocks).rev().map(BlockId).collect(),
            policy: Lru::new(),
        }
    }

    /// How many of the leading keys are there.
    pub(super) fn leading(&self, keys: &[OffloadKey]) -> usize {
        keys.iter().take_while(|key| self.blocks.contains_key(*key)).count()
    }

    /// A block for each key: its own if it has one, else a fresh one. Nothing, if there is no room for all.
    pub(super) fn allocate(&mut self, keys: &[OffloadKey]) -> Option<Vec<BlockId>> {
        let wanted: HashSet<OffloadKey> = keys.iter().copied().collect();
        let missing = wanted.iter().filter(|key| !self.blocks.contains_key(*key)).count();
        let mut victims = Vec::new();
        let short = missing.saturating_sub(self.free.len());
        if !self.policy.evict(short, &mut |key| !wanted.contains(key), &mut victims) {
            return None;
        }
        self.free.extend(victims.iter().filter_map(|victim| self.blocks.remove(victim)));
        let mut ids = Vec::with_capacity(keys.len());
        let mut recency = RequestAccesses::default().recency;
        for key in keys {
            if let Some(id) = self.blocks.get(key) {
                ids.push(*id);
                continue;
            }
            let id = self.free.pop()?;
            self.policy.insert(&mut recency, *key, None);
            self.policy.on_ready(key);
            self.blocks.insert(*key, id);
            ids.push(id);
        }
        Some(ids)
    }

    /// The request ends: its keys, head to tail, are the most recently used.
    pub(super) fn finish(&mut self, keys: &[OffloadKey]) {
        let mut accesses = RequestAccesses::default();
        for key in keys {
            accesses.record(key, None, Met::Ready);
        }
        let mut committed = Vec::new();
        accesses.take_into(|_| None, &mut committed);
        self.policy.on_request_finished(&committed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key;

    fn keys<const N: usize>(blocks: [u32; N]) -> [OffloadKey; N] {
        blocks.map(key)
    }

    #[test]
    fn the_tail_of_the_oldest_request_goes_first() {
        let mut gpu = GpuCache::new(4);
        let first = gpu.allocate(&keys([1, 2])).unwrap();
        gpu.finish(&keys([1, 2]));
        gpu.allocate(&keys([3, 4])).unwrap();
        gpu.finish(&keys([3, 4]));
        assert_eq!(gpu.leading(&keys([1, 2, 9])), 2);
        let again = gpu.allocate(&keys([5])).unwrap();
        assert_eq!(again, [first[1]], "block 2's place is taken");
        assert_eq!(gpu.leading(&keys([1, 2])), 1);
        assert_eq!(gpu.leading(&keys([3, 4])), 2);
    }

    #[test]
    fn blocks_of_the_request_itself_stay() {
        let mut gpu = GpuCache::new(3);
        let before = gpu.allocate(&keys([1, 2])).unwrap();
        gpu.finish(&keys([1, 2]));
        let ids = gpu.allocate(&keys([1, 2, 3])).unwrap();
        assert_eq!(ids[..2], before);
        assert_eq!(gpu.allocate(&keys([1, 2, 3, 4])), None, "four blocks do not fit");
        assert_eq!(gpu.leading(&keys([1, 2, 3])), 3, "a refusal changes nothing");
    }
}
