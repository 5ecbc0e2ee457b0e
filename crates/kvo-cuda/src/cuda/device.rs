//! A GPU as a device of kvo's.

use std::{
    fmt, io,
    mem::ManuallyDrop,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    thread::JoinHandle,
    time::{Duration, Instant},
};

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender};
use kvo_core::{
    AttachError, ComputePoint, DeviceBackend, DeviceHealth, DeviceInfo, DeviceSpan, DrainError, Fence,
    FenceError, MarkOrder, OwnerId, RegionId, StableMemory, StreamHandle, SubmitError, SubmitErrorReason,
    Ticket, Transfer, TransferCompletion,
};

use super::{
    batches::BatchUse,
    codes::DriverCode,
    driver::{CallError, Context, Driver, Stream},
    fences::{Fences, Recorder},
    host_pool::{DeviceHost, HostMode},
    issue::KernelLists,
    numa::Near,
    paths::{PathStats, PathTable, PathUse, Paths, calibrate},
    probe::{DeviceFacts, DriverFacts, Probe, probe},
    regions::Region,
    state::{Shared, State},
    worker::Worker,
};
use crate::{
    copy_kernel::Grid,
    queue::{DeviceStats, MarkState, QueueOptions, TransferQueue},
};

/// The code of a device whose thread panicked; in the driver's words, an error that it does not know.
const PANICKED: DriverCode = DriverCode(999);

/// How a [`CudaDevice`] is made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CudaOptions {
    /// Which device, as [`probe`] counts.
    pub ordinal: u32,
    /// Transfers that may be submitted and not yet polled; at least 1.
    pub inflight_max: usize,
    /// Bytes of a direction that are on the device's own queue at most, which is how long an urgent load waits for those
    /// before it; at least 1.
    pub window_bytes: u64,
    /// Bytes of a copy that are put there at once; at least 1. Only a copy that is longer is cut.
    pub quantum_bytes: u64,
    /// Fences that compute has not passed; at least 1. Of those behind events there are at most 64, whatever this is.
    pub fences_max: usize,
    /// Bytes of host memory that are registered at once; at least 1.
    pub registration_bytes: usize,
    /// Whether the device's thread stays on the processors near the GPU, and host memory that has no pages yet gets
    /// them from there. Means nothing on a machine with one memory node.
    pub near: bool,
    /// Whether copies may go in batches, each a call for up to 1,024 of them.
    pub batches: BatchUse,
    /// CTAs of 512 threads that the copy kernel runs on at most, each of which takes a part of a multiprocessor from the
    /// engine's kernels; at most 65,536, and 0 leaves the kernel out.
    pub kernel_ctas: u32,
    /// Which way copies of which length go; without, it is measured when the device is made, in at most 0.3 s, once a
    /// process.
    pub table: Option<PathTable>,
    /// How long a drop waits for what is on the device's queue, and for what that used to be given back. If copies have
    /// not ended by then, the device's thread is left to itself, with all that it may still touch, and a warning. If they
    /// have, and host memory is still being unregistered, which takes 0.1 s a GB, the thread goes on with that alone.
    pub drop_timeout: Duration,
}

impl CudaOptions {
    /// The defaults for the device with that ordinal: 64 transfers in flight, windows of 32 MiB, copies of 8 MiB, 1,024
    /// fences, registrations of 16 GiB, near the GPU, no batches, a
    /// kernel on 4 CTAs, a measured table, 10 seconds.
    pub fn new(ordinal: u32) -> Self {
        Self {
            ordinal,
            inflight_max: 64,
            window_bytes: 32 << 20,
            quantum_bytes: 8 << 20,
            fences_max: 1024,
            registration_bytes: 16 << 30,
            near: true,
            batches: BatchUse::Off,
            kernel_ctas: 4,
            table: None,
            drop_timeout: Duration::from_secs(10),
        }
    }

    fn check(&self) -> Result<(), CudaError> {
        let zeros = [
            ("inflight_max", self.inflight_max == 0),
            ("window_bytes", self.window_bytes == 0),
            ("quantum_bytes", self.quantum_bytes == 0),
            ("fences_max", self.fences_max == 0),
            ("registration_bytes", self.registration_bytes == 0),
        ];
        if let Some((field, _)) = zeros.into_iter().find(|(_, zero)| *zero) {
            return Err(CudaError::Zero { field });
        }
        let (given, max) = (self.kernel_ctas, Grid::CTAS_MAX);
        if given > max {
            return Err(CudaError::TooMany { field: "kernel_ctas", given, max });
        }
        Ok(())
    }
}

