//! Host memory of kvo's own that a device reads and writes.

use std::{ptr::NonNull, sync::Arc};

use crate::cuda::driver::{CallError, Context};

const PAGE_BYTES: usize = 4096;

/// Bytes of the heap, registered; of 0 at first. Whoever puts copies of them on a stream drops it when these are over,
/// or has it [leaked](Self::leak).
pub(super) struct Pinned {
    context: Arc<Context>,
    memory: Vec<u8>,
    /// Where the first whole page of `memory` starts.
    start: usize,
    bytes: usize,
    /// The address by which the device knows the first byte.
    device: u64,
}

impl Pinned {
    /// The context is current.
    pub(super) fn new(context: &Arc<Context>, bytes: usize) -> Result<Self, CallError> {
        let mut memory = vec![0; bytes + PAGE_BYTES];
        let start = memory.as_ptr().align_offset(PAGE_BYTES);
        let first = NonNull::from(&mut memory[start..]).cast();
        // SAFETY: `memory` is neither moved nor freed before `drop` has unregistered it, or it is leaked.
        unsafe { context.register(first, bytes) }?;
        let mut pinned = Self { context: Arc::clone(context), memory, start, bytes, device: 0 };
        pinned.device = context.device_pointer(first)?;
        Ok(pinned)
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(super) fn device(&self) -> u64 {
        self.device
    }

    /// The first byte, and by this pointer all others.
    pub(super) fn first(&mut self) -> NonNull<u8> {
        NonNull::from(&mut self.memory[self.start..]).cast()
    }

    /// All of it, when no copy is under way.
    pub(super) fn all(&mut self) -> &mut [u8] {
        &mut self.memory[self.start..][..self.bytes]
    }

    /// Has its memory outlive it, registered: somebody may still copy.
    pub(super) fn leak(&mut self) {
        std::mem::forget(std::mem::take(&mut self.memory));
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        if self.memory.is_empty() {
            return;
        }
        let first = self.first();
        // SAFETY: every copy is over, as the type says, or the context is broken and this does nothing.
        if let Err(error) = unsafe { self.context.unregister(first) } {
            tracing::debug!(%error, bytes = self.bytes, "memory was not unregistered, and is not freed");
            self.leak();
        }
    }
}
