//! The worker that runs an offload's plans, and the waiting where a step depends on copies. All of it has a limit.

use std::time::{Duration, Instant};

use kvo_connector::{CopyId, LayerOrder, StepPlan, Worker, WorkerReport};
use kvo_core::{ComputePoint, RequestId, StreamHandle};
use kvo_cuda::HostDevice;

use super::offload::{Offload, OffloadEvents};
use crate::EngineError;

/// How long one look at the device waits, where a step waits for copies.
const LOOK: Duration = Duration::from_millis(5);

/// The worker, and what it has said.
#[derive(Debug)]
pub(super) struct Copies {
    worker: Worker<HostDevice>,
    /// How long copies are waited for that a step depends on.
    timeout: Duration,
    reports: Vec<WorkerReport>,
}

/// A load that compute runs behind, layer by layer.
#[derive(Clone, Copy, Debug)]
pub(super) struct LayeredLoad {
    pub(super) copy: CopyId,
    pub(super) request: RequestId,
}

impl LayeredLoad {
    fn has_ended(&self, events: &OffloadEvents) -> bool {
        events.loads_ended.iter().any(|(request, _)| *request == self.request)
    }
}

impl Copies {
    pub(super) fn new(worker: Worker<HostDevice>, timeout: Duration) -> Self {
        Self { worker, timeout, reports: Vec::new() }
    }

    pub(super) fn device(&self) -> &HostDevice {
        self.worker.device()
    }

    /// Whether the device has something to do, or something that it does not let go.
    pub(super) fn is_idle(&self) -> bool {
        self.worker.num_open() == 0
    }

    /// Tells the offload of all copies that have ended, and waits up to `patience` for one if any is open.
    pub(super) fn poll(
        &mut self,
        patience: Duration,
        offload: &mut impl Offload,
        events: &mut OffloadEvents,
    ) -> Result<(), EngineError> {
        if patience.is_zero() {
            self.worker.poll(&mut self.reports);
        } else {
            self.worker.wait(patience, &mut self.reports);
        }
        offload.reported(&mut self.reports, events)?;
        self.reports.clear();
        Ok(())
    }

    /// Begins the loads of a plan behind the compute that is on the stream.
    pub(super) fn start_loads(&mut self, plan: &StepPlan, compute: ComputePoint) {
        self.worker.start_loads(plan, compute);
    }

    /// Begins the stores of a plan behind the compute that is on the stream.
    pub(super) fn start_stores(&mut self, plan: &StepPlan, compute: ComputePoint) {
        self.worker.start_stores(plan, compute);
    }

    /// Lets what is put on the stream from now on come after copies, however they end: they touch their blocks no more.
    ///
    /// # Errors
    /// [`EngineError::CopyTimedOut`] if the device does not begin them, or does not let go of them, in time.
    pub(super) fn order_behind(
        &mut self,
        copies: &[CopyId],
        stream: StreamHandle,
        offload: &mut impl Offload,
        events: &mut OffloadEvents,
    ) -> Result<(), EngineError> {
        let started = Instant::now();
        let mut not_yet = copies.to_vec();
        while !not_yet.is_empty() {
            not_yet = self.worker.order_behind(&not_yet, stream)?;
            if let Some(&copy) = not_yet.first() {
                self.look(copy, started, offload, events)?;
            }
        }
        Ok(())
    }

    /// Lets a layer's compute come after what the loads bring for it.
    ///
    /// # Errors
    /// As [`order_behind`](Self::order_behind).
    pub(super) fn order_layer(
        &mut self,
        (layer, stream): (u32, StreamHandle),
        loads: &[LayeredLoad],
        offload: &mut impl Offload,
        events: &mut OffloadEvents,
    ) -> Result<(), EngineError> {
        let started = Instant::now();
        for load in loads {
            while self.worker.order_layer(load.copy, layer, stream)? == LayerOrder::NotYet {
                self.look(load.copy, started, offload, events)?;
            }
            self.poll(Duration::ZERO, offload, events)?;
            if load.has_ended(events) {
                // If it has failed, the device may still write into its blocks.
                self.order_behind(&[load.copy], stream, offload, events)?;
            }
        }
        Ok(())
    }

    /// Waits until each of the loads has ended, well or not.
    ///
    /// # Errors
    /// [`EngineError::CopyTimedOut`].
    pub(super) fn wait_for_loads(
        &mut self,
        loads: &[LayeredLoad],
        offload: &mut impl Offload,
        events: &mut OffloadEvents,
    ) -> Result<(), EngineError> {
        let started = Instant::now();
        while let Some(load) = loads.iter().find(|load| !load.has_ended(events)) {
            self.look(load.copy, started, offload, events)?;
        }
        Ok(())
    }

    /// Waits a moment for a copy, if there is time left.
    fn look(
        &mut self,
        copy: CopyId,
        started: Instant,
        offload: &mut impl Offload,
        events: &mut OffloadEvents,
    ) -> Result<(), EngineError> {
        if started.elapsed() > self.timeout {
            return Err(EngineError::CopyTimedOut { copy, waited: self.timeout });
        }
        self.poll(LOOK, offload, events)
    }
}
