//! A bed around a device in host memory.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use crossbeam_channel::bounded;
use kvo_core::{DeviceBackend, DeviceSpan, EventHandle, HostMemory, StreamHandle};
use kvo_cpu::HostRegion;
use kvo_cuda::{ComputeStream, HostDevice, HostDeviceOptions};

use crate::{
    bed::{BedMaker, BedOptions, Hold, LONG, POISON, TestBed},
    pattern::pattern,
};

/// Makes [`HostBed`]s.
#[derive(Clone, Copy, Debug, Default)]
pub struct HostBeds;

impl BedMaker for HostBeds {
    fn name(&self) -> String {
        "host".to_owned()
    }

    fn is_model(&self) -> bool {
        true
    }

    fn make(&self, options: &BedOptions) -> Box<dyn TestBed> {
        Box::new(HostBed::new(options))
    }
}

/// A [`HostDevice`] with its race detector on, and its streams as an engine's.
#[derive(Debug)]
pub struct HostBed {
    device: HostDevice,
    host: Arc<HostRegion>,
    streams: Vec<Stream>,
}

#[derive(Debug)]
struct Stream {
    stream: ComputeStream,
    mismatches: Arc<AtomicU64>,
}

impl HostBed {
    /// # Panics
    /// If the machine has too little memory, or starts no threads.
    pub fn new(options: &BedOptions) -> Self {
        let host = options.host();
        let memory: Arc<dyn HostMemory> = host.clone();
        let device = HostDevice::new(
            HostDeviceOptions {
                inflight_max: options.inflight_max,
                quantum_bytes: options.quantum_bytes,
                drop_timeout: options.drop_timeout,
                segment_bytes: 1000,
                detect_races: true,
                ..HostDeviceOptions::default()
            },
            memory,
        );
        Self { device: device.unwrap_or_else(|error| panic!("{error}")), host, streams: Vec::new() }
    }

    fn stream(&self, handle: StreamHandle) -> &Stream {
        let is_it = |stream: &&Stream| stream.stream.handle() == handle;
        self.streams.iter().find(is_it).unwrap_or_else(|| panic!("{handle:?} is no stream of this bed"))
    }
}

impl TestBed for HostBed {
    fn device(&mut self) -> &mut dyn DeviceBackend {
        &mut self.device
    }

    fn host(&self) -> Arc<HostRegion> {
        self.host.clone()
    }

    fn allocate(&mut self, bytes: u64) -> DeviceSpan {
        let span = self.device.alloc(bytes).unwrap_or_else(|error| panic!("{error}"));
        let poison = vec![POISON; usize::try_from(bytes).expect("it was allocated in host memory")];
        self.write(span.address(), &poison);
        span
    }

    fn create_stream(&mut self) -> StreamHandle {
        let stream = if self.streams.is_empty() {
            self.device.compute().clone()
        } else {
            self.device.create_stream().unwrap_or_else(|error| panic!("{error}"))
        };
        let handle = stream.handle();
        self.streams.push(Stream { stream, mismatches: Arc::default() });
        handle
    }

    fn create_event(&mut self) -> EventHandle {
        self.device.create_event()
    }

    fn record(&mut self, event: EventHandle, stream: StreamHandle) {
        self.stream(stream).stream.record(event).unwrap_or_else(|error| panic!("{error}"));
    }

    fn fill(&mut self, stream: StreamHandle, address: u64, bytes: u64, seed: u64) {
        let bytes = pattern(seed, usize::try_from(bytes).expect("it is in host memory"));
        let launched = self.stream(stream).stream.launch_write(address, bytes);
        launched.unwrap_or_else(|error| panic!("{error}"));
    }

    fn check(&mut self, stream: StreamHandle, address: u64, bytes: u64, seed: u64) {
        let stream = self.stream(stream);
        let mismatches = Arc::clone(&stream.mismatches);
        let expected = pattern(seed, usize::try_from(bytes).expect("it is in host memory"));
        let launched = stream.stream.launch_read(address, expected.len(), move |found| {
            let differ = found.iter().zip(&expected).filter(|(found, expected)| found != expected).count();
            mismatches.fetch_add(differ as u64, Ordering::Relaxed);
        });
        launched.unwrap_or_else(|error| panic!("{error}"));
    }

    fn hold(&mut self, stream: StreamHandle) -> Hold {
        let (key, opened) = bounded::<()>(0);
        let launched = self.stream(stream).stream.launch(move |_| _ = opened.recv_timeout(LONG));
        launched.unwrap_or_else(|error| panic!("{error}"));
        Hold::new(key)
    }

    fn fault(&mut self, stream: StreamHandle) {
        let launched = self.stream(stream).stream.launch(|_| panic!("a fault that a case wants"));
        launched.unwrap_or_else(|error| panic!("{error}"));
    }

    fn synchronize(&mut self, stream: StreamHandle) -> u64 {
        let stream = self.stream(stream);
        stream.stream.synchronize(LONG).unwrap_or_else(|error| panic!("{error}"));
        stream.mismatches.load(Ordering::Relaxed)
    }

    fn read(&mut self, address: u64, bytes: &mut [u8]) {
        self.device.memory().read(address, bytes).unwrap_or_else(|error| panic!("{error}"));
    }

    fn write(&mut self, address: u64, bytes: &[u8]) {
        self.device.memory().write(address, bytes).unwrap_or_else(|error| panic!("{error}"));
    }

    fn complaints(&mut self) -> Vec<String> {
        self.device.take_races().iter().map(|race| format!("{race:?}")).collect()
    }
}
