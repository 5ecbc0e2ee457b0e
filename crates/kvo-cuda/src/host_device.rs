//! A device whose memory is host memory.

mod compute;
mod copy;
mod core;
mod error;
#[expect(unsafe_code, reason = "names of spans, streams and events that are the device's own")]
mod handles;
mod lane;
mod link;
mod memory;
mod race;
mod shared;
mod stepping;
mod streams;

#[cfg(test)]
mod tests;

use std::{
    fmt, io,
    sync::Arc,
    thread::JoinHandle,
    time::{Duration, Instant},
};

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender};
use kvo_core::{
    AttachError, ComputePoint, DeviceBackend, DeviceHealth, DeviceInfo, DeviceSpan, Direction, DrainError,
    EventHandle, Fence, FenceError, HostMemory, MarkOrder, OwnerId, RegionId, StreamHandle, SubmitError,
    Ticket, Transfer, TransferCompletion,
};

pub use self::{
    compute::ComputeStream,
    core::Accesses,
    error::{ComputeError, DeviceAccessError, HostDeviceError},
    link::LinkModel,
    memory::DeviceMemory,
    race::{Job, Place, Race, RaceKind},
    stepping::{Step, SteppedDevice},
};
use self::{
    core::Core,
    lane::Lane,
    shared::{DeviceClock, Shared},
    streams::Streams,
};
use crate::{
    DeviceStats,
    queue::{QueueOptions, TransferQueue},
};

/// How a [`HostDevice`] is made.
#[derive(Clone, Debug, PartialEq)]
pub struct HostDeviceOptions {
    /// The device's name in stats, spans and thread names.
    pub name: String,
    /// Transfers that may be submitted and not yet polled; at least 1.
    pub inflight_max: usize,
    /// Fences that compute has not passed; at least 1.
    pub pending_fences_max: usize,
    /// Bytes of device memory under one lock; at least 1. Smaller segments let more accesses run side by side.
    pub segment_bytes: usize,
    /// Bytes that are given to a lane at once, at least 1; only a copy that is longer than this is cut.
    pub quantum_bytes: u64,
    /// How long a drop waits for a kernel, or a copy, that does not return. After that the threads are left to
    /// themselves, with a warning; they own all they touch.
    pub drop_timeout: Duration,
    /// How fast the link to the host would be; without it copies take the time that they take.
    pub link: Option<LinkModel>,
    /// Whether the [race detector](Race) runs. It costs time and memory in proportion to copies and kernels in flight.
    pub detect_races: bool,
}

impl Default for HostDeviceOptions {
    /// `host`, 64 transfers in flight, 4096 fences, segments of 1 MiB, pieces of 8 MiB, 10 seconds, no link, no detector.
    fn default() -> Self {
        Self {
            name: "host".to_owned(),
            inflight_max: 64,
            pending_fences_max: 4096,
            segment_bytes: 1 << 20,
            quantum_bytes: 8 << 20,
            drop_timeout: Duration::from_secs(10),
            link: None,
            detect_races: false,
        }
    }
}

impl HostDeviceOptions {
    fn check(&self) -> Result<(), HostDeviceError> {
        for (field, zero) in [
            ("inflight_max", self.inflight_max == 0),
            ("pending_fences_max", self.pending_fences_max == 0),
            ("segment_bytes", self.segment_bytes == 0),
            ("quantum_bytes", self.quantum_bytes == 0),
        ] {
            if zero {
                return Err(HostDeviceError::Zero { field });
            }
        }
        self.link.map_or(Ok(()), |link| link.check())
    }
}

