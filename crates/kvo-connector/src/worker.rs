//! The worker's side.

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

use hashbrown::HashMap;
use kvo_core::{
    ComputePoint, CopyOp, DeviceBackend, DeviceInfo, DeviceSpan, DrainError, Fence, MarkOrder, StreamHandle,
    SubmitErrorReason, Ticket, Transfer, TransferClass, TransferCompletion, TransferFailure,
};
use kvo_cuda::{BlockLayout, ChunkBlocks, CopyPlanner, LayerMarks, PlanError, PlanOptions};

use crate::{CopyId, CopyPlan, CopyResult, StepPlan, WorkerError};

/// How a [`Worker`] is made.
#[derive(Clone, Debug, Default)]
pub struct WorkerOptions {
    /// How long a copy may take, from the time that the device takes it; without, as long as it takes.
    pub deadline: Option<Duration>,
    /// How copies are cut, and how many bytes of a load at least a layer's mark stands behind.
    pub plan: PlanOptions,
}

/// What has happened to a copy at this worker. The scheduler's side is told of each, with the worker's number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WorkerReport {
    /// It has ended: for [`copy_reported`](crate::Connector::copy_reported).
    Ended {
        /// Which.
        copy: CopyId,
        /// How.
        result: CopyResult,
        /// Why it failed, if it did.
        failure: Option<CopyFailure>,
    },
    /// The device has let go of it: for [`copy_released`](crate::Connector::copy_released).
    Released {
        /// Which.
        copy: CopyId,
    },
}

/// Why a copy failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CopyFailure {
    /// The device has begun it, or would have.
    #[error(transparent)]
    Transfer(#[from] TransferFailure),
    /// The device did not take it.
    #[error("the device did not take it: {0}")]
    Refused(SubmitErrorReason),
    /// There was no fence to copy behind.
    #[error("there is no fence for it: {0}")]
    NoFence(kvo_core::FenceError),
    /// The device holds on to a copy behind which it was to begin, and so to blocks of it.
    #[error("a copy that failed still has some of its blocks")]
    BlocksHeld,
    /// The worker is [shut down](Worker::shut_down), and had not begun it.
    #[error("the worker is shut down")]
    ShutDown,
    /// The plan does not fit the layout of this worker's caches.
    #[error("the plan does not fit the caches: {0}")]
    Plan(#[from] PlanError),
}

/// What a stream that was to wait for a layer does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LayerOrder {
    /// What is put on it from now on comes behind the layer's copies, whether they succeed or not: that is known when the
    /// copy has ended.
    Ordered,
    /// The copies are not on the device's queue yet: ask again.
    NotYet,
    /// The copy is over, or has nothing for that layer: there is nothing to wait for. How it has ended is among the reports
    /// that the next [poll](Worker::poll) gives, if none has given it before. Behind one that has failed compute is of no
    /// use: another copy, which is held, may still be writing its blocks.
    Over,
}

/// Runs the plans of a [`Connector`](crate::Connector) on one device.
///
/// For each step, in this order: [`order_behind`](Self::order_behind) what the plan says to wait for,
/// [`start_loads`](Self::start_loads), the engine's compute, [`start_stores`](Self::start_stores) behind it; and
/// [`poll`](Self::poll) whenever it suits. Nothing but [`wait`](Self::wait) and [`drain`](Self::drain) waits.
///
/// Every copy that was started is reported as ended exactly once, whatever becomes of it: failures are reports.
#[derive(Debug)]
pub struct Worker<D> {
    device: D,
    planner: CopyPlanner,
    options: WorkerOptions,
    /// Copies that are not over here.
    open: HashMap<CopyId, Open>,
    of_ticket: HashMap<Ticket, CopyId>,
    /// Not yet given to the device, in the order in which they were started, loads and stores apart.
    queued: [VecDeque<Queued>; 2],
    reports: Vec<WorkerReport>,
    done: Vec<TransferCompletion>,
    released: Vec<Ticket>,
    is_shut_down: bool,
}

#[derive(Debug)]
struct Open {
    /// Once the device has it.
    ticket: Option<Ticket>,
    marks: LayerMarks,
    num_marks: u32,
    /// It was reported, and the device still holds it.
    is_held: bool,
}

#[derive(Debug)]
struct Queued {
    copy: CopyId,
    after: Vec<CopyId>,
    transfer: Transfer,
}

