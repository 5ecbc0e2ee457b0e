//! The figures of policies as tables.

use maud::{Markup, html};

use super::{percent, share_of_opt};
use crate::{
    OverlapCell, PoliciesCell, PoliciesCurve, PoliciesPoint, PoliciesTrace, Share, SummaryRow, TwoTiersCell,
    page::parts::{Cell, table},
};

/// Every table of a trace.
pub(super) fn of_trace(on_trace: &PoliciesTrace) -> Markup {
    let name = |what: &str| format!("{}: {what}", on_trace.trace.name);
    html! {
        (table(&name("policies"), false, &HEADER, &rows(on_trace)))
        @if !on_trace.overlap.is_empty() {
            (table(&name("requests that overlap in virtual time"), false, &OVERLAP, &overlap_rows(&on_trace.overlap)))
        }
        @if !on_trace.two_tiers.is_empty() {
            (table(&name("below an LRU tier of the GPU"), false, &TWO_TIERS, &two_tiers_rows(&on_trace.two_tiers)))
        }
        @if !on_trace.curves.is_empty() {
            (table(&name("points of the curves"), false, &CURVES, &curve_rows(&on_trace.curves)))
        }
    }
}

/// Policies over all traces and capacities; nothing if there is no row.
pub(super) fn summary(caption: &str, rows: &[SummaryRow]) -> Markup {
    const HEADER: [&str; 7] =
        ["policy", "cells", "over lru, geo. mean", "worst cell", "better", "worse", "over opt, mean"];
    let row = |row: &SummaryRow| {
        let worst = row.worst.as_ref().map_or_else(String::new, |worst| {
            format!("{:.3} ({}, {})", worst.hits_over_lru, worst.trace, worst.capacity)
        });
        vec![
            Cell::text(row.policy.as_str()),
            Cell::count(row.cells),
            Cell::decimal(row.hits_over_lru_geometric_mean, 3),
            Cell::text(worst),
            Cell::count(row.cells_better),
            Cell::count(row.cells_worse),
            Cell::maybe(row.hits_over_opt_mean, 3),
        ]
    };
    let rows: Vec<_> = rows.iter().map(row).collect();
    html! { @if !rows.is_empty() { (table(caption, true, &HEADER, &rows)) } }
}

const HEADER: [&str; 11] = [
    "capacity",
    "policy",
    "hits",
    "% of blocks",
    "% of opt",
    "% of tokens",
    "inserts",
    "inserts a block",
    "evictions",
    "stranded %, worst",
    "ns an access",
];

fn rows(on_trace: &PoliciesTrace) -> Vec<Vec<Cell>> {
    let row = |cell: &PoliciesCell| {
        vec![
            Cell::count(cell.capacity),
            Cell::text(cell.policy.as_str()),
            Cell::count(cell.hits),
            Cell::decimal(cell.hit_percent(), 2),
            Cell::maybe(share_of_opt(on_trace, cell), 1),
            Cell::maybe(cell.token_hit_percent, 2),
            Cell::count(cell.inserts),
            Cell::decimal(cell.inserts as f64 / on_trace.trace.unique_blocks.max(1) as f64, 2),
            Cell::count(cell.evictions),
            Cell::maybe(cell.stranded_worst.map(Share::percent), 2),
            Cell::maybe(cell.ns_per_access, 0),
        ]
    };
    on_trace.cells.iter().map(row).collect()
}

const OVERLAP: [&str; 9] = [
    "capacity",
    "policy",
    "hits",
    "% of blocks",
    "inserts",
    "evictions",
    "offers refused",
    "refused offers",
    "most in flight",
];

fn overlap_rows(cells: &[OverlapCell]) -> Vec<Vec<Cell>> {
    let row = |cell: &OverlapCell| {
        vec![
            Cell::count(cell.capacity),
            Cell::text(cell.policy.as_str()),
            Cell::count(cell.hits),
            Cell::decimal(percent(cell.hits, cell.accesses), 2),
            Cell::count(cell.inserts),
            Cell::count(cell.evictions),
            Cell::count(cell.offers_refused),
            Cell::text(cell.refused.as_str()),
            Cell::count(cell.in_flight_peak),
        ]
    };
    cells.iter().map(row).collect()
}

const TWO_TIERS: [&str; 9] = [
    "GPU blocks",
    "CPU chunks",
    "policy",
    "fill",
    "GPU %",
    "CPU %",
    "both %",
    "CPU inserts",
    "CPU evictions",
];

fn two_tiers_rows(cells: &[TwoTiersCell]) -> Vec<Vec<Cell>> {
    let row = |cell: &TwoTiersCell| {
        vec![
            Cell::count(cell.gpu_capacity),
            Cell::count(cell.cpu_capacity),
            Cell::text(cell.policy.as_str()),
            Cell::text(cell.fill.as_str()),
            Cell::decimal(percent(cell.gpu_hits, cell.accesses), 2),
            Cell::decimal(percent(cell.cpu_hits, cell.accesses), 2),
            Cell::decimal(percent(cell.gpu_hits + cell.cpu_hits, cell.accesses), 2),
            Cell::count(cell.cpu_inserts),
            Cell::count(cell.cpu_evictions),
        ]
    };
    cells.iter().map(row).collect()
}

const CURVES: [&str; 6] = ["policy", "method", "capacity", "hit %", "standard error", "exact %"];

fn curve_rows(curves: &[PoliciesCurve]) -> Vec<Vec<Cell>> {
    let of_curve = |curve: &PoliciesCurve| {
        let row = |point: &PoliciesPoint| {
            vec![
                Cell::text(curve.policy.as_str()),
                Cell::text(curve.method.as_str()),
                Cell::count(point.capacity),
                Cell::decimal(point.hit_percent, 2),
                Cell::maybe(point.standard_error, 2),
                Cell::maybe(point.exact_hit_percent, 2),
            ]
        };
        curve.points.iter().map(row).collect::<Vec<_>>()
    };
    curves.iter().flat_map(of_curve).collect()
}
