//! Slow tiers, tiers that fail or hang, and requests that wait do not stand in the way of requests that run.

mod support;

use std::{collections::BTreeMap, ops::Range, time::Duration};

use kvo_core::{
    LookupResult, ManualClock, OffloadKey, OffloadManager, RejectReason, RequestContext, StoreOutcome,
    TierCompletion, TierDirection, TierJob,
};
use kvo_policies::{CachePolicy, Lru};
use kvo_tiering::{PressureOptions, TierStats, TieringManager, TieringOptions, Watermarks};
use support::{
    CHUNK_BYTES, begin, check_quiet, check_sound,
    fake_tier::{Call, Spec, World},
    finish, key, keys, load, loaded, lookups, offer,
    policies::all_kinds,
    store, stored, with_policy,
};

use LookupResult::{Hit, HitPending, Miss, Retry};

const SECOND: Duration = Duration::from_secs(1);

/// A manager over fake tiers, their test's side, and its clock.
struct Bench<P> {
    manager: TieringManager<P>,
    world: World,
    clock: ManualClock,
}

fn bench(num_slots: u32, pressure: PressureOptions) -> Bench<Lru> {
    bench_over(num_slots, &[Spec::chunk_level("disk")], Lru::new(num_slots), pressure)
}

fn bench_over<P: CachePolicy>(
    num_slots: u32,
    specs: &[Spec],
    policy: P,
    pressure: PressureOptions,
) -> Bench<P> {
    let (world, tiers) = World::new(specs);
    let clock = ManualClock::default();
    let options = TieringOptions::new(CHUNK_BYTES).with_pressure(pressure);
    let manager =
        TieringManager::new(with_policy(num_slots, policy), tiers, options, Box::new(clock.clone())).unwrap();
    Bench { manager, world, clock }
}

impl<P: CachePolicy> Bench<P> {
    fn tier(&self) -> TierStats {
        self.manager.stats().tiers.remove(0)
    }

    /// Ends the step, and another one so much later, which collects what has happened.
    fn step_after(&mut self, by: Duration) {
        self.manager.on_schedule_end();
        self.clock.advance(by);
        self.manager.on_schedule_end();
    }

    /// Ends every open job.
    fn end_all(&mut self, end: impl Fn(&TierJob) -> TierCompletion) {
        for (tier, job) in self.world.open_jobs() {
            self.world.report(tier, end(&job));
        }
        self.step_after(Duration::ZERO);
    }

    /// A request stores a chunk and is over; says whether it reached the tier.
    fn cascades(&mut self, n: u64) -> bool {
        self.world.calls();
        let mut req = begin(&mut self.manager, 1_000 + n);
        store(&mut self.manager, &mut req, &[key(n)]);
        finish(&mut self.manager, &mut req);
        self.world.calls().iter().any(|(_, call)| matches!(call, Call::Job(_)))
    }
}

fn range(numbers: Range<u64>) -> Vec<OffloadKey> {
    numbers.map(key).collect()
}

fn done(job: &TierJob) -> TierCompletion {
    TierCompletion::done(job.id)
}

fn failed(job: &TierJob) -> TierCompletion {
    TierCompletion::failed(job.id)
}

