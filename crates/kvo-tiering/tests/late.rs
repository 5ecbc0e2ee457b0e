//! Transfers that are late: reported as failed once, their slots held until the tier lets them go.

mod support;

use kvo_core::{
    JobId, LookupResult, OffloadManager, RequestContext, SlotId, StoreOutcome, TierCompletion, TierDirection,
    TierJob,
};
use kvo_policies::Lru;
use kvo_tiering::{ResetReport, TierStats, TieringManager, TieringOptions};
use support::{
    begin, check_quiet, check_sound, events,
    fake_tier::{Spec, World},
    finish, key, keys, load, loaded, lookups, manager, manager_with, offer, serve, store, unbounded,
};

use LookupResult::{Hit, HitPending, Miss};

/// A manager of 4 slots over one tier, and a promotion of keys 1 and 2 that the tier has.
fn with_open_read() -> (TieringManager<Lru>, World, RequestContext, TierJob) {
    let (mut manager, world) = manager(4, &[Spec::chunk_level("disk")]);
    world.put(0, &keys([1, 2, 3]));
    let mut req = begin(&mut manager, 1);
    lookups(&mut manager, &mut req, &keys([1, 2]));
    manager.on_schedule_end();
    let job = world.new_job();
    assert_eq!(job.direction, TierDirection::Read);
    (manager, world, req, job)
}

/// A manager of 2 slots over one tier, and a cascade of keys 1 and 2 that the tier has.
fn with_open_write() -> (TieringManager<Lru>, World, RequestContext, TierJob) {
    let (mut manager, world) = manager(2, &[Spec::chunk_level("disk")]);
    let mut req = begin(&mut manager, 1);
    store(&mut manager, &mut req, &keys([1, 2]));
    let job = world.new_job();
    (manager, world, req, job)
}

/// The report of a job whose second chunk alone is late.
fn second_is_late(job: &TierJob) -> TierCompletion {
    TierCompletion::except(job.id, vec![job.chunks[1].key]).with_held(vec![job.chunks[1].slot])
}

fn release_second(world: &World, job: &TierJob) {
    world.release(0, job.id, job.chunks[1].slot);
}

/// Ends the step, and one more, which sees what the tiers have said meanwhile.
fn collect(manager: &mut TieringManager<Lru>) {
    manager.on_schedule_end();
    manager.on_schedule_end();
}

fn tier_stats(manager: &TieringManager<Lru>) -> TierStats {
    manager.stats().tiers.remove(0)
}

/// Which slots `count` further chunks get, which are then given up again.
#[track_caller]
fn slots_of_new_chunks(
    manager: &mut TieringManager<Lru>,
    req: &mut RequestContext,
    count: u64,
) -> Vec<SlotId> {
    let new: Vec<_> = (0..count).map(|n| key(100 + n)).collect();
    let job = offer(manager, req, &new);
    support::store_failed(manager, job.token);
    job.slots
}

/// B13: a job that was given up frees its slots when its I/O has really stopped.
#[test]
fn a_late_read_is_a_miss_at_once_and_its_slot_is_used_for_nothing_until_it_is_released() {
    let (mut manager, world, mut req, job) = with_open_read();
    world.report(0, second_is_late(&job));
    assert_eq!(lookups(&mut manager, &mut req, &keys([1, 2])), [Hit, Miss]);
    let counts = check_sound(&manager);
    assert_eq!((counts.free, counts.pending, counts.evictable), (2, 1, 1));
    assert_eq!((tier_stats(&manager).held_slots, tier_stats(&manager).jobs_late), (1, 1));
    assert_eq!(tier_stats(&manager).read.chunks, 1);

    let late = job.chunks[1].slot;
    assert!(!slots_of_new_chunks(&mut manager, &mut req, 3).contains(&late), "one more had to be evicted");
    let refused = manager.prepare_store(&mut req, &keys([7, 8, 9, 10]));
    assert!(matches!(refused, Ok(StoreOutcome::Refused(refusal)) if refusal.free == 3), "{refused:?}");

    release_second(&world, &job);
    collect(&mut manager);
    assert_eq!((check_sound(&manager).free, tier_stats(&manager).held_slots), (4, 0));
    assert!(slots_of_new_chunks(&mut manager, &mut req, 4).contains(&late));
    assert_eq!(manager.lookup(&mut req, &key(2)), Miss, "it has failed for this request");
    finish(&mut manager, &mut req);
    check_quiet(&manager);
}

