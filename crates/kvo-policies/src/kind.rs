//! Policies by name.

use std::{fmt, str::FromStr};

use crate::{Arc, CachePolicy, GhostHits, Lru};

/// A policy by name, for command lines and configuration files.
///
/// ```
/// use kvo_policies::PolicyKind;
///
/// # fn main() -> Result<(), kvo_policies::UnknownPolicy> {
/// let policy = "arc:ghost-hits=t2".parse::<PolicyKind>()?.build(1024);
/// let error = "arc2".parse::<PolicyKind>().unwrap_err();
/// assert_eq!(error.to_string(), "unknown policy \"arc2\": use lru, arc or arc:ghost-hits=t2");
/// # let _ = policy;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum PolicyKind {
    /// [`Lru`], `lru`.
    Lru,
    /// [`Arc`], `arc` or `arc:ghost-hits=t2`.
    Arc(GhostHits),
}

impl PolicyKind {
    /// Makes the policy for a tier of `capacity` chunks.
    pub fn build(self, capacity: u32) -> Box<dyn CachePolicy> {
        match self {
            Self::Lru => Box::new(Lru::new()),
            Self::Arc(ghost_hits) => Box::new(Arc::new(capacity, ghost_hits)),
        }
    }
}

impl fmt::Display for PolicyKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Lru => "lru",
            Self::Arc(GhostHits::T1) => "arc",
            Self::Arc(GhostHits::T2) => "arc:ghost-hits=t2",
        })
    }
}

impl FromStr for PolicyKind {
    type Err = UnknownPolicy;

    fn from_str(name: &str) -> Result<Self, UnknownPolicy> {
        match name {
            "lru" => Ok(Self::Lru),
            "arc" | "arc:ghost-hits=t1" => Ok(Self::Arc(GhostHits::T1)),
            "arc:ghost-hits=t2" => Ok(Self::Arc(GhostHits::T2)),
            _ => Err(UnknownPolicy { name: name.to_owned() }),
        }
    }
}

/// There is no policy of this name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownPolicy {
    name: String,
}

impl fmt::Display for UnknownPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "unknown policy {:?}: use lru, arc or arc:ghost-hits=t2", self.name)
    }
}

impl std::error::Error for UnknownPolicy {}
