//! Defects that other systems had, each as its shortest sequence. The id of a scenario is in the comment of its test.

mod support;

use kvo_core::{
    HostMemory, LoadError, LookupResult, OffloadKey, OffloadManager, RequestContext, RequestError, RequestId,
    SlotId, StoreOutcome, TierCompletion, TierDirection,
};
use kvo_cpu::{HostRegion, RegionOptions};
use kvo_policies::Lru;
use kvo_tiering::{TieringManager, TieringOptions};
use support::{
    CHUNK_BYTES, begin, check_quiet, check_sound,
    fake_tier::{Call, Spec, World},
    finish, key, keys, load, loaded, lookups, manager, offer, over, serve, store, store_failed, stored,
};

use LookupResult::{Hit, HitPending, Miss, Retry};

fn one_tier(num_slots: u32) -> (TieringManager<Lru>, World) {
    manager(num_slots, &[Spec::chunk_level("disk")])
}

/// A request that has begun and whose keys 0, 1, .. end at 16, 32, ..
fn begin_placed(manager: &mut impl OffloadManager, id: u64) -> RequestContext {
    let mut req = begin(manager, id);
    req.set_positions((0..32).map(|n| (key(u64::from(n)), 16 * (n + 1))));
    req
}

/// Leaves only `free` slots of an empty manager that are not pinned by loads that run for ever.
fn pin_all_but(manager: &mut impl OffloadManager, world: &World, free: u32) {
    let mut req = begin(manager, 900);
    let pinned: Vec<OffloadKey> =
        (0..manager.counts().capacity - free).map(|n| key(900 + u64::from(n))).collect();
    store(manager, &mut req, &pinned);
    serve(manager, world);
    let _never_ended = load(manager, &mut req, &pinned);
    finish(manager, &mut req);
    world.calls();
}

/// B05.
#[test]
fn a_chunk_is_given_to_the_tier_when_it_is_stored_and_head_first() {
    let (mut manager, world) = one_tier(8);
    let mut req = begin_placed(&mut manager, 1);
    let prefix: Vec<OffloadKey> = (0..8).map(key).collect();
    for pair in prefix.chunks(2) {
        store(&mut manager, &mut req, pair);
        let job = world.new_job();
        assert_eq!(job.direction, TierDirection::Write);
        assert_eq!(job.chunks.iter().map(|chunk| chunk.key).collect::<Vec<_>>(), pair, "head to tail");
        world.report(0, TierCompletion::done(job.id));
        let durable = world.lock().tiers[0].resident.clone();
        assert_eq!(durable.into_iter().collect::<Vec<_>>(), prefix[..durable_len(&world)], "prefix-closed");
    }
    finish(&mut manager, &mut req);
    // Pressure: the tail goes from the primary, and nothing of it has to be written now.
    let mut other = begin(&mut manager, 2);
    let victims: Vec<_> = (0..6).flat_map(|n| store(&mut manager, &mut other, &[key(100 + n)])).collect();
    assert_eq!(victims, keys([7, 6, 5, 4, 3, 2]));
    // The process ends without a word; another begins with the same tier.
    drop(manager);
    let (mut manager, world_after) = one_tier(8);
    world_after.put(0, &world.lock().tiers[0].resident.iter().copied().collect::<Vec<_>>());
    let mut again = begin(&mut manager, 3);
    assert_eq!(lookups(&mut manager, &mut again, &prefix), [HitPending; 8]);
    serve(&mut manager, &world_after);
    assert_eq!(lookups(&mut manager, &mut again, &prefix), [Hit; 8]);
}

fn durable_len(world: &World) -> usize {
    world.lock().tiers[0].resident.len()
}

/// B07.
#[test]
fn a_prefix_that_finds_no_room_half_way_leaves_no_pin() {
    for finishes_at_once in [true, false] {
        let (mut manager, world) = one_tier(4);
        pin_all_but(&mut manager, &world, 2);
        let wanted = keys([1, 2, 3, 4, 5]);
        world.put(0, &wanted);
        let mut req = begin(&mut manager, 1);
        assert_eq!(
            lookups(&mut manager, &mut req, &wanted),
            [HitPending, HitPending, Miss, Miss, Miss],
            "where there is no room, the answer is a miss, not a retry"
        );
        assert_eq!(manager.stats().promotions_without_room, 3);
        if finishes_at_once {
            finish(&mut manager, &mut req);
        }
        manager.on_schedule_end();
        let job = world.new_jobs().remove(0).1;
        assert_eq!(job.chunks.iter().map(|chunk| chunk.key).collect::<Vec<_>>(), wanted[..2]);
        serve(&mut manager, &world);
        if !finishes_at_once {
            assert_eq!(lookups(&mut manager, &mut req, &wanted[..2]), [Hit, Hit]);
            finish(&mut manager, &mut req);
        }
        let counts = check_sound(&manager);
        assert_eq!((counts.pending, counts.pinned), (0, 2), "only the loads that run for ever pin");
        assert_eq!(manager.stats().open_requests, 0);
    }
}

