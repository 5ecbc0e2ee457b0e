//! Names of what a bed's engine lends to the bed's device.

use kvo_core::{DeviceSpan, EventHandle, OwnerId, StreamHandle};

/// Memory that a bed has allocated.
pub(crate) fn span(address: u64, bytes: u64, ordinal: u32) -> DeviceSpan {
    // SAFETY: the bed frees its memory after its device is gone, and has no reference into it.
    unsafe { DeviceSpan::from_raw(address, bytes, ordinal) }
}

/// A stream that a bed has made.
pub(crate) fn stream(device: OwnerId, raw: u64) -> StreamHandle {
    // SAFETY: the stream is of the device's primary context, and the bed destroys it after its device is gone.
    unsafe { StreamHandle::from_raw(device, raw) }
}

/// An event that a bed has made.
pub(crate) fn event(device: OwnerId, raw: u64) -> EventHandle {
    // SAFETY: as for a stream.
    unsafe { EventHandle::from_raw(device, raw) }
}