/// A [`DeviceBackend`] whose memory is host memory, with everything that makes a GPU hard: copies run on threads of
/// their own, end later than they were submitted, wait for fences, and race with compute if they do not.
///
/// ```text
///             submit                      ┌─ store lane ─┐  ended
///   owner ──────────────▶ check ─▶ queue ─┤              ├─────────▶ poll, wait, drain
///     │                                   └─ load lane ──┘
///     └─ compute().launch ─▶ queue ─▶ compute streams ─ passed ─▶ fences
/// ```
///
/// - A lane copies one piece after the other, the most urgent transfer first. A transfer that waits for its fence holds
///   up those behind it in its class, and no others.
/// - Completions come in the order in which transfers ended. A transfer counts as in flight, towards `inflight_max`,
///   until its completion has been polled.
/// - A transfer that finds a slot in use fails alone. What a failed transfer was to write is undefined, within the bytes
///   of its copies; while it is held, they may still change.
/// - A deadline is noticed when the owner polls, waits or drains, or a lane looks for work. Nothing polls by itself:
///   threads sleep until there is something to do.
/// - Dropping the device starts nothing more: transfers that have begun are finished, queued ones are given up, kernels
///   that were launched still run. The order of drops of device, streams and host memory does not matter.
pub struct HostDevice {
    shared: Arc<Shared>,
    compute: ComputeStream,
    is_model: bool,
    drop_timeout: Duration,
    threads: Vec<JoinHandle<()>>,
    /// Goes to each thread; `None` on a device without threads.
    alive: Option<Sender<()>>,
    /// Closes when the last thread has ended.
    ended: Receiver<()>,
}

impl HostDevice {
    /// The code of a device on which a kernel panicked; on a GPU, the code of a failed launch.
    pub const KERNEL_PANICKED: u32 = 719;
    /// The code of a device whose host memory panicked during a copy; on a GPU, the code of an unknown error.
    pub const COPY_PANICKED: u32 = 999;

    /// Makes a device without memory that copies to and from the slots of `host`, and starts its lanes and the first
    /// stream.
    ///
    /// # Errors
    /// [`HostDeviceError`] names an option that is zero, or a thread that did not start.
    pub fn new(options: HostDeviceOptions, host: Arc<dyn HostMemory>) -> Result<Self, HostDeviceError> {
        let link = options.link;
        let mut device = Self::without_threads(options, &*host, DeviceClock::Real(Instant::now()))?;
        let (alive, ended) = crossbeam_channel::bounded(0);
        (device.alive, device.ended) = (Some(alive), ended);
        // A thread that does not start drops the device, which ends those that did.
        let lanes = [("store", Direction::Store, Arc::clone(&host)), ("load", Direction::Load, host)];
        for (suffix, direction, host) in lanes {
            let lane = Lane { shared: Arc::clone(&device.shared), host, direction, link };
            device.spawn(suffix, move || lane.run())?;
        }
        device.spawn_stream(0)?;
        Ok(device)
    }

    /// A device with one stream, none of whose work is done by anyone yet.
    fn without_threads(
        options: HostDeviceOptions,
        host: &dyn HostMemory,
        clock: DeviceClock,
    ) -> Result<Self, HostDeviceError> {
        options.check()?;
        let (num_slots, slot_bytes) = (host.num_slots(), host.slot_bytes() as u64);
        let queue = TransferQueue::new(QueueOptions {
            inflight_max: options.inflight_max,
            quantum_bytes: options.quantum_bytes,
            ..QueueOptions::new(num_slots, slot_bytes)
        });
        let id = OwnerId::unique();
        let mut core =
            Core::new(id, queue, Streams::new(id, options.pending_fences_max), options.detect_races);
        core.add_stream();
        let name = if options.link.is_some() { format!("{} (model)", options.name) } else { options.name };
        let info = DeviceInfo { name, ordinal: 0, id, num_slots, slot_bytes };
        let memory = DeviceMemory::new(options.segment_bytes);
        let shared = Arc::new(Shared::new(info, memory, clock, core));
        Ok(Self {
            compute: ComputeStream::new(Arc::clone(&shared), 0),
            shared,
            is_model: options.link.is_some(),
            drop_timeout: options.drop_timeout,
            threads: Vec::new(),
            alive: None,
            ended: crossbeam_channel::never(),
        })
    }

