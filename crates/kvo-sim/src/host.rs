//! The host memory of several workers as one: a slot is that of the first, behind it that of the second, and so on.

use std::sync::Arc;

use kvo_core::{HostMemory, ReadClaim, SlotAccessError, SlotId, TierDirection, WriteClaim};
use kvo_cpu::HostRegion;
use kvo_nvme::testing::HoldableMemory;

use crate::canary::Plant;

/// What tiers copy from and to.
#[derive(Debug)]
pub(crate) struct Joined {
    regions: Vec<Arc<HostRegion>>,
    /// A defect: what comes back is another worker's.
    is_swapped: bool,
}

impl Joined {
    pub(crate) fn new(regions: Vec<Arc<HostRegion>>, plant: Option<Plant>) -> Self {
        Self { regions, is_swapped: plant == Some(Plant::WorkersSwapped) }
    }

    pub(crate) fn regions(&self) -> &[Arc<HostRegion>] {
        &self.regions
    }

    fn readers(&self, slot: SlotId) -> Result<Vec<ReadClaim>, SlotAccessError> {
        self.regions.iter().map(|region| ReadClaim::new(Arc::clone(region) as _, slot)).collect()
    }

    fn writers(&self, slot: SlotId) -> Result<Vec<WriteClaim>, SlotAccessError> {
        let claim = |region: &Arc<HostRegion>| WriteClaim::new(Arc::clone(region) as _, slot);
        if self.is_swapped {
            return self.regions.iter().rev().map(claim).collect();
        }
        self.regions.iter().map(claim).collect()
    }
}

impl HostMemory for Joined {
    fn num_slots(&self) -> u32 {
        self.regions[0].num_slots()
    }

    fn slot_bytes(&self) -> usize {
        self.regions.iter().map(|region| region.slot_bytes()).sum()
    }

    fn with_read(&self, slot: SlotId, read: &mut dyn FnMut(&[u8])) -> Result<(), SlotAccessError> {
        let claims = self.readers(slot)?;
        let bytes: Vec<&[u8]> = claims.iter().map(ReadClaim::bytes).collect();
        read(&bytes.concat());
        Ok(())
    }

    fn with_write(&self, slot: SlotId, write: &mut dyn FnMut(&mut [u8])) -> Result<(), SlotAccessError> {
        let mut claims = self.writers(slot)?;
        let mut bytes = Vec::with_capacity(self.slot_bytes());
        for claim in &mut claims {
            bytes.extend_from_slice(claim.bytes_mut());
        }
        write(&mut bytes);
        let mut rest = bytes.as_slice();
        for claim in &mut claims {
            let part = claim.bytes_mut();
            let (first, behind) = rest.split_at(part.len());
            part.copy_from_slice(first);
            rest = behind;
        }
        Ok(())
    }
}

impl HoldableMemory for Joined {
    fn hold(&self, slot: SlotId, direction: TierDirection) -> Result<Box<dyn Send>, SlotAccessError> {
        Ok(match direction {
            TierDirection::Write => Box::new(self.readers(slot)?),
            TierDirection::Read => Box::new(self.writers(slot)?),
        })
    }
}
