//! The gate by hand, against a naive model, and whether what it lets in is closed towards the head.
//!
//! A failing run prints its seed; `KVO_TEST_SEED=<seed> cargo test -p kvo-nvme admission` replays it alone.

mod model;
#[path = "../../../kvo-policies/tests/support/seeded.rs"]
#[allow(dead_code, unreachable_pub, reason = "it is shared with other tests, which use other parts of it")]
mod seeded;

use std::{collections::BTreeSet, time::Duration};

use kvo_core::{BlockHash, GroupIdx, OffloadKey, RequestId};

use super::Gate;
use crate::{Admission, AdmissionRule};

const CHUNK_BYTES: u64 = 1000;
const R1: RequestId = RequestId(1);
const R2: RequestId = RequestId(2);
const R3: RequestId = RequestId(3);
const START: Duration = Duration::from_secs(5_000_000);

fn key(n: u64) -> OffloadKey {
    OffloadKey::new(BlockHash::from_u64(n), GroupIdx(0))
}

fn keys(ns: impl IntoIterator<Item = u64>) -> Vec<OffloadKey> {
    ns.into_iter().map(key).collect()
}

fn gate(admission: Admission) -> Gate {
    Gate::new(&admission, CHUNK_BYTES).unwrap()
}

fn second_offer(keys_max: u32) -> Admission {
    Admission { rule: AdmissionRule::SecondOffer { keys_max }, ..Admission::default() }
}

/// A budget of so many bytes a second.
fn budget(bytes_per_second: u64) -> Admission {
    Admission { bytes_per_day_max: Some(bytes_per_second * 86_400), ..Admission::default() }
}

/// Offers chunks when nothing else matters: none is there, no read waits.
fn offer(gate: &mut Gate, req: RequestId, ns: impl IntoIterator<Item = u64>) -> usize {
    gate.admit(req, &keys(ns), START, false, |_| false)
}

/// A request of its own that offers `count` new chunks at `now`.
fn offer_at(gate: &mut Gate, now: Duration, count: u64) -> usize {
    let admitted = gate.admit(R3, &keys(0..count), now, false, |_| false);
    gate.finish(R3);
    admitted
}

/// What is remembered, the key offered longest ago first.
#[track_caller]
fn check_remembered(gate: &Gate, expected: &[u64]) {
    let remembered: Vec<_> = gate.memory.as_ref().unwrap().keys().into_iter().map(|(key, _)| key).collect();
    assert_eq!(remembered, keys(expected.iter().copied()));
}

#[test]
fn without_rules_everything_is_let_in() {
    let mut gate = gate(Admission::default());
    assert_eq!(gate.admit(R1, &keys(0..100), Duration::MAX, true, |_| false), 100);
    assert_eq!(gate.admit(R1, &[], Duration::ZERO, true, |_| false), 0);
    assert_eq!(gate.admit(R1, &keys(100..200), Duration::ZERO, true, |_| false), 100);
}

#[test]
fn a_key_is_let_in_when_a_second_request_offers_it() {
    let mut gate = gate(second_offer(100));
    assert_eq!(offer(&mut gate, R1, 0..4), 0);
    assert_eq!(offer(&mut gate, R1, 0..4), 0, "the same request offers it again");
    assert_eq!(offer(&mut gate, R2, 0..6), 4);
    assert_eq!(offer(&mut gate, R3, 0..6), 6, "by now others have offered all of them");
    assert_eq!(offer(&mut gate, R1, 0..6), 6, "what was wanted by two is let in for whoever offers it next");
}

#[test]
fn a_later_request_with_the_number_of_an_earlier_one_is_another() {
    let mut gate = gate(second_offer(100));
    assert_eq!(offer(&mut gate, R1, 0..4), 0);
    gate.finish(R1);
    assert_eq!(offer(&mut gate, R1, 0..4), 4);
}

#[test]
fn the_keys_that_were_not_offered_for_longest_are_forgotten_tails_first() {
    let mut gate = gate(second_offer(4));
    offer(&mut gate, R1, [1, 2]);
    offer(&mut gate, R1, [3, 4]);
    check_remembered(&gate, &[2, 1, 4, 3]);
    offer(&mut gate, R1, [1]);
    offer(&mut gate, R1, [5]);
    check_remembered(&gate, &[4, 3, 1, 5]);
    offer(&mut gate, R2, [6, 3]);
    check_remembered(&gate, &[1, 5, 3, 6]);
}

