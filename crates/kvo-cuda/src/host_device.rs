//! A device whose memory is host memory.

use std::{
    collections::VecDeque,
    fmt,
    sync::Arc,
    thread::JoinHandle,
    time::{Duration, Instant},
};

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender};
use kvo_core::{
    DeviceBackend, DeviceHealth, Direction, DrainError, Fence, HostMemory, SubmitError, SubmitErrorReason,
    Ticket, Transfer, TransferCompletion,
};
use slab::Slab;

use crate::{
    ComputeStream, DeviceMemory, DeviceStats, HostDeviceError,
    check::{Checker, Size},
    compute,
    control::{Control, Kernel},
    lane::{Ended, Job, Lane},
};

#[cfg(test)]
mod tests;

/// How a [`HostDevice`] is made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostDeviceOptions {
    /// The device's name in stats, spans and thread names.
    pub name: String,
    /// Bytes of the device's KV memory; at least 1.
    pub device_bytes: u64,
    /// Transfers that may be submitted and not yet polled; at least 1.
    pub inflight_max: usize,
    /// Bytes of device memory under one lock; at least 1. Smaller segments let more accesses run side by side.
    pub segment_bytes: usize,
    /// How long a drop waits for a kernel, or a copy, that does not return. After that the threads are left to
    /// themselves, with a warning; they own all they touch.
    pub drop_timeout: Duration,
}

impl HostDeviceOptions {
    /// The defaults for a device of this size: `host`, 64 transfers in flight, segments of 1 MiB, 10 seconds.
    pub fn new(device_bytes: u64) -> Self {
        Self {
            name: "host".to_owned(),
            device_bytes,
            inflight_max: 64,
            segment_bytes: 1 << 20,
            drop_timeout: Duration::from_secs(10),
        }
    }
}

/// A [`DeviceBackend`] whose memory is host memory, with everything that makes a GPU hard: copies run on threads of
/// their own, end later than they were submitted, wait for fences, and race with compute if they do not.
///
/// ```text
///             submit                      ┌─ store lane ─┐  ended
///   owner ──────────────▶ check ─▶ queue ─┤              ├─────────▶ poll, wait, drain
///     │                                   └─ load lane ──┘
///     └─ compute().launch ─▶ queue ─▶ compute stream ─ passed ─▶ fences
/// ```
///
/// - A lane runs its transfers one after the other in the order of submission. A transfer that waits for its fence
///   holds up those behind it in the same lane, and no others.
/// - Completions come in the order in which transfers ended. A ticket completes only when its lane no longer touches
///   slots or blocks. A transfer counts as in flight, towards `inflight_max`, until its completion has been polled.
/// - A transfer that finds a slot in use, or that outlives the device's health, fails alone or with all others; what
///   it was to write is then undefined, within the bytes of its copies.
/// - Dropping the device starts nothing more: the copy at hand is finished, queued transfers are given up, kernels
///   that were launched still run. The order of drops of device, streams and host memory does not matter.
pub struct HostDevice {
    control: Arc<Control>,
    memory: DeviceMemory,
    checker: Checker,
    inflight_max: usize,
    drop_timeout: Duration,
    /// Store and load lane; `None` once shut down.
    lanes: Option<[Sender<Job>; 2]>,
    ended: Receiver<Ended>,
    /// Submitted, and not known to have ended.
    open: Slab<Open>,
    next_ticket: u64,
    /// Known to have ended, and not yet polled.
    done: VecDeque<TransferCompletion>,
    stats: DeviceStats,
    threads: Vec<JoinHandle<()>>,
    /// Closes when the last thread has ended.
    alive: Receiver<()>,
}

/// What the owner keeps of a transfer until it ends.
struct Open {
    ticket: Ticket,
    direction: Direction,
    size: Size,
    submitted: Instant,
    span: tracing::Span,
}

impl HostDevice {
    /// The code of a device on which a kernel panicked; on a GPU, the code of a failed launch.
    pub const KERNEL_PANICKED: u32 = 719;
    /// The code of a device whose host memory panicked during a copy; on a GPU, the code of an unknown error.
    pub const COPY_PANICKED: u32 = 999;

