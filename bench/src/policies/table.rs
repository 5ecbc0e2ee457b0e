//! The results as tables.

use comfy_table::{Cell, Table};
use kvo_bench::{PolicyResult, PolicySummary, Trace, new_table, number_cell};

use super::json::per_unique_block;

pub(super) fn cells(trace: &Trace, results: &[PolicyResult]) -> Table {
    let mut table = new_table([
        "capacity",
        "policy",
        "requests",
        "accesses",
        "hits",
        "hit %",
        "token hit %",
        "inserts",
        "per unique",
        "evictions",
        "stranded %",
        "~ns/access",
        "eviction order",
    ]);
    // A stopped run has cells that never began.
    for result in results.iter().filter(|result| result.requests > 0) {
        table.add_row([
            number_cell(result.capacity),
            Cell::new(&result.policy),
            number_cell(result.requests),
            number_cell(result.accesses),
            number_cell(result.hits),
            number_cell(format!("{:.2}", 100.0 * result.hit_ratio())),
            number_cell(format!("{:.2}", 100.0 * result.token_hit_ratio())),
            number_cell(result.inserts),
            number_cell(format!("{:.2}", per_unique_block(trace, result.inserts))),
            number_cell(result.evictions),
            optional(result.stranded_worst.map(|worst| format!("{:.2}", worst.percent()))),
            optional(result.ns_per_access().map(|ns| format!("{ns:.0}"))),
            Cell::new(result.eviction_order.to_string()),
        ]);
    }
    table
}

pub(super) fn summary(summaries: &[PolicySummary]) -> Table {
    let mut table = new_table([
        "policy",
        "cells",
        "over LRU, geometric mean",
        "worst cell",
        "better by 0.5 %",
        "worse by 0.5 %",
        "over OPT, mean",
    ]);
    for summary in summaries {
        let worst = summary.worst.as_ref();
        table.add_row([
            Cell::new(&summary.policy),
            number_cell(summary.cells),
            number_cell(format!("{:.3}", summary.hits_over_lru_geometric_mean)),
            Cell::new(worst.map_or_else(String::new, |worst| {
                format!("{:.3} ({}, {})", worst.hits_over_lru, worst.trace, worst.capacity)
            })),
            number_cell(summary.cells_better),
            number_cell(summary.cells_worse),
            optional(summary.hits_over_opt_mean.map(|mean| format!("{mean:.3}"))),
        ]);
    }
    table
}

/// A number that may be missing.
pub(super) fn optional(number: Option<String>) -> Cell {
    number_cell(number.unwrap_or_default())
}