/// Fifty requests wait for 16 chunks each, a request that runs stores chunks in each step, and the primary has 64.
/// Gives the order in which the waiting ones have loaded, and how much.
fn fifty_wait<P: CachePolicy>(policy: P, job_steps: u64, load_steps: u64, stores: u64) -> Vec<(u64, usize)> {
    let mut bench = bench_over(64, &[Spec::chunk_level("disk")], policy, PressureOptions::default());
    let of = |n: u64| range(n * 100..n * 100 + 16);
    let mut waiting: Vec<(u64, RequestContext)> = Vec::new();
    for n in 1..=50 {
        bench.world.put(0, &of(n));
        waiting.push((n, begin(&mut bench.manager, n)));
    }
    let mut running = begin(&mut bench.manager, 1_000);
    let (mut order, mut loads) = (Vec::new(), Vec::new());
    let mut promoted: BTreeMap<OffloadKey, u32> = BTreeMap::new();
    let mut due: Vec<(u64, usize, TierJob)> = Vec::new();
    let mut last = None;
    for step in 0..4_000 {
        if waiting.is_empty() && loads.is_empty() {
            break;
        }
        if let Some(token) = last.take() {
            stored(&mut bench.manager, token);
        }
        let mut still_waiting = Vec::new();
        for (n, mut req) in waiting {
            let found = lookups(&mut bench.manager, &mut req, &of(n));
            let ready = found.iter().take_while(|result| **result == Hit).count();
            if matches!(found.get(ready), Some(HitPending | Retry)) {
                still_waiting.push((n, req));
                continue;
            }
            if ready > 0 {
                let job = load(&mut bench.manager, &mut req, &of(n)[..ready]);
                loads.push((step + load_steps, job.token));
            }
            order.push((n, ready));
            finish(&mut bench.manager, &mut req);
        }
        waiting = still_waiting;
        let new = range(1_000_000 + step * 10..1_000_000 + step * 10 + stores);
        match bench.manager.prepare_store(&mut running, &new).unwrap() {
            StoreOutcome::Prepared(job) => last = Some(job.token),
            other => panic!("step {step}: a running request could not store: {other:?}"),
        }
        bench.manager.on_schedule_end();
        for (tier, job) in bench.world.new_jobs() {
            if job.direction == TierDirection::Read {
                for chunk in &job.chunks {
                    *promoted.entry(chunk.key).or_default() += 1;
                }
            }
            due.push((step + job_steps, tier, job));
        }
        for (_, tier, job) in due.extract_if(.., |(at, ..)| *at <= step) {
            bench.world.report(tier, TierCompletion::done(job.id));
        }
        for (_, token) in loads.extract_if(.., |(at, _)| *at <= step) {
            loaded(&mut bench.manager, token);
        }
        check_sound(&bench.manager);
        bench.clock.advance(Duration::from_millis(10));
    }
    assert!(waiting.is_empty(), "{} requests wait for ever", waiting.len());
    let twice: Vec<_> = promoted.iter().filter(|(_, times)| **times > 1).collect();
    assert!(twice.is_empty(), "promoted again before they were used: {twice:?}");
    assert_eq!(promoted.len(), 800);
    stored(&mut bench.manager, last.expect("it has just stored"));
    finish(&mut bench.manager, &mut running);
    bench.end_all(done);
    check_quiet(&bench.manager);
    order
}

#[test]
fn of_fifty_requests_that_wait_each_gets_its_chunks_in_turn_while_one_stores() {
    for (job_steps, load_steps, stores) in [(1, 1, 1), (0, 1, 1), (5, 1, 1), (1, 4, 2), (3, 3, 4)] {
        for kind in all_kinds() {
            let order = fifty_wait(kind.build(64), job_steps, load_steps, stores);
            let all: Vec<_> = (1..=50).map(|n| (n, 16)).collect();
            assert_eq!(order, all, "{kind}, {job_steps} and {load_steps} steps, {stores} stores");
        }
    }
}

#[test]
fn a_request_that_wants_more_than_there_is_room_for_loads_what_there_is() {
    let mut bench = bench(64, PressureOptions::default());
    let all = range(0..100);
    bench.world.put(0, &all);
    let mut runs = begin(&mut bench.manager, 2);
    let mut req = begin(&mut bench.manager, 1);
    let found = lookups(&mut bench.manager, &mut req, &all);
    assert_eq!(found.iter().filter(|result| **result == HitPending).count(), 32);
    assert!(found[32..].iter().all(|result| *result == Miss), "{found:?}");
    let stats = bench.manager.stats();
    assert_eq!((stats.chunks_unread, stats.promotions_left_out), (32, 68));
    bench.manager.on_schedule_end();
    bench.end_all(done);
    let job = load(&mut bench.manager, &mut req, &all[..32]);
    assert_eq!(bench.manager.stats().chunks_unread, 32);
    assert_eq!(bench.manager.lookup(&mut req, &key(32)), Retry, "the load comes to an end by itself");
    loaded(&mut bench.manager, job.token);
    assert_eq!(bench.manager.stats().chunks_unread, 0);
    assert_eq!(bench.manager.lookup(&mut req, &key(32)), HitPending);
    finish(&mut bench.manager, &mut req);
    bench.manager.on_schedule_end();
    assert_eq!(bench.manager.stats().chunks_unread, 1, "its slot is in use");
    bench.end_all(done);
    finish(&mut bench.manager, &mut runs);
    assert_eq!(bench.manager.stats().chunks_unread, 0, "nobody waits for it");
    check_quiet(&bench.manager);
}

#[test]
fn a_request_that_is_the_only_one_may_have_every_slot() {
    let mut bench = bench(64, PressureOptions::default());
    let all = range(0..100);
    bench.world.put(0, &all);
    let mut req = begin(&mut bench.manager, 1);
    // So many at once that a tier which hangs does not take all of them.
    for (round, all_found) in [(0, [HitPending, Retry, Retry]), (1, [Hit, HitPending, Miss])] {
        let found = lookups(&mut bench.manager, &mut req, &all);
        for (part, expected) in [&found[..32], &found[32..64], &found[64..]].into_iter().zip(all_found) {
            assert!(part.iter().all(|result| *result == expected), "round {round}: {found:?}");
        }
        bench.manager.on_schedule_end();
        bench.end_all(done);
    }
    assert_eq!(
        lookups(&mut bench.manager, &mut req, &all[64..]),
        [Miss; 36],
        "its head is not evicted for its tail"
    );
    let job = load(&mut bench.manager, &mut req, &all[..64]);
    loaded(&mut bench.manager, job.token);
    finish(&mut bench.manager, &mut req);
    check_quiet(&bench.manager);
}

