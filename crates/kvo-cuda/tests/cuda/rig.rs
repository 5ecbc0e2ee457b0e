//! A small engine: it owns memory of the device, streams and events, and lends them to the device under test.

use std::{
    fs,
    ops::Deref,
    path::PathBuf,
    ptr::NonNull,
    rc::Rc,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    thread::{Builder, JoinHandle},
    time::{Duration, Instant},
};

use cudarc::driver::{CudaContext, CudaEvent, CudaStream, result, sys};
use kvo_core::{
    ComputePoint, CopyOp, DeviceBackend, DeviceSpan, EventHandle, Fence, HostMemory, RegionId,
    SlotAccessError, SlotId, StableMemory, StreamHandle, Ticket, Transfer, TransferClass, TransferCompletion,
};
use kvo_cpu::{HostRegion, RegionOptions};
use kvo_cuda::{CopyPath, CudaDevice, CudaOptions, PathTable, TableSource, probe};
use kvo_fakecuda::{Exclusive, FakeDriver, Hold};

/// Longer than anything here takes, unless it never ends.
pub(crate) const LONG: Duration = Duration::from_secs(20);

pub(crate) const SLOT_BYTES: usize = 64 << 10;
pub(crate) const NUM_SLOTS: u32 = 16;
/// Bytes of the device's memory that is attached.
pub(crate) const REGION_BYTES: usize = 1 << 20;

/// The driver, for one test alone, with two devices.
pub(crate) fn fake() -> Exclusive {
    let fake = FakeDriver::load().expect("cargo builds the library for this test").exclusive();
    // A device that a test has dropped under a copy may have a thread yet, which gives back a share of its context: one
    // of this test's, if it came later.
    until(|| task("kvo-cuda:0").is_none() && task("kvo-cuda:1").is_none());
    fake.reset();
    fake.set_device_count(2);
    fake
}

/// A share of a device's context, and the driver that it is of, which no other test has before the share is given back,
/// in whatever order a test drops what it has.
pub(crate) struct Share {
    context: Arc<CudaContext>,
    _fake: Rc<Exclusive>,
}

impl Share {
    /// Does not give it back.
    pub(crate) fn forget(self) {
        std::mem::forget(self.context);
    }
}

impl Deref for Share {
    type Target = Arc<CudaContext>;

    fn deref(&self) -> &Arc<CudaContext> {
        &self.context
    }
}

/// Fields drop in this order: the device before what it borrows, the driver last.
pub(crate) struct Rig {
    pub(crate) device: CudaDevice,
    pub(crate) host: Arc<HostRegion>,
    pub(crate) region: RegionId,
    /// Where the region is.
    pub(crate) address: u64,
    pub(crate) context: Share,
    pub(crate) fake: Rc<Exclusive>,
}

/// Options by which every copy is a call.
pub(crate) fn options() -> CudaOptions {
    CudaOptions { table: Some(favour(CopyPath::Memcpy)), kernel_ctas: 0, ..CudaOptions::new(0) }
}

/// A table by which one way is always the fastest.
pub(crate) fn favour(path: CopyPath) -> PathTable {
    let mut table = PathTable { nanoseconds: PathTable::published().nanoseconds, source: TableSource::Given };
    for ways in &mut table.nanoseconds {
        for way in CopyPath::ALL {
            ways[way as usize].fill(if way == path { 1 } else { 1000 });
        }
    }
    table
}

pub(crate) fn host_memory(num_slots: u32, slot_bytes: usize) -> Arc<HostRegion> {
    let options =
        RegionOptions { huge_pages: false, prefault_threads: 0, ..RegionOptions::new(num_slots, slot_bytes) };
    Arc::new(HostRegion::anonymous(&options).unwrap())
}

impl Rig {
    pub(crate) fn new() -> Self {
        Self::with(options(), |_| ())
    }

    /// With other options, and a driver that is prepared by `prepare` after it was started.
    pub(crate) fn with(options: CudaOptions, prepare: impl FnOnce(&FakeDriver)) -> Self {
        Self::over(fake(), options, host_memory(NUM_SLOTS, SLOT_BYTES), prepare)
    }