/// A CUDA device could not be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CudaError {
    /// There is no device; the probe says why.
    #[error("{0}")]
    Unavailable(Probe),
    /// There is no device with that ordinal.
    #[error("there is no device {ordinal}, there are {num_devices}")]
    NoSuchDevice {
        /// The ordinal.
        ordinal: u32,
        /// Devices that there are.
        num_devices: usize,
    },
    /// An option that must be at least one is zero.
    #[error("{field} must be at least 1")]
    Zero {
        /// The option.
        field: &'static str,
    },
    /// An option is more than it may be.
    #[error("{field} is {given}, which is more than {max}")]
    TooMany {
        /// The option.
        field: &'static str,
        /// What it is.
        given: u32,
        /// What it may be.
        max: u32,
    },
    /// The driver refused something that no device can do without.
    #[error("{call} failed with {code}")]
    Driver {
        /// The driver's function.
        call: &'static str,
        /// What it returned.
        code: DriverCode,
    },
    /// The device's thread could not be started.
    #[error("cannot start the device's thread")]
    Spawn(#[from] io::Error),
}

impl From<CallError> for CudaError {
    fn from(CallError { call, code }: CallError) -> Self {
        Self::Driver { call, code }
    }
}

/// What a CUDA device has done, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CudaStats {
    /// Transfers and bytes.
    pub transfers: DeviceStats,
    /// How copies reach the host memory.
    pub host: HostMode,
    /// Pieces in which it is registered.
    pub registrations: usize,
    /// Which ways the bytes went.
    pub paths: PathStats,
    /// Fences that compute was not seen to have passed.
    pub fences_pending: usize,
}

/// A [`DeviceBackend`] that is a GPU, by the CUDA driver.
///
/// ```text
///   owner ─ submit ─▶ queue ─▶ thread ─┬─ load stream ──▶ H2D engine
///     │                 ▲        │     └─ store stream ─▶ D2H engine
///     ├─ poll, wait ────┘        └─ asks for the event behind each piece
///     └─ record_fence, order_after: events on the engine's streams
/// ```
///
/// - It has a share of the device's primary context, which is the one that an engine uses. Memory, streams and events
///   of the engine are borrowed, and never freed.
/// - Copies of a direction go on one stream, as many bytes at a time as the window has: copy engines know no priority,
///   so what is on their queue cannot be overtaken.
/// - The host memory is registered once for all devices of the process. Where it cannot be, copies still work, slower.
/// - The first error that breaks the context ends the device: every open ticket fails once, and the driver is not
///   called again; a drop warns that copies had not ended. Slots that copies were under way to or from stay claimed until the process ends, since nobody can
///   say whether the device still touches them.
pub struct CudaDevice {
    info: DeviceInfo,
    facts: DeviceFacts,
    shared: Arc<Shared>,
    host: HostMode,
    registrations: usize,
    drop_timeout: Duration,
    thread: Option<JoinHandle<()>>,
    /// Says whether the device has done all its copies, when the thread has nothing more to wait for, and closes when
    /// the thread has given back what they used.
    over: Receiver<bool>,
}