#[test]
fn what_waits_is_put_off_while_older_requests_have_their_share_and_asks_no_more_than_it_must() {
    let mut bench = bench(8, PressureOptions::default());
    bench.world.put(0, &keys([1, 2, 3, 11, 12]));
    let [mut first, mut second, mut runs] = [1, 2, 3].map(|id| begin(&mut bench.manager, id));
    assert_eq!(lookups(&mut bench.manager, &mut first, &keys([1, 2, 3])), [HitPending; 3]);
    for _ in 0..1_000 {
        assert_eq!(lookups(&mut bench.manager, &mut second, &keys([11, 12])), [Retry; 2]);
    }
    let counts = check_sound(&bench.manager);
    assert_eq!((counts.free, counts.pending), (5, 3), "a request that is put off takes nothing");
    // Whoever aborts gives its turn to the next.
    finish(&mut bench.manager, &mut first);
    assert_eq!(lookups(&mut bench.manager, &mut second, &keys([11, 12])), [HitPending, Retry]);
    bench.manager.on_schedule_end();
    bench.end_all(done);
    assert_eq!(bench.manager.stats().chunks_unread, 1, "nobody waits for those of the first");
    assert_eq!(lookups(&mut bench.manager, &mut second, &keys([11, 12])), [Hit, HitPending]);
    bench.manager.on_schedule_end();
    bench.end_all(done);
    for req in [&mut second, &mut runs] {
        finish(&mut bench.manager, req);
    }
    check_quiet(&bench.manager);
}

#[test]
fn a_request_that_asks_no_more_gives_up_its_turn() {
    let mut bench = bench(8, PressureOptions::default());
    bench.world.put(0, &keys([1, 2, 3, 4, 11]));
    let [mut gone, mut waits] = [1, 2].map(|id| begin(&mut bench.manager, id));
    assert_eq!(lookups(&mut bench.manager, &mut gone, &keys([1, 2, 3, 4])), [HitPending; 4]);
    bench.manager.on_schedule_end();
    bench.end_all(done);
    assert_eq!(bench.manager.lookup(&mut waits, &key(11)), Retry);
    bench.step_after(2 * SECOND);
    assert_eq!(bench.manager.lookup(&mut waits, &key(11)), HitPending);
    for mut req in [gone, waits] {
        finish(&mut bench.manager, &mut req);
    }
    bench.manager.on_schedule_end();
    bench.end_all(done);
    check_quiet(&bench.manager);
}

/// B07 and B60: it takes its part of the primary, however often it is tried, and lets others have theirs.
#[test]
fn a_tier_that_never_brings_anything_takes_no_more_than_its_part_and_the_other_tier_serves() {
    for alone in [true, false] {
        let specs = [Spec::chunk_level("hangs"), Spec::chunk_level("serves")];
        let mut bench = bench_over(64, &specs, Lru::new(64), PressureOptions::default());
        bench.world.put(0, &range(0..10_000));
        let mut others = Vec::new();
        for n in 0..40 {
            let mut req = begin(&mut bench.manager, n);
            let found = lookups(&mut bench.manager, &mut req, &range(n * 100..n * 100 + 64));
            assert!(n > 0 || found[0] == HitPending);
            bench.step_after(61 * SECOND);
            if alone {
                finish(&mut bench.manager, &mut req);
            } else {
                others.push(req);
            }
        }
        let counts = check_sound(&bench.manager);
        assert_eq!(counts.pending, 16, "half of the share: {counts:?}");
        // The other one has what it takes.
        bench.world.put(1, &range(20_000..20_100));
        let mut req = begin(&mut bench.manager, 100);
        assert_eq!(bench.manager.lookup(&mut req, &key(20_000)), HitPending);
        others.push(req);
        for mut req in others {
            finish(&mut bench.manager, &mut req);
        }
        // What hung has come back: its slots are free, and it is tried again.
        bench.manager.on_schedule_end();
        bench.end_all(done);
        bench.step_after(61 * SECOND);
        let mut req = begin(&mut bench.manager, 200);
        assert_eq!(bench.manager.lookup(&mut req, &key(9_000)), HitPending);
        finish(&mut bench.manager, &mut req);
        bench.manager.on_schedule_end();
        bench.end_all(done);
        check_quiet(&bench.manager);
    }
}

