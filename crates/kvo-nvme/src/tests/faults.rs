//! Faults of the disk, the memory and the threads: each costs exactly the keys that it happened to.

use std::io;

use kvo_core::{RequestId, SecondaryTier, TierCompletion, TierDirection, TierLookup};

use super::{CHUNK_BYTES, Rig, Trouble, content, key, keys};
use crate::BreakerOptions;

/// Reads chunks 1 to 4 with trouble at chunk 2: it alone fails, and is dropped if `dropped`.
#[track_caller]
fn check_read(trouble: Trouble, dropped: bool, quarantined: u32) {
    let mut rig = Rig::new(4);
    rig.put(1, &[1, 2, 3, 4]);
    let job = rig.read(2, &[1, 2, 3, 4]);
    rig.run_all(&[(2, trouble)]);
    assert_eq!(rig.poll(), [TierCompletion::except(job, keys([2]))]);
    rig.check_resident(0..5, if dropped { &[1, 3, 4] } else { &[1, 2, 3, 4] });
    assert_eq!(rig.store.counts().quarantined, quarantined);
    let read = rig.store.stats().read;
    assert_eq!((read.jobs_done, read.jobs_failed, read.chunks), (0, 1, 3));
    rig.get(3, &[1, 2, 3, 4], if dropped { &[2] } else { &[] });
    assert_eq!(rig.store.stats().chunks_dropped, u64::from(dropped));
}

/// B14: and only what is proven to be bad is dropped.
#[test]
fn a_failed_read_costs_its_key_and_nothing_else() {
    check_read(Trouble::Eio, true, 1);
    check_read(Trouble::Error(io::ErrorKind::TimedOut), false, 0);
    check_read(Trouble::Eof, true, 0);
    check_read(Trouble::Panic, false, 0);
}

/// B32: what an earlier job has left with the disk ends that one, and counts for no later one.
#[test]
fn what_a_failed_job_has_left_counts_for_no_later_one() {
    let mut rig = Rig::new(8);
    rig.put(1, &[1, 2, 3, 4, 5, 6, 7, 8]);
    let first = rig.read(2, &[1, 2, 3, 4]);
    let mut left: Vec<_> = std::iter::from_fn(|| rig.next_op()).collect();
    rig.run(left.remove(0), Trouble::Eof);
    assert_eq!(rig.poll(), [], "three are still with the disk");
    let second = rig.read(3, &[5, 6, 7, 8]);
    for op in left {
        rig.run(op, Trouble::None);
    }
    assert_eq!(rig.poll(), [TierCompletion::except(first, keys([1]))]);
    assert!((5..9).all(|slot| rig.memory.bytes(slot) == [0xee; CHUNK_BYTES]), "nothing has come of these");
    rig.run_all(&[(7, Trouble::Eof)]);
    assert_eq!(rig.poll(), [TierCompletion::except(second, keys([7]))]);
}

/// B32: each transfer is judged alone, and one that is said to have moved too much is believed nothing.
#[test]
fn a_transfer_that_moved_too_much_hides_none_that_moved_nothing() {
    let mut rig = Rig::new(8);
    let troubles = [(2, Trouble::Over), (3, Trouble::Eof)];
    let job = rig.write(1, &[1, 2, 3, 4]);
    rig.run_all(&troubles);
    assert_eq!(rig.poll(), [TierCompletion::except(job, keys([2, 3]))]);
    rig.put(1, &[2, 3]);
    let job = rig.read(2, &[1, 2, 3, 4]);
    rig.run_all(&troubles);
    assert_eq!(rig.poll(), [TierCompletion::except(job, keys([2, 3]))]);
    rig.get(3, &[1, 4], &[]);
}

/// B44: whatever does not come, or is lost, gives its room back, once; and admission goes by the same books.
#[test]
fn what_never_came_and_what_is_lost_leave_all_the_room_there_was() {
    let mut rig = Rig::new(4);
    let all_is_free = |rig: &Rig, what: &str| {
        let counts = rig.store.counts();
        assert_eq!((counts.free, counts.capacity), (4, 4), "{what}: {counts:?}");
    };
    for n in 0..100 {
        let jobs = [rig.write(1, &[n]), rig.write(2, &[n])];
        let early = rig.read(3, &[n]);
        assert_eq!(rig.poll(), [TierCompletion::except(early, keys([n]))], "its write still runs");
        rig.run_all(&[(n, Trouble::Panic)]);
        assert_eq!(rig.poll(), jobs.map(|job| TierCompletion::except(job, keys([n]))));
        all_is_free(&rig, "a failed write");
    }
    rig.put(4, &[1, 2, 3, 4]);
    for n in 1..=4 {
        // One of two that read it finds the end of the file, and then nobody finds it.
        let jobs = [rig.read(5, &[n]), rig.read(6, &[n])];
        let (first, second) = (rig.next_op().unwrap(), rig.next_op().unwrap());
        rig.run(first, Trouble::Eof);
        assert_eq!(rig.poll(), [TierCompletion::except(jobs[0], keys([n]))]);
        for _ in 0..2 {
            let again = rig.read(7, &[n]);
            assert_eq!(rig.poll(), [TierCompletion::except(again, keys([n]))]);
        }
        rig.run(second, Trouble::None);
        assert_eq!(rig.poll(), [TierCompletion::done(jobs[1])]);
    }
    all_is_free(&rig, "four that were lost");
    rig.put(8, &[200, 201, 202, 203]);
    rig.get(9, &[200, 201, 202, 203], &[]);
    let stats = rig.store.stats();
    assert_eq!((stats.chunks_dropped, stats.chunks_evicted, stats.chunks_refused), (4, 0, 0));
}

