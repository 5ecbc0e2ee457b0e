//! The results as tables.

use comfy_table::{Cell, Table};
use kvo_bench::{
    Curve, CurveMethod, CurvePoint, OverlapResult, PolicyResult, PolicySummary, Trace, TwoTierResult,
    new_table, number_cell,
};

use super::json::{per_unique_block, percent};

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

pub(super) fn overlap(results: &[OverlapResult]) -> Table {
    let mut table = new_table([
        "capacity",
        "policy",
        "hits",
        "hit %",
        "token hit %",
        "inserts",
        "evictions",
        "offers refused",
        "chunks refused",
        "peak in flight",
        "peak pinned",
    ]);
    for result in results {
        table.add_row([
            number_cell(result.capacity),
            Cell::new(&result.policy),
            number_cell(result.hits),
            two_decimals(percent(result.hits, result.accesses)),
            two_decimals(percent(result.hit_tokens, result.prompt_tokens)),
            number_cell(result.inserts),
            number_cell(result.evictions),
            number_cell(result.offers_refused),
            number_cell(result.chunks_refused),
            number_cell(result.in_flight_peak),
            number_cell(result.pinned_peak),
        ]);
    }
    table
}

pub(super) fn two_tiers(trace: &Trace, results: &[TwoTierResult]) -> Table {
    let mut table = new_table([
        "GPU",
        "CPU",
        "CPU policy",
        "fill",
        "GPU hit %",
        "CPU hit %",
        "hit %",
        "token hit %",
        "CPU inserts",
        "per unique",
    ]);
    for result in results {
        let hit_tokens = result.gpu_hit_tokens + result.cpu_hit_tokens;
        table.add_row([
            number_cell(result.gpu_capacity),
            number_cell(result.cpu_capacity),
            Cell::new(&result.policy),
            Cell::new(result.fill),
            two_decimals(percent(result.gpu_hits, result.accesses)),
            two_decimals(percent(result.cpu_hits, result.accesses)),
            two_decimals(percent(result.gpu_hits + result.cpu_hits, result.accesses)),
            two_decimals(percent(hit_tokens, result.prompt_tokens)),
            number_cell(result.cpu_inserts),
            two_decimals(per_unique_block(trace, result.cpu_inserts)),
        ]);
    }
    table
}

/// A column a curve. All curves of a trace have the same capacities.
pub(super) fn curves(curves: &[Curve]) -> Table {
    let mut table = new_table([]);
    let name = |curve: &Curve| match curve.method {
        CurveMethod::Exact => format!("{}, exact", curve.policy),
        _ => format!("{}, sampled", curve.policy),
    };
    table.set_header(["capacity".to_owned()].into_iter().chain(curves.iter().map(name)));
    let point = |point: &CurvePoint| match point.standard_error {
        Some(error) => format!("{:.2} +- {error:.2}", point.hit_percent),
        None => format!("{:.2}", point.hit_percent),
    };
    let capacities = curves.first().map_or(&[][..], |curve| &curve.points).iter().map(|point| point.capacity);
    for (at, capacity) in capacities.enumerate() {
        let cells = curves.iter().map(|curve| number_cell(point(&curve.points[at])));
        table.add_row([number_cell(capacity)].into_iter().chain(cells));
    }
    table
}

/// A line a sampled curve: what its samples say of its error, and what the truth does.
pub(super) fn curve_errors(curves: &[Curve]) -> Table {
    let mut table = new_table([
        "sampled curve",
        "by",
        "samples",
        "of the blocks",
        "mean standard error",
        "points with the truth",
        "mean error",
        "largest error",
    ]);
    for curve in curves {
        let (by, sample_rate, samples) = match curve.method {
            CurveMethod::Exact => continue,
            CurveMethod::SampledDistances { sample_rate, samples } => ("distances", sample_rate, samples),
            CurveMethod::SampledMiniatures { sample_rate, samples } => ("miniatures", sample_rate, samples),
        };
        let errors = curve.points.iter().filter_map(|point| point.standard_error);
        let mean = errors.sum::<f64>() / curve.points.len().max(1) as f64;
        let error = curve.error;
        table.add_row([
            Cell::new(&curve.policy),
            Cell::new(by),
            number_cell(samples),
            number_cell(sample_rate),
            two_decimals(mean),
            number_cell(error.map_or(0, |error| error.points)),
            optional(error.map(|error| format!("{:.2}", error.mean_abs))),
            optional(error.map(|error| format!("{:.2}", error.max_abs))),
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

fn two_decimals(number: f64) -> Cell {
    number_cell(format!("{number:.2}"))
}

/// A number that may be missing.
fn optional(number: Option<String>) -> Cell {
    number_cell(number.unwrap_or_default())
}
