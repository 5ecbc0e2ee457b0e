//! Axes whose marks are chosen here: round numbers, powers, or names of groups.

use std::ops::Range;

use plotters::coord::ranged1d::{KeyPointHint, KeyPointWeight, NoDefaultFormatting, Ranged, ValueFormatter};

/// An axis.
#[derive(Clone, Debug, PartialEq)]
pub(in crate::page) struct Axis {
    low: f64,
    high: f64,
    is_log: bool,
    ticks: Vec<(f64, String)>,
}

impl Axis {
    /// More marks than any axis has.
    pub(super) const TICKS_MAX: usize = 64;

    /// From zero to a round number that is `max` at least.
    pub(in crate::page) fn from_zero(max: f64) -> Self {
        Self::linear(0.0, max)
    }

    /// From a round number below `low` to one above `high`.
    pub(in crate::page) fn linear(low: f64, high: f64) -> Self {
        let high = if high > low { high } else { low + 1.0 };
        let step = round_step((high - low) / 5.0);
        let (first, last) = ((low / step).floor(), (high / step).ceil());
        let decimals = decimals_of(step);
        let mut ticks = Vec::new();
        let mut number = first;
        while number <= last && ticks.len() < Self::TICKS_MAX {
            ticks.push((number * step, format!("{:.decimals$}", number * step)));
            number += 1.0;
        }
        Self { low: first * step, high: last * step, is_log: false, ticks }
    }

    /// Logarithmic, around positive numbers: marks at 1, 2 and 5 times powers of ten, or at the powers alone where that
    /// would be many.
    pub(in crate::page) fn log(low: f64, high: f64) -> Self {
        let low = low.max(f64::MIN_POSITIVE);
        // A single number has some room around it.
        let (low, high) = if high > low { (low / 1.1, high * 1.1) } else { (low / 2.0, low * 2.0) };
        let mantissas: &[f64] = if high / low > 2000.0 { &[1.0] } else { &[1.0, 2.0, 5.0] };
        let mut ticks = Vec::new();
        let mut power = 10f64.powf(low.log10().floor());
        while power <= high && ticks.len() < Self::TICKS_MAX {
            let at = mantissas.iter().map(|mantissa| mantissa * power).filter(|at| (low..=high).contains(at));
            ticks.extend(at.map(|at| (at, short(at))));
            power *= 10.0;
        }
        Self { low, high, is_log: true, ticks }
    }

    /// Groups side by side, each one unit wide, named at their middles.
    pub(in crate::page) fn groups(names: &[String]) -> Self {
        let middle = |index: usize| index as f64 + 0.5;
        let ticks = names.iter().enumerate().map(|(index, name)| (middle(index), name.clone())).collect();
        Self { low: 0.0, high: names.len().max(1) as f64, is_log: false, ticks }
    }

    fn share(&self, value: f64) -> f64 {
        let of = |value: f64| if self.is_log { value.max(f64::MIN_POSITIVE).ln() } else { value };
        ((of(value) - of(self.low)) / (of(self.high) - of(self.low))).clamp(0.0, 1.0)
    }
}

/// The least of 1, 2 and 5 times a power of ten that is `least` at least.
fn round_step(least: f64) -> f64 {
    let least = least.max(f64::MIN_POSITIVE);
    let power = 10f64.powf(least.log10().floor());
    [1.0, 2.0, 5.0].iter().map(|factor| factor * power).find(|step| *step >= least).unwrap_or(10.0 * power)
}

/// Decimals that tell multiples of `step` apart.
fn decimals_of(step: f64) -> usize {
    (0..12)
        .find(|decimals| step * 10f64.powi(*decimals) >= 0.999)
        .map_or(12, |decimals| decimals.unsigned_abs() as usize)
}

