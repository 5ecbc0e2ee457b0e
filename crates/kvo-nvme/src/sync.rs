//! Atomics whose interleavings can all be tried: `RUSTFLAGS="--cfg kvo_loom" cargo test -p kvo-nvme --lib doorbell`.

#[cfg(kvo_loom)]
pub(crate) use loom::sync::atomic::{AtomicU8, Ordering, fence};
#[cfg(not(kvo_loom))]
pub(crate) use std::sync::atomic::{AtomicU8, Ordering, fence};
