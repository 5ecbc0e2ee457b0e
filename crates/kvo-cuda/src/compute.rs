//! The stream that an engine's compute runs on.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    time::Duration,
};

use crossbeam_channel::Receiver;
use kvo_core::Fence;

use crate::{
    ComputeError, DeviceMemory, HostDevice,
    control::{Control, Kernel, Stop},
};

/// The compute stream of a [`HostDevice`]: where an engine puts what would be kernels on a GPU.
///
/// Kernels run one after the other in the order of their launch, on a thread of the device, at some time after
/// [`launch`](Self::launch) returned. A fence marks a place between two launches; a transfer that names it touches no
/// byte before the kernels in front of it have run. The queue has no limit of its own: an engine bounds it by
/// waiting for its steps.
///
/// A kernel that panics is a kernel that faults: the device is dead from then on, with code
/// [`HostDevice::KERNEL_PANICKED`], and the kernels behind it are dropped without having run.
///
/// A clone is another handle to the same stream. Handles may be used from any thread and outlive the device.
#[derive(Clone, Debug)]
pub struct ComputeStream {
    control: Arc<Control>,
    memory: DeviceMemory,
}

impl ComputeStream {
    pub(crate) fn new(control: Arc<Control>, memory: DeviceMemory) -> Self {
        Self { control, memory }
    }

    /// Puts a kernel on the stream.
    ///
    /// A kernel may launch others. It must not wait for the stream it runs on, and one that never returns holds up
    /// every fence behind it.
    ///
    /// # Errors
    /// [`ComputeError::Unhealthy`] if the device is dead or shut down; the kernel is dropped.
    pub fn launch(&self, kernel: impl FnOnce(&DeviceMemory) + Send + 'static) -> Result<(), ComputeError> {
        self.control.launch(Box::new(kernel))
    }

    /// Puts a kernel on the stream that replaces the bytes from `offset` on by `bytes`.
    ///
    /// # Errors
    /// [`ComputeError::Access`] if they reach beyond the device's memory, [`ComputeError::Unhealthy`] if the device
    /// is dead or shut down; nothing was put on the stream.
    pub fn launch_write(&self, offset: u64, bytes: Vec<u8>) -> Result<(), ComputeError> {
        self.memory.check(offset, bytes.len())?;
        self.launch(move |memory| memory.write(offset, &bytes).expect("the bounds were checked at launch"))
    }

    /// A fence behind everything launched so far, as [`record_fence`](kvo_core::DeviceBackend::record_fence) of the
    /// device.
    pub fn record_fence(&self) -> Fence {
        self.control.record_fence()
    }

    /// Waits up to `timeout` until everything launched before this call has run.
    ///
    /// # Errors
    /// [`ComputeError::TimedOut`], or [`ComputeError::Unhealthy`] if the device died; either way some of it may not
    /// have run.
    pub fn synchronize(&self, timeout: Duration) -> Result<(), ComputeError> {
        self.control.synchronize(timeout)
    }
}

/// The compute thread: runs kernels until the stream is closed and empty.
pub(crate) fn run(control: &Control, memory: &DeviceMemory, stream: &Receiver<Kernel>) {
    for kernel in stream {
        let dead = matches!(control.stop(), Some(Stop::Dead { .. }));
        let passed = catch_unwind(AssertUnwindSafe(|| if dead { drop(kernel) } else { kernel(memory) }));
        if passed.is_err() {
            control.fail(HostDevice::KERNEL_PANICKED);
        }
        control.pass();
    }
}
