//! The device's side of the seam: copies between an engine's GPU blocks and slots.

use std::time::Duration;

mod error;

pub use self::error::{AttachError, DrainError, FenceError, SubmitError, SubmitErrorReason, TransferFailure};
use crate::{OwnerId, RegionId, SlotId};

/// Which way a transfer goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Direction {
    /// GPU to CPU.
    Store,
    /// CPU to GPU.
    Load,
}

/// What a transfer is for: which way it goes, and what it may overtake.
///
/// Stores and loads do not wait for one another. Among loads, a more urgent one overtakes those that are not yet on
/// the device's own queue, of which there is never more than a bounded number of bytes. Within a class transfers
/// start in the order of submission.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum TransferClass {
    /// A load that a request of the running step waits for.
    Demand,
    /// A load for a request that is scheduled next.
    Expedited,
    /// A load that no request waits for yet.
    Prefetch,
    /// A store.
    Store,
}

impl TransferClass {
    /// All of them, the most urgent load first.
    pub const ALL: [Self; 4] = [Self::Demand, Self::Expedited, Self::Prefetch, Self::Store];

    /// Which way its transfers go.
    pub fn direction(self) -> Direction {
        match self {
            Self::Demand | Self::Expedited | Self::Prefetch => Direction::Load,
            Self::Store => Direction::Store,
        }
    }
}

/// What a backend is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceInfo {
    /// A name for stats and spans.
    pub name: String,
    /// Which of the machine's devices it is, as the driver counts them; 0 for a device that is none.
    pub ordinal: u32,
    /// Whose fences and streams it takes.
    pub id: OwnerId,
    /// Slots of the host memory that it was built over.
    pub num_slots: u32,
    /// Bytes of each.
    pub slot_bytes: u64,
}

/// A stretch of a device's memory in which an engine keeps blocks: a part of one allocation, or of several that lie side
/// by side without a gap.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DeviceSpan {
    address: u64,
    bytes: u64,
    ordinal: u32,
}

impl DeviceSpan {
    /// Names `bytes` bytes at `address` in the memory of device `ordinal`. Nothing is touched by this.
    ///
    /// # Safety
    /// From [`attach`](DeviceBackend::attach) until [`detach`](DeviceBackend::detach) has returned, or the backend is
    /// gone, the memory stays allocated, and no Rust reference into it exists. Where a backend warns that it was dropped
    /// before its copies had ended, that is so for as long as the process lives.
    pub unsafe fn from_raw(address: u64, bytes: u64, ordinal: u32) -> Self {
        Self { address, bytes, ordinal }
    }

    /// The address of its first byte, as the driver says it.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Its length.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The device whose memory it is.
    pub fn ordinal(&self) -> u32 {
        self.ordinal
    }
}

/// One of an engine's streams, on which its kernels run one after the other. It stays the engine's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct StreamHandle {
    device: OwnerId,
    raw: u64,
}

impl StreamHandle {
    /// Names a stream by the driver's handle, for the backend `device`.
    ///
    /// # Safety
    /// The handle is one that the driver gave out for a stream of that device's context, and the stream is not
    /// destroyed while a call that is given this is running.
    pub unsafe fn from_raw(device: OwnerId, raw: u64) -> Self {
        Self { device, raw }
    }

    /// The backend it is for.
    pub fn device(&self) -> OwnerId {
        self.device
    }

    /// The driver's handle.
    pub fn raw(&self) -> u64 {
        self.raw
    }
}

/// One of an engine's events. It stays the engine's, who may record it again as soon as the call is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct EventHandle {
    device: OwnerId,
    raw: u64,
}

impl EventHandle {
    /// Names an event by the driver's handle, for the backend `device`.
    ///
    /// # Safety
    /// As [`StreamHandle::from_raw`], for an event.
    pub unsafe fn from_raw(device: OwnerId, raw: u64) -> Self {
        Self { device, raw }
    }

    /// The backend it is for.
    pub fn device(&self) -> OwnerId {
        self.device
    }

    /// The driver's handle.
    pub fn raw(&self) -> u64 {
        self.raw
    }
}

/// A point in an engine's compute, at the time of the call that is given it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ComputePoint {
    /// Behind everything that is on the stream now.
    Stream(StreamHandle),
    /// Behind what the event was last recorded behind.
    Event(EventHandle),
}

