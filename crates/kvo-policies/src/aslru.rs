//! Adaptive segmented LRU, request by request.

use std::collections::TryReserveError;

use kvo_core::{OffloadKey, SlotId};

use crate::{
    AccessKind, CachePolicy, KeyAccess, RequestRecency, Residents, RunSummary,
    ghosts::Ghosts,
    index::SlotIndex,
    order::filled,
    policy::MEMORY,
    segmented::{PROBATION, PROTECTED, Segmented},
};

/// Of the capacity, the protected list's target to begin with.
const FIRST_TARGET: f64 = 0.2;

/// Ghosts of chunks that were never protected while they were resident.
const B1: usize = 0;
/// Ghosts of chunks that were.
const B2: usize = 1;
/// Ghosts that were asked for and are to be stored again.
const ASKED: usize = 2;

/// Adaptive segmented LRU: [`Slru`](crate::Slru) whose protected share follows what ghosts tell, as ARC's does.
///
/// Two lists, probation and protected, as in SLRU, and two ghost lists: B1 holds the keys, without data, of evicted
/// chunks that were never protected, B2 of those that were. The target for the protected list is a real number,
/// 20 % of the capacity at first: a miss with a ghost in B1 lowers it by max(1, |B2|/|B1|), so that new chunks live
/// longer; one in B2 raises it by max(1, |B1|/|B2|). Ghost lists are trimmed to the capacity.
///
/// When a request finishes, the longest run of its chunks from the head that were reused, are protected, or came back
/// with a ghost, goes to the recent end of the protected list; what is behind goes to the recent end of probation,
/// unless it is protected already. Then the protected list is cut to its target, from the old end into probation.
/// Victims come from probation first.
///
/// New here; `docs/POLICIES.md` describes it as for a paper. From ARC (Megiddo and Modha, FAST 2003) it takes the
/// ghosts and the step; that only a *prefix* is promoted is what a prefix cache adds: a chunk behind a chunk that
/// nobody asked for twice is worth no more than that one.
///
/// Strands nothing on prefix chains, for the reasons given for [`Slru`](crate::Slru). Each operation is constant per
/// chunk, amortised, whatever is pinned.
#[derive(Debug)]
pub struct Aslru {
    capacity: u32,
    target_protected: f64,
    segments: Segmented,
    ghosts: Ghosts<3>,
    /// Of each slot: whether its chunk came back with a ghost, until the finish that sees it; and whether it was
    /// protected since it is resident.
    chunks: Vec<Chunk>,
    /// How many chunks came back with a ghost, and no finish has seen that.
    num_ghosts_back: usize,
}

#[derive(Clone, Copy, Debug, Default)]
struct Chunk {
    was_ghost: bool,
    was_protected: bool,
}

impl Aslru {
    /// An empty policy for a tier of `capacity` chunks.
    ///
    /// # Panics
    /// If there is no memory for its tables.
    pub fn new(capacity: u32) -> Self {
        Self::try_new(capacity).expect(MEMORY)
    }

    pub(crate) fn try_new(capacity: u32) -> Result<Self, TryReserveError> {
        Ok(Self {
            capacity,
            target_protected: FIRST_TARGET * f64::from(capacity),
            segments: Segmented::new(capacity)?,
            // Each list may hold one more than the capacity until it is trimmed.
            ghosts: Ghosts::new(capacity.saturating_mul(3).saturating_add(3))?,
            chunks: filled(capacity, Chunk::default())?,
            num_ghosts_back: 0,
        })
    }

    /// Chunks that searches for victims have looked at so far.
    pub fn visits(&self) -> u64 {
        self.segments.visits()
    }

    /// A key that is not resident was asked for.
    fn adapt(&mut self, key: &OffloadKey) {
        let Some(list) = self.ghosts.list_of(key) else { return };
        let (b1, b2) = (self.ghosts.len(B1) as f64, self.ghosts.len(B2) as f64);
        match list {
            B1 => self.target_protected = (self.target_protected - (b2 / b1).max(1.0)).max(0.0),
            B2 => {
                self.target_protected =
                    (self.target_protected + (b1 / b2).max(1.0)).min(f64::from(self.capacity));
            }
            _ => {}
        }
        self.ghosts.push(ASKED, *key);
        self.ghosts.trim(ASKED, self.capacity as usize);
    }

    /// Whether a chunk that a request met is asked for more than once.
    fn is_wanted(&self, access: &KeyAccess) -> bool {
        access.kind == AccessKind::Reused
            || access.slot.is_some_and(|slot| {
                self.segments.list_of(slot) == Some(PROTECTED) || self.chunks[slot.0 as usize].was_ghost
            })
    }

    fn protect(&mut self, slot: SlotId) {
        self.segments.push(PROTECTED, slot);
        self.chunks[slot.0 as usize].was_protected = true;
    }

