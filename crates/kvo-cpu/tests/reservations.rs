//! What was found in a step can be loaded in it.

mod support;

use kvo_core::{OffloadManager, StoreOutcome};
use support::{begin, finish, key, keys, load, loaded, lru, offer, store, stored};

/// B67: a hit was counted in one phase of a step and gone in a later one.
#[test]
fn a_reserved_chunk_stays_until_the_step_ends() {
    let mut manager = lru(1);
    let mut first = begin(&mut manager, 1);
    store(&mut manager, &mut first, &[key(1)]);
    finish(&mut manager, &mut first);

    assert_eq!(manager.reserve(&[key(1)]), 1);
    let mut second = begin(&mut manager, 2);
    let refused = manager.prepare_store(&mut second, &[key(2)]).unwrap();
    assert!(matches!(refused, StoreOutcome::Refused(_)), "{refused:?}");
    let mut third = begin(&mut manager, 3);
    let job = load(&mut manager, &mut third, &[key(1)]);
    manager.on_schedule_end();
    assert_eq!(manager.counts().pinned, 1, "the load has a pin of its own");
    loaded(&mut manager, job.token);
    assert_eq!(store(&mut manager, &mut second, &[key(2)]), [key(1)]);
}

#[test]
fn a_reservation_ends_at_the_first_key_that_is_not_ready() {
    let mut manager = lru(4);
    let mut req = begin(&mut manager, 1);
    store(&mut manager, &mut req, &keys([1, 2]));
    let pending = offer(&mut manager, &mut req, &[key(3)]);
    assert_eq!(manager.reserve(&keys([1, 2, 3, 4])), 2);
    assert_eq!(manager.reserve(&[key(3), key(1)]), 0);
    assert_eq!((manager.counts().pinned, manager.counts().pending), (2, 1));
    manager.on_schedule_end();
    assert_eq!(manager.counts().pinned, 0);
    stored(&mut manager, pending.token);
}

/// The request that was given the hits may never come back.
#[test]
fn a_reservation_is_no_access() {
    let mut manager = lru(3);
    let mut req = begin(&mut manager, 1);
    store(&mut manager, &mut req, &[key(1)]);
    finish(&mut manager, &mut req);
    let mut req = begin(&mut manager, 2);
    store(&mut manager, &mut req, &[key(2)]);
    finish(&mut manager, &mut req);
    assert_eq!(manager.reserve(&[key(1)]), 1);
    assert_eq!(manager.reserve(&[key(1)]), 1, "twice is as good as once");
    manager.on_schedule_end();
    let mut req = begin(&mut manager, 3);
    assert_eq!(store(&mut manager, &mut req, &keys([3, 4])), [key(1)], "the oldest still is");
}

#[test]
fn a_reset_ends_reservations() {
    let mut manager = lru(2);
    let mut req = begin(&mut manager, 1);
    store(&mut manager, &mut req, &[key(1)]);
    assert_eq!(manager.reserve(&[key(1)]), 1);
    manager.reset_cache();
    assert_eq!(manager.counts().free, 2);
    store(&mut manager, &mut req, &keys([1, 2]));
    manager.on_schedule_end();
    assert_eq!(manager.counts().evictable, 2);
}