#[test]
fn a_key_is_not_forgotten_for_another_of_its_offer() {
    let mut gate = gate(second_offer(3));
    offer(&mut gate, R1, [1, 2, 3]);
    // The tail, which would go first, is named last.
    assert_eq!(offer(&mut gate, R2, [1, 8, 9, 3]), 1);
    check_remembered(&gate, &[3, 8, 1]);
    let wanted: Vec<bool> = gate.memory.as_ref().unwrap().keys().iter().map(|(_, wanted)| *wanted).collect();
    assert_eq!(wanted, [true, false, true]);
}

#[test]
fn of_an_offer_that_is_more_than_can_be_remembered_the_head_is() {
    let mut gate = gate(second_offer(3));
    offer(&mut gate, R1, 0..10);
    check_remembered(&gate, &[2, 1, 0]);
    assert_eq!(offer(&mut gate, R2, 0..10), 3);
    let mut nothing_remembered = self::gate(second_offer(0));
    assert_eq!(offer(&mut nothing_remembered, R1, 0..3), 0);
    assert_eq!(offer(&mut nothing_remembered, R2, 0..3), 0);
}

#[test]
fn a_key_that_is_named_twice_in_one_offer_is_offered_once() {
    let mut gate = gate(second_offer(4));
    assert_eq!(offer(&mut gate, R1, [1, 2, 1, 1]), 0);
    check_remembered(&gate, &[2, 1]);
    assert_eq!(offer(&mut gate, R2, [2, 1, 2]), 3);
    check_remembered(&gate, &[1, 2]);
}

#[test]
fn a_tail_whose_head_was_forgotten_is_not_let_in() {
    let mut gate = gate(second_offer(3));
    offer(&mut gate, R1, [1, 2]);
    offer(&mut gate, R1, [3, 4]);
    check_remembered(&gate, &[1, 4, 3]);
    offer(&mut gate, R1, [9]);
    assert_eq!(offer(&mut gate, R2, [1, 2]), 0);
    assert_eq!(offer(&mut gate, R2, [3]), 0, "though it is offered for the second time");
    assert_eq!(offer(&mut gate, R3, [3]), 1, "to whom nothing was refused");
}

#[test]
fn more_keys_than_there_is_memory_for_are_an_error() {
    assert!(
        Gate::new(&second_offer(u32::MAX), CHUNK_BYTES).is_err() || cfg!(not(target_pointer_width = "64"))
    );
}

/// 100 bytes a second: a chunk takes 10 seconds, an hour's worth is 360 chunks.
#[test]
fn the_budget_begins_empty_fills_up_evenly_and_holds_an_hours_worth() {
    let mut gate = gate(budget(100));
    let at = |seconds: u64| START + Duration::from_secs(seconds);
    assert_eq!(offer_at(&mut gate, at(0), 1000), 0);
    assert_eq!(offer_at(&mut gate, at(9) + Duration::from_nanos(999_999_999), 1000), 0);
    assert_eq!(offer_at(&mut gate, at(10), 1000), 1);
    assert_eq!(offer_at(&mut gate, at(10), 1000), 0);
    assert_eq!(offer_at(&mut gate, at(45), 2), 2);
    assert_eq!(offer_at(&mut gate, at(50), 1000), 2, "what was not needed is kept");
    assert_eq!(offer_at(&mut gate, at(50 + 3600), 1000), 360);
    assert_eq!(offer_at(&mut gate, at(50 + 7 * 86_400), 1000), 360, "and no more than an hour's worth");
}

#[test]
fn the_head_of_a_job_gets_what_is_left_of_the_budget() {
    let mut gate = gate(budget(100));
    offer_at(&mut gate, START, 1);
    let now = START + Duration::from_secs(35);
    assert_eq!(gate.admit(R1, &keys(0..5), now, false, |_| false), 3);
    assert_eq!(gate.admit(R2, &keys(10..15), now, false, |_| false), 0);
}

