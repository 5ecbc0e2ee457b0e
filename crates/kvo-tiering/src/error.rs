//! Errors of construction.

use std::time::Duration;

/// Parts that make no tiering manager.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TieringConfigError {
    /// Two tiers have one name, so events and stats could not tell them apart.
    #[error("two tiers are named {name:?}: each needs a name of its own")]
    DuplicateTier {
        /// The name.
        name: String,
    },
    /// There are more tiers than a manager can tell apart.
    #[error("there are {num_tiers} secondary tiers, at most {num_tiers_max} are possible")]
    TooManyTiers {
        /// Tiers given.
        num_tiers: usize,
        /// The limit.
        num_tiers_max: usize,
    },
    /// A memory tier's policy was built for fewer chunks than the tier holds.
    #[error("capacity_chunks is {capacity_chunks}, but the policy was built for {policy_slots} chunks")]
    PolicyTooSmall {
        /// Chunks of the tier.
        capacity_chunks: u32,
        /// What the policy was built for.
        policy_slots: u32,
    },
    /// A number that must be at least one is zero.
    #[error("{field} must be at least 1")]
    Zero {
        /// The option.
        field: &'static str,
    },
    /// A share of the primary that is no share of it.
    #[error("{field} is {percent} percent: it must be between 1 and 100, or be left out")]
    Share {
        /// The option.
        field: &'static str,
        /// What it is.
        percent: u8,
    },
    /// A tier would be fast again while it is slow.
    #[error("{field}: the low watermark is {low:?}, and must be below the high one, which is {high:?}")]
    Watermarks {
        /// The option.
        field: &'static str,
        /// Below this a tier is fast again.
        low: Duration,
        /// Above this it is slow.
        high: Duration,
    },
    /// The first pause is longer than the longest.
    #[error("pause is {pause:?}, and must not be longer than pause_max, which is {pause_max:?}")]
    Pause {
        /// The first.
        pause: Duration,
        /// The longest.
        pause_max: Duration,
    },
}