impl ComputePoint {
    /// The backend whose stream or event it is.
    pub fn device(&self) -> OwnerId {
        match self {
            Self::Stream(stream) => stream.device,
            Self::Event(event) => event.device,
        }
    }
}

/// One run of bytes that is contiguous on both sides.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CopyOp {
    /// The region of the device's memory.
    pub region: RegionId,
    /// Where the run starts in the region, in bytes.
    pub device_offset: u64,
    /// The slot on the host.
    pub slot: SlotId,
    /// Where the run starts in the slot, in bytes.
    pub slot_offset: u64,
    /// How long it is, in bytes; never 0.
    pub bytes: u64,
}

/// A point in an engine's compute that a backend knows. A copy that waits for it sees, and disturbs, nothing of what
/// the engine had put on its stream before.
///
/// A fence is a name and can be waited for by any number of transfers, before and after compute has passed it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Fence {
    device: OwnerId,
    sequence: u64,
}

impl Fence {
    /// Makes a fence. For backends.
    pub fn new(device: OwnerId, sequence: u64) -> Self {
        Self { device, sequence }
    }

    /// The backend that made it.
    pub fn device(&self) -> OwnerId {
        self.device
    }

    /// Its number among the fences of that backend.
    pub fn sequence(&self) -> u64 {
        self.sequence
    }
}

/// A set of copies that complete as one. There is no way to submit one without saying what it waits for: a store
/// waits for the compute that wrote its blocks, a load for the compute that still reads them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transfer {
    /// Which way, and how urgent.
    pub class: TransferClass,
    /// The copies. No two write the same bytes. They may run in any order between two marks.
    pub ops: Vec<CopyOp>,
    /// Where parts of it end, as numbers of copies, none less than the one before: `ops[..marks[0]]`, then up to
    /// `marks[1]`, and so on. A mark that is as great as the one before ends a part without copies, as of a layer that has
    /// nothing to load. For loads layer by layer: compute can wait for a mark instead of the whole.
    pub marks: Vec<u32>,
    /// What must have happened first.
    pub after: Fence,
    /// How long it may take from its submission on; without one, as long as it takes.
    pub deadline: Option<Duration>,
}

impl Transfer {
    /// A transfer without marks and deadline.
    pub fn new(class: TransferClass, ops: Vec<CopyOp>, after: Fence) -> Self {
        Self { class, ops, marks: Vec::new(), after, deadline: None }
    }
}

/// A submitted transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Ticket(pub u64);

/// How a transfer ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TransferCompletion {
    /// The transfer.
    pub ticket: Ticket,
    /// The bytes that were copied, or why they are not to be trusted.
    pub result: Result<u64, TransferFailure>,
    /// Whether the device may still touch the slots and blocks of this failed transfer. They are not to be used until
    /// [`take_released`](DeviceBackend::take_released) names the ticket.
    pub held: bool,
}

/// What a stream that was to wait for a [mark](Transfer::marks) does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MarkOrder {
    /// What is put on it from now on comes after the mark or, if the transfer fails, when the device touches nothing of it
    /// any more: what the copies brought counts only with the transfer's completion.
    Ordered,
    /// The copies up to the mark are not all on the device's queue yet, so there is nothing to wait for: ask again.
    NotYet,
    /// The transfer has ended. Its completion says how.
    Ended,
}

/// Whether a device works.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DeviceHealth {
    /// It does.
    Healthy,
    /// It was shut down and takes no further transfers.
    ShutDown,
    /// It failed and takes no further transfers. The tiers live on.
    Dead {
        /// The driver's code.
        code: u32,
    },
}

/// Copies between an engine's GPU blocks and the slots of the host memory it was built over.
///
/// The engine's worker calls it, from one thread: it attaches the memory its blocks are in, takes a fence behind the
/// compute of a step, submits transfers that wait for it, and polls.
///
/// - Each ticket completes exactly once, never before [`submit`](Self::submit) has returned. When it completes, the
///   device touches neither slots nor blocks of it any more, unless it says that they are [held](TransferCompletion::held).
/// - Stores and loads are not ordered against each other, nor against compute, except by the fence a transfer waits
///   for. Whoever reuses a block or a slot waits for the completion.
/// - Once a device is dead it fails every open ticket once and takes no more. No call panics, and every call stays
///   good for nothing rather than harmful.
/// - Dropped, it waits for what is on the device's queue, or leaks what the device may still touch, with a warning.
pub trait DeviceBackend: Send {
    /// What it is.
    fn info(&self) -> &DeviceInfo;

