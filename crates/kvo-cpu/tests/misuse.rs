//! Misuse is an error value, and nothing has changed: requests, keys and options. Tokens and holds have files of
//! their own.

mod support;

use std::process::Command;

use kvo_core::{
    LoadError, LookupResult, OffloadKey, OffloadManager, Refusal, RequestContext, RequestError, RequestId,
    StoreError, StoreOutcome, TransferResult,
};
use kvo_cpu::{ConfigError, CpuManager, CpuOptions};
use kvo_policies::{CachePolicy, Lru};
use support::{
    Fifo, begin, eviction_order, finish, key, keys, load, loaded, lru, offer, seen, store, stored,
};

const ALL: [u64; 8] = [1, 2, 3, 4, 5, 6, 7, 8];

/// `call` gives this error, and all that can be seen is as before.
#[track_caller]
fn check_unchanged<P: CachePolicy, T>(
    manager: &mut CpuManager<P>,
    call: impl FnOnce(&mut CpuManager<P>) -> T,
) -> T {
    let before = seen(manager, &keys(ALL));
    let result = call(manager);
    assert_eq!(seen(manager, &keys(ALL)), before);
    result
}

#[track_caller]
fn check_load_error(
    manager: &mut CpuManager<Lru>,
    req: &mut RequestContext,
    keys: &[OffloadKey],
    expected: LoadError,
) {
    let result = check_unchanged(manager, |manager| manager.prepare_load(req, keys));
    assert_eq!(result, Err(expected));
}

/// 1 and 2 are ready, 3 and 4 pending, 5 was evicted, the rest was never there.
fn some_of_each() -> (CpuManager<Lru>, RequestContext, kvo_core::JobToken) {
    let mut manager = lru(4);
    let mut req = begin(&mut manager, 1);
    assert!(store(&mut manager, &mut req, &keys([5, 1, 2])).is_empty());
    let pending = offer(&mut manager, &mut req, &keys([3, 4]));
    assert_eq!(pending.evicted, keys([5]));
    (manager, req, pending.token)
}

#[test]
fn a_load_lists_absent_and_pending_keys_in_the_order_asked_for_and_pins_nothing() {
    let (mut manager, mut req, pending) = some_of_each();
    for (asked, absent, pending) in [
        (&keys([6])[..], &keys([6])[..], &[][..]),
        (&keys([5]), &keys([5]), &[]),
        (&keys([4, 3]), &[], &keys([4, 3])),
        (&keys([1, 2, 3]), &[], &keys([3])),
        (&keys([1, 4, 7, 2, 5, 3, 6]), &keys([7, 5, 6]), &keys([4, 3])),
    ] {
        let expected = LoadError::NotReady { absent: absent.to_vec(), pending: pending.to_vec() };
        check_load_error(&mut manager, &mut req, asked, expected);
    }
    stored(&mut manager, pending);
    let job = load(&mut manager, &mut req, &keys([1, 2, 3, 4]));
    assert_eq!(manager.counts().pinned, 4);
    loaded(&mut manager, job.token);
}

#[test]
fn a_load_that_names_a_key_twice_is_an_error_whatever_the_key_is() {
    let (mut manager, mut req, _pending) = some_of_each();
    for (asked, again) in
        [(&keys([1, 1])[..], 1), (&keys([1, 2, 2, 1]), 2), (&keys([3, 3]), 3), (&keys([6, 1, 6]), 6)]
    {
        check_load_error(&mut manager, &mut req, asked, LoadError::Repeated { key: key(again) });
    }
}

#[test]
fn a_failed_load_is_no_access() {
    let mut manager = lru(3);
    let mut old = begin(&mut manager, 1);
    store(&mut manager, &mut old, &keys([1, 2, 3]));
    finish(&mut manager, &mut old);
    let mut req = begin(&mut manager, 2);
    req.set_positions([(key(3), 16)]);
    assert!(manager.prepare_load(&mut req, &keys([3, 9])).is_err());
    finish(&mut manager, &mut req);
    assert_eq!(eviction_order(&mut manager), keys([3, 2, 1]));
}

#[test]
fn a_key_repeated_in_an_offer_takes_one_slot() {
    let mut manager = lru(4);
    let mut req = begin(&mut manager, 1);
    let job = offer(&mut manager, &mut req, &keys([2, 1, 2, 2, 1]));
    assert_eq!(job.keys, keys([2, 1]));
    assert_eq!(job.slots.len(), 2);
    assert_eq!((manager.counts().free, manager.counts().pending), (2, 2));
    stored(&mut manager, job.token);
    assert_eq!((manager.counts().free, manager.counts().evictable), (2, 2));
}

