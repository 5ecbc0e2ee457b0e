//! A trace through every tier: what each served, and the time of each edge.

use maud::{Markup, html};

use super::{
    parts::{Cell, table},
    plot::{Bar, BarSeries, Bars, colour_of, figure},
};
use crate::{ChosenDevice, ReplayResults, Spread, Stored};

const SIZE: (u32, u32) = (540, 300);

pub(crate) fn section(report: &Stored<ReplayResults>) -> anyhow::Result<Markup> {
    let results = &report.results;
    let trace = &results.trace;
    let served: Vec<_> = results
        .served()
        .map(|(place, blocks)| (shown(place, results), 100.0 * blocks as f64 / results.blocks.max(1) as f64))
        .into();
    let seconds: Vec<_> = results.edges.iter().map(|edge| (edge.edge.clone(), edge.seconds)).collect();
    Ok(html! {
        p class="note" {
            (gpu_note(results))
            " The store is real, and goes through the page cache. The hits depend on the trace and the sizes alone."
        }
        p {
            (trace.name) ": " (results.requests) " of " (trace.requests) " requests, " (results.blocks) " blocks; "
            (results.gpu_blocks) " GPU blocks, " (results.cpu_chunks) " CPU slots, " (results.nvme_chunks)
            " NVMe chunks of " (results.block_bytes) " bytes, " (results.policy) ". "
            (results.blocks_compared) " blocks compared byte by byte."
        }
        @if results.mismatches > 0 {
            p class="note bad" { (results.mismatches) " blocks came back with other bytes." }
        }
        div class="plots wide" {
            (bars("Served by, % of blocks", "% of blocks", "Where the prefixes were found, in percent of blocks", &served)?)
            (bars("Time under way, s over all jobs", "s", "Seconds of each edge over all its jobs", &seconds)?)
        }
        (table("where prefixes were found", true, &["served by", "blocks", "% of blocks"], &served_rows(results, &served)))
        (table("edges", true, &["edge", "jobs", "MB", "s over all jobs", "MB/s"], &edge_rows(results)))
        (table("the whole run", true, &["", "value"], &whole_rows(results)))
    })
}

/// What the times of the GPU's edges are worth.
fn gpu_note(results: &ReplayResults) -> Markup {
    let reason = results.device_reason.as_ref().map(|reason| format!("because {reason}; "));
    html! {
        @if !results.gpu_is_simulated {
            strong { "The GPU: " } (results.device) ", " (reason.unwrap_or_default())
            "the times of its edges are those of copies over its link."
        } @else if results.device == ChosenDevice::HOST {
            strong { "The GPU is simulated: " } (reason.unwrap_or_default())
            "its memory is host memory, so the times of its edges are those of copies within it."
        } @else {
            strong { "The GPU is simulated: " } (results.device) ", " (reason.unwrap_or_default())
            "its driver is one for tests, so the times of its edges are those of a model."
        }
    }
}

fn shown(place: &str, results: &ReplayResults) -> String {
    if place == "GPU" && results.gpu_is_simulated { "simulated GPU".to_owned() } else { place.to_owned() }
}

fn bars(caption: &str, y_label: &str, title: &str, values: &[(String, f64)]) -> anyhow::Result<Markup> {
    let bar =
        |value: f64| Some(Bar { spread: Spread { first: value, median: value, third: value }, target: None });
    let bars = Bars {
        title,
        y_label,
        groups: values.iter().map(|(name, _)| name.replace("simulated ", "sim. ")).collect(),
        series: vec![BarSeries {
            colour: colour_of(0),
            bars: values.iter().map(|(_, value)| bar(*value)).collect(),
        }],
        reference: None,
    };
    Ok(figure(caption, &bars.draw(SIZE)?))
}

fn served_rows(results: &ReplayResults, percents: &[(String, f64)]) -> Vec<Vec<Cell>> {
    let row = |((_, blocks), (place, percent)): ((&str, u64), &(String, f64))| {
        vec![Cell::text(place.as_str()), Cell::count(blocks), Cell::decimal(*percent, 2)]
    };
    results.served().into_iter().zip(percents).map(row).collect()
}

fn edge_rows(results: &ReplayResults) -> Vec<Vec<Cell>> {
    let row = |edge: &crate::ReplayEdge| {
        vec![
            Cell::text(edge.edge.as_str()),
            Cell::count(edge.jobs),
            Cell::decimal(edge.bytes as f64 / 1e6, 1),
            Cell::decimal(edge.seconds, 3),
            Cell::decimal(edge.mb_per_s, 0),
        ]
    };
    results.edges.iter().map(row).collect()
}

fn whole_rows(results: &ReplayResults) -> Vec<Vec<Cell>> {
    let memory = results.peak_memory_bytes.map(|bytes| bytes as f64 / f64::from(1 << 20));
    vec![
        vec![Cell::text("seconds"), Cell::decimal(results.seconds, 2)],
        vec![Cell::text("scheduler steps"), Cell::count(results.steps.steps)],
        vec![Cell::text("scheduler step, p50, us"), Cell::decimal(results.steps.p50_us, 1)],
        vec![Cell::text("scheduler step, p99, us"), Cell::decimal(results.steps.p99_us, 1)],
        vec![Cell::text("peak memory, MiB"), Cell::maybe(memory, 1)],
        vec![Cell::text("mismatches"), Cell::count(results.mismatches)],
    ]
}