/// B13.
#[test]
fn a_late_report_of_one_promotion_does_not_end_another() {
    let (mut manager, world) = one_tier(4);
    world.put(0, &keys([1, 2, 3]));
    let mut req = begin(&mut manager, 1);
    lookups(&mut manager, &mut req, &keys([1, 2]));
    manager.on_schedule_end();
    let first = world.new_job();
    lookups(&mut manager, &mut req, &keys([3]));
    manager.on_schedule_end();
    let second = world.new_job();
    assert_ne!(first.id, second.id);
    let mut other = begin(&mut manager, 2);
    let slots = offer(&mut manager, &mut other, &[key(9)]).slots;
    let in_use = |slot: &SlotId| first.chunks.iter().chain(&second.chunks).any(|chunk| chunk.slot == *slot);
    assert!(!slots.iter().any(in_use), "the slots of the first stay reserved until it is reported");

    world.report(0, TierCompletion::failed(first.id));
    world.report(0, TierCompletion::done(first.id));
    manager.on_schedule_end();
    assert_eq!(lookups(&mut manager, &mut req, &keys([1, 2, 3])), [Miss, Miss, HitPending]);
    assert_eq!(manager.stats().tiers[0].invalid_reports, 1);
    manager.on_schedule_end();
    world.report(0, TierCompletion::done(second.id));
    assert_eq!(lookups(&mut manager, &mut req, &keys([1, 2, 3])), [Miss, Miss, Hit]);
}

/// B14.
#[test]
fn a_chunk_that_failed_to_come_up_is_a_miss_for_its_request_and_is_read_once() {
    for report in [TierCompletion::failed, |id| TierCompletion::except(id, vec![key(1)])] {
        let (mut manager, world) = one_tier(4);
        world.put(0, &keys([1, 2]));
        let mut req = begin(&mut manager, 1);
        assert_eq!(lookups(&mut manager, &mut req, &keys([1, 2])), [HitPending, HitPending]);
        manager.on_schedule_end();
        world.report(0, report(world.new_job().id));
        for _ in 0..10 {
            assert_eq!(manager.lookup(&mut req, &key(1)), Miss, "the tier goes on to say that it has it");
            manager.on_schedule_end();
        }
        assert_eq!(world.new_jobs(), [], "one try for a request and key");
        assert_eq!(check_sound(&manager).pending, 0);
        let mut other = begin(&mut manager, 2);
        assert_eq!(manager.lookup(&mut other, &key(1)), HitPending, "another request may try");
    }
}

/// B16.
#[test]
fn a_promotion_ends_also_after_its_request_has_finished() {
    for arrives in [true, false] {
        let (mut manager, world) = one_tier(4);
        world.put(0, &[key(1)]);
        let mut req = begin(&mut manager, 1);
        manager.lookup(&mut req, &key(1));
        manager.on_schedule_end();
        let job = world.new_job();
        finish(&mut manager, &mut req);
        assert_eq!(
            manager.on_request_finished(&mut req),
            Err(RequestError::Finished { req: RequestId(1) }),
            "a second finish is refused"
        );
        let mut other = begin(&mut manager, 2);
        for _ in 0..3 {
            assert_eq!(manager.lookup(&mut other, &key(1)), HitPending);
            manager.on_schedule_end();
        }
        world.lock().tiers[0].resident.clear();
        world.report(0, if arrives { TierCompletion::done(job.id) } else { TierCompletion::failed(job.id) });
        world.report(0, TierCompletion::done(job.id));
        assert_eq!(manager.lookup(&mut other, &key(1)), if arrives { Hit } else { Miss });
        finish(&mut manager, &mut other);
        manager.on_schedule_end();
        check_quiet(&manager);
    }
}

