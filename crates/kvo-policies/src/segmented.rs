//! Two lists of resident chunks, probation before protection: what the segmented policies share.

use kvo_core::SlotId;

use crate::{
    KeyAccess, RequestRecency, Residents,
    order::{Orders, Scan},
};

/// Chunks that no later request has met again, and those demoted: they go first.
pub(crate) const PROBATION: usize = 0;
/// Chunks that have proved their worth.
pub(crate) const PROTECTED: usize = 1;

/// The integer part of `percent` % of `capacity`.
pub(crate) fn share(capacity: u32, percent: u8) -> u32 {
    u32::try_from(u64::from(capacity) * u64::from(percent) / 100).expect("no more than the capacity")
}

/// The two lists, and the provisional places of running requests, all of them in probation.
#[derive(Debug)]
pub(crate) struct Segmented {
    order: Orders<2>,
}

impl Segmented {
    pub(crate) fn new(capacity: u32) -> Self {
        Self { order: Orders::new(capacity) }
    }

    pub(crate) fn capacity(&self) -> u32 {
        self.order.capacity()
    }

    pub(crate) fn visits(&self) -> u64 {
        self.order.visits()
    }

    pub(crate) fn list_of(&self, slot: SlotId) -> Option<usize> {
        self.order.queue_of(slot)
    }

    /// A new chunk enters probation: among those of its request, ordered by position, if it has one.
    pub(crate) fn insert(
        &mut self,
        req: &mut RequestRecency,
        slot: SlotId,
        end_token: Option<u32>,
        tier: &dyn Residents,
    ) {
        match end_token {
            Some(end_token) => {
                let run = self.run(req);
                self.order.push_to_run(run, slot, end_token, tier);
            }
            None => self.order.push(PROBATION, slot),
        }
    }

    /// Raises the chunks in probation that a running request meets to where its insertions are, so that none of them
    /// goes before what the request stores behind it.
    pub(crate) fn meet(&mut self, req: &mut RequestRecency, keys: &[KeyAccess], tier: &dyn Residents) {
        for access in keys {
            let (Some(end_token), Some(slot)) = (access.end_token, access.slot) else { continue };
            if self.list_of(slot) == Some(PROBATION) {
                let run = self.run(req);
                if self.order.is_raised_by_run(slot, run, end_token) {
                    self.order.push_to_run(run, slot, end_token, tier);
                }
            }
        }
    }

    /// Puts a chunk at the recent end of a list.
    pub(crate) fn push(&mut self, list: usize, slot: SlotId) {
        self.order.push(list, slot);
    }

    /// Moves the oldest protected chunks to the recent end of probation until no more than `len` are left.
    pub(crate) fn demote_beyond(&mut self, len: usize) {
        while self.order.len(PROTECTED) > len {
            let oldest = self.order.oldest(PROTECTED).expect("a list with chunks has an oldest");
            self.order.push(PROBATION, oldest);
        }
    }

    /// The request is over; what it has not committed keeps its place.
    pub(crate) fn end(&mut self, req: &mut RequestRecency, tier: &dyn Residents) {
        if let Some(run) = req.run.take() {
            self.order.end_run(run, tier);
        }
    }

    pub(crate) fn wake(&mut self, slot: SlotId) {
        self.order.wake(slot);
    }

    pub(crate) fn remove(&mut self, slot: SlotId) {
        self.order.remove(slot);
    }

    /// Appends `count` victims, those in probation first, and leaves them where they are; or changes nothing and
    /// returns `false`.
    pub(crate) fn choose(&mut self, count: usize, tier: &dyn Residents, victims: &mut Vec<SlotId>) -> bool {
        let before = victims.len();
        self.order.sort_runs(tier);
        let mut scans = [PROBATION, PROTECTED].map(|list| self.order.scan(list));
        for _ in 0..count {
            let mut next = |scan: &mut Scan| self.order.next(scan, tier);
            let Some(victim) = scans.iter_mut().find_map(&mut next) else {
                victims.truncate(before);
                return false;
            };
            victims.push(victim);
        }
        true
    }

    pub(crate) fn clear(&mut self) {
        self.order.clear();
    }

    fn run(&mut self, req: &mut RequestRecency) -> u32 {
        *req.run.get_or_insert_with(|| self.order.begin_run(PROBATION))
    }

    /// A list, its old end first.
    #[cfg(test)]
    pub(crate) fn list(&self, list: usize) -> Vec<SlotId> {
        self.order.list(list)
    }
}
