//! Random calls of what decides under pressure, beside what they must add up to.

use std::time::Duration;

use kvo_core::{BlockHash, GroupIdx, JobId, OffloadKey, RequestId};
use proptest::prelude::*;

use super::{
    Gate, Gauge, Grant, PressureOptions, Turns, Watermarks,
    turns::{Coming, Unread},
};
use crate::request::Owner;

fn key(n: u64) -> OffloadKey {
    OffloadKey::new(BlockHash::from_u64(n), GroupIdx(0))
}

fn owner(n: u64) -> Owner {
    Owner { req: RequestId(n), arrival: n }
}

#[derive(Clone, Debug)]
enum Op {
    Ask { of: u64, n: u64 },
    Come(u64),
    Fail(u64),
    Load { job: u64, ns: Vec<u64> },
    EndLoad(u64),
    EndAll(u64),
    Evict(u64),
    Pass(u64),
    EndStep,
    Reset,
}

fn op() -> impl Strategy<Value = Op> {
    let (of, n, job) = (0..6u64, 0..24u64, 0..4u64);
    prop_oneof![
        12 => (of.clone(), n.clone()).prop_map(|(of, n)| Op::Ask { of, n }),
        8 => n.clone().prop_map(Op::Come),
        2 => n.clone().prop_map(Op::Fail),
        3 => (job.clone(), prop::collection::vec(n.clone(), 1..6)).prop_map(|(job, ns)| Op::Load { job, ns }),
        3 => job.prop_map(Op::EndLoad),
        2 => of.prop_map(Op::EndAll),
        2 => n.prop_map(Op::Evict),
        2 => (0..1500u64).prop_map(Op::Pass),
        2 => Just(Op::EndStep),
        1 => Just(Op::Reset),
    ]
}

fn state(turns: &Turns, n: u64) -> Option<Coming> {
    turns.unread().get(&key(n)).map(|unread| unread.state)
}

fn check(turns: &Turns, slots_max: usize) {
    turns.assert_consistent();
    assert!(turns.num_unread() <= slots_max, "{turns:?}");
}

proptest! {
    #[test]
    fn promotions_have_no_more_than_their_share_and_somebody_can_always_go_on(ops in prop::collection::vec(op(), 1..200)) {
        let options = PressureOptions::default();
        let (num_slots, slots_max) = (16, 8);
        let mut turns = Turns::new(&options, num_slots);
        let mut now = Duration::ZERO;
        let mut open_loads = std::collections::BTreeSet::new();
        for op in ops {
            match op {
                // What the primary has is not asked of the tiers.
                Op::Ask { n, .. } if state(&turns, n).is_some() => {}
                Op::Ask { of, n } => {
                    let grant = turns.ask(owner(of), false, &key(n), now);
                    let is_oldest = turns.waiting().next() == Some(of);
                    let is_ending = turns.unread().values().any(|unread| unread.state.is_ending());
                    match grant {
                        Grant::Now => {
                            turns.begin(owner(of), key(n));
                            prop_assert!(is_oldest || turns.num_unread() <= slots_max / 2);
                        }
                        // What it waits for ends by itself, or is what an older request waits for.
                        Grant::Later => prop_assert!(is_ending || !is_oldest),
                        Grant::Never => {
                            let has_all = is_oldest && !is_ending && turns.num_unread() == slots_max;
                            prop_assert!(has_all || turns.was_lost(&key(n)));
                        }
                    }
                }
                Op::Come(n) if matches!(state(&turns, n), Some(Coming::UnderWay | Coming::Unwanted)) => {
                    turns.come(&[key(n)], now);
                }
                Op::Fail(n) if matches!(state(&turns, n), Some(Coming::UnderWay | Coming::Unwanted)) => {
                    turns.fail(&[key(n)]);
                }
                // A job is new, its chunks are ready.
                Op::Load { job, ns } if !open_loads.contains(&job) => {
                    let is_ready = |n: &u64| !matches!(state(&turns, *n), Some(Coming::UnderWay | Coming::Unwanted));
                    let keys: Vec<_> = ns.into_iter().filter(is_ready).map(key).collect();
                    open_loads.insert(job);
                    turns.load(JobId(job), &keys);
                }
                Op::EndLoad(job) if open_loads.remove(&job) => turns.end_load(JobId(job)),
                Op::EndAll(of) => turns.end_all(of),
                // What is under way or pinned is not evicted.
                Op::Evict(n) if matches!(state(&turns, n), None | Some(Coming::Here)) => {
                    let was_here = turns.unread().get(&key(n)).map(|Unread { of, .. }| *of);
                    prop_assert_eq!(turns.on_evicted(&key(n), now), was_here);
                    prop_assert!(was_here.is_none() || turns.was_lost(&key(n)));
                }
                Op::Pass(ms) => now += Duration::from_millis(ms),
                Op::EndStep => turns.on_step_end(),
                Op::Reset => {
                    open_loads.clear();
                    turns.reset();
                }
                _ => {}
            }
            check(&turns, slots_max);
        }
        // When all is over nothing counts any more.
        for n in 0..24 {
            if matches!(state(&turns, n), Some(Coming::UnderWay | Coming::Unwanted)) {
                turns.come(&[key(n)], now);
            }
        }
        for job in open_loads {
            turns.end_load(JobId(job));
        }
        for of in 0..6 {
            turns.end_all(of);
        }
        prop_assert_eq!(turns.num_unread(), 0);
        check(&turns, slots_max);
    }
}

