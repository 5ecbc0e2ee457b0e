//! Errors of construction.

/// Options that make no manager.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// A number that must be at least one is zero.
    #[error("{field} must be at least 1")]
    Zero {
        /// The option.
        field: &'static str,
    },
    /// The policy was built for fewer slots than the tier has.
    #[error("num_slots is {num_slots}, but the policy was built for {policy_slots} slots")]
    PolicyTooSmall {
        /// The option's value.
        num_slots: u32,
        /// What the policy was built for.
        policy_slots: u32,
    },
    /// There are more slots than a manager can keep the books of, or than there is memory for.
    #[error(
        "num_slots is {num_slots}: at most {num_slots_max} are possible, if there is memory for their books"
    )]
    TooManySlots {
        /// The option's value.
        num_slots: u32,
        /// The limit.
        num_slots_max: u32,
    },
}

/// A host memory region could not be made; nothing is mapped.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RegionError {
    /// A number that must be at least one is zero.
    #[error("{field} must be at least 1")]
    Zero {
        /// The option.
        field: &'static str,
    },
    /// The size does not fit the address space.
    #[error("{num_slots} slots of {slot_bytes} bytes do not fit the address space")]
    Overflow {
        /// Slots asked for.
        num_slots: u32,
        /// Bytes a slot.
        slot_bytes: usize,
    },
    /// There is not that much memory.
    #[error("{asked_bytes} bytes are asked for and {available_bytes} bytes of memory are available")]
    NotEnoughMemory {
        /// Slots times bytes a slot.
        asked_bytes: usize,
        /// What the system says can be had now.
        available_bytes: u64,
    },
    /// A shared region is not of the size that the options say.
    #[error("the shared region has {actual_bytes} bytes where the options ask for {asked_bytes} bytes")]
    SizeMismatch {
        /// Slots times bytes a slot.
        asked_bytes: usize,
        /// What was handed in.
        actual_bytes: u64,
    },
    /// A shared region that can still be shrunk or grown, so that mapped memory could vanish.
    #[error(
        "the shared region is not sealed against shrinking and growing: hand on the descriptor of a region made by kvo"
    )]
    NotSealed,
    /// The system refused.
    #[error("cannot {operation}")]
    System {
        /// What was tried.
        operation: &'static str,
        /// What the system said.
        #[source]
        source: std::io::Error,
    },
}
