//! Threads that compute checksums, so that no ring waits for them: of writes before they go to a ring, of reads after
//! they come from one.
//!
//! They serve all devices. A read that has come from its device goes before a write that is still to go to one.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
};

use crossbeam_channel::{Receiver, select_biased};
use kvo_core::{ReadClaim, StableMemory, WriteClaim};

use super::{
    device::{Inbox, Work},
    ticket::Ticket,
};
use crate::{ChecksumKind, engine::Fault, options::Geometry};

/// A chunk that has been read, and is to be compared.
pub(super) struct Unchecked {
    pub(super) ticket: Ticket,
    pub(super) claim: WriteClaim,
    /// The checksum that was made of it when it was written.
    pub(super) written: u64,
}

/// What a thread works with.
pub(super) struct Sums {
    /// Disconnected when intake has stopped.
    pub(super) writes: Receiver<Ticket>,
    /// Disconnected when the last device has ended.
    pub(super) reads: Receiver<Unchecked>,
    pub(super) devices: Vec<Inbox>,
    pub(super) memory: Arc<dyn StableMemory>,
    pub(super) geometry: Geometry,
    pub(super) kind: ChecksumKind,
}

impl Sums {
    /// Works until intake has stopped and every device has ended.
    pub(super) fn run(mut self) {
        loop {
            select_biased! {
                recv(self.reads) -> read => match read {
                    Ok(read) => self.compare(read),
                    Err(_) => break,
                },
                recv(self.writes) -> write => match write {
                    Ok(ticket) => self.prepare(ticket),
                    Err(_) => break,
                },
            }
        }
        // One of the two is empty for good; what the other still has is done with.
        while let Ok(ticket) = self.writes.recv() {
            self.prepare(ticket);
        }
        // Tells the devices that no more writes come. They end, and then so do the reads.
        self.devices.clear();
        while let Ok(read) = self.reads.recv() {
            self.compare(read);
        }
    }

    /// Claims the slot of a write, makes its checksum, and hands both to the device.
    fn prepare(&self, ticket: Ticket) {
        let op = *ticket.op();
        let claimed = catch_unwind(AssertUnwindSafe(|| {
            let claim = claim_source(&self.memory, &self.geometry, &op)?;
            let sum = self.kind.sum(&op.tenant, claim.bytes());
            Ok((claim, sum))
        }))
        .unwrap_or(Err(Fault::Engine("the host memory panicked")));
        match claimed {
            Ok((claim, sum)) => {
                let device = self.geometry.place(op.slot).device as usize;
                self.devices[device].put(Work::Write { ticket, claim, sum });
            }
            Err(fault) => ticket.report(Err(fault)),
        }
    }

    /// Compares the checksum of a read, and reports it.
    fn compare(&self, read: Unchecked) {
        let Unchecked { ticket, mut claim, written } = read;
        let found = self.kind.sum(&ticket.op().tenant, claim.bytes_mut());
        drop(claim);
        ticket.report(if found == written { Ok(found) } else { Err(Fault::Checksum { written, found }) });
    }
}

/// Claims the slot that a write is made from.
pub(super) fn claim_source(
    memory: &Arc<dyn StableMemory>,
    geometry: &Geometry,
    op: &crate::engine::Op,
) -> Result<ReadClaim, Fault> {
    let claim = ReadClaim::new(Arc::clone(memory), op.host)?;
    check_length(claim.bytes(), geometry).map(|()| claim)
}

/// Claims the slot that a read is made into.
pub(super) fn claim_target(
    memory: &Arc<dyn StableMemory>,
    geometry: &Geometry,
    op: &crate::engine::Op,
) -> Result<WriteClaim, Fault> {
    let mut claim = WriteClaim::new(Arc::clone(memory), op.host)?;
    check_length(claim.bytes_mut(), geometry).map(|()| claim)
}

fn check_length(bytes: &[u8], geometry: &Geometry) -> Result<(), Fault> {
    if bytes.len() == geometry.chunk_bytes {
        Ok(())
    } else {
        Err(Fault::Engine("a slot of the host memory is not one chunk long"))
    }
}