impl CudaDevice {
    /// Makes a device that copies to and from the slots of `host`, registers their memory, and starts its thread.
    /// The first call for a device of a process takes as long as the driver takes for a context and for pinning the
    /// memory: about a second, and 0.1 s a GB.
    ///
    /// # Errors
    /// [`CudaError`] says why there is none; then nothing is left of it.
    #[expect(clippy::needless_pass_by_value, reason = "as every device is made")]
    pub fn new(options: CudaOptions, host: Arc<dyn StableMemory>) -> Result<Self, CudaError> {
        options.check()?;
        let found = probe();
        let (Probe::Devices(driver_facts), Ok(driver)) = (found, Driver::get()) else {
            return Err(CudaError::Unavailable(found.clone()));
        };
        let num_devices = driver_facts.devices.len();
        let ordinal = options.ordinal;
        let facts = driver_facts.devices.get(ordinal as usize);
        let facts = facts.ok_or(CudaError::NoSuchDevice { ordinal, num_devices })?.clone();
        let near = facts.numa_node.filter(|_| options.near).and_then(Near::node);

        let context = Context::retain(driver, ordinal)?;
        let _current = context.enter()?;
        let (least, _) = context.priorities()?;
        let streams: [Stream; 2] = [context.stream(least)?, context.stream(least)?];
        let host = DeviceHost::share(&context, &host, options.registration_bytes, near.as_ref());
        let batch_use = options.batches.decide(driver_facts, ordinal);
        let mut kernel = match (Grid::new(options.kernel_ctas, Grid::THREADS_MAX), host.mode()) {
            (None, _) => Err(PathUse::NotAsked),
            (Some(_), HostMode::Pageable { .. }) => Err(PathUse::Pageable),
            (Some(grid), HostMode::Registered) => {
                KernelLists::new(&context, grid).map_err(|error| PathUse::Refused { code: error.code })
            }
        };
        let table = options.table.unwrap_or_else(|| match host.mode() {
            HostMode::Pageable { .. } => PathTable::published(),
            HostMode::Registered => {
                let setting = setting(driver_facts, &facts);
                calibrate(&setting, &context, &streams[0], batch_use, kernel.as_mut().ok())
            }
        });
        let paths = Paths::new(&context, &host, table, batch_use, kernel);
        // The context stays current: without a thread all of it is given back here.
        Self::start(&options, facts, &context, Parts { streams, host, paths, near })
    }

    fn start(
        options: &CudaOptions,
        facts: DeviceFacts,
        context: &Arc<Context>,
        Parts { streams, host, mut paths, near }: Parts,
    ) -> Result<Self, CudaError> {
        let name = format!("cuda:{}", options.ordinal);
        let (num_slots, slot_bytes) = (host.memory().num_slots(), host.memory().slot_bytes() as u64);
        let info =
            DeviceInfo { name, ordinal: options.ordinal, id: OwnerId::unique(), num_slots, slot_bytes };
        let queue = TransferQueue::new(QueueOptions {
            inflight_max: options.inflight_max,
            window_bytes: options.window_bytes,
            quantum_bytes: options.quantum_bytes,
            ..QueueOptions::new(num_slots, slot_bytes)
        });
        let (fences, recorder) = (Fences::new(info.id), Recorder::new(options.fences_max));
        let stats = paths.news().expect("nobody asked for them before").clone();
        let shared = Arc::new(Shared::new(Arc::clone(context), queue, fences, recorder, stats));
        let (mode, registrations) = (host.mode(), host.num_pieces());
        let worker = Worker::new(Arc::clone(&shared), streams, host, paths, near);
        let (sender, over) = crossbeam_channel::bounded(1);
        let thread = spawn(&info.name, Arc::clone(&shared), worker, sender)?;
        let drop_timeout = options.drop_timeout;
        Ok(Self { info, facts, shared, host: mode, registrations, drop_timeout, thread: Some(thread), over })
    }

    /// The GPU.
    pub fn facts(&self) -> &DeviceFacts {
        &self.facts
    }

    /// What it did so far.
    pub fn stats(&self) -> CudaStats {
        let state = self.shared.lock();
        CudaStats {
            transfers: state.queue.stats(),
            host: self.host,
            registrations: self.registrations,
            paths: state.paths.clone(),
            fences_pending: state.fences.num_pending(),
        }
    }

    /// Takes no more transfers. Those that have begun are finished, those that have not, fail as
    /// [`ShutDown`](kvo_core::TransferFailure::ShutDown). Poll, wait and drain go on working.
    pub fn shut_down(&mut self) {
        self.shared.lock().queue.shut_down(self.shared.now());
        self.shared.work.ring();
    }

