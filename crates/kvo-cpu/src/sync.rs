//! Atomics whose interleavings can all be tried: `cargo xtask loom`.

#[cfg(kvo_loom)]
pub(crate) use loom::sync::atomic::{AtomicU32, Ordering};
#[cfg(not(kvo_loom))]
pub(crate) use std::sync::atomic::{AtomicU32, Ordering};
