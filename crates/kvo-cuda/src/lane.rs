//! Lanes: threads that copy.

use std::{
    ops::Range,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
};

use crossbeam_channel::{Receiver, Sender};
use kvo_core::{CopyOp, Direction, HostMemory, SlotAccessError, Transfer, TransferFailure};

use crate::{
    DeviceMemory, HostDevice,
    control::{Control, Stop},
};

/// A transfer on its way through a lane. Its copies were checked.
#[derive(Debug)]
pub(crate) struct Job {
    /// Where the device's owner keeps the ticket.
    pub(crate) index: usize,
    pub(crate) transfer: Transfer,
    pub(crate) span: tracing::Span,
}

/// A transfer that a lane is done with: it touches neither side any more.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) index: usize,
    pub(crate) failure: Option<TransferFailure>,
}

/// What a lane works on, and where it reports.
pub(crate) struct Lane {
    pub(crate) control: Arc<Control>,
    pub(crate) memory: DeviceMemory,
    pub(crate) host: Arc<dyn HostMemory>,
    pub(crate) ended: Sender<Ended>,
}

impl Lane {
    /// The lane's thread: one transfer after the other in the order of submission, each reported once, until the
    /// lane is closed and empty.
    pub(crate) fn run(&self, jobs: &Receiver<Job>) {
        for Job { index, transfer, span } in jobs {
            let copied = span.in_scope(|| self.transfer(&transfer));
            drop(span);
            drop(transfer);
            self.control.decide(|dead| {
                let failure = match (copied, dead) {
                    (Err(failure), _) => Some(failure),
                    (Ok(()), Some(code)) => Some(TransferFailure::Device { code }),
                    (Ok(()), None) => None,
                };
                // The owner may be gone; then nobody is left to be told.
                let _ = self.ended.send(Ended { index, failure });
            });
        }
    }

    /// Waits for the transfer's fence, then copies.
    fn transfer(&self, transfer: &Transfer) -> Result<(), TransferFailure> {
        self.control.wait_for(transfer.after).map_err(|stop| match stop {
            Stop::Dead { code } => TransferFailure::Device { code },
            Stop::ShutDown => TransferFailure::ShutDown,
        })?;
        // Host memory comes from outside. Should it panic, the ticket must still complete and the lane live on.
        catch_unwind(AssertUnwindSafe(|| self.copy(transfer))).unwrap_or_else(|_| {
            self.control.fail(HostDevice::COPY_PANICKED);
            Err(TransferFailure::Device { code: HostDevice::COPY_PANICKED })
        })
    }

    /// Copies, holding each slot once for all neighbouring copies of it. The slot is locked first, then one segment
    /// of device memory after the other.
    fn copy(&self, transfer: &Transfer) -> Result<(), TransferFailure> {
        for ops in transfer.ops.chunk_by(|one, next| one.slot == next.slot) {
            if let Some(Stop::Dead { code }) = self.control.stop() {
                return Err(TransferFailure::Device { code });
            }
            match transfer.direction {
                Direction::Store => self.store(ops),
                Direction::Load => self.load(ops),
            }?;
        }
        Ok(())
    }

    fn store(&self, ops: &[CopyOp]) -> Result<(), SlotAccessError> {
        self.host.with_write(ops[0].slot, &mut |slot| {
            for op in ops {
                self.memory.read(op.device_offset, &mut slot[slot_range(op)]).expect("checked at submit");
            }
        })
    }

    fn load(&self, ops: &[CopyOp]) -> Result<(), SlotAccessError> {
        self.host.with_read(ops[0].slot, &mut |slot| {
            for op in ops {
                self.memory.write(op.device_offset, &slot[slot_range(op)]).expect("checked at submit");
            }
        })
    }
}

/// The bytes of a copy in its slot.
fn slot_range(op: &CopyOp) -> Range<usize> {
    let start = usize::try_from(op.slot_offset).expect("checked at submit");
    start..start + usize::try_from(op.bytes).expect("checked at submit")
}
