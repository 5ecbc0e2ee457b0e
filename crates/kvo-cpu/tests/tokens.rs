//! A job ends once, at its own manager, as what it is, and in its own generation. Everything else hands the token
//! back and changes nothing.

mod support;

use kvo_core::{CompleteErrorReason, JobId, JobKind, JobToken, LookupResult, OffloadManager, TransferResult};
use kvo_cpu::CpuManager;
use kvo_policies::Lru;
use support::{begin, finish, key, keys, load, loaded, lru, offer, seen, store, stored};

const ALL: [u64; 4] = [1, 2, 3, 4];

/// Completes as `kind`, which must fail for this reason; gives the token back.
#[track_caller]
fn check_rejected(
    manager: &mut CpuManager<Lru>,
    token: JobToken,
    kind: JobKind,
    expected: CompleteErrorReason,
) -> JobToken {
    let before = seen(manager, &keys(ALL));
    let (id, of_kind) = (token.id(), token.kind());
    let result = match kind {
        JobKind::Load => manager.complete_load(token),
        JobKind::Store => manager.complete_store(token, TransferResult::Failed),
    };
    let error = result.expect_err("the token does not fit");
    assert_eq!(error.reason, expected);
    assert_eq!((error.token.id(), error.token.kind()), (id, of_kind), "the caller's token comes back");
    assert_eq!(seen(manager, &keys(ALL)), before);
    error.token
}

#[test]
fn a_token_of_another_manager_comes_back_and_still_works_at_its_own() {
    let (mut a, mut b) = (lru(4), lru(4));
    let (mut req_a, mut req_b) = (begin(&mut a, 1), begin(&mut b, 1));
    // Both managers have jobs of the same numbers.
    let (of_a, of_b) = (offer(&mut a, &mut req_a, &keys([1])), offer(&mut b, &mut req_b, &keys([1])));
    assert_eq!(of_a.token.id(), of_b.token.id());
    let token = check_rejected(&mut b, of_a.token, JobKind::Store, CompleteErrorReason::OtherManager);
    let token = check_rejected(&mut b, token, JobKind::Load, CompleteErrorReason::OtherManager);
    stored(&mut a, token);
    stored(&mut b, of_b.token);
    let (of_a, of_b) = (load(&mut a, &mut req_a, &keys([1])), load(&mut b, &mut req_b, &keys([1])));
    let token = check_rejected(&mut b, of_a.token, JobKind::Load, CompleteErrorReason::OtherManager);
    loaded(&mut a, token);
    loaded(&mut b, of_b.token);
}

#[test]
fn a_token_ends_only_a_job_of_its_kind() {
    let mut manager = lru(4);
    let mut req = begin(&mut manager, 1);
    let storing = offer(&mut manager, &mut req, &keys([1, 2]));
    let token = check_rejected(&mut manager, storing.token, JobKind::Load, CompleteErrorReason::WrongKind);
    stored(&mut manager, token);
    let loading = load(&mut manager, &mut req, &keys([2, 1]));
    let token = check_rejected(&mut manager, loading.token, JobKind::Store, CompleteErrorReason::WrongKind);
    loaded(&mut manager, token);
    assert_eq!(manager.counts().evictable, 2);
}

/// B11: a second completion takes no pin that another request holds.
#[test]
fn a_forged_second_completion_leaves_the_pin_of_another_request() {
    let mut manager = lru(2);
    let (mut a, mut b) = (begin(&mut manager, 1), begin(&mut manager, 2));
    store(&mut manager, &mut a, &keys([1]));
    let (of_a, of_b) = (load(&mut manager, &mut a, &keys([1])), load(&mut manager, &mut b, &keys([1])));
    // Tokens cannot be copied; the worst a caller can do is to make one of his own.
    let forged = JobToken::new(of_a.token.owner(), of_a.token.generation(), of_a.token.id(), JobKind::Load);
    loaded(&mut manager, of_a.token);
    let _ = check_rejected(&mut manager, forged, JobKind::Load, CompleteErrorReason::NotOpen);
    // Pressure: the chunk stays while the other request reads it.
    let mut req = begin(&mut manager, 3);
    assert!(store(&mut manager, &mut req, &keys([2])).is_empty());
    assert_eq!(store(&mut manager, &mut req, &keys([3])), keys([2]));
    assert_eq!(manager.peek(&key(1)), LookupResult::Hit);
    loaded(&mut manager, of_b.token);
    assert_eq!(manager.counts().pinned, 0);
}

#[test]
fn a_job_that_never_was_is_not_open() {
    let mut manager = lru(2);
    for kind in [JobKind::Store, JobKind::Load] {
        let token = JobToken::new(manager.id(), 0, JobId(77), kind);
        let _ = check_rejected(&mut manager, token, kind, CompleteErrorReason::NotOpen);
    }
    let mut req = begin(&mut manager, 1);
    let job = offer(&mut manager, &mut req, &keys([1]));
    // The right number, made up to be of the other kind.
    let forged = JobToken::new(manager.id(), 0, job.token.id(), JobKind::Load);
    let _ = check_rejected(&mut manager, forged, JobKind::Load, CompleteErrorReason::NotOpen);
    // A generation that is yet to come.
    let early = JobToken::new(manager.id(), 1, job.token.id(), JobKind::Store);
    let reason = CompleteErrorReason::Reset { token: 1, current: 0 };
    let _ = check_rejected(&mut manager, early, JobKind::Store, reason);
    stored(&mut manager, job.token);
}