/// B17.
#[test]
fn without_room_every_call_answers_at_once() {
    let (mut manager, world) = one_tier(2);
    let mut loader = begin(&mut manager, 1);
    store(&mut manager, &mut loader, &keys([1, 2]));
    serve(&mut manager, &world);
    let first = load(&mut manager, &mut loader, &[key(1)]);
    let _second = load(&mut manager, &mut loader, &[key(2)]);
    world.put(0, &[key(9)]);
    let mut req = begin(&mut manager, 2);
    assert_eq!(manager.lookup(&mut req, &key(9)), Miss);
    let refused = manager.prepare_store(&mut req, &[key(10)]).unwrap();
    assert!(matches!(refused, StoreOutcome::Refused(refusal) if refusal.needed == 1), "{refused:?}");
    loaded(&mut manager, first.token);
    assert_eq!(manager.lookup(&mut req, &key(9)), HitPending, "there is room now");
}

/// B19.
#[test]
fn tiers_hear_of_a_finish_once_after_the_last_store_has_ended() {
    for spec in [Spec::chunk_level("disk"), Spec::request_level("disk")] {
        let (mut manager, world) = manager(4, &[spec]);
        let mut req = begin(&mut manager, 1);
        let jobs = keys([1, 2, 3]).map(|key| offer(&mut manager, &mut req, &[key]).token);
        finish(&mut manager, &mut req);
        let [first, second, third] = jobs;
        stored(&mut manager, first);
        (0..2).for_each(|_| manager.on_schedule_end());
        stored(&mut manager, second);
        (0..5).for_each(|_| manager.on_schedule_end());
        assert_eq!(world.finishes(0, req.id()), 0, "a store is still in flight");
        assert_eq!(manager.stats().open_requests, 1);
        store_failed(&mut manager, third);
        assert_eq!(world.finishes(0, req.id()), 1);
        serve(&mut manager, &world);
        (0..3).for_each(|_| manager.on_schedule_end());
        assert_eq!(world.finishes(0, req.id()), 1);
        let jobs = world.new_jobs();
        let written: Vec<_> = jobs.iter().flat_map(|(_, job)| &job.chunks).map(|chunk| chunk.key).collect();
        assert_eq!(written, keys([1, 2]));
        check_quiet(&manager);
    }
}

/// B20.
#[test]
fn a_small_primary_passes_any_number_of_chunks_on() {
    let (mut manager, world) = one_tier(4);
    for n in 0..64 {
        let mut req = begin(&mut manager, n);
        let job = offer(&mut manager, &mut req, &[key(n)]);
        stored(&mut manager, job.token);
        finish(&mut manager, &mut req);
        serve(&mut manager, &world);
    }
    let resident = world.lock().tiers[0].resident.iter().copied().collect::<Vec<_>>();
    assert_eq!(resident, (0..64).map(key).collect::<Vec<_>>());
    assert_eq!(manager.counts().evictable, 4);
    check_quiet(&manager);
}

