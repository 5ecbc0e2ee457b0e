//! Reports of `policies`.

use serde::Deserialize;

use super::{StoredResults, StoredTrace, check_amount};

/// What policies did, by trace.
#[derive(Clone, Debug, Deserialize)]
pub struct PoliciesResults {
    /// By trace.
    pub traces: Vec<PoliciesTrace>,
    /// Policies over all traces, if that was worked out.
    #[serde(default)]
    pub summary: Vec<SummaryRow>,
    /// The same of requests that overlap.
    #[serde(default)]
    pub overlap_summary: Vec<SummaryRow>,
}

/// A policy against LRU and the optimum, over all cells.
#[derive(Clone, Debug, Deserialize)]
pub struct SummaryRow {
    /// The policy's name, with its options.
    pub policy: String,
    /// Cells that were compared.
    pub cells: u64,
    /// Its hits over LRU's.
    pub hits_over_lru_geometric_mean: f64,
    /// Cells in which it is notably better.
    pub cells_better: u64,
    /// Cells in which it is notably worse.
    pub cells_worse: u64,
    /// Its hits over the optimum's.
    pub hits_over_opt_mean: Option<f64>,
    /// The cell in which it did worst.
    pub worst: Option<SummaryWorst>,
}

/// The cell in which a policy did worst.
#[derive(Clone, Debug, Deserialize)]
pub struct SummaryWorst {
    /// The trace's name.
    pub trace: String,
    /// Slots of the tier.
    pub capacity: u64,
    /// Its hits over LRU's.
    pub hits_over_lru: f64,
}

/// What policies did on one trace.
#[derive(Clone, Debug, Deserialize)]
pub struct PoliciesTrace {
    /// The trace.
    pub trace: StoredTrace,
    /// By capacity and policy.
    pub cells: Vec<PoliciesCell>,
    /// Of requests that overlap, if that was run.
    #[serde(default)]
    pub overlap: Vec<OverlapCell>,
    /// Below a tier of the GPU, if that was run.
    #[serde(default)]
    pub two_tiers: Vec<TwoTiersCell>,
    /// Hits against capacity, if that was run.
    #[serde(default)]
    pub curves: Vec<PoliciesCurve>,
}

/// A policy at a capacity.
#[derive(Clone, Debug, Deserialize)]
pub struct PoliciesCell {
    /// The policy's name, with its options.
    pub policy: String,
    /// Slots of the tier.
    pub capacity: u64,
    /// Requests served.
    pub requests: u64,
    /// Blocks that they named.
    pub accesses: u64,
    /// Blocks that were found.
    pub hits: u64,
    /// Chunks stored.
    pub inserts: u64,
    /// Chunks evicted.
    pub evictions: u64,
    /// A hash over the evicted, in order.
    pub eviction_order: String,
    /// The largest share that was behind a missing head.
    pub stranded_worst: Option<Share>,
    /// Tokens in the blocks that were found, in percent of all.
    pub token_hit_percent: Option<f64>,
    /// Time of the tier's calls an access, roughly.
    pub ns_per_access: Option<f64>,
}

/// A policy at a capacity, on requests that overlap.
#[derive(Clone, Debug, Deserialize)]
pub struct OverlapCell {
    /// The policy's name, with its options.
    pub policy: String,
    /// Slots of the tier.
    pub capacity: u64,
    /// What becomes of an offer that is refused, where the run says so.
    #[serde(default)]
    pub refused: String,
    /// Requests that have arrived.
    pub requests: u64,
    /// Blocks that they named.
    pub accesses: u64,
    /// Blocks that were found.
    pub hits: u64,
    /// Chunks stored.
    pub inserts: u64,
    /// Chunks evicted.
    pub evictions: u64,
    /// Offers refused for want of room.
    pub offers_refused: u64,
    /// The most requests that ran at a time.
    pub in_flight_peak: u64,
}

/// A policy below a tier of the GPU.
#[derive(Clone, Debug, Deserialize)]
pub struct TwoTiersCell {
    /// The policy's name, with its options.
    pub policy: String,
    /// How the CPU tier was filled.
    pub fill: String,
    /// Blocks of the GPU tier.
    pub gpu_capacity: u64,
    /// Slots of the CPU tier.
    pub cpu_capacity: u64,
    /// Requests served.
    pub requests: u64,
    /// Blocks that they named.
    pub accesses: u64,
    /// Blocks found in the GPU tier.
    pub gpu_hits: u64,
    /// Blocks found in the CPU tier.
    pub cpu_hits: u64,
    /// Chunks stored in the CPU tier.
    pub cpu_inserts: u64,
    /// Chunks evicted from it.
    pub cpu_evictions: u64,
}

