//! Segmented LRU, request by request.

use std::collections::TryReserveError;

use kvo_core::{OffloadKey, SlotId};

use crate::{
    AccessKind, CachePolicy, KeyAccess, RequestRecency, Residents, RunSummary,
    policy::MEMORY,
    segmented::{PROTECTED, Segmented, share},
};

/// Segmented LRU: a chunk is protected once a later request has met it again.
///
/// Two lists. A new chunk enters *probation*; the finish of a request that reused a chunk moves it to the recent end of
/// the *protected* list, which holds no more than a fixed share of the capacity: what overflows at its old end goes
/// back to the recent end of probation. Victims come from the old end of probation, then of the protected list.
///
/// From R. Karedla, J. S. Love, B. G. Wherry, "Caching Strategies to Improve Disk System Performance", IEEE Computer
/// 27(3), 1994, with these departures:
///
/// - One request is one access, applied at its finish, tail first; what the request stored itself only becomes the
///   most recent of its list. The overflow is demoted after the whole access.
/// - While a request runs, what it stores, and what it meets in probation, shares a provisional place there, ordered by
///   position as in [`Lru`](crate::Lru).
/// - The default share is 20 %. With the 50 % and 80 % of textbooks the chunks of finished conversations hold on to too
///   much of the tier.
///
/// Strands nothing on prefix chains, requests one after the other: one that reuses a chunk reuses all before it, so a
/// parent is in the same list as its child and more recent, or in the protected one. Each operation is constant per
/// chunk, amortised, whatever is pinned.
#[derive(Debug)]
pub struct Slru {
    protected_max: usize,
    segments: Segmented,
}

impl Slru {
    /// An empty policy for a tier of `capacity` chunks, the integer part of `protected_pct` % of which are protected
    /// at most.
    ///
    /// # Panics
    /// If the percentage is above 100, or if there is no memory for its tables.
    pub fn new(capacity: u32, protected_pct: u8) -> Self {
        Self::try_new(capacity, protected_pct).expect(MEMORY)
    }

    pub(crate) fn try_new(capacity: u32, protected_pct: u8) -> Result<Self, TryReserveError> {
        assert!(protected_pct <= 100, "{protected_pct} % of the tier cannot be protected");
        let protected_max = share(capacity, protected_pct) as usize;
        Ok(Self { protected_max, segments: Segmented::new(capacity)? })
    }

    /// Chunks that searches for victims have looked at so far.
    pub fn visits(&self) -> u64 {
        self.segments.visits()
    }

    fn commit(&mut self, keys: &[KeyAccess]) {
        for access in keys.iter().rev() {
            let Some(slot) = access.slot else { continue };
            let Some(list) = self.segments.list_of(slot) else { continue };
            self.segments.push(if access.kind == AccessKind::Reused { PROTECTED } else { list }, slot);
        }
        self.segments.demote_beyond(self.protected_max);
    }
}

impl CachePolicy for Slru {
    fn num_slots_max(&self) -> u32 {
        self.segments.capacity()
    }

    fn insert(
        &mut self,
        req: &mut RequestRecency,
        slot: SlotId,
        _key: &OffloadKey,
        end_token: Option<u32>,
        tier: &dyn Residents,
    ) {
        self.segments.insert(req, slot, end_token, tier);
    }

    fn insert_all(&mut self, req: &mut RequestRecency, chunks: &[KeyAccess], tier: &dyn Residents) {
        self.segments.insert_all(req, chunks, tier);
    }

    fn on_ready(&mut self, slot: SlotId) {
        self.segments.wake(slot);
    }

    fn on_unpin(&mut self, slot: SlotId) {
        self.segments.wake(slot);
    }

    fn remove(&mut self, slot: SlotId) {
        self.segments.remove(slot);
    }

    fn evict(&mut self, count: usize, tier: &dyn Residents, victims: &mut Vec<SlotId>) -> bool {
        self.segments.evict(count, tier, victims)
    }

    fn touch(&mut self, keys: &[KeyAccess], _tier: &dyn Residents) {
        for slot in keys.iter().rev().filter_map(|access| access.slot) {
            if self.segments.list_of(slot).is_some() {
                self.segments.push(PROTECTED, slot);
            }
        }
        self.segments.demote_beyond(self.protected_max);
    }

