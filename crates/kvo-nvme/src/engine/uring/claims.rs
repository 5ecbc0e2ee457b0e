//! Claims on the slots of the host memory that chunks are moved from and to, and the checksums of what is in them.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
};

use kvo_core::{ReadClaim, StableMemory, WriteClaim};

use crate::{
    ChecksumKind,
    engine::{Fault, Op},
    options::Geometry,
    slots::Tenant,
};

/// What claims are made with, on any thread. A panic of the host memory is a fault of the chunk.
#[derive(Clone)]
pub(super) struct Claims {
    pub(super) memory: Arc<dyn StableMemory>,
    pub(super) geometry: Geometry,
    pub(super) kind: ChecksumKind,
}

impl Claims {
    /// Claims the slot that a write is made from, and makes the checksum of its bytes.
    pub(super) fn source(&self, op: &Op) -> Result<(ReadClaim, u64), Fault> {
        caught(|| {
            let claim = ReadClaim::new(Arc::clone(&self.memory), op.host)?;
            self.check_length(claim.bytes())?;
            let sum = self.sum(&op.tenant, claim.bytes());
            Ok((claim, sum))
        })
    }

    /// Claims the slot that a read is made into.
    pub(super) fn target(&self, op: &Op) -> Result<WriteClaim, Fault> {
        caught(|| {
            let mut claim = WriteClaim::new(Arc::clone(&self.memory), op.host)?;
            self.check_length(claim.bytes_mut()).map(|()| claim)
        })
    }

    pub(super) fn sum(&self, tenant: &Tenant, bytes: &[u8]) -> u64 {
        self.kind.sum(tenant, bytes)
    }

    fn check_length(&self, bytes: &[u8]) -> Result<(), Fault> {
        if bytes.len() == self.geometry.chunk_bytes {
            Ok(())
        } else {
            Err(Fault::Engine("a slot of the host memory is not one chunk long"))
        }
    }
}

/// Does what calls the host memory. A panic of it is a fault, and in the log.
pub(super) fn caught<T>(work: impl FnOnce() -> Result<T, Fault>) -> Result<T, Fault> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|_| {
        tracing::error!("the host memory panicked: a chunk fails");
        Err(Fault::Engine("the host memory panicked"))
    })
}