/// B22.
#[test]
fn slots_that_a_tier_uses_are_not_handed_out_after_a_reset() {
    let region = HostRegion::anonymous(&RegionOptions { prefault_threads: 0, ..RegionOptions::new(4, 4096) })
        .expect("there is memory for four slots");
    let (mut manager, world) = one_tier(4);
    world.put(0, &keys([1, 3]));
    let mut req = begin(&mut manager, 1);
    manager.lookup(&mut req, &key(1));
    manager.on_schedule_end();
    let reading = world.new_job();
    store(&mut manager, &mut req, &[key(2)]);
    let writing = world.new_job();
    assert_eq!(manager.lookup(&mut req, &key(3)), HitPending);
    world.calls();
    let report = manager.reset();
    assert_eq!((report.promotions_dropped, report.jobs_running, report.slots_parked), (1, 2, 2));
    assert!(manager.has_pending_work());

    let mut next = begin(&mut manager, 2);
    assert!(matches!(manager.prepare_store(&mut next, &keys([11, 12, 13])), Ok(StoreOutcome::Refused(_))));
    let job = offer(&mut manager, &mut next, &keys([11, 12]));
    for slot in &job.slots {
        fill(&region, *slot, 0xca);
    }
    // The old copies land now.
    let old = [reading.chunks[0].slot, writing.chunks[0].slot];
    for slot in old {
        fill(&region, slot, 0xee);
    }
    assert!(job.slots.iter().all(|slot| !old.contains(slot) && holds(&region, *slot, 0xca)), "canaries");
    stored(&mut manager, job.token);
    let canaries = load(&mut manager, &mut next, &keys([11, 12]));
    assert!(canaries.slots.iter().all(|slot| holds(&region, *slot, 0xca)));
    loaded(&mut manager, canaries.token);

    manager.on_schedule_end();
    world.report(0, TierCompletion::done(reading.id));
    world.report(0, TierCompletion::done(writing.id));
    manager.on_schedule_end();
    assert_eq!(manager.stats().primary.parked_slots, 0);
    assert_eq!(manager.primary().peek(&key(1)), Miss, "a promotion of before the reset makes nothing ready");
    let job = offer(&mut manager, &mut next, &keys([13, 14]));
    assert!(job.slots.iter().all(|slot| old.contains(slot)), "the parked slots are free now");
    store_failed(&mut manager, job.token);
    serve(&mut manager, &world);

    world.calls();
    assert_eq!(manager.lookup(&mut next, &key(3)), Miss, "the workers have not flushed");
    assert!(!world.calls().iter().any(|(_, call)| matches!(call, Call::Lookup(..))), "nor is the tier asked");
    manager.on_reset_flushed();
    assert_eq!(manager.lookup(&mut next, &key(3)), HitPending, "the tier has kept its chunks");
}

fn fill(region: &HostRegion, slot: SlotId, byte: u8) {
    region.with_write(slot, &mut |bytes| bytes.fill(byte)).expect("nobody else uses the slot");
}

fn holds(region: &HostRegion, slot: SlotId, byte: u8) -> bool {
    let mut all = false;
    region
        .with_read(slot, &mut |bytes| all = bytes.iter().all(|of| *of == byte))
        .expect("nobody writes the slot");
    all
}

/// B28.
#[test]
fn a_promotion_that_fails_in_part_keeps_what_came() {
    let four = keys([1, 2, 3, 4]);
    let check = |failed: &[OffloadKey], expected: [LookupResult; 4], invalid_reports: u64| {
        let (mut manager, world) = one_tier(4);
        world.put(0, &four);
        let mut req = begin(&mut manager, 1);
        lookups(&mut manager, &mut req, &four);
        manager.on_schedule_end();
        let job = world.new_job();
        world.report(0, TierCompletion::except(job.id, failed.to_vec()));
        assert_eq!(lookups(&mut manager, &mut req, &four), expected, "without {failed:?}");
        let kept = expected.iter().filter(|result| **result == Hit).count();
        let counts = check_sound(&manager);
        assert_eq!((counts.free as usize, counts.evictable as usize), (4 - kept, kept));
        assert_eq!(manager.stats().tiers[0].invalid_reports, invalid_reports);
        assert_eq!(manager.stats().tiers[0].read.chunks, kept as u64);
        let mut later = begin(&mut manager, 2);
        let retried = expected.map(|result| if result == Hit { Hit } else { HitPending });
        assert_eq!(lookups(&mut manager, &mut later, &four), retried, "a later request may try again");
    };
    check(&keys([3, 4]), [Hit, Hit, Miss, Miss], 0);
    check(&four, [Miss; 4], 0);
    check(&keys([3, 4, 99]), [Miss; 4], 1);
    check(&keys([1, 2, 3]), [Miss, Miss, Miss, Hit], 0);
}

/// B28: a tail whose head did not come is of no use.
#[test]
fn a_tail_without_its_head_is_evicted_before_the_head_stored_later() {
    let (mut manager, world) = one_tier(4);
    world.put(0, &keys([0, 1, 2, 3]));
    let mut req = begin_placed(&mut manager, 1);
    lookups(&mut manager, &mut req, &keys([0, 1, 2, 3]));
    manager.on_schedule_end();
    let job = world.new_job();
    world.report(0, TierCompletion::except(job.id, keys([0, 1, 2]).to_vec()));
    store(&mut manager, &mut req, &keys([0, 1, 2]));
    serve(&mut manager, &world);
    let mut other = begin(&mut manager, 2);
    assert_eq!(store(&mut manager, &mut other, &[key(50)]), [key(3)], "while the request runs");
    finish(&mut manager, &mut req);
    assert_eq!(store(&mut manager, &mut other, &[key(51)]), [key(2)], "and after it has finished");
}