    fn on_store_miss(&mut self, _keys: &[KeyAccess], _tier: &dyn Residents) {}

    fn on_request_access(&mut self, req: &mut RequestRecency, keys: &[KeyAccess], tier: &dyn Residents) {
        self.segments.meet(req, keys, tier);
    }

    fn on_request_finished(&mut self, req: &mut RequestRecency, keys: &[KeyAccess], tier: &dyn Residents) {
        self.commit(keys);
        self.segments.end(req, tier);
    }

    /// What a request stored alone becomes the most recent of probation.
    fn commit_run(&mut self, req: &mut RequestRecency, summary: RunSummary) -> bool {
        summary.num_reused == 0 && self.segments.end_in_probation(req, summary.num_keys)
    }

    fn clear(&mut self) {
        self.segments.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        segmented::PROBATION,
        testing::{Table, check_evicts},
    };

    #[track_caller]
    fn check_lists(policy: &Slru, table: &Table, probation: &[u64], protected: &[u64]) {
        let lists = [PROBATION, PROTECTED].map(|list| table.numbers(&policy.segments.list(list)));
        assert_eq!(lists, [probation, protected], "probation, protected; the old end first");
    }

    #[test]
    fn a_reuse_protects_and_the_overflow_returns_to_probation() {
        let mut table = Table::new(5);
        let mut policy = Slru::new(5, 40);
        table.store(&mut policy, &[1, 2, 3, 4, 5]);
        check_lists(&policy, &table, &[5, 4, 3, 2, 1], &[]);
        table.reuse(&mut policy, &[1, 2]);
        check_lists(&policy, &table, &[5, 4, 3], &[2, 1]);
        // Room for two of the three: the oldest of them, and 3 is it, as the tail is applied first.
        table.reuse(&mut policy, &[1, 2, 3]);
        check_lists(&policy, &table, &[5, 4, 3], &[2, 1]);
        table.reuse(&mut policy, &[4]);
        check_lists(&policy, &table, &[5, 3, 2], &[1, 4]);
        check_evicts(&mut policy, &mut table, &[5, 3, 2, 1]);
        check_lists(&policy, &table, &[], &[4]);
    }

    #[test]
    fn a_held_chunk_is_demoted_like_any_other() {
        let mut table = Table::new(4);
        let mut policy = Slru::new(4, 50);
        table.store(&mut policy, &[1, 2, 3, 4]);
        table.reuse(&mut policy, &[1, 2]);
        table.pin(2);
        table.pin(3);
        table.pin(4);
        // The search has met 2 as a held chunk.
        check_evicts(&mut policy, &mut table, &[1]);
        table.store(&mut policy, &[1]);
        table.reuse(&mut policy, &[3]);
        table.reuse(&mut policy, &[4]);
        check_lists(&policy, &table, &[1, 2], &[3, 4]);
        table.unpin(&mut policy, 2);
        check_evicts(&mut policy, &mut table, &[1, 2]);
    }

    #[test]
    fn too_few_victims_change_nothing() {
        let mut table = Table::new(4);
        let mut policy = Slru::new(4, 50);
        table.store(&mut policy, &[1, 2, 3, 4]);
        table.reuse(&mut policy, &[1]);
        table.pin(3);
        assert!(!policy.evict(4, &table, &mut Vec::new()));
        check_lists(&policy, &table, &[4, 3, 2], &[1]);
    }

    #[test]
    fn what_a_running_request_meets_outlives_what_it_stores_behind() {
        let mut table = Table::new(4);
        let mut policy = Slru::new(4, 50);
        table.store(&mut policy, &[1]);
        table.store(&mut policy, &[8, 9]);
        table.begin(&mut policy, &[1, 2]);
        check_lists(&policy, &table, &[9, 8, 2, 1], &[]);
        check_evicts(&mut policy, &mut table, &[9, 8, 2]);
    }

    #[test]
    fn shares_are_whole_chunks() {
        assert_eq!(
            [(9, 20), (4_000_000_000, 50), (7, 100), (7, 0)].map(|(of, pct)| share(of, pct)),
            [1, 2_000_000_000, 7, 0]
        );
    }
}
