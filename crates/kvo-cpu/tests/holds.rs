//! Holds of lower tiers: cascades, promotions, and resets in between; and the events of all that.

mod support;

use kvo_core::{EventKind, LookupResult, OffloadKey, OffloadManager, StoreOutcome, TransferResult};
use kvo_cpu::{CpuManager, HoldKind, Released, TierHold};
use kvo_policies::{Arc, CachePolicy, GhostHits, Lru};
use support::{
    begin, events, eviction_order, finish, key, keys, load, loaded, lru, offer, seen, store, stored,
    with_policy,
};

#[track_caller]
fn cascade<P: CachePolicy>(manager: &mut CpuManager<P>, n: u64) -> TierHold {
    manager.hold_for_cascade(&key(n)).expect("the chunk is ready")
}

#[track_caller]
fn check_events(manager: &mut impl OffloadManager, expected: &[(EventKind, &[OffloadKey])]) {
    let events = events(manager);
    let events: Vec<_> = events.iter().map(|event| (event.kind, &event.keys[..])).collect();
    assert_eq!(events, expected);
}

#[test]
fn only_a_ready_chunk_can_be_held_for_a_cascade() {
    let mut manager = lru(2);
    let mut req = begin(&mut manager, 1);
    let job = offer(&mut manager, &mut req, &keys([1]));
    let before = seen(&manager, &keys([1, 2]));
    assert_eq!(manager.hold_for_cascade(&key(1)), None, "pending");
    assert_eq!(manager.hold_for_cascade(&key(2)), None, "absent");
    assert_eq!(seen(&manager, &keys([1, 2])), before);
    let slot = job.slots[0];
    stored(&mut manager, job.token);
    let hold = cascade(&mut manager, 1);
    assert_eq!((hold.key(), hold.slot(), hold.kind()), (key(1), slot, HoldKind::Cascade));
    assert_eq!(manager.release(hold, TransferResult::Done), Ok(Released::Ready));
}

#[test]
fn a_cascade_pins_beside_loads_and_other_cascades_and_its_failure_is_only_an_unpin() {
    let mut manager = lru(1);
    let mut req = begin(&mut manager, 1);
    store(&mut manager, &mut req, &keys([1]));
    let (a, b) = (cascade(&mut manager, 1), cascade(&mut manager, 1));
    let reading = load(&mut manager, &mut req, &keys([1]));
    for _ in 0..2 {
        assert!(matches!(manager.prepare_store(&mut req, &keys([2])), Ok(StoreOutcome::Refused(_))));
    }
    assert_eq!(manager.release(a, TransferResult::Failed), Ok(Released::Ready));
    loaded(&mut manager, reading.token);
    assert_eq!(manager.counts().pinned, 1);
    assert_eq!(manager.release(b, TransferResult::Failed), Ok(Released::Ready));
    assert_eq!((manager.counts().pinned, manager.stats().chunks_failed), (0, 0));
    assert_eq!(store(&mut manager, &mut req, &keys([2])), keys([1]));
}

#[test]
fn a_cascade_is_no_access() {
    let mut manager = lru(3);
    let mut req = begin(&mut manager, 1);
    store(&mut manager, &mut req, &keys([1, 2, 3]));
    finish(&mut manager, &mut req);
    for n in [3, 2, 3] {
        let hold = cascade(&mut manager, n);
        let _ = manager.release(hold, TransferResult::Done);
    }
    assert_eq!(eviction_order(&mut manager), keys([3, 2, 1]));
}

#[test]
fn a_promotion_is_pending_until_it_is_released() {
    let mut manager = lru(2);
    let mut req = begin(&mut manager, 1);
    let hold = manager.hold_for_promotion(&mut req, &key(1)).unwrap();
    assert_eq!((hold.kind(), manager.peek(&key(1))), (HoldKind::Promotion, LookupResult::HitPending));
    assert_eq!(manager.hold_for_promotion(&mut req, &key(1)), None, "it is on its way");
    assert!(matches!(manager.prepare_store(&mut req, &keys([1])), Ok(StoreOutcome::NothingToStore)));
    assert_eq!(manager.release(hold, TransferResult::Done), Ok(Released::Ready));
    assert_eq!((manager.peek(&key(1)), manager.stats().chunks_promoted), (LookupResult::Hit, 1));
    assert_eq!(manager.hold_for_promotion(&mut req, &key(1)), None, "it is there");
    let hold = manager.hold_for_promotion(&mut req, &key(2)).unwrap();
    assert_eq!(manager.release(hold, TransferResult::Failed), Ok(Released::Freed));
    assert_eq!((manager.peek(&key(2)), manager.stats().chunks_failed), (LookupResult::Miss, 1));
    assert_eq!((manager.counts().free, manager.counts().evictable), (1, 1));
}

