//! What two values of a figure come to.

use std::fmt;

use super::{Better, Value};
use crate::Spread;

/// Rounds that are needed on both sides before their spread says anything.
pub const ROUNDS_MIN: usize = 5;

/// Medians closer than this are one, however little the rounds scatter: from one run to the next, addresses and
/// layouts move a figure by some percent.
pub const SLOWER_FACTOR: f64 = 1.1;

/// What two values of a figure come to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The later one is worse than the noise.
    Slower,
    /// It is better than the noise.
    Faster,
    /// It may be the same.
    WithinNoise,
    /// A count is the same.
    Equal,
    /// A count that should be the same is not.
    Differs,
    /// It is no figure of kvo: what the machine gives.
    OfTheMachine,
    /// Nothing can be said, and why.
    NotJudged(&'static str),
}

impl Verdict {
    pub(super) fn of(before: &Value, after: &Value) -> Self {
        match (before, after) {
            (Value::Exact { value: before, work: earlier }, Value::Exact { value: after, work: later }) => {
                match (earlier == later, before == after) {
                    (false, _) => Self::NotJudged("not the same work"),
                    (true, true) => Self::Equal,
                    (true, false) => Self::Differs,
                }
            }
            (Value::Machine(_), Value::Machine(_)) => Self::OfTheMachine,
            (Value::Rounds { rounds: before, better }, Value::Rounds { rounds: after, .. }) => {
                Self::of_rounds(before, after, *better)
            }
            (Value::Once(_), Value::Once(_)) => Self::NotJudged("taken once"),
            _ => Self::NotJudged("not of one kind"),
        }
    }

    fn of_rounds(before: &[f64], after: &[f64], better: Better) -> Self {
        if before.len().min(after.len()) < ROUNDS_MIN {
            return Self::NotJudged("too few rounds");
        }
        let (Some(before), Some(after)) = (Spread::of(before), Spread::of(after)) else {
            return Self::NotJudged("too few rounds");
        };
        let (worse, by) = match better {
            Better::Less => (after.median > before.median, after.median / before.median),
            Better::More => (after.median < before.median, before.median / after.median),
        };
        // Of a median of zero the factor is infinite, or of two no number at all.
        let is_apart = by >= SLOWER_FACTOR || by <= 1.0 / SLOWER_FACTOR;
        match is_apart && !before.overlaps(&after) {
            false => Self::WithinNoise,
            true if worse => Self::Slower,
            true => Self::Faster,
        }
    }

    /// Whether it makes the comparison fail.
    pub fn fails(self) -> bool {
        matches!(self, Self::Slower | Self::Differs)
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Slower => f.pad("SLOWER"),
            Self::Faster => f.pad("faster"),
            Self::WithinNoise => f.pad("within the noise"),
            Self::Equal => f.pad("equal"),
            Self::Differs => f.pad("DIFFERS"),
            Self::OfTheMachine => f.pad("of the machine"),
            Self::NotJudged(why) => write!(f, "not judged: {why}"),
        }
    }
}
