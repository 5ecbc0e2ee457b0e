//! Which blocks the GPU holds: an LRU over requests, as an engine has.

use hashbrown::HashMap;
use kvo_core::{BlockId, KeyPositions, OffloadKey, SlotId};
use kvo_policies::{CachePolicy, Eviction, Lru, Met, RequestAccesses, Residents};

use crate::key;

/// The block table of an engine that runs one request at a time.
#[derive(Debug)]
pub(super) struct GpuCache {
    blocks: HashMap<OffloadKey, BlockId>,
    table: Table,
    free: Vec<BlockId>,
    policy: Lru,
    requests: u64,
}

/// By block: what it holds, and the last request that wanted it.
#[derive(Debug)]
struct Table {
    blocks: Vec<(OffloadKey, u64)>,
    request: u64,
}

impl Residents for Table {
    fn key(&self, slot: SlotId) -> OffloadKey {
        self.blocks[slot.0 as usize].0
    }

    fn may_evict(&self, slot: SlotId) -> Eviction {
        if self.blocks[slot.0 as usize].1 == self.request { Eviction::Spared } else { Eviction::Allowed }
    }
}

impl GpuCache {
    pub(super) fn new(num_blocks: u32) -> Self {
        Self {
            blocks: HashMap::new(),
            table: Table { blocks: vec![(key(0), 0); num_blocks as usize], request: 0 },
            free: (0..num_blocks).rev().map(BlockId).collect(),
            policy: Lru::new(num_blocks),
            requests: 0,
        }
    }

    /// How many of the leading keys are there.
    pub(super) fn leading(&self, keys: &[OffloadKey]) -> usize {
        keys.iter().take_while(|key| self.blocks.contains_key(*key)).count()
    }

    /// A block for each key: its own if it has one, else a fresh one. Nothing, if there is no room for all.
    pub(super) fn allocate(&mut self, keys: &[OffloadKey]) -> Option<Vec<BlockId>> {
        self.requests += 1;
        self.table.request = self.requests;
        let mut missing: Vec<OffloadKey> = Vec::new();
        for key in keys {
            match self.blocks.get(key) {
                Some(id) => self.table.blocks[id.0 as usize].1 = self.requests,
                None if missing.contains(key) => {}
                None => missing.push(*key),
            }
        }
        let mut victims = Vec::new();
        let short = missing.len().saturating_sub(self.free.len());
        if !self.policy.evict(short, &self.table, &mut victims) {
            return None;
        }
        for victim in victims {
            let (key, _) = self.table.blocks[victim.0 as usize];
            self.free.extend(self.blocks.remove(&key));
        }
        let mut recency = RequestAccesses::default().recency;
        for key in missing {
            let id = self.free.pop()?;
            self.table.blocks[id.0 as usize] = (key, self.requests);
            self.policy.insert(&mut recency, SlotId(id.0), &key, None, &self.table);
            self.policy.on_ready(SlotId(id.0));
            self.blocks.insert(key, id);
        }
        keys.iter().map(|key| self.blocks.get(key).copied()).collect()
    }

    /// The request ends: its keys, head to tail, are the most recently used.
    pub(super) fn finish(&mut self, keys: &[OffloadKey]) {
        let mut accesses = RequestAccesses::default();
        for key in keys {
            accesses.record(key, None, None, Met::Ready);
        }
        let mut committed = Vec::new();
        let slot = |key: &OffloadKey, _| self.blocks.get(key).map(|id| SlotId(id.0));
        accesses.take_into(&KeyPositions::default(), slot, &mut committed);
        self.policy.on_request_finished(&mut accesses.recency, &committed, &self.table);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