#[test]
fn not_a_byte_is_lost_or_won_by_how_the_time_is_cut() {
    // 86,401 bytes a day are no whole number of bytes in any time that a clock shows.
    let admission = Admission { bytes_per_day_max: Some(86_401), ..Admission::default() };
    for step in [Duration::from_nanos(999_999_937), Duration::from_millis(700), Duration::from_secs(41)] {
        let mut gate = Gate::new(&admission, 1).unwrap();
        let (mut now, mut bytes) = (START, 0);
        offer_at(&mut gate, now, 1);
        for _ in 0..10_000 {
            now += step;
            bytes += offer_at(&mut gate, now, 100) as u128;
        }
        let expected = now.saturating_sub(START).as_nanos() * 86_401 / Duration::from_hours(24).as_nanos();
        assert_eq!(bytes, expected, "in steps of {step:?}");
    }
}

#[test]
fn a_clock_that_jumps_wins_no_more_than_an_hours_worth() {
    let mut gate = gate(budget(100));
    assert_eq!(offer_at(&mut gate, Duration::ZERO, 10), 0);
    assert_eq!(offer_at(&mut gate, Duration::MAX, 1000), 360);
    assert_eq!(offer_at(&mut gate, Duration::MAX, 1000), 0);
    assert_eq!(offer_at(&mut gate, Duration::from_secs(7), 1000), 0, "back");
    assert_eq!(offer_at(&mut gate, Duration::from_secs(7), 1000), 0);
    assert_eq!(offer_at(&mut gate, Duration::from_secs(17), 1000), 1, "it fills up from there");
}

#[test]
fn budgets_and_chunks_of_any_size_do_no_harm() {
    let check = |bytes_per_day, chunk_bytes, expected: [usize; 3]| {
        let admission = Admission { bytes_per_day_max: Some(bytes_per_day), ..Admission::default() };
        let mut gate = Gate::new(&admission, chunk_bytes).unwrap();
        let times = [START, START + Duration::from_hours(1), Duration::MAX];
        assert_eq!(times.map(|now| offer_at(&mut gate, now, 50)), expected, "{bytes_per_day} {chunk_bytes}");
    };
    check(0, 1, [0, 0, 0]);
    check(0, u64::MAX, [0, 0, 0]);
    check(u64::MAX, 1, [0, 50, 50]);
    check(u64::MAX, u64::MAX, [0, 0, 1]);
    check(24, u64::MAX, [0, 0, 0]);
    check(0, 0, [50, 50, 50]);
}

#[test]
fn a_chunk_that_is_more_than_an_hours_worth_is_saved_up_for() {
    // 48 bytes a day, chunks of 5 bytes: one in two and a half hours.
    let admission = Admission { bytes_per_day_max: Some(48), ..Admission::default() };
    let mut gate = Gate::new(&admission, 5).unwrap();
    let at = |minutes: u64| START + Duration::from_mins(minutes);
    let counts = [0, 149, 150, 151, 300, 900].map(|minutes| offer_at(&mut gate, at(minutes), 10));
    assert_eq!(counts, [0, 0, 1, 0, 1, 1]);
}

#[test]
fn what_the_store_had_no_room_for_is_not_taken_from_the_budget_and_cuts_its_request_off() {
    let mut gate = gate(budget(100));
    offer_at(&mut gate, START, 1);
    let now = START + Duration::from_secs(50);
    let job = keys(0..5);
    assert_eq!(gate.admit(R1, &job, now, false, |_| false), 5);
    gate.give_back(R1, &job[2..]);
    assert_eq!(gate.admit(R1, &keys(5..6), now, false, |_| false), 0, "its head is missing");
    assert_eq!(gate.admit(R1, &job[2..3], now, false, |_| false), 1, "it is offered again");
    assert_eq!(gate.admit(R1, &keys(5..6), now, false, |_| false), 0, "chunks 3 and 4 are missing still");
    assert_eq!(gate.admit(R2, &keys(20..30), now, false, |_| false), 2, "what was given back and is left");
    gate.give_back(R2, &[]);
    gate.give_back(RequestId(77), &keys([1]));
}