    /// A stretch of memory that is on this device, in one allocation or in several side by side.
    fn region_of(&self, span: DeviceSpan) -> Result<Region, AttachError> {
        let (address, bytes) = (span.address(), span.bytes());
        let outside = AttachError::NotDeviceMemory { address, bytes };
        let context = &self.shared.context;
        let refused = |CallError { code, .. }: CallError| match code {
            code if code.is_sticky() => AttachError::Unhealthy(DeviceHealth::Dead { code: code.0 }),
            // What the driver says of an address that it does not know.
            DriverCode(1 | 500) => AttachError::NotDeviceMemory { address, bytes },
            code => AttachError::Refused { code: code.0 },
        };
        let _current = context.enter().map_err(refused)?;
        let region = Region::find(address, bytes, |at| {
            let is_here = context.ordinal_of(at)? == self.info.ordinal;
            if is_here { context.allocation_of(at).map(Some) } else { Ok(None) }
        });
        region.map_err(refused)?.ok_or(outside)
    }
}

/// What a device's thread is made of.
struct Parts {
    streams: [Stream; 2],
    host: DeviceHost,
    paths: Paths,
    near: Option<Near>,
}

/// What a measurement is good for: a kind of device with a driver and a link.
fn setting(driver: &DriverFacts, device: &DeviceFacts) -> String {
    let unknown = || "unknown".to_owned();
    let release = driver.release.clone().unwrap_or_else(|| driver.version.to_string());
    format!("{}, driver {release}, link {}", device.name, device.link.clone().unwrap_or_else(unknown))
}

/// Starts the device's thread. If it panics, the device is dead, and the thread waits for what is on its streams. Where
/// the driver does not say that this has ended, slots stay claimed, and memory mapped and registered.
fn spawn(
    name: &str,
    shared: Arc<Shared>,
    worker: Worker,
    over: Sender<bool>,
) -> Result<JoinHandle<()>, io::Error> {
    let thread = std::thread::Builder::new().name(format!("kvo-{name}"));
    let device = name.to_owned();
    thread.spawn(move || {
        let mut worker = ManuallyDrop::new(worker);
        let is_done = catch_unwind(AssertUnwindSafe(|| worker.run())).unwrap_or_else(|_| {
            shared.give_up("the device's thread panicked", PANICKED);
            catch_unwind(AssertUnwindSafe(|| worker.settle())).unwrap_or(false)
        });
        shared.clear();
        shared.ended.ring();
        // There is room for it.
        let _ = over.try_send(is_done);
        if is_done {
            drop(ManuallyDrop::into_inner(worker));
        } else {
            tracing::warn!(%device, "slots of a dead device stay claimed, and its host memory mapped");
        }
        drop(over);
    })
}

impl DeviceBackend for CudaDevice {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn attach(&mut self, span: DeviceSpan) -> Result<RegionId, AttachError> {
        let (address, bytes) = (span.address(), span.bytes());
        if bytes == 0 || address.checked_add(bytes).is_none() {
            return Err(AttachError::NoSpan { address, bytes });
        }
        let (given, ordinal) = (span.ordinal(), self.info.ordinal);
        if given != ordinal {
            return Err(AttachError::OtherDevice { given, ordinal });
        }
        let state = self.shared.lock();
        state.healthy().map_err(AttachError::Unhealthy)?;
        if let Some(region) = state.overlapping(span) {
            return Err(AttachError::Overlap { region });
        }
        drop(state);
        // Nobody else attaches meanwhile.
        let region = self.region_of(span)?;
        let mut state = self.shared.lock();
        state.healthy().map_err(AttachError::Unhealthy)?;
        Ok(state.add_region(region))
    }

    fn detach(&mut self, region: RegionId) -> Result<(), AttachError> {
        self.shared.lock().remove_region(region)
    }

    fn record_fence(&mut self, point: ComputePoint) -> Result<Fence, FenceError> {
        if point.device() != self.info.id {
            return Err(FenceError::ForeignHandle);
        }
        let mut recorder = self.shared.recorder();
        self.shared.lock().healthy().map_err(FenceError::Unhealthy)?;
        let _current = self.shared.context.enter().map_err(unmarked)?;
        recorder.record(&self.shared, point)
    }

    fn submit(&mut self, transfer: Transfer) -> Result<Ticket, SubmitError> {
        let mut state = self.shared.lock();
        let fence = transfer.after;
        let is_healthy = state.queue.health() == DeviceHealth::Healthy;
        if is_healthy && fence.device() != self.info.id {
            return Err(SubmitError { transfer, reason: SubmitErrorReason::ForeignFence });
        }
        if is_healthy && !state.fences.knows(fence) {
            return Err(SubmitError { transfer, reason: SubmitErrorReason::UnknownFence });
        }
        let ticket = state.queue.submit(transfer, self.shared.now())?;
        drop(state);
        self.shared.work.ring();
        Ok(ticket)
    }