#[test]
fn a_promotion_evicts_one_chunk_or_nothing() {
    let mut manager = lru(2);
    let mut req = begin(&mut manager, 1);
    store(&mut manager, &mut req, &keys([1, 2]));
    let reading = load(&mut manager, &mut req, &keys([1]));
    let hold = manager.hold_for_promotion(&mut req, &key(3)).expect("2 can go");
    let before = seen(&manager, &keys([1, 2, 3, 4]));
    assert_eq!(manager.hold_for_promotion(&mut req, &key(4)), None, "nothing can go");
    assert_eq!(seen(&manager, &keys([1, 2, 3, 4])), before);
    loaded(&mut manager, reading.token);
    let _ = manager.release(hold, TransferResult::Done);
    check_events(&mut manager, &[(EventKind::Stored, &keys([1, 2])), (EventKind::Removed, &keys([2]))]);
}

#[test]
fn loading_a_chunk_that_the_request_had_promoted_is_no_reuse() {
    // With a reuse, 1 would be in T2 and outlive 2.
    let mut manager = with_policy(2, Arc::new(2, GhostHits::T1));
    let mut req = begin(&mut manager, 1);
    let hold = manager.hold_for_promotion(&mut req, &key(1)).unwrap();
    let _ = manager.release(hold, TransferResult::Done);
    let reading = load(&mut manager, &mut req, &keys([1]));
    loaded(&mut manager, reading.token);
    finish(&mut manager, &mut req);
    let mut other = begin(&mut manager, 2);
    store(&mut manager, &mut other, &keys([2]));
    finish(&mut manager, &mut other);
    assert_eq!(eviction_order(&mut manager), keys([1, 2]));
}

#[test]
fn a_hold_of_another_manager_comes_back_and_still_works_at_its_own() {
    let (mut a, mut b) = (lru(2), lru(2));
    let (mut req_a, mut req_b) = (begin(&mut a, 1), begin(&mut b, 1));
    store(&mut a, &mut req_a, &keys([1]));
    store(&mut b, &mut req_b, &keys([1]));
    let (of_a, of_b) = (cascade(&mut a, 1), cascade(&mut b, 1));
    let before = seen(&b, &keys([1]));
    let of_a = b.release(of_a, TransferResult::Done).expect_err("it is not b's");
    assert_eq!(seen(&b, &keys([1])), before);
    assert_eq!(a.release(of_a, TransferResult::Done), Ok(Released::Ready));
    let promoting = a.hold_for_promotion(&mut req_a, &key(2)).unwrap();
    let promoting = b.release(promoting, TransferResult::Failed).expect_err("it is not b's");
    assert_eq!(a.release(promoting, TransferResult::Done), Ok(Released::Ready));
    assert_eq!(b.release(of_b, TransferResult::Done), Ok(Released::Ready));
    assert_eq!((a.counts().pinned, b.counts().pinned), (0, 0));
}

/// Fills the tier to the last slot; none of the slots handed out may be one of `parked`.
#[track_caller]
fn check_parked(manager: &mut CpuManager<Lru>, parked: &[kvo_core::SlotId]) {
    manager.assert_consistent();
    let counts = manager.counts();
    assert_eq!(
        (counts.pending as usize, manager.stats().parked_slots as usize),
        (parked.len(), parked.len())
    );
    let mut req = begin(manager, 99);
    let all: Vec<OffloadKey> = (0..u64::from(counts.free)).map(|n| key(100 + n)).collect();
    let job = offer(manager, &mut req, &all);
    assert!(
        job.slots.iter().all(|slot| !parked.contains(slot)),
        "{parked:?} are in use, got {:?}",
        job.slots
    );
    assert!(matches!(manager.prepare_store(&mut req, &keys([99])), Ok(StoreOutcome::Refused(_))));
    assert_eq!(manager.hold_for_promotion(&mut req, &key(99)), None);
    manager.complete_store(job.token, TransferResult::Failed).unwrap();
}

/// B22: a slot that a tier reads or writes is not handed out before the tier is done with it.
#[test]
fn a_reset_parks_the_slots_that_tiers_use_until_their_holds_are_released() {
    let mut manager = lru(4);
    let mut req = begin(&mut manager, 1);
    store(&mut manager, &mut req, &keys([1, 2]));
    let reading = cascade(&mut manager, 1);
    let writing = manager.hold_for_promotion(&mut req, &key(3)).unwrap();
    manager.reset_cache();
    assert!(keys([1, 2, 3]).iter().all(|key| manager.peek(key) == LookupResult::Miss));
    check_parked(&mut manager, &[reading.slot(), writing.slot()]);
    // The result means nothing any more: the late write does not become readable.
    assert_eq!(manager.release(writing, TransferResult::Done), Ok(Released::Stale));
    assert_eq!(manager.peek(&key(3)), LookupResult::Miss);
    check_parked(&mut manager, &[reading.slot()]);
    assert_eq!(manager.release(reading, TransferResult::Done), Ok(Released::Stale));
    check_parked(&mut manager, &[]);
    assert_eq!(manager.counts().free, 4);
}

