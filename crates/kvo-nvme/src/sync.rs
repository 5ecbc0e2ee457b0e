//! Atomics whose interleavings can all be tried: `cargo xtask loom`.

#[cfg(kvo_loom)]
pub(crate) use loom::sync::atomic::{AtomicU8, AtomicUsize, Ordering, fence};
#[cfg(not(kvo_loom))]
pub(crate) use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering, fence};
