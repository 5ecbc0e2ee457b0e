//! A lookup of a whole prefix against lookups of each key.

use kvo_core::{
    BlockHash, GroupIdx, LoadError, LookupResult, OffloadKey, OffloadManager, PrefixLookup, RequestContext,
    RequestId, StoreOutcome, TransferResult,
};
use kvo_cpu::{CpuManager, CpuOptions};
use kvo_policies::Lru;

fn key(n: u64) -> OffloadKey {
    OffloadKey::new(BlockHash::from_u64(n), GroupIdx(0))
}

/// What lookups of each key in turn say of the prefix.
fn one_by_one(manager: &CpuManager<Lru>, keys: &[OffloadKey]) -> PrefixLookup {
    let ready = keys.iter().take_while(|key| manager.peek(key) == LookupResult::Hit).count();
    PrefixLookup { ready, end: keys.get(ready).map(|key| manager.peek(key)) }
}

#[test]
fn a_prefix_is_looked_up_as_its_keys_are() {
    // Keys 0..100 are stored, except that one is pending and one absent, wherever they are.
    for (pending, absent) in [(100, 101), (0, 50), (50, 0), (15, 16), (16, 15), (17, 33), (99, 1), (64, 48)] {
        let mut manager = CpuManager::new(CpuOptions::new(200), Lru::new(200)).unwrap();
        let mut req = RequestContext::new(RequestId(1));
        for n in (0..100).filter(|n| *n != absent) {
            let StoreOutcome::Prepared(job) = manager.prepare_store(&mut req, &[key(n)]).unwrap() else {
                panic!("there is room");
            };
            if n != pending {
                manager.complete_store(job.token, TransferResult::Done).unwrap();
            }
        }
        let before = manager.stats();
        let (mut hits, mut others) = (0, 0);
        for from in [0, 1, 14, 40, 98] {
            for len in [0, 1, 2, 15, 16, 17, 18, 32, 33, 34, 60] {
                let keys: Vec<OffloadKey> = (from..from + len).map(key).collect();
                let expected = one_by_one(&manager, &keys);
                assert_eq!(
                    manager.lookup_prefix(&mut req, &keys),
                    expected,
                    "{pending} {absent} {from} {len}"
                );
                hits += expected.ready as u64;
                others += u64::from(expected.end.is_some());
            }
        }
        let after = manager.stats();
        assert_eq!(after.lookup_hits - before.lookup_hits, hits);
        let counted = |stats: &kvo_cpu::CpuStats| stats.lookup_misses + stats.lookup_pending;
        assert_eq!(counted(&after) - counted(&before), others);
    }
}

#[test]
fn a_key_that_a_prefix_names_twice_is_found_twice() {
    let mut manager = CpuManager::new(CpuOptions::new(4), Lru::new(4)).unwrap();
    let mut req = RequestContext::new(RequestId(1));
    let StoreOutcome::Prepared(job) = manager.prepare_store(&mut req, &[key(1)]).unwrap() else {
        panic!("there is room");
    };
    manager.complete_store(job.token, TransferResult::Done).unwrap();
    assert_eq!(manager.lookup_prefix(&mut req, &[key(1); 40]), PrefixLookup { ready: 40, end: None });
}

#[test]
fn a_load_after_a_lookup_pins_what_is_there_by_then() {
    let mut manager = CpuManager::new(CpuOptions::new(8), Lru::new(8)).unwrap();
    let keys: Vec<OffloadKey> = (0..8).map(key).collect();
    let store = |manager: &mut CpuManager<Lru>, id: u64, keys: &[OffloadKey]| {
        let mut req = RequestContext::new(RequestId(id));
        req.set_positions((16..).step_by(16).zip(keys).map(|(end_token, key)| (*key, end_token)));
        let StoreOutcome::Prepared(job) = manager.prepare_store(&mut req, keys).unwrap() else {
            panic!("there is room");
        };
        manager.complete_store(job.token, TransferResult::Done).unwrap();
        manager.on_request_finished(&mut req).unwrap();
        job.slots
    };
    let slots = store(&mut manager, 1, &keys);

    let mut req = RequestContext::new(RequestId(2));
    assert_eq!(manager.lookup_prefix(&mut req, &keys), PrefixLookup { ready: 8, end: None });
    // The tail goes, and other chunks are in its slots.
    store(&mut manager, 3, &[key(100), key(101)]);
    let absent = vec![key(6), key(7)];
    assert_eq!(
        manager.prepare_load(&mut req, &keys),
        Err(LoadError::NotReady { absent, pending: Vec::new() }),
        "slots that were seen are not taken for the chunks that were in them"
    );
    assert_eq!(manager.counts().pinned, 0);
    let job = manager.prepare_load(&mut req, &keys[..6]).unwrap();
    assert_eq!(job.slots, slots[..6]);
    let other = manager.prepare_load(&mut req, &[key(3), key(101), key(0)]).unwrap();
    assert_eq!([other.slots[0], other.slots[2]], [slots[3], slots[0]]);
    assert_eq!(manager.prepare_load(&mut req, &[key(0), key(0)]), Err(LoadError::Repeated { key: key(0) }));
    manager.complete_load(job.token).unwrap();
    manager.complete_load(other.token).unwrap();
    manager.assert_consistent();
}