#[test]
fn a_request_that_asks_for_what_is_on_its_way_keeps_its_turn() {
    let specs = [Spec::chunk_level("fast"), Spec::chunk_level("slow")];
    let mut bench = bench_over(8, &specs, Lru::new(8), PressureOptions::default());
    bench.world.put(0, &keys([1, 2, 11]));
    bench.world.put(1, &keys([3]));
    let [mut first, mut second] = [1, 2].map(|id| begin(&mut bench.manager, id));
    assert_eq!(lookups(&mut bench.manager, &mut first, &keys([1, 2, 3])), [HitPending; 3]);
    bench.manager.on_schedule_end();
    for (tier, job) in bench.world.open_jobs().into_iter().filter(|(tier, _)| *tier == 0) {
        bench.world.report(tier, done(&job));
    }
    for _ in 0..6 {
        bench.step_after(SECOND);
        assert_eq!(lookups(&mut bench.manager, &mut first, &keys([1, 2, 3])), [Hit, Hit, HitPending]);
        assert_eq!(bench.manager.lookup(&mut second, &key(11)), Retry, "the first one waits still");
    }
    bench.end_all(done);
    assert_eq!(lookups(&mut bench.manager, &mut first, &keys([1, 2, 3])), [Hit; 3]);
    for mut req in [first, second] {
        finish(&mut bench.manager, &mut req);
    }
    check_quiet(&bench.manager);
}

#[test]
fn time_in_which_nobody_looks_for_a_chunk_does_not_count_for_its_deadline() {
    let pressure = PressureOptions { lookup_deadline: Some(10 * SECOND), ..PressureOptions::NONE };
    let specs = [Spec { async_lookup: true, ..Spec::chunk_level("remote") }];
    let mut bench = bench_over(4, &specs, Lru::new(4), pressure);
    bench.world.put(0, &keys([1, 2]));
    let mut req = begin(&mut bench.manager, 1);
    assert_eq!(lookups(&mut bench.manager, &mut req, &keys([1, 2])), [Retry; 2]);
    // It runs, and is preempted much later.
    bench.clock.advance(9 * SECOND);
    store(&mut bench.manager, &mut req, &keys([11]));
    bench.clock.advance(2 * SECOND);
    assert_eq!(bench.manager.lookup(&mut req, &key(1)), Retry);
    // Or it does neither for a while.
    bench.clock.advance(60 * SECOND);
    assert_eq!(bench.manager.lookup(&mut req, &key(1)), Retry);
    for _ in 0..9 {
        bench.clock.advance(SECOND);
        assert_eq!(bench.manager.lookup(&mut req, &key(1)), Retry);
    }
    bench.clock.advance(SECOND);
    assert_eq!(bench.manager.lookup(&mut req, &key(1)), Miss);
    assert_eq!(bench.manager.stats().lookups_expired, 1);
    finish(&mut bench.manager, &mut req);
    bench.manager.on_schedule_end();
    bench.end_all(done);
    check_quiet(&bench.manager);
}

#[test]
fn what_was_evicted_unread_is_not_brought_up_again_for_its_request_nor_at_once_for_another() {
    let mut bench = bench(4, PressureOptions::default());
    bench.world.put(0, &keys([1]));
    let mut req = begin(&mut bench.manager, 1);
    bench.manager.lookup(&mut req, &key(1));
    bench.manager.on_schedule_end();
    bench.end_all(done);
    let mut runs = begin(&mut bench.manager, 2);
    store(&mut bench.manager, &mut runs, &keys([11, 12, 13, 14]));
    bench.end_all(done);
    assert_eq!(bench.manager.stats().promotions_lost, 1);
    assert_eq!(bench.manager.lookup(&mut req, &key(1)), Miss);
    let mut other = begin(&mut bench.manager, 3);
    assert_eq!(bench.manager.lookup(&mut other, &key(1)), Miss, "it would be evicted again");
    bench.step_after(2 * SECOND);
    assert_eq!(bench.manager.lookup(&mut other, &key(1)), HitPending);
    assert_eq!(bench.manager.lookup(&mut req, &key(1)), HitPending, "it is there for another");
    for mut req in [req, runs, other] {
        finish(&mut bench.manager, &mut req);
    }
    bench.manager.on_schedule_end();
    bench.end_all(done);
    check_quiet(&bench.manager);
}

