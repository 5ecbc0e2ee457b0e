//! Policies by name.

mod support;

use kvo_policies::{GhostHits, PolicyKind, RequestRecency};
use support::{drain, key};

const KINDS: [PolicyKind; 3] =
    [PolicyKind::Lru, PolicyKind::Arc(GhostHits::T1), PolicyKind::Arc(GhostHits::T2)];

#[test]
fn every_kind_is_found_again_by_its_name() {
    for kind in KINDS {
        assert_eq!(kind.to_string().parse(), Ok(kind));
    }
    assert_eq!("arc:ghost-hits=t1".parse(), Ok(PolicyKind::Arc(GhostHits::T1)));
}

/// B64: a name that is not one is an error at once, and says what there is.
#[test]
fn what_is_no_name_is_an_error_that_lists_the_names() {
    for name in
        ["", "LRU", "Lru", " lru", "lru ", "arc:", "arc:ghost-hits=", "arc:ghost-hits=t3", "arc2", "fifo"]
    {
        let error = name.parse::<PolicyKind>().unwrap_err().to_string();
        assert!(error.contains(&format!("{name:?}")), "{error}");
        assert!(KINDS.iter().all(|kind| error.contains(&kind.to_string())), "{error}");
    }
}

/// B64: every accepted one survives ten times its capacity.
#[test]
fn every_kind_takes_ten_times_its_capacity() {
    for kind in KINDS {
        for capacity in [1, 2, 7] {
            let mut policy = kind.build(capacity);
            let mut victims = Vec::new();
            for n in 0..u64::from(10 * capacity) {
                if n >= u64::from(capacity) {
                    policy.on_store_miss(&[key(n)]);
                    assert!(policy.evict(1, &mut |_| true, &mut victims));
                }
                policy.insert(&mut RequestRecency::default(), key(n), None);
                policy.on_ready(&key(n));
            }
            assert_eq!(victims.len(), 9 * capacity as usize);
            assert_eq!(drain(&mut *policy).len(), capacity as usize);
        }
    }
}
