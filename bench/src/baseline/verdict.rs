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
    /// `drift` is how far the machine moved between the two, a factor of at least one.
    pub(super) fn of(before: &Value, after: &Value, drift: f64) -> Self {
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
                Self::of_rounds(before, after, *better, SLOWER_FACTOR * drift)
            }
            (Value::Once(_), Value::Once(_)) => Self::NotJudged("taken once"),
            _ => Self::NotJudged("not of one kind"),
        }
    }

    fn of_rounds(before: &[f64], after: &[f64], better: Better, factor: f64) -> Self {
        let enough = before.len().min(after.len()) >= ROUNDS_MIN;
        let (true, Some(earlier), Some(later)) = (enough, Spread::of(before), Spread::of(after)) else {
            return Self::NotJudged("too few rounds");
        };
        // By how much the later one is worse: in the middle, and in the round that was disturbed least.
        let worse = match better {
            Better::Less => [later.median / earlier.median, least(after) / least(before)],
            Better::More => [earlier.median / later.median, most(before) / most(after)],
        };
        // Zero over zero is no number, and neither of these.
        if earlier.overlaps(&later) {
            Self::WithinNoise
        } else if worse.iter().all(|by| *by >= factor) {
            Self::Slower
        } else if worse.iter().all(|by| *by <= 1.0 / factor) {
            Self::Faster
        } else {
            Self::WithinNoise
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

fn least(rounds: &[f64]) -> f64 {
    rounds.iter().copied().fold(f64::INFINITY, f64::min)
}

fn most(rounds: &[f64]) -> f64 {
    rounds.iter().copied().fold(0.0, f64::max)
}
