//! One worker of an engine, with a device, caches and slots of its own.

use std::{
    ops::Range,
    sync::{Arc, atomic::AtomicU64},
    time::Duration,
};

use kvo_connector::{CopyId, CopyResult, LayerOrder, Worker, WorkerOptions, WorkerReport};
use kvo_core::{ComputePoint, DeviceBackend, DeviceHealth, StreamHandle};
use kvo_cpu::{HostRegion, RegionOptions};
use kvo_cuda::Step;

use crate::{
    caches::{Caches, Parts, Place, Stepping, slot_bytes},
    setup::Setup,
};

/// The code of a device that is made to fail.
const FAILED: u32 = 700;

pub(crate) struct Rank {
    pub(crate) worker: Worker<Stepping>,
    pub(crate) host: Arc<HostRegion>,
    caches: Caches,
    pub(crate) stream: StreamHandle,
    /// Not yet told.
    pub(crate) reports: Vec<WorkerReport>,
    /// Whether nobody hears of it.
    pub(crate) is_silent: bool,
}

/// Host memory for the chunks of one worker.
pub(crate) fn region(setup: &Setup) -> Arc<HostRegion> {
    let slot_bytes = slot_bytes(&setup.groups, setup.token_bytes);
    let options = RegionOptions {
        huge_pages: false,
        prefault_threads: 0,
        ..RegionOptions::new(setup.num_slots, usize::try_from(slot_bytes).expect("it is small"))
    };
    Arc::new(HostRegion::anonymous(&options).expect("there is little memory to map"))
}

impl Rank {
    /// The worker of that number.
    pub(crate) fn new(number: u32, setup: &Setup, host: Arc<HostRegion>, seed: u64, now: Duration) -> Self {
        let (groups, token_bytes) = (&setup.groups, setup.token_bytes);
        let Parts { caches, mut device, spans, layout } =
            Caches::make(number, setup, Arc::clone(&host) as _, seed);
        device.0.advance_to(now);
        let stream = device.0.device().compute().handle();
        let options = WorkerOptions { deadline: setup.copy_deadline, ..WorkerOptions::default() };
        let slots = (setup.num_slots, slot_bytes(groups, token_bytes));
        let worker = Worker::new(device, &spans, layout, slots, options).expect("all fits");
        Self { worker, host, caches, stream, reports: Vec::new(), is_silent: false }
    }

    /// Does one thing, or lets time pass until there is one to do.
    pub(crate) fn step(&mut self) {
        let device = &mut self.worker.device_mut().0;
        if let Step::Idle { until: Some(until) } = device.step() {
            device.advance_to(until);
        }
    }

    /// Does all that is to be done.
    pub(crate) fn finish(&mut self) {
        self.worker.device_mut().0.run();
    }

    pub(crate) fn advance_to(&mut self, now: Duration) {
        self.worker.device_mut().0.advance_to(now);
    }

    pub(crate) fn fail(&mut self) {
        self.worker.device().0.device().fail(FAILED);
    }

    pub(crate) fn is_dead(&self) -> bool {
        matches!(self.worker.device().0.device().health(), DeviceHealth::Dead { .. })
    }

    pub(crate) fn point(&self) -> ComputePoint {
        self.worker.device().0.device().compute().point()
    }

    pub(crate) fn compute(
        &self,
        accesses: (Vec<Place>, Vec<Place>),
        layers: Range<u32>,
        wrong: &Arc<AtomicU64>,
    ) {
        self.caches.compute(self.worker.device(), accesses, layers, wrong);
    }

    /// Puts a wait for a layer on the stream. Says whether it is of any use to compute behind it: where the copy has failed
    /// another one may still be at its blocks.
    pub(crate) fn wait_for_layer(&mut self, copy: CopyId, layer: u32) -> bool {
        let mut order = self.worker.order_layer(copy, layer, self.stream);
        while order == Ok(LayerOrder::NotYet) {
            self.step();
            // What it waits for itself may have ended.
            self.worker.poll(&mut self.reports);
            order = self.worker.order_layer(copy, layer, self.stream);
        }
        self.worker.poll(&mut self.reports);
        let has_failed = |report: &WorkerReport| match report {
            WorkerReport::Ended { copy: of, result, .. } => *of == copy && *result != CopyResult::Done,
            WorkerReport::Released { .. } => false,
        };
        !self.reports.iter().any(has_failed)
    }
}