    /// Lets transfers name a stretch of device memory; the id is the next number, and never used again.
    ///
    /// # Errors
    /// [`AttachError`]; then nothing has changed.
    fn attach(&mut self, span: DeviceSpan) -> Result<RegionId, AttachError>;

    /// Forgets a region, so that the engine may free or reuse its memory.
    ///
    /// # Errors
    /// [`AttachError`]: the region stays, above all while transfers of it are not over.
    fn detach(&mut self, region: RegionId) -> Result<(), AttachError>;

    /// A fence at a point of the engine's compute. Puts a mark on the engine's stream, and does not wait.
    ///
    /// # Errors
    /// [`FenceError`]; then there is no fence, and nothing may be copied on the strength of it.
    fn record_fence(&mut self, point: ComputePoint) -> Result<Fence, FenceError>;

    /// Starts a transfer. Does not wait, for neither the device nor a fence.
    ///
    /// # Errors
    /// [`SubmitError`] hands the transfer back and nothing has happened.
    fn submit(&mut self, transfer: Transfer) -> Result<Ticket, SubmitError>;

    /// Makes an engine's stream wait for a [mark](Transfer::marks) of a transfer, without this thread waiting.
    ///
    /// # Errors
    /// [`FenceError`]; then the stream does not wait.
    fn order_after(
        &mut self,
        ticket: Ticket,
        mark: u32,
        stream: StreamHandle,
    ) -> Result<MarkOrder, FenceError>;

    /// Moves the transfers that ended since the last call to the end of `done`. Does not wait.
    fn poll(&mut self, done: &mut Vec<TransferCompletion>);

    /// As [`poll`](Self::poll), but waits up to `timeout` for at least one, if any is in flight.
    fn wait(&mut self, timeout: Duration, done: &mut Vec<TransferCompletion>);

    /// Moves the tickets of [held](TransferCompletion::held) transfers that the device is done with to the end of
    /// `released`, each once. Does not wait.
    fn take_released(&mut self, released: &mut Vec<Ticket>);

    /// Whether the device works.
    fn health(&self) -> DeviceHealth;

    /// Waits up to `timeout` until nothing is in flight; what ended on the way comes with the next poll. Held
    /// transfers are not in flight.
    ///
    /// # Errors
    /// [`DrainError`] says how many still are; they go on.
    fn drain(&mut self, timeout: Duration) -> Result<(), DrainError>;
}

/// Something that is a device because it has one: its calls are that one's.
pub trait WrapsDevice: Send {
    /// The device.
    fn wrapped(&self) -> &dyn DeviceBackend;

    /// The device.
    fn wrapped_mut(&mut self) -> &mut dyn DeviceBackend;
}

impl<W: WrapsDevice> DeviceBackend for W {
    fn info(&self) -> &DeviceInfo {
        self.wrapped().info()
    }

    fn attach(&mut self, span: DeviceSpan) -> Result<RegionId, AttachError> {
        self.wrapped_mut().attach(span)
    }

    fn detach(&mut self, region: RegionId) -> Result<(), AttachError> {
        self.wrapped_mut().detach(region)
    }

    fn record_fence(&mut self, point: ComputePoint) -> Result<Fence, FenceError> {
        self.wrapped_mut().record_fence(point)
    }

    fn submit(&mut self, transfer: Transfer) -> Result<Ticket, SubmitError> {
        self.wrapped_mut().submit(transfer)
    }

    fn order_after(
        &mut self,
        ticket: Ticket,
        mark: u32,
        stream: StreamHandle,
    ) -> Result<MarkOrder, FenceError> {
        self.wrapped_mut().order_after(ticket, mark, stream)
    }

    fn poll(&mut self, done: &mut Vec<TransferCompletion>) {
        self.wrapped_mut().poll(done);
    }

    fn wait(&mut self, timeout: Duration, done: &mut Vec<TransferCompletion>) {
        self.wrapped_mut().wait(timeout, done);
    }

    fn take_released(&mut self, released: &mut Vec<Ticket>) {
        self.wrapped_mut().take_released(released);
    }

    fn health(&self) -> DeviceHealth {
        self.wrapped().health()
    }

    fn drain(&mut self, timeout: Duration) -> Result<(), DrainError> {
        self.wrapped_mut().drain(timeout)
    }
}
