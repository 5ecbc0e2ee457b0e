//! What is measured, and what it is to cost.

use std::fmt;

use clap::ValueEnum;
use serde::Serialize;

/// A job: the same calls on every subject.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Job {
    /// A fresh chain in calls of 32 keys: evict, insert, complete, and finish with its recency.
    #[value(name = "cycle32")]
    Cycle32,
    /// The same in calls of one key.
    #[value(name = "cycle1")]
    Cycle1,
    /// Finish requests that have stored a fresh chain each.
    FinishOwn,
    /// A lookup of a chain that is there, without a pin.
    Lookup,
    /// The peer's match and drop of chains that are pinned already.
    MatchPinned,
    /// Look a chain up, pin it, unpin it by its token.
    Load,
    /// Finish requests that have loaded a chain each.
    FinishShared,
    /// A lookup of a chain whose first key is absent.
    Miss,
    /// What the caller makes before: the context of a request and its 256 positions.
    Context,
    /// The cycle in calls of 32, each call alone on cold caches.
    ColdCycle,
    /// The load on cold caches: look-up and pin together, and the unpin alone.
    ColdLoad,
}

/// What a figure counts nanoseconds of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Unit {
    /// A chunk.
    Chunk,
    /// A call.
    Call,
    /// A request of 256 chunks.
    Request,
}

impl Job {
    /// In the order in which they run: later ones count on what earlier ones leave.
    pub const ALL: [Self; 11] = [
        Self::Cycle32,
        Self::Cycle1,
        Self::FinishOwn,
        Self::Lookup,
        Self::MatchPinned,
        Self::Load,
        Self::FinishShared,
        Self::Miss,
        Self::Context,
        Self::ColdLoad,
        Self::ColdCycle,
    ];

    /// Whether each call runs alone, on cold caches.
    pub fn is_cold(self) -> bool {
        matches!(self, Self::ColdCycle | Self::ColdLoad)
    }

    /// Whether it stores chains that were not there before.
    pub fn takes_fresh(self) -> bool {
        matches!(self, Self::Cycle32 | Self::Cycle1 | Self::FinishOwn | Self::ColdCycle)
    }

    /// What its figures count.
    pub fn unit(self) -> Unit {
        match self {
            Self::FinishOwn => Unit::Request,
            Self::Miss => Unit::Call,
            _ => Unit::Chunk,
        }
    }

    /// What it is to cost in nanoseconds: at most, and at best. `chunks` is the size of the tier.
    pub fn targets(self, chunks: u32) -> (Option<f64>, Option<f64>) {
        let row: [(f64, f64); 4] = match self {
            Self::Cycle32 => [(30.0, 20.0), (45.0, 28.0), (75.0, 45.0), (95.0, 55.0)],
            Self::Cycle1 => [(55.0, 0.0), (100.0, 0.0), (300.0, 0.0), (350.0, 0.0)],
            Self::Lookup => [(8.0, 5.0), (10.0, 6.0), (30.0, 20.0), (40.0, 25.0)],
            Self::Load => [(15.0, 8.0), (18.0, 10.0), (60.0, 35.0), (75.0, 45.0)],
            Self::Miss => [(12.0, 6.0); 4],
            Self::FinishOwn => [(1000.0, 0.0); 4],
            Self::FinishShared => [(20.0, 0.0); 4],
            Self::ColdCycle => [(250.0, 0.0), (280.0, 0.0), (320.0, 0.0), (0.0, 0.0)],
            Self::ColdLoad => [(50.0, 0.0), (80.0, 0.0), (130.0, 0.0), (0.0, 0.0)],
            Self::MatchPinned | Self::Context => return (None, None),
        };
        let (at_most, at_best) = match chunks {
            9_000..=11_000 => row[0],
            90_000..=110_000 => row[1],
            900_000..=1_100_000 => row[2],
            7_500_000..=8_500_000 => row[3],
            _ => return (None, None),
        };
        let some = |ns: f64| (ns > 0.0).then_some(ns);
        (some(at_most), some(at_best))
    }

    /// How many times faster than kvbm-logical's counterpart it is to be.
    pub fn ratio_at_least(self) -> Option<f64> {
        Some(match self {
            Self::Cycle32 => 16.0,
            Self::Cycle1 => 5.0,
            Self::Lookup => 7.0,
            Self::Load | Self::ColdCycle => 9.0,
            Self::ColdLoad => 10.0,
            Self::Miss => 3.0,
            Self::FinishOwn | Self::FinishShared | Self::MatchPinned | Self::Context => return None,
        })
    }
}

impl fmt::Display for Job {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Cycle32 => "cycle, 32 a call",
            Self::Cycle1 => "cycle, 1 a call",
            Self::FinishOwn => "finish, 256 own",
            Self::Lookup => "lookup of 256",
            Self::MatchPinned => "match, pinned",
            Self::Load => "load of 256",
            Self::FinishShared => "finish, 256 shared",
            Self::Miss => "first key absent",
            Self::Context => "(context, positions)",
            Self::ColdCycle => "cold cycle, 32 a call",
            Self::ColdLoad => "cold load of 256",
        })
    }
}

impl fmt::Display for Unit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Chunk => "chunk",
            Self::Call => "call",
            Self::Request => "request",
        })
    }
}
