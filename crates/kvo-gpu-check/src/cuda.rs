//! A bed around a GPU.

mod engine;
#[expect(unsafe_code, reason = "calls of the driver")]
mod raw;
mod staging;
mod worker;

use std::{fmt, sync::Arc};

use kvo_core::{DeviceBackend, DeviceSpan, EventHandle, OwnerId, StableMemory, StreamHandle};
use kvo_cpu::HostRegion;
use kvo_cuda::{BatchUse, CopyPath, CudaDevice, CudaOptions, PathTable, TableSource};

pub use self::{
    engine::{CudaEngine, EventId, StreamId},
    raw::EngineError,
    worker::{CudaWorker, WorkerError, is_model},
};
use crate::{
    bed::{BedMaker, BedOptions, Hold, TestBed},
    handles,
};

/// What somebody beside a bed has seen that no program may do.
type Watch = Arc<dyn Fn() -> Vec<String>>;

/// Makes [`CudaBed`]s of one device.
#[derive(Clone)]
pub struct CudaBeds {
    name: String,
    is_model: bool,
    ordinal: u32,
    watch: Watch,
}

impl CudaBeds {
    /// Beds of the device with that ordinal. `is_model` if the driver is no GPU's.
    pub fn new(name: impl Into<String>, ordinal: u32, is_model: bool) -> Self {
        Self { name: name.into(), is_model, ordinal, watch: Arc::new(Vec::new) }
    }

    /// With somebody who watches, for [`TestBed::complaints`].
    #[must_use]
    pub fn watched(self, watch: impl Fn() -> Vec<String> + 'static) -> Self {
        Self { watch: Arc::new(watch), ..self }
    }

    /// How the device of a bed is made.
    pub fn device_options(&self, options: &BedOptions) -> CudaOptions {
        CudaOptions {
            inflight_max: options.inflight_max,
            window_bytes: options.window_bytes,
            quantum_bytes: options.quantum_bytes,
            drop_timeout: options.drop_timeout,
            batches: if options.path == Some(CopyPath::Batch) { BatchUse::Trusted } else { BatchUse::Off },
            // Without a wish nothing is measured: a case says nothing of speed, and shall not take its time.
            table: Some(options.path.map_or_else(PathTable::published, favour)),
            ..CudaOptions::new(self.ordinal)
        }
    }
}

/// A table by which one way is always the fastest.
fn favour(path: CopyPath) -> PathTable {
    let mut table = PathTable { source: TableSource::Given, ..PathTable::published() };
    for ways in &mut table.nanoseconds {
        for way in CopyPath::ALL {
            ways[way as usize].fill(if way == path { 1 } else { 1000 });
        }
    }
    table
}

impl fmt::Debug for CudaBeds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CudaBeds").field("name", &self.name).finish_non_exhaustive()
    }
}

impl BedMaker for CudaBeds {
    fn name(&self) -> String {
        self.name.clone()
    }

    fn is_model(&self) -> bool {
        self.is_model
    }

    fn make(&self, options: &BedOptions) -> Box<dyn TestBed> {
        let host = options.host();
        let memory: Arc<dyn StableMemory> = host.clone();
        let engine = CudaEngine::new(self.ordinal).unwrap_or_else(|error| panic!("{error}"));
        let device = CudaDevice::new(self.device_options(options), memory);
        let device = device.unwrap_or_else(|error| panic!("{error}"));
        Box::new(CudaBed { device, engine, host, watch: Arc::clone(&self.watch) })
    }
}

/// A [`CudaDevice`] and an engine on the same GPU.
// Fields drop in this order: the device before what it borrows.
pub struct CudaBed {
    device: CudaDevice,
    engine: CudaEngine,
    host: Arc<HostRegion>,
    watch: Watch,
}

impl fmt::Debug for CudaBed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CudaBed")
            .field("device", &self.device)
            .field("engine", &self.engine)
            .finish_non_exhaustive()
    }
}

impl CudaBed {
    fn id(&self) -> OwnerId {
        self.device.info().id
    }

    /// The device, as more than a backend.
    pub fn cuda(&self) -> &CudaDevice {
        &self.device
    }
}

#[track_caller]
fn must<T>(result: Result<T, EngineError>) -> T {
    result.unwrap_or_else(|error| panic!("the engine: {error}"))
}

impl TestBed for CudaBed {
    fn device(&mut self) -> &mut dyn DeviceBackend {
        &mut self.device
    }

    fn host(&self) -> Arc<HostRegion> {
        self.host.clone()
    }

    fn allocate(&mut self, bytes: u64) -> DeviceSpan {
        let address = must(self.engine.allocate(bytes));
        handles::span(address, bytes, self.engine.ordinal())
    }

    fn create_stream(&mut self) -> StreamHandle {
        let stream = must(self.engine.create_stream());
        handles::stream(self.id(), self.engine.raw_stream(stream))
    }

    fn create_event(&mut self) -> EventHandle {
        let event = must(self.engine.create_event());
        handles::event(self.id(), self.engine.raw_event(event))
    }

    fn record(&mut self, event: EventHandle, stream: StreamHandle) {
        let (event, stream) = (self.engine.event_of(event.raw()), self.engine.stream_of(stream.raw()));
        must(self.engine.record(event, stream));
    }

    fn fill(&mut self, stream: StreamHandle, address: u64, bytes: u64, seed: u64) {
        let stream = self.engine.stream_of(stream.raw());
        must(self.engine.fill(stream, address, bytes, seed));
    }

    fn check(&mut self, stream: StreamHandle, address: u64, bytes: u64, seed: u64) {
        let stream = self.engine.stream_of(stream.raw());
        must(self.engine.check(stream, address, bytes, seed));
    }

    fn hold(&mut self, stream: StreamHandle) -> Hold {
        let stream = self.engine.stream_of(stream.raw());
        must(self.engine.hold(stream))
    }

    fn fault(&mut self, stream: StreamHandle) {
        let stream = self.engine.stream_of(stream.raw());
        must(self.engine.fault(stream));
    }

    fn synchronize(&mut self, stream: StreamHandle) -> u64 {
        let stream = self.engine.stream_of(stream.raw());
        must(self.engine.synchronize(stream));
        must(self.engine.mismatches(stream))
    }

    fn read(&mut self, address: u64, bytes: &mut [u8]) {
        must(self.engine.download(address, bytes));
    }

    fn write(&mut self, address: u64, bytes: &[u8]) {
        must(self.engine.upload(address, bytes));
    }

    fn complaints(&mut self) -> Vec<String> {
        (self.watch)()
    }
}
