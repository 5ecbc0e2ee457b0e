//! Traces worked out by hand, with a dump of all four lists.

use kvo_core::{BlockHash, GroupIdx};

use super::*;

fn key(n: u64) -> OffloadKey {
    OffloadKey::new(BlockHash::from_u64(n), GroupIdx(0))
}

fn keys(numbers: &[u64]) -> Vec<OffloadKey> {
    numbers.iter().copied().map(key).collect()
}

/// A policy with ready chunks, inserted in this order.
fn filled(capacity: u32, ghost_hits: GhostHits, numbers: &[u64]) -> Arc {
    let mut policy = Arc::new(capacity, ghost_hits);
    insert(&mut policy, numbers);
    policy
}

fn insert(policy: &mut Arc, numbers: &[u64]) {
    for key in keys(numbers) {
        policy.insert(&mut RequestRecency::default(), key, None);
        policy.on_ready(&key);
    }
}

fn finish(policy: &mut Arc, kind: AccessKind, numbers: &[u64]) {
    let keys: Vec<_> = numbers.iter().map(|n| KeyAccess { key: key(*n), end_token: None, kind }).collect();
    policy.on_request_finished(&keys);
}

#[track_caller]
fn check_evicts(policy: &mut Arc, expected: &[u64]) {
    let mut victims = Vec::new();
    assert!(policy.evict(expected.len(), &mut |_| true, &mut victims), "enough can be had");
    assert_eq!(victims, keys(expected));
}

/// T1, T2, B1 and B2, each with its old end first.
#[track_caller]
fn check_lists(policy: &Arc, expected: [&[u64]; 4]) {
    for (place, expected) in [Place::T1, Place::T2, Place::B1, Place::B2].into_iter().zip(expected) {
        let mut list: Vec<(u64, OffloadKey)> = Vec::new();
        for (key, entry) in &policy.entries {
            if entry.place == place {
                list.push((entry.stamp, *key));
            }
        }
        list.sort();
        let list: Vec<OffloadKey> = list.into_iter().map(|(_, key)| key).collect();
        assert_eq!(list, keys(expected), "{place:?}");
    }
}

#[track_caller]
fn check_target(policy: &Arc, expected: f64) {
    assert!((policy.target_t1 - expected).abs() < 1e-9, "{} is not {expected}", policy.target_t1);
}

#[test]
fn a_new_chunk_enters_t1_and_a_reuse_moves_it_to_t2_tail_first() {
    let mut policy = filled(4, GhostHits::T1, &[1, 2, 3, 4]);
    check_lists(&policy, [&[1, 2, 3, 4], &[], &[], &[]]);
    finish(&mut policy, AccessKind::Reused, &[1, 2]);
    check_lists(&policy, [&[3, 4], &[2, 1], &[], &[]]);
    finish(&mut policy, AccessKind::Reused, &[2, 3]);
    check_lists(&policy, [&[4], &[1, 3, 2], &[], &[]]);
}

#[test]
fn an_insertion_refreshes_its_chunk_in_the_list_where_it_is() {
    let mut policy = filled(4, GhostHits::T1, &[1, 2, 3, 4]);
    finish(&mut policy, AccessKind::Reused, &[3, 4]);
    finish(&mut policy, AccessKind::Inserted, &[1, 2, 3, 4]);
    check_lists(&policy, [&[2, 1], &[4, 3], &[], &[]]);
}

#[test]
fn a_pending_chunk_that_was_reused_moves_to_t2_at_the_finish_and_by_a_touch_only_within_t1() {
    let mut policy = filled(4, GhostHits::T1, &[]);
    for key in keys(&[1, 2, 3]) {
        policy.insert(&mut RequestRecency::default(), key, None);
    }
    policy.touch(&keys(&[1]));
    check_lists(&policy, [&[2, 3, 1], &[], &[], &[]]);
    finish(&mut policy, AccessKind::Reused, &[2]);
    check_lists(&policy, [&[3, 1], &[2], &[], &[]]);
    let mut victims = Vec::new();
    assert!(!policy.evict(1, &mut |_| true, &mut victims), "all are pending");
    policy.on_ready(&key(2));
    check_evicts(&mut policy, &[2]);
}

