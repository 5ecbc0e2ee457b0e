//! Policies against LRU and the optimum, over all cells of all traces.

use serde::Serialize;

use crate::{Contender, OverlapResult, PolicyResult};

/// A cell is better or worse than LRU's if it differs by more than this.
const NOTABLE: f64 = 0.005;

/// How one policy did over all traces and capacities.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PolicySummary {
    /// The policy's name.
    pub policy: String,
    /// Cells that were compared: those in which LRU hit anything.
    pub cells: usize,
    /// Its hits over LRU's: the geometric mean of the cells.
    pub hits_over_lru_geometric_mean: f64,
    /// The cell in which it did worst; none of LRU itself.
    pub worst: Option<WorstCell>,
    /// Cells in which it has more hits than LRU, by more than 0.5 %.
    pub cells_better: usize,
    /// Cells in which it has fewer, by more than 0.5 %.
    pub cells_worse: usize,
    /// Its hits over the optimum's: the mean of the cells of which the optimum ran too and hit anything.
    pub hits_over_opt_mean: Option<f64>,
}

/// A cell, and how it compares with LRU's.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct WorstCell {
    /// The trace's name.
    pub trace: String,
    /// Slots.
    pub capacity: u32,
    /// Hits over LRU's.
    pub hits_over_lru: f64,
}

/// What is compared of a result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CellHits<'a> {
    /// The policy's name.
    pub policy: &'a str,
    /// Slots.
    pub capacity: u32,
    /// Blocks that were hit.
    pub hits: u64,
}

impl<'a> From<&'a PolicyResult> for CellHits<'a> {
    fn from(result: &'a PolicyResult) -> Self {
        Self { policy: &result.policy, capacity: result.capacity, hits: result.hits }
    }
}

impl<'a> From<&'a OverlapResult> for CellHits<'a> {
    fn from(result: &'a OverlapResult) -> Self {
        Self { policy: &result.policy, capacity: result.capacity, hits: result.hits }
    }
}

/// Summarises the results of each trace, named beside them: a line a policy, in the order in which they first appear.
///
/// Nothing if LRU is not among them.
pub fn summarise(traces: &[(&str, Vec<CellHits<'_>>)]) -> Vec<PolicySummary> {
    let lru = Contender::Policy(kvo_policies::PolicyKind::Lru).to_string();
    let opt = Contender::Opt.to_string();
    let mut policies: Vec<&str> = Vec::new();
    for result in traces.iter().flat_map(|(_, results)| results) {
        if !policies.contains(&result.policy) {
            policies.push(result.policy);
        }
    }
    if !policies.contains(&lru.as_str()) {
        return Vec::new();
    }
    policies.into_iter().map(|policy| summary(traces, policy, &lru, &opt)).collect()
}

fn summary(traces: &[(&str, Vec<CellHits<'_>>)], policy: &str, lru: &str, opt: &str) -> PolicySummary {
    let (mut over_lru, mut over_opt) = (Vec::new(), Vec::new());
    for (name, results) in traces {
        for cell in results.iter().filter(|result| result.policy == policy) {
            let hits_of = |other: &str| {
                let of = |result: &&CellHits<'_>| result.policy == other && result.capacity == cell.capacity;
                results.iter().find(of).map(|result| result.hits).filter(|hits| *hits > 0)
            };
            let over = |hits: u64| cell.hits as f64 / hits as f64;
            if let Some(hits_over_lru) = hits_of(lru).map(over) {
                over_lru.push(WorstCell {
                    trace: (*name).to_owned(),
                    capacity: cell.capacity,
                    hits_over_lru,
                });
            }
            over_opt.extend(hits_of(opt).map(over));
        }
    }
    let ratios = || over_lru.iter().map(|cell| cell.hits_over_lru);
    let mean = |sum: f64, count: usize| sum / count.max(1) as f64;
    let worst = over_lru.iter().min_by(|a, b| a.hits_over_lru.total_cmp(&b.hits_over_lru));
    PolicySummary {
        policy: policy.to_owned(),
        cells: over_lru.len(),
        hits_over_lru_geometric_mean: mean(ratios().map(f64::ln).sum(), over_lru.len()).exp(),
        worst: worst.filter(|_| policy != lru).cloned(),
        cells_better: ratios().filter(|ratio| *ratio > 1.0 + NOTABLE).count(),
        cells_worse: ratios().filter(|ratio| *ratio < 1.0 - NOTABLE).count(),
        hits_over_opt_mean: (!over_opt.is_empty()).then(|| mean(over_opt.iter().sum(), over_opt.len())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cell(policy: &str, capacity: u32, hits: u64) -> CellHits<'_> {
        CellHits { policy, capacity, hits }
    }

    #[test]
    fn a_policy_is_measured_by_lru_and_the_optimum_cell_by_cell() {
        let a = vec![cell("lru", 8, 100), cell("aslru", 8, 200), cell("opt", 8, 400)];
        let b = vec![
            cell("lru", 8, 200),
            cell("aslru", 8, 100),
            cell("lru", 9, 1000),
            cell("aslru", 9, 1005),
            cell("aslru", 10, 7),
        ];
        let summaries = summarise(&[("a", a), ("b", b)]);
        assert_eq!(summaries.iter().map(|s| s.policy.as_str()).collect::<Vec<_>>(), ["lru", "aslru", "opt"]);
        let aslru = &summaries[1];
        // 2, 1/2 and 1.005: their geometric mean is the cube root of 1.005. At 10 there is no LRU to compare with.
        assert!((aslru.hits_over_lru_geometric_mean - 1.005_f64.cbrt()).abs() < 1e-12);
        assert_eq!((aslru.cells, aslru.cells_better, aslru.cells_worse), (3, 1, 1));
        assert_eq!(aslru.worst, Some(WorstCell { trace: "b".to_owned(), capacity: 8, hits_over_lru: 0.5 }));
        assert_eq!(aslru.hits_over_opt_mean, Some(0.5));
        assert_eq!(
            summaries[0],
            PolicySummary {
                policy: "lru".to_owned(),
                cells: 3,
                hits_over_lru_geometric_mean: 1.0,
                worst: None,
                cells_better: 0,
                cells_worse: 0,
                hits_over_opt_mean: Some(0.25),
            }
        );
    }

    #[test]
    fn cells_without_a_hit_of_lru_are_left_out() {
        let results = vec![cell("lru", 8, 0), cell("fifo", 8, 3)];
        let without_lru = results[1..].to_vec();
        let summaries = summarise(&[("a", results)]);
        assert_eq!((summaries[1].cells, summaries[1].worst.clone()), (0, None));
        assert!(summarise(&[("a", without_lru)]).is_empty(), "nothing to compare with");
    }
}
