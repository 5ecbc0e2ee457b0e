//! What is known of a request.

use std::time::Duration;

use kvo_core::{BlockHash, BlockId, GroupIdx, OffloadKey, RequestContext};

use crate::{
    BlockDetail, ChunkNames, ConnectorError, CopyId, Namespace,
    matching::{Boundary, Wish},
    options::{ConnectorOptions, GroupOptions},
    params::RequestParams,
};

/// One request from `new_request` to its last copy.
#[derive(Debug)]
pub(crate) struct Request {
    /// Its own among all requests that there ever were: numbers of engines are used again.
    pub(crate) arrival: u64,
    pub(crate) context: RequestContext,
    pub(crate) params: RequestParams,
    names: ChunkNames,
    pub(crate) prompt_tokens: u32,
    /// Tokens that it has, prompt and output.
    pub(crate) num_tokens: u32,
    num_hashes: usize,
    /// Its token ids, if events have them.
    pub(crate) tokens: Vec<u32>,
    pub(crate) groups: Vec<GroupState>,
    /// Tokens whose KV is final, as of the last plan.
    pub(crate) settled: u32,
    /// What was matched in this step, and for what wish: tokens that come after it change nothing.
    pub(crate) matched: Option<Match>,
    /// Since when it asks again.
    pub(crate) asks_since: Option<Duration>,
    /// The chunk that it was last told to wait for, with what was computed then.
    pub(crate) waits_for: Option<(u32, OffloadKey)>,
    /// The copies of the load that it waits for, or whose layers it computes behind, as far as they are not decided.
    pub(crate) loading: Vec<CopyId>,
    /// Tokens in front of that load that are good whatever comes of it, and from which compute can go on in every group.
    pub(crate) load_from: u32,
    /// Tokens in front of the first copy of it that has failed.
    pub(crate) load_failed_at: Option<u32>,
    /// Tokens that a load has left which has failed or is void, if the request has not gone on since.
    pub(crate) good: Option<u32>,
    /// The step that had it last, of all that were looked at.
    pub(crate) last_check: u64,
    /// Copies of it that are under way.
    pub(crate) num_open: u32,
    /// A load of it has failed: it is to compute.
    pub(crate) reads_no_more: bool,
    pub(crate) failed_stores: u32,
    pub(crate) failed_in_step: Option<u64>,
    /// A chunk that was pending for somebody else when it was offered last: nothing is offered before that is decided.
    pub(crate) stores_behind: Option<OffloadKey>,
    /// A tier wants all its chunks, those that it loads among them.
    pub(crate) offers_all: bool,
    pub(crate) data: Data,
}

/// Which weights have computed the KV data that an engine has of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Data {
    /// It has said of none that it has computed it or found it on the GPU. What was loaded is settled.
    None,
    /// Those of now.
    Current,
    /// Some of it others, that are no more. What is computed from it is of no namespace, so nothing of it is stored, and
    /// nothing is loaded.
    Outdated,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Match {
    pub(crate) wish: Wish,
    pub(crate) boundary: Boundary,
}

/// What is known of a request's chunks and blocks in one group.
#[derive(Debug, Default)]
pub(crate) struct GroupState {
    /// Of each chunk whose hash is known.
    pub(crate) keys: Vec<OffloadKey>,
    /// What those are made of: the engine's hashes of their last blocks.
    hashes: Vec<BlockHash>,
    /// Nothing where the engine has none.
    pub(crate) table: Vec<Option<BlockId>>,
    /// So many of them, from the first on, have been forgotten.
    num_gone: usize,
    /// The first chunk that was not offered yet.
    pub(crate) next_store: usize,
}

impl Request {
    pub(crate) fn new(
        arrival: u64,
        context: RequestContext,
        prompt_tokens: u32,
        params: RequestParams,
        options: &ConnectorOptions,
    ) -> Self {
        Self {
            arrival,
            context,
            names: names(&options.namespace, &params),
            params,
            prompt_tokens,
            num_tokens: prompt_tokens,
            num_hashes: 0,
            tokens: Vec::new(),
            groups: options.groups.iter().map(|_| GroupState::default()).collect(),
            settled: 0,
            matched: None,
            asks_since: None,
            waits_for: None,
            loading: Vec::new(),
            load_from: 0,
            load_failed_at: None,
            good: None,
            last_check: 0,
            num_open: 0,
            reads_no_more: false,
            failed_stores: 0,
            failed_in_step: None,
            stores_behind: None,
            offers_all: false,
            data: Data::None,
        }
    }

    /// Names the chunks that end with the hashes that have become known.
    pub(crate) fn add_hashes(&mut self, hashes: &[BlockHash], options: &ConnectorOptions) {
        let mut positions = Vec::new();
        for hash in hashes {
            self.num_hashes += 1;
            let end =
                u32::try_from(self.num_hashes).ok().and_then(|num| num.checked_mul(options.hash_tokens));
            // No request has as many tokens.
            let Some(end) = end else { break };
            for ((group, state), index) in options.groups.iter().zip(&mut self.groups).zip(0..) {
                if end.is_multiple_of(group.chunk_tokens()) {
                    let key = OffloadKey::new(self.names.name(*hash), GroupIdx(index));
                    state.keys.push(key);
                    state.hashes.push(*hash);
                    positions.push((key, end));
                }
            }
        }
        self.context.push_positions(positions);
    }