#[test]
fn a_reset_ends_all_turns() {
    let mut bench = bench(8, PressureOptions::default());
    bench.world.put(0, &keys([1, 2, 3, 4, 11]));
    let [mut first, mut second] = [1, 2].map(|id| begin(&mut bench.manager, id));
    assert_eq!(lookups(&mut bench.manager, &mut first, &keys([1, 2, 3, 4])), [HitPending; 4]);
    bench.manager.on_schedule_end();
    bench.manager.reset_cache();
    bench.manager.on_reset_flushed();
    assert_eq!(bench.manager.stats().chunks_unread, 0);
    assert_eq!(bench.manager.lookup(&mut second, &key(11)), Retry, "the tier still has the slots");
    bench.end_all(done);
    assert_eq!(bench.manager.lookup(&mut second, &key(11)), HitPending);
    bench.manager.on_schedule_end();
    bench.end_all(done);
    assert_eq!(bench.manager.lookup(&mut second, &key(11)), Hit);
    for mut req in [first, second] {
        finish(&mut bench.manager, &mut req);
    }
    check_quiet(&bench.manager);
}

#[test]
fn a_tier_that_looks_for_ever_is_not_waited_for() {
    let pressure = PressureOptions { lookup_deadline: Some(10 * SECOND), ..PressureOptions::NONE };
    let specs = [Spec { async_lookup: true, ..Spec::chunk_level("remote") }];
    let mut bench = bench_over(4, &specs, Lru::new(4), pressure);
    bench.world.put(0, &keys([1]));
    let mut req = begin(&mut bench.manager, 1);
    for _ in 0..10 {
        assert_eq!(bench.manager.lookup(&mut req, &key(1)), Retry);
        bench.clock.advance(SECOND);
    }
    assert_eq!(bench.manager.lookup(&mut req, &key(1)), Miss);
    assert_eq!(bench.manager.stats().lookups_expired, 1);
    bench.manager.on_schedule_end();
    assert_eq!(bench.manager.lookup(&mut req, &key(1)), Miss, "and stays one for this request");
    let mut other = begin(&mut bench.manager, 2);
    assert_eq!(bench.manager.lookup(&mut other, &key(1)), Retry, "the deadline is of one request");
    bench.manager.on_schedule_end();
    assert_eq!(bench.manager.lookup(&mut other, &key(1)), HitPending);
}

#[test]
fn a_promotion_that_hangs_is_given_up_and_its_tier_fenced_off_until_a_probe_goes_well() {
    let mut bench = bench(8, PressureOptions { promotion_share: None, ..PressureOptions::default() });
    bench.world.put(0, &keys([1, 2, 3]));
    let mut req = begin(&mut bench.manager, 1);
    assert_eq!(bench.manager.lookup(&mut req, &key(1)), HitPending);
    bench.manager.on_schedule_end();
    let hung = bench.world.new_job();
    bench.step_after(59 * SECOND);
    assert_eq!(bench.manager.lookup(&mut req, &key(1)), HitPending);
    bench.step_after(SECOND);
    assert_eq!(lookups(&mut bench.manager, &mut req, &keys([1, 2])), [Miss; 2]);
    assert!(bench.tier().is_fenced);
    assert_eq!((bench.tier().jobs_overdue, bench.tier().active_jobs), (1, 1));
    assert!(!bench.manager.has_pending_work(), "nobody waits for a job that is overdue");
    let counts = check_sound(&bench.manager);
    assert_eq!((counts.free, counts.pending), (7, 1), "the tier may still write into the slot");
    assert!(!bench.cascades(10), "nothing is given to it");

    // After the pause one request tries it, and no other.
    bench.step_after(SECOND);
    let [mut tries, mut other] = [2, 3].map(|id| begin(&mut bench.manager, id));
    assert_eq!(bench.manager.lookup(&mut tries, &key(2)), HitPending);
    assert_eq!(bench.manager.lookup(&mut other, &key(3)), Miss);
    bench.manager.on_schedule_end();
    let probe = bench.world.new_job();
    bench.step_after(60 * SECOND);
    assert_eq!(bench.manager.lookup(&mut tries, &key(2)), Miss);
    assert_eq!(bench.tier().jobs_overdue, 2);
    bench.step_after(SECOND);
    assert_eq!(bench.manager.lookup(&mut other, &key(3)), Miss, "the pause is twice as long");
    bench.step_after(SECOND);
    assert_eq!(bench.manager.lookup(&mut other, &key(3)), HitPending);
    bench.manager.on_schedule_end();
    bench.end_all(done);
    assert_eq!(bench.manager.lookup(&mut other, &key(3)), Hit);
    assert_eq!(
        bench.manager.lookup(&mut req, &key(1)),
        Miss,
        "what was given up does not come, whatever is said of it"
    );
    let counts = check_sound(&bench.manager);
    assert_eq!((counts.pending, bench.tier().active_jobs), (0, 0));
    assert_ne!(hung.chunks[0].slot, probe.chunks[0].slot);
    assert_eq!(bench.tier().read.jobs_failed, 2);
    assert_eq!((bench.tier().invalid_reports, bench.tier().invalid_releases), (0, 0));
    for mut req in [req, tries, other] {
        finish(&mut bench.manager, &mut req);
    }
    // Of writes nothing is known yet.
    assert!(bench.tier().is_fenced);
    assert!(bench.cascades(11), "one tries");
    assert!(!bench.cascades(12));
    bench.end_all(done);
    assert!(!bench.tier().is_fenced);
    assert!(bench.cascades(13) && bench.cascades(14));
    bench.end_all(done);
    check_quiet(&bench.manager);
}

