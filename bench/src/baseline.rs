//! Two runs of one command, figure by figure: what got slower than the noise.
//!
//! The rule, for figures of interleaved rounds: the later run is slower if it has at least [`ROUNDS_MIN`] rounds on both
//! sides, the ranges from the first quartile to the third do not touch, and the medians are a factor of
//! [`SLOWER_FACTOR`] or more apart. A figure that was taken once has no noise to be held against; it is shown, and
//! judges nothing. Counts and hashes must be equal, where both runs did the same work.

mod figures;
mod verdict;

use std::fmt;

use comfy_table::Table;

use crate::{Commit, Machine, Stored, StoredResults, new_table, number_cell};

pub use self::{
    figures::{Better, Figures, NamedFigure, Value},
    verdict::{ROUNDS_MIN, SLOWER_FACTOR, Verdict},
};

/// Two runs, compared.
#[derive(Clone, Debug)]
pub struct Comparison {
    /// What is not the same around them, so that their figures may differ for it.
    pub warnings: Vec<String>,
    /// By figure, in the order of the later run.
    pub rows: Vec<Row>,
    /// Figures that the earlier run has alone.
    pub only_before: Vec<String>,
    /// Figures that the later run has alone.
    pub only_after: Vec<String>,
}

/// One figure of both runs.
#[derive(Clone, Debug)]
pub struct Row {
    /// Its name.
    pub name: String,
    /// Its unit.
    pub unit: &'static str,
    /// In the earlier run.
    pub before: String,
    /// In the later run.
    pub after: String,
    /// After over before.
    pub ratio: Option<f64>,
    /// What it comes to.
    pub verdict: Verdict,
}

/// Compares two reports of the same command.
pub fn compare<T: StoredResults + Figures>(before: &Stored<T>, after: &Stored<T>) -> Comparison {
    let (earlier, later) = (before.results.figures(), after.results.figures());
    let of = |figures: &[NamedFigure], name: &str| figures.iter().position(|figure| figure.name == name);
    let mut comparison = Comparison {
        warnings: warnings(before, after),
        rows: Vec::new(),
        only_before: names(&earlier, |name| of(&later, name).is_none()),
        only_after: names(&later, |name| of(&earlier, name).is_none()),
    };
    for figure in later {
        if let Some(at) = of(&earlier, &figure.name) {
            comparison.rows.push(Row::new(&earlier[at], &figure));
        }
    }
    comparison.warnings.extend(comparison.machine_warning());
    comparison
}

fn names(figures: &[NamedFigure], wanted: impl Fn(&str) -> bool) -> Vec<String> {
    figures.iter().filter(|figure| wanted(&figure.name)).map(|figure| figure.name.clone()).collect()
}

/// What is not the same around two runs.
fn warnings<T>(before: &Stored<T>, after: &Stored<T>) -> Vec<String> {
    let Machine { cpu, threads, memory_bytes, platform, kernel } = &before.machine;
    let now = &after.machine;
    let shown = |value: &Option<String>| value.clone().unwrap_or_else(|| "unknown".to_owned());
    let number = |value: Option<u64>| value.map_or_else(|| "unknown".to_owned(), |value| value.to_string());
    let threads_shown = |threads: Option<usize>| number(threads.map(|threads| threads as u64));
    let mut pairs = vec![
        ("processor", shown(cpu), shown(&now.cpu)),
        ("number of threads", threads_shown(*threads), threads_shown(now.threads)),
        ("memory", number(*memory_bytes), number(now.memory_bytes)),
        ("platform", platform.clone(), now.platform.clone()),
        ("kernel", shown(kernel), shown(&now.kernel)),
        ("profile", before.profile.clone(), after.profile.clone()),
        (
            "command line",
            own_arguments(&before.arguments).join(" "),
            own_arguments(&after.arguments).join(" "),
        ),
    ];
    pairs.retain(|(_, before, after)| before != after);
    let mut warnings: Vec<_> = pairs
        .into_iter()
        .map(|(what, before, after)| format!("the {what} differs: {before} before, {after} now"))
        .collect();
    if after.profile != "release" {
        warnings.push("this is no release build: its times mean nothing".to_owned());
    }
    warnings
}