    pub(crate) fn over(
        fake: Exclusive,
        options: CudaOptions,
        host: Arc<HostRegion>,
        prepare: impl FnOnce(&FakeDriver),
    ) -> Self {
        let context = CudaContext::new(options.ordinal as usize).unwrap();
        assert_eq!(probe().devices().len(), 2, "{}", probe());
        prepare(&fake);
        let device = CudaDevice::new(options, host.clone()).unwrap();
        Self::around(device, host, context, fake)
    }

    /// With a device that was made over `host`, in whatever way.
    pub(crate) fn around(
        mut device: CudaDevice,
        host: Arc<HostRegion>,
        context: Arc<CudaContext>,
        fake: Exclusive,
    ) -> Self {
        let (region, address) = attach(&mut device, &context, REGION_BYTES);
        let fake = Rc::new(fake);
        let context = Share { context, _fake: Rc::clone(&fake) };
        Self { device, host, region, address, context, fake }
    }

    pub(crate) fn stream(&self) -> Arc<CudaStream> {
        self.context.new_stream().unwrap()
    }

    pub(crate) fn handle(&self, stream: &CudaStream) -> StreamHandle {
        handle_on(&self.device, stream)
    }

    pub(crate) fn event_handle(&self, event: &CudaEvent) -> EventHandle {
        // SAFETY: as for a stream, in `handle_on`.
        unsafe { EventHandle::from_raw(self.device.info().id, event.cu_event().expose_provenance() as u64) }
    }

    /// A fence behind what is on the stream.
    pub(crate) fn fence_on(&mut self, stream: &CudaStream) -> Fence {
        let point = ComputePoint::Stream(self.handle(stream));
        self.device.record_fence(point).unwrap()
    }

    /// A fence that compute has passed.
    pub(crate) fn passed(&mut self) -> Fence {
        let stream = self.stream();
        let fence = self.fence_on(&stream);
        stream.synchronize().unwrap();
        fence
    }

    pub(crate) fn op(&self, device_offset: u64, slot: u32, slot_offset: u64, bytes: u64) -> CopyOp {
        CopyOp { region: self.region, device_offset, slot: SlotId(slot), slot_offset, bytes }
    }

    /// A transfer of one slot from or to the region's start.
    pub(crate) fn one_slot(&self, class: TransferClass, slot: u32, after: Fence) -> Transfer {
        Transfer::new(class, vec![self.op(0, slot, 0, SLOT_BYTES as u64)], after)
    }

    pub(crate) fn submit(&mut self, transfer: Transfer) -> Ticket {
        self.device.submit(transfer).unwrap()
    }

    /// Waits until one transfer has ended.
    #[track_caller]
    pub(crate) fn next(&mut self) -> TransferCompletion {
        let mut done = Vec::new();
        self.device.wait(LONG, &mut done);
        assert_eq!(done.len(), 1, "exactly one was to end, not {done:?}");
        done.remove(0)
    }

    /// Waits until a ticket has ended, well.
    #[track_caller]
    pub(crate) fn succeeds(&mut self, ticket: Ticket) {
        let done = self.next();
        assert_eq!(done.ticket, ticket);
        assert!(done.result.is_ok(), "{done:?}");
    }

    /// Nothing ends within a while that is long for the thread.
    #[track_caller]
    pub(crate) fn nothing_ends(&mut self) {
        let mut done = Vec::new();
        self.device.wait(Duration::from_millis(30), &mut done);
        assert_eq!(done, []);
    }

    pub(crate) fn slot(&self, slot: u32) -> Vec<u8> {
        let mut copy = Vec::new();
        self.host.with_read(SlotId(slot), &mut |bytes| copy.extend_from_slice(bytes)).unwrap();
        copy
    }

    pub(crate) fn fill_slot(&self, slot: u32, with: &[u8]) {
        self.host.with_write(SlotId(slot), &mut |bytes| bytes[..with.len()].copy_from_slice(with)).unwrap();
    }

