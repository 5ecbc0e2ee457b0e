//! One worker of an engine, with a device, caches and slots of its own.

use std::{
    ops::Range,
    sync::{Arc, atomic::AtomicU64},
    time::Duration,
};

use kvo_connector::{CopyId, LayerOrder, Worker, WorkerOptions, WorkerReport};
use kvo_core::{ComputePoint, StreamHandle};
use kvo_cpu::{HostRegion, RegionOptions};
use kvo_cuda::Step;

use crate::{
    engine::Setup,
    memory::{Caches, Place, Stepping, compute},
};

pub(crate) struct Rank {
    pub(crate) worker: Worker<Stepping>,
    pub(crate) host: Arc<HostRegion>,
    caches: Caches,
    pub(crate) stream: StreamHandle,
    /// Not yet told.
    pub(crate) reports: Vec<WorkerReport>,
}

impl Rank {
    pub(crate) fn new(setup: &Setup, slot_bytes: u64, seed: u64) -> Self {
        let region = RegionOptions {
            huge_pages: false,
            prefault_threads: 0,
            ..RegionOptions::new(setup.num_slots, usize::try_from(slot_bytes).unwrap())
        };
        let host = Arc::new(HostRegion::anonymous(&region).unwrap());
        let (caches, device, spans, layout) =
            Caches::new(&setup.groups, setup.num_blocks, host.clone(), seed);
        let stream = device.0.device().compute().handle();
        let deadline = setup.faults.then_some(Duration::from_millis(3));
        let options = WorkerOptions { deadline, ..WorkerOptions::default() };
        let worker = Worker::new(device, &spans, layout, (setup.num_slots, slot_bytes), options).unwrap();
        Self { worker, host, caches, stream, reports: Vec::new() }
    }

    pub(crate) fn step(&mut self) {
        let device = &mut self.worker.device_mut().0;
        if let Step::Idle { until: Some(until) } = device.step() {
            device.advance_to(until);
        }
    }

    pub(crate) fn point(&self) -> ComputePoint {
        self.worker.device().0.device().compute().point()
    }

    pub(crate) fn compute(
        &self,
        reads: &[Place],
        writes: &[Place],
        layers: Range<u32>,
        wrong: &Arc<AtomicU64>,
    ) {
        compute(self.worker.device(), &self.caches, reads.to_vec(), writes.to_vec(), layers, wrong);
    }

    /// Puts a wait for a layer on the stream.
    pub(crate) fn wait_for_layer(&mut self, copy: CopyId, layer: u32) {
        while self.worker.order_layer(copy, layer, self.stream).unwrap() == LayerOrder::NotYet {
            self.step();
            // What it waits for itself may have ended.
            self.worker.poll(&mut self.reports);
        }
    }
}