impl<D: DeviceBackend> Worker<D> {
    /// A worker on a device to which nothing is attached yet: attaches `caches`, of which the layout's regions are in order,
    /// and plans between them and `num_slots` slots of `slot_bytes` each: those of the manager, all of which the device
    /// must have.
    ///
    /// # Errors
    /// [`WorkerError`] names the cache or the size that does not fit.
    pub fn new(
        mut device: D,
        caches: &[DeviceSpan],
        layout: BlockLayout,
        (num_slots, slot_bytes): (u32, u64),
        options: WorkerOptions,
    ) -> Result<Self, WorkerError> {
        let DeviceInfo { num_slots: of_device, slot_bytes: bytes_of_device, .. } = *device.info();
        if of_device < num_slots || bytes_of_device < slot_bytes {
            return Err(WorkerError::HostMemory { num_slots, slot_bytes, of_device, bytes_of_device });
        }
        let regions = layout.regions();
        if regions.len() != caches.len() {
            return Err(WorkerError::NumberOfCaches { caches: caches.len(), regions: regions.len() });
        }
        for (nth, (span, (region, bytes))) in caches.iter().zip(regions).enumerate() {
            if span.bytes() < *bytes {
                return Err(WorkerError::CacheTooSmall { nth, bytes: span.bytes(), needed: *bytes });
            }
            let attached = device.attach(*span).map_err(|error| WorkerError::Attach { nth, error })?;
            if attached != *region {
                return Err(WorkerError::OtherRegion { nth, region: *region, attached });
            }
        }
        let planner = CopyPlanner::with_options(layout, num_slots, slot_bytes, options.plan.clone())?;
        Ok(Self {
            device,
            planner,
            options,
            open: HashMap::new(),
            of_ticket: HashMap::new(),
            queued: [VecDeque::new(), VecDeque::new()],
            reports: Vec::new(),
            done: Vec::new(),
            released: Vec::new(),
            is_shut_down: false,
        })
    }

    /// The device.
    pub fn device(&self) -> &D {
        &self.device
    }

    /// The device, to do more with it. Transfers of others are not to be polled from it.
    pub fn device_mut(&mut self) -> &mut D {
        &mut self.device
    }

    /// Starts a step's loads behind `compute`, which is behind all compute that still reads their blocks. A load whose
    /// blocks another copy still uses begins when that is over.
    pub fn start_loads(&mut self, plan: &StepPlan, compute: ComputePoint) {
        self.start(&plan.loads, compute);
    }

    /// Starts a step's stores behind `compute`, which is behind all compute that writes their blocks.
    pub fn start_stores(&mut self, plan: &StepPlan, compute: ComputePoint) {
        self.start(&plan.stores, compute);
    }

    fn start(&mut self, plans: &[CopyPlan], compute: ComputePoint) {
        if plans.is_empty() {
            return;
        }
        if self.is_shut_down {
            for plan in plans {
                self.fail(plan.copy, CopyFailure::ShutDown);
            }
            return;
        }
        let fence = self.device.record_fence(compute);
        for plan in plans {
            if self.open.contains_key(&plan.copy) {
                tracing::warn!(copy = plan.copy.0, "a plan came twice");
                continue;
            }
            let planned = match &fence {
                Ok(fence) => self.plan(plan, *fence).map_err(CopyFailure::from),
                Err(error) => Err(CopyFailure::NoFence(error.clone())),
            };
            match planned {
                Ok((transfer, marks)) => {
                    let num_marks = u32::try_from(transfer.marks.len()).expect("fewer than copies");
                    let open = Open { ticket: None, marks, num_marks, is_held: false };
                    self.open.insert(plan.copy, open);
                    let queued = Queued { copy: plan.copy, after: plan.after.clone(), transfer };
                    self.queued[plan.direction() as usize].push_back(queued);
                }
                Err(failure) => self.fail(plan.copy, failure),
            }
        }
        self.submit_queued();
    }