#[test]
fn a_repeated_key_counts_as_one_offer_for_the_threshold() {
    let options = CpuOptions { store_threshold: 2, ..CpuOptions::new(4) };
    let mut manager = CpuManager::new(options, Lru::new(4)).unwrap();
    let mut req = begin(&mut manager, 1);
    let outcome = manager.prepare_store(&mut req, &keys([1, 1, 1])).unwrap();
    assert!(matches!(outcome, StoreOutcome::NothingToStore), "{outcome:?}");
    assert_eq!((manager.stats().keys_below_threshold, manager.stats().tracked_keys), (1, 1));
    assert_eq!(offer(&mut manager, &mut req, &keys([1])).keys, keys([1]));
}

#[test]
fn an_offer_of_pending_or_ready_keys_stores_nothing() {
    let (mut manager, mut req, pending) = some_of_each();
    for offered in [&keys([3, 4])[..], &keys([1, 2]), &keys([1, 3, 2, 4, 1])] {
        let outcome = check_unchanged(&mut manager, |manager| manager.prepare_store(&mut req, offered));
        assert!(matches!(outcome, Ok(StoreOutcome::NothingToStore)), "{outcome:?}");
    }
    stored(&mut manager, pending);
}

#[test]
fn empty_lists_are_taken_everywhere() {
    let (mut manager, mut req, _pending) = some_of_each();
    let outcome = check_unchanged(&mut manager, |manager| manager.prepare_store(&mut req, &[]));
    assert!(matches!(outcome, Ok(StoreOutcome::NothingToStore)));
    check_unchanged(&mut manager, |manager| {
        let job = load(manager, &mut req, &[]);
        assert!(job.slots.is_empty());
        loaded(manager, job.token);
    });
    check_unchanged(&mut manager, |manager| manager.touch(&[]));
    check_unchanged(&mut manager, |manager| manager.record_promotions(&[], &[]));
    check_unchanged(&mut manager, |manager| {
        let mut idle = begin(manager, 7);
        finish(manager, &mut idle);
    });
    support::events(&mut manager);
    assert!(support::events(&mut manager).is_empty(), "none of this is an event");
}

#[test]
fn a_request_finishes_once() {
    let (mut manager, mut req, _pending) = some_of_each();
    finish(&mut manager, &mut req);
    let again = check_unchanged(&mut manager, |manager| manager.on_request_finished(&mut req));
    assert_eq!(again, Err(RequestError::Finished { req: RequestId(1) }));
}

#[test]
fn a_second_finish_commits_nothing_again() {
    let mut manager = lru(2);
    let (mut a, mut b) = (begin(&mut manager, 1), begin(&mut manager, 2));
    store(&mut manager, &mut a, &keys([1]));
    store(&mut manager, &mut b, &keys([2]));
    finish(&mut manager, &mut a);
    finish(&mut manager, &mut b);
    assert!(manager.on_request_finished(&mut a).is_err());
    assert_eq!(eviction_order(&mut manager), keys([1, 2]));
}

#[test]
fn a_finished_request_neither_loads_nor_stores() {
    let (mut manager, mut req, pending) = some_of_each();
    finish(&mut manager, &mut req);
    let finished = RequestError::Finished { req: RequestId(1) };
    assert_eq!(manager.check_running(&req), Err(finished.clone()));
    check_load_error(&mut manager, &mut req, &keys([1]), LoadError::Request(finished.clone()));
    for offered in [&keys([6])[..], &keys([1]), &[]] {
        let outcome = check_unchanged(&mut manager, |manager| manager.prepare_store(&mut req, offered));
        assert_eq!(outcome.unwrap_err(), StoreError::Request(finished.clone()));
    }
    // It stays finished across a reset, and its lookups are still answered.
    stored(&mut manager, pending);
    assert_eq!(manager.lookup(&mut req, &key(3)), LookupResult::Hit);
    manager.reset_cache();
    assert_eq!(manager.on_request_finished(&mut req), Err(finished.clone()));
    assert_eq!(manager.check_running(&req), Err(finished));
}

#[test]
fn a_request_is_announced_once() {
    let (mut manager, mut req, _pending) = some_of_each();
    let known = Err(RequestError::Known { req: RequestId(1) });
    assert_eq!(check_unchanged(&mut manager, |manager| manager.new_request(&mut req)), known);
    // Also when it has met something, is finished, or the manager was reset.
    finish(&mut manager, &mut req);
    assert_eq!(manager.new_request(&mut req), known);
    manager.reset_cache();
    assert_eq!(manager.new_request(&mut req), known);
    // Another manager knows nothing of it.
    assert!(lru(1).new_request(&mut req).is_ok());
}

