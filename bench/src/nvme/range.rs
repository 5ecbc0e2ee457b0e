//! The middle of some rounds, and how far they reach.

use serde::{Deserialize, Serialize};

/// Least, median and most of some rounds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Range {
    /// The least.
    pub min: f64,
    /// Half of them are below.
    pub median: f64,
    /// The most.
    pub max: f64,
}

impl Range {
    /// That of at least one round; each of the three is one of the rounds.
    pub fn of(rounds: &[f64]) -> Option<Self> {
        let mut sorted = rounds.to_vec();
        sorted.sort_by(f64::total_cmp);
        Some(Self { min: *sorted.first()?, median: sorted[sorted.len() / 2], max: *sorted.last()? })
    }

    /// `min/median/max`, with as many decimals.
    pub fn shown(&self, decimals: usize) -> String {
        format!("{:.decimals$}/{:.decimals$}/{:.decimals$}", self.min, self.median, self.max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_is_of_rounds_that_there_were() {
        assert_eq!(Range::of(&[]), None);
        assert_eq!(Range::of(&[3.0]), Some(Range { min: 3.0, median: 3.0, max: 3.0 }));
        assert_eq!(Range::of(&[3.0, 1.0, 2.0, 9.0, 4.0]).unwrap().shown(1), "1.0/3.0/9.0");
    }
}
