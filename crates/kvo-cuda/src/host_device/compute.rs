//! The streams that an engine's compute runs on.

use std::{
    ops::Range,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    time::Duration,
};

use kvo_core::{ComputePoint, DeviceHealth, EventHandle, StreamHandle};

use super::{
    HostDevice,
    core::{Accesses, Core},
    handles,
    memory::DeviceMemory,
    shared::Shared,
    streams::Item,
};
use crate::ComputeError;

/// A compute stream of a [`HostDevice`]: where an engine puts what would be kernels on a GPU.
///
/// Kernels run one after the other in the order of their launch, on a thread of the stream, at some time after
/// [`launch`](Self::launch) returned. A fence marks a place between two launches; a transfer that names it touches no
/// byte before the kernels in front of it have run. Streams are not ordered against each other, except by
/// [events](Self::wait_for). The queue has no limit of its own: an engine bounds it by waiting for its steps.
///
/// A kernel that panics is a kernel that faults: the device is dead from then on, with code
/// [`HostDevice::KERNEL_PANICKED`], and the kernels behind it are dropped without having run.
///
/// A clone is another handle to the same stream. Handles may be used from any thread and outlive the device.
#[derive(Clone, Debug)]
pub struct ComputeStream {
    shared: Arc<Shared>,
    number: u32,
}

impl ComputeStream {
    pub(super) fn new(shared: Arc<Shared>, number: u32) -> Self {
        Self { shared, number }
    }

    /// Its name for a [`DeviceBackend`](kvo_core::DeviceBackend).
    pub fn handle(&self) -> StreamHandle {
        handles::stream(self.shared.id(), self.number)
    }

    /// The point behind all that is on it at the time of the call that is given this.
    pub fn point(&self) -> ComputePoint {
        ComputePoint::Stream(self.handle())
    }

    /// Puts a kernel on the stream that does not say what it touches. The race detector sees only what it does to bytes
    /// that a transfer is bringing.
    ///
    /// A kernel may launch others. It must not wait for the stream it runs on, and one that never returns holds up
    /// every fence behind it.
    ///
    /// # Errors
    /// [`ComputeError::Unhealthy`] if the device is dead or shut down; the kernel is dropped.
    pub fn launch(&self, kernel: impl FnOnce(&DeviceMemory) + Send + 'static) -> Result<(), ComputeError> {
        self.put(Box::new(kernel), None)
    }

    /// Puts a kernel on the stream that touches no more than it says.
    ///
    /// # Errors
    /// [`ComputeError::Access`] unless each range is in one allocation, [`ComputeError::Unhealthy`] if the device is
    /// dead or shut down; nothing was put on the stream.
    pub fn launch_with(
        &self,
        accesses: Accesses,
        kernel: impl FnOnce(&DeviceMemory) + Send + 'static,
    ) -> Result<(), ComputeError> {
        for Range { start, end } in accesses.reads.iter().chain(&accesses.writes) {
            self.shared.memory.find(*start, end.saturating_sub(*start))?;
        }
        self.put(Box::new(kernel), Some(accesses))
    }

    /// Puts a kernel on the stream that replaces the bytes from `address` on by `bytes`.
    ///
    /// # Errors
    /// As [`launch_with`](Self::launch_with).
    pub fn launch_write(&self, address: u64, bytes: Vec<u8>) -> Result<(), ComputeError> {
        let range = address..address.saturating_add(bytes.len() as u64);
        let accesses = Accesses { writes: vec![range], ..Accesses::default() };
        self.launch_with(accesses, move |memory| {
            memory
                .write(address, &bytes)
                .expect("the memory was there at launch, and stays until it is freed");
        })
    }

    /// Puts a kernel on the stream that hands `len` bytes from `address` on to `then`, on the stream's thread.
    ///
    /// # Errors
    /// As [`launch_with`](Self::launch_with).
    pub fn launch_read(
        &self,
        address: u64,
        len: usize,
        then: impl FnOnce(&[u8]) + Send + 'static,
    ) -> Result<(), ComputeError> {
        let range = address..address.saturating_add(len as u64);
        let accesses = Accesses { reads: vec![range], ..Accesses::default() };
        self.launch_with(accesses, move |memory| {
            let mut bytes = vec![0; len];
            memory
                .read(address, &mut bytes)
                .expect("the memory was there at launch, and stays until it is freed");
            then(&bytes);
        })
    }

