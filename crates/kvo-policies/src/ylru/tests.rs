//! Requests worked by hand.

use super::*;
use crate::testing::{Table, check_evicts, key};

/// The classes, the old end first.
#[track_caller]
fn check_classes(policy: &Ylru, table: &Table, expected: [&[u64]; CLASSES]) {
    let classes: [Vec<u64>; CLASSES] = std::array::from_fn(|class| table.numbers(&policy.order.list(class)));
    assert_eq!(classes, expected);
}

#[track_caller]
fn check_ghosts(policy: &Ylru, gone: &[u64], asked: &[u64]) {
    let ghosts =
        |list| (0..100).filter(|n| policy.ghosts.list_of(&key(*n)) == Some(list)).collect::<Vec<u64>>();
    assert_eq!([ghosts(GONE), ghosts(ASKED)], [gone, asked]);
}

#[test]
fn each_request_that_meets_a_chunk_again_raises_it_a_class() {
    let mut table = Table::new(10);
    let mut policy = Ylru::new(10);
    table.store(&mut policy, &[1, 2, 3]);
    check_classes(&policy, &table, [&[3, 2, 1], &[], &[], &[]]);
    table.serve(&mut policy, &[1, 2, 4]);
    check_classes(&policy, &table, [&[3, 4], &[2, 1], &[], &[]]);
    table.reuse(&mut policy, &[1, 2, 3]);
    check_classes(&policy, &table, [&[4], &[3], &[2, 1], &[]]);
    for _ in 0..5 {
        table.reuse(&mut policy, &[1]);
    }
    check_classes(&policy, &table, [&[4], &[3], &[2], &[1]]);
}

#[test]
fn a_ghost_remembers_the_class() {
    let mut table = Table::new(10);
    let mut policy = Ylru::new(10);
    table.store(&mut policy, &[1]);
    table.reuse(&mut policy, &[1]);
    check_evicts(&mut policy, &mut table, &[1]);
    check_ghosts(&policy, &[1], &[]);
    table.store(&mut policy, &[1]);
    check_classes(&policy, &table, [&[], &[], &[1], &[]]);
    check_ghosts(&policy, &[], &[]);
}

#[test]
fn a_class_is_no_higher_than_that_of_the_chunk_before() {
    let mut table = Table::new(10);
    let mut policy = Ylru::new(10);
    table.store(&mut policy, &[2]);
    check_evicts(&mut policy, &mut table, &[2]);
    // 2 has a ghost, but 1 is new.
    table.store(&mut policy, &[1, 2]);
    check_classes(&policy, &table, [&[2, 1], &[], &[], &[]]);
}

#[test]
fn a_group_is_a_chain_of_its_own() {
    let mut policy = Ylru::new(4);
    let table = Table::new(4);
    // Two groups take turns; the second one's head was stored anew.
    let access = |slot: u32, kind| KeyAccess {
        key: OffloadKey::new(kvo_core::BlockHash::from_u64(slot.into()), GroupIdx(slot % 2)),
        slot: Some(SlotId(slot)),
        end_token: None,
        kind,
    };
    let mut req = RequestRecency::default();
    let stored = [0, 1, 2, 3].map(|slot| access(slot, AccessKind::Inserted));
    for access in &stored {
        policy.insert(&mut req, access.slot.unwrap(), &access.key, None, &table);
        policy.on_ready(access.slot.unwrap());
    }
    policy.on_request_finished(&mut req, &stored, &table);
    let mut met = [0, 1, 2, 3].map(|slot| access(slot, AccessKind::Reused));
    met[1].kind = AccessKind::Inserted;
    policy.on_request_finished(&mut req, &met, &table);
    let slots = |class| policy.order.list(class).iter().map(|slot| slot.0).collect::<Vec<_>>();
    assert_eq!([0, 1].map(slots), [vec![3, 1], vec![2, 0]]);
}

#[test]
fn a_chunk_whose_store_was_refused_keeps_its_ghost() {
    let mut table = Table::new(10);
    let mut policy = Ylru::new(10);
    table.store(&mut policy, &[1]);
    check_evicts(&mut policy, &mut table, &[1]);
    policy.on_store_miss(&table.accesses(&[1], AccessKind::Inserted), &table);
    check_ghosts(&policy, &[], &[1]);
    table.store(&mut policy, &[1]);
    check_classes(&policy, &table, [&[], &[1], &[], &[]]);
}