#[test]
fn each_victim_leaves_a_ghost_in_the_list_of_its_kind() {
    let mut policy = filled(4, GhostHits::T1, &[1, 2, 3, 4]);
    finish(&mut policy, AccessKind::Reused, &[1, 2]);
    check_evicts(&mut policy, &[3]);
    check_lists(&policy, [&[4], &[2, 1], &[3], &[]]);
    // The target is 0 and T1, however short, is not shorter; so T1 goes first, then T2.
    check_evicts(&mut policy, &[4, 2]);
    check_lists(&policy, [&[], &[1], &[3, 4], &[2]]);
}

#[test]
fn a_removed_chunk_leaves_no_ghost() {
    let mut policy = filled(4, GhostHits::T1, &[1, 2]);
    policy.remove(&key(1));
    check_lists(&policy, [&[2], &[], &[], &[]]);
}

/// T2 = 1, B1 = 5 6, B2 = 4 3 2, all of a capacity of 6.
fn with_ghosts(ghost_hits: GhostHits) -> Arc {
    let mut policy = filled(6, ghost_hits, &[1, 2, 3, 4, 5, 6]);
    finish(&mut policy, AccessKind::Reused, &[1, 2, 3, 4]);
    check_evicts(&mut policy, &[5, 6, 4, 3, 2]);
    check_lists(&policy, [&[], &[1], &[5, 6], &[4, 3, 2]]);
    policy
}

#[test]
fn a_ghost_hit_moves_the_target_by_the_ratio_of_the_ghost_lists_and_by_one_at_least() {
    let mut policy = with_ghosts(GhostHits::T1);
    policy.on_store_miss(&keys(&[5]));
    check_target(&policy, 1.5); // + 3/2
    check_lists(&policy, [&[], &[1], &[6, 5], &[4, 3, 2]]);
    policy.on_store_miss(&keys(&[6]));
    check_target(&policy, 3.0); // + 3/2
    policy.on_store_miss(&keys(&[4]));
    check_target(&policy, 2.0); // - max(1, 2/3)
    check_lists(&policy, [&[], &[1], &[5, 6], &[3, 2, 4]]);
    insert(&mut policy, &[2, 3]);
    check_lists(&policy, [&[2, 3], &[1], &[5, 6], &[4]]);
    policy.on_store_miss(&keys(&[4]));
    check_target(&policy, 0.0); // - 2/1
    policy.on_store_miss(&keys(&[5]));
    check_target(&policy, 1.0); // + max(1, 1/2)
}

#[test]
fn the_last_of_the_missing_keys_adapts_first() {
    let mut policy = with_ghosts(GhostHits::T1);
    policy.on_store_miss(&keys(&[5, 4]));
    check_target(&policy, 1.5); // 0 - 1, held at 0, + 3/2; the other way round 0.5
    let mut policy = with_ghosts(GhostHits::T1);
    policy.on_store_miss(&keys(&[4, 5]));
    check_target(&policy, 0.5);
}

#[test]
fn the_target_stays_between_zero_and_the_capacity() {
    let mut policy = with_ghosts(GhostHits::T1);
    policy.on_store_miss(&keys(&[2]));
    check_target(&policy, 0.0);
    for _ in 0..10 {
        policy.on_store_miss(&keys(&[5]));
    }
    check_target(&policy, 6.0);
    for _ in 0..10 {
        policy.on_store_miss(&keys(&[2]));
    }
    check_target(&policy, 0.0);
}

#[test]
fn only_the_integer_part_of_the_target_counts() {
    let mut policy = with_ghosts(GhostHits::T1);
    policy.on_store_miss(&keys(&[5]));
    check_target(&policy, 1.5);
    insert(&mut policy, &[7]);
    // T1 has one chunk, and the target's integer part is one.
    check_evicts(&mut policy, &[7]);
    policy.on_store_miss(&keys(&[6]));
    insert(&mut policy, &[8]);
    // Now it is two or more, so the victim comes from T2.
    check_target(&policy, 2.5);
    check_evicts(&mut policy, &[1]);
    // T2 is empty: back to T1.
    check_evicts(&mut policy, &[8]);
}

#[test]
fn victims_count_t1_down_while_they_are_chosen() {
    let mut policy = filled(5, GhostHits::T1, &[1, 2, 3, 4, 5]);
    finish(&mut policy, AccessKind::Reused, &[4, 5]);
    policy.target_t1 = 2.0;
    check_lists(&policy, [&[1, 2, 3], &[5, 4], &[], &[]]);
    check_evicts(&mut policy, &[1, 2, 5, 4, 3]);
    check_lists(&policy, [&[], &[], &[1, 2, 3], &[5, 4]]);
}

