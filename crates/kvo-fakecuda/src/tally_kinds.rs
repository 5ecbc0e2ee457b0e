//! Kinds of entries of the lists that a test reads.

/// Kinds of violations.
pub(crate) const RED_ZONE: u32 = 1;
pub(crate) const KERNEL_RED_ZONE: u32 = 2;
pub(crate) const UNREGISTERED_IN_FLIGHT: u32 = 3;
pub(crate) const BATCH_OVERLAP: u32 = 4;
pub(crate) const HOST_FUNCTION_CALLS: u32 = 5;

/// Kinds of leaks.
pub(crate) const LEAKED_STREAM: u32 = 1;
pub(crate) const LEAKED_EVENT: u32 = 2;
pub(crate) const LEAKED_ALLOCATION: u32 = 3;
pub(crate) const LEAKED_REGISTRATION: u32 = 4;
pub(crate) const LEAKED_MODULE: u32 = 5;

/// Kinds of lines in the journal.
pub(crate) const RAN_TO_DEVICE: u32 = 1;
pub(crate) const RAN_TO_HOST: u32 = 2;
pub(crate) const RAN_COPY: u32 = 3;
pub(crate) const RAN_FILL: u32 = 4;
pub(crate) const RAN_COMPUTE: u32 = 5;
pub(crate) const RAN_LAUNCH: u32 = 6;
