//! A request of the engine, and its blocks.

use std::{collections::BTreeMap, ops::Range};

use kvo_connector::{CopyId, GroupKind, GroupOptions};
use kvo_core::BlockId;

use crate::{
    memory::Place,
    random::{Random, mix},
};

#[derive(Debug)]
pub(crate) struct Request {
    pub(crate) tokens: Vec<u32>,
    /// What is in the caches of each token: it, all before it, whose they are, and the weights that computed each.
    pub(crate) values: Vec<u64>,
    /// Whose they are.
    pub(crate) tenant: u64,
    pub(crate) wanted: usize,
    pub(crate) tables: Vec<Vec<Option<BlockId>>>,
    pub(crate) computed: u32,
    pub(crate) loading: Option<CopyId>,
    /// Up to where its load will have brought it, if it computes behind the layers of it.
    pub(crate) behind_layers: Option<u32>,
    /// Blocks that the connector was told of, by group.
    pub(crate) told: Vec<usize>,
    pub(crate) num_hashes: usize,
    pub(crate) is_running: bool,
}

/// Gives a request the blocks for its tokens up to `to`, of which it computes those from `first` on; or none.
pub(crate) fn allocate(
    request: &mut Request,
    groups: &[GroupOptions],
    free: &mut BTreeMap<u32, Vec<BlockId>>,
    first: u32,
    to: u32,
    random: &mut Random,
) -> bool {
    let needed =
        |group: &GroupOptions, len: usize| (to.div_ceil(group.block_tokens) as usize).saturating_sub(len);
    let mut of_pool: BTreeMap<u32, usize> = BTreeMap::new();
    for (group, table) in groups.iter().zip(&request.tables) {
        *of_pool.entry(group.pool).or_default() += needed(group, table.len());
    }
    if of_pool.iter().any(|(pool, count)| free[pool].len() < *count) {
        return false;
    }
    for (group, table) in groups.iter().zip(&mut request.tables) {
        let free = free.get_mut(&group.pool).unwrap();
        for _ in 0..needed(group, table.len()) {
            let out_of_window = match group.kind {
                // What no token from `first` on attends to needs no block.
                GroupKind::Window { tokens } => {
                    let end = (u32::try_from(table.len()).unwrap() + 1) * group.block_tokens;
                    end <= (first + 1).saturating_sub(tokens)
                }
                _ => false,
            };
            let block = if out_of_window { None } else { Some(free.swap_remove(random.index(free.len()))) };
            table.push(block);
        }
    }
    true
}

impl Request {
    /// A request that has not begun.
    pub(crate) fn new(tokens: Vec<u32>, wanted: usize, tenant: u64, num_groups: usize) -> Self {
        Self {
            wanted,
            values: vec![0; tokens.len()],
            tokens,
            tenant,
            tables: vec![Vec::new(); num_groups],
            computed: 0,
            loading: None,
            behind_layers: None,
            told: vec![0; num_groups],
            num_hashes: 0,
            is_running: false,
        }
    }

    pub(crate) fn push(&mut self, token: u32) {
        self.values.push(0);
        self.tokens.push(token);
    }

    /// The weights of `epoch` compute some tokens, behind what was computed before, or did so for whoever stored them.
    pub(crate) fn compute(&mut self, tokens: Range<u32>, epoch: u64) {
        for nth in tokens.start as usize..tokens.end as usize {
            let before = if nth == 0 { self.tenant } else { self.values[nth - 1] };
            let token = u64::from(self.tokens[nth]) + 1;
            self.values[nth] = mix(before ^ mix(epoch << 32 | token));
        }
    }

    pub(crate) fn all_blocks(&self, groups: &[GroupOptions]) -> Vec<(u32, BlockId)> {
        let of = |(group, table): (&GroupOptions, &Vec<Option<BlockId>>)| -> Vec<_> {
            table.iter().flatten().map(|block| (group.pool, *block)).collect()
        };
        groups.iter().zip(&self.tables).flat_map(of).collect()
    }

    pub(crate) fn preempt(&mut self) {
        self.tables.iter_mut().for_each(Vec::clear);
        self.told.fill(0);
        self.computed = 0;
        self.behind_layers = None;
        self.is_running = false;
    }

    pub(crate) fn new_blocks(&self) -> Vec<&[Option<BlockId>]> {
        self.tables.iter().zip(&self.told).map(|(table, told)| &table[*told..]).collect()
    }

    /// Gives back blocks that were for a draft.
    pub(crate) fn take_back(&mut self, groups: &[GroupOptions], free: &mut BTreeMap<u32, Vec<BlockId>>) {
        for ((group, table), told) in groups.iter().zip(&mut self.tables).zip(&mut self.told) {
            let needed = self.computed.div_ceil(group.block_tokens) as usize;
            free.get_mut(&group.pool).unwrap().extend(table.drain(needed.min(table.len())..).flatten());
            *told = (*told).min(table.len());
        }
    }

    /// Gives back blocks that the next token does not attend to.
    pub(crate) fn leave_behind(&mut self, groups: &[GroupOptions], free: &mut BTreeMap<u32, Vec<BlockId>>) {
        for (group, table) in groups.iter().zip(&mut self.tables) {
            let GroupKind::Window { tokens } = group.kind else { continue };
            let gone = (self.computed + 1).saturating_sub(tokens) / group.block_tokens;
            for block in table.iter_mut().take(gone as usize) {
                free.get_mut(&group.pool).unwrap().extend(block.take());
            }
        }
    }

    /// What the compute of the next `count` tokens reads and writes, the last `draft` of them as somebody else's.
    pub(crate) fn accesses(
        &self,
        groups: &[GroupOptions],
        count: u32,
        draft: u32,
    ) -> (Vec<Place>, Vec<Place>) {
        let (mut reads, mut writes) = (Vec::new(), Vec::new());
        for (nth, (group, table)) in groups.iter().zip(&self.tables).enumerate() {
            let place = |token: u32| {
                let block = table[(token / group.block_tokens) as usize].expect("compute needs this block");
                Place { group: nth, block, token, value: self.values[token as usize] }
            };
            let first = match group.kind {
                GroupKind::Window { tokens } => (self.computed + 1).saturating_sub(tokens),
                _ => 0,
            };
            reads.extend((first..self.computed).map(place));
            let settled = self.computed + count - draft;
            writes.extend((self.computed..settled).map(place));
            writes.extend((settled..settled + draft).map(|token| {
                let Place { value, .. } = place(token);
                Place { value: !value, ..place(token) }
            }));
        }
        (reads, writes)
    }
}