/// A large round number with k, M or G behind it.
fn short(number: f64) -> String {
    let units = [(1e9, "G"), (1e6, "M"), (1e3, "k")];
    match units.iter().find(|(unit, _)| number >= *unit * 0.999) {
        Some((unit, name)) => format!("{}{name}", (number / unit * 100.0).round() / 100.0),
        None => format!("{}", (number * 1000.0).round() / 1000.0),
    }
}

impl Ranged for Axis {
    type FormatOption = NoDefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, (start, end): (i32, i32)) -> i32 {
        let pixels = f64::from(end) - f64::from(start);
        #[expect(
            clippy::cast_possible_truncation,
            reason = "within the pixels of the plot, for the share is clamped"
        )]
        let offset = (self.share(*value) * pixels).round() as i32;
        start + offset
    }

    fn key_points<Hint: KeyPointHint>(&self, hint: Hint) -> Vec<f64> {
        match hint.weight() {
            KeyPointWeight::Bold => self.ticks.iter().map(|(at, _)| *at).collect(),
            KeyPointWeight::Any => Vec::new(),
        }
    }

    fn range(&self) -> Range<f64> {
        self.low..self.high
    }
}

impl ValueFormatter<f64> for Axis {
    fn format_ext(&self, value: &f64) -> String {
        let near = |at: f64| (at - value).abs() <= 1e-9 * at.abs().max(1e-9);
        self.ticks.iter().find(|(at, _)| near(*at)).map(|(_, name)| name.clone()).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(axis: &Axis, names: &[&str]) {
        assert_eq!(axis.ticks.iter().map(|(_, name)| name.as_str()).collect::<Vec<_>>(), names, "{axis:?}");
    }

    #[test]
    fn linear_marks_are_round_and_hold_all_values() {
        check(&Axis::from_zero(95.0), &["0", "20", "40", "60", "80", "100"]);
        check(&Axis::from_zero(0.9), &["0.0", "0.2", "0.4", "0.6", "0.8", "1.0"]);
        check(&Axis::linear(61.0, 99.0), &["60", "70", "80", "90", "100"]);
        check(&Axis::from_zero(0.0), &["0.0", "0.2", "0.4", "0.6", "0.8", "1.0"]);
    }

    #[test]
    fn logarithmic_marks_are_powers_and_their_parts() {
        check(&Axis::log(110.0, 1200.0), &["100", "200", "500", "1k"]);
        check(&Axis::log(1.0, 1e6), &["1", "10", "100", "1k", "10k", "100k", "1M"]);
        check(&Axis::log(30.0, 30.0), &["20", "50"]);
    }

    #[test]
    fn values_are_mapped_to_pixels_and_what_is_outside_to_the_edge() {
        let log = Axis { low: 1.0, high: 100.0, is_log: true, ticks: Vec::new() };
        assert_eq!(
            [1.0, 10.0, 100.0, 1000.0, 0.0].map(|value| log.map(&value, (0, 200))),
            [0, 100, 200, 200, 0]
        );
        // The vertical axis runs upwards.
        let linear = Axis::from_zero(10.0);
        assert_eq!([0.0, 5.0, 10.0, 11.0].map(|value| linear.map(&value, (300, 100))), [300, 200, 100, 100]);
    }

    #[test]
    fn no_number_makes_endless_or_no_marks() {
        for (low, high) in [(0.0, 1e30), (0.0, 1e-30), (1e-30, 1e30), (5.0, 5.0), (0.0, f64::MIN_POSITIVE)] {
            for axis in [Axis::linear(low, high), Axis::log(low, high)] {
                assert!(axis.ticks.len() <= Axis::TICKS_MAX + 3, "{axis:?}");
                assert!(axis.high > axis.low, "{axis:?}");
                assert!((0..=100).contains(&axis.map(&high, (0, 100))), "{axis:?}");
            }
        }
    }

    #[test]
    fn groups_are_named_at_their_middles() {
        let axis = Axis::groups(&["10k".to_owned(), "1M".to_owned()]);
        assert_eq!(axis.format_ext(&1.5), "1M");
        assert_eq!(axis.range(), 0.0..2.0);
    }
}