    pub(crate) fn on_device(&self, offset: usize, bytes: usize) -> Vec<u8> {
        let mut copy = vec![0; bytes];
        assert!(self.fake.read_device(self.address + offset as u64, &mut copy));
        copy
    }

    pub(crate) fn fill_device(&self, offset: usize, with: &[u8]) {
        assert!(self.fake.write_device(self.address + offset as u64, with));
    }

    /// Nothing was done that no program may do.
    #[track_caller]
    pub(crate) fn is_clean(&self) {
        assert_eq!(self.fake.violations(), []);
        assert_eq!(self.fake.mismatches(), []);
    }
}

pub(crate) fn handle_on(device: &CudaDevice, stream: &CudaStream) -> StreamHandle {
    // SAFETY: the stream is of the device's primary context, and lives as long as the call that is given this.
    unsafe { StreamHandle::from_raw(device.info().id, raw(stream)) }
}

/// Memory of the device, attached. It is given back with the context.
pub(crate) fn attach(device: &mut CudaDevice, context: &Arc<CudaContext>, bytes: usize) -> (RegionId, u64) {
    let address = allocate(context, bytes);
    (device.attach(span(address, bytes, device.info().ordinal)).unwrap(), address)
}

pub(crate) fn allocate(context: &Arc<CudaContext>, bytes: usize) -> u64 {
    context.bind_to_thread().unwrap();
    // SAFETY: the context is current, as the caller has seen to; the memory is given back with the driver.
    unsafe { result::malloc_sync(bytes) }.unwrap()
}

pub(crate) fn span(address: u64, bytes: usize, ordinal: u32) -> DeviceSpan {
    // SAFETY: the memory is given back with the driver, which outlives the device.
    unsafe { DeviceSpan::from_raw(address, bytes as u64, ordinal) }
}

/// Ends a capture; says the code if that fails. The fake driver has no graphs.
pub(crate) fn end_capture(stream: &CudaStream) -> Result<(), u32> {
    // SAFETY: the caller's borrow keeps the stream until the call has returned.
    let ended = unsafe { result::stream::end_capture(stream.cu_stream()) };
    ended.map(|_| ()).map_err(|error| error.0 as u32)
}

pub(crate) fn is_capturing(stream: &CudaStream) -> bool {
    // SAFETY: as in `end_capture`.
    let status = unsafe { result::stream::is_capturing(stream.cu_stream()) };
    status.unwrap() == sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_ACTIVE
}

pub(crate) fn raw(stream: &CudaStream) -> u64 {
    stream.cu_stream().expose_provenance() as u64
}

/// Bytes that differ from place to place and from seed to seed.
pub(crate) fn pattern(seed: u64, bytes: usize) -> Vec<u8> {
    (0..bytes as u64).map(|index| FakeDriver::pattern(seed, index)).collect()
}

/// Host memory that panics when `bad` is claimed. Each slot of the memory is `parts` slots of this one, which are claimed
/// together.
pub(crate) struct Panicky {
    pub(crate) memory: Arc<HostRegion>,
    pub(crate) bad: SlotId,
    pub(crate) parts: u32,
}

impl Panicky {
    /// The memory's slot that a slot is in, and where it starts there.
    fn of(&self, slot: SlotId) -> (SlotId, usize) {
        (SlotId(slot.0 / self.parts), (slot.0 % self.parts) as usize * self.slot_bytes())
    }
}

impl HostMemory for Panicky {
    fn num_slots(&self) -> u32 {
        self.memory.num_slots() * self.parts
    }

    fn slot_bytes(&self) -> usize {
        self.memory.slot_bytes() / self.parts as usize
    }

    fn with_read(&self, slot: SlotId, read: &mut dyn FnMut(&[u8])) -> Result<(), SlotAccessError> {
        let (of, start) = self.of(slot);
        self.memory.with_read(of, &mut |bytes| read(&bytes[start..][..self.slot_bytes()]))
    }

    fn with_write(&self, slot: SlotId, write: &mut dyn FnMut(&mut [u8])) -> Result<(), SlotAccessError> {
        let (of, start) = self.of(slot);
        self.memory.with_write(of, &mut |bytes| write(&mut bytes[start..][..self.slot_bytes()]))
    }
}

