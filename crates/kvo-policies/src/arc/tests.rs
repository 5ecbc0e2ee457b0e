//! Traces worked out by hand, with a dump of all four lists.

use kvo_core::{BlockHash, GroupIdx};

use super::*;
use crate::Eviction;

fn key(n: u64) -> OffloadKey {
    OffloadKey::new(BlockHash::from_u64(n), GroupIdx(0))
}

/// The chunks by number, in the slots where they are.
#[derive(Default)]
struct Table {
    chunks: Vec<Option<u64>>,
    held: Vec<bool>,
    spared: Vec<u64>,
}

impl Residents for Table {
    fn key(&self, slot: SlotId) -> OffloadKey {
        key(self.number(slot))
    }

    fn may_evict(&self, slot: SlotId) -> Eviction {
        match self.number(slot) {
            _ if self.held[slot.0 as usize] => Eviction::Held,
            number if self.spared.contains(&number) => Eviction::Spared,
            _ => Eviction::Allowed,
        }
    }
}

impl Table {
    fn number(&self, slot: SlotId) -> u64 {
        self.chunks[slot.0 as usize].expect("the slot holds a chunk")
    }

    fn slot(&self, number: u64) -> Option<SlotId> {
        let at = self.chunks.iter().position(|chunk| *chunk == Some(number))?;
        Some(SlotId(u32::try_from(at).unwrap()))
    }

    fn held(&mut self, number: u64) -> &mut bool {
        let slot = self.slot(number).expect("the chunk is resident");
        &mut self.held[slot.0 as usize]
    }

    fn accesses(&self, kind: AccessKind, numbers: &[u64]) -> Vec<KeyAccess> {
        let access = |n: &u64| KeyAccess { key: key(*n), slot: self.slot(*n), end_token: None, kind };
        numbers.iter().map(access).collect()
    }
}

/// A policy and its tier.
struct Tier {
    policy: Arc,
    table: Table,
}

impl Tier {
    fn new(capacity: u32, ghost_hits: GhostHits) -> Self {
        let (chunks, held) = (vec![None; capacity as usize], vec![false; capacity as usize]);
        let table = Table { chunks, held, spared: Vec::new() };
        Self { policy: Arc::new(capacity, ghost_hits), table }
    }

    fn insert_pending(&mut self, number: u64) {
        let at = self.table.chunks.iter().position(Option::is_none).expect("a slot is free");
        self.table.chunks[at] = Some(number);
        self.table.held[at] = true;
        let slot = SlotId(u32::try_from(at).unwrap());
        self.policy.insert(&mut RequestRecency::default(), slot, &key(number), None, &self.table);
    }

    fn ready(&mut self, number: u64) {
        *self.table.held(number) = false;
        self.policy.on_ready(self.table.slot(number).unwrap());
    }

    fn unpin(&mut self, number: u64) {
        *self.table.held(number) = false;
        self.policy.on_unpin(self.table.slot(number).unwrap());
    }

    fn remove(&mut self, number: u64) {
        let slot = self.table.slot(number).unwrap();
        self.table.chunks[slot.0 as usize] = None;
        self.policy.remove(slot);
    }

    fn touch(&mut self, numbers: &[u64]) {
        self.policy.touch(&self.table.accesses(AccessKind::Reused, numbers), &self.table);
    }

    fn store_miss(&mut self, numbers: &[u64]) {
        assert!(numbers.iter().all(|number| self.table.slot(*number).is_none()), "what is missed is absent");
        self.policy.on_store_miss(&self.table.accesses(AccessKind::Inserted, numbers), &self.table);
    }

    /// Appends the victims to `victims`.
    fn evict(&mut self, count: usize, spared: &[u64], victims: &mut Vec<u64>) -> bool {
        self.table.spared = spared.to_vec();
        let mut slots = vec![SlotId(u32::MAX)];
        let done = self.policy.evict(count, &self.table, &mut slots);
        assert_eq!(slots.remove(0), SlotId(u32::MAX), "victims are appended");
        victims.extend(slots.iter().map(|slot| self.table.chunks[slot.0 as usize].take().unwrap()));
        self.table.spared.clear();
        done
    }
}

/// A policy with ready chunks, inserted in this order.
fn filled(capacity: u32, ghost_hits: GhostHits, numbers: &[u64]) -> Tier {
    let mut tier = Tier::new(capacity, ghost_hits);
    insert(&mut tier, numbers);
    tier
}

