//! Handles of a device that has no driver. All unsafe code of the host device: names of things of its own.

use kvo_core::{DeviceSpan, EventHandle, OwnerId, StreamHandle};

/// A stretch of an allocation of a host device, whose ordinal is 0.
pub(super) fn span(address: u64, bytes: u64) -> DeviceSpan {
    // SAFETY: the address is virtual and nothing dereferences it: every access looks it up in the device's table of
    // allocations, which own their bytes behind locks, and finds nothing once the allocation was freed.
    unsafe { DeviceSpan::from_raw(address, bytes, 0) }
}

/// A stream of a host device, by its number.
pub(super) fn stream(device: OwnerId, number: u32) -> StreamHandle {
    // SAFETY: the handle is a number, looked up and checked by the device that made it; its streams live as long as
    // it does, and no other backend takes the handle.
    unsafe { StreamHandle::from_raw(device, u64::from(number) + 1) }
}

/// An event of a host device, by its number.
pub(super) fn event(device: OwnerId, number: u32) -> EventHandle {
    // SAFETY: as for `stream`.
    unsafe { EventHandle::from_raw(device, u64::from(number) + 1) }
}

/// The number of a stream or an event; `None` if no handle of a host device is like that.
pub(super) fn number(raw: u64) -> Option<u32> {
    raw.checked_sub(1).and_then(|number| u32::try_from(number).ok())
}
