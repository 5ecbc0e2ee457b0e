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
    /// A number that must be at least one is zero.
    #[error("{field} must be at least 1")]
    Zero {
        /// The option.
        field: &'static str,
    },
}
