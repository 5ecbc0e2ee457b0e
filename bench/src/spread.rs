//! The middle of some rounds, and how far they lie apart.

/// Quartiles of rounds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spread {
    /// A quarter of the rounds is below.
    pub first: f64,
    /// Half of them.
    pub median: f64,
    /// Three quarters.
    pub third: f64,
}

impl Spread {
    /// That of at least one round; each quartile is one of the rounds.
    pub fn of(rounds: &[f64]) -> Option<Self> {
        let mut sorted = rounds.to_vec();
        sorted.sort_by(f64::total_cmp);
        let at = |quarters: usize| sorted.get(sorted.len() * quarters / 4).copied();
        Some(Self { first: at(1)?, median: at(2)?, third: at(3)? })
    }

    /// Whether its quartiles and those of `other` have a value in common.
    pub fn overlaps(&self, other: &Self) -> bool {
        self.first <= other.third && other.first <= self.third
    }

    /// From the first quartile to the third, in percent of the median.
    pub fn percent(&self) -> f64 {
        if self.median > 0.0 { 100.0 * (self.third - self.first) / self.median } else { 0.0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quartiles_are_rounds_in_their_order() {
        assert_eq!(Spread::of(&[]), None);
        let spread = Spread::of(&[5.0, 1.0, 4.0, 2.0, 3.0]).unwrap();
        assert_eq!(spread, Spread { first: 2.0, median: 3.0, third: 4.0 });
        assert!((spread.percent() - 66.67).abs() < 0.01);
        assert_eq!(Spread::of(&[7.0]).unwrap(), Spread { first: 7.0, median: 7.0, third: 7.0 });
    }

    #[test]
    fn spreads_overlap_if_they_share_a_value() {
        let spread = |first, third| Spread { first, median: first, third };
        assert!(spread(1.0, 2.0).overlaps(&spread(2.0, 3.0)));
        assert!(spread(1.0, 9.0).overlaps(&spread(2.0, 3.0)));
        assert!(!spread(1.0, 2.0).overlaps(&spread(2.1, 3.0)));
        assert!(!spread(2.1, 3.0).overlaps(&spread(1.0, 2.0)));
    }
}
