//! How an engine is made.

use std::time::Duration;

use kvo_cuda::LinkModel;

use crate::{EngineError, KvLayout};

/// How an engine is made.
#[derive(Clone, Debug, PartialEq)]
pub struct EngineOptions {
    /// Tokens a block.
    pub block_tokens: u32,
    /// Blocks of each KV cache group.
    pub num_blocks: u32,
    /// How blocks lie on the device.
    pub layout: KvLayout,
    /// Tokens that a step computes at most.
    pub step_tokens: u32,
    /// Requests that run, or wait for a load, at once.
    pub requests_max: usize,
    /// Threads that compute. They change no bit of any result.
    pub threads: usize,
    /// How long a step may wait for compute, or for copies that it depends on.
    pub step_timeout: Duration,
    /// How long a step that can compute nothing waits for copies, or for what the offload does besides.
    pub patience: Duration,
    /// How fast copies are; without it they take the time that they take.
    pub link: Option<LinkModel>,
    /// Whether the device looks for [races](kvo_cuda::Race).
    pub detect_races: bool,
    /// Whether [outputs](crate::Output) have the logits behind each of their tokens.
    pub keep_logits: bool,
    /// The order in which blocks are first given out: shuffled by this seed, or ascending.
    pub block_seed: Option<u64>,
}

impl Default for EngineOptions {
    /// 256 blocks of 16 tokens, an arena a layer, 256 tokens a step, 32 requests, one thread, a minute for a step, no
    /// detector.
    fn default() -> Self {
        Self {
            block_tokens: 16,
            num_blocks: 256,
            layout: KvLayout::LayerFirst,
            step_tokens: 256,
            requests_max: 32,
            threads: 1,
            step_timeout: Duration::from_mins(1),
            patience: Duration::from_millis(1),
            link: None,
            detect_races: false,
            keep_logits: false,
            block_seed: None,
        }
    }
}

impl EngineOptions {
    pub(crate) fn check(&self) -> Result<(), EngineError> {
        for (field, zero) in [
            ("block_tokens", self.block_tokens == 0),
            ("num_blocks", self.num_blocks == 0),
            ("step_tokens", self.step_tokens == 0),
            ("requests_max", self.requests_max == 0),
            ("threads", self.threads == 0),
        ] {
            if zero {
                return Err(EngineError::Zero { field });
            }
        }
        Ok(())
    }
}
