//! What evictions cost when most chunks are pinned, spared or pending.

mod support;

use kvo_core::OffloadKey;
use kvo_policies::{AccessKind, CachePolicy, PolicyKind, RequestRecency};
use support::{Driven, SINGLE_LOOK_KINDS, access, all_kinds, key};

/// Chunks that an eviction compares with its last victim, and leaves.
fn compared(kind: PolicyKind) -> usize {
    if kind == PolicyKind::Ylru { 3 } else { 0 }
}

type Policy = Driven<Box<dyn CachePolicy>>;

/// `capacity` ready chunks, every third of them met twice, of which the oldest `percent` are pinned.
fn filled(kind: PolicyKind, capacity: u32, percent: u32) -> Policy {
    let mut policy = Driven::new(capacity, kind.build(capacity));
    let mut req = RequestRecency::default();
    for n in 0..u64::from(capacity) {
        policy.insert(&mut req, key(n), None);
        policy.ready(key(n));
    }
    let reused: Vec<_> =
        (0..u64::from(capacity)).step_by(3).map(|n| access(key(n), None, AccessKind::Reused)).collect();
    policy.finish(&mut req, &reused);
    (0..u64::from(capacity * percent / 100)).for_each(|n| policy.pin(key(n)));
    policy
}

/// As [`filled`], after an eviction has come by all pins. They are not announced, so it is the first to see them: it
/// looks at each once, and no other does until it ends.
fn filled_and_seen(kind: PolicyKind, capacity: u32, percent: u32) -> Policy {
    let mut policy = filled(kind, capacity, percent);
    let num_pinned = (capacity * percent / 100) as usize;
    check_looks(&mut policy, capacity as usize + 1, &[], num_pinned, false);
    policy
}

#[track_caller]
fn check_looks(policy: &mut Policy, count: usize, spared: &[OffloadKey], unseen: usize, succeeds: bool) {
    let before = policy.table.asked.get();
    let mut victims = Vec::new();
    assert_eq!(policy.evict(count, spared, &mut victims), succeeds);
    let looks = policy.table.asked.get() - before;
    let looks_max = count + spared.len() + unseen;
    assert!(looks <= looks_max, "{looks} looks for {count} victims, {looks_max} at most");
}

/// B59: the visits of an eviction depend on what is asked for, not on what is pinned.
#[test]
fn an_eviction_looks_at_no_chunk_that_it_knows_to_be_pinned() {
    for kind in SINGLE_LOOK_KINDS {
        for capacity in [1_000, 10_000] {
            for percent in [0, 50, 99] {
                let evictable = (capacity - capacity * percent / 100) as usize;
                for count in [1, evictable / 2, evictable] {
                    let mut policy = filled_and_seen(kind, capacity, percent);
                    check_looks(&mut policy, count, &[], compared(kind), true);
                }
                let mut policy = filled_and_seen(kind, capacity, percent);
                check_looks(&mut policy, evictable + 1, &[], 0, false);
                check_looks(&mut policy, capacity as usize + 1, &[], 0, false);
            }
        }
    }
}

#[test]
fn a_pin_is_looked_at_once_until_it_ends() {
    for kind in SINGLE_LOOK_KINDS {
        let mut policy = filled(kind, 300, 99);
        // 297 are pinned, 3 are not.
        check_looks(&mut policy, 4, &[], 297, false);
        let seen = policy.table.asked.get();
        for _ in 0..100 {
            assert!(!policy.evict(4, &[], &mut Vec::new()));
        }
        assert_eq!(policy.table.asked.get() - seen, 100 * 3, "the three that may go");
        // A second pin, and its end, while the first one lasts.
        policy.pin(key(7));
        assert!(!policy.unpin(key(7)));
        check_looks(&mut policy, 4, &[], 0, false);
        assert!(policy.unpin(key(7)));
        check_looks(&mut policy, 4, &[], compared(kind), true);
        check_looks(&mut policy, 1, &[], 0, false);
        (0..7).for_each(|n| assert!(policy.unpin(key(n))));
        check_looks(&mut policy, 7, &[], compared(kind), true);
    }
}

#[test]
fn an_eviction_of_what_is_all_pinned_asks_nothing_once_it_knows() {
    for kind in SINGLE_LOOK_KINDS {
        let mut policy = filled_and_seen(kind, 300, 100);
        let before = policy.table.asked.get();
        assert!(!policy.evict(1, &[], &mut Vec::new()));
        assert!(!policy.evict(11, &[], &mut Vec::new()));
        assert_eq!(policy.table.asked.get(), before);
    }
}

#[test]
fn spared_chunks_cost_one_look_each() {
    let spared: Vec<OffloadKey> = (0..20).map(|n| key(985 + n)).collect();
    for kind in SINGLE_LOOK_KINDS {
        // 990 .. 999 are evictable, and spared.
        check_looks(&mut filled_and_seen(kind, 1_000, 99), 1, &spared, 0, false);
        // 980 .. 999 are evictable, 985 .. 999 spared.
        check_looks(&mut filled_and_seen(kind, 1_000, 98), 5, &spared, compared(kind), true);
        check_looks(&mut filled_and_seen(kind, 1_000, 98), 6, &spared, 0, false);
    }
}

#[test]
fn what_was_spared_in_one_eviction_goes_in_the_next() {
    for kind in all_kinds() {
        let mut policy = filled(kind, 6, 0);
        let all: Vec<OffloadKey> = (0..6).map(key).collect();
        assert!(!policy.evict(1, &all, &mut Vec::new()));
        let mut undisturbed = filled(kind, 6, 0);
        assert_eq!(policy.drain(), undisturbed.drain());
    }
}

/// B29 and B59: whatever is pinned, pending or spared, an eviction gives all that was asked for or changes nothing.
#[test]
fn eviction_is_all_or_nothing_under_every_combination_of_pins() {
    for kind in all_kinds() {
        for mask in 0_u32..1 << 6 {
            for spared in 0_u32..1 << 6 {
                let pinned_or_not = |n: u64| mask >> n & 1 == 1;
                let build = || {
                    let mut policy = filled(kind, 6, 0);
                    (0..6).filter(|n| pinned_or_not(*n)).for_each(|n| policy.pin(key(n)));
                    policy
                };
                let spared_keys: Vec<_> = (0..6).filter(|n| spared >> n & 1 == 1).map(key).collect();
                let left = 6 - (mask | spared).count_ones() as usize;
                let mut policy = build();
                let mut victims = Vec::new();
                assert!(!policy.evict(left + 1, &spared_keys, &mut victims));
                assert!(victims.is_empty());
                assert!(policy.evict(left, &spared_keys, &mut victims));
                // The refusal has changed neither who goes nor in what order.
                let (mut undisturbed, mut expected) = (build(), Vec::new());
                assert!(undisturbed.evict(left, &spared_keys, &mut expected));
                assert_eq!(victims, expected);
                for n in (0..6).filter(|n| pinned_or_not(*n)) {
                    assert!(!victims.contains(&key(n)), "{n} is pinned");
                    policy.unpin(key(n));
                    undisturbed.unpin(key(n));
                }
                assert_eq!(policy.drain(), undisturbed.drain());
            }
        }
    }
}
