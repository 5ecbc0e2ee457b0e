//! What a connector is made with.

use std::time::Duration;

use crate::{Economy, EventDetail, Namespace, error::OptionsError};

/// What a group's layers attend to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GroupKind {
    /// Every token before.
    Full,
    /// The last `tokens` tokens, the one that attends among them.
    Window {
        /// How many.
        tokens: u32,
    },
    /// A state that the tokens before have left behind. A chunk holds the one at its end.
    State,
}

/// A KV cache group: layers that share one block table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupOptions {
    /// What its layers attend to.
    pub kind: GroupKind,
    /// Tokens a block.
    pub block_tokens: u32,
    /// Blocks a chunk.
    pub blocks_per_chunk: u32,
    /// Groups of one pool take their blocks from one set of ids: block 7 of the one is block 7 of the other.
    pub pool: u32,
}

impl GroupOptions {
    /// Full attention, one block a chunk, in pool 0.
    pub fn full(block_tokens: u32) -> Self {
        Self { kind: GroupKind::Full, block_tokens, blocks_per_chunk: 1, pool: 0 }
    }

    /// As [`full`](Self::full), with a window.
    pub fn window(block_tokens: u32, tokens: u32) -> Self {
        Self { kind: GroupKind::Window { tokens }, ..Self::full(block_tokens) }
    }

    /// With so many blocks a chunk.
    #[must_use]
    pub fn with_blocks_per_chunk(self, blocks_per_chunk: u32) -> Self {
        Self { blocks_per_chunk, ..self }
    }

    /// Tokens a chunk.
    pub fn chunk_tokens(&self) -> u32 {
        self.block_tokens * self.blocks_per_chunk
    }

    /// The first token that the one behind `computed` needs; of a state, the one that has left it behind.
    pub(crate) fn first_attended(&self, computed: u32) -> u32 {
        match self.kind {
            GroupKind::Full => 0,
            GroupKind::Window { tokens } => computed.saturating_add(1).saturating_sub(tokens),
            // The state in front of that token, and none before it.
            GroupKind::State => computed.saturating_sub(1),
        }
    }

    /// Whether what is computed may be taken back to `to` tokens, though of those in front of `computed` there may be no more
    /// blocks than the next token needs.
    pub(crate) fn can_go_back(&self, computed: u32, to: u32) -> bool {
        let needed = self.first_attended(to);
        let is_kept = match self.kind {
            GroupKind::Full => true,
            GroupKind::Window { .. } => {
                needed / self.block_tokens >= self.first_attended(computed) / self.block_tokens
            }
            GroupKind::State => to == computed,
        };
        needed >= to || is_kept
    }
}

/// What a [`Connector`](crate::Connector) is made with.
#[derive(Clone, Debug, PartialEq)]
pub struct ConnectorOptions {
    /// Whose data its chunks are.
    pub namespace: Namespace,
    /// The groups, in the order of their indices; at least one, and at least one with tokens that attend to others.
    pub groups: Vec<GroupOptions>,
    /// Tokens that a block hash covers beside those of the hashes before it. Every group's block is a multiple of it.
    pub hash_tokens: u32,
    /// Workers that run each plan, all of which must have reported a job before it is over.
    pub num_workers: u32,
    /// Whether the last token of a prompt is computed though it could be loaded, as its logits are wanted.
    pub recompute_last: bool,
    /// How long a request asks again for chunks that are on their way. After that it is told what there is without them.
    pub lookup_patience: Duration,
    /// How long a copy of a plan may go unreported before its request goes on without it. Longer than a worker's own deadline, it
    /// is for workers that have died.
    pub copy_patience: Duration,
    /// Chunks that a request offers at once: a larger offer than there is room for is refused whole.
    pub offer_chunks_max: usize,
    /// Chunks of one copy of a load. A load of more is several copies, and if one fails, what those before it have brought
    /// counts, where all groups have full attention. Layers then come copy by copy, so an engine that computes behind
    /// layers wants one copy.
    pub load_chunks_max: usize,
    /// Steps in which stores of a request may fail before it stores no more.
    pub failed_stores_max: u32,
    /// Whether the engine keeps the blocks of a request that has finished with
    /// [copies open](crate::Finish::CopiesOpen) until [`take_settled`](crate::Connector::take_settled) names it, and so calls
    /// that; until then the request's number is not used again. Without, such requests are not named, and their numbers may
    /// be used at once.
    pub keeps_blocks: bool,
    /// What loads and compute cost, for matches that end where loading stops being worth it; without, all that is found can
    /// be loaded.
    pub economy: Option<Economy>,
    /// What [`take_block_events`](crate::Connector::take_block_events) tells of each chunk; without, there are only the
    /// manager's own events. The manager is to record them.
    pub events: Option<EventDetail>,
}

