//! Calls and reports that make no sense: each is an error or is counted, and changes nothing else.

mod support;

use std::time::Duration;

use kvo_core::{
    CompleteErrorReason, JobId, LoadError, LookupResult, ManualClock, OffloadManager, RequestContext,
    RequestError, RequestId, StoreError, StoreOutcome, TierCompletion, TierDirection, TransferResult,
};
use kvo_policies::Lru;
use kvo_tiering::{
    MemoryTier, PressureOptions, TieringConfigError, TieringManager, TieringOptions, TieringStats, Watermarks,
};
use support::{
    CHUNK_BYTES, begin, check_quiet, check_sound,
    fake_tier::{Call, Spec, World},
    finish, key, keys, load, loaded, lookups, manager, offer, serve, store, stored, with_policy,
};

use LookupResult::{Hit, HitPending, Miss};

#[track_caller]
fn check_config(specs: &[Spec], options: TieringOptions, expected: &TieringConfigError) {
    let (_, tiers) = World::new(specs);
    let primary = with_policy(2, Lru::new(2));
    let made = TieringManager::new(primary, tiers, options, Box::new(ManualClock::default()));
    assert_eq!(&made.expect_err("it cannot be made"), expected);
}

#[test]
fn tiers_need_names_of_their_own() {
    let options = TieringOptions::new(CHUNK_BYTES);
    let twice = |name: &str| TieringConfigError::DuplicateTier { name: name.to_owned() };
    let named = |names: &[&str]| names.iter().map(|name| Spec::chunk_level(name)).collect::<Vec<_>>();
    check_config(&named(&["a", "b", "a"]), options.clone(), &twice("a"));
    check_config(&named(&["a", "cpu"]), options, &twice("cpu"));
}

#[test]
fn there_are_at_most_as_many_tiers_as_can_be_told_apart() {
    let named = |count: usize| (0..count).map(|n| Spec::chunk_level(&format!("t{n}"))).collect::<Vec<_>>();
    let too_many = TieringConfigError::TooManyTiers { num_tiers: 65, num_tiers_max: 64 };
    check_config(&named(65), TieringOptions::new(CHUNK_BYTES), &too_many);

    let mut specs = named(63);
    specs.push(Spec::request_level("last"));
    let (mut manager, world) = manager(2, &specs);
    let mut req = begin(&mut manager, 1);
    store(&mut manager, &mut req, &[key(1)]);
    assert_eq!(world.new_jobs().len(), 64);
    assert!(matches!(manager.prepare_store(&mut req, &[key(1)]), Ok(StoreOutcome::NothingToStore)));
    let again: Vec<usize> = world.new_jobs().iter().map(|(tier, _)| *tier).collect();
    assert_eq!(again, [63], "the last one alone wants residents");
}

#[test]
fn options_that_must_not_be_zero_are_named() {
    let good = TieringOptions::new(CHUNK_BYTES);
    let zero = |field| TieringConfigError::Zero { field };
    check_config(&[], TieringOptions { chunk_bytes: 0, ..good.clone() }, &zero("chunk_bytes"));
    let none_in_flight = TieringOptions { inflight_cascades_max: 0, ..good };
    check_config(&[], none_in_flight, &zero("inflight_cascades_max"));

    let options = kvo_cpu::RegionOptions { prefault_threads: 0, ..kvo_cpu::RegionOptions::new(1, 64) };
    let region = std::sync::Arc::new(kvo_cpu::HostRegion::anonymous(&options).expect("there is memory"));
    let made = MemoryTier::new("memory", 0, Lru::new(0), region);
    assert_eq!(made.expect_err("it cannot be made"), zero("capacity_chunks"));
}

