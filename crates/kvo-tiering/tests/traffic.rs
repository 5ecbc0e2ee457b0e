//! What goes to which tier, when, and what is counted of it.

mod support;

use std::time::Duration;

use kvo_core::{
    EdgeStats, EventKind, Locality, LookupResult, ManualClock, Medium, OffloadEvent, OffloadKey,
    OffloadManager, RequestContext, RequestId, StoreOutcome, TierCompletion, TierDirection, TierFilter,
};
use kvo_policies::Lru;
use kvo_tiering::{TieringManager, TieringOptions};
use support::{
    CHUNK_BYTES, begin, check_quiet, check_sound, events,
    fake_tier::{Call, Spec, World},
    finish, key, keys, lookups, manager, manager_with, offer, over, serve, store, store_failed, stored,
    unbounded,
};

use LookupResult::{Hit, HitPending, Miss, Retry};

fn asked(world: &World) -> Vec<usize> {
    let lookup = |(tier, call): (usize, Call)| matches!(call, Call::Lookup(..)).then_some(tier);
    world.calls().into_iter().filter_map(lookup).collect()
}

#[test]
fn tiers_are_asked_in_order_until_one_has_the_chunk() {
    let slow = Spec { async_lookup: true, ..Spec::chunk_level("slow") };
    let (mut manager, world) = manager(4, &[slow, Spec::chunk_level("b"), Spec::chunk_level("c")]);
    world.put(1, &[key(1)]);
    world.put(2, &keys([1, 2]));
    let mut req = begin(&mut manager, 1);
    world.calls();
    assert_eq!(manager.lookup(&mut req, &key(1)), HitPending, "a hit counts for more than a retry");
    assert_eq!(asked(&world), [0, 1]);
    assert_eq!(manager.lookup(&mut req, &key(1)), HitPending);
    assert_eq!(asked(&world), [0_usize; 0], "the primary has it");
    assert_eq!(manager.lookup(&mut req, &key(2)), HitPending);
    assert_eq!(asked(&world), [0, 1, 2]);
    assert_eq!(manager.lookup(&mut req, &key(3)), Retry);
    manager.on_schedule_end();
    assert_eq!(manager.lookup(&mut req, &key(3)), Miss);
    let jobs: Vec<_> = world.open_jobs().into_iter().map(|(tier, job)| (tier, job.chunks[0].key)).collect();
    assert_eq!(jobs, [(1, key(1)), (2, key(2))]);
    let stats = manager.stats();
    let counted: Vec<_> = stats.tiers.iter().map(|tier| (tier.queries, tier.hits, tier.retries)).collect();
    assert_eq!(counted, [(4, 0, 3), (4, 1, 0), (3, 1, 0)]);
}

#[test]
fn a_filter_keeps_lookups_from_tiers_and_cascades_go_to_all() {
    let spec = |name: &str, medium, locality| Spec { medium, locality, ..Spec::chunk_level(name) };
    let specs = [
        spec("disk", Medium::Ssd, Locality::Local),
        spec("store", Medium::Object, Locality::Remote),
        spec("far disk", Medium::Ssd, Locality::Remote),
    ];
    let check = |filter: TierFilter, expected: &[usize]| {
        let (mut manager, world) = manager(2, &specs);
        let mut req = RequestContext::new(RequestId(1)).with_tier_filter(filter.clone());
        manager.new_request(&mut req).expect("the request is new");
        manager.lookup(&mut req, &key(1));
        assert_eq!(asked(&world), expected, "{filter:?}");
        store(&mut manager, &mut req, &[key(1)]);
        assert_eq!(world.new_jobs().len(), 3, "{filter:?} is for lookups");
    };
    check(TierFilter::all(), &[0, 1, 2]);
    check(TierFilter::all().only_media([Medium::Ssd]), &[0, 2]);
    check(TierFilter::all().only_localities([Locality::Remote]), &[1, 2]);
    check(TierFilter::all().only_media([Medium::Ssd]).only_localities([Locality::Remote]), &[2]);
    check(TierFilter::all().only_media([]), &[]);
}

