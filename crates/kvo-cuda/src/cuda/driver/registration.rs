//! Host memory that the driver knows: pinned, so that engines copy from and to it on their own.

use std::{ops::Range, ptr::NonNull, sync::Arc};

use kvo_core::StableMemory;
use rustix::mm::{Advice, madvise};

use super::context::{CallError, Context};

/// A part of a host memory's span, registered until this drops. Whoever puts copies on a device's queue that use it
/// drops it only when the device is done with them.
pub(crate) struct Registration {
    context: Arc<Context>,
    memory: Arc<dyn StableMemory>,
    range: Range<usize>,
}

impl Registration {
    /// Registers a part of the span for every context. This context is current.
    pub(crate) fn new(
        context: &Arc<Context>,
        memory: &Arc<dyn StableMemory>,
        range: Range<usize>,
    ) -> Result<Self, CallError> {
        let start = start_of(memory, &range);
        // SAFETY: the value made below owns a share of the memory, which stays mapped with it, and unregisters it
        // before that share is gone.
        unsafe { context.register(start, range.len()) }?;
        Ok(Self { context: Arc::clone(context), memory: Arc::clone(memory), range })
    }

    /// Its bytes of the span.
    pub(crate) fn range(&self) -> Range<usize> {
        self.range.clone()
    }

    /// The address by which the device of a context knows its first byte, if the driver says so. The context is current.
    pub(crate) fn device_address(&self, context: &Context) -> Option<u64> {
        context.device_pointer(start_of(&self.memory, &self.range)).ok()
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        let start = start_of(&self.memory, &self.range);
        // SAFETY: whoever used it for copies is done with them, as the type says.
        if let Err(error) = unsafe { self.context.unregister(start) } {
            tracing::warn!(%error, bytes = self.range.len(), "host memory stays registered, and is never unmapped");
            std::mem::forget(Arc::clone(&self.memory));
        }
    }
}

/// Has the kernel back a part of the span with pages, by the nodes that this thread prefers; what is there already
/// stays as it is.
pub(crate) fn populate(memory: &Arc<dyn StableMemory>, range: &Range<usize>) -> std::io::Result<()> {
    let start = start_of(memory, range);
    // SAFETY: the range is a part of a mapping that stays as long as `memory`, which is borrowed until the call has
    // returned; the advice changes no byte of it.
    unsafe { madvise(start.as_ptr().cast(), range.len(), Advice::LinuxPopulateWrite) }?;
    Ok(())
}

fn start_of(memory: &Arc<dyn StableMemory>, range: &Range<usize>) -> NonNull<u8> {
    let (start, bytes) = memory.span();
    assert!(range.start < range.end && range.end <= bytes, "{range:?} is no part of {bytes} bytes");
    // SAFETY: the range lies inside of the span, as whoever cut it has seen to; the span is one mapping, which by the
    // contract of `StableMemory` stays as long as `memory` lives.
    unsafe { start.add(range.start) }
}