#[test]
fn bounds_that_bound_nothing_are_named() {
    let good = PressureOptions::default();
    let second = Duration::from_secs(1);
    let marks = Some(Watermarks { low: second, high: second });
    let share = |field, percent| TieringConfigError::Share { field, percent };
    let zero = |field| TieringConfigError::Zero { field };
    let crossed = |field| TieringConfigError::Watermarks { field, low: second, high: second };
    for (pressure, error) in [
        (PressureOptions { promotion_share: Some(0), ..good.clone() }, share("promotion_share", 0)),
        (PressureOptions { cascade_share: Some(101), ..good.clone() }, share("cascade_share", 101)),
        (PressureOptions { writes: marks, ..good.clone() }, crossed("writes")),
        (PressureOptions { reads: marks, ..good.clone() }, crossed("reads")),
        (PressureOptions { unread_max: Duration::ZERO, ..good.clone() }, zero("unread_max")),
        (PressureOptions { job_deadline: Some(Duration::ZERO), ..good.clone() }, zero("job_deadline")),
        (PressureOptions { lookup_deadline: Some(Duration::ZERO), ..good.clone() }, zero("lookup_deadline")),
        (PressureOptions { failures_max: Some(0), ..good.clone() }, zero("failures_max")),
        (PressureOptions { pause: Duration::ZERO, ..good.clone() }, zero("pause")),
        (
            PressureOptions { pause: 2 * second, pause_max: second, ..good },
            TieringConfigError::Pause { pause: 2 * second, pause_max: second },
        ),
    ] {
        check_config(&[], TieringOptions::new(CHUNK_BYTES).with_pressure(pressure), &error);
    }
}

/// Two tiers; a promotion of keys 1 and 2 is open at the first, a cascade of key 5 at both.
fn with_open_jobs() -> (TieringManager<Lru>, World, RequestContext, JobId, [JobId; 2]) {
    let (mut manager, world) = manager(4, &[Spec::chunk_level("a"), Spec::chunk_level("b")]);
    world.put(0, &keys([1, 2]));
    let mut req = begin(&mut manager, 1);
    lookups(&mut manager, &mut req, &keys([1, 2]));
    manager.on_schedule_end();
    let read = world.new_job();
    assert_eq!(read.direction, TierDirection::Read);
    store(&mut manager, &mut req, &[key(5)]);
    manager.on_schedule_end();
    let writes = world.new_jobs();
    (manager, world, req, read.id, [writes[0].1.id, writes[1].1.id])
}

fn invalid_reports(stats: &TieringStats) -> Vec<u64> {
    stats.tiers.iter().map(|tier| tier.invalid_reports).collect()
}

/// B13: it is counted, and nothing else.
#[test]
fn a_report_of_an_unknown_job_or_another_tiers_job_changes_nothing_but_its_count() {
    let (mut manager, world, mut req, read, [_, second_write]) = with_open_jobs();
    let (counts, stats) = (manager.counts(), manager.stats());
    world.report(0, TierCompletion::done(JobId(99)));
    world.report(0, TierCompletion::failed(second_write));
    world.report(1, TierCompletion::done(read));
    assert_eq!(lookups(&mut manager, &mut req, &keys([1, 2, 5])), [HitPending, HitPending, Hit]);
    assert_eq!(check_sound(&manager), counts);
    let after = manager.stats();
    assert_eq!(invalid_reports(&after), [2, 1]);
    let of = |stats: &TieringStats| {
        stats.tiers.iter().map(|tier| (tier.active_jobs, tier.read, tier.written)).collect::<Vec<_>>()
    };
    assert_eq!(of(&after), of(&stats));
    finish(&mut manager, &mut req);
    serve(&mut manager, &world);
    check_quiet(&manager);
}