    /// The copies of a plan: of a load layer by layer, and in any case with a mark at the end.
    fn plan(&mut self, plan: &CopyPlan, after: Fence) -> Result<(Transfer, LayerMarks), PlanError> {
        let chunks: Vec<ChunkBlocks<'_>> = plan.chunks().collect();
        let (mut ops, mut layers) = (Vec::<CopyOp>::new(), LayerMarks::default());
        if plan.class == TransferClass::Store {
            self.planner.plan_store(&chunks, &mut ops)?;
        } else {
            self.planner.plan_load_by_layer(&chunks, &mut ops, &mut layers)?;
        }
        let mut marks = layers.ends.clone();
        let end = u32::try_from(ops.len()).unwrap_or(u32::MAX);
        if marks.last() != Some(&end) {
            marks.push(end);
        }
        let transfer =
            Transfer { marks, deadline: self.options.deadline, ..Transfer::new(plan.class, ops, after) };
        Ok((transfer, layers))
    }

    /// Gives the device what it takes, in order, past copies that wait for others.
    fn submit_queued(&mut self) {
        for direction in 0..self.queued.len() {
            let mut nth = 0;
            while let Some(queued) = self.queued[direction].get(nth) {
                let is_held = |copy| self.open.get(copy).is_some_and(|open: &Open| open.is_held);
                if queued.after.iter().any(is_held) {
                    // Nobody knows when it lets go, and what is not begun can be left.
                    let copy = queued.copy;
                    self.queued[direction].remove(nth);
                    self.open.remove(&copy);
                    self.fail(copy, CopyFailure::BlocksHeld);
                    continue;
                }
                if queued.after.iter().any(|copy| self.open.contains_key(copy)) {
                    nth += 1;
                    continue;
                }
                let Some(Queued { copy, after, transfer }) = self.queued[direction].remove(nth) else {
                    break;
                };
                match self.device.submit(transfer) {
                    Ok(ticket) => {
                        self.of_ticket.insert(ticket, copy);
                        self.open.get_mut(&copy).expect("a copy that is queued is open").ticket =
                            Some(ticket);
                    }
                    Err(error) if matches!(error.reason, SubmitErrorReason::Full { .. }) => {
                        let again = Queued { copy, after, transfer: error.transfer };
                        self.queued[direction].insert(nth, again);
                        break;
                    }
                    Err(error) => {
                        self.open.remove(&copy);
                        self.fail(copy, CopyFailure::Refused(error.reason));
                    }
                }
            }
        }
    }

    /// Reports a copy of which the device has nothing.
    fn fail(&mut self, copy: CopyId, failure: CopyFailure) {
        tracing::warn!(copy = copy.0, %failure, "a copy failed");
        self.reports.push(WorkerReport::Ended { copy, result: CopyResult::Failed, failure: Some(failure) });
    }

    /// Makes a stream of the engine's wait for copies, without this thread waiting, so that the blocks they use can be
    /// written by what is put on it from now on. Returns those for which it does not wait, as they are not on the device's
    /// queue yet, or the device holds them: [`wait`](Self::wait) and ask again.
    ///
    /// # Errors
    /// [`WorkerError::Fence`]: the stream waits for some of them only, so nothing that writes their blocks is to be put on
    /// it.
    pub fn order_behind(
        &mut self,
        copies: &[CopyId],
        stream: StreamHandle,
    ) -> Result<Vec<CopyId>, WorkerError> {
        self.collect(Duration::ZERO);
        let mut not_yet = Vec::new();
        for copy in copies {
            let Some(open) = self.open.get(copy) else { continue };
            let order = match open.ticket {
                Some(ticket) if !open.is_held => {
                    self.device.order_after(ticket, open.num_marks - 1, stream)?
                }
                _ => MarkOrder::NotYet,
            };
            // Ended means that it can be collected, also with a failure that the device holds on to.
            if order != MarkOrder::Ordered {
                not_yet.push(*copy);
            }
        }
        Ok(not_yet)
    }

    /// Makes a stream of the engine's wait for a layer of a load, so that the layer can be computed while those behind it
    /// are still coming.
    ///
    /// # Errors
    /// [`WorkerError::Fence`]; then it does not wait.
    pub fn order_layer(
        &mut self,
        copy: CopyId,
        layer: u32,
        stream: StreamHandle,
    ) -> Result<LayerOrder, WorkerError> {
        // What it is queued behind may have ended.
        self.collect(Duration::ZERO);
        let Some(open) = self.open.get(&copy) else { return Ok(LayerOrder::Over) };
        let Some(mark) = open.marks.mark_of(layer) else { return Ok(LayerOrder::Over) };
        let Some(ticket) = open.ticket else { return Ok(LayerOrder::NotYet) };
        Ok(match self.device.order_after(ticket, mark, stream)? {
            MarkOrder::Ordered => LayerOrder::Ordered,
            MarkOrder::NotYet => LayerOrder::NotYet,
            MarkOrder::Ended => {
                self.collect(Duration::ZERO);
                LayerOrder::Over
            }
        })
    }

