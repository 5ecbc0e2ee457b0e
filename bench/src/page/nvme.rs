//! The store beside the floor, or beside other projects: ratios, rates and CPU time.

use maud::{Markup, html};

use super::{
    parts::{Cell, table},
    plot::{Bar, BarSeries, Bars, Swatch, colour_of, figure, legend},
};
use crate::{
    NvmeBound, NvmeCase, NvmePoint, NvmeRatio, NvmeResults, Spread, Stored,
    nvme::{MixedResult, Range},
};

const SIZE: (u32, u32) = (540, 300);

pub(crate) fn section(report: &Stored<NvmeResults>) -> anyhow::Result<Markup> {
    let results = &report.results;
    let subjects = subjects(results);
    let groups = groups(results);
    let mut swatches: Vec<_> = subjects
        .iter()
        .enumerate()
        .map(|(at, subject)| ((*subject).to_owned(), Swatch::Bar(colour_of(at))))
        .collect();
    swatches.push((format!("as fast as {}", results.denominator), Swatch::Target));
    let plot = |title: &str, y_label: &str, reference, rounds: &dyn Fn(&NvmeCase) -> Vec<f64>| {
        let series = subjects.iter().enumerate().map(|(at, subject)| BarSeries {
            colour: colour_of(at),
            bars: groups.iter().map(|group| bar(results, subject, group, rounds)).collect(),
        });
        let groups = groups.iter().map(Group::name).collect();
        Bars { title, y_label, groups, series: series.collect(), reference }.draw(SIZE)
    };
    let over = |case: &NvmeCase| results.over_denominator(case);
    let ratios = plot("Rate over that of the floor, by direction and chunk size", "times", Some(1.0), &over)?;
    let rates = |case: &NvmeCase| case.mb_per_s.clone();
    let rates = plot("Megabytes a second, by direction and chunk size", "MB/s", None, &rates)?;
    let cpu = |case: &NvmeCase| case.cpu_s_per_gb.clone();
    let cpu = plot("CPU seconds a gigabyte, by direction and chunk size", "s/GB", None, &cpu)?;
    Ok(html! {
        (intro(results))
        (legend(&swatches)?)
        div class="plots wide" {
            (figure(&format!("Over {} of the same round: more is better", results.denominator), &ratios))
            (figure("CPU time a gigabyte: less is better", &cpu))
            (figure("MB/s", &rates))
        }
        (table("every case", true, &HEADER, &results.cases.iter().filter_map(|case| row(results, case)).collect::<Vec<_>>()))
        @if !results.ratios.is_empty() {
            (table("ratios round by round", false, &RATIO_HEADER, &results.ratios.iter().map(ratio_row).collect::<Vec<_>>()))
        }
        @if !results.mixed.is_empty() {
            (table("reads while stores run", true, &MIXED_HEADER, &results.mixed.iter().flat_map(mixed_rows).collect::<Vec<_>>()))
        }
        @if let Some(at_rest) = &results.at_rest {
            (table("a store beside its transfers", true, &["", ""], &at_rest.figures().into_iter().map(rest_row).collect::<Vec<_>>()))
            @for what in &at_rest.skipped { p class="note" { "Not measured: " (what) "." } }
        }
        @if !results.points.is_empty() {
            (table("what is asked", true, &POINT_HEADER, &results.points.iter().map(point_row).collect::<Vec<_>>()))
        }
    })
}

fn intro(results: &NvmeResults) -> Markup {
    let here = &results.surroundings;
    let unknown = || "unknown".to_owned();
    let load = |at: usize| here.load_average[at].map_or_else(unknown, |load| format!("{load:.2}"));
    html! {
        p {
            "All subjects in the same rounds, in an order of each round's own, on "
            (here.file_system.as_deref().unwrap_or("an unknown file system"))
            @if here.is_direct { ", around the page cache." } @else { ", where there is no way around the page cache." }
            " Host memory on huge pages: "
            (here.huge_percent.map_or_else(unknown, |percent| format!("{percent:.1} % and more")))
            "; the kernel's setting: " (here.huge_pages.clone().unwrap_or_else(unknown))
            ". Load average: " (load(0)) " before, " (load(1)) " after. "
            (results.verified_bytes >> 20) " MiB that were read compared byte by byte."
        }
        ul { @for note in &results.notes { li { (note) } } }
        @if here.file_system.as_deref() == Some("tmpfs") {
            p class="note" { "tmpfs is memory: these are no figures of a device." }
        }
        @if results.mismatches > 0 {
            p class="note bad" { (results.mismatches) " chunks came back with other bytes." }
        }
    }
}

