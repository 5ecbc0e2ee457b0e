//! Requests, and what comes of them.

use kvo_core::{BlockHash, RequestId};

use super::{BlockTable, hash, offload::RequestView, sampling::Sampling};

/// What an engine is asked for.
#[derive(Clone, Debug, PartialEq)]
pub struct NewRequest {
    /// The tokens to go on from.
    pub prompt: Vec<u32>,
    /// Tokens to generate at most.
    pub max_tokens: u32,
    /// How they are chosen.
    pub sampling: Sampling,
    /// Tokens behind which the answer ends; they are part of it.
    pub stop: Vec<u32>,
    /// Goes into the names of blocks: requests of different salts share none.
    pub salt: u64,
}

impl NewRequest {
    /// A greedy one without stop tokens and salt.
    pub fn new(prompt: Vec<u32>, max_tokens: u32) -> Self {
        Self { prompt, max_tokens, sampling: Sampling::Greedy, stop: Vec::new(), salt: 0 }
    }
}

/// Why an answer has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FinishReason {
    /// It has as many tokens as were asked for.
    Length,
    /// A stop token came.
    Stop,
    /// It was aborted.
    Aborted,
}

/// Where the keys and values of a request came from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Hits {
    /// Tokens of the prompt.
    pub prompt_tokens: u64,
    /// Tokens that were computed, again after a preemption too.
    pub computed_tokens: u64,
    /// Tokens that were found on the device, again after a preemption too.
    pub device_tokens: u64,
    /// Tokens that were loaded.
    pub loaded_tokens: u64,
    /// Tokens that were to be loaded, and were not.
    pub failed_tokens: u64,
    /// How often it was preempted.
    pub preemptions: u32,
}

/// What came of a request.
#[derive(Clone, Debug, PartialEq)]
pub struct Output {
    /// The request.
    pub request: RequestId,
    /// The answer.
    pub tokens: Vec<u32>,
    /// Why it has ended.
    pub reason: FinishReason,
    /// Where keys and values came from.
    pub hits: Hits,
    /// The logits that each token of the answer was chosen by, where the engine
    /// [keeps](crate::EngineOptions::keep_logits) them.
    pub logits: Vec<Vec<f32>>,
}

/// A request that is not over.
#[derive(Debug)]
pub(super) struct Request {
    pub(super) id: RequestId,
    /// Prompt and answer.
    pub(super) tokens: Vec<u32>,
    pub(super) prompt_tokens: usize,
    pub(super) max_tokens: usize,
    pub(super) sampling: Sampling,
    pub(super) stop: Vec<u32>,
    pub(super) salt: u64,
    /// Of each full block of `tokens`.
    pub(super) hashes: Vec<BlockHash>,
    /// Tokens whose keys and values are in its blocks.
    pub(super) computed: usize,
    /// By group.
    pub(super) tables: Vec<BlockTable>,
    pub(super) hits: Hits,
    pub(super) logits: Vec<Vec<f32>>,
}

impl Request {
    pub(super) fn new(id: RequestId, new: NewRequest, block_tokens: u32) -> Self {
        let prompt_tokens = new.prompt.len();
        let mut request = Self {
            id,
            tokens: new.prompt,
            prompt_tokens,
            max_tokens: new.max_tokens as usize,
            sampling: new.sampling,
            stop: new.stop,
            salt: new.salt,
            hashes: Vec::new(),
            computed: 0,
            tables: Vec::new(),
            hits: Hits { prompt_tokens: prompt_tokens as u64, ..Hits::default() },
            logits: Vec::new(),
        };
        request.extend_hashes(block_tokens);
        request
    }

    fn extend_hashes(&mut self, block_tokens: u32) {
        hash::extend(&mut self.hashes, &self.tokens, block_tokens, self.salt);
    }

    /// Takes a token that was chosen, and says whether the answer has ended.
    pub(super) fn push(&mut self, token: u32, block_tokens: u32) -> Option<FinishReason> {
        self.tokens.push(token);
        self.extend_hashes(block_tokens);
        if self.stop.contains(&token) {
            Some(FinishReason::Stop)
        } else if self.tokens.len() - self.prompt_tokens >= self.max_tokens {
            Some(FinishReason::Length)
        } else {
            None
        }
    }

    pub(super) fn view(&self) -> RequestView<'_> {
        RequestView {
            id: self.id,
            tokens: &self.tokens,
            prompt_tokens: self.prompt_tokens,
            hashes: &self.hashes,
            salt: self.salt,
            computed: self.computed,
            tables: &self.tables,
        }
    }

    pub(super) fn into_output(mut self, reason: FinishReason) -> Output {
        let tokens = self.tokens.split_off(self.prompt_tokens);
        Output { request: self.id, tokens, reason, hits: self.hits, logits: self.logits }
    }
}