impl ConnectorOptions {
    /// For data of `namespace`, in groups whose blocks are hashed every `hash_tokens` tokens; one worker, the last token is
    /// recomputed, lookups have a second, copies a minute, offers 64 chunks, a load is one copy, stores may fail in 3 steps,
    /// blocks are kept until they are named, and all that is found can be loaded.
    pub fn new(namespace: Namespace, groups: Vec<GroupOptions>, hash_tokens: u32) -> Self {
        Self {
            namespace,
            groups,
            hash_tokens,
            num_workers: 1,
            recompute_last: true,
            lookup_patience: Duration::from_secs(1),
            copy_patience: Duration::from_mins(1),
            offer_chunks_max: 64,
            load_chunks_max: usize::MAX,
            failed_stores_max: 3,
            keeps_blocks: true,
            economy: None,
            events: None,
        }
    }

    /// # Errors
    /// [`OptionsError`] names the field.
    pub(crate) fn check(&self) -> Result<(), OptionsError> {
        let zero = |field: &str| OptionsError::Zero { field: field.to_owned() };
        if self.groups.is_empty() {
            return Err(zero("groups"));
        }
        for (field, is_zero) in [
            ("hash_tokens", self.hash_tokens == 0),
            ("num_workers", self.num_workers == 0),
            ("offer_chunks_max", self.offer_chunks_max == 0),
            ("load_chunks_max", self.load_chunks_max == 0),
            ("copy_patience", self.copy_patience.is_zero()),
        ] {
            if is_zero {
                return Err(zero(field));
            }
        }
        for (nth, group) in self.groups.iter().enumerate() {
            group.check(nth, self.hash_tokens)?;
        }
        if self.groups.iter().all(|group| group.kind == GroupKind::Window { tokens: 1 }) {
            return Err(OptionsError::NothingToLoad);
        }
        self.step().ok_or(OptionsError::BlocksDoNotMeet)?;
        match self.economy.and_then(|economy| economy.zero_field()) {
            Some(field) => Err(OptionsError::NoRate { field }),
            None => Ok(()),
        }
    }

    /// Whether any number of whole blocks, from the first on, is of use without those behind it.
    pub(crate) fn is_cut_anywhere(&self) -> bool {
        self.groups.iter().all(|group| group.kind == GroupKind::Full)
    }

    /// `to`, if every group can go back to so many tokens from `computed`; else nothing.
    pub(crate) fn go_back(&self, computed: u32, to: u32) -> u32 {
        if self.groups.iter().all(|group| group.can_go_back(computed, to)) { to } else { 0 }
    }

    /// The least number of tokens that is whole blocks in every group.
    pub(crate) fn step(&self) -> Option<u32> {
        self.groups.iter().try_fold(1_u32, |all, group| {
            let common = gcd(all, group.block_tokens);
            (all / common).checked_mul(group.block_tokens)
        })
    }
}

impl GroupOptions {
    fn check(&self, nth: usize, hash_tokens: u32) -> Result<(), OptionsError> {
        let zero = |field: &str| Err(OptionsError::Zero { field: format!("groups[{nth}].{field}") });
        if self.block_tokens == 0 {
            return zero("block_tokens");
        }
        if self.blocks_per_chunk == 0 {
            return zero("blocks_per_chunk");
        }
        if matches!(self.kind, GroupKind::Window { tokens: 0 }) {
            return zero("kind.tokens");
        }
        if !self.block_tokens.is_multiple_of(hash_tokens) {
            return Err(OptionsError::NoMultiple {
                group: nth,
                block_tokens: self.block_tokens,
                hash_tokens,
            });
        }
        if self.block_tokens.checked_mul(self.blocks_per_chunk).is_none() {
            let Self { block_tokens, blocks_per_chunk, .. } = *self;
            return Err(OptionsError::ChunkTooLarge { group: nth, block_tokens, blocks_per_chunk });
        }
        Ok(())
    }
}

fn gcd(a: u32, b: u32) -> u32 {
    if b == 0 { a } else { gcd(b, a % b) }
}