/// B11: and takes no pin of another.
#[test]
fn a_job_that_is_reported_twice_ends_once() {
    for in_one_poll in [true, false] {
        let (mut manager, world, mut req, read, [write, _]) = with_open_jobs();
        for id in [read, write] {
            world.report(0, TierCompletion::done(id));
            if !in_one_poll {
                manager.on_schedule_end();
            }
            world.report(0, TierCompletion::failed(id));
        }
        manager.on_schedule_end();
        assert_eq!(lookups(&mut manager, &mut req, &keys([1, 2])), [Hit, Hit]);
        let counts = check_sound(&manager);
        assert_eq!(counts.pinned, 1, "the other tier still reads its chunk");
        assert_eq!(invalid_reports(&manager.stats()), [2, 0]);
        finish(&mut manager, &mut req);
        serve(&mut manager, &world);
        check_quiet(&manager);
    }
}

#[test]
fn a_report_with_a_key_that_the_job_does_not_have_fails_the_whole_job() {
    let (mut manager, world, mut req, read, [write, _]) = with_open_jobs();
    world.report(0, TierCompletion::except(read, keys([2, 7]).to_vec()));
    world.report(0, TierCompletion::except(write, keys([1]).to_vec()));
    assert_eq!(lookups(&mut manager, &mut req, &keys([1, 2, 7, 5])), [Miss, Miss, Miss, Hit]);
    assert_eq!(invalid_reports(&manager.stats()), [2, 0]);
    let tier = &manager.stats().tiers[0];
    assert_eq!((tier.read.jobs_failed, tier.read.chunks, tier.written.jobs_failed), (1, 0, 1));
    finish(&mut manager, &mut req);
    serve(&mut manager, &world);
    check_quiet(&manager);
}

#[test]
fn a_report_of_more_copies_than_the_job_has_chunks_fails_the_whole_job() {
    for num in [3, usize::MAX] {
        let (mut manager, world, mut req, read, _) = with_open_jobs();
        world.report(0, TierCompletion::done(read).with_copied(num));
        assert_eq!(lookups(&mut manager, &mut req, &keys([1, 2])), [Miss, Miss]);
        assert_eq!(invalid_reports(&manager.stats()), [1, 0]);
        finish(&mut manager, &mut req);
        serve(&mut manager, &world);
        check_quiet(&manager);
    }
}

/// B07: between a slot and its job there is no way out that keeps the slot.
#[test]
fn a_tier_that_takes_no_jobs_leaves_no_hold_and_its_chunks_are_misses() {
    let (mut manager, world) = manager(4, &[Spec::chunk_level("a"), Spec::chunk_level("b")]);
    world.put(0, &keys([1, 2]));
    world.lock().tiers[0].refuses_reads = true;
    world.lock().tiers[0].refuses_writes = true;
    let mut req = begin(&mut manager, 1);
    assert_eq!(lookups(&mut manager, &mut req, &keys([1, 2])), [HitPending, HitPending]);
    manager.on_schedule_end();
    let rejected = |call: &(usize, Call)| matches!(call, (0, Call::Rejected(job)) if job.chunks.len() == 2);
    assert_eq!(world.calls().iter().filter(|call| rejected(call)).count(), 1);
    assert_eq!(lookups(&mut manager, &mut req, &keys([1, 2])), [Miss, Miss]);
    assert_eq!(manager.counts().free, 4);
    store(&mut manager, &mut req, &[key(5)]);
    assert_eq!(world.new_jobs().iter().map(|(tier, _)| *tier).collect::<Vec<_>>(), [1]);
    let stats = manager.stats();
    assert_eq!(stats.tiers.iter().map(|tier| tier.jobs_rejected).collect::<Vec<_>>(), [2, 0]);
    assert_eq!(stats.tiers.iter().map(|tier| tier.active_jobs).collect::<Vec<_>>(), [0, 1]);
    finish(&mut manager, &mut req);
    serve(&mut manager, &world);
    check_quiet(&manager);
}

#[test]
fn a_rejected_promotion_may_be_asked_for_by_another_request() {
    let (mut manager, world) = manager(2, &[Spec::chunk_level("a")]);
    world.put(0, &[key(1)]);
    world.lock().tiers[0].refuses_reads = true;
    let mut req = begin(&mut manager, 1);
    manager.lookup(&mut req, &key(1));
    manager.on_schedule_end();
    world.lock().tiers[0].refuses_reads = false;
    assert_eq!(manager.lookup(&mut req, &key(1)), Miss);
    let mut other = begin(&mut manager, 2);
    assert_eq!(manager.lookup(&mut other, &key(1)), HitPending);
}

