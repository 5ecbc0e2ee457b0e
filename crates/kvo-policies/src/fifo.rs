//! First in, first out, request by request.

use std::collections::TryReserveError;

use kvo_core::{OffloadKey, SlotId};

use crate::{AccessKind, CachePolicy, KeyAccess, RequestRecency, Residents, order::Orders, policy::MEMORY};

/// First in, first out: reuse does not count. A baseline.
///
/// A request's insertions get their place when it finishes, the tail first, so that the tail goes before the head;
/// until then they share a provisional place, ordered by position as in [`Lru`](crate::Lru).
///
/// Can strand chunks behind a missing head: the head of a shared prefix is its oldest part, so it goes while newer
/// continuations of it stay. Each operation is constant per chunk, amortised, whatever is pinned.
#[derive(Debug)]
pub struct Fifo {
    order: Orders<1>,
}

impl Fifo {
    /// An empty policy for a tier of `capacity` chunks.
    ///
    /// # Panics
    /// If there is no memory for its tables.
    pub fn new(capacity: u32) -> Self {
        Self::try_new(capacity).expect(MEMORY)
    }

    pub(crate) fn try_new(capacity: u32) -> Result<Self, TryReserveError> {
        Ok(Self { order: Orders::new(capacity)? })
    }

    /// Chunks that searches for victims have looked at so far.
    pub fn visits(&self) -> u64 {
        self.order.visits()
    }
}

impl CachePolicy for Fifo {
    fn num_slots_max(&self) -> u32 {
        self.order.capacity()
    }

    fn insert(
        &mut self,
        req: &mut RequestRecency,
        slot: SlotId,
        _key: &OffloadKey,
        end_token: Option<u32>,
        tier: &dyn Residents,
    ) {
        match end_token {
            Some(end_token) => {
                let run = *req.run.get_or_insert_with(|| self.order.begin_run(0));
                self.order.push_to_run(run, slot, end_token, tier);
            }
            None => self.order.push(0, slot),
        }
    }

    fn on_ready(&mut self, slot: SlotId) {
        self.order.wake(slot);
    }

    fn on_unpin(&mut self, slot: SlotId) {
        self.order.wake(slot);
    }

    fn remove(&mut self, slot: SlotId) {
        self.order.remove(slot);
    }

    fn evict(&mut self, count: usize, tier: &dyn Residents, victims: &mut Vec<SlotId>) -> bool {
        self.order.evict(0, count, tier, victims)
    }

    fn touch(&mut self, _keys: &[KeyAccess], _tier: &dyn Residents) {}

    fn on_request_finished(&mut self, req: &mut RequestRecency, keys: &[KeyAccess], tier: &dyn Residents) {
        for access in keys.iter().rev().filter(|access| access.kind == AccessKind::Inserted) {
            if let Some(slot) = access.slot {
                self.order.push(0, slot);
            }
        }
        if let Some(run) = req.run.take() {
            self.order.end_run(run, tier);
        }
    }

    fn clear(&mut self) {
        self.order.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Table, check_evicts};

    #[track_caller]
    fn check_order(policy: &Fifo, table: &Table, expected: &[u64]) {
        assert_eq!(table.numbers(&policy.order.list(0)), expected, "the old end first");
    }

    #[test]
    fn a_reuse_does_not_count() {
        let mut table = Table::new(4);
        let mut policy = Fifo::new(4);
        table.store(&mut policy, &[1, 2]);
        table.store(&mut policy, &[3, 4]);
        check_order(&policy, &table, &[2, 1, 4, 3]);
        table.reuse(&mut policy, &[1, 2]);
        policy.touch(&table.accesses(&[1, 2], AccessKind::Reused), &table);
        check_order(&policy, &table, &[2, 1, 4, 3]);
        check_evicts(&mut policy, &mut table, &[2, 1, 4]);
    }

    #[test]
    fn too_few_victims_change_nothing() {
        let mut table = Table::new(3);
        let mut policy = Fifo::new(3);
        table.store(&mut policy, &[1, 2, 3]);
        table.pin(2);
        assert!(!policy.evict(3, &table, &mut Vec::new()));
        check_order(&policy, &table, &[3, 2, 1]);
        check_evicts(&mut policy, &mut table, &[3, 1]);
        table.unpin(&mut policy, 2);
        check_evicts(&mut policy, &mut table, &[2]);
    }

    #[test]
    fn the_tail_of_a_running_request_goes_before_its_head() {
        let mut table = Table::new(3);
        let mut policy = Fifo::new(3);
        table.begin(&mut policy, &[1, 2, 3]);
        check_evicts(&mut policy, &mut table, &[3, 2, 1]);
    }
}
