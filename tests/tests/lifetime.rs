//! When a tier hears that a request is over: once, after the last write that the request causes.

mod support;

use std::sync::Arc;

use kvo_core::{OffloadManager, SlotId, TierDirection};
use kvo_policies::Lru;
use support::{Call, Engine, Offered, OverNvme, Setup, keys, memory_tier, prompt, push_down};

/// B19: with two stores under way at the finish.
#[test]
fn a_request_that_finishes_before_its_store_still_cascades_and_is_then_over() {
    let OverNvme { mut engine, nvme, .. } = OverNvme::new(Setup { num_groups: 2, ..Setup::new(8) });
    let chunks = prompt(1, 3);
    let mut req = engine.begin(&chunks);
    let gate = engine.hold_compute();
    engine.compute(&mut req, 0..3);
    // Two stores, as of a prompt and a decode.
    let first = engine.offer(&mut req, 0..2);
    let second = engine.offer(&mut req, 2..3);
    assert!(matches!((first, second), (Offered::Running(_), Offered::Running(_))));
    engine.finish(&mut req);
    for _ in 0..3 {
        engine.end_step();
        engine.poll_device();
    }
    assert_eq!(engine.num_ended(), 0, "the stores wait for the compute");
    assert_eq!(nvme.look().calls, [Call::Began(req.id())]);
    assert_eq!(engine.manager().stats().open_requests, 1);
    assert_eq!(engine.manager().counts().pending, 6);

    drop(gate);
    engine.drain_device();
    // The later one is reported first.
    assert!(engine.complete(1).arrived);
    assert_eq!(nvme.finishes(req.id()), 0, "one store is still open");
    assert!(engine.complete(0).arrived);
    let direction = TierDirection::Write;
    let job = |chunks| Call::Job { req: req.id(), direction, keys: req.keys(chunks) };
    let calls = [Call::Began(req.id()), job(2..3), job(0..2), Call::Finished(req.id())];
    assert_eq!(nvme.look().calls, calls);
    engine.settle();
    assert_eq!(nvme.look().calls, calls, "nothing more, and the finish once");
    engine.check_quiet();

    push_down(&mut engine, &req.keys(0..3), &[&prompt(2, 4)]);
    assert_eq!(engine.serve(&chunks, 1), 3, "the chunks are in the store");
}

/// B19, where the last store fails.
#[test]
fn a_request_whose_store_fails_after_its_finish_is_over_without_a_write() {
    let OverNvme { mut engine, nvme, .. } = OverNvme::new(Setup::new(8));
    let mut req = engine.begin(&prompt(1, 3));
    let gate = engine.hold_compute();
    engine.compute(&mut req, 0..3);
    assert!(matches!(engine.offer(&mut req, 0..3), Offered::Running(_)));
    engine.finish(&mut req);
    // Someone else sits on a slot while the copies run.
    let region = Arc::clone(&engine.region);
    let mut gate = Some(gate);
    let copy_meanwhile = &mut |_: &[u8]| {
        gate = None;
        engine.drain_device();
    };
    region.with_read(SlotId(1), copy_meanwhile).unwrap();
    assert!(!engine.complete(0).arrived);
    assert_eq!(nvme.look().calls, [Call::Began(req.id()), Call::Finished(req.id())]);
    assert_eq!(engine.manager().counts().free, 8);
    engine.settle();
    engine.check_quiet();
    assert_eq!(engine.serve(&prompt(1, 3), 0), 0, "nothing of it is there");
    assert_eq!(engine.serve(&prompt(1, 3), 0), 3);
}