/// B23: what began before a reset ends nothing that began after it.
#[test]
fn a_store_from_before_a_reset_does_not_end_the_one_after_it() {
    let mut manager = lru(2);
    let mut req = begin(&mut manager, 1);
    let before = offer(&mut manager, &mut req, &keys([1]));
    manager.reset_cache();
    let after = offer(&mut manager, &mut req, &keys([1]));
    assert_ne!(before.token.id(), after.token.id(), "job numbers are not used again");
    let stale = CompleteErrorReason::Reset { token: 0, current: 1 };
    let token = check_rejected(&mut manager, before.token, JobKind::Store, stale);
    assert_eq!(manager.lookup(&mut req, &key(1)), LookupResult::HitPending);
    stored(&mut manager, after.token);
    assert_eq!(manager.lookup(&mut req, &key(1)), LookupResult::Hit);
    let _ = check_rejected(&mut manager, token, JobKind::Store, stale);
}

/// B23, the load's side.
#[test]
fn a_load_from_before_a_reset_does_not_unpin_the_one_after_it() {
    let mut manager = lru(2);
    let mut req = begin(&mut manager, 1);
    store(&mut manager, &mut req, &keys([1]));
    let before = load(&mut manager, &mut req, &keys([1]));
    manager.reset_cache();
    store(&mut manager, &mut req, &keys([1]));
    let after = load(&mut manager, &mut req, &keys([1]));
    let stale = CompleteErrorReason::Reset { token: 0, current: 1 };
    let _ = check_rejected(&mut manager, before.token, JobKind::Load, stale);
    assert_eq!(manager.counts().pinned, 1);
    loaded(&mut manager, after.token);
    assert_eq!(manager.counts().pinned, 0);
}

/// B23, the access list's side.
#[test]
fn accesses_from_before_a_reset_are_not_committed_after_it() {
    let mut manager = lru(2);
    let (mut old, mut new) = (begin(&mut manager, 1), begin(&mut manager, 2));
    old.set_positions([(key(1), 16)]);
    new.set_positions([(key(1), 16), (key(2), 32)]);
    store(&mut manager, &mut old, &keys([1]));
    manager.reset_cache();
    store(&mut manager, &mut new, &keys([2, 1]));
    finish(&mut manager, &mut new);
    let mut last = begin(&mut manager, 3);
    manager.touch(&keys([2]));
    finish(&mut manager, &mut old);
    finish(&mut manager, &mut last);
    assert_eq!(support::eviction_order(&mut manager), keys([1, 2]));
}

#[test]
fn a_reset_with_everything_in_flight_leaves_an_empty_tier() {
    let mut manager = lru(4);
    let mut req = begin(&mut manager, 1);
    store(&mut manager, &mut req, &keys([1, 2]));
    let reading = load(&mut manager, &mut req, &keys([1]));
    let writing = offer(&mut manager, &mut req, &keys([3]));
    manager.reset_cache();
    manager.assert_consistent();
    assert_eq!((manager.counts().free, manager.stats().open_jobs), (4, 0));
    assert!(keys(ALL).iter().all(|key| manager.peek(key) == LookupResult::Miss));
    assert_eq!(offer(&mut manager, &mut req, &keys([4, 3, 2, 1])).slots.len(), 4);
    assert!(manager.complete_load(reading.token).is_err());
    assert!(manager.complete_store(writing.token, TransferResult::Done).is_err());
}

#[test]
fn a_failed_store_frees_its_slots_and_leaves_its_keys_absent() {
    let mut manager = lru(2);
    let mut req = begin(&mut manager, 1);
    let job = offer(&mut manager, &mut req, &keys([1, 2]));
    manager.complete_store(job.token, TransferResult::Failed).unwrap();
    assert_eq!(manager.counts().free, 2);
    assert_eq!(manager.stats().chunks_failed, 2);
    assert_eq!(manager.peek(&key(1)), LookupResult::Miss);
    // The same request may offer them again.
    assert_eq!(offer(&mut manager, &mut req, &keys([1, 2])).keys, keys([1, 2]));
}

#[test]
fn a_dropped_token_holds_its_chunks_until_the_next_reset() {
    let mut manager = lru(2);
    let mut req = begin(&mut manager, 1);
    store(&mut manager, &mut req, &keys([1]));
    drop(load(&mut manager, &mut req, &keys([1])));
    drop(offer(&mut manager, &mut req, &keys([2])));
    finish(&mut manager, &mut req);
    assert_eq!((manager.counts().pinned, manager.counts().pending), (1, 1));
    manager.reset_cache();
    assert_eq!(manager.counts().free, 2);
}
