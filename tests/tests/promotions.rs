//! Promotions that fail, in part or as a whole, cost a request its hits and nobody anything else.

mod support;

use kvo_core::{LookupResult, OffloadManager, RejectReason};
use kvo_nvme::FILE_NAME;
use support::{Engine, Offered, OverNvme, Setup, corrupt, keys, prompt, push_down};

/// An engine whose store has the 4 chunks of prompt 1, and whose primary tier has none of them.
fn pushed_down(setup: Setup) -> OverNvme {
    let mut system = OverNvme::new(setup);
    let chunks = prompt(1, 4);
    system.engine.serve(&chunks, 0);
    push_down(&mut system.engine, &keys(&chunks, 0), &[&prompt(2, 4), &prompt(3, 4)]);
    system
}

/// The request loads what came, recomputes the rest and stores it.
fn check_recovers(engine: &mut Engine, chunks: &[u64], expected_ready: usize) {
    let mut req = engine.begin(chunks);
    let ready = engine.look_until_decided(&mut req);
    assert_eq!(ready, expected_ready);
    if ready > 0 {
        engine.load(&mut req, ready, 1).unwrap();
        assert!(engine.complete_all()[0].arrived, "the chunks that came are right");
    }
    // It stays a miss for this request, whatever the tier says by now.
    for _ in 0..3 {
        assert_eq!(engine.look(&mut req), (ready, false));
        engine.end_step();
        engine.drain_tiers();
    }
    let missed = req.keys(ready..ready + 1)[0];
    assert_eq!(engine.manager().primary().peek(&missed), LookupResult::Miss);
    let counts = engine.manager().counts();
    assert_eq!((counts.pending, counts.pinned), (0, 0), "the slots of what failed are free: {counts:?}");
    engine.compute(&mut req, ready..chunks.len());
    assert!(matches!(engine.offer(&mut req, 0..chunks.len()), Offered::Running(_)));
    assert!(engine.complete_all()[0].arrived);
    engine.finish(&mut req);
    engine.settle();
    engine.check_quiet();
}

/// B28: the others of the job are as good as ever.
#[test]
fn a_chunk_that_a_tier_fails_to_bring_is_a_miss_and_the_others_come() {
    let OverNvme { mut engine, nvme, .. } = pushed_down(Setup::new(8));
    let chunks = prompt(1, 4);
    let free_before = engine.manager().counts().free;
    nvme.look().script.fail_reads.insert(keys(&chunks, 0)[2]);
    check_recovers(&mut engine, &chunks, 2);
    let read = engine.manager().stats().tiers[0].read;
    assert_eq!((read.jobs_failed, read.chunks), (1, 3));
    assert_eq!(engine.manager().stats().primary.chunks_failed, 1);
    assert_eq!(engine.manager().counts().free, free_before);
    assert_eq!(engine.serve(&chunks, 0), 4, "the next request has all of it in the primary tier");

    // The tier is whole again, and has kept all of it.
    nvme.open();
    push_down(&mut engine, &keys(&chunks, 0), &[&prompt(2, 4), &prompt(3, 4)]);
    assert_eq!(engine.serve(&chunks, 1), 4);
}

#[test]
fn chunks_that_are_corrupt_on_disk_are_misses_until_they_are_stored_again() {
    let setup = Setup::new(8);
    let OverNvme { mut engine, nvme, dir } = pushed_down(setup);
    let chunks = prompt(1, 4);
    for nth in [1, 3] {
        corrupt(dir.path(), &keys(&chunks, 0)[nth], setup.chunk_bytes());
    }
    check_recovers(&mut engine, &chunks, 1);
    let stats = nvme.look().backing.stats();
    assert_eq!((stats.checksum_failures, stats.chunks_dropped), (2, 2));
    push_down(&mut engine, &keys(&chunks, 0), &[&prompt(2, 4), &prompt(3, 4)]);
    assert_eq!(engine.serve(&chunks, 1), 4, "both were written down again");
    assert_eq!(nvme.look().backing.stats().checksum_failures, 2);
}

/// B14: they are looked for once, and stored again.
#[test]
fn a_file_that_is_cut_under_the_store_loses_chunks_and_nothing_else() {
    let OverNvme { mut engine, nvme, dir } = pushed_down(Setup::new(8));
    let chunks = prompt(1, 4);
    let file = std::fs::File::options().write(true).open(dir.path().join(FILE_NAME)).unwrap();
    file.set_len(0).unwrap();
    check_recovers(&mut engine, &chunks, 0);
    assert_eq!(nvme.look().backing.stats().read_errors, 4);
    push_down(&mut engine, &keys(&chunks, 0), &[&prompt(4, 4), &prompt(5, 4)]);
    assert_eq!(engine.serve(&chunks, 1), 4, "the file grows again with what is written");
}

#[test]
fn a_promotion_that_fails_as_a_whole_is_tried_again_only_if_the_options_say_so() {
    for (retry_failed_jobs, expected) in [(false, 0), (true, 4)] {
        let OverNvme { mut engine, nvme, .. } = pushed_down(Setup { retry_failed_jobs, ..Setup::new(8) });
        let mut req = engine.begin(&prompt(1, 4));
        nvme.look().script.fail_whole_reads = true;
        assert_eq!(engine.look(&mut req), (0, true));
        engine.end_step();
        engine.drain_tiers();
        engine.end_step();
        nvme.open();
        assert_eq!(engine.look_until_decided(&mut req), expected);
        engine.finish(&mut req);
        engine.settle();
        engine.check_quiet();
    }
}

#[test]
fn a_promotion_that_a_tier_hands_back_frees_its_slots() {
    let OverNvme { mut engine, nvme, .. } = pushed_down(Setup::new(8));
    let chunks = prompt(1, 4);
    let read_before = engine.manager().stats().tiers[0].read;
    nvme.look().script.reject = Some(RejectReason::Busy);
    let mut req = engine.begin(&chunks);
    assert_eq!(engine.look_until_decided(&mut req), 0);
    assert_eq!(engine.manager().counts().pending, 0);
    engine.finish(&mut req);
    engine.settle();
    engine.check_quiet();
    assert_eq!(engine.manager().stats().tiers[0].jobs_rejected, 1);
    assert_eq!(engine.manager().stats().tiers[0].read, read_before);
    nvme.open();
    assert_eq!(engine.serve(&chunks, 0), 4);
}