#[test]
fn promotions_of_a_step_are_one_job_a_tier_and_request() {
    let (mut manager, world) = manager(8, &[Spec::chunk_level("a"), Spec::chunk_level("b")]);
    world.put(0, &keys([1, 3, 5]));
    world.put(1, &keys([2, 4]));
    let (mut first, mut second) = (begin(&mut manager, 1), begin(&mut manager, 2));
    first.set_positions([(key(4), 64)]);
    lookups(&mut manager, &mut second, &keys([2]));
    lookups(&mut manager, &mut first, &keys([1, 3, 4]));
    lookups(&mut manager, &mut second, &keys([5]));
    world.calls();
    manager.on_schedule_end();
    let jobs = world.new_jobs();
    let of: Vec<_> = jobs
        .iter()
        .map(|(tier, job)| (*tier, job.req.0, job.chunks.iter().map(|chunk| chunk.key).collect::<Vec<_>>()))
        .collect();
    let expected =
        [(1, 2, vec![key(2)]), (1, 1, vec![key(4)]), (0, 1, keys([1, 3]).to_vec()), (0, 2, vec![key(5)])];
    assert_eq!(of, expected);
    assert!(jobs.iter().all(|(_, job)| job.direction == TierDirection::Read));
    assert_eq!(jobs[1].1.chunks[0].end_token, Some(64));
    assert_eq!(jobs[0].1.chunks[0].end_token, None);
}

#[test]
fn results_are_collected_once_a_step_and_before_every_offer() {
    let (mut manager, world) = manager(4, &[Spec::chunk_level("a")]);
    let mut req = begin(&mut manager, 1);
    let polls = || world.calls().iter().filter(|(_, call)| *call == Call::Poll).count();
    polls();
    lookups(&mut manager, &mut req, &keys([1, 2, 3]));
    assert_eq!(polls(), 1, "the first lookup of a step");
    for n in 1..3 {
        let job = offer(&mut manager, &mut req, &[key(n)]);
        assert_eq!(polls(), 1, "every offer");
        stored(&mut manager, job.token);
    }
    manager.on_schedule_end();
    assert_eq!(polls(), 0, "the step has seen a poll");
    manager.on_schedule_end();
    assert_eq!(polls(), 1, "this one has not");
    manager.reset();
    assert_eq!(polls(), 1);
}

/// B49: and one that fails leaves no pin.
#[test]
fn a_cascade_too_many_is_left_out_and_pins_nothing() {
    let options = TieringOptions { inflight_cascades_max: 1, ..unbounded() };
    let (mut manager, world) =
        manager_with(4, &[Spec::chunk_level("slow"), Spec::chunk_level("fast")], options);
    world.put(0, &[key(9)]);
    let mut req = begin(&mut manager, 1);
    let throttled = |manager: &TieringManager<Lru>| {
        manager.stats().tiers.iter().map(|tier| tier.cascades_throttled).collect::<Vec<_>>()
    };
    let tiers_of_new_jobs = || world.new_jobs().iter().map(|(tier, _)| *tier).collect::<Vec<_>>();
    store(&mut manager, &mut req, &[key(1)]);
    let jobs = world.new_jobs();
    assert_eq!(jobs.iter().map(|(tier, _)| *tier).collect::<Vec<_>>(), [0, 1]);
    world.report(1, TierCompletion::done(jobs[1].1.id));
    store(&mut manager, &mut req, &[key(2)]);
    assert_eq!(tiers_of_new_jobs(), [1], "only the fast tier takes another");
    assert_eq!(throttled(&manager), [1, 0]);

    assert_eq!(manager.lookup(&mut req, &key(9)), HitPending);
    manager.on_schedule_end();
    assert_eq!(tiers_of_new_jobs(), [0], "a promotion is no cascade");

    let (_, second) = world.open_jobs().into_iter().find(|(tier, _)| *tier == 1).expect("it is open");
    world.report(1, TierCompletion::failed(second.id));
    manager.lookup(&mut req, &key(7));
    assert_eq!(check_sound(&manager).pinned, 1, "the slow tier pins its one chunk alone");
    assert_eq!(manager.counts().evictable, 1);

    world.report(0, TierCompletion::failed(jobs[0].1.id));
    let mut next = begin(&mut manager, 2);
    store(&mut manager, &mut next, &[key(3)]);
    assert_eq!(tiers_of_new_jobs(), [0, 1], "a job that ended makes way, however it ended");
    assert_eq!(throttled(&manager), [1, 0]);
    finish(&mut manager, &mut req);
    finish(&mut manager, &mut next);
    serve(&mut manager, &world);
    check_quiet(&manager);
}

