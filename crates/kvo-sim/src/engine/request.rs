//! A request of the engine: its tokens, its blocks, and what compute does with them.

use std::{collections::BTreeMap, ops::Range, time::Duration};

use kvo_connector::{CopyId, GroupKind, GroupOptions, RequestParams};
use kvo_core::BlockId;

use crate::{
    caches::Place,
    random::{Random, mix},
};

/// Free blocks by pool.
pub(crate) type Free = BTreeMap<u32, Vec<BlockId>>;

/// What somebody asks for; it can be asked for again.
#[derive(Clone, Debug)]
pub(crate) struct Prompt {
    pub(crate) tokens: Vec<u32>,
    /// Tokens, prompt and output, at which it is answered.
    pub(crate) wanted: usize,
    pub(crate) params: RequestParams,
}

#[derive(Debug)]
pub(crate) struct Request {
    pub(crate) prompt: Prompt,
    pub(crate) tokens: Vec<u32>,
    /// Of each token that was computed, or loaded: it, all before it, and the weights that computed each.
    prefixes: Vec<u64>,
    pub(crate) tables: Vec<Vec<Option<BlockId>>>,
    pub(crate) computed: u32,
    pub(crate) loading: Option<CopyId>,
    /// What it says that it has in its next step, if that is not so.
    pub(crate) said: Option<u32>,
    /// Up to where its load is to bring it.
    pub(crate) load_end: u32,
    /// The same, if it computes behind the layers of it.
    pub(crate) behind_layers: Option<u32>,
    /// Blocks that the connector was told of, by group.
    pub(crate) told: Vec<usize>,
    pub(crate) num_hashes: usize,
    /// Tokens that the connector was told of.
    pub(crate) num_told: usize,
    pub(crate) is_running: bool,
    /// Since when it is told to ask again.
    pub(crate) asks_since: Option<Duration>,
    /// How often it was, while nothing was under way.
    pub(crate) idle_asks: usize,
}

/// The first token to which the one behind `computed` attends; of a state, that which has left it behind.
fn first_attended(group: &GroupOptions, computed: u32) -> u32 {
    match group.kind {
        GroupKind::Full => 0,
        GroupKind::Window { tokens } => (computed + 1).saturating_sub(tokens),
        GroupKind::State => computed.saturating_sub(1),
    }
}

impl Request {
    pub(crate) fn new(prompt: Prompt, num_groups: usize) -> Self {
        let mut request = Self {
            tokens: Vec::new(),
            prefixes: Vec::new(),
            tables: vec![Vec::new(); num_groups],
            computed: 0,
            said: None,
            loading: None,
            load_end: 0,
            behind_layers: None,
            told: vec![0; num_groups],
            num_hashes: 0,
            num_told: 0,
            is_running: false,
            asks_since: None,
            idle_asks: 0,
            prompt,
        };
        for token in request.prompt.tokens.clone() {
            request.push(token);
        }
        request
    }

    pub(crate) fn push(&mut self, token: u32) {
        self.prefixes.push(0);
        self.tokens.push(token);
    }

    /// The weights of `epoch` compute some tokens behind what is there, or did so for whoever stored them.
    pub(crate) fn compute(&mut self, tokens: Range<u32>, epoch: u64) {
        // What has a salt or an adapter is never to be taken for what has none, or another.
        let RequestParams { adapter, salt, .. } = &self.prompt.params;
        let [adapter, salt] = [adapter, salt].map(|of| of.map_or(0, |bytes| 1 + u64::from(bytes[0])));
        let first = mix(1 + salt + (adapter << 32));
        for nth in tokens.start as usize..tokens.end as usize {
            let before = if nth == 0 { first } else { self.prefixes[nth - 1] };
            let token = u64::from(self.tokens[nth]) + 1;
            self.prefixes[nth] = mix(before ^ mix(epoch << 32 | token));
        }
    }

    pub(crate) fn num_tokens(&self) -> u32 {
        u32::try_from(self.tokens.len()).expect("tokens are few")
    }

    pub(crate) fn has_blocks(&self) -> bool {
        self.tables.iter().any(|table| !table.is_empty())
    }

    /// Whether it has the blocks that the token behind `computed` reads.
    pub(crate) fn has_attended(&self, groups: &[GroupOptions], computed: u32) -> bool {
        groups.iter().zip(&self.tables).all(|(group, table)| {
            let blocks =
                first_attended(group, computed) / group.block_tokens..computed.div_ceil(group.block_tokens);
            table
                .get(blocks.start as usize..blocks.end as usize)
                .is_some_and(|all| all.iter().all(Option::is_some))
        })
    }

