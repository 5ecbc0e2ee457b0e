//! What evictions cost when most chunks are pinned, spared or pending.

mod support;

use kvo_core::OffloadKey;
use kvo_policies::{AccessKind, CachePolicy, GhostHits, PolicyKind, RequestRecency};
use support::{access, key};

const KINDS: [PolicyKind; 3] =
    [PolicyKind::Lru, PolicyKind::Arc(GhostHits::T1), PolicyKind::Arc(GhostHits::T2)];

/// `capacity` ready chunks, every third of them met twice, of which the oldest `percent` are pinned.
fn filled(kind: PolicyKind, capacity: u32, percent: u32) -> Box<dyn CachePolicy> {
    let mut policy = kind.build(capacity);
    let mut req = RequestRecency::default();
    for n in 0..u64::from(capacity) {
        policy.insert(&mut req, key(n), None);
        policy.on_ready(&key(n));
    }
    let reused: Vec<_> =
        (0..u64::from(capacity)).step_by(3).map(|n| access(key(n), None, AccessKind::Reused)).collect();
    policy.on_request_finished(&reused);
    (0..u64::from(capacity * percent / 100)).for_each(|n| policy.on_pin(&key(n)));
    policy
}

#[track_caller]
fn check_calls(policy: &mut dyn CachePolicy, count: usize, spared: &[OffloadKey], succeeds: bool) {
    let mut calls = 0;
    let mut victims = Vec::new();
    let mut may_evict = |key: &OffloadKey| {
        calls += 1;
        !spared.contains(key)
    };
    assert_eq!(policy.evict(count, &mut may_evict, &mut victims), succeeds);
    assert_eq!(victims.len(), if succeeds { count } else { 0 });
    assert!(calls <= count + spared.len(), "{calls} calls for {count} victims");
}

/// B59: the visits of an eviction depend on what is asked for, not on what is pinned.
#[test]
fn an_eviction_looks_at_no_pinned_chunk() {
    for kind in KINDS {
        for capacity in [1_000, 10_000] {
            for percent in [0, 50, 99] {
                let evictable = (capacity - capacity * percent / 100) as usize;
                for count in [1, evictable / 2, evictable] {
                    let mut policy = filled(kind, capacity, percent);
                    check_calls(&mut *policy, count, &[], true);
                }
                let mut policy = filled(kind, capacity, percent);
                check_calls(&mut *policy, evictable + 1, &[], false);
                check_calls(&mut *policy, capacity as usize + 1, &[], false);
            }
        }
    }
}

#[test]
fn an_eviction_that_is_hopeless_by_count_asks_nothing() {
    for kind in KINDS {
        for (percent, count) in [(100, 1), (99, 11)] {
            let mut policy = filled(kind, 1_000, percent);
            let mut ask = |key: &OffloadKey| -> bool { panic!("{key} is asked about") };
            assert!(!policy.evict(count, &mut ask, &mut Vec::new()));
        }
    }
}

#[test]
fn spared_chunks_cost_one_look_each() {
    let spared: Vec<OffloadKey> = (0..20).map(|n| key(985 + n)).collect();
    for kind in KINDS {
        // 990 .. 999 are evictable, and spared.
        check_calls(&mut *filled(kind, 1_000, 99), 1, &spared, false);
        // 980 .. 999 are evictable, 985 .. 999 spared.
        check_calls(&mut *filled(kind, 1_000, 98), 5, &spared, true);
        check_calls(&mut *filled(kind, 1_000, 98), 6, &spared, false);
    }
}

/// B29 and B59: whatever is pinned, pending or spared, an eviction gives all that was asked for or changes nothing.
#[test]
fn eviction_is_all_or_nothing_under_every_combination_of_pins() {
    for kind in KINDS {
        for mask in 0_u32..1 << 6 {
            for spared in 0_u32..1 << 6 {
                let pinned_or_not = |n: u64| mask >> n & 1 == 1;
                let build = || {
                    let mut policy = filled(kind, 6, 0);
                    (0..6).filter(|n| pinned_or_not(*n)).for_each(|n| policy.on_pin(&key(n)));
                    policy
                };
                let is_spared = |asked: &OffloadKey| (0..6).any(|n| *asked == key(n) && spared >> n & 1 == 1);
                let left = 6 - (mask | spared).count_ones() as usize;
                let mut policy = build();
                let mut victims = Vec::new();
                let mut may_evict = |asked: &OffloadKey| !is_spared(asked);
                assert!(!policy.evict(left + 1, &mut may_evict, &mut victims));
                assert!(victims.is_empty());
                assert!(policy.evict(left, &mut may_evict, &mut victims));
                // The refusal has changed neither who goes nor in what order.
                let (mut undisturbed, mut expected) = (build(), Vec::new());
                assert!(undisturbed.evict(left, &mut may_evict, &mut expected));
                assert_eq!(victims, expected);
                for n in (0..6).filter(|n| pinned_or_not(*n)) {
                    assert!(!victims.contains(&key(n)), "{n} is pinned");
                    policy.on_unpin(&key(n));
                    undisturbed.on_unpin(&key(n));
                }
                assert_eq!(support::drain(&mut *policy), support::drain(&mut *undisturbed));
            }
        }
    }
}