#[test]
fn a_slot_that_two_tiers_read_stays_parked_until_both_are_done() {
    let mut manager = lru(2);
    let mut req = begin(&mut manager, 1);
    store(&mut manager, &mut req, &keys([1]));
    let (a, b) = (cascade(&mut manager, 1), cascade(&mut manager, 1));
    let reading = load(&mut manager, &mut req, &keys([1]));
    let slot = a.slot();
    manager.reset_cache();
    assert!(manager.complete_load(reading.token).is_err());
    check_parked(&mut manager, &[slot]);
    assert_eq!(manager.release(b, TransferResult::Failed), Ok(Released::Stale));
    check_parked(&mut manager, &[slot]);
    assert_eq!(manager.release(a, TransferResult::Done), Ok(Released::Stale));
    check_parked(&mut manager, &[]);
}

#[test]
fn a_parked_slot_stays_parked_through_further_resets() {
    let mut manager = lru(3);
    let mut req = begin(&mut manager, 1);
    store(&mut manager, &mut req, &keys([1]));
    let oldest = cascade(&mut manager, 1);
    manager.reset_cache();
    store(&mut manager, &mut req, &keys([1]));
    let older = cascade(&mut manager, 1);
    assert_ne!(oldest.slot(), older.slot());
    manager.reset_cache();
    manager.reset_cache();
    check_parked(&mut manager, &[oldest.slot(), older.slot()]);
    // The same key again, read again: an old hold does not take the new pin.
    store(&mut manager, &mut req, &keys([1]));
    let newest = cascade(&mut manager, 1);
    assert_eq!(manager.release(oldest, TransferResult::Done), Ok(Released::Stale));
    assert_eq!((manager.counts().pinned, manager.stats().parked_slots), (1, 1));
    assert_eq!(manager.release(older, TransferResult::Done), Ok(Released::Stale));
    assert_eq!((manager.counts().pinned, manager.stats().parked_slots), (1, 0));
    assert_eq!(manager.release(newest, TransferResult::Done), Ok(Released::Ready));
}

#[test]
fn a_promotion_that_was_given_up_is_absent_at_once_and_its_slot_is_out_of_use_until_it_is_released() {
    let mut manager = lru(3);
    let mut req = begin(&mut manager, 1);
    let mut late = manager.hold_for_promotion(&mut req, &key(1)).unwrap();
    let slot = late.slot();
    assert!(manager.give_up(&mut late));
    assert_eq!((manager.peek(&key(1)), manager.stats().chunks_failed), (LookupResult::Miss, 1));
    check_parked(&mut manager, &[slot]);
    let before = seen(&manager, &keys([1]));
    assert!(!manager.give_up(&mut late), "it was given up");
    assert_eq!(seen(&manager, &keys([1])), before);

    // The same key may come again meanwhile, to another slot.
    store(&mut manager, &mut req, &keys([1]));
    let reading = load(&mut manager, &mut req, &keys([1]));
    assert_ne!(reading.slots, [slot]);
    assert_eq!(manager.release(late, TransferResult::Done), Ok(Released::Freed));
    assert_eq!(manager.peek(&key(1)), LookupResult::Hit, "the old slot was not this chunk's");
    loaded(&mut manager, reading.token);
    manager.assert_consistent();
    let counts = manager.counts();
    assert_eq!((counts.free, counts.pending, manager.stats().parked_slots), (2, 0, 0));
}

#[test]
fn a_slot_that_was_given_up_stays_parked_through_resets() {
    let mut manager = lru(3);
    let mut req = begin(&mut manager, 1);
    let mut late = manager.hold_for_promotion(&mut req, &key(1)).unwrap();
    let mut open = manager.hold_for_promotion(&mut req, &key(2)).unwrap();
    assert!(manager.give_up(&mut late));
    manager.reset_cache();
    manager.reset_cache();
    assert!(!manager.give_up(&mut open), "the reset has parked it already");
    check_parked(&mut manager, &[late.slot(), open.slot()]);
    assert_eq!(manager.release(late, TransferResult::Failed), Ok(Released::Freed));
    check_parked(&mut manager, &[open.slot()]);
    assert_eq!(manager.release(open, TransferResult::Failed), Ok(Released::Stale));
    check_parked(&mut manager, &[]);
}

