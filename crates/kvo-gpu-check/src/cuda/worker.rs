//! A GPU with both of its sides in one hand.

use std::sync::Arc;

use kvo_core::{DeviceBackend, DeviceSpan, OwnerId, StableMemory, StreamHandle, WrapsDevice};
use kvo_cuda::{CudaDevice, CudaError, CudaOptions, CudaStats, DeviceFacts};

use super::{engine::CudaEngine, raw::EngineError};
use crate::handles;

/// A [`CudaWorker`] could not be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WorkerError {
    /// There is no engine's side of it.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// There is no device.
    #[error(transparent)]
    Device(#[from] CudaError),
}

/// A [`CudaDevice`], and an engine on the same GPU that lends it memory and streams: what an engine's worker has, for
/// programs without unsafe code of their own. What is lent lives until the device is gone.
///
/// # Errors
/// Calls of the engine's side give [`EngineError`], and have done nothing then. On a broken device every call fails.
///
/// # Panics
/// Calls that take a stream, if this worker has not made it.
// Fields drop in this order: the device before what it borrows.
#[derive(Debug)]
pub struct CudaWorker {
    device: CudaDevice,
    engine: CudaEngine,
}

impl CudaWorker {
    /// A device that copies to and from the slots of `host`, and an engine beside it.
    ///
    /// # Errors
    /// [`WorkerError`]; then nothing is left of it.
    pub fn new(options: CudaOptions, host: Arc<dyn StableMemory>) -> Result<Self, WorkerError> {
        let engine = CudaEngine::new(options.ordinal)?;
        Ok(Self { device: CudaDevice::new(options, host)?, engine })
    }

    /// The device.
    pub fn device(&mut self) -> &mut dyn DeviceBackend {
        &mut self.device
    }

    /// The GPU.
    pub fn facts(&self) -> &DeviceFacts {
        self.device.facts()
    }

    /// What the device did so far.
    pub fn stats(&self) -> CudaStats {
        self.device.stats()
    }

    /// Allocates memory, full of `0xa5`. It is not attached yet.
    pub fn allocate(&mut self, bytes: u64) -> Result<DeviceSpan, EngineError> {
        Ok(handles::span(self.engine.allocate(bytes)?, bytes, self.engine.ordinal()))
    }

    /// Makes a stream that is ordered against no other.
    pub fn create_stream(&mut self) -> Result<StreamHandle, EngineError> {
        let stream = self.engine.create_stream()?;
        Ok(handles::stream(self.id(), self.engine.raw_stream(stream)))
    }

    /// As [`CudaEngine::upload_on`].
    pub fn upload_on(&mut self, stream: StreamHandle, address: u64, bytes: &[u8]) -> Result<(), EngineError> {
        self.engine.upload_on(self.engine.stream_of(stream.raw()), address, bytes)
    }

    /// Waits until all on a stream is over.
    pub fn synchronize(&mut self, stream: StreamHandle) -> Result<(), EngineError> {
        self.engine.synchronize(self.engine.stream_of(stream.raw()))
    }

    /// Writes bytes, past all streams, and returns when they are there.
    pub fn upload(&mut self, address: u64, bytes: &[u8]) -> Result<(), EngineError> {
        self.engine.upload(address, bytes)
    }

    /// Reads bytes, past all streams.
    pub fn download(&mut self, address: u64, bytes: &mut [u8]) -> Result<(), EngineError> {
        self.engine.download(address, bytes)
    }

    /// Puts a kernel on a stream that breaks the device for good.
    pub fn fault(&mut self, stream: StreamHandle) -> Result<(), EngineError> {
        self.engine.fault(self.engine.stream_of(stream.raw()))
    }

    fn id(&self) -> OwnerId {
        self.device.info().id
    }
}

/// To be given to whoever owns a device: the engine's side goes with it.
impl WrapsDevice for CudaWorker {
    fn wrapped(&self) -> &dyn DeviceBackend {
        &self.device
    }

    fn wrapped_mut(&mut self) -> &mut dyn DeviceBackend {
        &mut self.device
    }
}

/// Whether a device's speed says nothing of any hardware, as it is one of a driver for tests. Such a device says so in
/// its name.
pub fn is_model(device: &DeviceFacts) -> bool {
    device.name.ends_with("(model)")
}