    /// Applies an access of which the first `wanted` keys are asked for more than once.
    fn commit(&mut self, keys: &[KeyAccess], wanted: usize) {
        for (index, access) in keys.iter().enumerate().rev() {
            let Some(slot) = access.slot else { continue };
            let Some(list) = self.segments.list_of(slot) else { continue };
            self.set_was_ghost(slot, false);
            if list == PROTECTED || index < wanted {
                self.protect(slot);
            } else {
                self.segments.push(PROBATION, slot);
            }
        }
        self.demote();
    }

    fn demote(&mut self) {
        // The target is never negative, and never above a capacity of 32 bits.
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "see above")]
        self.segments.demote_beyond(self.target_protected as usize);
    }

    /// A chunk begins in `slot`.
    fn begin(&mut self, slot: SlotId, was_ghost: bool) {
        self.chunks[slot.0 as usize] = Chunk::default();
        self.set_was_ghost(slot, was_ghost);
    }

    /// The chunk in `slot` is gone; returns what was known of it.
    fn forget(&mut self, slot: SlotId) -> Chunk {
        let chunk = self.chunks[slot.0 as usize];
        self.set_was_ghost(slot, false);
        chunk
    }

    fn set_was_ghost(&mut self, slot: SlotId, was_ghost: bool) {
        let before = std::mem::replace(&mut self.chunks[slot.0 as usize].was_ghost, was_ghost);
        self.num_ghosts_back = self.num_ghosts_back + usize::from(was_ghost) - usize::from(before);
    }
}

impl CachePolicy for Aslru {
    fn num_slots_max(&self) -> u32 {
        self.segments.capacity()
    }

    fn insert(
        &mut self,
        req: &mut RequestRecency,
        slot: SlotId,
        key: &OffloadKey,
        end_token: Option<u32>,
        tier: &dyn Residents,
    ) {
        let was_ghost = self.ghosts.remove(key) == Some(ASKED);
        self.begin(slot, was_ghost);
        self.segments.insert(req, slot, end_token, tier);
    }

    fn insert_all(&mut self, req: &mut RequestRecency, chunks: &[KeyAccess], tier: &dyn Residents) {
        for batch in chunks.chunks(SlotIndex::BATCH) {
            for (chunk, ghost) in batch.iter().zip(self.ghosts.find_batch(batch)) {
                let was_ghost = ghost.is_some() && self.ghosts.remove(&chunk.key) == Some(ASKED);
                let slot = chunk.slot.expect("a chunk that is inserted has a slot");
                self.begin(slot, was_ghost);
            }
        }
        self.segments.insert_all(req, chunks, tier);
    }

    fn on_ready(&mut self, slot: SlotId) {
        self.segments.wake(slot);
    }

    fn on_unpin(&mut self, slot: SlotId) {
        self.segments.wake(slot);
    }

    fn remove(&mut self, slot: SlotId) {
        self.forget(slot);
        self.segments.remove(slot);
    }

    fn evict(&mut self, count: usize, tier: &dyn Residents, victims: &mut Vec<SlotId>) -> bool {
        let before = victims.len();
        if !self.segments.evict(count, tier, victims) {
            return false;
        }
        for victim in &victims[before..] {
            let Chunk { was_protected, .. } = self.forget(*victim);
            let list = if was_protected { B2 } else { B1 };
            self.ghosts.push_new(list, tier.key(*victim), ());
            self.ghosts.trim(list, self.capacity as usize);
        }
        true
    }

    fn touch(&mut self, keys: &[KeyAccess], _tier: &dyn Residents) {
        for access in keys.iter().rev().filter(|access| access.slot.is_none()) {
            self.adapt(&access.key);
        }
        self.commit(keys, keys.len());
    }

    fn on_store_miss(&mut self, keys: &[KeyAccess], _tier: &dyn Residents) {
        for batch in keys.rchunks(SlotIndex::BATCH) {
            // A key without a ghost gets none by what the others do.
            let found = self.ghosts.find_batch(batch);
            for (access, _) in batch.iter().zip(found).rev().filter(|(_, ghost)| ghost.is_some()) {
                self.adapt(&access.key);
            }
        }
    }

    fn on_request_access(&mut self, req: &mut RequestRecency, keys: &[KeyAccess], tier: &dyn Residents) {
        self.segments.meet(req, keys, tier);
    }

    fn on_request_finished(&mut self, req: &mut RequestRecency, keys: &[KeyAccess], tier: &dyn Residents) {
        let wanted = keys.iter().take_while(|access| self.is_wanted(access)).count();
        self.commit(keys, wanted);
        self.segments.end(req, tier);
    }

    /// What a request stored alone, and nobody had asked for before, becomes the most recent of probation.
    fn commit_run(&mut self, req: &mut RequestRecency, summary: RunSummary) -> bool {
        let is_new = summary.num_reused == 0 && self.num_ghosts_back == 0;
        let is_committed = is_new && self.segments.end_in_probation(req, summary.num_keys);
        if is_committed {
            self.demote();
        }
        is_committed
    }