    fn put(
        &self,
        kernel: Box<dyn FnOnce(&DeviceMemory) + Send>,
        accesses: Option<Accesses>,
    ) -> Result<(), ComputeError> {
        self.shared.lock().launch(self.number, kernel, accesses, &self.shared.memory)?;
        self.shared.wake_streams();
        Ok(())
    }

    /// Records an event behind all that is on the stream. What it was recorded behind before is forgotten, but not by
    /// fences and streams that were made to wait for it.
    ///
    /// # Errors
    /// [`ComputeError::ForeignEvent`].
    pub fn record(&self, event: EventHandle) -> Result<(), ComputeError> {
        let mut core = self.shared.lock();
        let event = core.event(event).map_err(|_| ComputeError::ForeignEvent)?;
        core.record_event(event, self.number);
        Ok(())
    }

    /// What is put on this stream from now on waits for what the event was last recorded behind; for nothing, if it
    /// never was.
    ///
    /// # Errors
    /// [`ComputeError::ForeignEvent`], or [`ComputeError::Unhealthy`] if the device is dead or shut down.
    pub fn wait_for(&self, event: EventHandle) -> Result<(), ComputeError> {
        let mut core = self.shared.lock();
        let event = core.event(event).map_err(|_| ComputeError::ForeignEvent)?;
        core.wait_event(self.number, event)?;
        drop(core);
        self.shared.wake_streams();
        Ok(())
    }

    /// Waits up to `timeout` until everything put on the stream before this call has run. Does not wait on a device
    /// that is [stepped](crate::SteppedDevice).
    ///
    /// # Errors
    /// [`ComputeError::TimedOut`], or [`ComputeError::Unhealthy`] if the device died; either way some of it may not
    /// have run.
    pub fn synchronize(&self, timeout: Duration) -> Result<(), ComputeError> {
        let deadline = self.shared.now().saturating_add(timeout);
        let mut core = self.shared.lock();
        let point = core.streams.behind_stream(self.number);
        let clock = core.detector.as_ref().map(|detector| detector.behind(self.number));
        loop {
            if let health @ DeviceHealth::Dead { .. } = core.queue.health() {
                return Err(ComputeError::Unhealthy(health));
            }
            if core.streams.has_passed(point) {
                if let (Some(detector), Some(clock)) = (&mut core.detector, clock) {
                    detector.learn(&clock);
                }
                return Ok(());
            }
            let left = deadline.saturating_sub(self.shared.now());
            if left.is_zero() || self.shared.clock.is_virtual() {
                return Err(ComputeError::TimedOut { waited: timeout });
            }
            core = self.shared.wait_ended(core, left);
        }
    }
}

/// The thread of a stream: runs what is on it until the device is stopped and nothing is left.
pub(super) fn run(shared: &Shared, stream: u32) {
    let mut core = shared.lock();
    loop {
        if core.can_run(stream) {
            let item = core.streams.take(stream);
            drop(core);
            if let Some(item) = item {
                run_item(shared, stream, item);
            }
            core = shared.lock();
        } else if core.queue.health() != DeviceHealth::Healthy && core.streams.front(stream).is_none() {
            return;
        } else {
            core = shared.wait_streams(core);
        }
    }
}

/// Runs an item that was taken from a stream, and passes it.
pub(super) fn run_item(shared: &Shared, stream: u32, item: Item) {
    if let Item::Kernel { kernel, memory } = item
        && catch_unwind(AssertUnwindSafe(|| kernel(&memory))).is_err()
    {
        shared.fail(HostDevice::KERNEL_PANICKED);
    }
    let mut core: std::sync::MutexGuard<'_, Core> = shared.lock();
    core.streams.pass(stream);
    drop(core);
    shared.wake_all();
}