    /// Whether it has the blocks that it reads and writes if it goes on behind `computed` tokens.
    pub(crate) fn can_go_on(&self, groups: &[GroupOptions], computed: u32) -> bool {
        groups.iter().zip(&self.tables).all(|(group, table)| {
            let first = (first_attended(group, computed) / group.block_tokens) as usize;
            table.iter().skip(first).all(Option::is_some)
        })
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
        self.said = None;
        self.loading = None;
        self.behind_layers = None;
        self.is_running = false;
        self.asks_since = None;
    }

    pub(crate) fn new_blocks(&self) -> Vec<&[Option<BlockId>]> {
        self.tables.iter().zip(&self.told).map(|(table, told)| &table[*told..]).collect()
    }

    /// Gives back blocks that were for a draft.
    pub(crate) fn take_back(&mut self, groups: &[GroupOptions], free: &mut Free) {
        for ((group, table), told) in groups.iter().zip(&mut self.tables).zip(&mut self.told) {
            let needed = self.computed.div_ceil(group.block_tokens) as usize;
            let free = free.get_mut(&group.pool).expect("every pool is there");
            free.extend(table.drain(needed.min(table.len())..).flatten());
            *told = (*told).min(table.len());
        }
    }

    /// Gives back blocks that the next token does not attend to.
    pub(crate) fn leave_behind(&mut self, groups: &[GroupOptions], free: &mut Free) {
        for (group, table) in groups.iter().zip(&mut self.tables) {
            let gone = first_attended(group, self.computed) / group.block_tokens;
            let free = free.get_mut(&group.pool).expect("every pool is there");
            for block in table.iter_mut().take(gone as usize) {
                free.extend(block.take());
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
                Place { group: nth, block, token, prefix: self.prefixes[token as usize] }
            };
            if group.kind == GroupKind::State {
                let (read, written) = self.states(group, place, count);
                reads.extend(read);
                writes.extend(written);
                continue;
            }
            let first = first_attended(group, self.computed);
            reads.extend((first..self.computed).map(place));
            let settled = self.computed + count - draft;
            writes.extend((self.computed..settled).map(place));
            writes.extend((settled..settled + draft).map(|token| {
                let Place { prefix, .. } = place(token);
                Place { prefix: !prefix, ..place(token) }
            }));
        }
        (reads, writes)
    }

    /// The same of a group that has states: in each block one, that at its end or at the last token that was computed.
    fn states(
        &self,
        group: &GroupOptions,
        place: impl Fn(u32) -> Place,
        count: u32,
    ) -> (Vec<Place>, Vec<Place>) {
        let (tokens, end) = (group.block_tokens, self.computed + count);
        // It fills the block.
        let state = |last: u32| -> Vec<Place> {
            let place = place(last);
            let first = last / tokens * tokens;
            (first..first + tokens).map(|token| Place { token, ..place }).collect()
        };
        let reads = self.computed.checked_sub(1).map(&state).unwrap_or_default();
        let blocks = self.computed / tokens..end.div_ceil(tokens);
        let writes = blocks.flat_map(|block| state(end.min((block + 1) * tokens) - 1)).collect();
        (reads, writes)
    }

    /// Gives it the blocks for its tokens up to `to`, of which it computes those from `first` on; or none.
    pub(crate) fn allocate(
        &mut self,
        groups: &[GroupOptions],
        free: &mut Free,
        (first, to): (u32, u32),
        random: &mut Random,
    ) -> bool {
        let needed =
            |group: &GroupOptions, len: usize| (to.div_ceil(group.block_tokens) as usize).saturating_sub(len);
        let mut of_pool: BTreeMap<u32, usize> = BTreeMap::new();
        for (group, table) in groups.iter().zip(&self.tables) {
            *of_pool.entry(group.pool).or_default() += needed(group, table.len());
        }
        if of_pool.iter().any(|(pool, count)| free[pool].len() < *count) {
            return false;
        }
        for (group, table) in groups.iter().zip(&mut self.tables) {
            let free = free.get_mut(&group.pool).expect("every pool is there");
            for _ in 0..needed(group, table.len()) {
                // What no token from `first` on attends to needs no block.
                let end = (u32::try_from(table.len()).expect("blocks are few") + 1) * group.block_tokens;
                let out_of_window = end <= first_attended(group, first);
                let block =
                    if out_of_window { None } else { Some(free.swap_remove(random.index(free.len()))) };
                table.push(block);
            }
        }
        true
    }
}