#[test]
fn a_late_report_of_a_job_that_was_given_up_frees_its_slot_also_after_a_reset() {
    for resets in [false, true] {
        let mut bench = bench(2, PressureOptions::default());
        bench.world.put(0, &keys([1]));
        let mut req = begin(&mut bench.manager, 1);
        bench.manager.lookup(&mut req, &key(1));
        bench.manager.on_schedule_end();
        let hung = bench.world.new_job();
        bench.step_after(60 * SECOND);
        support::events(&mut bench.manager);
        if resets {
            bench.manager.reset_cache();
            bench.manager.on_reset_flushed();
        }
        bench.world.report(0, done(&hung));
        bench.step_after(Duration::ZERO);
        assert_eq!(check_sound(&bench.manager).free, 2);
        assert_eq!(bench.manager.lookup(&mut req, &key(1)), Miss);
        assert!(support::events(&mut bench.manager).is_empty(), "it was discarded when it was given up");
        finish(&mut bench.manager, &mut req);
        check_quiet(&bench.manager);
    }
}

#[test]
fn what_a_tier_still_holds_of_a_job_that_was_given_up_is_held() {
    let mut bench = bench(2, PressureOptions::default());
    bench.world.put(0, &keys([1]));
    let mut req = begin(&mut bench.manager, 1);
    bench.manager.lookup(&mut req, &key(1));
    bench.manager.on_schedule_end();
    let hung = bench.world.new_job();
    bench.step_after(60 * SECOND);
    let slot = hung.chunks[0].slot;
    bench.world.report(0, failed(&hung).with_held(vec![slot]));
    bench.manager.on_schedule_end();
    assert_eq!((check_sound(&bench.manager).pending, bench.tier().held_slots), (1, 1));
    bench.world.release(0, hung.id, slot);
    bench.manager.on_schedule_end();
    assert_eq!((check_sound(&bench.manager).free, bench.tier().held_slots), (2, 0));
    finish(&mut bench.manager, &mut req);
    check_quiet(&bench.manager);
}

#[test]
fn a_cascade_that_hangs_keeps_its_pin_and_the_tier_is_fenced_off() {
    let mut bench = bench(4, PressureOptions::default());
    assert!(bench.cascades(1));
    bench.step_after(60 * SECOND);
    assert!(bench.tier().is_fenced);
    assert_eq!(check_sound(&bench.manager).pinned, 1, "the tier may still read it");
    assert!(!bench.manager.has_pending_work());
    let [hung] = bench.world.open_jobs().try_into().expect("one job");
    bench.world.report(0, done(&hung.1));
    bench.manager.on_schedule_end();
    assert_eq!(check_sound(&bench.manager).pinned, 0);
    assert!(bench.tier().is_fenced, "how it was is not how it is");
    bench.step_after(SECOND);
    assert!(bench.cascades(2));
    bench.end_all(done);
    assert!(bench.cascades(3) && bench.cascades(4), "nor is how slow it was");
    bench.end_all(done);
    check_quiet(&bench.manager);
}

#[test]
fn writes_that_fail_in_a_row_fence_a_tier_off_for_writes_alone() {
    let pressure = PressureOptions { writes: None, ..PressureOptions::default() };
    let mut bench = bench(64, pressure);
    for n in 0..3 {
        assert!(bench.cascades(n), "after {n} failures");
        bench.end_all(failed);
    }
    assert!(!bench.cascades(3));
    bench.world.put(0, &keys([100]));
    let mut req = begin(&mut bench.manager, 1);
    assert_eq!(bench.manager.lookup(&mut req, &key(100)), HitPending, "a full disk can be read");
    finish(&mut bench.manager, &mut req);
    bench.manager.on_schedule_end();
    bench.end_all(done);
    bench.step_after(SECOND);
    assert!(bench.cascades(4));
    bench.end_all(failed);
    bench.step_after(SECOND);
    assert!(!bench.cascades(5), "the pause is twice as long");
    bench.step_after(SECOND);
    assert!(bench.cascades(6));
    bench.end_all(done);
    // It takes three in a row.
    for n in 7..20 {
        assert!(bench.cascades(n));
        bench.end_all(if n % 3 == 0 { done } else { failed });
    }
    check_quiet(&bench.manager);
}