#[test]
fn a_pause_doubles_up_to_its_longest_and_is_short_again_after_a_success() {
    let second = Duration::from_secs(1);
    let mut gate = Gate::new(&PressureOptions {
        failures_max: Some(1),
        pause_max: 5 * second,
        ..PressureOptions::default()
    });
    let mut now = Duration::ZERO;
    for pause in [1, 2, 4, 5, 5] {
        gate.on_taken(JobId(pause));
        gate.on_failed(JobId(pause), now);
        let until = now + Duration::from_secs(pause);
        assert!(!gate.lets_through(until.saturating_sub(Duration::from_nanos(1))));
        now = until;
        assert!(gate.lets_through(now) && gate.is_fenced());
    }
    gate.on_taken(JobId(9));
    assert!(!gate.lets_through(now), "one job tries");
    assert!(!gate.on_done(JobId(8)), "it is not the one that tries");
    assert!(gate.on_done(JobId(9)) && !gate.is_fenced());
    gate.on_failed(JobId(10), now);
    assert!(gate.lets_through(now + second));
    assert_eq!(gate.times_shut(), 6);
}

#[test]
fn what_a_tier_was_given_before_it_was_fenced_off_says_nothing_once_it_is_back() {
    let now = Duration::from_secs(100);
    let mut gate = Gate::new(&PressureOptions { failures_max: Some(1), ..PressureOptions::default() });
    for job in 1..=5 {
        gate.on_taken(JobId(job));
    }
    gate.on_failed(JobId(1), Duration::ZERO);
    gate.on_taken(JobId(6));
    assert!(gate.on_done(JobId(6)));
    gate.on_failed(JobId(2), now);
    gate.on_overdue(JobId(3), now);
    assert!(!gate.is_fenced());
    gate.on_taken(JobId(7));
    gate.on_overdue(JobId(7), now);
    assert!(gate.is_fenced());
}

#[test]
fn a_gauge_that_is_not_watched_leaves_nothing_out() {
    let mut gauge = Gauge::new(None);
    gauge.took(1, Duration::from_secs(1_000));
    gauge.failed();
    assert!(!gauge.leaves_out(Some((1, Duration::from_secs(1_000)))));
    assert_eq!(gauge.per_mib(), Duration::ZERO);
}

#[test]
fn time_counts_by_the_mib_and_small_jobs_as_one() {
    let marks = Watermarks { low: Duration::from_millis(10), high: Duration::from_millis(100) };
    let after = |bytes, ms| {
        let mut gauge = Gauge::new(Some(marks));
        gauge.took(bytes, Duration::from_millis(ms));
        gauge.per_mib()
    };
    assert_eq!(after(1 << 20, 80), Duration::from_millis(10));
    assert_eq!(after(8 << 20, 80), Duration::from_micros(1_250));
    assert_eq!(after(1, 80), Duration::from_millis(10));
    assert_eq!(
        after(1 << 20, 100_000),
        Duration::from_millis(25),
        "no job counts as more than twice the upper mark"
    );
}