/// B05: what lies in a tier behind a missing head can never be matched.
#[test]
fn after_a_cascade_that_was_left_out_a_tier_gets_no_more_of_the_request() {
    for spec in [Spec::chunk_level("a"), Spec::request_level("a")] {
        let options = TieringOptions { inflight_cascades_max: 1, ..unbounded() };
        let (mut manager, world) = manager_with(4, &[spec], options);
        let mut req = begin(&mut manager, 1);
        store(&mut manager, &mut req, &[key(1)]);
        store(&mut manager, &mut req, &[key(2)]);
        serve(&mut manager, &world);
        store(&mut manager, &mut req, &[key(3)]);
        assert_eq!(world.new_jobs().len(), 1, "keys 2 and 3 stay above");
        assert_eq!(manager.stats().tiers[0].cascades_throttled, 2);
        finish(&mut manager, &mut req);
        serve(&mut manager, &world);
        check_quiet(&manager);
    }
}

/// B05: as soon as the head is offered again, which an engine does for a request that begins anew, all goes on.
#[test]
fn a_request_that_was_cut_off_goes_on_where_it_was() {
    let options = TieringOptions { inflight_cascades_max: 1, ..unbounded() };
    let (mut manager, world) = manager_with(4, &[Spec::request_level("a")], options);
    let mut req = begin(&mut manager, 1);
    store(&mut manager, &mut req, &[key(1)]);
    store(&mut manager, &mut req, &[key(2)]);
    serve(&mut manager, &world);
    world.new_jobs();
    let job_of = |world: &World| world.new_jobs().into_iter().flat_map(|(_, job)| job.chunks);
    let _ = manager.prepare_store(&mut req, &[key(1)]).unwrap();
    assert_eq!(job_of(&world).count(), 0, "it has that one");
    let _ = manager.prepare_store(&mut req, &keys([1, 2])).unwrap();
    assert_eq!(job_of(&world).map(|chunk| chunk.key).collect::<Vec<_>>(), keys([1, 2]));
    serve(&mut manager, &world);
    store(&mut manager, &mut req, &[key(3)]);
    assert_eq!(job_of(&world).map(|chunk| chunk.key).collect::<Vec<_>>(), keys([3]));
    serve(&mut manager, &world);
    finish(&mut manager, &mut req);
    check_quiet(&manager);
}

/// B55: after a reset everything is offered again, head first.
#[test]
fn a_request_that_was_cut_off_goes_on_after_a_reset() {
    let options = TieringOptions { inflight_cascades_max: 1, ..unbounded() };
    let (mut manager, world) = manager_with(4, &[Spec::chunk_level("a")], options);
    let mut req = begin(&mut manager, 1);
    store(&mut manager, &mut req, &[key(1)]);
    store(&mut manager, &mut req, &[key(2)]);
    serve(&mut manager, &world);
    manager.reset_cache();
    manager.on_reset_flushed();
    world.new_jobs();
    store(&mut manager, &mut req, &keys([1, 2]));
    assert_eq!(world.new_job().chunks.len(), 2);
    finish(&mut manager, &mut req);
    serve(&mut manager, &world);
    check_quiet(&manager);
}

#[test]
fn a_finished_request_that_only_waited_to_be_cascaded_is_over_when_tiers_end() {
    let (mut manager, world) = manager(4, &[Spec::request_level("a")]);
    let [mut first, mut second] = [1, 2].map(|id| begin(&mut manager, id));
    let job = offer(&mut manager, &mut first, &[key(1)]);
    let _ = manager.prepare_store(&mut second, &[key(1)]).unwrap();
    finish(&mut manager, &mut second);
    assert_eq!(world.finishes(0, RequestId(2)), 0);
    manager.shut_down(Duration::ZERO);
    assert_eq!(world.finishes(0, RequestId(2)), 1);
    stored(&mut manager, job.token);
    finish(&mut manager, &mut first);
    check_quiet(&manager);
}

#[test]
fn only_cascades_of_chunks_are_counted_as_throttled() {
    let options = TieringOptions { inflight_cascades_max: 1, ..unbounded() };
    let (mut manager, _world) = manager_with(4, &[Spec::request_level("a")], options);
    let mut req = begin(&mut manager, 1);
    store(&mut manager, &mut req, &[key(1)]);
    let job = offer(&mut manager, &mut req, &[key(2)]);
    assert_eq!(manager.stats().tiers[0].cascades_throttled, 0, "the offer had no ready residents");
    store_failed(&mut manager, job.token);
}

