//! One chunk moved between the host memory and the files by positional I/O, on whatever thread calls.
//!
//! A worker knows no state: which slot is whose was decided by the store before, and what follows from a failure is
//! decided by the store after.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
};

use kvo_core::HostMemory;

use crate::{
    ChecksumKind,
    engine::{Action, Fault, Op, OpDone},
    file::{ChunkFile, read_exact_at, write_all_at},
    options::Geometry,
    slots::Tenant,
};

/// What a thread works with. It owns a share of the memory, so the memory outlives the I/O on it.
#[derive(Clone)]
pub(crate) struct Worker {
    /// One a device.
    pub(crate) files: Arc<[Arc<dyn ChunkFile>]>,
    pub(crate) memory: Arc<dyn HostMemory>,
    pub(crate) geometry: Geometry,
    pub(crate) checksum: ChecksumKind,
}

impl Worker {
    /// Moves one chunk. Never panics: a panic in the memory or the file becomes a fault of this chunk.
    pub(crate) fn run(&self, op: Op) -> OpDone {
        let result = catch_unwind(AssertUnwindSafe(|| self.transfer(&op))).unwrap_or_else(|_| {
            tracing::error!("an I/O thread panicked: a chunk fails");
            Err(Fault::Engine("the I/O thread panicked"))
        });
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
        let sum = self.checksum.sum(tenant, bytes);
        let (file, offset) = self.place(slot);
        write_all_at(file, bytes, offset).map_err(Fault::Io)?;
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
        let (file, offset) = self.place(slot);
        read_exact_at(file, bytes, offset).map_err(Fault::Io)?;
        let found = self.checksum.sum(tenant, bytes);
        if found == written { Ok(found) } else { Err(Fault::Checksum { written, found }) }
    }

    fn place(&self, slot: u32) -> (&dyn ChunkFile, u64) {
        let place = self.geometry.place(slot);
        (&*self.files[place.device as usize], place.offset)
    }

    fn check_length(&self, bytes: &[u8]) -> Result<(), Fault> {
        if bytes.len() == self.geometry.chunk_bytes {
            Ok(())
        } else {
            Err(Fault::Engine("a slot of the host memory is not one chunk long"))
        }
    }
}