// SAFETY: every claim is the memory's own, and so is its release; a claim that panics has claimed nothing.
unsafe impl StableMemory for Panicky {
    fn claim_read(&self, slot: SlotId) -> Result<NonNull<u8>, SlotAccessError> {
        assert_ne!(slot, self.bad, "the panic that the test wants");
        let (of, start) = self.of(slot);
        let first = self.memory.claim_read(of)?;
        // SAFETY: a part of a slot starts inside of it.
        Ok(unsafe { first.add(start) })
    }

    unsafe fn release_read(&self, slot: SlotId) {
        // SAFETY: the caller gives back a claim that the memory gave out, once, and uses it no more.
        unsafe { self.memory.release_read(self.of(slot).0) };
    }

    fn claim_write(&self, slot: SlotId) -> Result<NonNull<u8>, SlotAccessError> {
        assert_ne!(slot, self.bad, "the panic that the test wants");
        let (of, start) = self.of(slot);
        let first = self.memory.claim_write(of)?;
        // SAFETY: a part of a slot starts inside of it.
        Ok(unsafe { first.add(start) })
    }

    unsafe fn release_write(&self, slot: SlotId) {
        // SAFETY: the caller gives back a claim that the memory gave out, once, and uses it no more.
        unsafe { self.memory.release_write(self.of(slot).0) };
    }

    fn span(&self) -> (NonNull<u8>, usize) {
        self.memory.span()
    }
}

/// What the kernel says of a thread of this process, if there is one of that name.
pub(crate) fn task(name: &str) -> Option<PathBuf> {
    let tasks = fs::read_dir("/proc/self/task").ok()?.flatten().map(|task| task.path());
    let is_it = |task: &PathBuf| fs::read_to_string(task.join("comm")).is_ok_and(|comm| comm.trim() == name);
    tasks.into_iter().find(is_it)
}

/// Whether a thread of that name is asleep: it waits for another.
pub(crate) fn is_asleep(name: &str) -> bool {
    let stat = task(name).and_then(|task| fs::read_to_string(task.join("stat")).ok());
    stat.is_some_and(|stat| stat.rsplit(')').next().is_some_and(|after| after.trim_start().starts_with('S')))
}

/// Has a thread drop a device that asks by `call` whether its copies have ended, which they have not. Returns once the drop
/// waits and the device's thread, which knows of it, asks on.
#[track_caller]
pub(crate) fn drop_under_copies(fake: &Exclusive, device: CudaDevice, call: &'static str) -> JoinHandle<()> {
    // Held in there the device's thread has no lock, so the drop has nothing to wait for but its end.
    fake.hold(Hold::Calls(call));
    assert!(fake.wait_for_blocked(1));
    let dropper = "kvo-dropper";
    let dropped = Builder::new().name(dropper.to_owned()).spawn(move || drop(device)).unwrap();
    until(|| dropped.is_finished() || is_asleep(dropper));
    // In two rounds a device that has nothing to wait for has ended.
    let asked = fake.calls(call);
    fake.release(Hold::Calls(call));
    until(|| dropped.is_finished() || fake.calls(call) > asked + 4);
    assert!(!dropped.is_finished(), "it does not wait");
    dropped
}

/// How many warnings this thread writes while it runs something.
pub(crate) fn warnings(run: impl FnOnce()) -> usize {
    let count = Arc::new(AtomicUsize::new(0));
    tracing::subscriber::with_default(Warnings(Arc::clone(&count)), run);
    count.load(Ordering::Relaxed)
}

struct Warnings(Arc<AtomicUsize>);

impl tracing::Subscriber for Warnings {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        *metadata.level() == tracing::Level::WARN && metadata.is_event()
    }

    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }

    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}

    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}

    fn event(&self, _: &tracing::Event<'_>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    fn enter(&self, _: &tracing::span::Id) {}

    fn exit(&self, _: &tracing::span::Id) {}
}

/// Waits until something is so.
#[track_caller]
pub(crate) fn until(mut is_so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < LONG, "it never came to be");
        std::thread::sleep(Duration::from_micros(200));
    }
}
