//! Block tables, and the pools that their blocks are of, for all groups at once.

use std::{collections::HashMap, ops::Range};

use kvo_core::{BlockHash, BlockId, GroupIdx};

use super::{BlockTable, blocks::BlockPool};
use crate::LayerGroup;

/// The blocks of all groups.
#[derive(Debug)]
pub(super) struct Groups {
    block_tokens: usize,
    list: Vec<Group>,
}

#[derive(Debug)]
struct Group {
    window: Option<usize>,
    pool: BlockPool,
}

impl Group {
    /// The first block that a token after `computed` others attends to.
    fn first_needed(&self, computed: usize, block_tokens: usize) -> usize {
        self.window.map_or(0, |window| (computed + 1).saturating_sub(window) / block_tokens)
    }
}

impl Groups {
    pub(super) fn new(groups: &[LayerGroup], block_tokens: u32, num_blocks: u32, seed: Option<u64>) -> Self {
        let list: Vec<Group> = groups
            .iter()
            .zip(0u64..)
            .map(|(group, nth)| Group {
                window: group.window.map(|window| window as usize),
                pool: BlockPool::new(num_blocks, seed.map(|seed| seed.wrapping_add(nth))),
            })
            .collect();
        Self { block_tokens: block_tokens as usize, list }
    }

    /// Blocks that a group needs at most at once for a request of `tokens` tokens, `step_tokens` a step.
    pub(super) fn blocks_max(&self, tokens: usize, step_tokens: usize) -> u64 {
        let of_group = |group: &Group| {
            let all = tokens.div_ceil(self.block_tokens);
            // A stretch of so many tokens, wherever it begins in a block.
            let stretch = |window: usize| (window - 1 + step_tokens).div_ceil(self.block_tokens) + 1;
            group.window.map_or(all, |window| all.min(stretch(window)))
        };
        self.list.iter().map(of_group).max().unwrap_or(0) as u64
    }

    /// Blocks of the longest prefix that can go on from the device, `limit` at most: all of its blocks are there
    /// where a group attends to everything, and those of the window that ends there where it does not.
    pub(super) fn matching(&self, hashes: &[BlockHash], limit: usize) -> usize {
        let mut end = limit.min(hashes.len());
        loop {
            let before = end;
            for group in &self.list {
                let has = |block: usize| group.pool.find(&hashes[block]).is_some();
                let goes_on = |end: &usize| {
                    (group.first_needed(end * self.block_tokens, self.block_tokens)..*end).all(has)
                };
                end = match group.window {
                    None => (0..end).take_while(|&block| has(block)).count(),
                    Some(_) => (0..=end).rev().find(goes_on).expect("nothing is always there"),
                };
            }
            if end == before {
                return end;
            }
        }
    }

    /// Tables for a prefix of `matching` blocks that is on the device; its blocks are referenced. In groups with a
    /// window those before it are left out.
    pub(super) fn adopt(&mut self, hashes: &[BlockHash], matching: usize) -> Vec<BlockTable> {
        let block_tokens = self.block_tokens;
        let adopt = |group: &mut Group| {
            let first = group.first_needed(matching * block_tokens, block_tokens).min(matching);
            let mut table = vec![None; first];
            for hash in &hashes[first..matching] {
                let block = group.pool.find(hash).expect("it was there, and nothing was given out since");
                group.pool.retain(block);
                table.push(Some(block));
            }
            table
        };
        self.list.iter_mut().map(adopt).collect()
    }

    /// Lets the tables go up to `tokens` tokens, or changes nothing if a group has too few blocks.
    pub(super) fn grow(&mut self, tables: &mut [BlockTable], tokens: usize) -> bool {
        self.grow_from(tables, 0, tokens)
    }

    /// As [`grow`](Self::grow), where the first `loaded` tokens come from elsewhere: what no token behind them
    /// attends to has no blocks.
    pub(super) fn grow_from(&mut self, tables: &mut [BlockTable], loaded: usize, tokens: usize) -> bool {
        let (block_tokens, needed) = (self.block_tokens, tokens.div_ceil(self.block_tokens));
        let new_of = |group: &Group, table: &BlockTable| {
            let first = if loaded == 0 { 0 } else { group.first_needed(loaded, block_tokens) };
            table.len().max(first)..needed
        };
        let has_room =
            |(group, table): (&Group, &BlockTable)| new_of(group, table).len() <= group.pool.available();
        if !self.list.iter().zip(&*tables).all(has_room) {
            return false;
        }
        for (group, table) in self.list.iter_mut().zip(tables) {
            let new = new_of(group, table);
            if loaded > 0 {
                drop_before(group, table, new.start.min(group.first_needed(loaded, block_tokens)));
            }
            table.resize(table.len().max(new.start), None);
            for _ in new {
                let block = group.pool.allocate().expect("they were counted");
                table.push(Some(block));
            }
        }
        true
    }

    /// Gives back the blocks that no token after `computed` others attends to.
    pub(super) fn trim(&mut self, tables: &mut [BlockTable], computed: usize) {
        for (group, table) in self.list.iter_mut().zip(tables) {
            drop_before(group, table, group.first_needed(computed, self.block_tokens));
        }
    }

