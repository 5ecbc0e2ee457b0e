//! The blocks of one group: free, in use, or kept for a prefix that may come again.

use std::collections::{BTreeMap, HashMap, VecDeque};

use kvo_core::{BlockHash, BlockId};

use crate::random::SplitMix64;

/// ```text
///   free ──allocate──▶ referenced ◀──find, retain──▶ unreferenced, named: evicted oldest first
///    ▲                     │                              │
///    └──── release ────────┴──────────── allocate ────────┘
/// ```
///
/// Whoever uses a block holds a reference: each table it is in, and whatever copies it. A block without a name is
/// free once nobody does; one with a name can be found by it until the block is given out again.
#[derive(Debug)]
pub(super) struct BlockPool {
    blocks: Vec<Block>,
    free: VecDeque<BlockId>,
    named: HashMap<BlockHash, BlockId>,
    /// Unreferenced blocks with a name, by when they were released.
    evictable: BTreeMap<u64, BlockId>,
    releases: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Block {
    references: u32,
    name: Option<BlockHash>,
    /// Key in `evictable`, if it is there.
    released: Option<u64>,
}

impl BlockPool {
    /// A pool of free blocks, given out in ascending order, or in that of a seed.
    pub(super) fn new(num_blocks: u32, seed: Option<u64>) -> Self {
        let mut free: VecDeque<BlockId> = (0..num_blocks).map(BlockId).collect();
        if let Some(seed) = seed {
            let mut random = SplitMix64::new(seed);
            for last in (1..free.len()).rev() {
                let other = random.below(last as u64 + 1);
                free.swap(last, usize::try_from(other).expect("it is below a length"));
            }
        }
        Self {
            blocks: vec![Block::default(); num_blocks as usize],
            free,
            named: HashMap::new(),
            evictable: BTreeMap::new(),
            releases: 0,
        }
    }

    /// Blocks that nobody uses.
    pub(super) fn available(&self) -> usize {
        self.free.len() + self.evictable.len()
    }

    /// Gives out a block that nobody uses, with one reference and no name: a free one first, else the one released
    /// longest ago.
    pub(super) fn allocate(&mut self) -> Option<BlockId> {
        let block = self.free.pop_front().or_else(|| self.evict())?;
        let state = self.block(block);
        assert!(state.references == 0 && state.name.is_none(), "{block:?} is in use");
        state.references = 1;
        Some(block)
    }

    fn evict(&mut self) -> Option<BlockId> {
        let (_, block) = self.evictable.pop_first()?;
        let state = self.block(block);
        state.released = None;
        let name = state.name.take().expect("only named blocks are kept");
        self.named.remove(&name);
        Some(block)
    }

    /// The block of that name.
    pub(super) fn find(&self, name: &BlockHash) -> Option<BlockId> {
        self.named.get(name).copied()
    }

    /// Takes one more reference.
    pub(super) fn retain(&mut self, block: BlockId) {
        let state = self.block(block);
        state.references += 1;
        if let Some(released) = state.released.take() {
            self.evictable.remove(&released);
        }
    }

    /// Gives a reference back.
    pub(super) fn release(&mut self, block: BlockId) {
        let releases = self.releases;
        let state = self.block(block);
        assert!(state.references > 0, "{block:?} was released once too often");
        state.references -= 1;
        if state.references > 0 {
            return;
        }
        if state.name.is_some() {
            state.released = Some(releases);
            self.evictable.insert(releases, block);
            self.releases += 1;
        } else {
            self.free.push_back(block);
        }
    }

    /// Lets a block in use be found by `name`, unless another block has that name: then it stays nameless.
    pub(super) fn publish(&mut self, block: BlockId, name: BlockHash) {
        if self.named.contains_key(&name) {
            return;
        }
        let state = self.block(block);
        assert!(state.references > 0, "{block:?} is nobody's");
        if state.name.is_none() {
            state.name = Some(name);
            self.named.insert(name, block);
        }
    }

    /// Takes all names away.
    pub(super) fn forget(&mut self) {
        self.named.clear();
        for state in &mut self.blocks {
            (state.name, state.released) = (None, None);
        }
        self.free.extend(std::mem::take(&mut self.evictable).into_values());
    }

    fn block(&mut self, block: BlockId) -> &mut Block {
        &mut self.blocks[block.0 as usize]
    }

    /// Holds the pool to its invariants. `references` is how often each block is in use.
    pub(super) fn assert_consistent(&self, references: &HashMap<BlockId, u32>) {
        let mut unused = 0;
        for (index, state) in self.blocks.iter().enumerate() {
            let block = BlockId(u32::try_from(index).expect("there are 2^32 blocks at most"));
            assert_eq!(state.references, references.get(&block).copied().unwrap_or(0), "uses of {block:?}");
            let is_evictable = state.references == 0 && state.name.is_some();
            assert_eq!(state.released.is_some(), is_evictable, "{block:?}");
            if let Some(released) = state.released {
                assert_eq!(self.evictable.get(&released), Some(&block));
            }
            if let Some(name) = state.name {
                assert_eq!(self.named.get(&name), Some(&block));
            }
            unused += usize::from(state.references == 0);
        }
        assert_eq!(unused, self.available(), "unused blocks are free or evictable");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(number: u64) -> BlockHash {
        BlockHash::from_u64(number)
    }

    #[test]
    fn named_blocks_are_evicted_in_the_order_of_their_release() {
        let mut pool = BlockPool::new(3, None);
        let blocks = [(); 3].map(|()| pool.allocate().unwrap());
        for (block, number) in blocks.into_iter().zip(0..) {
            pool.publish(block, name(number));
        }
        assert_eq!(pool.allocate(), None);
        for nth in [1, 0, 2] {
            pool.release(blocks[nth]);
        }
        // Used again and released again: the youngest now.
        pool.retain(pool.find(&name(1)).unwrap());
        pool.release(blocks[1]);
        let order = [(); 3].map(|()| pool.allocate().unwrap());
        assert_eq!(order, [blocks[0], blocks[2], blocks[1]]);
        assert_eq!(pool.find(&name(0)), None);
    }

    #[test]
    fn a_name_that_is_taken_is_not_given_twice() {
        let mut pool = BlockPool::new(2, None);
        let [first, second] = [(); 2].map(|()| pool.allocate().unwrap());
        pool.publish(first, name(7));
        pool.publish(second, name(7));
        assert_eq!(pool.find(&name(7)), Some(first));
        pool.release(second);
        assert_eq!(pool.available(), 1);
        pool.forget();
        assert_eq!(pool.find(&name(7)), None);
        pool.release(first);
        pool.assert_consistent(&HashMap::new());
    }

    #[test]
    fn a_seed_shuffles_the_order() {
        let order = |seed| {
            let mut pool = BlockPool::new(20, seed);
            [(); 20].map(|()| pool.allocate().unwrap().0)
        };
        let mut shuffled = order(Some(1));
        assert_ne!(shuffled, order(None));
        shuffled.sort_unstable();
        assert_eq!(shuffled, order(None));
    }
}
