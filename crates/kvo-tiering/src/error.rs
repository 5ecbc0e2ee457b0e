//! Errors of construction.

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
}