#[test]
fn one_context_serves_two_managers() {
    let (mut a, mut b) = (lru(2), lru(2));
    let mut req = begin(&mut a, 1);
    b.new_request(&mut req).unwrap();
    store(&mut a, &mut req, &keys([1, 2]));
    finish(&mut b, &mut req);
    assert_eq!(a.check_running(&req), Ok(()));
    assert_eq!(store(&mut a, &mut req, &keys([3])).len(), 1);
    assert!(b.prepare_store(&mut req, &keys([3])).is_err());
    finish(&mut a, &mut req);
}

#[test]
fn jobs_that_are_open_at_the_finish_complete_after_it() {
    for result in [TransferResult::Done, TransferResult::Failed] {
        let mut manager = lru(4);
        let mut req = begin(&mut manager, 1);
        let (early, late) =
            (offer(&mut manager, &mut req, &keys([1])), offer(&mut manager, &mut req, &keys([2])));
        stored(&mut manager, early.token);
        let reading = load(&mut manager, &mut req, &keys([1]));
        finish(&mut manager, &mut req);
        assert_eq!((manager.counts().pending, manager.counts().pinned), (1, 1));
        manager.complete_store(late.token, result).unwrap();
        loaded(&mut manager, reading.token);
        let counts = manager.counts();
        assert_eq!((counts.pending, counts.pinned, manager.stats().open_jobs), (0, 0, 0));
        assert_eq!(counts.evictable, if result == TransferResult::Done { 2 } else { 1 });
    }
}

#[test]
fn a_load_may_end_after_its_request_and_every_other_pin() {
    let mut manager = lru(2);
    let (mut a, mut b) = (begin(&mut manager, 1), begin(&mut manager, 2));
    store(&mut manager, &mut a, &keys([1]));
    let (of_a, of_b) = (load(&mut manager, &mut a, &keys([1])), load(&mut manager, &mut b, &keys([1])));
    assert_eq!(of_a.slots, of_b.slots);
    finish(&mut manager, &mut a);
    drop(a);
    loaded(&mut manager, of_b.token);
    assert_eq!(manager.counts().pinned, 1);
    loaded(&mut manager, of_a.token);
    assert_eq!(manager.counts().pinned, 0);
}

#[test]
fn options_of_zero_are_named_in_the_error() {
    let good = CpuOptions::new(1);
    for (field, options) in [
        ("num_slots", CpuOptions { num_slots: 0, ..good.clone() }),
        ("store_threshold", CpuOptions { store_threshold: 0, ..good.clone() }),
        ("tracker_keys_max", CpuOptions { tracker_keys_max: 0, ..good.clone() }),
    ] {
        let error = CpuManager::new(options, Lru::new(2)).unwrap_err();
        assert_eq!(error, ConfigError::Zero { field });
        assert_eq!(error.to_string(), format!("{field} must be at least 1"));
    }
    let one_of_all = CpuOptions { tracker_keys_max: 1, ..good };
    assert!(CpuManager::new(one_of_all, Lru::new(2)).is_ok());
}

#[test]
fn the_largest_threshold_and_tracker_cost_nothing_beforehand() {
    let options = CpuOptions { store_threshold: u32::MAX, tracker_keys_max: u32::MAX, ..CpuOptions::new(2) };
    let mut manager = CpuManager::new(options, Lru::new(2)).unwrap();
    let mut req = begin(&mut manager, 1);
    for _ in 0..3 {
        assert!(matches!(manager.prepare_store(&mut req, &keys([1])), Ok(StoreOutcome::NothingToStore)));
    }
    assert_eq!(manager.stats().tracked_keys, 1);
}

#[test]
fn a_policy_for_fewer_slots_than_there_are_is_an_error() {
    for (num_slots, policy_slots) in [(1, 0), (3, 2), (CpuOptions::NUM_SLOTS_MAX, 2)] {
        let policy: Box<dyn CachePolicy> = Box::new(Lru::new(policy_slots));
        let error = CpuManager::new(CpuOptions::new(num_slots), policy).unwrap_err();
        assert_eq!(error, ConfigError::PolicyTooSmall { num_slots, policy_slots });
    }
    assert!(CpuManager::new(CpuOptions::new(3), Lru::new(4)).is_ok(), "one for more will do");
}

#[track_caller]
fn check_too_many(num_slots: u32) {
    let num_slots_max = CpuOptions::NUM_SLOTS_MAX;
    // One that takes any number of slots.
    let error = CpuManager::new(CpuOptions::new(num_slots), Fifo::default()).unwrap_err();
    assert_eq!(error, ConfigError::TooManySlots { num_slots, num_slots_max });
}

#[test]
fn more_slots_than_a_manager_can_number_are_an_error() {
    check_too_many(CpuOptions::NUM_SLOTS_MAX + 1);
    check_too_many(u32::MAX);
}

