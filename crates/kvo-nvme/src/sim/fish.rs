//! That the net catches fish: with a defect that is put in on purpose, some seed fails.

use std::{
    cell::Cell,
    panic::{catch_unwind, set_hook, take_hook},
    sync::Once,
};

use super::walk::walk;
use crate::testing::Plant;

/// Seeds among which one must fail.
const SEEDS: u64 = 1000;

thread_local! {
    static EXPECTED: Cell<bool> = const { Cell::new(false) };
}

/// Whether this thread panics on purpose, and nobody is to read of it.
pub(super) fn is_expected() -> bool {
    EXPECTED.get()
}

#[track_caller]
fn check(plant: Plant) {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let hook = take_hook();
        set_hook(Box::new(move |info| {
            if !is_expected() {
                hook(info);
            }
        }));
    });
    EXPECTED.set(true);
    let caught = (1..=SEEDS).find(|&seed| catch_unwind(|| walk(seed, Some(plant))).is_err());
    EXPECTED.set(false);
    println!("{plant:?} is found by seed {caught:?}");
    assert!(caught.is_some(), "{plant:?} is not found in {SEEDS} seeds");
}

#[test]
fn an_ignored_checksum_is_found() {
    check(Plant::ChecksumIgnored);
}

#[test]
fn an_older_generation_that_is_recovered_is_found() {
    check(Plant::OlderRecovered);
}

#[test]
fn a_sync_that_does_nothing_is_found() {
    check(Plant::SyncsSkipped);
}

#[test]
fn a_durable_store_that_takes_over_what_was_not_synced_is_found() {
    check(Plant::OpenedUnsynced);
}

#[test]
fn a_slot_that_is_free_before_its_write_has_ended_is_found() {
    check(Plant::ReportedEarly);
}