/// B32: half of the bytes, an interruption: the transfer goes on where it was.
#[test]
fn short_reads_are_no_fault() {
    let mut rig = Rig::new(4);
    rig.put(1, &[1]);
    let job = rig.read(2, &[1]);
    rig.run_all(&[(1, Trouble::Short)]);
    assert_eq!(rig.poll(), [TierCompletion::done(job)]);
    assert_eq!(rig.memory.bytes(1), content(1, 0, CHUNK_BYTES));
}

/// Writes chunks 1 to 3 with trouble at chunk 2, whatever slot it is given: it alone fails.
#[track_caller]
fn check_write(trouble: Trouble, quarantined: u32) {
    let mut rig = Rig::new(5);
    let job = rig.write(1, &[1, 2, 3]);
    rig.run_all(&[(2, trouble)]);
    assert_eq!(rig.poll(), [TierCompletion::except(job, keys([2]))]);
    rig.check_resident(0..5, &[1, 3]);
    let counts = rig.store.counts();
    assert_eq!((counts.quarantined, counts.free), (quarantined, 3 - quarantined));
    // It can be written again, after a pause if nothing could be written.
    rig.clock.advance(BreakerOptions::default().pause);
    rig.put(1, &[2]);
    rig.get(1, &[1, 2, 3], &[]);
}

/// B49: a full disk, a quota, a medium: the chunk fails, and the room that it had is there for it again.
#[test]
fn a_failed_write_costs_its_key_and_nothing_else() {
    check_write(Trouble::Eio, 2);
    check_write(Trouble::Eof, 2);
    check_write(Trouble::Error(io::ErrorKind::StorageFull), 0);
    check_write(Trouble::Error(io::ErrorKind::QuotaExceeded), 0);
    check_write(Trouble::Error(io::ErrorKind::ReadOnlyFilesystem), 0);
    check_write(Trouble::Panic, 0);
}

#[test]
fn a_write_whose_slot_fails_goes_to_another() {
    let mut rig = Rig::new(2);
    rig.put(1, &[1]);
    let first = rig.write(2, &[2]);
    let second = rig.write(3, &[2]);
    let op = rig.next_op().unwrap();
    rig.run(op, Trouble::Eio);
    assert_eq!(rig.poll(), []);
    let again = rig.next_op().expect("it is written again");
    assert_eq!((again.job, again.index, again.host), (op.job, op.index, op.host));
    assert_ne!(again.slot, op.slot);
    assert!(again.tenant.generation > op.tenant.generation);
    rig.run(again, Trouble::None);
    assert_eq!(rig.poll(), [first, second].map(TierCompletion::done));
    rig.get(4, &[2], &[]);
    // The other slot was free only once chunk 1 had gone.
    rig.check_resident(0..3, &[2]);
    let stats = rig.store.stats();
    assert_eq!((stats.writes_again, stats.write_errors, stats.counts.quarantined), (1, 1, 1));
}

#[test]
fn a_write_that_goes_to_another_slot_takes_none_from_its_own_job() {
    let mut rig = Rig::new(2);
    let job = rig.write(1, &[1, 2]);
    rig.run_all(&[(2, Trouble::Eio)]);
    assert_eq!(rig.poll(), [TierCompletion::except(job, keys([2]))]);
    rig.check_resident(0..3, &[1]);
    let stats = rig.store.stats();
    assert_eq!((stats.writes_again, stats.chunks_evicted, stats.counts.quarantined), (0, 0, 1));
}

#[test]
fn a_write_whose_slot_fails_without_another_fails() {
    let mut rig = Rig::new(1);
    let job = rig.write(1, &[1]);
    rig.run_all(&[(1, Trouble::Eio)]);
    assert_eq!(rig.poll(), [TierCompletion::except(job, keys([1]))]);
    assert_eq!((rig.store.counts().quarantined, rig.store.stats().writes_again), (1, 0));
}

#[test]
fn a_write_that_the_disk_forgot_is_noticed_at_the_read() {
    for trouble in [Trouble::Lost, Trouble::Torn] {
        let mut rig = Rig::new(1);
        rig.put(1, &[1]);
        let job = rig.write(2, &[2]);
        rig.run_all(&[(2, trouble)]);
        assert_eq!(rig.poll(), [TierCompletion::done(job)], "the disk said so");
        rig.get(3, &[2], &[2]);
        assert_eq!(rig.store.stats().checksum_failures, 1);
    }
}