/// A direction and a chunk size.
#[derive(Clone, Debug, PartialEq)]
struct Group {
    direction: String,
    chunk_bytes: u64,
}

impl Group {
    fn of(case: &NvmeCase) -> Self {
        Self { direction: case.direction.clone(), chunk_bytes: case.chunk_bytes }
    }

    fn name(&self) -> String {
        format!("{}, {} KiB", self.direction, self.chunk_bytes >> 10)
    }
}

/// The directions and chunk sizes, in the order of the cases.
fn groups(results: &NvmeResults) -> Vec<Group> {
    let mut groups = Vec::new();
    for group in results.cases.iter().map(Group::of) {
        if !groups.contains(&group) {
            groups.push(group);
        }
    }
    groups
}

/// The subjects, in the order of the cases.
fn subjects(results: &NvmeResults) -> Vec<&str> {
    let mut subjects = Vec::new();
    for case in &results.cases {
        if !subjects.contains(&case.subject.as_str()) {
            subjects.push(&case.subject);
        }
    }
    subjects
}

fn bar(
    results: &NvmeResults,
    subject: &str,
    group: &Group,
    rounds: &dyn Fn(&NvmeCase) -> Vec<f64>,
) -> Option<Bar> {
    let case = results.cases.iter().find(|case| case.subject == subject && Group::of(case) == *group)?;
    Spread::of(&rounds(case)).map(|spread| Bar { spread, target: None })
}

const HEADER: [&str; 7] = [
    "chunk KiB",
    "",
    "subject",
    "MB/s min/median/max",
    "over the floor",
    "CPU s/GB min/median/max",
    "by the device %",
];

fn row(results: &NvmeResults, case: &NvmeCase) -> Option<Vec<Cell>> {
    let over = Range::of(&results.over_denominator(case)).map_or_else(String::new, |over| over.shown(2));
    Some(vec![
        Cell::count(case.chunk_bytes >> 10),
        Cell::text(case.direction.as_str()),
        Cell::text(case.subject.as_str()),
        Cell::Number(Range::of(&case.mb_per_s)?.shown(0)),
        Cell::Number(over),
        Cell::Number(Range::of(&case.cpu_s_per_gb)?.shown(3)),
        Cell::maybe(case.device_percent(), 1),
    ])
}

const RATIO_HEADER: [&str; 6] =
    ["chunk KiB", "", "subject", "over", "rate min/median/max", "CPU min/median/max"];

fn ratio_row(ratio: &NvmeRatio) -> Vec<Cell> {
    vec![
        Cell::count(ratio.chunk_bytes >> 10),
        Cell::text(ratio.direction.as_str()),
        Cell::text(ratio.subject.as_str()),
        Cell::text(ratio.over.as_str()),
        Cell::Number(ratio.rate.shown(2)),
        Cell::Number(ratio.cpu.map_or_else(String::new, |cpu| cpu.shown(2))),
    ]
}

const MIXED_HEADER: [&str; 5] =
    ["chunk KiB", "", "alone min/median/max", "both min/median/max", "kept min/median/max"];

fn mixed_rows(mixed: &MixedResult) -> Vec<Vec<Cell>> {
    let Some(kept) = mixed.kept() else { return Vec::new() };
    let shown = |rounds: &[f64]| Range::of(rounds).map_or_else(String::new, |range| range.shown(0));
    let row = |what: &str, alone: &[f64], both: &[f64], kept: Range| {
        vec![
            Cell::count((mixed.chunk_bytes >> 10).into()),
            Cell::text(what),
            Cell::Number(shown(alone)),
            Cell::Number(shown(both)),
            Cell::Number(kept.shown(2)),
        ]
    };
    vec![
        row("reads, MB/s", &mixed.reads_alone_mb_per_s, &mixed.reads_mb_per_s, kept.reads),
        row("reads, p99 us", &mixed.reads_alone_p99_us, &mixed.reads_p99_us, kept.reads_p99),
        row("stores, MB/s", &mixed.stores_alone_mb_per_s, &mixed.stores_mb_per_s, kept.stores),
    ]
}

fn rest_row((what, figure): (String, String)) -> Vec<Cell> {
    vec![Cell::text(what), Cell::Number(figure)]
}

const POINT_HEADER: [&str; 4] = ["what", "is", "is to be", ""];

fn point_row(point: &NvmePoint) -> Vec<Cell> {
    let bound = match point.bound {
        NvmeBound::AtLeast(least) => format!("at least {least}"),
        NvmeBound::AtMost(most) => format!("at most {most}"),
    };
    vec![
        Cell::text(point.what.as_str()),
        Cell::decimal(point.value, 3),
        Cell::text(bound),
        Cell::text(if point.met { "met" } else { "missed" }),
    ]
}