/// The arguments without those that change no figure.
pub(crate) fn own_arguments(arguments: &[String]) -> Vec<&str> {
    let mut own = Vec::new();
    let mut rest = arguments.iter();
    while let Some(argument) = rest.next() {
        match argument.as_str() {
            "--baseline" => {
                rest.next();
            }
            "--report" => {}
            other if other.starts_with("--baseline=") => {}
            other => own.push(other),
        }
    }
    own
}

impl Row {
    fn new(before: &NamedFigure, after: &NamedFigure) -> Self {
        let ratio = match (before.value.number(), after.value.number()) {
            (Some(before), Some(after)) if before > 0.0 => Some(after / before),
            _ => None,
        };
        Self {
            name: after.name.clone(),
            unit: after.unit,
            before: before.value.to_string(),
            after: after.value.to_string(),
            ratio,
            verdict: Verdict::of(&before.value, &after.value),
        }
    }
}

impl Comparison {
    /// Figures that fail it: slower than the noise, or counts that differ.
    pub fn failures(&self) -> impl Iterator<Item = &Row> {
        self.rows.iter().filter(|row| row.verdict.fails())
    }

    /// The bare memory accesses or the plain I/O were another time: then it was the machine.
    fn machine_warning(&self) -> Option<String> {
        // What one would call another machine; the figures of kvo are judged more strictly.
        const FACTOR: f64 = 1.05;
        let mut ratios: Vec<f64> = self
            .rows
            .iter()
            .filter(|row| row.verdict == Verdict::OfTheMachine)
            .filter_map(|row| row.ratio)
            .collect();
        ratios.sort_by(f64::total_cmp);
        let median = *ratios.get(ratios.len() / 2)?;
        (!(1.0 / FACTOR..=FACTOR).contains(&median)).then(|| {
            format!(
                "the limits that do not depend on kvo (the floor, plain I/O) are {median:.2} times what they were: \
                 the machine was in another state, so look at the ratios within each run"
            )
        })
    }

    /// Counts that are equal are left out: there can be hundreds of them, and they say nothing else.
    fn table(&self) -> Table {
        let mut table = new_table(["figure", "unit", "before", "after", "ratio", "verdict"]);
        for row in self.rows.iter().filter(|row| row.verdict != Verdict::Equal) {
            table.add_row([
                row.name.as_str().into(),
                row.unit.into(),
                number_cell(row.before.as_str()),
                number_cell(row.after.as_str()),
                number_cell(row.ratio.map_or_else(String::new, |ratio| format!("{ratio:.3}"))),
                row.verdict.to_string().into(),
            ]);
        }
        table
    }
}

impl fmt::Display for Comparison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.rows.iter().any(|row| row.verdict != Verdict::Equal) {
            writeln!(f, "{}", self.table())?;
        }
        for (which, names) in [("before", &self.only_before), ("now", &self.only_after)] {
            if let Some(first) = names.first() {
                writeln!(f, "only {which}, so not compared: {} figures, such as {first}", names.len())?;
            }
        }
        for warning in &self.warnings {
            writeln!(f, "WARNING: {warning}")?;
        }
        let judged =
            |verdict: fn(&Verdict) -> bool| self.rows.iter().filter(|row| verdict(&row.verdict)).count();
        writeln!(
            f,
            "{} figures: {} slower than the noise, {} faster, {} within it, {} counts equal, {} that should be and \
             are not, {} not judged",
            self.rows.len(),
            judged(|verdict| *verdict == Verdict::Slower),
            judged(|verdict| *verdict == Verdict::Faster),
            judged(|verdict| *verdict == Verdict::WithinNoise),
            judged(|verdict| *verdict == Verdict::Equal),
            judged(|verdict| *verdict == Verdict::Differs),
            judged(|verdict| matches!(verdict, Verdict::NotJudged(_) | Verdict::OfTheMachine)),
        )?;
        for row in self.failures() {
            writeln!(f, "{}: {}, {} before, {} now", row.verdict, row.name, row.before, row.after)?;
        }
        Ok(())
    }
}

impl fmt::Display for Commit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let modified = if self.modified == Some(true) { ", modified" } else { "" };
        match &self.hash {
            Some(hash) => write!(f, "{}{modified}", hash.get(..12).unwrap_or(hash)),
            None => f.write_str("unknown"),
        }
    }
}

#[cfg(test)]
mod tests;
