//! What has gone wrong in systems of this kind, reduced to its least sequence: the scenarios that concern the primary
//! tier alone. Each names its number in the project's list of scenarios.

mod support;

use kvo_core::{
    JobToken, LoadError, LookupResult, OffloadKey, OffloadManager, Refusal, RequestContext, StoreOutcome,
    TransferResult,
};
use kvo_cpu::{CpuManager, CpuOptions};
use kvo_policies::{Arc, CachePolicy, GhostHits, Lru, PolicyKind};
use support::{
    begin, eviction_order, finish, key, keys, load, loaded, lru, offer, seen, store, stored, strict::Strict,
    with_policy,
};

/// All orders of four things.
fn orders() -> Vec<[usize; 4]> {
    let mut orders = Vec::new();
    for code in 0..256 {
        let order = [code & 3, code >> 2 & 3, code >> 4 & 3, code >> 6 & 3];
        if (0..4).all(|n| order.contains(&n)) {
            orders.push(order);
        }
    }
    orders
}

fn with_positions(req: &mut RequestContext, numbers: impl IntoIterator<Item = u64>) {
    req.set_positions(numbers.into_iter().map(|n| (key(n), 16 * u32::try_from(n).unwrap())));
}

/// Finishes the request before, between or after completions in this order.
fn complete_all<P: CachePolicy>(
    manager: &mut CpuManager<P>,
    req: &mut RequestContext,
    tokens: Vec<JobToken>,
    order: [usize; 4],
    finish_before: usize,
    complete: fn(&mut CpuManager<P>, JobToken),
) {
    let mut tokens: Vec<_> = tokens.into_iter().map(Some).collect();
    for (at, index) in order.into_iter().enumerate() {
        if at == finish_before {
            finish(manager, req);
        }
        complete(manager, tokens[index].take().unwrap());
    }
    if finish_before == 4 {
        finish(manager, req);
    }
}

/// B01.
#[test]
fn the_tail_goes_first_in_whatever_order_stores_and_loads_complete() {
    assert_eq!(orders().len(), 24);
    let cases = orders().into_iter().flat_map(|order| [false, true].map(|is_reused| (order, is_reused)));
    for (order, is_reused) in cases {
        for finish_before in 0..=4 {
            let mut manager = lru(4);
            let mut writer = begin(&mut manager, 1);
            with_positions(&mut writer, 1..=4);
            let tokens =
                (1..=4).map(|n| offer(&mut manager, &mut writer, &[key(n)]).token).collect::<Vec<_>>();
            complete_all(&mut manager, &mut writer, tokens, order, finish_before, |m, t| stored(m, t));
            if is_reused {
                let mut reader = begin(&mut manager, 2);
                with_positions(&mut reader, 1..=4);
                let tokens =
                    (1..=4).map(|n| load(&mut manager, &mut reader, &[key(n)]).token).collect::<Vec<_>>();
                complete_all(&mut manager, &mut reader, tokens, order, 4 - finish_before, |m, t| {
                    loaded(m, t);
                });
            }
            let what = format!("{order:?}, finished before {finish_before}, reused: {is_reused}");
            assert_eq!(eviction_order(&mut manager), keys([4, 3, 2, 1]), "{what}");
        }
    }
}

/// B53: keys that agree in all but one byte, or in all but the group, are different chunks.
#[test]
fn keys_that_differ_in_one_byte_or_the_group_are_different_chunks() {
    let mut manager = lru(64);
    let mut req = begin(&mut manager, 1);
    let first = key(1);
    let others = (0..36).map(|at| {
        let mut bytes = first.to_bytes();
        bytes[at] ^= 1;
        OffloadKey::from_bytes(bytes)
    });
    let all: Vec<OffloadKey> = std::iter::once(first).chain(others).collect();
    let mut slots = Vec::new();
    for key in &all {
        assert_eq!(manager.lookup(&mut req, key), LookupResult::Miss, "{key:?}");
        let job = offer(&mut manager, &mut req, &[*key]);
        slots.extend(job.slots);
        stored(&mut manager, job.token);
    }
    let job = load(&mut manager, &mut req, &all);
    assert_eq!(job.slots, slots, "each has the slot that it was stored into");
    loaded(&mut manager, job.token);
    slots.sort_unstable();
    slots.dedup();
    assert_eq!(slots.len(), all.len());
}

