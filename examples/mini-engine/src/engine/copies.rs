//! The copies of an offload on the device: submitted, polled, and waited for where a step depends on them.

use std::{
    collections::HashMap,
    time::{Duration, Instant},
};

use kvo_core::{
    ComputePoint, DeviceBackend, Fence, JobId, MarkOrder, StreamHandle, SubmitErrorReason, Ticket, Transfer,
    TransferCompletion,
};
use kvo_cuda::LayerMarks;

use super::offload::{CopyJob, Offload, OffloadEvents};
use crate::EngineError;

/// How long one look at the device waits, where a step waits for copies.
const LOOK: Duration = Duration::from_millis(5);

/// Jobs that are on the device.
#[derive(Debug)]
pub(super) struct Copies {
    /// How long copies are waited for that a step depends on.
    timeout: Duration,
    open: HashMap<JobId, Ticket>,
    jobs: HashMap<Ticket, JobId>,
    /// Over, and not to be touched yet.
    held: HashMap<Ticket, JobId>,
    done: Vec<TransferCompletion>,
    released: Vec<Ticket>,
}

/// A load that compute runs behind, layer by layer.
#[derive(Debug)]
pub(super) struct LayeredLoad {
    job: JobId,
    ticket: Ticket,
    marks: LayerMarks,
    /// The mark that compute comes after already.
    ordered: Option<u32>,
}

impl LayeredLoad {
    /// Whether compute must be told to come after it before a layer is launched.
    pub(super) fn is_before(&self, layer: u32) -> bool {
        self.marks.mark_of(layer).is_some_and(|mark| self.ordered != Some(mark))
    }
}

impl Copies {
    pub(super) fn new(timeout: Duration) -> Self {
        Self {
            timeout,
            open: HashMap::new(),
            jobs: HashMap::new(),
            held: HashMap::new(),
            done: Vec::new(),
            released: Vec::new(),
        }
    }

    /// Whether the device has something to do, or something that it does not let go.
    pub(super) fn is_idle(&self) -> bool {
        self.open.is_empty() && self.held.is_empty()
    }

    /// Whether the device may touch what the job copies.
    fn in_use(&self, job: JobId) -> bool {
        self.open.contains_key(&job) || self.held.values().any(|held| *held == job)
    }

    /// Tells the offload of all copies that have ended, and waits up to `patience` for one if any is open.
    pub(super) fn poll(
        &mut self,
        device: &mut dyn DeviceBackend,
        patience: Duration,
        offload: &mut impl Offload,
        events: &mut OffloadEvents,
    ) {
        if patience.is_zero() {
            device.poll(&mut self.done);
        } else {
            device.wait(patience, &mut self.done);
        }
        for TransferCompletion { ticket, result, held } in self.done.drain(..) {
            let Some(job) = self.jobs.remove(&ticket) else { continue };
            self.open.remove(&job);
            if held {
                self.held.insert(ticket, job);
            }
            offload.job_done(job, result.map_err(Into::into), held, events);
        }
        device.take_released(&mut self.released);
        for ticket in self.released.drain(..) {
            if let Some(job) = self.held.remove(&ticket) {
                offload.job_released(job, events);
            }
        }
    }

    /// Submits a job behind a fence. A device that takes no more transfers for now is waited for, up to the timeout.
    pub(super) fn submit(
        &mut self,
        device: &mut dyn DeviceBackend,
        job: CopyJob,
        after: Fence,
        offload: &mut impl Offload,
        events: &mut OffloadEvents,
    ) -> Option<LayeredLoad> {
        let CopyJob { job, class, ops, marks, deadline } = job;
        assert!(!self.open.contains_key(&job), "job {job} is open already");
        let mut transfer =
            Transfer { marks: marks.ends.clone(), deadline, ..Transfer::new(class, ops, after) };
        let started = Instant::now();
        loop {
            match device.submit(transfer) {
                Ok(ticket) => {
                    self.open.insert(job, ticket);
                    self.jobs.insert(ticket, job);
                    let is_layered = !marks.ends.is_empty();
                    return is_layered.then_some(LayeredLoad { job, ticket, marks, ordered: None });
                }
                Err(refused)
                    if matches!(refused.reason, SubmitErrorReason::Full { .. })
                        && started.elapsed() < self.timeout =>
                {
                    transfer = refused.transfer;
                    self.poll(device, LOOK, offload, events);
                }
                Err(refused) => {
                    offload.job_done(job, Err(refused.reason.into()), false, events);
                    return None;
                }
            }
        }
    }

    /// Waits until none of the jobs is open or held.
    ///
    /// # Errors
    /// [`EngineError::JobTimedOut`].
    pub(super) fn wait_for(
        &mut self,
        device: &mut dyn DeviceBackend,
        jobs: &[JobId],
        offload: &mut impl Offload,
        events: &mut OffloadEvents,
    ) -> Result<(), EngineError> {
        let started = Instant::now();
        loop {
            let in_use =
                |job: &JobId| self.open.contains_key(job) || self.held.values().any(|held| held == job);
            let Some(&job) = jobs.iter().find(|job| in_use(job)) else { return Ok(()) };
            if started.elapsed() > self.timeout {
                return Err(EngineError::JobTimedOut { job, waited: self.timeout });
            }
            self.poll(device, LOOK, offload, events);
        }
    }

    /// Waits until each of the loads has ended, well or not.
    ///
    /// # Errors
    /// [`EngineError::JobTimedOut`].
    pub(super) fn wait_for_loads(
        &mut self,
        device: &mut dyn DeviceBackend,
        loads: &[LayeredLoad],
        offload: &mut impl Offload,
        events: &mut OffloadEvents,
    ) -> Result<(), EngineError> {
        let started = Instant::now();
        while let Some(load) = loads.iter().find(|load| self.open.contains_key(&load.job)) {
            if started.elapsed() > self.timeout {
                return Err(EngineError::JobTimedOut { job: load.job, waited: self.timeout });
            }
            self.poll(device, LOOK, offload, events);
        }
        Ok(())
    }

    /// Lets a layer's compute come after what the loads bring for it.
    ///
    /// # Errors
    /// [`EngineError::JobTimedOut`] if the copies are not under way in time, [`EngineError::Fence`] if the device
    /// makes no order.
    pub(super) fn order_layer(
        &mut self,
        device: &mut dyn DeviceBackend,
        (layer, stream): (u32, StreamHandle),
        loads: &mut [LayeredLoad],
        offload: &mut impl Offload,
        events: &mut OffloadEvents,
    ) -> Result<(), EngineError> {
        let started = Instant::now();
        for load in loads {
            let Some(mark) = load.marks.mark_of(layer) else { continue };
            while load.ordered != Some(mark) && self.in_use(load.job) {
                let is_open = self.open.contains_key(&load.job);
                if is_open && device.order_after(load.ticket, mark, stream)? == MarkOrder::Ordered {
                    load.ordered = Some(mark);
                } else if started.elapsed() > self.timeout {
                    return Err(EngineError::JobTimedOut { job: load.job, waited: self.timeout });
                } else {
                    // Not under way yet; or ended, and then its end is learnt, and that of what it still touches.
                    self.poll(device, LOOK, offload, events);
                }
            }
        }
        Ok(())
    }

    /// A fence behind all that is on the stream.
    pub(super) fn fence(device: &mut dyn DeviceBackend, stream: StreamHandle) -> Result<Fence, EngineError> {
        Ok(device.record_fence(ComputePoint::Stream(stream))?)
    }
}
