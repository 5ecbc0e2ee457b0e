//! Jobs under way, each with slots of its own.

use std::collections::HashMap;

use kvo_core::{HostMemory, JobId, OffloadKey, RequestId, SlotAccessError, SlotId, TierDirection};

use super::{CHUNKS_PER_JOB_MAX, Checked, HostChunks};
use crate::bytes;

/// A job under way.
#[derive(Clone, Debug)]
pub(super) struct Lane {
    /// Its slots begin at this times [`CHUNKS_PER_JOB_MAX`].
    pub(super) number: u32,
    pub(super) req: RequestId,
    pub(super) direction: TierDirection,
    pub(super) keys: Vec<OffloadKey>,
}

/// All of them.
#[derive(Debug)]
pub(super) struct Lanes {
    free: Vec<u32>,
    running: HashMap<JobId, Lane>,
}

impl Lane {
    /// Each key with its slot.
    pub(super) fn chunks(&self) -> impl Iterator<Item = (OffloadKey, SlotId)> {
        self.keys.iter().copied().zip((self.number * CHUNKS_PER_JOB_MAX..).map(SlotId))
    }

    /// The bytes of what is stored; for a load zeroes, so that what was there cannot pass for what comes.
    pub(super) fn prepare(&self, host: &HostChunks) -> Result<(), SlotAccessError> {
        self.chunks().try_for_each(|(key, slot)| {
            host.region().with_write(slot, &mut |slot| match self.direction {
                TierDirection::Write => bytes::fill(&key, slot),
                TierDirection::Read => slot.fill(0),
            })
        })
    }

    /// Compares the chunks for which `arrived` says so.
    pub(super) fn compare(
        &self,
        host: &HostChunks,
        arrived: &dyn Fn(&OffloadKey) -> bool,
    ) -> Result<Checked, SlotAccessError> {
        self.chunks().filter(|(key, _)| arrived(key)).try_fold(Checked::default(), |sum, (key, slot)| {
            let mut checked = Checked::default();
            host.region().with_read(slot, &mut |slot| checked = Checked::of(&key, slot))?;
            Ok(sum.and(checked))
        })
    }
}

impl Lanes {
    pub(super) fn new(count: u32) -> Self {
        Self { free: (0..count).collect(), running: HashMap::new() }
    }

    /// The number of a lane that nothing uses.
    pub(super) fn take(&mut self) -> Option<u32> {
        self.free.pop()
    }

    pub(super) fn give_back(&mut self, number: u32) {
        self.free.push(number);
    }

    pub(super) fn run(&mut self, id: JobId, lane: Lane) {
        self.running.insert(id, lane);
    }

    /// The lane of a job that has ended; none if there is no such job.
    pub(super) fn end(&mut self, id: JobId) -> Option<Lane> {
        self.running.remove(&id)
    }
}