#[test]
fn pinned_and_pending_chunks_count_for_the_size_of_t1_but_are_no_victims() {
    let mut policy = filled(4, GhostHits::T1, &[1, 2, 3]);
    policy.insert(&mut RequestRecency::default(), key(4), None);
    finish(&mut policy, AccessKind::Reused, &[3]);
    policy.on_pin(&key(1));
    policy.target_t1 = 3.0;
    check_lists(&policy, [&[1, 2, 4], &[3], &[], &[]]);
    check_evicts(&mut policy, &[2, 3]);
    policy.on_unpin(&key(1));
    check_lists(&policy, [&[1, 4], &[], &[2], &[3]]);
    check_evicts(&mut policy, &[1]);
}

#[test]
fn ghost_lists_are_trimmed_to_the_capacity_each() {
    let mut policy = Arc::new(2, GhostHits::T1);
    for n in 1..6 {
        insert(&mut policy, &[n]);
        check_evicts(&mut policy, &[n]);
    }
    check_lists(&policy, [&[], &[], &[4, 5], &[]]);
    for n in 6..9 {
        insert(&mut policy, &[n]);
        finish(&mut policy, AccessKind::Reused, &[n]);
        check_evicts(&mut policy, &[n]);
    }
    check_lists(&policy, [&[], &[], &[4, 5], &[7, 8]]);
}

#[test]
fn a_key_with_a_ghost_enters_t1_or_t2_as_chosen() {
    for (ghost_hits, t1, t2) in
        [(GhostHits::T1, &[7, 5, 4][..], &[1][..]), (GhostHits::T2, &[7][..], &[1, 5, 4][..])]
    {
        let mut policy = with_ghosts(ghost_hits);
        insert(&mut policy, &[7, 5, 4]);
        check_lists(&policy, [t1, t2, &[6], &[3, 2]]);
    }
}

#[test]
fn touch_promotes_ready_chunks_and_adapts_to_ghosts_last_key_first() {
    let mut policy = with_ghosts(GhostHits::T1);
    insert(&mut policy, &[7, 8]);
    policy.touch(&keys(&[1, 7, 5, 9]));
    check_lists(&policy, [&[8], &[7, 1], &[6, 5], &[4, 3, 2]]);
    check_target(&policy, 1.5);
}

#[test]
fn a_refused_eviction_leaves_lists_and_target_alone() {
    let mut policy = with_ghosts(GhostHits::T1);
    insert(&mut policy, &[7, 8]);
    policy.on_store_miss(&keys(&[5]));
    let mut victims = keys(&[42]);
    assert!(!policy.evict(4, &mut |_| true, &mut victims), "only three are there");
    assert!(!policy.evict(3, &mut |asked| *asked != key(1), &mut victims), "one is spared");
    assert_eq!(victims, keys(&[42]));
    check_lists(&policy, [&[7, 8], &[1], &[6, 5], &[4, 3, 2]]);
    check_target(&policy, 1.5);
}

#[test]
fn clear_forgets_ghosts_and_target() {
    let mut policy = with_ghosts(GhostHits::T1);
    policy.on_store_miss(&keys(&[5]));
    policy.clear();
    check_lists(&policy, [&[], &[], &[], &[]]);
    check_target(&policy, 0.0);
}

/// B02: however often a request offers its chunks while it decodes, it is one access.
#[test]
fn one_request_is_one_access_however_long_it_runs() {
    let mut policy = filled(4, GhostHits::T1, &[1, 2]);
    let access = |n| KeyAccess { key: key(n), end_token: Some(16), kind: AccessKind::Reused };
    for _ in 0..10 {
        policy.on_request_access(&mut RequestRecency::default(), &[access(1), access(2)]);
        check_lists(&policy, [&[1, 2], &[], &[], &[]]);
    }
    finish(&mut policy, AccessKind::Inserted, &[1, 2]);
    check_lists(&policy, [&[2, 1], &[], &[], &[]]);
    finish(&mut policy, AccessKind::Reused, &[1]);
    check_lists(&policy, [&[2], &[1], &[], &[]]);
}