#[test]
fn a_tier_that_is_busy_is_not_fenced_off_and_one_that_is_unavailable_is() {
    for (refusal, is_fenced) in
        [(RejectReason::Busy, false), (RejectReason::Unavailable, true), (RejectReason::ReadOnly, true)]
    {
        let mut bench = bench(64, PressureOptions::default());
        bench.world.lock().tiers[0].refuses_writes = true;
        bench.world.lock().tiers[0].refusal = refusal;
        for n in 0..3 {
            assert!(!bench.cascades(n));
        }
        assert_eq!(bench.tier().is_fenced, is_fenced, "{refusal}");
        assert_eq!(bench.tier().jobs_rejected, 3);
        // It is asked as often as there are pauses.
        for n in 3..40 {
            assert!(!bench.cascades(n));
            bench.step_after(SECOND);
        }
        let asked = bench.tier().jobs_rejected;
        assert_eq!(asked < 12, is_fenced, "{refusal}: {asked} times");
        bench.world.lock().tiers[0].refuses_writes = false;
        bench.step_after(60 * SECOND);
        // Busy is slow, and nine of ten may be left out.
        assert!((40..55).any(|n| bench.cascades(n)));
    }
}

#[test]
fn of_cascades_to_a_tier_so_many_are_left_out_as_it_is_slow_and_none_once_it_is_fast() {
    let marks = Watermarks { low: 100 * SECOND / 1000, high: 300 * SECOND / 1000 };
    let pressure = PressureOptions { writes: Some(marks), ..PressureOptions::NONE };
    let mut bench = bench(64, pressure);
    let gone = |bench: &mut Bench<Lru>, time: Duration, of: Range<u64>| {
        of.fold(0, |gone, n| {
            let went = bench.cascades(n);
            bench.clock.advance(time);
            bench.end_all(done);
            gone + u64::from(went)
        })
    };
    // Chunks are small: a job counts as a MiB.
    assert_eq!(gone(&mut bench, 290 * SECOND / 1000, 0..50), 50, "below the upper mark none is");
    gone(&mut bench, 350 * SECOND / 1000, 50..100);
    // It is smoothed, and what is left out tells nothing.
    let went = gone(&mut bench, 350 * SECOND / 1000, 100..200);
    assert_eq!(went, 10, "at most nine of ten are left out");
    gone(&mut bench, 200 * SECOND / 1000, 200..600);
    let went = gone(&mut bench, 200 * SECOND / 1000, 600..700);
    assert!((45..=55).contains(&went), "half way between the marks half are: {went}");
    gone(&mut bench, 10 * SECOND / 1000, 700..800);
    assert_eq!(gone(&mut bench, 10 * SECOND / 1000, 800..850), 50);
    check_quiet(&bench.manager);
}

#[test]
fn a_job_that_had_nothing_to_copy_does_not_make_a_slow_tier_fast() {
    let marks = Watermarks { low: SECOND / 10, high: 3 * SECOND };
    let pressure = PressureOptions { writes: Some(marks), ..PressureOptions::NONE };
    let mut bench = bench(64, pressure);
    for n in 0..20 {
        bench.cascades(n);
        bench.manager.on_schedule_end();
        bench.clock.advance(SECOND);
        bench.end_all(done);
    }
    let slow = bench.tier().write_per_mib;
    for n in 20..60 {
        bench.cascades(n);
        bench.end_all(|job| done(job).with_copied(0));
    }
    assert_eq!(bench.tier().write_per_mib, slow);
}

#[test]
fn chunks_that_did_not_come_do_not_make_a_slow_tier_fast() {
    let marks = Watermarks { low: SECOND, high: 100 * SECOND };
    let pressure = PressureOptions { writes: Some(marks), ..PressureOptions::NONE };
    let (world, tiers) = World::new(&[Spec::chunk_level("disk")]);
    let (clock, options) = (ManualClock::default(), TieringOptions::new(1 << 20).with_pressure(pressure));
    let primary = with_policy(8, Lru::new(8));
    let manager = TieringManager::new(primary, tiers, options, Box::new(clock.clone())).unwrap();
    let mut bench = Bench { manager, world, clock };
    let mut req = begin(&mut bench.manager, 1);
    store(&mut bench.manager, &mut req, &keys([1, 2]));
    bench.clock.advance(8 * SECOND);
    bench.end_all(|job| TierCompletion::except(job.id, vec![key(2)]));
    // Eight seconds for one MiB, and the weight of a job is an eighth.
    assert_eq!(bench.tier().write_per_mib, SECOND);
    store(&mut bench.manager, &mut req, &keys([3, 4]));
    bench.end_all(|job| TierCompletion::except(job.id, keys([3, 4]).to_vec()));
    assert_eq!(bench.tier().write_per_mib, SECOND, "nothing came");
    finish(&mut bench.manager, &mut req);
    check_quiet(&bench.manager);
}

