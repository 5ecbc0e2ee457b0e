//! Policies written outside of kvo, with nothing but the five methods that have no body.

mod support;

use kvo_core::{LookupResult, OffloadKey, OffloadManager, SlotId, StoreOutcome, TransferResult};
use kvo_policies::{CachePolicy, KeyAccess, RequestRecency, Residents};
use support::{
    Fifo, begin, eviction_order, finish, key, keys, load, loaded, offer, store, stored, with_policy,
};

/// As [`Fifo`], but a touch moves a chunk back to the recent end.
#[derive(Debug, Default)]
struct Touched(Fifo);

impl CachePolicy for Touched {
    fn insert(
        &mut self,
        req: &mut RequestRecency,
        slot: SlotId,
        key: &OffloadKey,
        end_token: Option<u32>,
        tier: &dyn Residents,
    ) {
        self.0.insert(req, slot, key, end_token, tier);
    }

    fn remove(&mut self, slot: SlotId) {
        self.0.remove(slot);
    }

    fn evict(&mut self, count: usize, tier: &dyn Residents, victims: &mut Vec<SlotId>) -> bool {
        self.0.evict(count, tier, victims)
    }

    fn touch(&mut self, keys: &[KeyAccess], tier: &dyn Residents) {
        for access in keys.iter().rev() {
            let Some(slot) = access.slot else { continue };
            assert_eq!(tier.key(slot), access.key, "a resident key comes with its slot");
            self.0.remove(slot);
            self.0.0.push_back(slot);
        }
    }

    fn clear(&mut self) {
        self.0.clear();
    }
}

#[test]
fn five_methods_make_a_policy() {
    let mut manager = with_policy(4, Fifo::default());
    let mut req = begin(&mut manager, 1);
    assert!(store(&mut manager, &mut req, &keys([3, 1, 4, 2])).is_empty());
    // Reuse means nothing to it.
    let job = load(&mut manager, &mut req, &keys([3, 4]));
    // What is pinned stays, though the policy was never told of a pin.
    let pressing = offer(&mut manager, &mut req, &keys([5, 6]));
    assert_eq!(pressing.evicted, keys([1, 2]));
    let outcome = manager.prepare_store(&mut req, &keys([7])).unwrap();
    assert!(matches!(outcome, StoreOutcome::Refused(_)), "two are pinned, two pending: {outcome:?}");
    loaded(&mut manager, job.token);
    manager.complete_store(pressing.token, TransferResult::Failed).unwrap();
    finish(&mut manager, &mut req);
    manager.assert_consistent();
    assert_eq!(eviction_order(&mut manager), keys([3, 4]));
}

#[test]
fn it_spares_the_keys_of_the_offer_and_starts_anew_after_a_reset() {
    let mut manager = with_policy(3, Fifo::default());
    let mut req = begin(&mut manager, 1);
    store(&mut manager, &mut req, &keys([1, 2, 3]));
    assert_eq!(store(&mut manager, &mut req, &keys([1, 4])), keys([2]));
    manager.reset_cache();
    assert_eq!(manager.peek(&key(1)), LookupResult::Miss);
    assert!(store(&mut manager, &mut req, &keys([5, 6, 7])).is_empty());
    let hold = manager.hold_for_promotion(&mut req, &key(8)).expect("5 can go");
    assert_eq!(manager.peek(&key(5)), LookupResult::Miss);
    let _ = manager.release(hold, TransferResult::Done);
    manager.assert_consistent();
    assert_eq!(eviction_order(&mut manager), keys([6, 7, 8]));
}

#[test]
fn a_finish_falls_back_to_a_touch_of_all_keys_head_to_tail() {
    let mut manager = with_policy(4, Touched::default());
    let mut req = begin(&mut manager, 1);
    req.set_positions([(key(1), 16), (key(2), 32), (key(3), 48)]);
    for n in [2, 3, 9, 1] {
        let mut other = begin(&mut manager, n);
        let job = offer(&mut manager, if n == 9 { &mut other } else { &mut req }, &[key(n)]);
        stored(&mut manager, job.token);
    }
    finish(&mut manager, &mut req);
    assert_eq!(eviction_order(&mut manager), keys([9, 3, 2, 1]));
}

#[test]
fn boxed_policies_are_told_everything() {
    let mut manager = with_policy(2, Box::new(kvo_policies::Lru::new(2)) as Box<dyn CachePolicy>);
    let mut req = begin(&mut manager, 1);
    req.set_positions([(key(1), 16), (key(2), 32)]);
    store(&mut manager, &mut req, &keys([2, 1]));
    finish(&mut manager, &mut req);
    assert_eq!(eviction_order(&mut manager), keys([2, 1]));
}

/// Evicts whatever it holds, asked or not.
#[derive(Debug, Default)]
struct Careless {
    slots: Vec<SlotId>,
    too_few: bool,
}

impl CachePolicy for Careless {
    fn insert(
        &mut self,
        _: &mut RequestRecency,
        slot: SlotId,
        _: &OffloadKey,
        _: Option<u32>,
        _: &dyn Residents,
    ) {
        self.slots.push(slot);
    }

    fn remove(&mut self, _: SlotId) {}

    fn evict(&mut self, count: usize, _: &dyn Residents, victims: &mut Vec<SlotId>) -> bool {
        victims.extend(self.slots.drain(..count - usize::from(self.too_few)));
        true
    }

    fn touch(&mut self, _: &[KeyAccess], _: &dyn Residents) {}

    fn clear(&mut self) {}
}

#[test]
#[should_panic(expected = "must evict what it may only")]
fn a_policy_that_evicts_a_pinned_chunk_is_caught_before_its_slot_is_used() {
    let mut manager = with_policy(2, Careless::default());
    let mut req = begin(&mut manager, 1);
    store(&mut manager, &mut req, &keys([1, 2]));
    let _pin = load(&mut manager, &mut req, &keys([1]));
    let _ = manager.prepare_store(&mut req, &keys([3]));
}

#[test]
#[should_panic(expected = "as many as it was asked to")]
fn a_policy_that_evicts_too_few_is_caught() {
    let mut manager = with_policy(2, Careless { too_few: true, ..Careless::default() });
    let mut req = begin(&mut manager, 1);
    store(&mut manager, &mut req, &keys([1, 2]));
    let _ = manager.prepare_store(&mut req, &keys([3, 4]));
}