    fn clear(&mut self) {
        self.num_ghosts_back = 0;
        self.chunks.fill(Chunk::default());
        self.target_protected = FIRST_TARGET * f64::from(self.capacity);
        self.segments.clear();
        self.ghosts.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Table, check_evicts, key};

    /// Probation and protected, the old end first; then which of the numbers have a ghost in B1, and in B2.
    #[track_caller]
    fn check_lists(policy: &Aslru, table: &Table, expected: [&[u64]; 4]) {
        let [probation, protected] =
            [PROBATION, PROTECTED].map(|list| table.numbers(&policy.segments.list(list)));
        let [b1, b2] = [B1, B2].map(|list| {
            let numbers: Vec<u64> =
                (0..100).filter(|n| policy.ghosts.list_of(&key(*n)) == Some(list)).collect();
            assert_eq!(numbers.len(), policy.ghosts.len(list));
            numbers
        });
        assert_eq!([probation, protected, b1, b2], expected);
    }

    #[track_caller]
    fn check_target(policy: &Aslru, expected: f64) {
        assert!(
            (policy.target_protected - expected).abs() < 1e-9,
            "{} is not {expected}",
            policy.target_protected
        );
    }

    #[test]
    fn a_reuse_protects_up_to_the_target() {
        let mut table = Table::new(10);
        let mut policy = Aslru::new(10);
        table.store(&mut policy, &[1, 2, 3]);
        check_lists(&policy, &table, [&[3, 2, 1], &[], &[], &[]]);
        table.reuse(&mut policy, &[1, 2, 3]);
        check_lists(&policy, &table, [&[3], &[2, 1], &[], &[]]);
        // 3 was protected, if not for long; 4 never was.
        table.store(&mut policy, &[4]);
        check_evicts(&mut policy, &mut table, &[3, 4]);
        check_lists(&policy, &table, [&[], &[2, 1], &[4], &[3]]);
    }

    #[test]
    fn ghosts_move_the_target_and_a_chunk_that_had_one_is_protected() {
        let mut table = Table::new(10);
        let mut policy = Aslru::new(10);
        table.store(&mut policy, &[1, 2, 3]);
        table.reuse(&mut policy, &[1, 2, 3]);
        table.store(&mut policy, &[4, 5]);
        check_evicts(&mut policy, &mut table, &[3, 5, 4]);
        check_lists(&policy, &table, [&[], &[2, 1], &[4, 5], &[3]]);
        // Two ghosts in B1 for one in B2.
        table.store(&mut policy, &[3]);
        check_target(&policy, 4.0);
        check_lists(&policy, &table, [&[], &[2, 1, 3], &[4, 5], &[]]);
        // 6 has no ghost, so what is behind it is not protected: 4 had one.
        table.store(&mut policy, &[5, 6, 4]);
        check_target(&policy, 2.0);
        check_lists(&policy, &table, [&[4, 6, 2, 1], &[3, 5], &[], &[]]);
    }

    #[test]
    fn the_target_stays_from_nothing_to_the_capacity() {
        let mut table = Table::new(3);
        let mut policy = Aslru::new(3);
        for n in 0..6 {
            table.serve(&mut policy, &[n % 5]);
        }
        // One ghost in B1 takes more than the 0.6 that there is. What comes back is protected, if only until the cut.
        check_target(&policy, 0.0);
        for n in 6..20 {
            table.serve(&mut policy, &[n % 5]);
        }
        check_target(&policy, 3.0);
        policy.clear();
        check_target(&policy, 0.6);
    }

    #[test]
    fn too_few_victims_change_nothing() {
        let mut table = Table::new(10);
        let mut policy = Aslru::new(10);
        table.store(&mut policy, &[1, 2, 3]);
        table.reuse(&mut policy, &[1]);
        table.pin(3);
        assert!(!policy.evict(3, &table, &mut Vec::new()));
        check_lists(&policy, &table, [&[3, 2], &[1], &[], &[]]);
        check_evicts(&mut policy, &mut table, &[2, 1]);
        check_lists(&policy, &table, [&[3], &[], &[2], &[1]]);
    }

    #[test]
    fn a_chunk_whose_store_was_refused_keeps_its_mark() {
        let mut table = Table::new(10);
        let mut policy = Aslru::new(10);
        table.store(&mut policy, &[1]);
        check_evicts(&mut policy, &mut table, &[1]);
        policy.on_store_miss(&table.accesses(&[1], AccessKind::Inserted), &table);
        check_target(&policy, 1.0);
        table.store(&mut policy, &[1]);
        check_target(&policy, 1.0);
        check_lists(&policy, &table, [&[], &[1], &[], &[]]);
    }
}
