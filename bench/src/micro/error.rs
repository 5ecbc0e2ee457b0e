//! Why a measurement came to nothing.

/// A subject did not do what the workload is made for.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MicroError {
    /// It could not be built.
    #[error("{subject} cannot be built for {chunks} chunks: {why}")]
    Build {
        /// Which.
        subject: String,
        /// Its capacity.
        chunks: u32,
        /// In its own words.
        why: String,
    },
    /// A call was answered otherwise than the workload has it.
    #[error("{subject}: {what}")]
    Unexpected {
        /// Which.
        subject: String,
        /// The call and its answer.
        what: String,
    },
    /// The system does not say how much memory a process has.
    #[error("cannot read the memory of this process")]
    Memory(#[source] std::io::Error),
}