    /// Makes a device of `options.device_bytes` zero bytes that copies to and from the slots of `host`, and starts
    /// its three threads.
    ///
    /// # Errors
    /// [`HostDeviceError`] names an option that is zero, memory that cannot be had, or a thread that did not start.
    pub fn new(options: HostDeviceOptions, host: Arc<dyn HostMemory>) -> Result<Self, HostDeviceError> {
        let HostDeviceOptions { name, device_bytes, inflight_max, segment_bytes, drop_timeout } = options;
        for (field, zero) in [
            ("device_bytes", device_bytes == 0),
            ("inflight_max", inflight_max == 0),
            ("segment_bytes", segment_bytes == 0),
        ] {
            if zero {
                return Err(HostDeviceError::Zero { field });
            }
        }
        let memory = DeviceMemory::new(device_bytes, segment_bytes)?;
        let (control, stream) = Control::new(name);
        let (store_jobs, stores) = crossbeam_channel::unbounded();
        let (load_jobs, loads) = crossbeam_channel::unbounded();
        let (ended_sender, ended) = crossbeam_channel::unbounded();
        let (alive_sender, alive) = crossbeam_channel::bounded(0);
        let mut device = Self {
            control: Arc::new(control),
            memory,
            checker: Checker::new(device_bytes, host.num_slots(), host.slot_bytes() as u64),
            inflight_max,
            drop_timeout,
            lanes: Some([store_jobs, load_jobs]),
            ended,
            open: Slab::new(),
            next_ticket: 0,
            done: VecDeque::new(),
            stats: DeviceStats::default(),
            threads: Vec::new(),
            alive,
        };
        // A thread that does not start drops the device, which ends those that did.
        device.spawn_compute(stream, alive_sender.clone())?;
        for (suffix, jobs, host) in [("store", stores, Arc::clone(&host)), ("load", loads, host)] {
            let lane = Lane {
                control: Arc::clone(&device.control),
                memory: device.memory.clone(),
                host,
                ended: ended_sender.clone(),
            };
            device.spawn(suffix, alive_sender.clone(), move || lane.run(&jobs))?;
        }
        Ok(device)
    }

    /// The compute stream: where the engine puts what writes and reads blocks.
    pub fn compute(&self) -> ComputeStream {
        ComputeStream::new(Arc::clone(&self.control), self.memory.clone())
    }

    /// The device's memory, for looking at it or filling it without going through the compute stream. Such an access
    /// waits for nothing: whoever wants an order makes it.
    pub fn memory(&self) -> &DeviceMemory {
        &self.memory
    }

    /// What was moved so far.
    pub fn stats(&self) -> DeviceStats {
        DeviceStats { inflight: self.inflight(), ..self.stats }
    }

    /// Injects a fault: the device fails with `code`, as a GPU does with an error that sticks.
    ///
    /// Every transfer whose completion was not made known before fails with that code, once; no transfer and no
    /// kernel is taken any more, and kernels that have not begun do not run. A device that is dead or shut down
    /// already stays as it is.
    pub fn fail(&self, code: u32) {
        self.control.fail(code);
    }

    /// Takes no more work. Transfers that have begun are finished, those that have not, fail as
    /// [`ShutDown`](kvo_core::TransferFailure::ShutDown); kernels that were launched still run. Poll, wait and drain
    /// go on working.
    pub fn shut_down(&mut self) {
        self.control.shut_down();
        self.lanes = None;
    }

    fn spawn_compute(&mut self, stream: Receiver<Kernel>, alive: Sender<()>) -> Result<(), HostDeviceError> {
        let (control, memory) = (Arc::clone(&self.control), self.memory.clone());
        self.spawn("compute", alive, move || compute::run(&control, &memory, &stream))
    }

    fn spawn(
        &mut self,
        suffix: &str,
        alive: Sender<()>,
        body: impl FnOnce() + Send + 'static,
    ) -> Result<(), HostDeviceError> {
        let name = format!("kvo-{}-{suffix}", self.control.name());
        let thread = std::thread::Builder::new().name(name).spawn(move || {
            body();
            drop(alive);
        })?;
        self.threads.push(thread);
        Ok(())
    }

    /// Transfers submitted and not yet polled.
    fn inflight(&self) -> usize {
        self.open.len() + self.done.len()
    }

    /// Everything that can be wrong with a transfer.
    fn check(&mut self, transfer: &Transfer) -> Result<Size, SubmitErrorReason> {
        let health = self.control.health();
        if health != DeviceHealth::Healthy {
            return Err(SubmitErrorReason::Unhealthy(health));
        }
        if transfer.after.device() != self.control.id() {
            return Err(SubmitErrorReason::ForeignFence);
        }
        if !self.control.has_recorded(transfer.after) {
            return Err(SubmitErrorReason::UnknownFence);
        }
        let size = self.checker.check(transfer)?;
        if self.inflight() >= self.inflight_max {
            let (inflight, inflight_max) = (self.inflight(), self.inflight_max);
            return Err(SubmitErrorReason::Full { inflight, inflight_max });
        }
        Ok(size)
    }