/// B01, while the request still runs and its batches come in any order.
#[test]
fn the_tail_of_a_running_request_goes_first_in_whatever_order_its_keys_are_offered() {
    for order in orders() {
        let mut manager = lru(4);
        let mut req = begin(&mut manager, 1);
        with_positions(&mut req, 1..=4);
        for index in order {
            store(&mut manager, &mut req, &[key(1 + index as u64)]);
        }
        assert_eq!(eviction_order(&mut manager), keys([4, 3, 2, 1]), "{order:?}");
    }
}

/// B02: a and b are 1 and 2. A decode of ten steps, a cascade read, and two loads in one request.
#[test]
fn one_request_is_one_access_for_arc_however_long_it_decodes() {
    for (finishes, expected) in [(0, [2, 1, 3]), (1, [2, 3, 1])] {
        let mut manager = with_policy(4, Arc::new(4, GhostHits::T1));
        let mut writer = begin(&mut manager, 1);
        with_positions(&mut writer, 1..=2);
        store(&mut manager, &mut writer, &keys([1, 2]));
        for _ in 0..10 {
            let outcome = manager.prepare_store(&mut writer, &keys([1, 2])).unwrap();
            assert!(matches!(outcome, StoreOutcome::NothingToStore));
            let hold = manager.hold_for_cascade(&key(1)).unwrap();
            let _ = manager.release(hold, TransferResult::Done);
        }
        finish(&mut manager, &mut writer);
        let mut reader = begin(&mut manager, 2);
        with_positions(&mut reader, 1..=2);
        for _ in 0..2 {
            let job = load(&mut manager, &mut reader, &keys([1]));
            loaded(&mut manager, job.token);
        }
        // One more chunk, met once: it goes before whatever is in T2 and after the older ones in T1.
        let mut other = begin(&mut manager, 3);
        store(&mut manager, &mut other, &keys([3]));
        finish(&mut manager, &mut other);
        (0..finishes).for_each(|_| finish(&mut manager, &mut reader));
        assert_eq!(eviction_order(&mut manager), keys(expected), "{finishes} finishes");
    }
}

/// B08.
#[test]
fn a_lookup_leaves_no_pin() {
    let mut manager = lru(8);
    let all = keys([1, 2, 3, 4, 5, 6, 7, 8]);
    let mut writer = begin(&mut manager, 1);
    store(&mut manager, &mut writer, &all);
    for loaded_keys in [&all[4..], &all[..0]] {
        let mut req = begin(&mut manager, 2);
        assert!(all.iter().all(|key| manager.lookup(&mut req, key) == LookupResult::Hit));
        assert_eq!(manager.counts().evictable, 8);
        let job = load(&mut manager, &mut req, loaded_keys);
        assert_eq!(manager.counts().pinned as usize, loaded_keys.len());
        loaded(&mut manager, job.token);
        finish(&mut manager, &mut req);
        assert_eq!(manager.counts().evictable, 8);
    }
}