#[test]
fn the_intact_bytes_of_an_earlier_write_of_the_same_key_fail_too() {
    let mut rig = Rig::new(1);
    rig.put(1, &[1]);
    rig.put(1, &[2]);
    let old = rig.disk.bytes.lock().unwrap().clone();
    // The same chunk again, with other bytes, which never reach the disk.
    rig.put(1, &[1]);
    rig.memory.fill(2, &content(2, 1, CHUNK_BYTES));
    rig.try_submit(1, TierDirection::Write, &[2]).unwrap();
    rig.run_all(&[]);
    rig.poll();
    *rig.disk.bytes.lock().unwrap() = old;
    rig.get(1, &[2], &[2]);
}

#[test]
fn one_flipped_bit_costs_one_key() {
    let mut rig = Rig::new(4);
    rig.put(1, &[1, 2, 3]);
    rig.disk.flip_bit(rig.worker.geometry.place(1).offset + 17);
    rig.get(2, &[1, 2, 3], &[2]);
    rig.check_resident(0..5, &[1, 3]);
    assert_eq!(rig.store.stats().checksum_failures, 1);
    // A bit between the chunks is nobody's.
    rig.disk.flip_bit(rig.worker.geometry.place(0).offset + 4095);
    rig.get(2, &[1, 3], &[]);
}

#[test]
fn a_slot_that_fails_its_second_check_is_quarantined() {
    let mut rig = Rig::new(1);
    for (round, quarantined) in [(0, 0), (1, 1)] {
        rig.put(1, &[1]);
        rig.disk.flip_bit(rig.worker.geometry.place(0).offset);
        rig.get(1, &[1], &[1]);
        assert_eq!(rig.store.counts().quarantined, quarantined, "round {round}");
    }
    let job = rig.write(1, &[1]);
    assert_eq!(rig.poll(), [TierCompletion::except(job, keys([1]))], "no slot is left");
}

/// B40: open reads end first, and then the slot is used again.
#[test]
fn a_dropped_chunk_keeps_its_slot_until_the_last_read_has_ended() {
    let mut rig = Rig::new(1);
    rig.put(1, &[1]);
    let first = rig.read(1, &[1]);
    let second = rig.read(2, &[1]);
    let (a, b) = (rig.next_op().unwrap(), rig.next_op().unwrap());
    rig.run(a, Trouble::Eof);
    assert_eq!(rig.poll(), [TierCompletion::except(first, keys([1]))]);
    assert_eq!(rig.store.lookup(RequestId(1), &key(1)), TierLookup::Miss);
    assert_eq!((rig.store.counts().retiring, rig.store.counts().free), (1, 0));
    // Nothing may be written into the slot while it is still being read.
    let refused = rig.write(3, &[2]);
    assert_eq!(rig.poll(), [TierCompletion::except(refused, keys([2]))]);
    rig.run(b, Trouble::None);
    assert_eq!(rig.poll(), [TierCompletion::done(second)], "these bytes were right");
    assert_eq!(rig.store.counts().free, 1);
}

#[test]
fn a_dropped_key_can_be_written_while_old_reads_still_run() {
    let mut rig = Rig::new(2);
    rig.put(1, &[1]);
    rig.read(1, &[1]);
    rig.read(2, &[1]);
    let (a, b) = (rig.next_op().unwrap(), rig.next_op().unwrap());
    rig.run(a, Trouble::Eof);
    rig.poll();
    rig.put(3, &[1]);
    rig.run(b, Trouble::Eio);
    rig.poll();
    // The old slot is gone, the new chunk is not.
    assert_eq!((rig.store.counts().quarantined, rig.store.counts().evictable), (1, 1));
    rig.get(4, &[1], &[]);
}

#[test]
fn a_busy_slot_of_the_host_memory_costs_no_chunk() {
    let mut rig = Rig::new(4);
    rig.put(1, &[1, 2]);
    let job = rig.read(1, &[1, 2]);
    let memory = rig.memory.clone();
    let held = memory.slots[2].read().unwrap();
    rig.run_all(&[]);
    drop(held);
    assert_eq!(rig.poll(), [TierCompletion::except(job, keys([2]))]);
    rig.get(1, &[1, 2], &[]);

    let job = rig.write(1, &[3, 4]);
    let held = memory.slots[4].write().unwrap();
    rig.run_all(&[]);
    drop(held);
    assert_eq!(rig.poll(), [TierCompletion::except(job, keys([4]))]);
    assert_eq!((rig.store.counts().free, rig.store.counts().quarantined), (1, 0));
    assert_eq!(rig.store.stats().memory_errors, 2);
}

#[test]
fn a_job_that_no_thread_takes_is_reported_as_failed() {
    let mut rig = Rig::new(4);
    rig.put(1, &[1]);
    // The only receiver of the queue goes away, as if every thread had died.
    rig.hand.queue = crossbeam_channel::never();
    let write = rig.write(1, &[2, 3]);
    let read = rig.read(1, &[1]);
    assert_eq!(
        rig.poll(),
        [TierCompletion::except(write, keys([2, 3])), TierCompletion::except(read, keys([1]))]
    );
    rig.check_resident(0..5, &[1]);
}