    /// Names all its chunks anew. What it has KV data of belongs to the namespace before.
    pub(crate) fn rename(&mut self, options: &ConnectorOptions) {
        if self.data != Data::None || self.settled > 0 {
            self.data = Data::Outdated;
        }
        self.names = names(&options.namespace, &self.params);
        let mut positions = Vec::new();
        for ((group, state), index) in options.groups.iter().zip(&mut self.groups).zip(0..) {
            for (key, hash) in state.keys.iter_mut().zip(&state.hashes) {
                *key = OffloadKey::new(self.names.name(*hash), GroupIdx(index));
            }
            let ends = (1..).map(|nth: u32| nth.saturating_mul(group.chunk_tokens()));
            positions.extend(state.keys.iter().copied().zip(ends));
        }
        // As they would have come.
        positions.sort_by_key(|(_, end)| *end);
        self.context.push_positions(positions);
    }

    /// What routers are told of a chunk.
    pub(crate) fn detail(&self, nth: usize, chunk: usize, group: &GroupOptions) -> BlockDetail {
        let keys = &self.groups[nth].keys;
        let chunk_tokens = group.chunk_tokens() as usize;
        let tokens = self.tokens.get(chunk * chunk_tokens..(chunk + 1) * chunk_tokens);
        BlockDetail {
            hash: self.groups[nth].hashes[chunk],
            adapter: self.params.adapter,
            is_salted: self.params.salt.is_some(),
            parent: chunk.checked_sub(1).map(|before| keys[before].hash()),
            num_tokens: group.chunk_tokens(),
            tokens: tokens.map(<[u32]>::to_vec).unwrap_or_default(),
        }
    }

    /// All chunks that it names.
    pub(crate) fn names(&self) -> impl Iterator<Item = &OffloadKey> {
        self.groups.iter().flat_map(|group| &group.keys)
    }

    /// A load has failed: what is behind `computed` is to be computed.
    pub(crate) fn take_back(&mut self, computed: u32, options: &ConnectorOptions) {
        self.settled = computed;
        self.good = Some(computed);
        for (group, state) in options.groups.iter().zip(&mut self.groups) {
            state.next_store = state.next_store.min((computed / group.chunk_tokens()) as usize);
        }
    }

    /// # Errors
    /// [`ConnectorError::Spoilt`] if the engine says that it has more tokens than a load has left.
    pub(crate) fn check_good(&self, computed: u32) -> Result<(), ConnectorError> {
        match self.good {
            Some(good) if computed > good => {
                Err(ConnectorError::Spoilt { req: self.context.id(), computed, good })
            }
            _ => Ok(()),
        }
    }

    /// Tokens whose chunks may be stored.
    pub(crate) fn storable_tokens(&self) -> u32 {
        let prompt = if self.params.prompt_only { self.prompt_tokens } else { u32::MAX };
        self.settled.min(self.params.store_tokens_max.unwrap_or(u32::MAX)).min(prompt)
    }

    /// Nobody waits for its load any more. Says whether anybody did.
    pub(crate) fn give_up_load(&mut self) -> bool {
        self.load_failed_at = None;
        let was_loading = !self.loading.is_empty();
        self.loading.clear();
        was_loading
    }

    /// It begins anew: its blocks are somebody else's.
    pub(crate) fn give_up_blocks(&mut self) {
        self.give_up_load();
        self.settled = 0;
        self.good = None;
        self.matched = None;
        self.asks_since = None;
        self.stores_behind = None;
        self.data = Data::None;
        for group in &mut self.groups {
            group.set_table(&[]);
            group.next_store = 0;
        }
    }

    /// The engine says that it has KV data of so many tokens.
    pub(crate) fn claim_data(&mut self, computed: u32) {
        if computed > 0 && self.data == Data::None {
            self.data = Data::Current;
        } else if computed == 0 && self.groups.iter().all(|group| group.table.is_empty()) {
            // It has not begun, whatever was meant to be found on the GPU before.
            self.data = Data::None;
        }
    }
}

fn names(namespace: &Namespace, params: &RequestParams) -> ChunkNames {
    namespace.names(params.adapter.as_ref(), params.salt.as_ref())
}

impl GroupState {
    /// The blocks of a chunk, if the engine has them all.
    pub(crate) fn blocks_of(&self, chunk: usize, group: &GroupOptions) -> Option<&[Option<BlockId>]> {
        let per_chunk = group.blocks_per_chunk as usize;
        let blocks = self.table.get(chunk * per_chunk..(chunk + 1) * per_chunk)?;
        blocks.iter().all(Option::is_some).then_some(blocks)
    }

    /// Forgets blocks that an engine which computes the token behind `computed` has no use for any more: it may have given
    /// them back, and if they were in front of what was loaded nothing was ever written into them.
    pub(crate) fn leave_behind(&mut self, computed: u32, group: &GroupOptions) {
        let first = group.first_attended(computed);
        let num_gone = ((first / group.block_tokens) as usize).min(self.table.len());
        if let Some(gone) = self.table.get_mut(self.num_gone..num_gone) {
            gone.fill(None);
            self.num_gone = num_gone;
        }
    }

    /// The engine has the first `kept` blocks still, and no others.
    pub(crate) fn keep(&mut self, kept: usize) {
        self.table.truncate(kept);
        self.num_gone = self.num_gone.min(kept);
    }

    /// The engine says anew which blocks it has.
    pub(crate) fn set_table(&mut self, table: &[Option<BlockId>]) {
        self.table.clear();
        self.table.extend_from_slice(table);
        self.num_gone = 0;
    }
}