#[test]
fn calls_for_a_request_that_was_never_announced_are_errors() {
    let (mut manager, world) = manager(2, &[Spec::request_level("a")]);
    world.put(0, &[key(1)]);
    let mut req = RequestContext::new(RequestId(7));
    let unknown = RequestError::Unknown { req: RequestId(7) };
    let before = (manager.counts(), manager.stats().open_requests);
    let offered = manager.prepare_store(&mut req, &[key(2)]).map(|_| ());
    assert_eq!(offered, Err(StoreError::Request(unknown.clone())));
    assert_eq!(manager.prepare_load(&mut req, &[]), Err(LoadError::Request(unknown.clone())));
    assert_eq!(manager.on_request_finished(&mut req), Err(unknown));
    assert_eq!(manager.lookup(&mut req, &key(1)), Miss, "nothing is promoted for it");
    manager.on_schedule_end();
    assert_eq!(world.new_jobs(), []);
    assert_eq!((manager.counts(), manager.stats().open_requests), before);
    assert_eq!(manager.new_request(&mut req), Ok(kvo_core::OffloadPolicy::RequestLevel), "it is still new");
}

#[test]
fn a_request_begins_once() {
    let (mut manager, world) = manager(2, &[Spec::chunk_level("a")]);
    let mut req = begin(&mut manager, 1);
    world.calls();
    let known = Err(RequestError::Known { req: RequestId(1) });
    assert_eq!(manager.new_request(&mut req), known);
    let mut same_number = RequestContext::new(RequestId(1));
    assert_eq!(manager.new_request(&mut same_number), known);
    let job = offer(&mut manager, &mut req, &[key(1)]);
    finish(&mut manager, &mut req);
    assert_eq!(manager.new_request(&mut same_number), known, "its chunks are still on their way");
    assert!(!world.calls().iter().any(|(_, call)| matches!(call, Call::NewRequest(_))));
    stored(&mut manager, job.token);
    assert!(manager.new_request(&mut same_number).is_ok(), "the number is free again");
    finish(&mut manager, &mut same_number);
    assert_eq!(manager.new_request(&mut req), known, "a context is for one request");
}

#[test]
fn a_finished_request_neither_loads_nor_stores_nor_promotes() {
    for settled in [true, false] {
        let (mut manager, world) = manager(4, &[Spec::chunk_level("a")]);
        world.put(0, &keys([2, 3]));
        let mut req = begin(&mut manager, 1);
        store(&mut manager, &mut req, &[key(1)]);
        let open = (!settled).then(|| offer(&mut manager, &mut req, &[key(9)]));
        finish(&mut manager, &mut req);
        serve(&mut manager, &world);
        let before = (manager.counts(), manager.stats().open_requests);
        let finished = RequestError::Finished { req: RequestId(1) };
        assert_eq!(manager.on_request_finished(&mut req), Err(finished.clone()));
        assert_eq!(manager.prepare_load(&mut req, &[key(1)]), Err(LoadError::Request(finished.clone())));
        let offered = manager.prepare_store(&mut req, &[key(4)]).map(|_| ());
        assert_eq!(offered, Err(StoreError::Request(finished)));
        assert_eq!(lookups(&mut manager, &mut req, &keys([1, 2])), [Hit, Miss]);
        assert_eq!((manager.counts(), manager.stats().open_requests), before);
        drop(open);
    }
}