#[test]
fn cascades_that_run_at_the_finish_keep_their_pins_and_the_finish_comes_once_after_the_last() {
    let setup = Setup::new(6);
    let dir = tempfile::tempdir().unwrap();
    let region = setup.region();
    let nvme = setup.nvme(dir.path(), 64, &region);
    let memory = memory_tier(64, &region);
    let mut engine = Engine::new(setup, region, Box::new(Lru::new(6)), vec![]);
    engine.add_tier(nvme.clone());
    engine.add_tier(memory.clone());
    // The store begins no work, the memory tier does its work and says nothing.
    nvme.look().script.hold_jobs = true;
    memory.look().script.hold_reports = true;

    let chunks = prompt(1, 6);
    let mut req = engine.begin(&chunks);
    engine.compute(&mut req, 0..6);
    for part in [0..2, 2..4] {
        assert!(matches!(engine.offer(&mut req, part), Offered::Running(_)));
    }
    engine.complete_all();
    assert!(matches!(engine.offer(&mut req, 4..6), Offered::Running(_)));
    engine.drain_tiers();
    engine.end_step();
    engine.finish(&mut req);
    assert_eq!((nvme.finishes(req.id()), memory.finishes(req.id())), (0, 0), "a write is still to come");
    engine.complete_all();

    for (calls, name) in [(&nvme.look().calls, "nvme"), (&memory.look().calls, "memory")] {
        let kinds: Vec<bool> = calls.iter().map(|call| matches!(call, Call::Job { .. })).collect();
        assert_eq!(kinds, [false, true, true, true, false], "{name}: {calls:?}");
        assert_eq!(calls.last(), Some(&Call::Finished(req.id())), "{name}");
    }
    let counts = engine.manager().counts();
    assert_eq!((counts.pinned, counts.evictable), (6, 0), "two internal pins on each chunk");
    assert!(engine.manager().has_pending_work());

    // Nothing of it can go, however much someone else needs the room.
    let mut other = engine.begin(&prompt(2, 2));
    engine.compute(&mut other, 0..2);
    let refused = engine.offer(&mut other, 0..2);
    assert!(matches!(refused, Offered::Refused(refusal) if refusal.evictable == 0), "{refused:?}");
    // One of the two tiers is not enough.
    memory.open();
    engine.drain_tiers();
    engine.end_step();
    assert_eq!(engine.manager().counts().pinned, 6);
    nvme.open();
    engine.settle();
    assert_eq!(engine.manager().counts().pinned, 0);
    assert!(matches!(engine.offer(&mut other, 0..2), Offered::Running(_)));
    engine.complete_all();
    engine.finish(&mut other);
    engine.settle();
    engine.check_quiet();
    assert_eq!((nvme.finishes(req.id()), memory.finishes(req.id())), (1, 1));
    assert_eq!((nvme.finishes(other.id()), memory.finishes(other.id())), (1, 1));

    push_down(&mut engine, &req.keys(0..6), &[&prompt(3, 6)]);
    assert_eq!(engine.serve(&chunks, 1), 6);
}

#[test]
fn a_tier_that_wants_all_chunks_gets_those_that_another_request_is_storing() {
    let OverNvme { mut engine, nvme, .. } = OverNvme::new(Setup::new(8));
    let chunks = prompt(1, 2);
    let mut first = engine.begin(&chunks);
    nvme.look().script.wants_all = true;
    let mut second = engine.begin(&chunks);
    let gate = engine.hold_compute();
    for req in [&mut first, &mut second] {
        engine.compute(req, 0..2);
    }
    assert!(matches!(engine.offer(&mut first, 0..2), Offered::Running(_)));
    assert_eq!(engine.offer(&mut second, 0..2), Offered::Nothing, "they are on their way");
    engine.finish(&mut first);
    engine.finish(&mut second);
    engine.end_step();
    assert_eq!(nvme.finishes(second.id()), 0, "its chunks are parked");
    drop(gate);
    engine.complete_all();
    assert_eq!(nvme.finishes(first.id()), 1);
    assert_eq!(nvme.finishes(second.id()), 0, "parked chunks resolve at the end of a step");
    engine.end_step();
    let wanted = keys(&chunks, 0);
    assert_eq!(nvme.jobs(first.id(), TierDirection::Write), std::slice::from_ref(&wanted));
    assert_eq!(nvme.jobs(second.id(), TierDirection::Write), [wanted]);
    engine.settle();
    assert_eq!((nvme.finishes(first.id()), nvme.finishes(second.id())), (1, 1));
    assert_eq!(nvme.look().backing.stats().write.chunks, 2, "the store writes a chunk once");
    engine.check_quiet();
}
