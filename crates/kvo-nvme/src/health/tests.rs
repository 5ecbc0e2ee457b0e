//! The table of the docs beside the code, the gates by hand, and the gates beside a naive model.
//!
//! `KVO_NVME_HEALTH_SEED=<number>` replays one episode of the model's.

mod model;
mod table;

use super::*;

const SECOND: Duration = Duration::from_secs(1);
const OPTIONS: BreakerOptions =
    BreakerOptions { errors: 3, window: Duration::from_secs(10), pause: Duration::from_secs(5) };

const COUNT: Verdict =
    Verdict { slot: SlotVerdict::Kept, store: StoreVerdict::Count, durability_lost: false };
const READ_ONLY: Verdict = Verdict { store: StoreVerdict::ReadOnly, ..COUNT };
const GONE: Verdict = Verdict { store: StoreVerdict::Open, ..COUNT };
const HOST: Verdict = Verdict { store: StoreVerdict::Nothing, ..COUNT };
const WRONG_BYTES: Verdict = Verdict { slot: SlotVerdict::Strike, ..HOST };
const SYNC_FAILED: Verdict = Verdict { durability_lost: true, ..COUNT };

fn health() -> Health {
    Health::new(OPTIONS, false)
}

/// Closed by errors at 0, 0 and 0 seconds.
fn broken() -> Health {
    let mut health = health();
    for _ in 0..OPTIONS.errors {
        health.on_error(COUNT, Pass::USUAL, Duration::ZERO);
    }
    assert_eq!(health.state(), TierState::Open);
    health
}

/// Full at 0 seconds.
fn full() -> Health {
    let mut health = health();
    health.on_error(READ_ONLY, Pass::USUAL, Duration::ZERO);
    assert_eq!(health.state(), TierState::ReadOnly);
    health
}

#[track_caller]
fn probe(health: &mut Health, direction: Direction, now: Duration) -> Pass {
    let pass = health.allow(direction, now).unwrap();
    assert!(pass.is_probe());
    pass
}

#[test]
fn so_many_errors_within_the_window_open_the_breaker() {
    let mut health = health();
    for seconds in [0, 6, 11] {
        health.on_error(COUNT, Pass::USUAL, seconds * SECOND);
        assert_eq!(health.state(), TierState::Up, "after {seconds} s");
    }
    // 6, 11 and 16 are within ten seconds; 0 was not.
    health.on_error(COUNT, Pass::USUAL, 16 * SECOND);
    assert_eq!(health.state(), TierState::Open);
    for direction in [Direction::Read, Direction::Write] {
        assert_eq!(health.allow(direction, 16 * SECOND), Err(Refusal::Open));
        assert!(!health.may(direction, 20 * SECOND));
        assert!(health.may(direction, 21 * SECOND), "the pause is over");
    }
}

#[test]
fn a_device_that_is_gone_opens_the_breaker_at_once() {
    let mut health = health();
    health.on_error(GONE, Pass::USUAL, SECOND);
    assert_eq!(health.state(), TierState::Open);
    assert_eq!(health.counts().opened, 1);
}

#[test]
fn exactly_one_chunk_tries_after_the_pause_and_decides() {
    let mut health = broken();
    let pass = probe(&mut health, Direction::Read, 5 * SECOND);
    assert_eq!(health.state(), TierState::HalfOpen);
    assert_eq!(health.allow(Direction::Read, 60 * SECOND), Err(Refusal::Open));
    assert_eq!(health.allow(Direction::Write, 60 * SECOND), Err(Refusal::Open));
    health.on_success(pass);
    assert_eq!(health.state(), TierState::Up);
    assert_eq!(health.allow(Direction::Write, 60 * SECOND), Ok(Pass::USUAL));

    let mut health = broken();
    let pass = probe(&mut health, Direction::Write, 7 * SECOND);
    health.on_error(COUNT, pass, 8 * SECOND);
    assert_eq!(health.state(), TierState::Open);
    assert!(!health.may(Direction::Read, 12 * SECOND));
    assert!(health.may(Direction::Read, 13 * SECOND));
    assert_eq!(health.counts(), HealthCounts { errors: 4, opened: 2, read_only: 0, probes: 1 });
}

#[test]
fn a_probe_that_reads_wrong_bytes_has_failed() {
    let mut health = broken();
    let pass = probe(&mut health, Direction::Read, 5 * SECOND);
    health.on_error(WRONG_BYTES, pass, 5 * SECOND);
    assert_eq!(health.state(), TierState::Open);
}

#[test]
fn wrong_bytes_alone_never_open_the_breaker() {
    let mut health = health();
    for _ in 0..100 {
        health.on_error(WRONG_BYTES, Pass::USUAL, SECOND);
    }
    assert!(health.is_up());
}

#[test]
fn after_a_probe_that_never_ran_the_next_chunk_tries() {
    for host_fault in [false, true] {
        let mut health = broken();
        let pass = probe(&mut health, Direction::Read, 5 * SECOND);
        if host_fault {
            health.on_error(HOST, pass, 5 * SECOND);
        } else {
            health.on_cancelled(pass);
        }
        assert_eq!(health.state(), TierState::Open);
        let pass = probe(&mut health, Direction::Read, 5 * SECOND);
        health.on_success(pass);
        assert!(health.is_up());
        assert_eq!(health.counts().opened, 1);
    }
}