#[test]
fn a_token_ends_its_own_job_only() {
    let (mut first, world) = manager(4, &[Spec::chunk_level("a")]);
    let (mut second, second_world) = manager(4, &[Spec::chunk_level("a")]);
    let mut req = begin(&mut first, 1);
    let mut second_req = begin(&mut second, 1);
    store(&mut first, &mut req, &[key(1)]);
    serve(&mut first, &world);
    // Jobs of one number at both managers.
    store(&mut second, &mut second_req, &[key(1)]);
    serve(&mut second, &second_world);
    let foreign = offer(&mut second, &mut second_req, &[key(2)]);
    let job = offer(&mut first, &mut req, &[key(2)]);
    assert_eq!(job.token.id(), foreign.token.id());
    world.calls();
    let before = first.counts();

    let error = first.complete_store(foreign.token, TransferResult::Done).unwrap_err();
    assert_eq!(error.reason, CompleteErrorReason::OtherManager);
    stored(&mut second, error.token);
    let error = first.complete_load(job.token).unwrap_err();
    assert_eq!(error.reason, CompleteErrorReason::WrongKind);
    let loading = load(&mut first, &mut req, &[key(1)]);
    let load_error = first.complete_store(loading.token, TransferResult::Done).unwrap_err();
    assert_eq!(load_error.reason, CompleteErrorReason::WrongKind);
    loaded(&mut first, load_error.token);
    assert_eq!(first.counts(), before);
    assert_eq!(world.new_jobs(), [], "nothing cascades of a refused completion");
    stored(&mut first, error.token);
    assert_eq!(world.new_jobs().len(), 1, "a token that was handed back still ends its job");
}

/// B23, for what tiers are told.
#[test]
fn a_token_of_before_a_reset_ends_nothing() {
    let (mut manager, world) = manager(4, &[Spec::request_level("a")]);
    let mut req = begin(&mut manager, 1);
    store(&mut manager, &mut req, &[key(1)]);
    serve(&mut manager, &world);
    let loading = load(&mut manager, &mut req, &[key(1)]);
    let storing = offer(&mut manager, &mut req, &[key(2)]);
    let mut waiting = begin(&mut manager, 2);
    assert!(matches!(manager.prepare_store(&mut waiting, &[key(2)]), Ok(StoreOutcome::NothingToStore)));
    finish(&mut manager, &mut waiting);
    assert_eq!(world.finishes(0, waiting.id()), 0, "it waits for the chunk of the other");
    manager.reset();
    assert_eq!(world.finishes(0, waiting.id()), 1, "which will never come");

    let fresh = offer(&mut manager, &mut req, &keys([2, 3]));
    world.calls();
    let before = manager.counts();
    let reset = CompleteErrorReason::Reset { token: 0, current: 1 };
    let error = manager.complete_store(storing.token, TransferResult::Done).unwrap_err();
    assert_eq!(error.reason, reset);
    assert_eq!(manager.complete_load(loading.token).unwrap_err().reason, reset);
    assert_eq!(manager.counts(), before);
    assert_eq!(world.new_jobs(), []);
    finish(&mut manager, &mut req);
    assert_eq!(world.finishes(0, req.id()), 0, "the store of after the reset is open");
    stored(&mut manager, fresh.token);
    assert_eq!(world.finishes(0, req.id()), 1);
    serve(&mut manager, &world);
    check_quiet(&manager);
}

#[test]
fn a_key_that_is_named_twice_in_a_load_is_an_error_and_in_an_offer_takes_one_slot() {
    let (mut manager, world) = manager(2, &[Spec::chunk_level("a")]);
    let mut req = begin(&mut manager, 1);
    let job = offer(&mut manager, &mut req, &keys([1, 1]));
    assert_eq!((job.keys.len(), job.slots.len()), (1, 1));
    stored(&mut manager, job.token);
    assert_eq!(world.new_job().chunks.len(), 1);
    let before = manager.counts();
    let repeated = Err(LoadError::Repeated { key: key(1) });
    assert_eq!(manager.prepare_load(&mut req, &keys([1, 1])), repeated);
    assert_eq!(check_sound(&manager), before);
}