fn insert(tier: &mut Tier, numbers: &[u64]) {
    for number in numbers {
        tier.insert_pending(*number);
        tier.ready(*number);
    }
}

fn finish(tier: &mut Tier, kind: AccessKind, numbers: &[u64]) {
    let keys = tier.table.accesses(kind, numbers);
    tier.policy.on_request_finished(&mut RequestRecency::default(), &keys, &tier.table);
}

#[track_caller]
fn check_evicts(tier: &mut Tier, expected: &[u64]) {
    let mut victims = Vec::new();
    assert!(tier.evict(expected.len(), &[], &mut victims), "enough can be had");
    assert_eq!(victims, expected);
}

/// T1, T2, B1 and B2, each with its old end first.
#[track_caller]
fn check_lists(tier: &Tier, expected: [&[u64]; 4]) {
    let Tier { policy, table } = tier;
    policy.order.assert_consistent();
    let keys = |numbers: &[u64]| numbers.iter().copied().map(key).collect::<Vec<_>>();
    for (list, name) in [(T1, "T1"), (T2, "T2")] {
        let listed: Vec<_> = policy.order.list(list).into_iter().map(|slot| table.number(slot)).collect();
        assert_eq!(listed, expected[list], "{name}");
    }
    for (list, name) in [(T1, "B1"), (T2, "B2")] {
        assert_eq!(policy.ghosts.keys(list), keys(expected[2 + list]), "{name}");
    }
}

#[track_caller]
fn check_target(tier: &Tier, expected: f64) {
    let target = tier.policy.target_t1;
    assert!((target - expected).abs() < 1e-9, "{target} is not {expected}");
}

#[test]
fn a_new_chunk_enters_t1_and_a_reuse_moves_it_to_t2_tail_first() {
    let mut tier = filled(4, GhostHits::T1, &[1, 2, 3, 4]);
    check_lists(&tier, [&[1, 2, 3, 4], &[], &[], &[]]);
    finish(&mut tier, AccessKind::Reused, &[1, 2]);
    check_lists(&tier, [&[3, 4], &[2, 1], &[], &[]]);
    finish(&mut tier, AccessKind::Reused, &[2, 3]);
    check_lists(&tier, [&[4], &[1, 3, 2], &[], &[]]);
}

#[test]
fn an_insertion_refreshes_its_chunk_in_the_list_where_it_is() {
    let mut tier = filled(4, GhostHits::T1, &[1, 2, 3, 4]);
    finish(&mut tier, AccessKind::Reused, &[3, 4]);
    finish(&mut tier, AccessKind::Inserted, &[1, 2, 3, 4]);
    check_lists(&tier, [&[2, 1], &[4, 3], &[], &[]]);
}

#[test]
fn a_pending_chunk_that_was_reused_moves_to_t2_at_the_finish_and_by_a_touch_only_within_t1() {
    let mut tier = filled(4, GhostHits::T1, &[]);
    (1..=3).for_each(|number| tier.insert_pending(number));
    tier.touch(&[1]);
    check_lists(&tier, [&[2, 3, 1], &[], &[], &[]]);
    finish(&mut tier, AccessKind::Reused, &[2]);
    check_lists(&tier, [&[3, 1], &[2], &[], &[]]);
    let mut victims = Vec::new();
    assert!(!tier.evict(1, &[], &mut victims), "all are pending");
    tier.ready(2);
    check_evicts(&mut tier, &[2]);
}

#[test]
fn each_victim_leaves_a_ghost_in_the_list_of_its_kind() {
    let mut tier = filled(4, GhostHits::T1, &[1, 2, 3, 4]);
    finish(&mut tier, AccessKind::Reused, &[1, 2]);
    check_evicts(&mut tier, &[3]);
    check_lists(&tier, [&[4], &[2, 1], &[3], &[]]);
    // The target is 0 and T1, however short, is not shorter; so T1 goes first, then T2.
    check_evicts(&mut tier, &[4, 2]);
    check_lists(&tier, [&[], &[1], &[3, 4], &[2]]);
}

#[test]
fn a_removed_chunk_leaves_no_ghost() {
    let mut tier = filled(4, GhostHits::T1, &[1, 2]);
    tier.remove(1);
    check_lists(&tier, [&[2], &[], &[], &[]]);
}

