//! The threads that move bytes between the host memory and the file.
//!
//! A thread takes one chunk from the queue, moves it straight between the file and the slot of the host memory, and
//! puts what became of it into the other queue. It knows no state: which slot is whose was decided by the store
//! before, and what follows from a failure is decided by the store after.

use std::{
    io,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    thread::{self, JoinHandle},
    time::Instant,
};

use crossbeam_channel::{Receiver, Sender};
use kvo_core::{HostMemory, JobId, SlotAccessError, SlotId};

use crate::{
    OpenError,
    checksum::checksum,
    file::{ChunkFile, read_exact_at, write_all_at},
    options::Geometry,
    slots::Tenant,
};

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
}

impl Fault {
    /// Whether a write that ended so says something about the slot of the file. A full or read-only file system does
    /// not.
    pub(crate) fn write_breaks_slot(&self) -> bool {
        use io::ErrorKind::{FileTooLarge, QuotaExceeded, ReadOnlyFilesystem, StorageFull};
        match self {
            Self::Io(error) => {
                !matches!(error.kind(), StorageFull | QuotaExceeded | ReadOnlyFilesystem | FileTooLarge)
            }
            Self::Checksum { .. } | Self::Memory(_) | Self::Engine(_) => false,
        }
    }
}

/// What a thread works with. It owns a share of the memory, so the memory outlives the I/O on it.
#[derive(Clone)]
pub(crate) struct Worker {
    pub(crate) file: Arc<dyn ChunkFile>,
    pub(crate) memory: Arc<dyn HostMemory>,
    pub(crate) geometry: Geometry,
}

impl Worker {
    /// Moves one chunk. Never panics: a panic in the memory or the file becomes a fault of this chunk.
    pub(crate) fn run(&self, op: Op) -> OpDone {
        let result = catch_unwind(AssertUnwindSafe(|| self.transfer(&op)))
            .unwrap_or(Err(Fault::Engine("the I/O thread panicked")));
        OpDone { op, result }
    }

    fn transfer(&self, op: &Op) -> Result<u64, Fault> {
        let mut result = Err(Fault::Engine("the host memory handed out no bytes"));
        match op.action {
            Action::Write => self.memory.with_read(op.host, &mut |bytes| {
                result = self.write(op.slot, &op.tenant, bytes);
            })?,
            Action::Read { checksum } => self.memory.with_write(op.host, &mut |bytes| {
                result = self.read(op.slot, &op.tenant, checksum, bytes);
            })?,
        }
        result
    }

    /// Writes `bytes` into `slot`; returns their checksum.
    pub(crate) fn write(&self, slot: u32, tenant: &Tenant, bytes: &[u8]) -> Result<u64, Fault> {
        self.check_length(bytes)?;
        let sum = checksum(&tenant.key, tenant.generation, bytes);
        write_all_at(&*self.file, bytes, self.geometry.offset(slot)).map_err(Fault::Io)?;
        Ok(sum)
    }

    /// Reads `slot` into `bytes` and checks them. After a fault their content is of no use.
    pub(crate) fn read(
        &self,
        slot: u32,
        tenant: &Tenant,
        written: u64,
        bytes: &mut [u8],
    ) -> Result<u64, Fault> {
        self.check_length(bytes)?;
        read_exact_at(&*self.file, bytes, self.geometry.offset(slot)).map_err(Fault::Io)?;
        let found = checksum(&tenant.key, tenant.generation, bytes);
        if found == written { Ok(found) } else { Err(Fault::Checksum { written, found }) }
    }

    fn check_length(&self, bytes: &[u8]) -> Result<(), Fault> {
        if bytes.len() == self.geometry.chunk_bytes {
            Ok(())
        } else {
            Err(Fault::Engine("a slot of the host memory is not one chunk long"))
        }
    }
}

/// The threads and the two queues between them and the store.
///
/// Neither queue has a bound of its own: the store counts the chunks that are on their way, and takes a job only if
/// there is room, so neither end ever waits for a full queue.
pub(crate) struct Pool {
    /// `None` once intake has stopped.
    ops: Option<Sender<Op>>,
    done: Receiver<OpDone>,
    threads: Vec<JoinHandle<()>>,
}

impl Pool {
    pub(crate) fn start(num_threads: usize, worker: &Worker) -> Result<Self, OpenError> {
        let (ops, queue) = crossbeam_channel::unbounded::<Op>();
        let (report, done) = crossbeam_channel::unbounded();
        let mut pool = Self { ops: Some(ops), done, threads: Vec::with_capacity(num_threads) };
        for index in 0..num_threads {
            let (queue, report, worker) = (queue.clone(), report.clone(), worker.clone());
            let work = move || {
                // Ends when the store stops intake and the queue is empty.
                for op in queue {
                    // A store that is being dropped still receives; if not, nobody is left who would want to know.
                    let _ = report.send(worker.run(op));
                }
            };
            let thread = thread::Builder::new()
                .name(format!("kvo-nvme-{index}"))
                .spawn(work)
                .map_err(|source| OpenError::Thread { index, num_threads, source })?;
            pool.threads.push(thread);
        }
        Ok(pool)
    }

    /// Queues an op, or hands it back if no thread is left to take it.
    pub(crate) fn send(&self, op: Op) -> Result<(), Op> {
        match &self.ops {
            Some(ops) => ops.send(op).map_err(|error| error.0),
            None => Err(op),
        }
    }

    /// An op that has ended, if there is one. Does not wait.
    pub(crate) fn try_recv(&self) -> Option<OpDone> {
        self.done.try_recv().ok()
    }

    /// Waits for an op to end, until `deadline`.
    pub(crate) fn recv_deadline(&self, deadline: Instant) -> Option<OpDone> {
        self.done.recv_deadline(deadline).ok()
    }
}

impl Drop for Pool {
    /// Stops intake, lets the threads finish what is queued, and waits for them.
    fn drop(&mut self) {
        self.ops = None;
        for thread in self.threads.drain(..) {
            // A thread cannot panic outside `Worker::run`, and if it did, the others are still to be waited for.
            let _ = thread.join();
        }
    }
}

/// The other ends of a pool without threads: a test decides when which op runs, and how it ends.
#[cfg(test)]
pub(crate) struct ByHand {
    pub(crate) queue: Receiver<Op>,
    pub(crate) report: Sender<OpDone>,
}

#[cfg(test)]
impl Pool {
    pub(crate) fn by_hand() -> (Self, ByHand) {
        let (ops, queue) = crossbeam_channel::unbounded();
        let (report, done) = crossbeam_channel::unbounded();
        (Self { ops: Some(ops), done, threads: Vec::new() }, ByHand { queue, report })
    }
}
