//! Two lists of resident chunks, probation before protection: what the segmented policies share.

use std::collections::TryReserveError;

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
    pub(crate) fn new(capacity: u32) -> Result<Self, TryReserveError> {
        Ok(Self { order: Orders::new(capacity)? })
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
        let mut left = keys;
        while !left.is_empty() {
            let is_in_probation =
                |access: &&KeyAccess| access.slot.is_some_and(|slot| self.list_of(slot) == Some(PROBATION));
            let (met, rest) = left.split_at(left.iter().take_while(is_in_probation).count());
            if met.iter().any(|access| access.end_token.is_some()) {
                let run = self.run(req);
                self.order.raise_all_to_run(run, met, tier);
            }
            left = rest.get(1..).unwrap_or_default();
        }
    }

    /// As [`insert`](Self::insert) of each of `chunks`, all of which have a slot, in their order.
    pub(crate) fn insert_all(
        &mut self,
        req: &mut RequestRecency,
        chunks: &[KeyAccess],
        tier: &dyn Residents,
    ) {
        if chunks.iter().all(|chunk| chunk.end_token.is_some()) {
            let run = self.run(req);
            self.order.push_all_to_run(run, chunks, tier);
            return;
        }
        for KeyAccess { slot, end_token, .. } in chunks {
            let slot = slot.expect("a chunk that is inserted has a slot");
            self.insert(req, slot, *end_token, tier);
        }
    }

    /// Ends a request, if its provisional place holds all of the `num_keys` that it met: they become the most recent of
    /// probation as they stand. Else changes nothing and returns `false`.
    pub(crate) fn end_in_probation(&mut self, req: &mut RequestRecency, num_keys: usize) -> bool {
        let is_promoted = req.run.is_some_and(|run| self.order.promote_run_of(run, num_keys));
        if is_promoted {
            req.run = None;
        }
        is_promoted
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

    /// Moves `count` victims to the end of `victims`, those in probation first; or changes nothing and returns `false`.
    pub(crate) fn evict(&mut self, count: usize, tier: &dyn Residents, victims: &mut Vec<SlotId>) -> bool {
        let before = victims.len();
        self.order.sort_runs(tier);
        let mut scans = [PROBATION, PROTECTED].map(|list| self.order.scan_for(list, count));
        for _ in 0..count {
            let mut next = |scan: &mut Scan| self.order.next(scan, tier);
            let Some(victim) = scans.iter_mut().find_map(&mut next) else {
                victims.truncate(before);
                return false;
            };
            victims.push(victim);
        }
        self.order.remove_all(victims[before..].iter().copied());
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
