//! What goes wrong at a device.

use std::time::Duration;

use super::{DeviceHealth, Ticket, Transfer};
use crate::RegionId;

/// Why the bytes of a transfer are not to be trusted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TransferFailure {
    /// The device failed; see [`DeviceHealth`].
    #[error("the device failed with code {code}")]
    Device {
        /// The driver's code.
        code: u32,
    },
    /// The driver refused a copy of it, and still works.
    #[error("the driver refused the copy with code {code}")]
    Refused {
        /// The driver's code.
        code: u32,
    },
    /// A slot was being used by someone else.
    #[error(transparent)]
    Slot(#[from] crate::SlotAccessError),
    /// It did not end by its deadline.
    #[error("the transfer did not end within {after:?}")]
    TimedOut {
        /// Its deadline.
        after: Duration,
    },
    /// The device was shut down before the transfer began.
    #[error("the device was shut down before the transfer began")]
    ShutDown,
}

/// Memory could not be attached, or not be let go.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AttachError {
    /// The span has no bytes, or ends beyond 64 bits.
    #[error("{bytes} bytes at {address:#x} are no span of memory")]
    NoSpan {
        /// The span's address.
        address: u64,
        /// Its length.
        bytes: u64,
    },
    /// The span is of another device.
    #[error("the span is in the memory of device {given}, this is device {ordinal}")]
    OtherDevice {
        /// The span's device.
        given: u32,
        /// This device.
        ordinal: u32,
    },
    /// There is no such memory on the device, or not without a gap, or in more allocations than a backend looks at.
    #[error("{bytes} bytes at {address:#x} are not all memory of this device")]
    NotDeviceMemory {
        /// The span's address.
        address: u64,
        /// Its length.
        bytes: u64,
    },
    /// The span shares bytes with another region.
    #[error("the span shares bytes with region {}", region.0)]
    Overlap {
        /// The region.
        region: RegionId,
    },
    /// There is no such region any more.
    #[error("there is no region {}", region.0)]
    UnknownRegion {
        /// The region.
        region: RegionId,
    },
    /// Transfers of the region are in flight, or may still touch it.
    #[error("{inflight} transfers of region {} are not over", region.0)]
    InUse {
        /// The region.
        region: RegionId,
        /// The transfers.
        inflight: usize,
    },
    /// The driver refused.
    #[error("the driver refused with code {code}")]
    Refused {
        /// The driver's code.
        code: u32,
    },
    /// The device is dead or shut down.
    #[error("the device takes no memory: {0:?}")]
    Unhealthy(DeviceHealth),
}

/// A fence could not be made, or a stream not be made to wait.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FenceError {
    /// The stream or event is another backend's.
    #[error("the stream or event is another backend's")]
    ForeignHandle,
    /// There is no such stream or event.
    #[error("there is no stream or event {raw:#x}")]
    UnknownHandle {
        /// Its handle.
        raw: u64,
    },
    /// The ticket was never given out, or the transfer has no such mark.
    #[error("no transfer with ticket {} has a mark {mark}", ticket.0)]
    UnknownMark {
        /// The ticket.
        ticket: Ticket,
        /// The mark.
        mark: u32,
    },
    /// Too many fences that compute has not passed.
    #[error("{pending} fences are pending, the limit is {pending_max}")]
    Full {
        /// Fences that compute has not passed.
        pending: usize,
        /// The limit.
        pending_max: usize,
    },
    /// The driver refused.
    #[error("the driver refused with code {code}")]
    Refused {
        /// The driver's code.
        code: u32,
    },
    /// The device is dead or shut down.
    #[error("the device makes no fences: {0:?}")]
    Unhealthy(DeviceHealth),
}

/// A transfer was not taken.
#[derive(Debug, thiserror::Error)]
#[error("the transfer was not taken: {reason}")]
pub struct SubmitError {
    /// The transfer, handed back.
    pub transfer: Transfer,
    /// Why.
    pub reason: SubmitErrorReason,
}

/// Why a transfer was not taken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SubmitErrorReason {
    /// Too many transfers are in flight; poll and submit again.
    #[error("{inflight} transfers are in flight, the limit is {inflight_max}")]
    Full {
        /// Transfers in flight.
        inflight: usize,
        /// The limit.
        inflight_max: usize,
    },
    /// The device is dead or shut down.
    #[error("the device takes no transfers: {0:?}")]
    Unhealthy(DeviceHealth),
    /// The fence was made by another device.
    #[error("the fence was made by another device")]
    ForeignFence,
    /// The fence lies in the compute stream's future.
    #[error("the fence was never recorded on this device")]
    UnknownFence,
    /// The transfer has no copies.
    #[error("the transfer is empty")]
    Empty,
    /// A mark is less than the one before, or reaches beyond the copies.
    #[error("mark {index} is out of order or beyond the copies")]
    Marks {
        /// Its place in the transfer.
        index: usize,
    },
    /// A copy names a region that is not attached.
    #[error("copy {index} names a region that is not attached")]
    UnknownRegion {
        /// Its place in the transfer.
        index: usize,
    },
    /// A copy reaches beyond its region, the slots or a slot's end, or has no bytes.
    #[error("copy {index} reaches out of bounds")]
    OutOfBounds {
        /// Its place in the transfer.
        index: usize,
    },
    /// Two copies of the transfer write the same bytes.
    #[error("copy {index} overlaps another of the transfer")]
    Overlap {
        /// The place of one of them in the transfer.
        index: usize,
    },
}

/// A device did not become idle in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{inflight} transfers are still in flight after {waited:?}")]
pub struct DrainError {
    /// Transfers still in flight.
    pub inflight: usize,
    /// How long was waited.
    pub waited: Duration,
}
