//! Eviction policies: hits against capacity, a line a policy, with the optimum as the ceiling.

use maud::{Markup, html};

use super::{
    parts::{Cell, table},
    plot::{Axis, Line, Lines, Swatch, colour_of, figure, legend},
};
use crate::{OverlapCell, PoliciesCell, PoliciesCurve, PoliciesResults, PoliciesTrace, Stored, TwoTiersCell};

const SIZE: (u32, u32) = (540, 340);
const CEILING: &str = "opt";
const CAPACITY: &str = "chunks of the tier";

pub(super) fn section(report: &Stored<PoliciesResults>) -> anyhow::Result<Markup> {
    let traces = report.results.traces.iter().map(of_trace).collect::<anyhow::Result<Vec<_>>>()?;
    Ok(html! {
        p class="note" {
            strong { "Simulated: " }
            "the shipping policies and CPU tier serve requests one after the other, as the trace names them; no bytes \
             move, and no GPU runs. opt (Belady's optimum with bypass) knows the future: no policy can hit more."
        }
        @for on_trace in traces { (on_trace) }
    })
}

fn of_trace(on_trace: &PoliciesTrace) -> anyhow::Result<Markup> {
    let trace = &on_trace.trace;
    let names = policies(on_trace);
    let number =
        |name: &str| names.iter().filter(|other| **other != CEILING).position(|other| *other == name);
    let key = |name: &&str| {
        let swatch = number(name).map_or(Swatch::Ceiling, |number| Swatch::Line(colour_of(number), number));
        ((*name).to_owned(), swatch)
    };
    let keys: Vec<_> = names.iter().map(key).collect();
    let line = |name: &&str, value: &dyn Fn(&PoliciesCell) -> Option<f64>| {
        let of_policy = on_trace.cells.iter().filter(|cell| cell.policy == *name);
        let mut points: Vec<_> =
            of_policy.filter_map(|cell| Some((cell.capacity as f64, value(cell)?))).collect();
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
        Line { number: number(name), points }
    };
    let lines = |value: &dyn Fn(&PoliciesCell) -> Option<f64>| -> Vec<_> {
        names.iter().map(|name| line(name, value)).filter(|line| !line.points.is_empty()).collect()
    };
    let hits = lines(&|cell| Some(cell.hit_percent()));
    let of_opt = lines(&|cell| share_of_opt(on_trace, cell).filter(|_| cell.policy != CEILING));
    let curves = curve_lines(&on_trace.curves, number);
    Ok(html! {
        h3 { (trace.name) }
        p {
            (trace.requests) " requests, " (trace.accesses) " blocks of " (trace.block_tokens) " tokens, "
            (trace.unique_blocks) " different, fingerprint " code { (trace.fingerprint) }
        }
        (legend(&keys)?)
        div class="plots wide" {
            (plot("Hits, % of blocks", &format!("{}: hits against capacity (simulated)", trace.name), hits)?)
            @if !of_opt.is_empty() {
                (plot("Hits, % of the optimum's", &format!("{}: hits over the optimum's (simulated)", trace.name), of_opt)?)
            }
            @if !curves.is_empty() {
                (plot("Hit curve, % of blocks", &format!("{}: curves of hits against capacity (simulated)", trace.name), curves)?)
            }
        }
        (table(&format!("{}: policies", trace.name), false, &HEADER, &rows(on_trace)))
        @if !on_trace.overlap.is_empty() {
            (table(&format!("{}: requests that overlap in virtual time", trace.name), false, &OVERLAP, &overlap_rows(&on_trace.overlap)))
        }
        @if !on_trace.two_tiers.is_empty() {
            (table(&format!("{}: below an LRU tier of the GPU", trace.name), false, &TWO_TIERS, &two_tiers_rows(&on_trace.two_tiers)))
        }
        @if !on_trace.curves.is_empty() {
            (table(&format!("{}: points of the curves", trace.name), false, &CURVES, &curve_rows(&on_trace.curves)))
        }
    })
}

/// The policies, in the order of the cells, and the optimum last.
fn policies(on_trace: &PoliciesTrace) -> Vec<&str> {
    let mut names: Vec<&str> = Vec::new();
    let curves = on_trace.curves.iter().map(|curve| curve.policy.as_str());
    for name in on_trace.cells.iter().map(|cell| cell.policy.as_str()).chain(curves) {
        if !names.contains(&name) {
            names.push(name);
        }
    }
    names.sort_by_key(|name| *name == CEILING);
    names
}

fn plot(caption: &str, title: &str, lines: Vec<Line>) -> anyhow::Result<Markup> {
    let values = || lines.iter().flat_map(|line| line.points.iter().map(|(_, y)| *y));
    let (low, high) = (values().fold(f64::INFINITY, f64::min), values().fold(0.0, f64::max));
    // Near the top of the scale, zero would press all lines together.
    let y = if low > 40.0 { Axis::linear(low, high) } else { Axis::from_zero(high) };
    let lines = Lines { title, x_label: CAPACITY, y_label: caption, y, series: lines };
    Ok(figure(caption, &lines.draw(SIZE)?))
}

/// Hits of a cell in percent of the optimum's at the same capacity.
fn share_of_opt(on_trace: &PoliciesTrace, cell: &PoliciesCell) -> Option<f64> {
    let is_opt = |other: &&PoliciesCell| other.policy == CEILING && other.capacity == cell.capacity;
    let opt = on_trace.cells.iter().find(is_opt).filter(|opt| opt.hits > 0)?;
    Some(100.0 * cell.hits as f64 / opt.hits as f64)
}

/// A line a curve. Of a policy with an exact curve, a sampled one is in the table only.
fn curve_lines(curves: &[PoliciesCurve], number: impl Fn(&str) -> Option<usize>) -> Vec<Line> {
    let is_exact = |curve: &PoliciesCurve| curve.method == "exact";
    let has_exact = |name: &str| curves.iter().any(|curve| curve.policy == name && is_exact(curve));
    let shown = curves.iter().filter(|curve| is_exact(curve) || !has_exact(&curve.policy));
    shown
        .map(|curve| {
            let points = curve.points.iter().map(|point| (point.capacity as f64, point.hit_percent));
            Line { number: number(&curve.policy), points: points.collect() }
        })
        .filter(|line| !line.points.is_empty())
        .collect()
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
            Cell::maybe(cell.stranded_worst.map(crate::Share::percent), 2),
            Cell::maybe(cell.ns_per_access, 0),
        ]
    };
    on_trace.cells.iter().map(row).collect()
}

const OVERLAP: [&str; 8] =
    ["capacity", "policy", "hits", "% of blocks", "inserts", "evictions", "offers refused", "most in flight"];

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
        let row = |point: &crate::PoliciesPoint| {
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

fn percent(part: u64, whole: u64) -> f64 {
    100.0 * part as f64 / whole.max(1) as f64
}