    /// Allocates `bytes` zero bytes of device memory. They are no region before they were
    /// [attached](DeviceBackend::attach).
    ///
    /// # Errors
    /// [`HostDeviceError::OutOfMemory`], or [`HostDeviceError::Zero`] for 0 bytes.
    pub fn alloc(&self, bytes: u64) -> Result<DeviceSpan, HostDeviceError> {
        self.shared.memory.alloc(bytes)
    }

    /// Frees an allocation. Its addresses are not given out again; an access of them is an error.
    ///
    /// # Errors
    /// [`AttachError::Overlap`] while a part of it is a region, [`AttachError::NotDeviceMemory`] unless `span` is one
    /// that [`alloc`](Self::alloc) gave out.
    pub fn free(&self, span: DeviceSpan) -> Result<(), AttachError> {
        let (address, bytes) = (span.address(), span.bytes());
        let core = self.shared.lock();
        if let Some(region) = core.region_in(address..address.saturating_add(bytes)) {
            return Err(AttachError::Overlap { region });
        }
        if self.shared.memory.free(address) {
            Ok(())
        } else {
            Err(AttachError::NotDeviceMemory { address, bytes })
        }
    }

    /// The first compute stream.
    pub fn compute(&self) -> &ComputeStream {
        &self.compute
    }

    /// Makes another compute stream.
    ///
    /// # Errors
    /// [`HostDeviceError`] if its thread does not start, or the device is dead or shut down.
    pub fn create_stream(&mut self) -> Result<ComputeStream, HostDeviceError> {
        let mut core = self.shared.lock();
        streams::healthy(core.queue.health()).map_err(HostDeviceError::Unhealthy)?;
        let number = core.add_stream();
        drop(core);
        if self.alive.is_some() {
            self.spawn_stream(number)?;
        }
        Ok(ComputeStream::new(Arc::clone(&self.shared), number))
    }

    /// Makes an event, which is behind nothing until a stream [records](ComputeStream::record) it.
    pub fn create_event(&self) -> EventHandle {
        let number = self.shared.lock().add_event();
        handles::event(self.shared.id(), number)
    }

    /// The device's memory, for looking at it or filling it without going through a stream. Such an access waits for
    /// nothing, and no detector sees it: whoever wants an order makes it.
    pub fn memory(&self) -> &DeviceMemory {
        &self.shared.memory
    }

    /// What was moved so far.
    pub fn stats(&self) -> DeviceStats {
        DeviceStats { is_model: self.is_model, ..self.shared.lock().queue.stats() }
    }

    /// The races that were found since the last call, if the detector runs.
    pub fn take_races(&self) -> Vec<Race> {
        self.shared.lock().detector.as_ref().map(race::Detector::take).unwrap_or_default()
    }

    /// Injects a fault: the device fails with `code`, as a GPU does with an error that sticks.
    ///
    /// Every transfer whose completion was not made known before fails with that code, once; what a lane is copying is
    /// held until it has stopped. No transfer and no kernel is taken any more, and kernels that have not begun do not
    /// run. A device that is dead already stays as it is.
    pub fn fail(&self, code: u32) {
        self.shared.fail(code);
    }

    /// Takes no more work. Transfers that have begun are finished, those that have not, fail as
    /// [`ShutDown`](kvo_core::TransferFailure::ShutDown); kernels that were launched still run. Poll, wait and drain
    /// go on working.
    pub fn shut_down(&mut self) {
        self.shared.lock().queue.shut_down(self.shared.now());
        self.shared.wake_all();
    }

    fn spawn_stream(&mut self, number: u32) -> Result<(), HostDeviceError> {
        let shared = Arc::clone(&self.shared);
        self.spawn(&format!("stream-{number}"), move || compute::run(&shared, number))
    }

