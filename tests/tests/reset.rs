//! A reset while everything is under way.

mod support;

use kvo_core::{CompleteErrorReason, Direction, OffloadManager, TierDirection};
use kvo_tiering::ResetReport;
use support::{Completion, Offered, OverNvme, Setup, keys, prompt, push_down};

/// B22: with real copies and a real store.
#[test]
fn a_reset_with_everything_in_flight_voids_the_old_and_spoils_nothing_new() {
    let OverNvme { mut engine, nvme, .. } = OverNvme::new(Setup { num_blocks: 128, ..Setup::new(16) });
    let [promoting, queued, resident, cascading, storing, fresh] =
        [(1, 4), (2, 2), (3, 3), (4, 2), (5, 3), (6, 10)].map(|(n, len)| prompt(n, len));
    for below in [&promoting, &queued] {
        engine.serve(below, 0);
    }
    let below = [keys(&promoting, 0), keys(&queued, 0)].concat();
    push_down(&mut engine, &below, &[&prompt(7, 8), &prompt(8, 8)]);
    engine.serve(&resident, 0);

    // A cascade and a promotion that the store has taken and not begun, a promotion that is queued, a store and a
    // load that wait for the compute.
    nvme.look().script.hold_jobs = true;
    let mut cascades = engine.begin(&cascading);
    engine.compute(&mut cascades, 0..2);
    assert!(matches!(engine.offer(&mut cascades, 0..2), Offered::Running(_)));
    engine.complete_all();
    let mut promotes = engine.begin(&promoting);
    assert_eq!(engine.look(&mut promotes), (0, true));
    engine.end_step();
    assert_eq!(nvme.jobs(promotes.id(), TierDirection::Read), [keys(&promoting, 0)]);
    let gate = engine.hold_compute();
    let mut loads = engine.begin(&resident);
    assert_eq!(engine.look(&mut loads), (3, false));
    engine.load(&mut loads, 3, 1).unwrap();
    let mut stores = engine.begin(&storing);
    engine.compute(&mut stores, 0..3);
    assert!(matches!(engine.offer(&mut stores, 0..3), Offered::Running(_)));
    engine.finish(&mut stores);
    let mut queues = engine.begin(&queued);
    assert_eq!(engine.look(&mut queues), (0, true));
    assert_eq!(nvme.finishes(stores.id()), 0);

    let report = engine.reset();
    assert_eq!(report, ResetReport { promotions_dropped: 2, jobs_running: 2, slots_parked: 6 });
    engine.manager().primary().assert_consistent();
    let counts = engine.manager().counts();
    assert_eq!((counts.free, counts.pending, counts.pinned, counts.evictable), (10, 6, 0, 0));
    assert_eq!(nvme.finishes(stores.id()), 1, "its store is void, so nothing more can come of it");

    // The workers have not flushed: the store has the chunks, and nobody may bring them up.
    let mut early = engine.begin(&promoting);
    assert_eq!(engine.look(&mut early), (0, false));
    engine.finish(&mut early);
    engine.end_step();
    assert_eq!(nvme.jobs(early.id(), TierDirection::Read), [] as [Vec<_>; 0]);

    // The old copies end, and their tokens with a reason.
    drop(gate);
    let mut completions = engine.complete_all();
    completions.sort_by_key(|completion| completion.ticket);
    let reset = Some(CompleteErrorReason::Reset { token: 0, current: 1 });
    let [load, store]: [Completion; 2] = completions.try_into().unwrap();
    assert_eq!((load.req, load.direction, load.void), (loads.id(), Direction::Load, reset));
    assert_eq!((store.req, store.direction, store.void), (stores.id(), Direction::Store, reset));
    engine.manager_mut().on_reset_flushed();

    // New chunks take every slot but the parked ones. Only then do the old tier jobs do their work.
    let mut new = engine.begin(&fresh);
    engine.compute(&mut new, 0..10);
    assert!(matches!(engine.offer(&mut new, 0..10), Offered::Running(_)));
    assert!(engine.complete_all()[0].arrived);
    let read_below = nvme.look().backing.stats().read.chunks;
    nvme.open();
    engine.settle();
    assert_eq!(nvme.look().backing.stats().read.chunks - read_below, 4, "the old promotion was read");
    let counts = engine.manager().counts();
    assert_eq!((counts.free, counts.evictable), (6, 10), "the parked slots came back");
    for req in [&mut cascades, &mut promotes, &mut loads, &mut queues, &mut new] {
        engine.finish(req);
    }
    engine.settle();
    engine.check_quiet();
    assert_eq!(engine.ledger.chunks("cpu"), keys(&fresh, 0).into_iter().collect());
    assert_eq!(engine.serve(&fresh, 0), 10, "not a byte of them has changed");
    assert_eq!(nvme.look().backing.stats().read.chunks - read_below, 4, "and they were in the primary tier");

    // The store has kept what it had, and got what was cascading.
    for (chunks, expected) in [(&promoting, 4), (&queued, 2), (&resident, 3), (&cascading, 2), (&storing, 0)]
    {
        assert_eq!(engine.serve(chunks, 0), expected, "{chunks:?}");
    }
}

#[test]
fn slots_stay_parked_over_further_resets_until_their_tier_job_ends() {
    let OverNvme { mut engine, nvme, .. } = OverNvme::new(Setup::new(8));
    let chunks = prompt(1, 3);
    nvme.look().script.hold_jobs = true;
    let mut req = engine.begin(&chunks);
    engine.compute(&mut req, 0..3);
    assert!(matches!(engine.offer(&mut req, 0..3), Offered::Running(_)));
    engine.complete_all();
    let gate = engine.hold_compute();
    engine.load(&mut req, 3, 0).unwrap();
    for _ in 0..3 {
        let report = engine.reset();
        assert_eq!(report, ResetReport { promotions_dropped: 0, jobs_running: 1, slots_parked: 3 });
        engine.manager().primary().assert_consistent();
    }
    drop(gate);
    let [load]: [Completion; 1] = engine.complete_all().try_into().unwrap();
    assert_eq!(load.void, Some(CompleteErrorReason::Reset { token: 0, current: 3 }));
    engine.manager_mut().on_reset_flushed();
    engine.finish(&mut req);
    nvme.open();
    engine.settle();
    engine.check_quiet();
    assert_eq!(engine.manager().counts().free, 8);
    assert_eq!(nvme.finishes(req.id()), 1);
    assert_eq!(engine.serve(&chunks, 1), 3, "the cascade read what it was to read");
}

/// B55: a reset drops what is in memory, and keeps what is below.
#[test]
fn a_request_goes_on_after_a_reset() {
    let OverNvme { mut engine, nvme, .. } = OverNvme::new(Setup::new(8));
    let chunks = prompt(1, 4);
    let mut req = engine.begin(&chunks);
    engine.compute(&mut req, 0..4);
    assert!(matches!(engine.offer(&mut req, 0..2), Offered::Running(_)));
    engine.complete_all();
    engine.settle();
    engine.reset();
    engine.manager_mut().on_reset_flushed();
    assert_eq!(engine.look_until_decided(&mut req), 2, "the store has kept its first chunks");
    assert!(matches!(engine.offer(&mut req, 0..4), Offered::Running(_)));
    assert!(engine.complete_all()[0].arrived);
    engine.finish(&mut req);
    engine.settle();
    engine.check_quiet();
    assert_eq!(nvme.finishes(req.id()), 1);
    assert_eq!(engine.serve(&chunks, 0), 4);
}
