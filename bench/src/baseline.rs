//! Two runs of one command, figure by figure: what got slower than the noise.
//!
//! The rule, for figures of interleaved rounds: the later run is slower if
//!
//! - both have at least [`ROUNDS_MIN`] rounds,
//! - the ranges from the first quartile to the third do not touch,
//! - the medians are a factor of [`SLOWER_FACTOR`] times the drift or more apart, and so are the best rounds, which other
//!   work on the machine disturbs least.
//!
//! The drift is the most that a figure moved which does not depend on kvo, either way. The quartiles are those of one
//! run, and say nothing of how busy the machine was in the other.
//!
//! A figure that was taken once has no noise to be held against; it is shown, and judges nothing. Counts and hashes
//! must be equal, where both runs did the same work.

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
    let pairs: Vec<_> =
        later.iter().filter_map(|figure| Some((&earlier[of(&earlier, &figure.name)?], figure))).collect();
    let drift = drift(&pairs);
    comparison.rows = pairs.into_iter().map(|(before, after)| Row::new(before, after, drift)).collect();
    comparison.warnings.extend(drift_warning(drift));
    comparison
}

/// The most that the machine's own figures moved, either way; one if there are none.
fn drift(pairs: &[(&NamedFigure, &NamedFigure)]) -> f64 {
    let ratios = pairs.iter().filter_map(|(before, after)| match (&before.value, &after.value) {
        (Value::Machine(earlier), Value::Machine(later)) if earlier.len().min(later.len()) >= ROUNDS_MIN => {
            ratio(before, after)
        }
        _ => None,
    });
    ratios.map(|ratio| ratio.max(1.0 / ratio)).filter(|drift| drift.is_finite()).fold(1.0, f64::max)
}

fn drift_warning(drift: f64) -> Option<String> {
    // What one would call another state of the machine.
    const FACTOR: f64 = 1.05;
    (drift > FACTOR).then(|| {
        format!(
            "a figure that does not depend on kvo (the floor, plain I/O) moved by a factor of {drift:.2}: the machine \
             was in another state, and only what moved by {:.2} and more is called slower or faster",
            SLOWER_FACTOR * drift
        )
    })
}

/// The later median over the earlier one.
fn ratio(before: &NamedFigure, after: &NamedFigure) -> Option<f64> {
    match (before.value.number(), after.value.number()) {
        (Some(before), Some(after)) if before > 0.0 => Some(after / before),
        _ => None,
    }
}

fn names(figures: &[NamedFigure], wanted: impl Fn(&str) -> bool) -> Vec<String> {
    figures.iter().filter(|figure| wanted(&figure.name)).map(|figure| figure.name.clone()).collect()
}

/// What is not the same around two runs.
fn warnings<T: Figures>(before: &Stored<T>, after: &Stored<T>) -> Vec<String> {
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
    let surroundings = before.results.surroundings().into_iter().zip(after.results.surroundings());
    pairs.extend(surroundings.map(|((what, before), (_, now))| (what, before, now)));
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
    fn new(before: &NamedFigure, after: &NamedFigure, drift: f64) -> Self {
        Self {
            name: after.name.clone(),
            unit: after.unit,
            before: before.value.to_string(),
            after: after.value.to_string(),
            ratio: ratio(before, after),
            verdict: Verdict::of(&before.value, &after.value, drift),
        }
    }
}

impl Comparison {
    /// Figures that fail it: slower than the noise, or counts that differ.
    pub fn failures(&self) -> impl Iterator<Item = &Row> {
        self.rows.iter().filter(|row| row.verdict.fails())
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