#[test]
fn a_write_that_does_not_end_counts_by_its_age() {
    let marks = Watermarks { low: SECOND, high: 2 * SECOND };
    let mut bench = bench(64, PressureOptions { writes: Some(marks), ..PressureOptions::NONE });
    assert!(bench.cascades(0));
    bench.step_after(3 * SECOND);
    let went = (1..101).filter(|n| bench.cascades(*n)).count();
    assert_eq!(went, 10);
}

#[test]
fn requests_do_without_a_tier_that_is_slow_to_read() {
    let marks = Watermarks { low: SECOND, high: 2 * SECOND };
    let mut bench = bench(64, PressureOptions { reads: Some(marks), ..PressureOptions::NONE });
    bench.world.put(0, &range(0..1_000));
    let mut first = begin(&mut bench.manager, 1);
    assert_eq!(bench.manager.lookup(&mut first, &key(0)), HitPending);
    bench.step_after(Duration::ZERO);
    bench.clock.advance(4 * SECOND);
    let mut left_out = 0;
    for n in 1..=20 {
        let mut req = begin(&mut bench.manager, 1 + n);
        let found = lookups(&mut bench.manager, &mut req, &keys([n * 2, n * 2 + 1]));
        assert_eq!(found[0], found[1], "that is decided once for a request");
        left_out += usize::from(found[0] == Miss);
        finish(&mut bench.manager, &mut req);
    }
    assert_eq!(left_out, 18);
    assert_eq!(bench.tier().requests_left_out, 18);
    assert_eq!(bench.manager.lookup(&mut first, &key(999)), HitPending, "it was let in");
    finish(&mut bench.manager, &mut first);
    bench.manager.on_schedule_end();
    bench.end_all(done);
    check_quiet(&bench.manager);
}

#[test]
fn cascades_pin_no_more_than_their_share_however_slow_the_tiers() {
    let specs = [Spec::chunk_level("disk"), Spec::chunk_level("remote")];
    let mut bench = bench_over(16, &specs, Lru::new(16), PressureOptions::default());
    let mut runs = begin(&mut bench.manager, 1_000);
    for n in 0..100 {
        let mut req = begin(&mut bench.manager, 1 + n);
        let job = offer(&mut bench.manager, &mut req, &[key(n)]);
        stored(&mut bench.manager, job.token);
        finish(&mut bench.manager, &mut req);
        bench.manager.on_schedule_end();
        assert!(check_sound(&bench.manager).pinned <= 8);
    }
    finish(&mut bench.manager, &mut runs);
    bench.end_all(done);
    check_quiet(&bench.manager);
}

#[test]
fn a_job_of_more_chunks_than_the_share_goes_alone() {
    let mut bench = bench(8, PressureOptions::default());
    let mut runs = begin(&mut bench.manager, 2);
    let mut req = begin(&mut bench.manager, 1);
    store(&mut bench.manager, &mut req, &range(0..6));
    assert_eq!(bench.world.new_job().chunks.len(), 6);
    finish(&mut bench.manager, &mut req);
    assert!(!bench.cascades(10));
    bench.end_all(done);
    assert!(bench.cascades(11));
    finish(&mut bench.manager, &mut runs);
    bench.end_all(done);
    check_quiet(&bench.manager);
}

#[test]
fn a_clock_that_jumps_costs_time_and_nothing_else() {
    let mut bench = bench(8, PressureOptions::default());
    bench.world.put(0, &keys([1]));
    let mut req = begin(&mut bench.manager, 1);
    assert_eq!(bench.manager.lookup(&mut req, &key(1)), HitPending);
    assert!(bench.cascades(2));
    bench.step_after(Duration::from_secs(u64::MAX / 4_000_000_000));
    assert_eq!(bench.manager.lookup(&mut req, &key(1)), Miss);
    bench.end_all(done);
    finish(&mut bench.manager, &mut req);
    bench.step_after(60 * SECOND);
    assert!(bench.cascades(3));
    bench.end_all(done);
    check_quiet(&bench.manager);
}
