//! LRU, worked out by hand.

mod support;

use kvo_core::OffloadKey;
use kvo_policies::{AccessKind, Lru, RequestRecency};
use support::{Driven, access, key, key_of, keys};

const CAPACITY: u32 = 8;

fn lru() -> Driven<Lru> {
    Driven::new(CAPACITY, Lru::new(CAPACITY))
}

#[track_caller]
fn check_order(mut policy: Driven<Lru>, expected: &[OffloadKey]) {
    assert_eq!(policy.drain(), expected, "the order of eviction");
}

/// Inserts ready chunks for one request.
fn insert(policy: &mut Driven<Lru>, req: &mut RequestRecency, chunks: &[(u64, Option<u32>)]) {
    for (n, end_token) in chunks {
        policy.insert(req, key(*n), *end_token);
        policy.ready(key(*n));
    }
}

fn finish(policy: &mut Driven<Lru>, req: &mut RequestRecency, numbers: &[u64]) {
    let keys: Vec<_> = numbers.iter().map(|n| access(key(*n), None, AccessKind::Reused)).collect();
    policy.finish(req, &keys);
}

/// All orders of four things.
fn orders() -> Vec<[u64; 4]> {
    let mut orders = Vec::new();
    for a in 1..=4 {
        for b in (1..=4).filter(|b| *b != a) {
            for c in (1..=4).filter(|c| ![a, b].contains(c)) {
                orders.push([a, b, c, 10 - a - b - c]);
            }
        }
    }
    orders
}

/// B01, with the finish at every point of every order of completion.
#[test]
fn the_tail_goes_before_the_head_in_whatever_order_the_chunks_arrive() {
    assert_eq!(orders().len(), 24);
    for order in orders() {
        for finish_after in 0..=4 {
            for insert_order in [[1, 2, 3, 4], order] {
                let (mut policy, mut req) = (lru(), RequestRecency::default());
                for n in insert_order {
                    policy.insert(&mut req, key(n), Some(u32::try_from(n).unwrap()));
                }
                for (at, n) in order.into_iter().enumerate() {
                    if at == finish_after {
                        finish(&mut policy, &mut req, &[1, 2, 3, 4]);
                    }
                    policy.ready(key(n));
                }
                if finish_after == 4 {
                    finish(&mut policy, &mut req, &[1, 2, 3, 4]);
                }
                check_order(policy, &keys([4, 3, 2, 1]));
            }
        }
    }
}

#[test]
fn pins_that_end_in_any_order_leave_recency_as_it_was() {
    for order in orders() {
        let (mut policy, mut req) = (lru(), RequestRecency::default());
        insert(&mut policy, &mut req, &[(1, Some(1)), (2, Some(2)), (3, Some(3)), (4, Some(4))]);
        finish(&mut policy, &mut req, &[1, 2, 3, 4]);
        for key in &keys([1, 2, 3, 4]) {
            policy.pin(*key);
        }
        for n in order {
            policy.unpin(key(n));
        }
        check_order(policy, &keys([4, 3, 2, 1]));
    }
}

#[test]
fn running_requests_already_lose_their_tails_first() {
    let (mut policy, mut a, mut b) = (lru(), RequestRecency::default(), RequestRecency::default());
    insert(&mut policy, &mut a, &[(2, Some(32)), (1, Some(16))]);
    insert(&mut policy, &mut b, &[(11, Some(16))]);
    insert(&mut policy, &mut a, &[(3, Some(48))]);
    insert(&mut policy, &mut b, &[(12, Some(32))]);
    check_order(policy, &keys([3, 2, 1, 12, 11]));
}

#[test]
fn chunks_of_equal_position_go_by_their_bytes_hash_before_group() {
    let (mut policy, mut req) = (lru(), RequestRecency::default());
    let order = [key_of(1, 0), key_of(1, 256), key_of(2, 0), key_of(2, 1), key_of(256, 0)];
    for index in [3, 0, 4, 1, 2] {
        policy.insert(&mut req, order[index], Some(16));
        policy.ready(order[index]);
    }
    check_order(policy, &order);
}