#[test]
fn work_is_pending_while_a_later_step_has_something_to_collect() {
    let (mut manager, world) = manager(4, &[Spec::request_level("a")]);
    world.put(0, &[key(1)]);
    let mut req = begin(&mut manager, 1);
    assert!(!manager.has_pending_work());
    manager.lookup(&mut req, &key(1));
    assert!(manager.has_pending_work(), "a promotion is queued");
    manager.on_schedule_end();
    assert!(manager.has_pending_work(), "a job is open");
    world.report(0, TierCompletion::failed(world.new_job().id));
    assert!(manager.has_pending_work(), "its report has not been collected");
    manager.on_schedule_end();
    assert!(!manager.has_pending_work());

    let job = offer(&mut manager, &mut req, &[key(2)]);
    assert!(!manager.has_pending_work(), "a store is the engine's own");
    let mut other = begin(&mut manager, 2);
    assert!(matches!(manager.prepare_store(&mut other, &[key(2)]), Ok(StoreOutcome::NothingToStore)));
    assert!(manager.has_pending_work(), "a chunk is parked");
    store_failed(&mut manager, job.token);
    manager.on_schedule_end();
    assert!(!manager.has_pending_work(), "it will never come");
    finish(&mut manager, &mut req);
    finish(&mut manager, &mut other);
    check_quiet(&manager);
}

#[test]
fn a_tier_that_wants_all_gets_the_residents_too_and_parked_chunks_by_arrival() {
    let (mut manager, world) = manager(4, &[Spec::chunk_level("new"), Spec::request_level("all")]);
    let mut writer = begin(&mut manager, 1);
    store(&mut manager, &mut writer, &[key(1)]);
    let open = offer(&mut manager, &mut writer, &[key(2)]);
    world.calls();
    let (mut early, mut late) = (begin(&mut manager, 2), begin(&mut manager, 3));
    for req in [&mut late, &mut early] {
        let outcome = manager.prepare_store(req, &keys([1, 2]));
        assert!(matches!(outcome, Ok(StoreOutcome::NothingToStore)));
        let job = world.new_job();
        assert_eq!((job.req, job.chunks.len(), job.chunks[0].key), (req.id(), 1, key(1)));
        finish(&mut manager, req);
    }
    assert!(world.open_jobs().iter().skip(1).all(|(tier, _)| *tier == 1), "the first wants new chunks only");
    stored(&mut manager, open.token);
    assert_eq!(world.new_jobs().len(), 2);
    manager.on_schedule_end();
    let calls: Vec<_> = world.calls().into_iter().filter(|(tier, _)| *tier == 1).collect();
    let order: Vec<_> = calls
        .iter()
        .filter_map(|(_, call)| match call {
            Call::Job(job) => Some((job.req.0, "job")),
            Call::Finished(req) => Some((req.0, "finished")),
            _ => None,
        })
        .collect();
    assert_eq!(order, [(2, "job"), (2, "finished"), (3, "job"), (3, "finished")]);
}

#[test]
fn a_refused_offer_cascades_nothing() {
    let (mut manager, world) = manager(2, &[Spec::request_level("all")]);
    let mut req = begin(&mut manager, 1);
    store(&mut manager, &mut req, &[key(1)]);
    let open = offer(&mut manager, &mut req, &[key(2)]);
    world.calls();
    assert!(matches!(manager.prepare_store(&mut req, &keys([1, 2, 3])), Ok(StoreOutcome::Refused(_))));
    manager.on_schedule_end();
    assert_eq!(world.new_jobs(), []);
    stored(&mut manager, open.token);
    world.calls();
    manager.on_schedule_end();
    assert_eq!(world.new_jobs(), [], "nothing was parked");
}

#[test]
fn a_job_that_failed_as_a_whole_may_be_tried_again_if_the_options_say_so() {
    for retry_failed_jobs in [true, false] {
        let options = TieringOptions { retry_failed_jobs, ..unbounded() };
        let (mut manager, world) = manager_with(4, &[Spec::chunk_level("a")], options);
        world.put(0, &keys([1, 2]));
        let mut req = begin(&mut manager, 1);
        let again = if retry_failed_jobs { HitPending } else { Miss };
        lookups(&mut manager, &mut req, &keys([1, 2]));
        manager.on_schedule_end();
        world.report(0, TierCompletion::failed(world.new_job().id));
        assert_eq!(lookups(&mut manager, &mut req, &keys([1, 2])), [again, again]);
        if retry_failed_jobs {
            manager.on_schedule_end();
            world.report(0, TierCompletion::except(world.new_job().id, vec![key(2)]));
            assert_eq!(
                lookups(&mut manager, &mut req, &keys([1, 2])),
                [Hit, Miss],
                "alone it failed for good"
            );
        }
    }
}

