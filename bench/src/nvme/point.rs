//! What a figure is to be, and whether it is.

use comfy_table::Table;
use serde::Serialize;

use crate::{new_table, number_cell};

use super::{Direction, NvmeCaseResult, Range, Ratio, StoreKind};

/// A figure with its bound.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Point {
    /// What it is of.
    pub what: String,
    /// The figure.
    pub value: f64,
    /// The bound, with which it is compared as it is, not as it is printed.
    pub bound: Bound,
    /// Whether it keeps to the bound.
    pub met: bool,
}

/// A bound of a figure.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Bound {
    /// The figure is to be at least this.
    AtLeast(f64),
    /// The figure is to be at most this.
    AtMost(f64),
}

impl Point {
    /// Compares.
    pub fn new(what: impl Into<String>, value: f64, bound: Bound) -> Self {
        let met = match bound {
            Bound::AtLeast(least) => value >= least,
            Bound::AtMost(most) => value <= most,
        };
        Self { what: what.into(), value, bound, met }
    }

    /// The ratio's median rate with its bound.
    pub fn of_rate(ratio: &Ratio, bound: Bound) -> Self {
        let Ratio { subject, over, direction, chunk_bytes, rate, .. } = ratio;
        let what = format!("{subject} over {over}, {direction}, {} KiB", chunk_bytes >> 10);
        Self::new(what, rate.median, bound)
    }

    /// The ratio's median CPU time a byte with its bound; none if there is no such ratio.
    pub fn of_cpu(ratio: &Ratio, bound: Bound) -> Option<Self> {
        let Ratio { subject, over, direction, chunk_bytes, cpu, .. } = ratio;
        let what = format!("CPU of {subject} over {over}, {direction}, {} KiB", chunk_bytes >> 10);
        Some(Self::new(what, cpu.as_ref()?.median, bound))
    }
}

/// What is asked, and whether it holds.
pub fn points_table(points: &[Point]) -> Table {
    let mut table = new_table(["what is asked", "is", "is to be", ""]);
    for Point { what, value, bound, met } in points {
        let met = if *met { "met" } else { "MISSED" };
        let shown = if value.abs() < 0.01 { format!("{value:.5}") } else { format!("{value:.3}") };
        table.add_row([what.as_str().into(), number_cell(shown), bound.to_string().into(), met.into()]);
    }
    table
}

impl std::fmt::Display for Bound {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::AtLeast(least) => write!(f, "at least {least}"),
            Self::AtMost(most) => write!(f, "at most {most}"),
        }
    }
}

impl StoreKind {
    /// What its rate over that of the floor is to be.
    pub fn rate_bound(self, direction: Direction) -> Bound {
        Bound::AtLeast(match (self, direction) {
            (Self::Raw, _) => 0.95,
            (Self::Full, Direction::Write) => 0.85,
            (Self::Full, Direction::Read) => 0.92,
            (Self::Pool, _) => 0.88,
        })
    }

    /// Seconds of a core a gigabyte that it may use; none where nothing is asked.
    pub fn cpu_bound(self) -> Option<Bound> {
        match self {
            Self::Raw => Some(Bound::AtMost(0.010)),
            Self::Full => Some(Bound::AtMost(0.050)),
            Self::Pool => None,
        }
    }
}

/// The CPU time of a kind of store at each chunk size both ways, with its bound.
pub fn cpu_points(cases: &[NvmeCaseResult], kind: StoreKind) -> Vec<Point> {
    let Some(bound) = kind.cpu_bound() else { return Vec::new() };
    let of_kind = cases.iter().filter(|case| case.subject == kind.name());
    let point = |case: &NvmeCaseResult| {
        let what =
            format!("CPU s a GB, {}, {}, {} KiB", case.subject, case.direction, case.chunk_bytes >> 10);
        Some(Point::new(what, Range::of(&case.cpu_s_per_gb)?.median, bound))
    };
    of_kind.filter_map(point).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_figure_on_its_bound_meets_it() {
        assert!(Point::new("", 0.95, Bound::AtLeast(0.95)).met);
        assert!(!Point::new("", 0.949, Bound::AtLeast(0.95)).met);
        assert!(Point::new("", 0.05, Bound::AtMost(0.05)).met);
        assert!(!Point::new("", f64::NAN, Bound::AtMost(0.05)).met);
        assert_eq!(Bound::AtMost(0.05).to_string(), "at most 0.05");
    }
}
