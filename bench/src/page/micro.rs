//! Costs of calls: a plot a job, bars by size and subject.

use clap::ValueEnum;
use maud::{Markup, html};

use super::{
    parts::{Cell, table},
    plot::{Bar, BarSeries, Bars, Swatch, colour_of, figure, legend},
};
use crate::{MicroFigure, MicroResults, MicroSize, Spread, Stored, micro::Job, short_count};

const SIZE: (u32, u32) = (360, 230);

/// The floor is grey.
const FLOOR_COLOUR: usize = 7;

pub(crate) fn section(report: &Stored<MicroResults>) -> anyhow::Result<Markup> {
    let results = &report.results;
    let subjects = distinct(results, |figure| &figure.subject);
    let mut key: Vec<_> =
        subjects.iter().map(|name| ((*name).to_owned(), Swatch::Bar(colour(&subjects, name)))).collect();
    if figures(results).any(|(_, figure)| figure.target_ns.is_some()) {
        key.push(("target: at most".to_owned(), Swatch::Target));
    }
    let plots = distinct(results, |figure| &figure.job)
        .into_iter()
        .map(|job| plot(results, &subjects, job))
        .collect::<anyhow::Result<Vec<_>>>()?;
    Ok(html! {
        p {
            "Costs of the CPU tier's calls by the number of chunks that the tier holds: medians of interleaved rounds, \
             the thin lines from the first quartile to the third. Less is better. The floor is the bare memory \
             accesses on the same keys."
        }
        @if let Some(differences) = &results.differences {
            details { summary { "What differs between the two" } p { (differences) } }
        }
        (legend(&key)?)
        div class="plots" { @for plot in plots { (plot) } }
        (table("every figure", false, &HEADER, &rows(results)))
        (table("memory and victims", false, &["size", "subject", "bytes a chunk", "hash of the victims"], &subject_rows(results)))
    })
}

fn figures(results: &MicroResults) -> impl Iterator<Item = (&MicroSize, &MicroFigure)> {
    results.sizes.iter().flat_map(|size| size.figures.iter().map(move |figure| (size, figure)))
}

/// What the figures have of something, in the order in which it comes first.
fn distinct(results: &MicroResults, of: fn(&MicroFigure) -> &String) -> Vec<&str> {
    let mut found: Vec<&str> = Vec::new();
    for (_, figure) in figures(results) {
        if !found.contains(&of(figure).as_str()) {
            found.push(of(figure));
        }
    }
    found
}

fn colour(subjects: &[&str], name: &str) -> plotters::style::RGBColor {
    if name == "floor" {
        return colour_of(FLOOR_COLOUR);
    }
    let number = subjects.iter().filter(|subject| **subject != "floor").position(|subject| *subject == name);
    colour_of(number.unwrap_or_default())
}

fn plot(results: &MicroResults, subjects: &[&str], job: &str) -> anyhow::Result<Markup> {
    let find = |size: &MicroSize, subject: &str| {
        size.figures.iter().find(|figure| figure.job == job && figure.subject == subject).cloned()
    };
    let bar = |figure: MicroFigure| {
        Spread::of(&figure.rounds_ns).map(|spread| Bar { spread, target: figure.target_ns })
    };
    let bars_of = |subject: &str| -> Vec<_> {
        results.sizes.iter().map(|size| find(size, subject).and_then(bar)).collect()
    };
    let series = subjects
        .iter()
        .map(|subject| BarSeries { colour: colour(subjects, subject), bars: bars_of(subject) })
        .filter(|series| series.bars.iter().any(Option::is_some));
    let unit = figures(results).find(|(_, figure)| figure.job == job).map_or("", |(_, figure)| &figure.unit);
    let (name, y_label) = (job_name(job), format!("ns a {unit}"));
    let title = format!("{name}: {y_label}, by size and subject");
    let bars = Bars {
        title: &title,
        y_label: &y_label,
        groups: results.sizes.iter().map(|size| short_count(size.size.into())).collect(),
        series: series.collect(),
        reference: None,
    };
    Ok(figure(&name, &bars.draw(SIZE)?))
}

/// A job as the command shows it.
fn job_name(job: &str) -> String {
    Job::from_str(job, false).map_or_else(|_| job.to_owned(), |job| job.to_string())
}

const HEADER: [&str; 10] = [
    "size",
    "job",
    "subject",
    "median ns",
    "1st quartile",
    "3rd quartile",
    "a",
    "target",
    "",
    "over the floor",
];

fn rows(results: &MicroResults) -> Vec<Vec<Cell>> {
    let row = |(size, figure): (&MicroSize, &MicroFigure)| {
        let spread = Spread::of(&figure.rounds_ns)?;
        let is_floor = |other: &&MicroFigure| other.job == figure.job && other.subject == "floor";
        let floor = size.figures.iter().find(is_floor).filter(|_| figure.subject != "floor");
        let floor = floor.and_then(|floor| Spread::of(&floor.rounds_ns)).filter(|floor| floor.median > 0.0);
        let met =
            figure.target_ns.map_or("", |target| if spread.median <= target { "met" } else { "missed" });
        Some(vec![
            Cell::Number(short_count(size.size.into())),
            Cell::text(job_name(&figure.job)),
            Cell::text(figure.subject.as_str()),
            Cell::decimal(spread.median, 1),
            Cell::decimal(spread.first, 1),
            Cell::decimal(spread.third, 1),
            Cell::text(figure.unit.as_str()),
            Cell::maybe(figure.target_ns, 0),
            Cell::text(met),
            Cell::maybe(floor.map(|floor| spread.median / floor.median), 2),
        ])
    };
    figures(results).filter_map(row).collect()
}

fn subject_rows(results: &MicroResults) -> Vec<Vec<Cell>> {
    let of_size = |size: &MicroSize| {
        let name = short_count(size.size.into());
        let row = |subject: &crate::MicroSubject| {
            vec![
                Cell::Number(name.clone()),
                Cell::text(subject.name.as_str()),
                Cell::maybe(subject.bytes_per_chunk, 1),
                Cell::text(subject.victims.as_deref().unwrap_or_default()),
            ]
        };
        size.subjects.iter().map(row).collect::<Vec<_>>()
    };
    results.sizes.iter().flat_map(of_size).collect()
}