/// B29.
#[test]
fn a_refused_offer_has_no_side_effects_and_is_taken_once_there_is_room() {
    let mut manager = lru(3);
    let mut req = begin(&mut manager, 1);
    store(&mut manager, &mut req, &keys([1, 2, 3]));
    let pin = load(&mut manager, &mut req, &keys([2]));
    let mut other = begin(&mut manager, 2);
    let refused = |manager: &mut CpuManager<Lru>, other: &mut RequestContext, offered: &[OffloadKey]| {
        let before = seen(manager, &keys([1, 2, 3, 4, 5, 6, 7, 8]));
        let outcome = manager.prepare_store(other, offered).unwrap();
        assert!(matches!(outcome, StoreOutcome::Refused(_)), "{outcome:?}");
        let mut after = seen(manager, &keys([1, 2, 3, 4, 5, 6, 7, 8]));
        after.0.offers_refused -= 1;
        assert_eq!(after, before);
    };
    refused(&mut manager, &mut other, &keys([4, 5, 6, 7]));
    refused(&mut manager, &mut other, &keys([4, 5, 6]));
    // Two fit beside the pinned one.
    let job = offer(&mut manager, &mut other, &keys([4, 5]));
    assert_eq!(job.evicted, keys([1, 3]));
    stored(&mut manager, job.token);
    let pins = load(&mut manager, &mut other, &keys([4, 5]));
    refused(&mut manager, &mut other, &keys([6]));
    loaded(&mut manager, pins.token);
    loaded(&mut manager, pin.token);
    assert_eq!(store(&mut manager, &mut other, &keys([6])).len(), 1);
}

/// B29: the order of eviction is what it would be without the refusal.
#[test]
fn a_refused_offer_leaves_recency_as_it_was() {
    for kind in [PolicyKind::Lru, PolicyKind::Arc(GhostHits::T1), PolicyKind::Arc(GhostHits::T2)] {
        let orders: Vec<_> = [false, true]
            .into_iter()
            .map(|refuse| {
                let mut manager = with_policy(5, kind.build(5));
                let mut req = begin(&mut manager, 1);
                with_positions(&mut req, 1..=5);
                store(&mut manager, &mut req, &keys([1, 2, 3, 4, 5]));
                finish(&mut manager, &mut req);
                let mut reader = begin(&mut manager, 2);
                with_positions(&mut reader, 1..=5);
                let job = load(&mut manager, &mut reader, &keys([4]));
                let mut greedy = begin(&mut manager, 3);
                if refuse {
                    let outcome = manager.prepare_store(&mut greedy, &keys([11, 12, 13, 14, 15])).unwrap();
                    assert!(matches!(outcome, StoreOutcome::Refused(_)));
                }
                loaded(&mut manager, job.token);
                finish(&mut manager, &mut reader);
                finish(&mut manager, &mut greedy);
                eviction_order(&mut manager)
            })
            .collect();
        assert_eq!(orders[0], orders[1], "{kind}");
        assert_eq!(orders[0].len(), 5);
    }
}

/// B59, for the manager.
#[test]
fn an_eviction_asks_about_as_many_chunks_as_it_needs_whatever_is_pinned() {
    for kind in [PolicyKind::Lru, PolicyKind::Arc(GhostHits::T1)] {
        for percent in [0, 50, 99] {
            let capacity = 4_000;
            let options = CpuOptions::new(capacity);
            let mut manager = CpuManager::new(options, Strict::new(kind.build(capacity))).unwrap();
            let mut req = begin(&mut manager, 1);
            let all: Vec<_> = (0..u64::from(capacity)).map(key).collect();
            store(&mut manager, &mut req, &all);
            finish(&mut manager, &mut req);
            // The tail is the oldest.
            let num_pinned = capacity as usize * percent / 100;
            let mut reader = begin(&mut manager, 2);
            let pins = load(&mut manager, &mut reader, &all[all.len() - num_pinned..]);
            let evictable = all.len() - num_pinned;
            for count in [1, evictable / 4, evictable / 2] {
                let Strict { asked: before, asked_of_held: held_before, .. } = *manager.policy();
                let new: Vec<_> = (0..count as u64).map(|n| key(1_000_000 + n)).collect();
                let mut writer = begin(&mut manager, 3);
                let job = offer(&mut manager, &mut writer, &new);
                assert_eq!(job.evicted.len(), count);
                // Pins are not announced: each is looked at once, all together, and then no more.
                let Strict { asked, asked_of_held, .. } = *manager.policy();
                assert!(asked_of_held <= num_pinned, "{kind}: {asked_of_held} looks at {num_pinned} pinned");
                let looks = asked - before - (asked_of_held - held_before);
                assert!(looks <= count, "{kind}: {looks} looks for {count} with {percent} % pinned");
                manager.complete_store(job.token, TransferResult::Failed).unwrap();
                store(&mut manager, &mut reader, &job.evicted);
            }
            // One that cannot fit is not even tried.
            let before = manager.policy().asked;
            let new: Vec<_> = (0..=evictable as u64).map(|n| key(2_000_000 + n)).collect();
            assert!(matches!(manager.prepare_store(&mut reader, &new), Ok(StoreOutcome::Refused(_))));
            assert_eq!(manager.policy().asked, before);
            loaded(&mut manager, pins.token);
        }
    }
}

