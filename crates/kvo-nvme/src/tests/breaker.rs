//! Errors that close the store for a while, and how it comes back.

use std::{io, time::Duration};

use kvo_core::{RejectReason, SlotId, TierCompletion, TierDirection};

use super::{CHUNK_BYTES, Rig, Trouble, keys};
use crate::{
    BreakerOptions, NvmeOptions, TierState,
    engine::{Event, Fault, OpDone},
};

const PAUSE: Duration = Duration::from_secs(10);

fn rig(capacity: u32) -> Rig {
    Rig::with_options(NvmeOptions {
        breaker: BreakerOptions { errors: 3, window: Duration::from_secs(10), pause: PAUSE },
        ..NvmeOptions::new("unused", capacity, CHUNK_BYTES as u64)
    })
}

#[track_caller]
fn check_rejected(rig: &mut Rig, direction: TierDirection, n: u64, reason: RejectReason) {
    assert_eq!(rig.try_submit(9, direction, &[n]).unwrap_err().reason, reason);
}

/// Reads chunks with errors of the device until the store is closed.
fn closed() -> Rig {
    let mut rig = rig(8);
    rig.put(1, &[1, 2, 3, 4, 5, 6]);
    let job = rig.read(1, &[1, 2, 3]);
    rig.run_all(&[(1, Trouble::Eio), (2, Trouble::Eio), (3, Trouble::Eio)]);
    assert_eq!(rig.poll(), [TierCompletion::except(job, keys([1, 2, 3]))]);
    assert_eq!(rig.store.state(), TierState::Open);
    rig
}

/// B37: a tier that fails says of nothing that it is there.
#[test]
fn after_so_many_errors_every_lookup_is_a_miss_and_every_job_is_handed_back() {
    let mut rig = closed();
    rig.check_resident(0..8, &[]);
    check_rejected(&mut rig, TierDirection::Read, 4, RejectReason::Unavailable);
    check_rejected(&mut rig, TierDirection::Write, 7, RejectReason::Unavailable);
    assert_eq!(rig.store.counts().evictable, 3, "what is there is kept");
    assert_eq!(rig.store.stats().breaker_opened, 1);
}

#[test]
fn after_the_pause_one_chunk_tries_and_the_others_wait_for_it() {
    let mut rig = closed();
    rig.clock.advance(PAUSE);
    rig.check_resident(0..8, &[4, 5, 6]);
    let job = rig.read(2, &[4, 5]);
    assert_eq!(rig.store.state(), TierState::HalfOpen);
    check_rejected(&mut rig, TierDirection::Read, 6, RejectReason::Unavailable);
    rig.check_resident(0..8, &[]);
    rig.run_all(&[]);
    assert_eq!(rig.poll(), [TierCompletion::except(job, keys([5]))], "only the first of them tries");
    assert_eq!(rig.store.state(), TierState::Up);
    rig.get(3, &[4, 5, 6], &[]);
    assert_eq!(rig.store.stats().probes, 1);
}

/// B31: nor does what is left out of a job that was taken.
#[test]
fn what_is_not_tried_evicts_nothing() {
    let mut rig = closed();
    rig.clock.advance(PAUSE);
    // Two slots are free, three are quarantined.
    let job = rig.write(2, &[7, 8, 9, 10]);
    rig.run_all(&[]);
    assert_eq!(rig.poll(), [TierCompletion::except(job, keys([8, 9, 10]))]);
    assert_eq!(rig.store.stats().chunks_evicted, 0);
    rig.check_resident(0..11, &[4, 5, 6, 7]);
}

/// Fills a store but for one slot, hinders it, and has a write handed back; then all of it can go as it could before.
#[track_caller]
fn check_handed_back(hinder: impl FnOnce(&mut Rig), ns: &[u64], reason: RejectReason) {
    let mut rig = Rig::with_options(NvmeOptions {
        queue_chunks_max: 2,
        record_events: true,
        ..NvmeOptions::new("unused", 4, CHUNK_BYTES as u64)
    });
    (1..=3).for_each(|n| rig.put(n, &[n]));
    rig.events();
    hinder(&mut rig);
    assert_eq!(rig.try_submit(9, TierDirection::Write, ns).unwrap_err().reason, reason);
    assert_eq!((rig.events(), rig.store.stats().chunks_evicted), (vec![], 0), "{reason}");

    rig.run_all(&[]);
    rig.poll();
    rig.clock.advance(PAUSE * 2);
    for (new, left) in [(11, &[1, 2, 3][..]), (12, &[2, 3]), (13, &[3]), (14, &[])] {
        rig.put(new, &[new]);
        rig.check_resident(1..4, left);
    }
}

/// B31: a write that does not come to be costs nobody the room: no chunk goes, and the order is what it was.
#[test]
fn a_job_that_is_handed_back_evicts_nothing_and_leaves_the_order() {
    check_handed_back(|rig| _ = rig.read(9, &[3]), &[6, 7], RejectReason::Busy);
    check_handed_back(|_| (), &[], RejectReason::Invalid);
    // The disk that is full takes nothing into the free slot.
    let meets = |action: fn(&mut Rig), n: u64, kind: io::ErrorKind| {
        move |rig: &mut Rig| {
            action(rig);
            rig.run_all(&[(n, Trouble::Error(kind))]);
            rig.poll();
        }
    };
    let full = meets(|rig| _ = rig.write(9, &[5]), 5, io::ErrorKind::StorageFull);
    check_handed_back(full, &[6, 7], RejectReason::ReadOnly);
    let gone = meets(|rig| _ = rig.read(9, &[3]), 3, io::ErrorKind::PermissionDenied);
    check_handed_back(gone, &[6, 7], RejectReason::Unavailable);
}

