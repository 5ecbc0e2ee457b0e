//! Eviction policies: hits against capacity, a line a policy, with the optimum as the ceiling.

mod tables;

use maud::{Markup, html};

use super::plot::{Axis, Bar, BarSeries, Bars, Line, Lines, Swatch, colour_of, figure, legend};
use crate::{OverlapCell, PoliciesCell, PoliciesCurve, PoliciesResults, PoliciesTrace, Spread, Stored};

const SIZE: (u32, u32) = (540, 340);
const CEILING: &str = "opt";
const CAPACITY: &str = "chunks of the tier";

pub(crate) fn section(report: &Stored<PoliciesResults>) -> anyhow::Result<Markup> {
    let results = &report.results;
    let traces = results.traces.iter().map(of_trace).collect::<anyhow::Result<Vec<_>>>()?;
    Ok(html! {
        p class="note" {
            strong { "Simulated: " }
            "the shipping policies and CPU tier serve the requests of a trace; no bytes move, and no GPU runs. opt \
             (Belady's optimum with bypass) knows the future: no policy can hit more."
        }
        (tables::summary("all traces and capacities, by hits", &results.summary))
        (tables::summary("the same, of requests that overlap", &results.overlap_summary))
        @for on_trace in traces { (on_trace) }
    })
}

/// The policies of a trace, each with its number.
struct Contenders<'a> {
    names: Vec<&'a str>,
}

impl<'a> Contenders<'a> {
    /// In the order of the cells, and the optimum last.
    fn of(on_trace: &'a PoliciesTrace) -> Self {
        let curves = on_trace.curves.iter().map(|curve| curve.policy.as_str());
        let mut names = distinct(on_trace.cells.iter().map(|cell| cell.policy.as_str()).chain(curves));
        names.sort_by_key(|name| *name == CEILING);
        Self { names }
    }

    /// None is the ceiling.
    fn number(&self, name: &str) -> Option<usize> {
        if name == CEILING { None } else { self.names.iter().position(|other| *other == name) }
    }

    fn legend(&self) -> anyhow::Result<Markup> {
        let key = |name: &&str| {
            let line = |number| Swatch::Line(colour_of(number), number);
            ((*name).to_owned(), self.number(name).map_or(Swatch::Ceiling, line))
        };
        legend(&self.names.iter().map(key).collect::<Vec<_>>())
    }

    /// A line a policy through points, each a policy's name, a capacity and a value.
    fn lines<'p>(&self, points: impl Iterator<Item = (&'p str, u64, f64)>) -> Vec<Line> {
        let all: Vec<_> = points.collect();
        let line = |name: &&str| {
            let of_policy = all.iter().filter(|(policy, _, _)| policy == name);
            let mut points: Vec<_> =
                of_policy.map(|(_, capacity, value)| (*capacity as f64, *value)).collect();
            points.sort_by(|a, b| a.0.total_cmp(&b.0));
            Line { number: self.number(name), points, errors: Vec::new() }
        };
        self.names.iter().map(line).filter(|line| !line.points.is_empty()).collect()
    }
}

fn of_trace(on_trace: &PoliciesTrace) -> anyhow::Result<Markup> {
    let trace = &on_trace.trace;
    let contenders = Contenders::of(on_trace);
    let cells = on_trace.cells.iter();
    let blocks = cells.clone().map(|cell| (cell.policy.as_str(), cell.capacity, cell.hit_percent()));
    let tokens =
        cells.clone().filter_map(|cell| Some((cell.policy.as_str(), cell.capacity, cell.token_hit_percent?)));
    let of_opt = cells
        .filter(|cell| cell.policy != CEILING)
        .filter_map(|cell| Some((cell.policy.as_str(), cell.capacity, share_of_opt(on_trace, cell)?)));
    let mut plots = vec![
        ("Hits, % of blocks".to_owned(), contenders.lines(blocks)),
        ("Hits, % of tokens".to_owned(), contenders.lines(tokens)),
        ("Hits, % of the optimum's".to_owned(), contenders.lines(of_opt)),
    ];
    plots.extend(overlap_plots(&contenders, &on_trace.overlap));
    plots.push(("Hit curve, % of blocks".to_owned(), curve_lines(&contenders, &on_trace.curves)));
    plots.retain(|(_, lines)| !lines.is_empty());
    let plots = plots
        .into_iter()
        .map(|(caption, lines)| plot(&trace.name, &caption, lines))
        .collect::<anyhow::Result<Vec<_>>>()?;
    Ok(html! {
        h3 { (trace.name) }
        p {
            (trace.requests) " requests, " (trace.accesses) " blocks of " (trace.block_tokens) " tokens, "
            (trace.unique_blocks) " different, fingerprint " code { (trace.fingerprint) }
        }
        (contenders.legend()?)
        div class="plots wide" {
            @for plot in plots { (plot) }
            @for plot in two_tiers_plots(&contenders, on_trace)? { (plot) }
        }
        (tables::of_trace(on_trace))
    })
}