#[test]
fn another_request_may_ask_for_a_late_chunk_again_and_gets_another_slot() {
    let (mut manager, world, mut req, job) = with_open_read();
    world.report(0, TierCompletion::failed(job.id).with_held(vec![job.chunks[1].slot]));
    assert_eq!(manager.lookup(&mut req, &key(2)), Miss);
    let mut other = begin(&mut manager, 2);
    assert_eq!(manager.lookup(&mut other, &key(2)), HitPending);
    manager.on_schedule_end();
    let again = world.new_job();
    assert_ne!(again.chunks[0].slot, job.chunks[1].slot);
    world.report(0, TierCompletion::done(again.id));
    release_second(&world, &job);
    collect(&mut manager);
    assert_eq!(manager.lookup(&mut other, &key(2)), Hit, "the release is not of its slot");
    assert_eq!(check_sound(&manager).free, 3);
}

#[test]
fn the_chunk_of_a_late_write_stays_readable_and_is_not_evicted_until_its_slot_is_released() {
    for finishes_first in [true, false] {
        let (mut manager, world, mut req, job) = with_open_write();
        if finishes_first {
            finish(&mut manager, &mut req);
        }
        world.report(0, second_is_late(&job));
        collect(&mut manager);
        assert_eq!(check_sound(&manager).pinned, 1);
        assert_eq!((tier_stats(&manager).active_jobs, tier_stats(&manager).held_slots), (0, 1));

        let mut other = begin(&mut manager, 2);
        assert_eq!(manager.lookup(&mut other, &key(2)), Hit);
        let reading = load(&mut manager, &mut other, &[key(2)]);
        loaded(&mut manager, reading.token);
        let refused = manager.prepare_store(&mut other, &keys([8, 9]));
        assert!(matches!(refused, Ok(StoreOutcome::Refused(_))), "{refused:?}");
        assert_eq!(store(&mut manager, &mut other, &[key(8)]), [key(1)], "which the tier has written");
        world.new_job();

        release_second(&world, &job);
        let mut last = begin(&mut manager, 3);
        assert_eq!(manager.lookup(&mut last, &key(2)), Hit, "it is still there");
        serve(&mut manager, &world);
        assert_eq!(check_sound(&manager).pinned, 0);
        assert_eq!(store(&mut manager, &mut last, &keys([9, 10])).len(), 2);
        if !finishes_first {
            finish(&mut manager, &mut req);
        }
        assert_eq!(world.finishes(0, req.id()), usize::from(!finishes_first), "the others were before");
    }
}

#[test]
fn a_request_is_finished_at_the_tiers_whatever_they_still_hold() {
    let (mut manager, world, mut req, job) = with_open_write();
    finish(&mut manager, &mut req);
    assert_eq!(world.finishes(0, req.id()), 1);
    world.report(0, second_is_late(&job));
    collect(&mut manager);
    assert_eq!((world.finishes(0, req.id()), manager.stats().open_requests), (1, 0));
    // A later request of the same number has nothing to do with it.
    let mut same = begin(&mut manager, 1);
    release_second(&world, &job);
    collect(&mut manager);
    finish(&mut manager, &mut same);
    check_quiet(&manager);
}

#[test]
fn a_slot_that_is_released_with_the_report_is_free_at_once() {
    let (mut manager, world, mut req, job) = with_open_read();
    world.report(0, second_is_late(&job));
    release_second(&world, &job);
    assert_eq!(lookups(&mut manager, &mut req, &keys([1, 2])), [Hit, Miss]);
    assert_eq!(check_sound(&manager).free, 3);
    let stats = tier_stats(&manager);
    assert_eq!((stats.held_slots, stats.jobs_late, stats.invalid_releases), (0, 1, 0));
}

#[test]
fn releases_are_collected_where_reports_are() {
    let (mut manager, world, mut req, job) = with_open_read();
    world.report(0, second_is_late(&job));
    manager.lookup(&mut req, &key(1));
    release_second(&world, &job);
    manager.lookup(&mut req, &key(1));
    assert_eq!(tier_stats(&manager).held_slots, 1, "this step has polled");
    assert!(matches!(manager.prepare_store(&mut req, &[]), Ok(StoreOutcome::NothingToStore)));
    assert_eq!(tier_stats(&manager).held_slots, 0, "every offer polls");
}