/// B60.
#[test]
fn a_thousand_refusals_leave_nothing_behind_and_the_first_offer_with_room_is_taken() {
    for (store_threshold, tracked) in [(1, 0), (2, 4)] {
        let options = CpuOptions { store_threshold, ..CpuOptions::new(8) };
        let mut manager = CpuManager::new(options, Strict::new(Arc::new(8, GhostHits::T1))).unwrap();
        let mut writer = begin(&mut manager, 1);
        let resident = keys([1, 2, 3, 4, 5, 6, 7, 8]);
        // As often as the threshold wants.
        (1..store_threshold).for_each(|_| drop(manager.prepare_store(&mut writer, &resident)));
        store(&mut manager, &mut writer, &resident);
        let pins = load(&mut manager, &mut writer, &resident);
        let mut req = begin(&mut manager, 2);
        let wanted = keys([11, 12, 13, 14]);
        let _held_back = manager.prepare_store(&mut req, &wanted).unwrap();
        let tracked_before = manager.stats().tracked_keys;
        let refused_before = manager.stats().offers_refused;
        for _ in 0..1_000 {
            let expected = Refusal { needed: 4, free: 0, evictable: 0 };
            match manager.prepare_store(&mut req, &wanted).unwrap() {
                StoreOutcome::Refused(refusal) => assert_eq!(refusal, expected),
                other => panic!("all is pinned, got {other:?}"),
            }
        }
        let stats = manager.stats();
        assert_eq!(stats.offers_refused - refused_before, 1_000);
        assert_eq!((stats.tracked_keys, stats.open_jobs), (tracked_before, 1));
        assert_eq!(tracked_before, if tracked == 0 { 0 } else { 8 + tracked });
        assert_eq!(manager.policy().asked, 0, "no chunk was looked at");
        assert_eq!(manager.policy().missed, 8 + 4, "ghosts teach once a request");
        loaded(&mut manager, pins.token);
        assert_eq!(store(&mut manager, &mut req, &wanted).len(), 4);
        finish(&mut manager, &mut req);
        assert_eq!(manager.policy().num_committed(), 4, "each key is recorded once");
    }
}

#[track_caller]
fn check_gone(
    manager: &mut CpuManager<Lru>,
    req: &mut RequestContext,
    keys: &[OffloadKey],
    gone: &[OffloadKey],
) {
    let error = manager.prepare_load(req, keys).expect_err("something is gone");
    assert_eq!(error, LoadError::NotReady { absent: gone.to_vec(), pending: vec![] });
    assert_eq!(manager.counts().pinned, 0);
    manager.assert_consistent();
}