#[test]
fn a_try_that_fails_closes_the_store_for_another_pause() {
    let mut rig = closed();
    rig.clock.advance(PAUSE);
    let job = rig.write(2, &[7]);
    // Once more in another slot is still the same try.
    rig.run_all(&[(7, Trouble::Eio)]);
    assert_eq!(rig.poll(), [TierCompletion::except(job, keys([7]))]);
    assert_eq!(rig.store.state(), TierState::Open);
    check_rejected(&mut rig, TierDirection::Write, 8, RejectReason::Unavailable);
    rig.clock.advance(PAUSE);
    rig.get(2, &[4], &[]);
    assert_eq!(rig.store.state(), TierState::Up);
}

#[test]
fn a_try_that_is_late_closes_the_store_for_another_pause() {
    let mut rig = closed();
    rig.clock.advance(PAUSE);
    let job = rig.read(2, &[4]);
    rig.clock.advance(Duration::from_secs(30));
    assert_eq!(rig.poll(), [TierCompletion::except(job, keys([4])).with_held(vec![SlotId(4)])]);
    assert_eq!(rig.store.state(), TierState::Open);
    rig.clock.advance(PAUSE);
    rig.get(2, &[5], &[]);
    assert_eq!(rig.store.state(), TierState::Up);
}

#[test]
fn a_device_that_hangs_is_closed_by_its_late_chunks() {
    let mut rig = rig(8);
    rig.put(1, &[1, 2, 3]);
    let job = rig.read(2, &[1, 2, 3]);
    rig.clock.advance(Duration::from_secs(30));
    let held = [1, 2, 3].map(SlotId).to_vec();
    assert_eq!(rig.poll(), [TierCompletion::except(job, keys([1, 2, 3])).with_held(held)]);
    assert_eq!(rig.store.state(), TierState::Open);
    assert_eq!(rig.store.counts().pinned, 3);
    rig.run_all(&[]);
    assert_eq!(rig.poll(), []);
    assert_eq!((rig.store.counts().pinned, rig.store.state()), (0, TierState::Open));
}

/// B49: a full disk costs the write that met it; the store backs off, and comes back.
#[test]
fn a_full_file_system_takes_no_writes_for_a_pause_and_reads_go_on() {
    let mut rig = rig(8);
    rig.put(1, &[1]);
    let job = rig.write(1, &[2]);
    rig.run_all(&[(2, Trouble::Error(io::ErrorKind::StorageFull))]);
    assert_eq!(rig.poll(), [TierCompletion::except(job, keys([2]))]);
    assert_eq!(rig.store.state(), TierState::ReadOnly);
    check_rejected(&mut rig, TierDirection::Write, 3, RejectReason::ReadOnly);
    rig.get(1, &[1], &[]);
    rig.clock.advance(PAUSE);
    rig.put(1, &[3]);
    assert_eq!(rig.store.state(), TierState::Up);
    rig.put(1, &[4, 5]);
}

/// The write that tries a full disk is one error if it is late, and the breaker bears one.
#[test]
fn a_try_that_is_late_is_one_error_of_the_device() {
    let mut rig = Rig::with_options(NvmeOptions {
        breaker: BreakerOptions { errors: 2, window: Duration::from_secs(10), pause: PAUSE },
        ..NvmeOptions::new("unused", 8, CHUNK_BYTES as u64)
    });
    rig.put(1, &[1]);
    let job = rig.write(1, &[2]);
    rig.run_all(&[(2, Trouble::Error(io::ErrorKind::StorageFull))]);
    assert_eq!(rig.poll(), [TierCompletion::except(job, keys([2]))]);
    rig.clock.advance(PAUSE);
    let job = rig.write(1, &[3]);
    rig.clock.advance(Duration::from_secs(30));
    assert_eq!(rig.poll(), [TierCompletion::except(job, keys([3])).with_held(vec![SlotId(3)])]);
    assert_eq!(rig.store.state(), TierState::ReadOnly);
    rig.check_resident(0..3, &[1]);
}

/// What can never be read is no hit: a lookup that says so costs each request a load that fails.
#[test]
fn a_device_whose_thread_has_ended_is_closed_at_once_and_tried_once_a_pause() {
    let mut rig = rig(8);
    rig.put(1, &[1, 2]);
    for _ in 0..3 {
        rig.check_resident(0..3, &[1, 2]);
        let job = rig.read(2, &[1]);
        let op = rig.next_op().unwrap();
        let result = Err(Fault::Ended("this end belongs to the test"));
        rig.hand.events.send(Event::Moved(OpDone { op, result })).unwrap();
        assert_eq!(rig.poll(), [TierCompletion::except(job, keys([1]))]);
        assert_eq!(rig.store.state(), TierState::Open);
        rig.check_resident(0..3, &[]);
        rig.clock.advance(PAUSE);
    }
    assert_eq!(rig.store.counts().evictable, 2, "what is there is kept");
}