/// B22, for jobs that were given up before.
#[test]
fn a_reset_between_report_and_release_keeps_the_slot_parked() {
    for is_read in [true, false] {
        let (mut manager, world, mut req, job) = if is_read { with_open_read() } else { with_open_write() };
        let capacity = manager.counts().capacity;
        world.report(0, second_is_late(&job));
        collect(&mut manager);
        for _ in 0..2 {
            let report = manager.reset();
            assert_eq!(report, ResetReport { promotions_dropped: 0, jobs_running: 0, slots_parked: 1 });
            assert_eq!((check_sound(&manager).pending, manager.counts().free), (1, capacity - 1));
        }
        let late = job.chunks[1].slot;
        assert!(!slots_of_new_chunks(&mut manager, &mut req, u64::from(capacity) - 1).contains(&late));
        // The key may be stored anew; the release is not of its slot.
        let fresh = offer(&mut manager, &mut req, &[key(2)]);
        assert_ne!(fresh.slots, [late]);
        support::stored(&mut manager, fresh.token);
        release_second(&world, &job);
        serve(&mut manager, &world);
        assert_eq!((check_sound(&manager).evictable, manager.counts().free), (1, capacity - 1));
        assert_eq!(manager.stats().primary.parked_slots, 0);
        finish(&mut manager, &mut req);
        check_quiet(&manager);
    }
}

#[test]
fn a_job_that_is_late_after_a_reset_frees_what_it_does_not_hold() {
    for is_read in [true, false] {
        let (mut manager, world, mut req, job) = if is_read { with_open_read() } else { with_open_write() };
        let report = manager.reset();
        assert_eq!(report, ResetReport { promotions_dropped: 0, jobs_running: 1, slots_parked: 2 });
        events(&mut manager);
        world.report(0, second_is_late(&job));
        collect(&mut manager);
        assert_eq!((check_sound(&manager).pending, manager.stats().primary.parked_slots), (1, 1));
        assert_eq!(events(&mut manager), [], "its chunks were gone");
        release_second(&world, &job);
        collect(&mut manager);
        assert_eq!(check_sound(&manager).pending, 0);
        manager.on_reset_flushed();
        world.put(0, &[key(2)]);
        assert_eq!(
            manager.lookup(&mut req, &key(2)),
            HitPending,
            "of before the reset nothing is held against it"
        );
    }
}

#[test]
fn a_release_that_was_not_announced_is_counted_and_changes_nothing() {
    let specs = [Spec::chunk_level("disk"), Spec::chunk_level("other")];
    let (mut manager, world) = manager(4, &specs);
    world.put(0, &keys([1, 2]));
    let mut req = begin(&mut manager, 1);
    lookups(&mut manager, &mut req, &keys([1, 2]));
    manager.on_schedule_end();
    let job = world.new_job();
    let [first, second] = [job.chunks[0].slot, job.chunks[1].slot];
    let invalid = |manager: &TieringManager<Lru>| {
        manager.stats().tiers.iter().map(|tier| tier.invalid_releases).collect::<Vec<_>>()
    };
    let step = |manager: &mut TieringManager<Lru>| {
        collect(manager);
        check_sound(manager)
    };
    let before = manager.counts();

    world.release(0, job.id, second);
    world.release(0, JobId(99), second);
    assert_eq!((step(&mut manager), invalid(&manager)), (before, vec![2, 0]), "the job is open, or unknown");

    world.report(0, second_is_late(&job));
    let held = step(&mut manager);
    assert_eq!((held.pending, held.free), (1, 2), "that it was released too early does not count");
    world.release(0, job.id, first);
    world.release(1, job.id, second);
    world.release(0, job.id, SlotId(1000));
    assert_eq!((step(&mut manager), invalid(&manager)), (held, vec![4, 1]));

    world.release(0, job.id, second);
    world.release(0, job.id, second);
    let after = step(&mut manager);
    assert_eq!((after.pending, after.free, invalid(&manager)), (0, 3, vec![5, 1]), "once is enough");
    world.report(0, TierCompletion::done(job.id));
    world.release(0, job.id, second);
    assert_eq!((step(&mut manager), invalid(&manager)), (after, vec![6, 1]));
    assert_eq!(manager.stats().tiers[0].invalid_reports, 1, "it had been reported");
    finish(&mut manager, &mut req);
    check_quiet(&manager);
}