/// B67.
#[test]
fn chunks_that_go_between_lookup_and_load_are_named_and_the_prefix_before_them_still_loads() {
    let mut manager = lru(1);
    let (mut a, mut b) = (begin(&mut manager, 1), begin(&mut manager, 2));
    store(&mut manager, &mut a, &keys([1]));
    assert_eq!(manager.lookup(&mut a, &key(1)), LookupResult::Hit);
    assert_eq!(store(&mut manager, &mut b, &keys([2])), keys([1]));
    check_gone(&mut manager, &mut a, &keys([1]), &keys([1]));

    let mut manager = lru(100);
    let all: Vec<_> = (0..100).map(key).collect();
    let mut writer = begin(&mut manager, 1);
    writer.set_positions((0..100).map(|n| (key(n), 16 * u32::try_from(n).unwrap())));
    store(&mut manager, &mut writer, &all);
    finish(&mut manager, &mut writer);
    let mut reader = begin(&mut manager, 2);
    assert!(all.iter().all(|key| manager.lookup(&mut reader, key) == LookupResult::Hit));
    let mut other = begin(&mut manager, 3);
    let mut gone = store(&mut manager, &mut other, &(200..217).map(key).collect::<Vec<_>>());
    // By a promotion too.
    let hold = manager.hold_for_promotion(&mut other, &key(300)).unwrap();
    gone.push(key(82));
    gone.reverse();
    let _ = manager.release(hold, TransferResult::Done);
    assert_eq!(gone, (82..100).map(key).collect::<Vec<_>>(), "the tail, head to tail");
    check_gone(&mut manager, &mut reader, &all, &gone);
    let job = load(&mut manager, &mut reader, &all[..82]);
    loaded(&mut manager, job.token);
    // And by a reset.
    manager.reset_cache();
    check_gone(&mut manager, &mut reader, &all[..2], &all[..2]);
}

/// The keys of one call are to be without repeats. If they are not, nothing is lost: a key has one slot.
#[test]
fn a_key_that_is_given_two_positions_is_stored_once() {
    for kind in ["lru", "arc", "slru", "aslru", "s3fifo", "fifo"] {
        let policy = kind.parse::<PolicyKind>().unwrap().build(8);
        let mut manager = CpuManager::new(CpuOptions::new(8), policy).unwrap();
        for turn in 0..20 {
            let [a, b, c] = [0, 1, 2].map(|n| key(3 * turn + n));
            let mut req = begin(&mut manager, turn);
            req.set_positions([(a, 16), (b, 32), (b, 48), (c, 64), (a, 80)]);
            let job = offer(&mut manager, &mut req, &[a, b, b, c, a]);
            assert_eq!((job.keys, job.slots.len()), (vec![a, b, c], 3));
            stored(&mut manager, job.token);
            manager.assert_consistent();
            let load = load(&mut manager, &mut req, &[a, b, c]);
            loaded(&mut manager, load.token);
            finish(&mut manager, &mut req);
            manager.assert_consistent();
            assert_eq!(manager.counts().pinned, 0);
        }
        let mut req = begin(&mut manager, 99);
        let others: Vec<OffloadKey> = (1_000..1_008).map(key).collect();
        assert_eq!(offer(&mut manager, &mut req, &others).slots.len(), 8, "{kind}: all can go again");
    }
}

/// A scheduler may learn later where a chunk ends. Its chunks are still met, and committed, once.
#[test]
fn a_request_whose_positions_change_commits_each_key_once() {
    let mut manager = CpuManager::new(CpuOptions::new(4), Strict::new(Lru::new(4))).unwrap();
    let mut req = begin(&mut manager, 1);
    req.set_positions([(key(1), 16), (key(2), 32), (key(3), 48)]);
    store(&mut manager, &mut req, &keys([1, 2, 3]));
    req.set_positions([(key(2), 64)]);
    // Neither the first of the request nor the one after the last that was met.
    let load = load(&mut manager, &mut req, &keys([2]));
    loaded(&mut manager, load.token);
    finish(&mut manager, &mut req);
    let committed: Vec<_> = manager.policy().committed.iter().map(|access| access.key).collect();
    assert_eq!(committed, keys([1, 3, 2]));
}