    /// Lets blocks that are full and computed be found.
    pub(super) fn publish(&mut self, tables: &[BlockTable], hashes: &[BlockHash], blocks: Range<usize>) {
        for (group, table) in self.list.iter_mut().zip(tables) {
            for index in blocks.clone() {
                if let Some(block) = table[index] {
                    group.pool.publish(block, hashes[index]);
                }
            }
        }
    }

    /// Gives back all blocks of the tables, the last first, so that heads are evicted last.
    pub(super) fn release(&mut self, tables: &[BlockTable]) {
        for (group, table) in self.list.iter_mut().zip(tables) {
            table.iter().rev().flatten().for_each(|&block| group.pool.release(block));
        }
    }

    /// The block of that name in a group.
    pub(super) fn find(&self, group: GroupIdx, name: &BlockHash) -> Option<BlockId> {
        self.list.get(usize::try_from(group.0).ok()?)?.pool.find(name)
    }

    /// Takes all names away: nothing is found any more.
    pub(super) fn forget(&mut self) {
        self.list.iter_mut().for_each(|group| group.pool.forget());
    }

    /// By group: blocks that nobody uses.
    pub(super) fn available(&self) -> Vec<usize> {
        self.list.iter().map(|group| group.pool.available()).collect()
    }

    /// Holds all pools to their invariants; `tables` are all that there are.
    pub(super) fn assert_consistent<'a>(&self, tables: impl Iterator<Item = &'a [BlockTable]>) {
        let mut references: Vec<HashMap<BlockId, u32>> = vec![HashMap::new(); self.list.len()];
        for tables in tables {
            for (table, references) in tables.iter().zip(&mut references) {
                table.iter().flatten().for_each(|&block| *references.entry(block).or_default() += 1);
            }
        }
        for (group, references) in self.list.iter().zip(&references) {
            group.pool.assert_consistent(references);
        }
    }
}

/// Gives back what a table has before block `first`.
fn drop_before(group: &mut Group, table: &mut BlockTable, first: usize) {
    let first = first.min(table.len());
    // From the last dropped one on downwards nothing is left once a block is missing.
    for entry in table[..first].iter_mut().rev() {
        let Some(block) = entry.take() else { break };
        group.pool.release(block);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ModelConfig;

    /// Four tokens a block; group 0 attends to everything, group 1 to 24 tokens.
    fn groups(num_blocks: u32) -> Groups {
        Groups::new(&ModelConfig::window().groups(), 4, num_blocks, None)
    }

    fn hashes(count: u64) -> Vec<BlockHash> {
        (0..count).map(BlockHash::from_u64).collect()
    }

    #[test]
    fn a_prefix_goes_on_where_the_window_before_it_is_whole() {
        let (mut groups, hashes) = (groups(20), hashes(20));
        let mut tables = groups.adopt(&hashes, 0);
        assert!(groups.grow(&mut tables, 80));
        groups.publish(&tables, &hashes, 0..20);
        // In the window behind block 10 is what token 40 attends to: tokens 17 to 40.
        let adopted = groups.adopt(&hashes, 10);
        assert!(adopted[0].iter().all(Option::is_some));
        assert_eq!(adopted[1].iter().filter(|block| block.is_none()).count(), 4);
        groups.release(&adopted);
        groups.assert_consistent([&tables[..]].into_iter());
        groups.release(&tables);
        // The tail goes first: eight blocks of each group.
        let mut other = groups.adopt(&hashes, 0);
        assert!(groups.grow(&mut other, 32));
        assert_eq!((groups.matching(&hashes, 20), groups.matching(&hashes, 5)), (12, 5));
    }

    #[test]
    fn a_hole_in_a_window_group_is_passed_over() {
        let (mut groups, hashes) = (groups(20), hashes(20));
        let mut tables = groups.adopt(&hashes, 0);
        assert!(groups.grow(&mut tables, 80));
        for group in 0..2 {
            for block in (0..20).filter(|block| group == 0 || *block != 12) {
                let only = [tables[0].clone(), tables[1].clone()];
                let (list, table) = (&mut groups.list[group], &only[group]);
                list.pool.publish(table[block].unwrap(), hashes[block]);
            }
        }
        assert_eq!(groups.matching(&hashes, 20), 20);
        assert_eq!(groups.matching(&hashes, 18), 12);
    }

    #[test]
    fn tables_grow_in_all_groups_or_in_none() {
        let (mut groups, hashes) = (groups(8), hashes(8));
        let mut tables = groups.adopt(&hashes, 0);
        assert!(groups.grow(&mut tables, 31));
        groups.trim(&mut tables, 31);
        assert_eq!(groups.available(), [0, 2]);
        assert!(!groups.grow(&mut tables, 33));
        assert_eq!(groups.available(), [0, 2]);
        groups.release(&tables);
        groups.assert_consistent([].into_iter());
    }

    #[test]
    fn what_is_loaded_has_blocks_only_in_the_window() {
        let (mut groups, hashes) = (groups(20), hashes(20));
        let mut tables = groups.adopt(&hashes, 0);
        assert!(groups.grow_from(&mut tables, 40, 44));
        assert_eq!(tables.iter().map(Vec::len).collect::<Vec<_>>(), [11, 11]);
        assert_eq!(groups.available(), [9, 13]);
        groups.assert_consistent([&tables[..]].into_iter());
    }
}
