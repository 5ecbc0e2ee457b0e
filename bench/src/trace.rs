//! Request traces: generated, or read from a file.
//!
//! A trace is a list of requests in order of arrival, each with the blocks of its input, head to tail. Blocks are
//! numbered densely by first appearance, whatever the file called them, so that a block's number can index an
//! array and a trace has one [`fingerprint`](Trace::fingerprint) however it was stored.

mod decompress;
mod error;
mod numbering;
mod read;
mod record;
mod source;
mod synth;

#[cfg(any(test, kvo_fuzzing))]
pub(crate) use self::read::read;
pub use self::{
    error::{LineError, TraceError},
    read::{ReadOptions, TimeUnit, read_trace},
    source::TraceSource,
    synth::{SYNTH_BLOCK_TOKENS, kvo_synth},
};

use crate::Fingerprint;

/// Requests in order of arrival.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trace {
    /// Where it came from: `synth:4000:42`, or the name of the file.
    pub name: String,
    /// Tokens a block; the last block of a request may stand for fewer.
    pub block_tokens: u32,
    /// The requests; never empty for a trace that was read from a file.
    pub requests: Vec<TraceRequest>,
    /// Number of different blocks: every block is numbered below it.
    pub num_unique: u32,
}

/// One request of a trace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TraceRequest {
    /// Microseconds from the start of the trace's clock to the arrival; never less than the request before.
    pub arrival_us: u64,
    /// Tokens of the input.
    pub input_tokens: u32,
    /// Tokens of the output; traces name no blocks for them.
    pub output_tokens: u32,
    /// The blocks of the input, head to tail: equal numbers mean equal content after an equal prefix.
    ///
    /// A file may name a block twice in one request, which prefix-chained ids cannot mean; such repeats are kept as
    /// they stand.
    pub blocks: Vec<u32>,
}

impl TraceRequest {
    /// The tokens in its first `blocks` blocks of `block_tokens` each: all of the input, at most.
    ///
    /// A last block that stands for fewer tokens counts for those; tokens of the input beyond the last block are in
    /// none.
    pub fn tokens_of(&self, blocks: usize, block_tokens: u32) -> u64 {
        (blocks as u64 * u64::from(block_tokens)).min(self.input_tokens.into())
    }
}

impl Trace {
    /// Number of blocks that the requests name, repeats included.
    pub fn num_accesses(&self) -> u64 {
        self.requests.iter().map(|request| request.blocks.len() as u64).sum()
    }

    /// Hash over the number of blocks and the blocks of each request.
    pub fn fingerprint(&self) -> Fingerprint {
        let mut fingerprint = Fingerprint::EMPTY;
        for request in &self.requests {
            fingerprint.push(u32::try_from(request.blocks.len()).unwrap_or(u32::MAX));
            fingerprint.extend(request.blocks.iter().copied());
        }
        fingerprint
    }
}
