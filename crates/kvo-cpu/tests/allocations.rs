//! What the scheduler's path costs in memory, counted by an allocator.
//!
//! Jobs, and the records of a request, are allocated as they come: so many for a call, none for a chunk. Everything
//! else is there from the start, or after as many chunks and requests were there at a time as ever are.

mod support;

#[path = "allocations/calls.rs"]
mod calls;
#[path = "allocations/steady.rs"]
mod steady;

use std::{
    alloc::{GlobalAlloc, Layout, System},
    cell::Cell,
    hint::black_box,
};

use kvo_core::{OffloadKey, OffloadManager, RequestContext, StoreOutcome};
use kvo_policies::PolicyKind;
use support::{all_kinds, begin, key, keys, load, store, with_policy};

thread_local! {
    static ALLOCATIONS: Cell<usize> = const { Cell::new(0) };
}

struct Counting;

// SAFETY: each method hands its arguments on to the system's allocator as they are.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: the caller's promises are those that the system's allocator asks for.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Allocations that this thread makes in `call`.
fn allocations(call: impl FnOnce()) -> usize {
    let before = ALLOCATIONS.get();
    call();
    ALLOCATIONS.get() - before
}

#[test]
fn the_allocator_counts() {
    assert_eq!(allocations(|| drop(black_box(Box::new(1)))), 1);
    assert_eq!(allocations(|| drop(Vec::<u8>::new())), 0);
}

/// B60.
#[track_caller]
fn check_refusals(kind: PolicyKind) {
    let mut manager = with_policy(8, kind.build(8));
    let mut writer = begin(&mut manager, 1);
    let resident = keys([1, 2, 3, 4, 5, 6, 7, 8]);
    store(&mut manager, &mut writer, &resident);
    let _pins = load(&mut manager, &mut writer, &resident);
    let mut req = begin(&mut manager, 2);
    check_refused_for_nothing(kind, &mut manager, &mut req, &[1, 11, 12, 13, 14].map(key));
}

/// An offer is refused, however often it comes, and allocates nothing.
#[track_caller]
fn check_refused_for_nothing(
    kind: PolicyKind,
    manager: &mut impl OffloadManager,
    req: &mut RequestContext,
    wanted: &[OffloadKey],
) {
    let mut refuse = || {
        let outcome = manager.prepare_store(req, wanted);
        assert!(matches!(outcome, Ok(StoreOutcome::Refused(_))));
    };
    refuse();
    assert_eq!(allocations(|| (0..1_000).for_each(|_| refuse())), 0, "{kind}");
}

/// B60: nor does the offer that is refused for the thousandth time.
#[test]
fn a_refused_offer_allocates_nothing() {
    all_kinds().for_each(check_refusals);
}

/// As [`check_refusals`], when there would be room if the offer did not spare it.
#[track_caller]
fn check_spared(kind: PolicyKind) {
    let mut manager = with_policy(8, kind.build(8));
    let mut writer = begin(&mut manager, 1);
    store(&mut manager, &mut writer, &keys([1, 2, 3, 4, 5, 6, 7, 8]));
    let mut req = begin(&mut manager, 2);
    check_refused_for_nothing(kind, &mut manager, &mut req, &[1, 2, 3, 4, 11, 12, 13, 14, 15].map(key));
}

#[test]
fn an_offer_that_is_refused_for_what_it_spares_allocates_nothing() {
    all_kinds().for_each(check_spared);
}

#[track_caller]
fn check_nothing_to_store(kind: PolicyKind) {
    let mut manager = with_policy(4, kind.build(4));
    let mut req = begin(&mut manager, 1);
    let all = keys([1, 2, 3, 4]);
    store(&mut manager, &mut req, &all);
    support::events(&mut manager);
    let mut step = || {
        all.iter().chain(&keys([9])).for_each(|key| {
            black_box(manager.lookup(&mut req, key));
        });
        let outcome = manager.prepare_store(&mut req, &all);
        assert!(matches!(outcome, Ok(StoreOutcome::NothingToStore)));
        manager.on_schedule_end();
        let _ = manager.counts();
    };
    step();
    assert_eq!(allocations(|| (0..1_000).for_each(|_| step())), 0, "{kind}");
}

#[test]
fn lookups_and_offers_with_nothing_to_store_allocate_nothing() {
    all_kinds().for_each(check_nothing_to_store);
}