    fn order_after(
        &mut self,
        ticket: Ticket,
        mark: u32,
        stream: StreamHandle,
    ) -> Result<MarkOrder, FenceError> {
        if stream.device() != self.info.id {
            return Err(FenceError::ForeignHandle);
        }
        let state = self.shared.lock();
        match state.queue.mark(ticket, mark)? {
            MarkState::Over => return Ok(MarkOrder::Ended),
            MarkState::Queued => return Ok(MarkOrder::NotYet),
            MarkState::Copied => return Ok(MarkOrder::Ordered),
            MarkState::Issued => {}
        }
        healthy_or_ending(&state).map_err(FenceError::Unhealthy)?;
        // Between its being given out and its being on the stream there is no event.
        let Some(event) = state.marks.get(&(ticket, mark)).cloned() else { return Ok(MarkOrder::NotYet) };
        drop(state);
        let context = &self.shared.context;
        let _current = context.enter().map_err(unmarked)?;
        // Given back before the context is: it may be the last share of the event.
        let event = event;
        context.order_after(stream, &event).map_err(|error| match error.code {
            DriverCode(400) => FenceError::UnknownHandle { raw: stream.raw() },
            _ => unmarked(error),
        })?;
        Ok(MarkOrder::Ordered)
    }

    fn poll(&mut self, done: &mut Vec<TransferCompletion>) {
        self.shared.lock().queue.take_done(done);
    }

    fn wait(&mut self, timeout: Duration, done: &mut Vec<TransferCompletion>) {
        self.shared.wait_until(timeout, |state| state.queue.has_done() || state.queue.num_open() == 0);
        self.poll(done);
    }

    fn take_released(&mut self, released: &mut Vec<Ticket>) {
        self.shared.lock().queue.take_released(released);
    }

    fn health(&self) -> DeviceHealth {
        self.shared.lock().queue.health()
    }

    fn drain(&mut self, timeout: Duration) -> Result<(), DrainError> {
        self.shared.wait_until(timeout, |state| state.queue.num_open() == 0);
        match self.shared.lock().queue.num_open() {
            0 => Ok(()),
            inflight => Err(DrainError { inflight, waited: timeout }),
        }
    }
}

/// A device that was shut down still ends what it has begun.
fn healthy_or_ending(state: &State) -> Result<(), DeviceHealth> {
    match state.queue.health() {
        DeviceHealth::Healthy | DeviceHealth::ShutDown => Ok(()),
        health => Err(health),
    }
}

fn unmarked(CallError { code, .. }: CallError) -> FenceError {
    if code.is_sticky() {
        FenceError::Unhealthy(DeviceHealth::Dead { code: code.0 })
    } else {
        FenceError::Refused { code: code.0 }
    }
}

impl Drop for CudaDevice {
    fn drop(&mut self) {
        self.shut_down();
        let start = Instant::now();
        let device = &self.info.name;
        let is_done = match self.over.recv_timeout(self.drop_timeout) {
            // The thread has not got to say so.
            Err(RecvTimeoutError::Timeout) => self.shared.lock().queue.is_empty(),
            said => said == Ok(true),
        };
        if !is_done {
            tracing::warn!(%device, "dropped before its copies had ended: device memory that they use must stay allocated, \
                 and slots that they use stay claimed");
            self.shared.lock().queue.give_up(self.shared.now());
        }
        // What copies used is given back by the thread, if there is time; else without being waited for.
        let left = self.drop_timeout.saturating_sub(start.elapsed());
        if self.over.recv_timeout(left) == Err(RecvTimeoutError::Disconnected)
            && let Some(thread) = self.thread.take()
        {
            // It catches what panics in it.
            let _ = thread.join();
        }
    }
}

impl fmt::Debug for CudaDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CudaDevice")
            .field("info", &self.info)
            .field("facts", &self.facts)
            .field("health", &self.health())
            .field("host", &self.host)
            .finish_non_exhaustive()
    }
}