    fn spawn(&mut self, suffix: &str, body: impl FnOnce() + Send + 'static) -> Result<(), HostDeviceError> {
        let (name, alive) = (format!("kvo-{}-{suffix}", self.shared.info.name), self.alive.clone());
        if name.contains('\0') {
            // Else the standard library panics.
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "its name has a 0 in it").into());
        }
        let thread = std::thread::Builder::new().name(name).spawn(move || {
            body();
            drop(alive);
        })?;
        self.threads.push(thread);
        Ok(())
    }

    /// How long a call that waits for `timeout` waits: not at all, where nothing would happen meanwhile.
    fn patience(&self, timeout: Duration) -> Duration {
        if self.shared.clock.is_virtual() { Duration::ZERO } else { timeout }
    }
}

/// On a [stepped](SteppedDevice) device, `wait` and `drain` wait for nothing: what is to happen, happens in steps.
impl DeviceBackend for HostDevice {
    fn info(&self) -> &DeviceInfo {
        &self.shared.info
    }

    fn attach(&mut self, span: DeviceSpan) -> Result<RegionId, AttachError> {
        self.shared.lock().attach(span, &self.shared.memory)
    }

    fn detach(&mut self, region: RegionId) -> Result<(), AttachError> {
        self.shared.lock().detach(region)
    }

    fn record_fence(&mut self, point: ComputePoint) -> Result<Fence, FenceError> {
        let mut core = self.shared.lock();
        match point {
            ComputePoint::Stream(stream) => core.fence_behind_stream(stream),
            ComputePoint::Event(event) => core.fence_behind_event(event),
        }
    }

    fn submit(&mut self, transfer: Transfer) -> Result<Ticket, SubmitError> {
        let direction = transfer.class.direction();
        let ticket = self.shared.lock().submit(transfer, self.shared.now())?;
        self.shared.wake_lane(direction);
        Ok(ticket)
    }

    fn order_after(
        &mut self,
        ticket: Ticket,
        mark: u32,
        stream: StreamHandle,
    ) -> Result<MarkOrder, FenceError> {
        let order = self.shared.lock().order_after(ticket, mark, stream)?;
        self.shared.wake_streams();
        Ok(order)
    }

    fn poll(&mut self, done: &mut Vec<TransferCompletion>) {
        let mut core = self.shared.lock();
        core.queue.on_time(self.shared.now());
        core.take_done(done);
    }

    fn wait(&mut self, timeout: Duration, done: &mut Vec<TransferCompletion>) {
        let deadline = self.shared.now().saturating_add(self.patience(timeout));
        let mut core = self.shared.lock();
        core.queue.on_time(self.shared.now());
        while !core.queue.has_done() && core.queue.num_open() > 0 {
            let left = deadline.saturating_sub(self.shared.now());
            if left.is_zero() {
                break;
            }
            core = self.shared.wait_ended(core, left);
        }
        core.take_done(done);
    }

    fn take_released(&mut self, released: &mut Vec<Ticket>) {
        self.shared.lock().take_released(released);
    }

    fn health(&self) -> DeviceHealth {
        self.shared.lock().queue.health()
    }

    fn drain(&mut self, timeout: Duration) -> Result<(), DrainError> {
        let deadline = self.shared.now().saturating_add(self.patience(timeout));
        let mut core = self.shared.lock();
        core.queue.on_time(self.shared.now());
        while core.queue.num_open() > 0 {
            let left = deadline.saturating_sub(self.shared.now());
            if left.is_zero() {
                return Err(DrainError { inflight: core.queue.num_open(), waited: timeout });
            }
            core = self.shared.wait_ended(core, left);
        }
        Ok(())
    }
}

impl Drop for HostDevice {
    fn drop(&mut self) {
        self.shut_down();
        if self.alive.take().is_none() {
            return;
        }
        if self.ended.recv_timeout(self.drop_timeout) == Err(RecvTimeoutError::Timeout) {
            tracing::warn!(device = %self.shared.info.name, "a kernel or a copy did not return: threads are left");
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
            .field("info", &self.shared.info)
            .field("memory", &self.shared.memory)
            .field("health", &self.health())
            .field("inflight", &self.stats().inflight)
            .finish_non_exhaustive()
    }
}