fn plot(trace: &str, caption: &str, lines: Vec<Line>) -> anyhow::Result<Markup> {
    let values = || lines.iter().flat_map(|line| line.points.iter().map(|(_, y)| *y));
    let (low, high) = (values().fold(f64::INFINITY, f64::min), values().fold(0.0, f64::max));
    // Near the top of the scale, zero would press all lines together.
    let y = if low > 40.0 { Axis::linear(low, high) } else { Axis::from_zero(high) };
    let title = format!("{trace}: {caption} against capacity, simulated");
    let lines = Lines { title: &title, x_label: CAPACITY, y_label: "%", y, series: lines };
    Ok(figure(caption, &lines.draw(SIZE)?))
}

/// Hits of a cell in percent of the optimum's at the same capacity.
fn share_of_opt(on_trace: &PoliciesTrace, cell: &PoliciesCell) -> Option<f64> {
    let is_opt = |other: &&PoliciesCell| other.policy == CEILING && other.capacity == cell.capacity;
    let opt = on_trace.cells.iter().find(is_opt).filter(|opt| opt.hits > 0)?;
    Some(percent(cell.hits, opt.hits))
}

/// Overlapping requests: a plot for each way to deal with offers that are refused.
fn overlap_plots(contenders: &Contenders<'_>, cells: &[OverlapCell]) -> Vec<(String, Vec<Line>)> {
    let ways = distinct(cells.iter().map(|cell| cell.refused.as_str()));
    let plot = |way: &&str| {
        let of_way = cells.iter().filter(|cell| cell.refused == **way);
        let points =
            of_way.map(|cell| (cell.policy.as_str(), cell.capacity, percent(cell.hits, cell.accesses)));
        let refused = if way.is_empty() { String::new() } else { format!(" (refused: {way})") };
        (format!("Overlapping requests: hits, % of blocks{refused}"), contenders.lines(points))
    };
    ways.iter().map(plot).collect()
}

/// A line a curve, with the standard errors of sampled ones. Of a policy with an exact curve, a sampled one is in the
/// table only.
fn curve_lines(contenders: &Contenders<'_>, curves: &[PoliciesCurve]) -> Vec<Line> {
    let is_exact = |curve: &PoliciesCurve| curve.method == "exact";
    let has_exact = |name: &str| curves.iter().any(|curve| curve.policy == name && is_exact(curve));
    let shown = curves.iter().filter(|curve| is_exact(curve) || !has_exact(&curve.policy));
    shown
        .map(|curve| {
            let errors = curve.points.iter().filter_map(|point| {
                let error = point.standard_error?;
                Some((point.capacity as f64, point.hit_percent - error, point.hit_percent + error))
            });
            Line {
                number: contenders.number(&curve.policy),
                points: curve.points.iter().map(|point| (point.capacity as f64, point.hit_percent)).collect(),
                errors: errors.collect(),
            }
        })
        .filter(|line| !line.points.is_empty())
        .collect()
}

/// Hits of both tiers together: a plot for each pair of sizes, by fill.
fn two_tiers_plots(contenders: &Contenders<'_>, on_trace: &PoliciesTrace) -> anyhow::Result<Vec<Markup>> {
    let cells = &on_trace.two_tiers;
    let sizes = distinct(cells.iter().map(|cell| (cell.gpu_capacity, cell.cpu_capacity)));
    let plot = |(gpu, cpu): (u64, u64)| {
        let of_size =
            || cells.iter().filter(move |cell| (cell.gpu_capacity, cell.cpu_capacity) == (gpu, cpu));
        let fills = distinct(of_size().map(|cell| cell.fill.as_str()));
        let bar = |name: &str, fill: &str| {
            let cell = of_size().find(|cell| cell.policy == name && cell.fill == fill)?;
            let hits = percent(cell.gpu_hits + cell.cpu_hits, cell.accesses);
            Some(Bar { spread: Spread { first: hits, median: hits, third: hits }, target: None })
        };
        let series = contenders.names.iter().filter_map(|name| {
            let bars: Vec<_> = fills.iter().map(|fill| bar(name, fill)).collect();
            let colour = colour_of(contenders.number(name)?);
            bars.iter().any(Option::is_some).then_some(BarSeries { colour, bars })
        });
        let caption = format!("{cpu} chunks below {gpu} GPU blocks of LRU: hits of both, % of blocks");
        let bars = Bars {
            title: &format!("{}: {caption}, by fill, simulated", on_trace.trace.name),
            y_label: "%",
            series: series.collect(),
            groups: fills.iter().map(|fill| (*fill).to_owned()).collect(),
            reference: None,
        };
        Ok(figure(&caption, &bars.draw(SIZE)?))
    };
    sizes.into_iter().map(plot).collect()
}

/// Each of some things once, in the order in which it comes first.
fn distinct<T: PartialEq>(all: impl Iterator<Item = T>) -> Vec<T> {
    let mut found = Vec::new();
    for one in all {
        if !found.contains(&one) {
            found.push(one);
        }
    }
    found
}

fn percent(part: u64, whole: u64) -> f64 {
    100.0 * part as f64 / whole.max(1) as f64
}
