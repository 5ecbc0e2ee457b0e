//! Threads that compute checksums, so that no ring waits for them: of writes before they go to the kernel, of reads
//! after they come from it.
//!
//! They serve all devices, and are given writes by a device only as it has room for them: so no device fills their
//! queue. A read that has come from its device goes before a write that is still to go to one.

use std::panic::{AssertUnwindSafe, catch_unwind};

use crossbeam_channel::{Receiver, Sender, select_biased};
use kvo_core::{ReadClaim, WriteClaim};

use super::{
    claims::{Claims, caught},
    device::{Inbox, Work},
    ticket::Ticket,
};
use crate::engine::Fault;

/// A chunk that has been read, and is to be compared.
pub(super) struct Unchecked {
    /// Given back before the ticket reports, also if both are dropped.
    pub(super) claim: WriteClaim,
    pub(super) ticket: Ticket,
    /// The checksum that was made of it when it was written.
    pub(super) written: u64,
}

/// A chunk that is to be written, and has no checksum yet. Its device hears of it exactly once, also if it is dropped.
pub(super) struct Unsummed {
    /// `None` once it goes back.
    ticket: Option<Ticket>,
    device: Inbox,
}

/// A chunk that can be written.
#[derive(Debug)]
pub(super) struct Summed {
    /// Given back before the ticket reports, also if both are dropped.
    pub(super) claim: ReadClaim,
    pub(super) ticket: Ticket,
    pub(super) sum: u64,
}

impl Unsummed {
    pub(super) fn new(ticket: Ticket, device: Inbox) -> Self {
        Self { ticket: Some(ticket), device }
    }

    /// Claims the slot, makes the checksum, and hands both to the device.
    fn prepare(mut self, claims: &Claims) {
        let ticket = self.ticket.take().expect("it has not gone back");
        match claims.source(ticket.op()) {
            Ok((claim, sum)) => self.device.put(Work::Summed(Summed { claim, ticket, sum })),
            Err(fault) => self.fail(ticket, fault),
        }
    }

    fn fail(&self, ticket: Ticket, fault: Fault) {
        ticket.report(Err(fault));
        self.device.put(Work::NotSummed);
    }
}

impl Drop for Unsummed {
    fn drop(&mut self) {
        if let Some(ticket) = self.ticket.take() {
            self.fail(ticket, Fault::Ended("the checksum threads have ended"));
        }
    }
}

/// The way to the threads, for devices. They end when the last device has let go of it.
#[derive(Clone)]
pub(super) struct ToSums {
    unsummed: Sender<Unsummed>,
    unchecked: Sender<Unchecked>,
}

impl ToSums {
    /// If the threads are gone, the chunk is dropped, and so reported.
    pub(super) fn prepare(&self, write: Unsummed) {
        let _ = self.unsummed.send(write);
    }

    /// As [`prepare`](Self::prepare).
    pub(super) fn compare(&self, read: Unchecked) {
        let _ = self.unchecked.send(read);
    }
}

/// What a thread works with.
#[derive(Clone)]
pub(super) struct Sums {
    unsummed: Receiver<Unsummed>,
    unchecked: Receiver<Unchecked>,
    claims: Claims,
}

impl Sums {
    pub(super) fn new(claims: Claims) -> (ToSums, Self) {
        let (to_unsummed, unsummed) = crossbeam_channel::unbounded();
        let (to_unchecked, unchecked) = crossbeam_channel::unbounded();
        let to_sums = ToSums { unsummed: to_unsummed, unchecked: to_unchecked };
        (to_sums, Self { unsummed, unchecked, claims })
    }

    /// Works until every device has ended. A panic costs the chunk that it came with.
    pub(super) fn run(self) {
        loop {
            select_biased! {
                recv(self.unchecked) -> read => match read {
                    Ok(read) => self.compare(read),
                    Err(_) => break,
                },
                recv(self.unsummed) -> write => match write {
                    Ok(write) => self.prepare(write),
                    Err(_) => break,
                },
            }
        }
        // One of the two is empty for good; what the other still has is done with.
        self.unchecked.iter().for_each(|read| self.compare(read));
        self.unsummed.iter().for_each(|write| self.prepare(write));
    }

    fn prepare(&self, write: Unsummed) {
        on_its_own(|| write.prepare(&self.claims));
    }

    /// Compares the checksum of a read, and reports it.
    fn compare(&self, read: Unchecked) {
        let Unchecked { mut claim, ticket, written } = read;
        on_its_own(|| {
            let found = caught(|| Ok(self.claims.sum(&ticket.op().tenant, claim.bytes_mut())));
            // Memory that panicked may do so again here, which is the same chunk's loss.
            let given_back = caught(|| {
                drop(claim);
                Ok(())
            });
            ticket.report(match (found, given_back) {
                (Ok(found), Ok(())) if found != written => Err(Fault::Checksum { written, found }),
                (found, given_back) => given_back.and(found),
            });
        });
    }
}

/// Does what is to be done for a chunk. Whatever panics in it, the next chunk's turn comes: what is dropped then, its
/// ticket too, reports itself.
fn on_its_own(work: impl FnOnce()) {
    if catch_unwind(AssertUnwindSafe(work)).is_err() {
        tracing::error!("a checksum thread panicked: a chunk fails");
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use kvo_core::{BlockHash, GroupIdx, JobId, OffloadKey, SlotId};

    use super::*;
    use crate::{
        engine::{Action, Event, Op, OpDone, uring::doorbell::Doorbell, uring::ticket::Reports},
        slots::Tenant,
    };

    #[test]
    fn a_write_whose_thread_is_gone_is_reported_and_its_device_hears_of_it() {
        let (events, reported) = crossbeam_channel::unbounded();
        let (sender, inbox) = crossbeam_channel::unbounded();
        let device = Inbox::new(sender, Arc::new(Doorbell::new().unwrap()));
        let tenant = Tenant { key: OffloadKey::new(BlockHash::from_u64(1), GroupIdx(0)), generation: 1 };
        let op = Op { job: JobId(1), index: 0, host: SlotId(0), slot: 0, tenant, action: Action::Write };
        let reports = Reports::new(events);
        drop(Unsummed::new(Ticket::new(op, &reports), device));
        let Ok(Event::Moved(OpDone { result: Err(Fault::Ended(_)), .. })) = reported.try_recv() else {
            panic!("it is reported as failed")
        };
        assert_eq!((reports.num_open(), reported.len()), (0, 0), "and once");
        assert!(matches!(inbox.try_recv(), Ok(Work::NotSummed)) && inbox.is_empty());
    }
}
