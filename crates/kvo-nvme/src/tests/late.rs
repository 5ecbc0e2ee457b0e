//! Chunks that take too long.

use std::time::Duration;

use kvo_core::{JobId, RejectReason, ReleasedSlot, SecondaryTier, SlotId, TierCompletion, TierDirection};

use super::{Rig, Trouble, keys};

const DEADLINE: Duration = Duration::from_secs(30);

fn released(rig: &mut Rig) -> Vec<ReleasedSlot> {
    let mut released = Vec::new();
    rig.store.take_released(&mut released);
    released
}

/// B16: whatever a device does, each job ends once, by its deadline.
#[test]
fn a_job_is_given_up_when_its_deadline_passes_and_not_before() {
    let mut rig = Rig::new(4);
    let job = rig.write(1, &[1, 2]);
    let (one, two) = (rig.next_op().unwrap(), rig.next_op().unwrap());
    rig.run(one, Trouble::None);
    rig.clock.advance(DEADLINE.saturating_sub(Duration::from_nanos(1)));
    assert_eq!(rig.poll(), []);
    rig.clock.advance(Duration::from_nanos(1));
    let late = TierCompletion::except(job, keys([2])).with_held(vec![SlotId(2)]);
    assert_eq!(rig.poll(), [late]);
    assert_eq!(released(&mut rig), []);
    let stats = rig.store.stats();
    assert_eq!((stats.late, stats.late_ended, stats.counts.writing), (1, 0, 1), "its slot is still taken");
    rig.check_resident(0..3, &[1]);

    rig.run(two, Trouble::None);
    assert_eq!(rig.poll(), [], "it was reported");
    assert_eq!(released(&mut rig), [ReleasedSlot { job, slot: SlotId(2) }]);
    assert_eq!(released(&mut rig), []);
    assert_eq!(rig.store.stats().late_ended, 1);
    rig.check_resident(0..3, &[1, 2]);
}

#[test]
fn a_late_read_keeps_its_slot_pinned_until_the_device_has_ended() {
    let mut rig = Rig::new(2);
    rig.put(1, &[1, 2]);
    let job = rig.read(2, &[1]);
    let op = rig.next_op().unwrap();
    rig.clock.advance(DEADLINE);
    assert_eq!(rig.poll(), [TierCompletion::except(job, keys([1])).with_held(vec![SlotId(1)])]);
    assert_eq!(rig.store.counts().pinned, 1);
    // The pinned one is not evicted for two more.
    let job = rig.write(3, &[3, 4]);
    rig.run_all(&[]);
    assert_eq!(rig.poll(), [TierCompletion::except(job, keys([4]))]);
    rig.run(op, Trouble::None);
    assert_eq!(rig.poll(), []);
    assert_eq!((rig.store.counts().pinned, rig.store.counts().evictable), (0, 2));
    rig.get(4, &[1, 3], &[]);
}

#[test]
fn the_number_of_a_late_job_is_free_again_when_the_device_has_ended() {
    let mut rig = Rig::new(2);
    let job = rig.write(1, &[1]);
    let op = rig.next_op().unwrap();
    rig.clock.advance(DEADLINE);
    assert_eq!(rig.poll(), [TierCompletion::except(job, keys([1])).with_held(vec![SlotId(1)])]);
    rig.next_job = job.0 - 1;
    let rejected = rig.try_submit(2, TierDirection::Write, &[2]).unwrap_err();
    assert_eq!(rejected.reason, RejectReason::Invalid);
    rig.run(op, Trouble::Eio);
    assert_eq!(rig.poll(), []);
    assert_eq!(rig.store.counts().quarantined, 1, "a late failure is one of the slot all the same");
    rig.next_job = job.0 - 1;
    assert_eq!(rig.try_submit(2, TierDirection::Write, &[2]).unwrap(), JobId(job.0));
}

/// A write of chunk 1 that is late and still runs, and the job that waits for it and has half of its time left.
fn late_write_that_is_waited_for() -> (Rig, JobId) {
    let mut rig = Rig::new(2);
    let first = rig.write(1, &[1]);
    rig.clock.advance(DEADLINE / 2);
    let second = rig.write(2, &[1]);
    rig.clock.advance(DEADLINE / 2);
    assert_eq!(rig.poll(), [TierCompletion::except(first, keys([1])).with_held(vec![SlotId(1)])]);
    (rig, second)
}

#[test]
fn who_waits_for_a_late_write_is_given_up_by_its_own_deadline() {
    let (mut rig, second) = late_write_that_is_waited_for();
    rig.clock.advance(DEADLINE / 2);
    assert_eq!(rig.poll(), [TierCompletion::except(second, keys([1]))]);
    // Nobody waits any more when it ends.
    rig.run_all(&[]);
    assert_eq!(rig.poll(), []);
    rig.check_resident(0..3, &[1]);
}

#[test]
fn a_late_write_that_ends_in_time_for_who_waits_is_there_for_it() {
    let (mut rig, second) = late_write_that_is_waited_for();
    rig.run_all(&[]);
    assert_eq!(rig.poll(), [TierCompletion::done(second)]);
}
