//! The results as they stand in the report. `docs/POLICIES.md` describes the fields.

use kvo_bench::{Curve, OverlapResult, PolicyResult, PolicySummary, Trace, TwoTierResult};
use serde::Serialize;

use super::run::Ran;
use crate::args::TraceSummary;

#[derive(Debug, Serialize)]
pub(super) struct Results<'a> {
    pub(super) traces: Vec<TraceResults<'a>>,
    pub(super) summary: Vec<PolicySummary>,
    pub(super) overlap_summary: Vec<PolicySummary>,
}

#[derive(Debug, Serialize)]
pub(super) struct TraceResults<'a> {
    trace: TraceSummary,
    cells: Vec<CellRow<'a>>,
    overlap: Vec<OverlapRow<'a>>,
    two_tiers: Vec<TwoTierRow<'a>>,
    curves: &'a [Curve],
}

/// A result, and what follows from it.
#[derive(Debug, Serialize)]
pub(super) struct CellRow<'a> {
    #[serde(flatten)]
    result: &'a PolicyResult,
    hit_percent: f64,
    token_hit_percent: f64,
    /// Chunks stored over different blocks of the trace.
    inserts_per_unique_block: f64,
    stranded_percent_worst: Option<f64>,
    ns_per_access: Option<f64>,
}

#[derive(Debug, Serialize)]
pub(super) struct OverlapRow<'a> {
    #[serde(flatten)]
    result: &'a OverlapResult,
    hit_percent: f64,
    token_hit_percent: f64,
    inserts_per_unique_block: f64,
}

#[derive(Debug, Serialize)]
pub(super) struct TwoTierRow<'a> {
    #[serde(flatten)]
    result: &'a TwoTierResult,
    gpu_hit_percent: f64,
    cpu_hit_percent: f64,
    hit_percent: f64,
    token_hit_percent: f64,
    cpu_inserts_per_unique_block: f64,
}

impl<'a> TraceResults<'a> {
    pub(super) fn of(ran: &'a Ran) -> Self {
        let trace = &ran.plan.trace;
        Self {
            trace: TraceSummary::of(trace),
            cells: ran.results.iter().map(|result| CellRow::of(trace, result)).collect(),
            overlap: ran.overlap.iter().map(|result| OverlapRow::of(trace, result)).collect(),
            two_tiers: ran.two_tiers.iter().map(|result| TwoTierRow::of(trace, result)).collect(),
            curves: &ran.curves,
        }
    }
}

impl<'a> OverlapRow<'a> {
    fn of(trace: &Trace, result: &'a OverlapResult) -> Self {
        Self {
            result,
            hit_percent: percent(result.hits, result.accesses),
            token_hit_percent: percent(result.hit_tokens, result.prompt_tokens),
            inserts_per_unique_block: per_unique_block(trace, result.inserts),
        }
    }
}

impl<'a> TwoTierRow<'a> {
    fn of(trace: &Trace, result: &'a TwoTierResult) -> Self {
        let hit_tokens = result.gpu_hit_tokens + result.cpu_hit_tokens;
        Self {
            result,
            gpu_hit_percent: percent(result.gpu_hits, result.accesses),
            cpu_hit_percent: percent(result.cpu_hits, result.accesses),
            hit_percent: percent(result.gpu_hits + result.cpu_hits, result.accesses),
            token_hit_percent: percent(hit_tokens, result.prompt_tokens),
            cpu_inserts_per_unique_block: per_unique_block(trace, result.cpu_inserts),
        }
    }
}

impl<'a> CellRow<'a> {
    fn of(trace: &Trace, result: &'a PolicyResult) -> Self {
        Self {
            result,
            hit_percent: 100.0 * result.hit_ratio(),
            token_hit_percent: 100.0 * result.token_hit_ratio(),
            inserts_per_unique_block: per_unique_block(trace, result.inserts),
            stranded_percent_worst: result.stranded_worst.map(|worst| worst.percent()),
            ns_per_access: result.ns_per_access(),
        }
    }
}

/// A count over the different blocks of the trace.
pub(super) fn per_unique_block(trace: &Trace, count: u64) -> f64 {
    count as f64 / f64::from(trace.num_unique.max(1))
}

/// A part of a whole that may be nothing.
pub(super) fn percent(part: u64, whole: u64) -> f64 {
    100.0 * part as f64 / whole.max(1) as f64
}
