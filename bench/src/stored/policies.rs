//! Reports of `policies`.

use serde::Deserialize;

use super::{StoredResults, StoredTrace};

/// What policies did, by trace.
#[derive(Clone, Debug, Deserialize)]
pub struct PoliciesResults {
    /// By trace.
    pub traces: Vec<PoliciesTrace>,
}

/// What policies did on one trace.
#[derive(Clone, Debug, Deserialize)]
pub struct PoliciesTrace {
    /// The trace.
    pub trace: StoredTrace,
    /// By capacity and policy.
    pub cells: Vec<PoliciesCell>,
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
        for (at, on_trace) in self.traces.iter().enumerate() {
            on_trace.trace.check(&format!("traces[{at}].trace"))?;
            for (cell_at, cell) in on_trace.cells.iter().enumerate() {
                let field = format!("traces[{at}].cells[{cell_at}]");
                if cell.hits > cell.accesses {
                    return Err(format!("{field}.hits: {} of {} accesses", cell.hits, cell.accesses));
                }
                if cell.capacity == 0 {
                    return Err(format!("{field}.capacity: is 0"));
                }
            }
        }
        Ok(())
    }
}