#[test]
fn each_chunk_without_a_position_has_a_rank_of_its_own() {
    let (mut policy, mut req) = (lru(), RequestRecency::default());
    insert(&mut policy, &mut req, &[(9, None), (8, Some(16)), (7, None), (6, Some(32))]);
    check_order(policy, &keys([9, 6, 8, 7]));
}

#[test]
fn position_zero_is_nearest_the_head_and_the_largest_is_the_tail() {
    let (mut policy, mut req) = (lru(), RequestRecency::default());
    insert(
        &mut policy,
        &mut req,
        &[(1, Some(0)), (2, Some(u32::MAX)), (3, Some(1)), (4, Some(u32::MAX - 1))],
    );
    check_order(policy, &keys([2, 4, 3, 1]));
}

#[test]
fn meeting_a_resident_chunk_raises_it_to_the_request_and_never_lowers_it() {
    let (mut policy, mut old, mut new) = (lru(), RequestRecency::default(), RequestRecency::default());
    insert(&mut policy, &mut old, &[(1, Some(16)), (2, Some(32)), (3, Some(48))]);
    insert(&mut policy, &mut new, &[(11, Some(32))]);
    let meets = |n, end_token| [access(key(n), end_token, AccessKind::Reused)];
    policy.access(&mut new, &meets(3, Some(16)));
    // Its own request meets it again, further from the head: not lowered. Without a position: not raised.
    policy.access(&mut new, &meets(3, Some(64)));
    policy.access(&mut new, &meets(1, None));
    policy.access(&mut old, &meets(11, Some(24)));
    // Nearer the head: raised.
    policy.access(&mut old, &meets(2, Some(0)));
    check_order(policy, &keys([1, 2, 11, 3]));
}

#[test]
fn a_request_draws_its_rank_when_it_is_first_needed() {
    let (mut policy, mut first, mut second) = (lru(), RequestRecency::default(), RequestRecency::default());
    // The first request meets a key that is not there: nothing is drawn for it yet.
    policy.access(&mut first, &[access(key(1), Some(16), AccessKind::Reused)]);
    assert_eq!(first, RequestRecency::default());
    insert(&mut policy, &mut second, &[(2, Some(16))]);
    insert(&mut policy, &mut first, &[(1, Some(16))]);
    check_order(policy, &keys([2, 1]));
}

#[test]
fn touch_makes_the_first_of_its_keys_the_most_recent_and_skips_strangers() {
    let (mut policy, mut req) = (lru(), RequestRecency::default());
    insert(&mut policy, &mut req, &[(1, None), (2, None), (3, None), (4, None)]);
    policy.touch(&keys([2, 99, 1]));
    check_order(policy, &keys([3, 4, 1, 2]));
}

#[test]
fn victims_are_the_oldest_that_may_go_and_a_refusal_changes_nothing() {
    let (mut policy, mut req) = (lru(), RequestRecency::default());
    insert(&mut policy, &mut req, &[(1, None), (2, None), (3, None), (4, None), (5, None)]);
    policy.pin(key(2));
    let mut victims = keys([42]).to_vec();
    assert!(!policy.evict(5, &[], &mut victims), "one is pinned");
    assert!(!policy.evict(4, &keys([1]), &mut victims), "one is spared");
    assert_eq!(victims, keys([42]));
    assert!(policy.evict(2, &keys([1]), &mut victims));
    assert_eq!(victims, keys([42, 3, 4]), "victims are appended");
    policy.unpin(key(2));
    check_order(policy, &keys([1, 2, 5]));
}

#[test]
fn evicting_nothing_succeeds_also_when_all_is_pinned() {
    let (mut policy, mut req) = (lru(), RequestRecency::default());
    insert(&mut policy, &mut req, &[(1, None)]);
    policy.pin(key(1));
    assert!(policy.evict(0, &[], &mut Vec::new()));
    assert_eq!(policy.table.asked.get(), 0, "nothing is asked for");
}
