//! What moves bytes between the host memory and the files, and what it is told and says.
//!
//! An engine takes [`Op`]s, one chunk each, and sends an [`Event`] for each exactly once, in any order, to the channel
//! that it was made with. It knows no state: which slot is whose was decided by the store before, and what follows
//! from a failure is decided by the store after. Slots in the files, their tenants and their pins stay as they are
//! until the event has come.
//!
//! An engine claims the chunk's slot in the host memory when it begins, and gives it back after its last byte, before
//! it sends the event; it makes the checksum of what it writes, and compares that of what it reads.

mod pool;
mod start;
mod uring;

#[cfg(test)]
mod tests;

use std::{io, time::Duration};

use kvo_core::{JobId, SlotAccessError, SlotId};

use crate::{EngineStats, slots::Tenant};

#[cfg(test)]
pub(crate) use self::pool::{ByHand, Pool};
pub use self::start::EngineInfo;
pub(crate) use self::start::{Started, start};

/// How long threads that have nothing to do are waited for.
const PATIENCE: Duration = Duration::from_mins(1);

/// What moves the bytes of a store. Dropped without a stop, it stops.
pub(crate) trait Engine: Send {
    /// Queues an op, or hands it back if it can take none any more. Never waits, and does no I/O.
    fn submit(&mut self, op: Op) -> Result<(), Op>;

    /// Takes no further ops, ends those that were taken, and waits for them up to `timeout`; the events still come.
    ///
    /// # Errors
    /// The number of ops that have not ended, as far as the engine knows it. Their slots of the host memory stay claimed, and whatever that I/O
    /// touches stays mapped, for as long as the process lives.
    fn stop(&mut self, timeout: Duration) -> Result<(), Stuck>;

    /// What it has done so far, as far as it counts that.
    fn stats(&self) -> EngineStats {
        EngineStats::default()
    }

    /// Makes the thread of a device panic, if it has one of its own.
    #[cfg(test)]
    fn break_device(&self, _device: usize) {}
}

/// Ops that an engine could not end. One of threads knows only of those that are with a thread: what waits in its queue
/// is not counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0} transfers have not ended")]
pub(crate) struct Stuck(pub(crate) usize);

/// What comes back to the store.
#[derive(Debug)]
pub(crate) enum Event {
    /// A chunk has been moved, or not.
    Moved(OpDone),
    /// A record is on stable storage, or could not be written.
    Recorded {
        slot: u32,
        /// Of the record's chunk; the slot may have another by now.
        generation: u64,
        result: io::Result<()>,
    },
    /// Records could not be written: comes once for a batch and kind of error, before what became of each.
    IndexFailed(io::Error),
    /// Nothing is recorded any more, and nothing can be called durable: a sync has failed.
    JournalLost(io::Error),
}

/// One chunk to be moved.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Op {
    pub(crate) job: JobId,
    /// The chunk's place in its job.
    pub(crate) index: u32,
    /// Its slot in the host memory.
    pub(crate) host: SlotId,
    /// Its slot in the file.
    pub(crate) slot: u32,
    pub(crate) tenant: Tenant,
    pub(crate) action: Action,
}

/// Which way a chunk moves.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Action {
    Write,
    /// The bytes must have this checksum.
    Read {
        checksum: u64,
    },
}

/// What became of an [`Op`]: the checksum of the bytes that were moved, or why they are not to be trusted.
#[derive(Debug)]
pub(crate) struct OpDone {
    pub(crate) op: Op,
    pub(crate) result: Result<u64, Fault>,
}

/// Why bytes are not to be trusted.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Fault {
    #[error(transparent)]
    Io(io::Error),
    #[error("the checksum is {found:#018x}, written was {written:#018x}")]
    Checksum { written: u64, found: u64 },
    #[error(transparent)]
    Memory(#[from] SlotAccessError),
    #[error("{0}")]
    Engine(&'static str),
    /// A thread of the engine has ended: no chunk that needs it is moved any more.
    #[error("{0}")]
    Ended(&'static str),
    #[error("the deadline has passed")]
    Late,
    #[error("the record of the chunk could not be put on stable storage")]
    Record(#[source] io::Error),
}