    /// Takes note of an end: counts it and keeps its completion for the next poll.
    fn note(&mut self, Ended { index, failure }: Ended) {
        let Open { ticket, direction, size, submitted, span } = self.open.remove(index);
        let edge = self.stats.edge(direction);
        edge.time += submitted.elapsed();
        let result = match failure {
            None => {
                edge.jobs_done += 1;
                edge.chunks += size.num_chunks;
                edge.bytes += size.bytes;
                Ok(size.bytes)
            }
            Some(failure) => {
                edge.jobs_failed += 1;
                span.in_scope(|| tracing::debug!(ticket = ticket.0, %failure, "the transfer failed"));
                Err(failure)
            }
        };
        self.done.push_back(TransferCompletion { ticket, result });
    }

    /// Takes note of all ends that are known by now.
    fn note_all(&mut self) {
        while let Ok(ended) = self.ended.try_recv() {
            self.note(ended);
        }
    }
}

impl DeviceBackend for HostDevice {
    fn name(&self) -> &str {
        self.control.name()
    }

    fn device_bytes(&self) -> u64 {
        self.memory.device_bytes()
    }

    fn record_fence(&mut self) -> Fence {
        self.control.record_fence()
    }

    fn submit(&mut self, transfer: Transfer) -> Result<Ticket, SubmitError> {
        let size = match self.check(&transfer) {
            Ok(size) => size,
            Err(reason) => return Err(SubmitError { transfer, reason }),
        };
        let Some([stores, loads]) = &self.lanes else {
            let reason = SubmitErrorReason::Unhealthy(self.control.health());
            return Err(SubmitError { transfer, reason });
        };
        let (ticket, direction) = (Ticket(self.next_ticket), transfer.direction);
        let (bytes, num_ops) = (size.bytes, transfer.ops.len());
        let (lane, span) = match direction {
            Direction::Store => {
                (stores, tracing::debug_span!("kvo.cuda.store", ticket = ticket.0, bytes, num_ops))
            }
            Direction::Load => {
                (loads, tracing::debug_span!("kvo.cuda.load", ticket = ticket.0, bytes, num_ops))
            }
        };
        let open = Open { ticket, direction, size, submitted: Instant::now(), span: span.clone() };
        let index = self.open.insert(open);
        if let Err(unsent) = lane.send(Job { index, transfer, span }) {
            // A lane ends only when it is closed, so this cannot happen; if it did, nothing would have.
            self.open.remove(index);
            let reason = SubmitErrorReason::Unhealthy(self.control.health());
            return Err(SubmitError { transfer: unsent.0.transfer, reason });
        }
        self.next_ticket += 1;
        Ok(ticket)
    }

    fn poll(&mut self, done: &mut Vec<TransferCompletion>) {
        self.note_all();
        done.extend(self.done.drain(..));
    }

    fn wait(&mut self, timeout: Duration, done: &mut Vec<TransferCompletion>) {
        self.note_all();
        if self.done.is_empty()
            && !self.open.is_empty()
            && let Ok(ended) = self.ended.recv_timeout(timeout)
        {
            self.note(ended);
        }
        self.poll(done);
    }

    fn health(&self) -> DeviceHealth {
        self.control.health()
    }

    fn drain(&mut self, timeout: Duration) -> Result<(), DrainError> {
        let deadline = Instant::now().checked_add(timeout);
        self.note_all();
        while !self.open.is_empty() {
            let left =
                deadline.map_or(timeout, |deadline| deadline.saturating_duration_since(Instant::now()));
            match self.ended.recv_timeout(left) {
                Ok(ended) => self.note(ended),
                Err(_) => return Err(DrainError { inflight: self.open.len(), waited: timeout }),
            }
        }
        Ok(())
    }
}

impl Drop for HostDevice {
    fn drop(&mut self) {
        self.shut_down();
        if self.alive.recv_timeout(self.drop_timeout) == Err(RecvTimeoutError::Timeout) {
            tracing::warn!(device = %self.control.name(), "a kernel or a copy did not return: threads are left");
            return;
        }
        for thread in self.threads.drain(..) {
            // A thread catches what kernels and copies panic with; nothing else of it can fail.
            let _ = thread.join();
        }
    }
}

impl fmt::Debug for HostDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HostDevice")
            .field("name", &self.control.name())
            .field("memory", &self.memory)
            .field("health", &self.control.health())
            .field("inflight", &self.inflight())
            .field("inflight_max", &self.inflight_max)
            .finish_non_exhaustive()
    }
}