#[test]
fn ghosts_are_twice_the_capacity() {
    let mut table = Table::new(2);
    let mut policy = Ylru::new(2);
    for n in 0..7 {
        table.serve(&mut policy, &[n]);
    }
    check_ghosts(&policy, &[1, 2, 3, 4], &[]);
}

/// Before there is evidence, a chunk met again is worth more than a new one; unless it is far older.
#[test]
fn the_class_whose_oldest_yields_least_gives_the_victim() {
    let mut table = Table::new(100);
    let mut policy = Ylru::new(100);
    table.store(&mut policy, &[1]);
    table.reuse(&mut policy, &[1]);
    table.store(&mut policy, &[2]);
    check_evicts(&mut policy, &mut table, &[2]);
    for n in 0..1_100 {
        table.serve(&mut policy, &[3 + n % 8]);
    }
    check_classes(&policy, &table, [&[], &[1], &[], &[7, 8, 9, 10, 3, 4, 5, 6]]);
    table.store(&mut policy, &[20]);
    check_evicts(&mut policy, &mut table, &[1, 20]);
}

#[test]
fn too_few_victims_change_nothing() {
    let mut table = Table::new(10);
    let mut policy = Ylru::new(10);
    table.store(&mut policy, &[1, 2, 3]);
    table.reuse(&mut policy, &[1]);
    table.pin(3);
    assert!(!policy.evict(3, &table, &mut Vec::new()));
    check_classes(&policy, &table, [&[3, 2], &[1], &[], &[]]);
    check_ghosts(&policy, &[], &[]);
    check_evicts(&mut policy, &mut table, &[2, 1]);
}

#[test]
fn what_a_running_request_meets_outlives_what_it_stores_behind() {
    let mut table = Table::new(10);
    let mut policy = Ylru::new(10);
    table.store(&mut policy, &[1, 2]);
    table.reuse(&mut policy, &[1, 2]);
    table.store(&mut policy, &[3]);
    let mut req = table.begin(&mut policy, &[1, 2, 4]);
    check_classes(&policy, &table, [&[3, 4], &[2, 1], &[], &[]]);
    check_evicts(&mut policy, &mut table, &[3, 4, 2, 1]);
    policy.on_request_finished(&mut req, &[], &table);
    assert_eq!(req, RequestRecency::default());
}

/// Else what it stores late would seem younger than the prefix before it.
#[test]
fn what_a_request_meets_and_stores_is_as_old_as_the_request() {
    let mut table = Table::new(100);
    let mut policy = Ylru::new(100);
    table.store(&mut policy, &[1]);
    table.reuse(&mut policy, &[1]);
    let mut req = table.begin(&mut policy, &[1]);
    for n in 0..1_100 {
        table.serve(&mut policy, &[3 + n % 8]);
    }
    table.offer(&mut policy, &mut req, &[1, 2]);
    check_classes(&policy, &table, [&[2], &[1], &[], &[7, 8, 9, 10, 3, 4, 5, 6]]);
    check_evicts(&mut policy, &mut table, &[2, 1]);
}

#[test]
fn a_chunk_that_others_have_met_keeps_its_class_when_the_request_that_stored_it_finishes() {
    let mut table = Table::new(10);
    let mut policy = Ylru::new(10);
    let mut req = table.begin(&mut policy, &[1]);
    table.reuse(&mut policy, &[1]);
    check_classes(&policy, &table, [&[], &[1], &[], &[]]);
    policy.on_request_finished(&mut req, &table.accesses(&[1], AccessKind::Inserted), &table);
    check_classes(&policy, &table, [&[], &[1], &[], &[]]);
}

#[test]
fn a_cleared_policy_is_as_a_new_one() {
    let mut table = Table::new(4);
    let mut policy = Ylru::new(4);
    for n in 0..40 {
        table.serve(&mut policy, &[n % 6, n % 5 + 10]);
    }
    table.begin(&mut policy, &[50]);
    policy.clear();
    assert_eq!(format!("{:?}", (&policy.yields, policy.clock)), format!("{:?}", (Yields::new(4), 0)));
    check_ghosts(&policy, &[], &[]);
    let mut table = Table::new(4);
    table.store(&mut policy, &[1, 2]);
    check_classes(&policy, &table, [&[2, 1], &[], &[], &[]]);
}
