//! The results as they stand in the report. `docs/POLICIES.md` describes the fields.

use kvo_bench::{PolicyResult, PolicySummary, Trace};
use serde::Serialize;

use super::Ran;
use crate::args::TraceSummary;

#[derive(Debug, Serialize)]
pub(super) struct Results<'a> {
    pub(super) traces: Vec<TraceResults<'a>>,
    pub(super) summary: Vec<PolicySummary>,
}

#[derive(Debug, Serialize)]
pub(super) struct TraceResults<'a> {
    trace: TraceSummary,
    cells: Vec<CellRow<'a>>,
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

impl<'a> TraceResults<'a> {
    pub(super) fn of(ran: &'a Ran) -> Self {
        let cells = ran.results.iter().map(|result| CellRow::of(&ran.trace, result)).collect();
        Self { trace: TraceSummary::of(&ran.trace), cells }
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
