//! Errors of the host device and its streams. None of them leaves anything changed.

use std::{io, time::Duration};

use kvo_core::DeviceHealth;

/// A host device, or a part of it, could not be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HostDeviceError {
    /// An option that must be more than zero is not.
    #[error("{field} must be more than 0")]
    Zero {
        /// The option.
        field: &'static str,
    },
    /// A latency of the link is below zero, or no number of microseconds.
    #[error("{field} must be at least 0, and finite, but is {us}")]
    Latency {
        /// The option.
        field: &'static str,
        /// What it is.
        us: f64,
    },
    /// This process cannot have that much memory.
    #[error("cannot allocate {bytes} bytes of device memory")]
    OutOfMemory {
        /// Bytes asked for.
        bytes: u64,
    },
    /// A thread could not be started.
    #[error("cannot start a thread of the device")]
    Spawn(#[from] io::Error),
    /// The device is dead or shut down.
    #[error("the device makes no streams: {0:?}")]
    Unhealthy(DeviceHealth),
}

/// An access is not inside one allocation of the device's memory; no byte was touched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{bytes} bytes at {address:#x} are not in one allocation of the device")]
pub struct DeviceAccessError {
    /// Where the access starts.
    pub address: u64,
    /// How long it is, in bytes.
    pub bytes: u64,
}

/// A compute stream did not do what was asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ComputeError {
    /// The device is dead or shut down; nothing was put on the stream.
    #[error("the device runs no kernels: {0:?}")]
    Unhealthy(DeviceHealth),
    /// The kernel says that it touches what is no memory of the device; it was not put on the stream.
    #[error(transparent)]
    Access(#[from] DeviceAccessError),
    /// The event is another device's.
    #[error("the event is another device's")]
    ForeignEvent,
    /// The stream did not get there in time; it goes on.
    #[error("the compute stream is still busy after {waited:?}")]
    TimedOut {
        /// How long was waited.
        waited: Duration,
    },
}