/// T2 = 1, B1 = 5 6, B2 = 4 3 2, all of a capacity of 6.
fn with_ghosts(ghost_hits: GhostHits) -> Tier {
    let mut tier = filled(6, ghost_hits, &[1, 2, 3, 4, 5, 6]);
    finish(&mut tier, AccessKind::Reused, &[1, 2, 3, 4]);
    check_evicts(&mut tier, &[5, 6, 4, 3, 2]);
    check_lists(&tier, [&[], &[1], &[5, 6], &[4, 3, 2]]);
    tier
}

#[test]
fn a_ghost_hit_moves_the_target_by_the_ratio_of_the_ghost_lists_and_by_one_at_least() {
    let mut tier = with_ghosts(GhostHits::T1);
    tier.store_miss(&[5]);
    check_target(&tier, 1.5); // + 3/2
    check_lists(&tier, [&[], &[1], &[6, 5], &[4, 3, 2]]);
    tier.store_miss(&[6]);
    check_target(&tier, 3.0); // + 3/2
    tier.store_miss(&[4]);
    check_target(&tier, 2.0); // - max(1, 2/3)
    check_lists(&tier, [&[], &[1], &[5, 6], &[3, 2, 4]]);
    insert(&mut tier, &[2, 3]);
    check_lists(&tier, [&[2, 3], &[1], &[5, 6], &[4]]);
    tier.store_miss(&[4]);
    check_target(&tier, 0.0); // - 2/1
    tier.store_miss(&[5]);
    check_target(&tier, 1.0); // + max(1, 1/2)
}

#[test]
fn the_last_of_the_missing_keys_adapts_first() {
    let mut tier = with_ghosts(GhostHits::T1);
    tier.store_miss(&[5, 4]);
    check_target(&tier, 1.5); // 0 - 1, held at 0, + 3/2; the other way round 0.5
    let mut tier = with_ghosts(GhostHits::T1);
    tier.store_miss(&[4, 5]);
    check_target(&tier, 0.5);
}

#[test]
fn the_target_stays_between_zero_and_the_capacity() {
    let mut tier = with_ghosts(GhostHits::T1);
    tier.store_miss(&[2]);
    check_target(&tier, 0.0);
    for _ in 0..10 {
        tier.store_miss(&[5]);
    }
    check_target(&tier, 6.0);
    for _ in 0..10 {
        tier.store_miss(&[2]);
    }
    check_target(&tier, 0.0);
}

#[test]
fn only_the_integer_part_of_the_target_counts() {
    let mut tier = with_ghosts(GhostHits::T1);
    tier.store_miss(&[5]);
    check_target(&tier, 1.5);
    insert(&mut tier, &[7]);
    // T1 has one chunk, and the target's integer part is one.
    check_evicts(&mut tier, &[7]);
    tier.store_miss(&[6]);
    insert(&mut tier, &[8]);
    // Now it is two or more, so the victim comes from T2.
    check_target(&tier, 2.5);
    check_evicts(&mut tier, &[1]);
    // T2 is empty: back to T1.
    check_evicts(&mut tier, &[8]);
}

#[test]
fn victims_count_t1_down_while_they_are_chosen() {
    let mut tier = filled(5, GhostHits::T1, &[1, 2, 3, 4, 5]);
    finish(&mut tier, AccessKind::Reused, &[4, 5]);
    tier.policy.target_t1 = 2.0;
    check_lists(&tier, [&[1, 2, 3], &[5, 4], &[], &[]]);
    check_evicts(&mut tier, &[1, 2, 5, 4, 3]);
    check_lists(&tier, [&[], &[], &[1, 2, 3], &[5, 4]]);
}

#[test]
fn pinned_and_pending_chunks_count_for_the_size_of_t1_but_are_no_victims() {
    let mut tier = filled(4, GhostHits::T1, &[1, 2, 3]);
    tier.insert_pending(4);
    finish(&mut tier, AccessKind::Reused, &[3]);
    *tier.table.held(1) = true;
    tier.policy.target_t1 = 3.0;
    check_lists(&tier, [&[1, 2, 4], &[3], &[], &[]]);
    check_evicts(&mut tier, &[2, 3]);
    tier.unpin(1);
    check_lists(&tier, [&[1, 4], &[], &[2], &[3]]);
    check_evicts(&mut tier, &[1]);
}