#[test]
fn a_failure_is_not_held_against_a_later_request_of_the_same_number() {
    let (mut manager, world) = manager(4, &[Spec::chunk_level("a")]);
    world.put(0, &[key(1)]);
    let mut old = begin(&mut manager, 1);
    manager.lookup(&mut old, &key(1));
    manager.on_schedule_end();
    finish(&mut manager, &mut old);
    let mut new = begin(&mut manager, 1);
    world.report(0, TierCompletion::failed(world.new_job().id));
    assert_eq!(manager.lookup(&mut new, &key(1)), HitPending, "it has not tried yet");
}

/// B37: what is counted as read has come.
#[test]
fn jobs_chunks_bytes_and_time_are_counted_by_edge() {
    let clock = ManualClock::default();
    let (world, tiers) = World::new(&[Spec::chunk_level("a"), Spec::chunk_level("b")]);
    let mut manager = over(4, tiers, unbounded(), clock.clone());
    world.put(0, &keys([5, 6]));
    let mut req = begin(&mut manager, 1);
    store(&mut manager, &mut req, &keys([1, 2]));
    let writes = world.new_jobs();
    manager.on_schedule_end();
    clock.advance(Duration::from_millis(3));
    world.report(0, TierCompletion::done(writes[0].1.id));
    lookups(&mut manager, &mut req, &keys([5, 6]));
    clock.advance(Duration::from_millis(4));
    manager.on_schedule_end();
    let read = world.new_job();
    clock.advance(Duration::from_millis(5));
    world.report(0, TierCompletion::except(read.id, vec![key(6)]));
    manager.lookup(&mut req, &key(5));

    let stats = manager.stats();
    let edge = |jobs_done, jobs_failed, chunks, ms| EdgeStats {
        jobs_done,
        jobs_failed,
        chunks,
        bytes: chunks * CHUNK_BYTES,
        time: Duration::from_millis(ms),
    };
    assert_eq!((stats.tiers[0].written, stats.tiers[0].read), (edge(1, 0, 2, 3), edge(0, 1, 1, 5)));
    assert_eq!((stats.tiers[1].written, stats.tiers[1].read), (EdgeStats::default(), EdgeStats::default()));
    assert_eq!((stats.tiers[0].active_jobs, stats.tiers[1].active_jobs), (0, 1));
    assert_eq!((stats.tiers[0].queries, stats.tiers[0].hits), (2, 2));
    assert_eq!((stats.tiers[0].name.as_str(), stats.tiers[1].name.as_str()), ("a", "b"));
}

/// B58: each with its tier, in order.
#[test]
fn events_of_all_tiers_come_together_once() {
    let (mut manager, world) = manager(2, &[Spec::chunk_level("a"), Spec::chunk_level("b")]);
    let stored = |tier: &str, keys: &[OffloadKey]| OffloadEvent {
        tier: tier.into(),
        medium: Medium::Ssd,
        kind: EventKind::Stored,
        keys: keys.to_vec(),
    };
    let mut req = begin(&mut manager, 1);
    store(&mut manager, &mut req, &[key(1)]);
    for (tier, name) in [(1, "b"), (0, "a")] {
        world.lock().tiers[tier].events.push(stored(name, &[key(1)]));
    }
    let of_primary = OffloadEvent { medium: Medium::Memory, ..stored("cpu", &[key(1)]) };
    assert_eq!(events(&mut manager), [of_primary, stored("a", &[key(1)]), stored("b", &[key(1)])]);
    assert_eq!(events(&mut manager), []);
}

#[test]
fn a_promotion_is_one_event_of_what_came_and_one_of_what_did_not() {
    let (mut manager, world) = manager(4, &[Spec::chunk_level("a")]);
    world.put(0, &keys([1, 2, 3]));
    let mut req = begin(&mut manager, 1);
    lookups(&mut manager, &mut req, &keys([1, 2, 3]));
    manager.on_schedule_end();
    assert_eq!(events(&mut manager), [], "nothing has come yet");
    world.report(0, TierCompletion::except(world.new_job().id, vec![key(2)]));
    manager.on_schedule_end();
    let seen: Vec<_> = events(&mut manager).into_iter().map(|event| (event.kind, event.keys)).collect();
    let expected = [(EventKind::Stored, keys([1, 3]).to_vec()), (EventKind::Discarded, vec![key(2)])];
    assert_eq!(seen, expected);
}
