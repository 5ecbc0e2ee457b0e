//! Flags that several commands have.

use std::num::NonZeroU32;

use anyhow::bail;
use clap::Args;
use kvo_bench::{ReadOptions, TimeUnit, Trace, TraceSource};
use serde::Serialize;

/// Which trace to run on.
#[derive(Debug, Args)]
pub(crate) struct TraceArgs {
    /// The trace: a file in Mooncake or Bailian form (JSON Lines; plain, gzip or zstd), or generated traffic as
    /// synth:REQUESTS:SEED
    #[arg(long, value_name = "FILE|SYNTH", default_value_t)]
    trace: TraceSource,
    /// Tokens a block of the file [default: 512 for the Mooncake form, 16 for Bailian]
    #[arg(long, value_name = "N")]
    block_tokens: Option<NonZeroU32>,
    /// Unit of the file's timestamps [default: ms for the Mooncake form, s for Bailian]
    #[arg(long, value_name = "UNIT")]
    time_unit: Option<TimeUnit>,
}

/// A trace in a report.
#[derive(Debug, Serialize)]
pub(crate) struct TraceSummary {
    name: String,
    block_tokens: u32,
    requests: usize,
    accesses: u64,
    unique_blocks: u32,
    fingerprint: kvo_bench::Fingerprint,
}

impl TraceArgs {
    /// Generates or reads the trace.
    pub(crate) fn load(&self) -> anyhow::Result<Trace> {
        let options = ReadOptions { block_tokens: self.block_tokens, time_unit: self.time_unit };
        if matches!(self.trace, TraceSource::Synth { .. }) && options != ReadOptions::default() {
            bail!(
                "--block-tokens and --time-unit say how to read a file, but --trace {} is generated: leave them out",
                self.trace
            );
        }
        Ok(self.trace.load(options)?)
    }
}

impl TraceSummary {
    pub(crate) fn of(trace: &Trace) -> Self {
        Self {
            name: trace.name.clone(),
            block_tokens: trace.block_tokens,
            requests: trace.requests.len(),
            accesses: trace.num_accesses(),
            unique_blocks: trace.num_unique,
            fingerprint: trace.fingerprint(),
        }
    }
}

impl std::fmt::Display for TraceSummary {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { name, block_tokens, requests, accesses, unique_blocks, fingerprint } = self;
        write!(
            f,
            "{name}: {requests} requests, {accesses} blocks of {block_tokens} tokens, {unique_blocks} different, \
             fingerprint {fingerprint}"
        )
    }
}
