//! The counts that were blessed, and how counts are shown.

use std::{fmt::Write as _, fs, path::Path};

use super::Counts;

/// By how much a count may be worse than when it was blessed: other compilers and other C libraries differ a little.
const SLACK: f64 = 1.03;
/// And by this many misses, so that a handful is no tenth of them.
const SLACK_MISSES: f64 = 0.05;

pub(super) const HEAD: &str = "\
job       subject   instructions   ceiling   target          D1 misses  ceiling   target          LL misses  ceiling";

const FILE_HEAD: &str = "\
# Instructions, first-level and last-level data misses a chunk, as `cargo xtask counts --bless` last found them.
# `cargo xtask counts --check` allows 3 % more, and 0.05 misses.
";

/// One job of one subject.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Line {
    pub(super) job: String,
    pub(super) subject: String,
    pub(super) counts: Counts,
}

/// What is in the file.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Table {
    pub(super) lines: Vec<Line>,
}

impl Table {
    pub(super) fn read(path: &Path) -> Result<Self, String> {
        let shown = path.display();
        let text = fs::read_to_string(path)
            .map_err(|error| format!("cannot read {shown}: {error}; cargo xtask counts --bless writes it"))?;
        Self::parse(&text).map_err(|line| {
            format!("{shown}, line {line}: a line is a job, a subject and three counts, as in \"load lru 883 14.6 1.1\"")
        })
    }

    /// The error is the number of a line that is none.
    fn parse(text: &str) -> Result<Self, usize> {
        let lines = text.lines().zip(1usize..).filter(|(line, _)| !line.is_empty() && !line.starts_with('#'));
        let lines: Result<_, usize> = lines.map(|(line, number)| Line::parse(line).ok_or(number)).collect();
        Ok(Self { lines: lines? })
    }

    pub(super) fn write(&self, path: &Path) -> Result<(), String> {
        let written = fs::write(path, self.text());
        written.map_err(|error| format!("cannot write {}: {error}", path.display()))
    }

    fn text(&self) -> String {
        let mut text = FILE_HEAD.to_owned();
        for Line { job, subject, counts: Counts { instructions, d1_misses, ll_misses } } in &self.lines {
            let _ = writeln!(text, "{job} {subject} {instructions:.1} {d1_misses:.3} {ll_misses:.3}");
        }
        text
    }

    /// What a line's counts may be at most; none where the table has no such line.
    pub(super) fn ceiling(&self, line: &Line) -> Option<Counts> {
        let blessed = self.lines.iter().find(|of| (&of.job, &of.subject) == (&line.job, &line.subject))?;
        let Counts { instructions, d1_misses, ll_misses } = blessed.counts;
        Some(Counts {
            instructions: SLACK * instructions,
            d1_misses: SLACK * d1_misses + SLACK_MISSES,
            ll_misses: SLACK * ll_misses + SLACK_MISSES,
        })
    }
}

impl Line {
    fn parse(line: &str) -> Option<Self> {
        let mut words = line.split_whitespace();
        let (job, subject) = (words.next()?.to_owned(), words.next()?.to_owned());
        let mut count = || words.next()?.parse::<f64>().ok().filter(|count| count.is_finite());
        let counts = Counts { instructions: count()?, d1_misses: count()?, ll_misses: count()? };
        words.next().is_none().then_some(Self { job, subject, counts })
    }

    /// Beside its ceiling and its target.
    pub(super) fn shown(&self, ceiling: Option<Counts>, target: Option<(f64, f64)>) -> String {
        let Self { job, subject, counts } = self;
        let at_most = |of: fn(&Counts) -> f64, places: usize| match &ceiling {
            Some(ceiling) if of(counts) > of(ceiling) => format!("{:.places$} ABOVE", of(ceiling)),
            Some(ceiling) => format!("{:.places$}", of(ceiling)),
            None => String::new(),
        };
        let wanted = |count: f64, target: Option<f64>| match target {
            Some(target) if count <= target => format!("{target:.0}: met"),
            Some(target) => format!("{target:.0}: missed"),
            None => String::new(),
        };
        let Counts { instructions, d1_misses, ll_misses } = counts;
        let line = format!(
            "{job:<9} {subject:<9} {instructions:>12.1}   {:<9} {:<13} {d1_misses:>11.2}  {:<9} {:<13} {ll_misses:>11.2}  {}",
            at_most(|of| of.instructions, 1),
            wanted(*instructions, target.map(|(instructions, _)| instructions)),
            at_most(|of| of.d1_misses, 2),
            wanted(*d1_misses, target.map(|(_, misses)| misses)),
            at_most(|of| of.ll_misses, 2),
        );
        line.trim_end().to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(instructions: f64, d1_misses: f64, ll_misses: f64) -> Line {
        let counts = Counts { instructions, d1_misses, ll_misses };
        Line { job: "load".to_owned(), subject: "lru".to_owned(), counts }
    }

    #[test]
    fn a_table_is_read_as_it_was_written() {
        let table = Table { lines: vec![line(883.1, 14.625, 1.125), line(2.5, 0.0, 0.0)] };
        assert_eq!(Table::parse(&table.text()), Ok(table));
        assert_eq!(Table::parse("# none\n\nload lru 883.1 14.6\n"), Err(3));
        assert_eq!(Table::parse("load lru 883.1 14.6 x"), Err(1));
        assert_eq!(Table::parse("load lru 883.1 14.6 1.1 1.2"), Err(1));
    }

    #[test]
    fn a_little_more_is_allowed_and_no_more_than_that() {
        let table = Table { lines: vec![line(100.0, 10.0, 0.0)] };
        let check = |line: Line, is_above: bool| {
            let ceiling = table.ceiling(&line).unwrap();
            assert_eq!(line.counts.is_above(ceiling), is_above, "{line:?}");
            assert_eq!(line.shown(Some(ceiling), None).contains("ABOVE"), is_above);
        };
        check(line(102.9, 10.34, 0.04), false);
        check(line(103.1, 10.0, 0.0), true);
        check(line(100.0, 10.36, 0.0), true);
        check(line(100.0, 10.0, 0.06), true);
        assert_eq!(table.ceiling(&Line { job: "cycle1".to_owned(), ..line(1.0, 1.0, 1.0) }), None);
    }

    #[test]
    fn a_line_says_what_is_met_and_what_is_missed() {
        let shown = line(249.0, 5.1, 1.0).shown(None, Some((250.0, 5.0)));
        assert!(shown.contains("250: met") && shown.contains("5: missed"), "{shown}");
    }
}