/// B37.
#[test]
fn what_a_tier_fails_to_deliver_can_never_be_loaded() {
    let (mut manager, world) = one_tier(4);
    world.put(0, &keys([1, 2]));
    let mut req = begin(&mut manager, 1);
    assert_eq!(manager.lookup(&mut req, &key(1)), HitPending);
    manager.on_schedule_end();
    let pending = LoadError::NotReady { absent: vec![], pending: vec![key(1)] };
    for _ in 0..20 {
        // The tier says nothing for long: the chunk is never taken for delivered, and nobody else waits.
        assert_eq!(manager.prepare_load(&mut req, &[key(1)]).unwrap_err(), pending);
        let mut other = begin(&mut manager, 2);
        assert_eq!(manager.lookup(&mut other, &key(7)), Miss);
        finish(&mut manager, &mut other);
        manager.on_schedule_end();
    }
    let job = world.new_job();
    world.report(0, TierCompletion::failed(job.id));
    assert_eq!(manager.lookup(&mut req, &key(1)), Miss, "the request is to compute it");
    let absent = LoadError::NotReady { absent: vec![key(1)], pending: vec![] };
    assert_eq!(manager.prepare_load(&mut req, &[key(1)]).unwrap_err(), absent);
    let read = manager.stats().tiers[0].read;
    assert_eq!((read.jobs_done, read.jobs_failed, read.chunks, read.bytes), (0, 1, 0, 0));
    assert_eq!(manager.stats().primary.chunks_promoted, 0);
}

/// B67.
#[test]
fn a_hit_that_is_evicted_before_its_load_is_a_typed_error() {
    let gone = LoadError::NotReady { absent: vec![key(1)], pending: vec![] };
    for by in ["a store", "a promotion", "a reset"] {
        let (mut manager, world) = one_tier(1);
        world.put(0, &[key(3)]);
        let mut other = begin(&mut manager, 2);
        store(&mut manager, &mut other, &[key(1)]);
        serve(&mut manager, &world);
        let mut req = begin(&mut manager, 1);
        assert_eq!(manager.lookup(&mut req, &key(1)), Hit);
        match by {
            "a store" => assert_eq!(offer(&mut manager, &mut other, &[key(2)]).evicted, [key(1)]),
            "a promotion" => assert_eq!(manager.lookup(&mut other, &key(3)), HitPending),
            _ => manager.reset_cache(),
        }
        let before = manager.counts();
        assert_eq!(manager.prepare_load(&mut req, &[key(1)]).unwrap_err(), gone, "evicted by {by}");
        assert_eq!(manager.counts(), before, "no pin is left");
        check_sound(&manager);
        finish(&mut manager, &mut req);
    }
}

/// B68.
#[test]
fn a_tier_that_answers_late_is_waited_for_and_an_empty_answer_is_a_miss() {
    let four = keys([1, 2, 3, 4]);
    for there in [true, false] {
        let (mut manager, world) = manager(4, &[Spec { async_lookup: true, ..Spec::chunk_level("disk") }]);
        if there {
            world.put(0, &four);
        }
        let mut req = begin(&mut manager, 1);
        for _ in 0..4 {
            assert_eq!(lookups(&mut manager, &mut req, &four), [Retry; 4]);
        }
        assert_eq!(manager.counts().free, 4, "nothing is reserved before the tier has answered");
        manager.on_schedule_end();
        assert_eq!(lookups(&mut manager, &mut req, &four), if there { [HitPending; 4] } else { [Miss; 4] });
        serve(&mut manager, &world);
        assert_eq!(lookups(&mut manager, &mut req, &four), if there { [Hit; 4] } else { [Miss; 4] });
        finish(&mut manager, &mut req);
        manager.on_schedule_end();
        check_quiet(&manager);
    }
}

#[test]
fn a_manager_over_no_tier_is_its_primary() {
    let mut manager = over(2, vec![], TieringOptions::new(CHUNK_BYTES), kvo_core::ManualClock::default());
    let mut req = begin(&mut manager, 1);
    store(&mut manager, &mut req, &[key(1)]);
    assert_eq!(lookups(&mut manager, &mut req, &keys([1, 2])), [Hit, Miss]);
    finish(&mut manager, &mut req);
    manager.on_schedule_end();
    check_quiet(&manager);
}
