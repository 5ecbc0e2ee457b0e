//! Policies by name.

mod support;

use std::process::Command;

use kvo_policies::{GhostHits, PolicyKind, RequestRecency, S3FifoOptions};
use support::{Driven, key};

const S3FIFO: S3FifoOptions = S3FifoOptions { small_pct: 10, threshold: 2, leaf_only: false };

/// Every kind, with every option in two values at least.
const KINDS: [PolicyKind; 11] = [
    PolicyKind::Lru,
    PolicyKind::Arc(GhostHits::T1),
    PolicyKind::Arc(GhostHits::T2),
    PolicyKind::Arc(GhostHits::Canonical),
    PolicyKind::Slru { protected_pct: 20 },
    PolicyKind::Slru { protected_pct: 99 },
    PolicyKind::Aslru,
    PolicyKind::Ylru,
    PolicyKind::S3Fifo(S3FifoOptions { small_pct: 30, threshold: 1, leaf_only: true }),
    PolicyKind::S3Fifo(S3FIFO),
    PolicyKind::Fifo,
];

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
    for name in ["", "LRU", "Lru", " lru", "lru ", ":", "arc2", "fifo2", "fifo "] {
        let error = name.parse::<PolicyKind>().unwrap_err().to_string();
        assert!(error.contains(&format!("{name:?}")), "{error}");
        let is_listed = |kind: PolicyKind| error.contains(kind.to_string().split(':').next().unwrap());
        assert!(KINDS.into_iter().all(is_listed), "{error}");
    }
}

/// B64: so is an option that a policy does not take, a value that it cannot be, and one that is given twice.
#[test]
fn what_is_no_option_is_an_error_that_names_it() {
    for (name, wrong) in [
        ("lru:", ""),
        ("lru:ghost-hits=t1", "ghost-hits=t1"),
        ("arc:", ""),
        ("arc:ghost-hits", "ghost-hits"),
        ("arc:ghost-hits=", "ghost-hits"),
        ("arc:ghost-hits=t3", "t3"),
        ("arc:canonical=", "canonical"),
        ("arc:ghost-hits=t1,ghost-hits=t2", "ghost-hits"),
        ("slru:protected=0", "0"),
        ("slru:protected=100", "100"),
        ("slru:protected=+5", "+5"),
        ("slru:protected=256", "256"),
        ("slru:", ""),
        ("aslru:protected=20", "protected=20"),
        ("ylru:ghosts=2", "ghosts=2"),
        ("s3fifo:threshold=4", "4"),
        ("s3fifo:leaf-only=yes", "yes"),
        ("s3fifo:small=10,", ""),
        ("fifo:small=10", "small=10"),
    ] {
        let error = name.parse::<PolicyKind>().unwrap_err().to_string();
        assert!(error.contains(&format!("{name:?}")) && error.contains(wrong), "{error}");
    }
}

/// B64: every accepted one survives ten times its capacity.
#[test]
fn every_kind_takes_ten_times_its_capacity() {
    for kind in KINDS {
        for capacity in [1, 2, 7] {
            let mut policy = Driven::new(capacity, kind.build(capacity));
            let mut victims = Vec::new();
            for n in 0..u64::from(10 * capacity) {
                if n >= u64::from(capacity) {
                    policy.store_miss(&[key(n)]);
                    assert!(policy.evict(1, &[], &mut victims));
                }
                policy.insert(&mut RequestRecency::default(), key(n), None);
                policy.ready(key(n));
            }
            assert_eq!(victims.len(), 9 * capacity as usize);
            assert_eq!(policy.drain().len(), capacity as usize);
        }
    }
}

/// Runs itself again in a shell that limits the address space, so that no machine really gives so much memory.
#[test]
fn a_capacity_that_there_is_no_memory_for_is_an_error() {
    const CHILD: &str = "KVO_TEST_CHILD";
    if std::env::var_os(CHILD).is_some() {
        for kind in KINDS {
            assert!(kind.try_build(1 << 28).is_err(), "{kind}");
            assert!(kind.try_build(8).is_ok(), "{kind}");
        }
        return;
    }
    let program = std::env::current_exe().unwrap();
    let name = "a_capacity_that_there_is_no_memory_for_is_an_error";
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