/// Runs itself again in a shell that limits the address space, so that no machine really gives so much memory.
#[test]
fn more_slots_than_memory_has_metadata_for_are_an_error() {
    const CHILD: &str = "KVO_TEST_CHILD";
    if std::env::var_os(CHILD).is_some() {
        check_too_many(CpuOptions::NUM_SLOTS_MAX);
        return;
    }
    let program = std::env::current_exe().unwrap();
    let name = "more_slots_than_memory_has_metadata_for_are_an_error";
    let script = format!("ulimit -v 8000000 && exec {} --exact {name}", program.display());
    let output = match Command::new("sh").args(["-c", &script]).env(CHILD, "1").output() {
        Ok(output) => output,
        Err(error) => {
            println!("SKIPPED: there is no shell: {error}");
            return;
        }
    };
    let printed = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && printed.contains("1 passed"), "{output:?}");
}

#[track_caller]
fn check_refused(
    manager: &mut CpuManager<Lru>,
    req: &mut RequestContext,
    offered: &[OffloadKey],
    expected: Refusal,
) {
    let before = seen(manager, &keys(ALL));
    match manager.prepare_store(req, offered).unwrap() {
        StoreOutcome::Refused(refusal) => assert_eq!(refusal, expected),
        other => panic!("{offered:?} must be refused, got {other:?}"),
    }
    let (mut stats, lookups) = seen(manager, &keys(ALL));
    stats.offers_refused -= 1;
    assert_eq!((stats, lookups), before);
}

#[test]
fn an_offer_larger_than_the_tier_is_refused_empty_or_full() {
    let mut manager = lru(4);
    let mut req = begin(&mut manager, 1);
    check_refused(
        &mut manager,
        &mut req,
        &keys([1, 2, 3, 4, 5]),
        Refusal { needed: 5, free: 4, evictable: 0 },
    );
    store(&mut manager, &mut req, &keys([1, 2, 3]));
    check_refused(
        &mut manager,
        &mut req,
        &keys([4, 5, 6, 7, 8]),
        Refusal { needed: 5, free: 1, evictable: 3 },
    );
    // One that fits only over its own chunks.
    check_refused(
        &mut manager,
        &mut req,
        &keys([1, 2, 3, 4, 5]),
        Refusal { needed: 2, free: 1, evictable: 3 },
    );
    assert_eq!(store(&mut manager, &mut req, &keys([4, 5, 6, 7])).len(), 3);
}

#[test]
fn an_offer_never_evicts_a_key_of_its_own() {
    let mut manager = lru(3);
    let mut req = begin(&mut manager, 1);
    store(&mut manager, &mut req, &keys([1, 2, 3]));
    assert_eq!(store(&mut manager, &mut req, &keys([4, 1, 2])), keys([3]));
}

#[test]
fn an_offer_that_the_threshold_holds_back_evicts_nothing() {
    let options = CpuOptions { store_threshold: 2, ..CpuOptions::new(1) };
    let mut manager = CpuManager::new(options, Lru::new(2)).unwrap();
    let mut req = begin(&mut manager, 1);
    let _ = manager.prepare_store(&mut req, &keys([1])).unwrap();
    store(&mut manager, &mut req, &keys([1]));
    for held_back in [2, 3, 4] {
        let outcome = manager.prepare_store(&mut req, &keys([held_back])).unwrap();
        assert!(matches!(outcome, StoreOutcome::NothingToStore));
        assert_eq!(manager.peek(&key(1)), LookupResult::Hit);
    }
    // The threshold never touches what is ready.
    assert!(matches!(manager.prepare_store(&mut req, &keys([1])), Ok(StoreOutcome::NothingToStore)));
    assert_eq!(manager.stats().keys_below_threshold, 4);
}

#[test]
fn a_lookup_changes_no_recency() {
    let mut manager = lru(3);
    let mut req = begin(&mut manager, 1);
    req.set_positions([(key(1), 16), (key(2), 32), (key(3), 48)]);
    store(&mut manager, &mut req, &keys([1, 2, 3]));
    finish(&mut manager, &mut req);
    let mut curious = begin(&mut manager, 2);
    curious.set_positions([(key(3), 16)]);
    for _ in 0..5 {
        assert_eq!(manager.lookup(&mut curious, &key(3)), LookupResult::Hit);
        assert_eq!(manager.peek(&key(3)), LookupResult::Hit);
    }
    finish(&mut manager, &mut curious);
    assert_eq!(manager.stats().lookup_hits, 5, "a peek is not counted");
    assert_eq!(eviction_order(&mut manager), keys([3, 2, 1]));
}