#[test]
fn ghost_lists_are_trimmed_to_the_capacity_each() {
    let mut tier = Tier::new(2, GhostHits::T1);
    for n in 1..6 {
        insert(&mut tier, &[n]);
        check_evicts(&mut tier, &[n]);
    }
    check_lists(&tier, [&[], &[], &[4, 5], &[]]);
    for n in 6..9 {
        insert(&mut tier, &[n]);
        finish(&mut tier, AccessKind::Reused, &[n]);
        check_evicts(&mut tier, &[n]);
    }
    check_lists(&tier, [&[], &[], &[4, 5], &[7, 8]]);
}

#[test]
fn a_key_with_a_ghost_enters_t1_or_t2_as_chosen() {
    for (ghost_hits, t1, t2) in
        [(GhostHits::T1, &[7, 5, 4][..], &[1][..]), (GhostHits::T2, &[7][..], &[1, 5, 4][..])]
    {
        let mut tier = with_ghosts(ghost_hits);
        insert(&mut tier, &[7, 5, 4]);
        check_lists(&tier, [t1, t2, &[6], &[3, 2]]);
    }
}

#[test]
fn touch_promotes_ready_chunks_and_adapts_to_ghosts_last_key_first() {
    let mut tier = with_ghosts(GhostHits::T1);
    insert(&mut tier, &[7, 8]);
    tier.touch(&[1, 7, 5, 9]);
    check_lists(&tier, [&[8], &[7, 1], &[6, 5], &[4, 3, 2]]);
    check_target(&tier, 1.5);
}

#[test]
fn a_refused_eviction_leaves_lists_and_target_alone() {
    let mut tier = with_ghosts(GhostHits::T1);
    insert(&mut tier, &[7, 8]);
    tier.store_miss(&[5]);
    let mut victims = vec![42];
    assert!(!tier.evict(4, &[], &mut victims), "only three are there");
    assert!(!tier.evict(3, &[1], &mut victims), "one is spared");
    assert_eq!(victims, [42]);
    check_lists(&tier, [&[7, 8], &[1], &[6, 5], &[4, 3, 2]]);
    check_target(&tier, 1.5);
}

#[test]
fn clear_forgets_ghosts_and_target() {
    let mut tier = with_ghosts(GhostHits::T1);
    tier.store_miss(&[5]);
    tier.policy.clear();
    tier.table.chunks.fill(None);
    check_lists(&tier, [&[], &[], &[], &[]]);
    check_target(&tier, 0.0);
}

/// B02: however often a request offers its chunks while it decodes, it is one access.
#[test]
fn one_request_is_one_access_however_long_it_runs() {
    let mut tier = filled(4, GhostHits::T1, &[1, 2]);
    let accesses = tier.table.accesses(AccessKind::Reused, &[1, 2]);
    for _ in 0..10 {
        tier.policy.on_request_access(&mut RequestRecency::default(), &accesses, &tier.table);
        check_lists(&tier, [&[1, 2], &[], &[], &[]]);
    }
    finish(&mut tier, AccessKind::Inserted, &[1, 2]);
    check_lists(&tier, [&[2, 1], &[], &[], &[]]);
    finish(&mut tier, AccessKind::Reused, &[1]);
    check_lists(&tier, [&[2], &[1], &[], &[]]);
}

#[test]
fn canonical_bounds_b1_together_with_t1_once_all_insertions_are_done() {
    let mut tier = filled(3, GhostHits::Canonical, &[1, 2, 3]);
    assert!(tier.evict(2, &[], &mut Vec::new()));
    check_lists(&tier, [&[3], &[], &[1, 2], &[]]);
    insert(&mut tier, &[4, 5]);
    check_lists(&tier, [&[3, 4, 5], &[], &[1, 2], &[]]);
    finish(&mut tier, AccessKind::Inserted, &[4, 5]);
    check_lists(&tier, [&[3, 5, 4], &[], &[], &[]]);
}

#[test]
fn canonical_lets_a_ghost_enter_t2() {
    let mut tier = filled(3, GhostHits::Canonical, &[1, 2, 3]);
    assert!(tier.evict(1, &[], &mut Vec::new()));
    insert(&mut tier, &[1]);
    finish(&mut tier, AccessKind::Inserted, &[1]);
    check_lists(&tier, [&[2, 3], &[1], &[], &[]]);
}