#[test]
fn a_cascade_cannot_be_given_up_nor_a_promotion_by_another_manager() {
    let (mut manager, mut other) = (lru(2), lru(2));
    let mut req = begin(&mut manager, 1);
    store(&mut manager, &mut req, &keys([1]));
    let mut reading = cascade(&mut manager, 1);
    let mut writing = manager.hold_for_promotion(&mut req, &key(2)).unwrap();
    let before = seen(&manager, &keys([1, 2]));
    assert!(!manager.give_up(&mut reading));
    assert!(!other.give_up(&mut writing));
    assert_eq!(seen(&manager, &keys([1, 2])), before);
    other.assert_consistent();
    assert_eq!(manager.release(reading, TransferResult::Failed), Ok(Released::Ready));
    assert_eq!(manager.release(writing, TransferResult::Done), Ok(Released::Ready));
}

#[test]
fn a_load_pin_alone_parks_nothing_at_a_reset() {
    let mut manager = lru(1);
    let mut req = begin(&mut manager, 1);
    store(&mut manager, &mut req, &keys([1]));
    let hold = cascade(&mut manager, 1);
    let reading = load(&mut manager, &mut req, &keys([1]));
    let _ = manager.release(hold, TransferResult::Done);
    manager.reset_cache();
    assert!(manager.complete_load(reading.token).is_err());
    check_parked(&mut manager, &[]);
}

#[test]
fn events_come_once_in_order_and_per_job() {
    let mut manager = lru(2);
    let mut req = begin(&mut manager, 1);
    let (a, b) = (offer(&mut manager, &mut req, &keys([2])), offer(&mut manager, &mut req, &keys([1])));
    check_events(&mut manager, &[]);
    stored(&mut manager, b.token);
    stored(&mut manager, a.token);
    let job = offer(&mut manager, &mut req, &keys([4, 3]));
    assert_eq!(job.evicted.len(), 2);
    check_events(
        &mut manager,
        &[
            (EventKind::Stored, &keys([1])),
            (EventKind::Stored, &keys([2])),
            (EventKind::Removed, &job.evicted),
        ],
    );
    manager.complete_store(job.token, TransferResult::Failed).unwrap();
    check_events(&mut manager, &[(EventKind::Discarded, &keys([4, 3]))]);
    check_events(&mut manager, &[]);
}

#[test]
fn a_discarded_key_that_is_there_again_is_not_announced() {
    for again_is_ready in [false, true] {
        let mut manager = lru(4);
        let mut req = begin(&mut manager, 1);
        let job = offer(&mut manager, &mut req, &keys([1, 2, 3]));
        manager.complete_store(job.token, TransferResult::Failed).unwrap();
        let again = offer(&mut manager, &mut req, &keys([2]));
        if again_is_ready {
            stored(&mut manager, again.token);
        }
        let events = events(&mut manager);
        assert_eq!((events[0].kind, &events[0].keys[..]), (EventKind::Discarded, &keys([1, 3])[..]));
        assert_eq!(events.len(), 1 + usize::from(again_is_ready));
    }
}

#[test]
fn an_event_whose_every_key_is_there_again_is_left_out() {
    let mut manager = lru(2);
    let mut req = begin(&mut manager, 1);
    manager.record_promotions(&keys([8]), &keys([9]));
    let job = offer(&mut manager, &mut req, &keys([1]));
    manager.complete_store(job.token, TransferResult::Failed).unwrap();
    let _again = offer(&mut manager, &mut req, &keys([1]));
    check_events(&mut manager, &[(EventKind::Stored, &keys([8])), (EventKind::Discarded, &keys([9]))]);
}

#[test]
fn events_that_were_not_taken_survive_a_reset_and_the_taker_keeps_what_he_had() {
    let mut manager = lru(2);
    let mut req = begin(&mut manager, 1);
    store(&mut manager, &mut req, &keys([1]));
    let mut events = events(&mut manager);
    store(&mut manager, &mut req, &keys([2]));
    manager.reset_cache();
    manager.take_events(&mut events);
    let all: Vec<_> = events.iter().map(|event| event.keys.clone()).collect();
    assert_eq!(all, [keys([1]), keys([2])]);
}

#[test]
fn nothing_is_promoted_for_a_finished_request() {
    let mut manager = lru(2);
    let mut req = begin(&mut manager, 1);
    finish(&mut manager, &mut req);
    let before = seen(&manager, &keys([1]));
    assert_eq!(manager.hold_for_promotion(&mut req, &key(1)), None);
    assert_eq!(seen(&manager, &keys([1])), before);
}