#[test]
fn nothing_is_let_in_while_reads_wait_if_the_options_say_so() {
    for skip_while_reads_wait in [true, false] {
        let mut gate = gate(Admission { skip_while_reads_wait, ..Admission::default() });
        let count = gate.admit(R1, &keys(0..3), START, true, |_| false);
        assert_eq!(count, if skip_while_reads_wait { 0 } else { 3 });
        assert_eq!(gate.admit(R2, &keys(0..3), START, false, |_| false), 3);
    }
}

#[test]
fn a_key_that_was_skipped_was_offered_all_the_same() {
    let admission = Admission { skip_while_reads_wait: true, ..second_offer(10) };
    let mut gate = gate(admission);
    assert_eq!(gate.admit(R1, &keys(0..3), START, true, |_| false), 0);
    assert_eq!(gate.admit(R2, &keys(0..3), START, true, |_| false), 0);
    assert_eq!(gate.admit(R1, &keys(0..3), START, false, |_| false), 3);
}

/// A gate that has skipped chunks 0 to 3 of a request, and lets everything in since.
fn with_cut() -> Gate {
    let mut gate = gate(Admission { skip_while_reads_wait: true, ..Admission::default() });
    assert_eq!(gate.admit(R1, &keys(0..4), START, true, |_| false), 0);
    gate
}

#[test]
fn what_follows_a_key_that_was_refused_is_refused_too() {
    let mut gate = with_cut();
    for first in [4, 8, 12] {
        assert_eq!(offer(&mut gate, R1, first..first + 4), 0);
    }
    assert_eq!(offer(&mut gate, R2, 4..8), 4, "another request has its own head");
    gate.finish(R1);
    assert_eq!(offer(&mut gate, R1, 4..8), 4, "another one of the same number");
}

#[test]
fn a_request_goes_on_once_all_that_it_was_refused_is_there() {
    let mut gate = with_cut();
    let there: BTreeSet<OffloadKey> = keys(0..3).into_iter().collect();
    assert_eq!(gate.admit(R1, &keys(4..6), START, false, |key| there.contains(key)), 0, "chunk 3 is not");
    let there: BTreeSet<OffloadKey> = keys(0..6).into_iter().collect();
    assert_eq!(gate.admit(R1, &keys(6..8), START, false, |key| there.contains(key)), 2);
    assert_eq!(offer(&mut gate, R1, 8..9), 1, "it is not cut off any more");
}

#[test]
fn a_request_that_offers_again_what_it_was_refused_is_looked_at_anew() {
    let mut gate = with_cut();
    assert_eq!(offer(&mut gate, R1, 4..6), 0);
    assert_eq!(offer(&mut gate, R1, 0..8), 8);
    assert_eq!(offer(&mut gate, R1, 8..9), 1);

    let mut gate = with_cut();
    assert_eq!(offer(&mut gate, R1, 2..8), 0, "chunks 0 and 1 are missing");
    assert_eq!(offer(&mut gate, R1, 0..2), 2);
    assert_eq!(offer(&mut gate, R1, 8..9), 0, "chunks 2 to 7 are missing");

    let mut gate = with_cut();
    assert_eq!(gate.admit(R1, &keys(0..8), START, true, |_| false), 0);
    assert_eq!(offer(&mut gate, R1, 8..9), 0, "it was refused again");
}

#[test]
fn no_table_grows_once_it_has_what_there_is_at_a_time() {
    let mut gate = gate(second_offer(100));
    let mut room = None;
    for round in 0..20_000_u64 {
        let req = RequestId(round);
        for job in 0..3 {
            let first = (round * 7 + job) % 5_000;
            offer(&mut gate, req, first..first + 16);
        }
        if round >= 8 {
            gate.finish(RequestId(round - 8));
        }
        let now = (gate.memory.as_ref().unwrap().room(), gate.requests.capacity());
        if round > 100 {
            assert_eq!(*room.get_or_insert(now), now, "in round {round}");
        }
    }
    assert_eq!(gate.memory.as_ref().unwrap().keys().len(), 100);
    assert_eq!(gate.requests.len(), 8);
}