/// Whatever a report says, a slot that the tier may still write becomes neither readable nor free.
#[test]
fn a_report_that_contradicts_itself_fails_the_job_and_holds_what_it_names() {
    let unnamed = |job: &TierJob| TierCompletion::done(job.id).with_held(vec![job.chunks[1].slot]);
    let of_another = |job: &TierJob| {
        TierCompletion::except(job.id, vec![key(2)]).with_held(vec![job.chunks[1].slot, SlotId(1000)])
    };
    let named_the_other =
        |job: &TierJob| TierCompletion::except(job.id, vec![key(1)]).with_held(vec![job.chunks[1].slot]);
    let reports: [&dyn Fn(&TierJob) -> TierCompletion; 3] = [&unnamed, &of_another, &named_the_other];
    for report in reports {
        let (mut manager, world, mut req, job) = with_open_read();
        world.report(0, report(&job));
        assert_eq!(lookups(&mut manager, &mut req, &keys([1, 2])), [Miss, Miss]);
        let counts = check_sound(&manager);
        assert_eq!((counts.free, counts.pending), (3, 1));
        let stats = tier_stats(&manager);
        assert_eq!((stats.invalid_reports, stats.jobs_late, stats.held_slots), (1, 1, 1));
        world.release(0, job.id, SlotId(1000));
        release_second(&world, &job);
        collect(&mut manager);
        assert_eq!((manager.counts().free, tier_stats(&manager).invalid_releases), (4, 1));
        finish(&mut manager, &mut req);
        check_quiet(&manager);
    }
}

#[test]
fn a_slot_that_is_named_twice_as_held_is_released_once() {
    let (mut manager, world, mut req, job) = with_open_read();
    let slot = job.chunks[1].slot;
    world.report(0, TierCompletion::failed(job.id).with_held(vec![slot, slot]));
    release_second(&world, &job);
    collect(&mut manager);
    let stats = tier_stats(&manager);
    assert_eq!((stats.held_slots, stats.invalid_reports, stats.invalid_releases), (0, 0, 0));
    finish(&mut manager, &mut req);
    check_quiet(&manager);
}

#[test]
fn a_chunk_that_a_cascade_names_twice_is_unpinned_by_one_release() {
    let (mut manager, world) = manager(2, &[Spec::request_level("all")]);
    let mut req = begin(&mut manager, 1);
    store(&mut manager, &mut req, &[key(1)]);
    serve(&mut manager, &world);
    world.calls();
    assert!(matches!(manager.prepare_store(&mut req, &keys([1, 1])), Ok(StoreOutcome::NothingToStore)));
    let job = world.new_job();
    assert_eq!((job.chunks.len(), job.chunks[0].slot), (2, job.chunks[1].slot));
    world.report(0, second_is_late(&job));
    collect(&mut manager);
    assert_eq!((check_sound(&manager).pinned, tier_stats(&manager).held_slots), (1, 1));
    release_second(&world, &job);
    collect(&mut manager);
    assert_eq!(check_sound(&manager).pinned, 0);
    assert_eq!(tier_stats(&manager).invalid_releases, 0);
    finish(&mut manager, &mut req);
    check_quiet(&manager);
}

#[test]
fn a_chunk_that_two_tiers_hold_is_pinned_until_both_have_let_it_go() {
    let (mut manager, world) = manager(1, &[Spec::chunk_level("a"), Spec::chunk_level("b")]);
    let mut req = begin(&mut manager, 1);
    store(&mut manager, &mut req, &[key(1)]);
    let jobs = world.new_jobs();
    for (tier, job) in &jobs {
        world.report(*tier, TierCompletion::failed(job.id).with_held(vec![job.chunks[0].slot]));
    }
    for (tier, job) in &jobs {
        collect(&mut manager);
        assert_eq!(check_sound(&manager).pinned, 1);
        world.release(*tier, job.id, job.chunks[0].slot);
    }
    collect(&mut manager);
    assert_eq!(check_sound(&manager).pinned, 0);
}