    /// Moves what has happened since the last call to the end of `reports`. Does not wait.
    pub fn poll(&mut self, reports: &mut Vec<WorkerReport>) {
        self.collect(Duration::ZERO);
        reports.append(&mut self.reports);
    }

    /// As [`poll`](Self::poll), but waits up to `timeout` for something, if a copy is under way.
    pub fn wait(&mut self, timeout: Duration, reports: &mut Vec<WorkerReport>) {
        let start = Instant::now();
        self.collect(Duration::ZERO);
        while self.reports.is_empty() && !self.open.is_empty() {
            let left = timeout.saturating_sub(start.elapsed());
            if left.is_zero() {
                break;
            }
            self.nap(left);
        }
        reports.append(&mut self.reports);
    }

    /// Waits up to `timeout` until no copy is under way; reports come with the next poll.
    ///
    /// # Errors
    /// [`DrainError`] says how many still are.
    pub fn drain(&mut self, timeout: Duration) -> Result<(), DrainError> {
        let start = Instant::now();
        loop {
            self.collect(Duration::ZERO);
            let inflight = self.open.values().filter(|open| !open.is_held).count();
            if inflight == 0 {
                return Ok(());
            }
            let left = timeout.saturating_sub(start.elapsed());
            if left.is_zero() {
                return Err(DrainError { inflight, waited: timeout });
            }
            self.nap(left);
        }
    }

    /// Begins nothing any more, and waits up to `timeout` for what has begun; what was queued has failed. Reports come with
    /// the next poll. Called again, it waits again for what is left.
    ///
    /// Dropping a worker drops its device, which does the same with patience of its own. What the device still touches it
    /// keeps, then too.
    ///
    /// # Errors
    /// [`DrainError`] says how many copies are under way still.
    pub fn shut_down(&mut self, timeout: Duration) -> Result<(), DrainError> {
        self.is_shut_down = true;
        let queued: Vec<_> = self.queued.iter_mut().flat_map(|queue| queue.drain(..)).collect();
        for Queued { copy, .. } in queued {
            self.open.remove(&copy);
            self.fail(copy, CopyFailure::ShutDown);
        }
        self.drain(timeout)
    }

    /// Waits a moment, at most `left`, for something.
    fn nap(&mut self, left: Duration) {
        // A copy that is held is not in flight: the device does not wait for it, and nothing wakes anybody when it is let
        // go.
        if self.open.values().all(|open| open.is_held || open.ticket.is_none()) {
            std::thread::sleep(left.min(NAP));
            self.collect(Duration::ZERO);
        } else {
            self.collect(left.min(NAP));
        }
    }

    /// Copies that are not over, those that the device holds included.
    pub fn num_open(&self) -> usize {
        self.open.len()
    }

    fn collect(&mut self, timeout: Duration) {
        let mut done = std::mem::take(&mut self.done);
        if timeout.is_zero() {
            self.device.poll(&mut done);
        } else {
            self.device.wait(timeout, &mut done);
        }
        for TransferCompletion { ticket, result, held } in done.drain(..) {
            let Some(copy) = self.of_ticket.get(&ticket).copied() else { continue };
            let failure = result.err().map(CopyFailure::from);
            let result = match (&failure, held) {
                (None, _) => CopyResult::Done,
                (Some(_), false) => CopyResult::Failed,
                (Some(_), true) => CopyResult::FailedAndHeld,
            };
            if held {
                self.open.get_mut(&copy).expect("a copy that the device has is open").is_held = true;
            } else {
                self.open.remove(&copy);
                self.of_ticket.remove(&ticket);
            }
            self.reports.push(WorkerReport::Ended { copy, result, failure });
        }
        self.done = done;
        self.device.take_released(&mut self.released);
        for ticket in self.released.drain(..) {
            if let Some(copy) = self.of_ticket.remove(&ticket) {
                self.open.remove(&copy);
                self.reports.push(WorkerReport::Released { copy });
            }
        }
        self.submit_queued();
    }
}

/// How long a wait sleeps at most before it looks for what nobody wakes it for.
const NAP: Duration = Duration::from_millis(1);
