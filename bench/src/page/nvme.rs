//! The store beside plain I/O: the ratio, and the rates.

use maud::{Markup, html};

use super::{
    parts::{Cell, table},
    plot::{Bar, BarSeries, Bars, Swatch, colour_of, figure, legend},
};
use crate::{NvmeCase, NvmeResults, Spread, Stored};

const SIZE: (u32, u32) = (540, 300);

/// Writes, reads, and plain writes and reads, by the numbers of their colours.
const COLOURS: [usize; 4] = [0, 1, 3, 5];

pub(super) fn section(report: &Stored<NvmeResults>) -> anyhow::Result<Markup> {
    let results = &report.results;
    let groups = groups(results);
    let names = ["store, write", "store, read", "plain write", "plain read"];
    let swatch = |at: usize| (names[at].to_owned(), Swatch::Bar(colour_of(COLOURS[at])));
    Ok(html! {
        p {
            "The store's writes and reads beside plain positional I/O of as many threads, in the same rounds, on "
            (results.file_system.as_deref().unwrap_or("an unknown file system")) ". The store goes through the page \
            cache: a write counts until it is synced, and cached pages are dropped before each read. The plain I/O "
            @if results.limit_is_direct { "goes around the page cache (O_DIRECT)." }
            @else { "goes through it too, for the file system has no O_DIRECT." }
            " " (results.verified_bytes >> 20) " MiB that were read compared byte by byte."
        }
        @if results.file_system.as_deref() == Some("tmpfs") {
            p class="note" { "tmpfs is memory: these are no figures of a device." }
        }
        @if results.mismatches > 0 {
            p class="note bad" { (results.mismatches) " chunks came back with other bytes." }
        }
        (legend(&[swatch(0), swatch(1), swatch(2), swatch(3), ("as fast as plain I/O".to_owned(), Swatch::Target)])?)
        div class="plots wide" {
            (figure("Store over plain I/O: more is better", &ratios(results, &groups)?))
            (figure("MB/s", &rates(results, &groups)?))
        }
        (table("every case", true, &HEADER, &results.cases.iter().filter_map(row).collect::<Vec<_>>()))
    })
}

/// The chunk sizes and depths, in the order of the cases.
fn groups(results: &NvmeResults) -> Vec<(u64, u64)> {
    let mut groups = Vec::new();
    for case in &results.cases {
        if !groups.contains(&(case.chunk_bytes, case.depth)) {
            groups.push((case.chunk_bytes, case.depth));
        }
    }
    groups
}

fn names(groups: &[(u64, u64)]) -> Vec<String> {
    let threads = |depth: &u64| if *depth == 1 { "1 thread".to_owned() } else { format!("{depth} threads") };
    groups.iter().map(|(bytes, depth)| format!("{} KiB, {}", bytes >> 10, threads(depth))).collect()
}

/// The bars of one direction.
fn series(
    results: &NvmeResults,
    groups: &[(u64, u64)],
    direction: &str,
    colour: usize,
    rounds: fn(&NvmeCase) -> Vec<f64>,
) -> BarSeries {
    let bar = |(bytes, depth): &(u64, u64)| {
        let is_it = |case: &&NvmeCase| {
            case.direction == direction && case.chunk_bytes == *bytes && case.depth == *depth
        };
        let case = results.cases.iter().find(is_it)?;
        Spread::of(&rounds(case)).map(|spread| Bar { spread, target: None })
    };
    BarSeries { colour: colour_of(COLOURS[colour]), bars: groups.iter().map(bar).collect() }
}

fn ratios(results: &NvmeResults, groups: &[(u64, u64)]) -> anyhow::Result<Markup> {
    Bars {
        title: "Rate of the store over that of plain I/O, by chunk size and threads",
        y_label: "times plain I/O",
        groups: names(groups),
        series: vec![
            series(results, groups, "write", 0, NvmeCase::ratios),
            series(results, groups, "read", 1, NvmeCase::ratios),
        ],
        reference: Some(1.0),
    }
    .draw(SIZE)
}

fn rates(results: &NvmeResults, groups: &[(u64, u64)]) -> anyhow::Result<Markup> {
    let store = |case: &NvmeCase| case.store_mb_per_s.clone();
    let plain = |case: &NvmeCase| case.limit_mb_per_s.clone();
    Bars {
        title: "Megabytes a second of the store and of plain I/O, by chunk size and threads",
        y_label: "MB/s",
        groups: names(groups),
        series: vec![
            series(results, groups, "write", 0, store),
            series(results, groups, "write", 2, plain),
            series(results, groups, "read", 1, store),
            series(results, groups, "read", 3, plain),
        ],
        reference: None,
    }
    .draw(SIZE)
}

const HEADER: [&str; 9] = [
    "",
    "chunk KiB",
    "threads",
    "store MB/s",
    "plain MB/s",
    "store over plain",
    "1st quartile",
    "3rd quartile",
    "by the device %",
];

fn row(case: &NvmeCase) -> Option<Vec<Cell>> {
    let ratio = Spread::of(&case.ratios())?;
    Some(vec![
        Cell::text(case.direction.as_str()),
        Cell::count(case.chunk_bytes >> 10),
        Cell::count(case.depth),
        Cell::decimal(Spread::of(&case.store_mb_per_s)?.median, 0),
        Cell::decimal(Spread::of(&case.limit_mb_per_s)?.median, 0),
        Cell::decimal(ratio.median, 2),
        Cell::decimal(ratio.first, 2),
        Cell::decimal(ratio.third, 2),
        Cell::maybe(case.device_percent, 0),
    ])
}