/// A tier that hangs would else be given one cascade after the other, each to be pinned for good.
#[test]
fn a_late_cascade_is_in_flight_until_its_last_slot_is_released() {
    let options = TieringOptions { inflight_cascades_max: 1, ..unbounded() };
    let (mut manager, world) = manager_with(8, &[Spec::chunk_level("disk")], options);
    let cascades_one_more = |manager: &mut TieringManager<Lru>, n: u64| {
        let mut req = begin(manager, n);
        store(manager, &mut req, &[key(n)]);
        finish(manager, &mut req);
        !world.new_jobs().is_empty()
    };
    let mut req = begin(&mut manager, 1);
    store(&mut manager, &mut req, &keys([1, 2]));
    let job = world.new_job();
    let slots: Vec<SlotId> = job.chunks.iter().map(|chunk| chunk.slot).collect();
    world.report(0, TierCompletion::failed(job.id).with_held(slots.clone()));
    collect(&mut manager);
    assert!(!cascades_one_more(&mut manager, 10));
    world.release(0, job.id, slots[1]);
    assert!(!cascades_one_more(&mut manager, 11));
    world.release(0, job.id, slots[0]);
    assert!(cascades_one_more(&mut manager, 12));
    assert!(!cascades_one_more(&mut manager, 13), "it counts once");
    assert_eq!(manager.stats().tiers[0].cascades_throttled, 3);
}

#[test]
fn a_late_chunk_is_not_tried_again_where_failed_jobs_are() {
    let options = TieringOptions { retry_failed_jobs: true, ..unbounded() };
    let (mut manager, world) = manager_with(4, &[Spec::chunk_level("disk")], options);
    world.put(0, &keys([1, 2]));
    let mut req = begin(&mut manager, 1);
    lookups(&mut manager, &mut req, &keys([1, 2]));
    manager.on_schedule_end();
    let job = world.new_job();
    world.report(0, TierCompletion::failed(job.id).with_held(vec![job.chunks[1].slot]));
    assert_eq!(lookups(&mut manager, &mut req, &keys([1, 2])), [HitPending, Miss]);
}

#[test]
fn held_slots_are_no_pending_work() {
    for is_read in [true, false] {
        let (mut manager, world, mut req, job) = if is_read { with_open_read() } else { with_open_write() };
        world.report(0, second_is_late(&job));
        assert!(manager.has_pending_work(), "the report has not been collected");
        collect(&mut manager);
        assert!(!manager.has_pending_work(), "a device that hangs would keep an idle engine stepping");
        release_second(&world, &job);
        assert!(!manager.has_pending_work());
        collect(&mut manager);
        finish(&mut manager, &mut req);
        check_quiet(&manager);
    }
}

#[test]
fn a_late_promotion_is_discarded_once_in_the_events() {
    let (mut manager, world, mut req, job) = with_open_read();
    world.report(0, second_is_late(&job));
    manager.lookup(&mut req, &key(1));
    let kinds: Vec<_> = events(&mut manager).into_iter().map(|event| (event.kind, event.keys)).collect();
    assert_eq!(
        kinds,
        [(kvo_core::EventKind::Stored, vec![key(1)]), (kvo_core::EventKind::Discarded, vec![key(2)])]
    );
    release_second(&world, &job);
    collect(&mut manager);
    assert_eq!(events(&mut manager), []);
}

#[test]
fn the_other_chunks_of_a_late_promotion_wait_for_nothing() {
    let (mut manager, world) = manager(8, &[Spec::request_level("all")]);
    world.put(0, &[key(1)]);
    let mut req = begin(&mut manager, 1);
    manager.lookup(&mut req, &key(1));
    manager.on_schedule_end();
    let job = world.new_job();
    // Another request waits for the chunk, to cascade it.
    let mut waiting = begin(&mut manager, 2);
    assert!(matches!(manager.prepare_store(&mut waiting, &[key(1)]), Ok(StoreOutcome::NothingToStore)));
    finish(&mut manager, &mut waiting);
    assert_eq!(world.finishes(0, waiting.id()), 0);
    world.report(0, TierCompletion::failed(job.id).with_held(vec![job.chunks[0].slot]));
    collect(&mut manager);
    assert_eq!(world.finishes(0, waiting.id()), 1, "the chunk will never come");
    assert_eq!(tier_stats(&manager).held_slots, 1);
}