#[test]
fn what_was_under_way_before_decides_nothing() {
    let mut health = broken();
    health.on_success(Pass::USUAL);
    assert_eq!(health.state(), TierState::Open);
    health.on_error(GONE, Pass::USUAL, 4 * SECOND);
    assert!(health.may(Direction::Read, 5 * SECOND), "the pause is no longer than it was");

    let pass = probe(&mut health, Direction::Read, 5 * SECOND);
    health.on_success(Pass::USUAL);
    health.on_error(COUNT, Pass::USUAL, 6 * SECOND);
    assert_eq!(health.state(), TierState::HalfOpen);
    health.on_success(pass);
    assert!(health.is_up());
}

#[test]
fn a_full_file_system_is_read_on_and_written_again_when_it_has_room() {
    let mut health = full();
    assert_eq!(health.allow(Direction::Read, SECOND), Ok(Pass::USUAL));
    assert_eq!(health.allow(Direction::Write, SECOND), Err(Refusal::ReadOnly));
    // Still full: one try a pause.
    let pass = probe(&mut health, Direction::Write, 5 * SECOND);
    assert_eq!(health.allow(Direction::Write, 6 * SECOND), Err(Refusal::ReadOnly));
    health.on_error(READ_ONLY, pass, 6 * SECOND);
    assert_eq!(health.allow(Direction::Write, 10 * SECOND), Err(Refusal::ReadOnly));
    let pass = probe(&mut health, Direction::Write, 11 * SECOND);
    health.on_success(pass);
    assert!(health.is_up());
    assert_eq!(health.counts(), HealthCounts { errors: 0, opened: 0, read_only: 2, probes: 2 });
}

#[test]
fn a_device_that_says_full_answers() {
    let mut health = broken();
    let pass = probe(&mut health, Direction::Write, 5 * SECOND);
    health.on_error(READ_ONLY, pass, 5 * SECOND);
    assert_eq!(health.state(), TierState::ReadOnly);
    assert_eq!(health.allow(Direction::Read, 5 * SECOND), Ok(Pass::USUAL));
}

#[test]
fn a_write_that_tries_for_room_does_not_close_the_breaker_that_opened_meanwhile() {
    let mut health = full();
    let write = probe(&mut health, Direction::Write, 5 * SECOND);
    health.on_error(GONE, Pass::USUAL, 6 * SECOND);
    let read = probe(&mut health, Direction::Read, 11 * SECOND);
    health.on_success(write);
    assert_eq!(health.state(), TierState::HalfOpen);
    health.on_error(COUNT, read, 12 * SECOND);
    assert_eq!(health.state(), TierState::Open);
    // One write can try for both.
    let mut health = full();
    health.on_error(GONE, Pass::USUAL, SECOND);
    let pass = probe(&mut health, Direction::Write, 6 * SECOND);
    health.on_success(pass);
    assert!(health.is_up());
}

#[test]
fn a_failed_sync_ends_all_durability_of_this_opening() {
    let mut cache = health();
    cache.on_error(SYNC_FAILED, Pass::USUAL, SECOND);
    assert!(cache.durability_lost());
    assert!(cache.is_up(), "a cache goes on");

    let mut durable = Health::new(OPTIONS, true);
    durable.on_error(SYNC_FAILED, Pass::USUAL, SECOND);
    assert_eq!(durable.state(), TierState::ReadOnly);
    assert_eq!(durable.allow(Direction::Write, Duration::MAX), Err(Refusal::NotDurable));
    assert_eq!(durable.allow(Direction::Read, Duration::MAX), Ok(Pass::USUAL));
}

#[test]
fn a_clock_that_jumps_back_neither_opens_nor_holds_shut() {
    let mut health = broken();
    // From 3 s back to 0 s: three of the five seconds have gone by.
    assert_eq!(health.allow(Direction::Read, 3 * SECOND), Err(Refusal::Open));
    assert_eq!(health.allow(Direction::Read, Duration::ZERO), Err(Refusal::Open));
    assert!(!health.may(Direction::Read, SECOND));
    assert!(health.may(Direction::Read, 2 * SECOND));

    let mut health = self::health();
    health.on_error(COUNT, Pass::USUAL, 100 * SECOND);
    health.on_error(COUNT, Pass::USUAL, 50 * SECOND);
    health.on_error(COUNT, Pass::USUAL, Duration::ZERO);
    assert_eq!(health.state(), TierState::Open, "three errors in no time");
}

#[test]
fn no_number_is_too_large() {
    let forever = BreakerOptions { errors: u32::MAX, window: Duration::MAX, pause: Duration::MAX };
    let mut health = Health::new(forever, true);
    health.on_error(COUNT, Pass::USUAL, Duration::MAX);
    health.on_error(GONE, Pass::USUAL, Duration::MAX);
    assert_eq!(health.state(), TierState::Open);
    let at_once = BreakerOptions { errors: 1, window: Duration::ZERO, pause: Duration::ZERO };
    let mut health = Health::new(at_once, true);
    health.on_error(COUNT, Pass::USUAL, SECOND);
    assert_eq!(health.state(), TierState::Open);
    let pass = probe(&mut health, Direction::Write, SECOND);
    health.on_success(pass);
    assert!(health.is_up());
}

#[test]
fn no_more_errors_are_remembered_than_matter() {
    let mut health = health();
    for seconds in 0..1000 {
        health.on_error(COUNT, Pass::USUAL, seconds * 7 * SECOND);
        assert!(health.recent.len() < OPTIONS.errors as usize);
    }
    assert!(health.is_up(), "two within ten seconds are not three");
}