/// A policy's hits against capacity.
#[derive(Clone, Debug, Deserialize)]
pub struct PoliciesCurve {
    /// The policy's name.
    pub policy: String,
    /// How it was found: `exact`, or from samples.
    pub method: String,
    /// By capacity.
    pub points: Vec<PoliciesPoint>,
}

/// A point of a curve.
#[derive(Clone, Copy, Debug, Deserialize)]
pub struct PoliciesPoint {
    /// Slots of the tier.
    pub capacity: u64,
    /// Hits in percent of the accesses.
    pub hit_percent: f64,
    /// Of a sampled curve, the standard error in percentage points.
    pub standard_error: Option<f64>,
    /// Of a sampled curve, the truth, where it is known.
    pub exact_hit_percent: Option<f64>,
}

/// Chunks that are behind a missing head.
#[derive(Clone, Copy, Debug, Deserialize)]
pub struct Share {
    /// How many they are.
    pub chunks: u64,
    /// Of how many.
    pub resident: u64,
}

impl PoliciesCell {
    /// Hits in percent of the accesses.
    pub fn hit_percent(&self) -> f64 {
        100.0 * self.hits as f64 / self.accesses.max(1) as f64
    }
}

impl Share {
    /// Their share of the resident chunks, in percent.
    pub fn percent(self) -> f64 {
        100.0 * self.chunks as f64 / self.resident.max(1) as f64
    }
}

impl StoredResults for PoliciesResults {
    const COMMANDS: &'static [&'static str] = &["policies"];

    fn check(&self) -> Result<(), String> {
        self.traces.iter().enumerate().try_for_each(|(at, trace)| trace.check(&format!("traces[{at}]")))
    }
}

impl PoliciesTrace {
    fn check(&self, field: &str) -> Result<(), String> {
        self.trace.check(&format!("{field}.trace"))?;
        for (at, cell) in self.cells.iter().enumerate() {
            let field = format!("{field}.cells[{at}]");
            check_hits(&field, "hits", cell.hits, cell.accesses)?;
            check_capacity(&field, cell.capacity)?;
            check_amount(&format!("{field}.ns_per_access"), cell.ns_per_access.unwrap_or_default())?;
            check_percent(&format!("{field}.token_hit_percent"), cell.token_hit_percent.unwrap_or_default())?;
        }
        for (at, cell) in self.overlap.iter().enumerate() {
            let field = format!("{field}.overlap[{at}]");
            check_hits(&field, "hits", cell.hits, cell.accesses)?;
            check_capacity(&field, cell.capacity)?;
        }
        for (at, cell) in self.two_tiers.iter().enumerate() {
            let field = format!("{field}.two_tiers[{at}]");
            check_hits(&field, "gpu_hits", cell.gpu_hits, cell.accesses)?;
            // What is left cannot overflow.
            check_hits(&field, "cpu_hits", cell.cpu_hits, cell.accesses - cell.gpu_hits)?;
        }
        for (at, curve) in self.curves.iter().enumerate() {
            for (point_at, point) in curve.points.iter().enumerate() {
                let field = format!("{field}.curves[{at}].points[{point_at}]");
                check_capacity(&field, point.capacity)?;
                check_percent(&format!("{field}.hit_percent"), point.hit_percent)?;
                check_amount(&format!("{field}.standard_error"), point.standard_error.unwrap_or_default())?;
            }
        }
        Ok(())
    }
}

fn check_hits(field: &str, name: &str, hits: u64, accesses: u64) -> Result<(), String> {
    if hits > accesses { Err(format!("{field}.{name}: {hits} of {accesses} accesses")) } else { Ok(()) }
}

fn check_capacity(field: &str, capacity: u64) -> Result<(), String> {
    if capacity == 0 { Err(format!("{field}.capacity: is 0")) } else { Ok(()) }
}

/// Samples may estimate some more than all.
fn check_percent(field: &str, percent: f64) -> Result<(), String> {
    if (0.0..=200.0).contains(&percent) { Ok(()) } else { Err(format!("{field}: {percent} % cannot be")) }
}
