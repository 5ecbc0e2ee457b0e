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
    #[command(flatten)]
    read: ReadArgs,
}

/// Which traces to run on.
#[derive(Debug, Args)]
pub(crate) struct TracesArgs {
    /// The traces, with commas between them or a flag each: files in Mooncake or Bailian form (JSON Lines; plain, gzip
    /// or zstd; no comma in the name), or generated traffic as synth:REQUESTS:SEED
    #[arg(long, value_name = "FILE|SYNTH,...", value_delimiter = ',', default_values_t = [TraceSource::default()])]
    trace: Vec<TraceSource>,
    #[command(flatten)]
    read: ReadArgs,
}

/// What a trace's file does not say.
#[derive(Debug, Args)]
struct ReadArgs {
    /// Tokens a block of the file [default: 512 for the Mooncake form, 16 for Bailian]
    #[arg(long, value_name = "N")]
    block_tokens: Option<NonZeroU32>,
    /// Unit of the file's timestamps [default: ms for the Mooncake form, s for Bailian]
    #[arg(long, value_name = "UNIT")]
    time_unit: Option<TimeUnit>,
}

/// A trace in a report.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct TraceSummary {
    pub(crate) name: String,
    pub(crate) block_tokens: u32,
    pub(crate) requests: usize,
    pub(crate) accesses: u64,
    pub(crate) unique_blocks: u32,
    pub(crate) fingerprint: kvo_bench::Fingerprint,
}

impl TraceArgs {
    /// Generates or reads the trace.
    pub(crate) fn load(&self) -> anyhow::Result<Trace> {
        self.read.load(&self.trace)
    }
}

impl TracesArgs {
    /// Generates or reads the traces, in the order in which they were named.
    pub(crate) fn load(&self) -> anyhow::Result<Vec<Trace>> {
        for (at, source) in self.trace.iter().enumerate() {
            if self.trace[..at].contains(source) {
                bail!("--trace names {source} twice: name each trace once, or it counts twice");
            }
        }
        self.trace.iter().map(|source| self.read.load(source)).collect()
    }
}

impl ReadArgs {
    fn load(&self, source: &TraceSource) -> anyhow::Result<Trace> {
        let options = ReadOptions { block_tokens: self.block_tokens, time_unit: self.time_unit };
        if matches!(source, TraceSource::Synth { .. }) && options != ReadOptions::default() {
            bail!(
                "--block-tokens and --time-unit say how to read a file, but --trace {source} is generated: leave them \
                 out"
            );
        }
        Ok(source.load(options)?)
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
