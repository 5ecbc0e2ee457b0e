//! The device's side of the seam: copies between GPU blocks and slots.

use std::time::Duration;

use crate::{OwnerId, SlotId};

/// Which way a transfer goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Direction {
    /// GPU to CPU.
    Store,
    /// CPU to GPU.
    Load,
}

/// One run of bytes that is contiguous on both sides.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CopyOp {
    /// Where the run starts in the device's KV memory, in bytes.
    pub device_offset: u64,
    /// The slot on the host.
    pub slot: SlotId,
    /// Where the run starts in the slot, in bytes.
    pub slot_offset: u64,
    /// How long it is, in bytes; never 0.
    pub bytes: u64,
}

/// A point in a device's compute stream. A copy that waits for it sees, and disturbs, nothing that was put on the
/// stream before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fence {
    device: OwnerId,
    sequence: u64,
}

impl Fence {
    /// Makes a fence. For devices.
    pub fn new(device: OwnerId, sequence: u64) -> Self {
        Self { device, sequence }
    }

    /// The device that made it.
    pub fn device(&self) -> OwnerId {
        self.device
    }

    /// How far the compute stream had been filled.
    pub fn sequence(&self) -> u64 {
        self.sequence
    }
}

/// A set of copies that complete as one. There is no way to submit one without saying what it waits for: a store
/// waits for the compute that wrote its blocks, a load for the compute that still reads them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transfer {
    /// Which way.
    pub direction: Direction,
    /// The copies, in no particular order of execution. No two write the same bytes.
    pub ops: Vec<CopyOp>,
    /// What must have happened on the compute stream first.
    pub after: Fence,
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
}

/// Why the bytes of a transfer are not to be trusted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TransferFailure {
    /// The device failed; see [`DeviceHealth`].
    #[error("the device failed with code {code}")]
    Device {
        /// The driver's code.
        code: u32,
    },
    /// A slot was being used by someone else.
    #[error(transparent)]
    Slot(#[from] crate::SlotAccessError),
    /// The device was shut down before the transfer began.
    #[error("the device was shut down before the transfer began")]
    ShutDown,
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

/// A transfer was not taken.
#[derive(Debug, thiserror::Error)]
#[error("the transfer was not taken: {reason}")]
pub struct SubmitError {
    /// The transfer, handed back.
    pub transfer: Transfer,
    /// Why.
    pub reason: SubmitErrorReason,
}

/// Why a transfer was not taken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SubmitErrorReason {
    /// Too many transfers are in flight; poll and submit again.
    #[error("{inflight} transfers are in flight, the limit is {inflight_max}")]
    Full {
        /// Transfers in flight.
        inflight: usize,
        /// The limit.
        inflight_max: usize,
    },
    /// The device is dead or shut down.
    #[error("the device takes no transfers: {0:?}")]
    Unhealthy(DeviceHealth),
    /// The fence was made by another device.
    #[error("the fence was made by another device")]
    ForeignFence,
    /// The fence lies in the compute stream's future.
    #[error("the fence was never recorded on this device")]
    UnknownFence,
    /// The transfer has no copies.
    #[error("the transfer is empty")]
    Empty,
    /// A copy reaches beyond the device's memory, the slots or a slot's end, or has no bytes.
    #[error("copy {index} reaches out of bounds: {op:?}")]
    OutOfBounds {
        /// Its place in the transfer.
        index: usize,
        /// The copy.
        op: CopyOp,
    },
    /// Two copies of the transfer write the same bytes.
    #[error("copy {index} overlaps another of the transfer: {op:?}")]
    Overlap {
        /// The place of one of them in the transfer.
        index: usize,
        /// That copy.
        op: CopyOp,
    },
}

/// A device did not become idle in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{inflight} transfers are still in flight after {waited:?}")]
pub struct DrainError {
    /// Transfers still in flight.
    pub inflight: usize,
    /// How long was waited.
    pub waited: Duration,
}

/// Copies between an engine's GPU blocks and the slots of the host memory it was built over.
///
/// The engine's worker calls it, from one thread. Stores and loads run on lanes of their own, each in the order of
/// submission; the two lanes are not ordered against each other. Each ticket completes exactly once, never before
/// [`submit`](Self::submit) has returned. Once a device is dead it fails every open ticket once and takes no more.
pub trait DeviceBackend: Send {
    /// A name for stats and spans.
    fn name(&self) -> &str;

    /// Bytes of the device's KV memory.
    fn device_bytes(&self) -> u64;

    /// A fence after everything that is on the compute stream now.
    fn record_fence(&mut self) -> Fence;

    /// Starts a transfer; an error hands it back and nothing has happened.
    fn submit(&mut self, transfer: Transfer) -> Result<Ticket, SubmitError>;

    /// Moves the transfers that ended since the last call to the end of `done`. Does not wait.
    fn poll(&mut self, done: &mut Vec<TransferCompletion>);

    /// As [`poll`](Self::poll), but waits up to `timeout` for at least one, if any is in flight.
    fn wait(&mut self, timeout: Duration, done: &mut Vec<TransferCompletion>);

    /// Whether the device works.
    fn health(&self) -> DeviceHealth;

    /// Waits up to `timeout` until nothing is in flight; what ended on the way comes with the next poll.
    fn drain(&mut self, timeout: Duration) -> Result<(), DrainError>;
}
