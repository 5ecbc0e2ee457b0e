//! Jobs without faults: what is reported, and when.

use kvo_core::{
    BlockHash, EventKind, GroupIdx, JobId, Medium, OffloadEvent, OffloadKey, OffloadPolicy, RejectReason,
    RequestContext, RequestId, SecondaryTier, SlotId, TierChunk, TierCompletion, TierDirection, TierJob,
    TierLookup,
};

use super::{CHUNK_BYTES, Rig, Trouble, key, keys};
use crate::{ChunkError, NvmeOptions};

#[test]
fn a_chunk_comes_back_as_it_was_written() {
    let mut rig = Rig::new(4);
    rig.put(1, &[1, 2, 3]);
    rig.get(2, &[3, 1, 2], &[]);
    let stats = rig.store.stats();
    assert_eq!(
        (stats.write.jobs_done, stats.write.chunks, stats.write.bytes),
        (1, 3, 3 * CHUNK_BYTES as u64)
    );
    assert_eq!((stats.read.jobs_done, stats.read.chunks, stats.read.bytes), (1, 3, 3 * CHUNK_BYTES as u64));
    assert_eq!((stats.counts.evictable, stats.counts.free), (3, 1));
}

/// B40: before its write has ended a chunk is not there.
#[test]
fn a_chunk_is_a_miss_until_its_write_has_ended() {
    let mut rig = Rig::new(4);
    rig.write(1, &[1]);
    assert_eq!(rig.store.lookup(RequestId(1), &key(1)), TierLookup::Miss);
    rig.run_all(&[]);
    assert_eq!(rig.store.lookup(RequestId(1), &key(1)), TierLookup::Miss, "nobody has polled");
    rig.poll();
    assert_eq!(rig.store.lookup(RequestId(1), &key(1)), TierLookup::Hit);
    assert_eq!((rig.store.stats().lookup_hits, rig.store.stats().lookup_misses), (1, 2));
}

#[test]
fn unknown_pending_and_evicted_keys_fail_alone() {
    let mut rig = Rig::new(2);
    rig.put(1, &[1, 2]);
    rig.write(1, &[3]); // evicts 2, the tail, and is pending
    let read = rig.read(2, &[1, 2, 3, 9]);
    rig.run_all(&[]);
    let done = rig.poll();
    assert!(done.contains(&TierCompletion::except(read, keys([2, 3, 9]))), "{done:?}");
    assert_eq!(rig.memory.bytes(1), super::content(1, 0, CHUNK_BYTES));
    assert_eq!(rig.store.stats().read_misses, 3);
}

#[test]
fn a_report_says_how_much_was_copied_if_some_was_there_before() {
    let mut rig = Rig::new(8);
    rig.put(1, &[1, 2]);
    let [all, some, none, read] =
        [rig.write(1, &[3, 4]), rig.write(1, &[1, 5]), rig.write(1, &[2]), rig.read(1, &[1])];
    rig.run_all(&[]);
    let mut done = rig.poll_all();
    done.sort_by_key(|completion| completion.job);
    let of = TierCompletion::done;
    assert_eq!(done, [of(all), of(some).with_copied(1), of(none).with_copied(0), of(read)]);
}

#[test]
fn a_job_with_nothing_to_do_is_reported_by_the_next_poll() {
    let mut rig = Rig::new(2);
    rig.put(1, &[1]);
    let again = rig.write(2, &[1]);
    let absent = rig.read(2, &[7]);
    assert!(rig.next_op().is_none());
    assert_eq!(rig.poll(), [TierCompletion::done(again), TierCompletion::except(absent, keys([7]))]);
    assert_eq!(rig.poll(), []);
    assert_eq!(rig.store.stats().chunks_present, 1);
}

/// B29: who puts the same chunk at once is answered alike, and it is written once.
#[test]
fn a_second_write_of_a_pending_key_ends_as_the_first_does() {
    let mut rig = Rig::new(4);
    let first = rig.write(1, &[1]);
    let second = rig.write(2, &[1, 2]);
    let third = rig.write(3, &[1]);
    // Only one write of chunk 1 is queued, and the second job waits for it.
    let (one, two) = (rig.next_op().unwrap(), rig.next_op().unwrap());
    assert!(rig.next_op().is_none());
    rig.run(two, Trouble::None);
    assert_eq!(rig.poll(), []);
    rig.run(one, Trouble::None);
    assert_eq!(rig.poll(), [first, second, third].map(TierCompletion::done));

    let first = rig.write(1, &[3]);
    let second = rig.write(2, &[3]);
    rig.run_all(&[(3, Trouble::Eio)]);
    let failed = keys([3]);
    assert_eq!(
        rig.poll(),
        [TierCompletion::except(first, failed.clone()), TierCompletion::except(second, failed)]
    );
    rig.check_resident(0..5, &[1, 2]);
}

#[test]
fn a_repeated_key_is_written_once_and_read_twice() {
    let mut rig = Rig::new(4);
    let chunk = |slot| TierChunk { key: key(1), slot: SlotId(slot), end_token: None };
    let job = |id, direction| TierJob {
        id: JobId(id),
        req: RequestId(1),
        direction,
        chunks: vec![chunk(1), chunk(2)],
    };
    rig.memory.fill(1, &[5; CHUNK_BYTES]);
    rig.store.submit(job(1, TierDirection::Write)).unwrap();
    assert_eq!(rig.hand.queue.len(), 1);
    rig.run_all(&[]);
    assert_eq!(rig.poll(), [TierCompletion::done(JobId(1))]);
    assert_eq!(rig.store.counts().evictable, 1);

    rig.memory.fill(1, &[0; CHUNK_BYTES]);
    rig.store.submit(job(2, TierDirection::Read)).unwrap();
    rig.run_all(&[]);
    assert_eq!(rig.poll(), [TierCompletion::done(JobId(2))]);
    assert_eq!([rig.memory.bytes(1), rig.memory.bytes(2)], [[5; CHUNK_BYTES]; 2]);

    // A repeated key that fails is named once.
    rig.store.submit(job(3, TierDirection::Read)).unwrap();
    rig.run_all(&[(1, Trouble::Eio)]);
    assert_eq!(rig.poll(), [TierCompletion::except(JobId(3), keys([1]))]);
}

#[test]
fn without_room_the_head_is_kept_and_the_tail_fails() {
    let mut rig = Rig::new(4);
    rig.put(1, &[1, 2]);
    let job = rig.write(2, &[11, 12, 13, 14, 15, 16]);
    assert_eq!(rig.store.counts().writing, 4, "both old chunks went");
    rig.run_all(&[]);
    assert_eq!(rig.poll(), [TierCompletion::except(job, keys([15, 16]))]);
    rig.check_resident(0..20, &[11, 12, 13, 14]);
    assert_eq!((rig.store.stats().chunks_refused, rig.store.stats().chunks_evicted), (2, 2));
}

/// B29: a pinned chunk stays, and the head of what is offered gets what can go.
#[test]
fn keys_of_the_job_and_pinned_chunks_are_not_evicted() {
    let mut rig = Rig::new(3);
    rig.put(1, &[1, 2, 3]);
    rig.read(2, &[1]);
    // Chunk 3, the tail, would be the first to go.
    let job = rig.write(3, &[3, 4, 5]);
    rig.run_all(&[]);
    let done = rig.poll();
    assert!(done.contains(&TierCompletion::except(job, keys([5]))), "{done:?}");
    rig.check_resident(0..9, &[1, 3, 4]);
}

/// B29: and the same chunks are taken once there is room.
#[test]
fn writes_without_any_room_fail_and_change_nothing() {
    let mut rig = Rig::new(2);
    rig.put(1, &[1, 2]);
    rig.read(1, &[1, 2]);
    let before = rig.store.counts();
    for _ in 0..3 {
        let job = rig.write(2, &[3, 4]);
        assert_eq!(rig.store.counts(), before);
        assert_eq!(rig.poll(), [TierCompletion::except(job, keys([3, 4]))]);
        rig.check_resident(0..5, &[1, 2]);
    }
    rig.run_all(&[]);
    rig.poll();
    rig.put(2, &[3, 4]);
    rig.get(3, &[3, 4], &[]);
    assert_eq!((rig.store.stats().chunks_refused, rig.store.stats().chunks_evicted), (6, 2));
}

/// B53: keys that agree in all but one byte, or in all but the group, are different chunks.
#[test]
fn keys_that_differ_in_one_byte_or_the_group_are_different_chunks() {
    let mut rig = Rig::new(64);
    let first = OffloadKey::new(BlockHash([0x5a; 32]), GroupIdx(0));
    let others = (0..36).map(|at| {
        let mut bytes = first.to_bytes();
        bytes[at] ^= 1;
        OffloadKey::from_bytes(bytes)
    });
    let mut written: Vec<OffloadKey> = Vec::new();
    let bytes_of = |nth: usize| [u8::try_from(nth).unwrap(); CHUNK_BYTES];
    for key in std::iter::once(first).chain(others) {
        let mut bytes = [0xee; CHUNK_BYTES];
        assert_eq!(rig.store.lookup(RequestId(1), &key), TierLookup::Miss, "{key:?}");
        assert!(!rig.store.read_chunk(&key, &mut bytes).unwrap());
        rig.store.write_chunk(key, &bytes_of(written.len())).unwrap();
        written.push(key);
        for (nth, key) in written.iter().enumerate() {
            assert!(rig.store.read_chunk(key, &mut bytes).unwrap());
            assert_eq!(bytes, bytes_of(nth), "{key:?}");
        }
    }
}

#[test]
fn a_full_queue_hands_the_job_back_unchanged() {
    let options = NvmeOptions { queue_chunks_max: 3, ..NvmeOptions::new("unused", 8, CHUNK_BYTES as u64) };
    let mut rig = Rig::with_options(options);
    rig.write(1, &[1, 2]);
    let before = rig.store.counts();
    let rejected = rig.try_submit(1, TierDirection::Write, &[3, 4]).unwrap_err();
    assert_eq!(rejected.reason, RejectReason::Busy);
    assert_eq!(rejected.job.chunks.iter().map(|chunk| chunk.key).collect::<Vec<_>>(), keys([3, 4]));
    assert_eq!((rig.store.counts(), rig.store.stats().jobs_rejected), (before, 1));
    rig.write(1, &[5]);
    rig.run_all(&[]);
    // What has ended makes room at once, polled or not.
    rig.write(1, &[3, 4]);
}

#[test]
fn an_idle_store_takes_a_job_that_is_longer_than_the_queue() {
    let options = NvmeOptions { queue_chunks_max: 1, ..NvmeOptions::new("unused", 8, CHUNK_BYTES as u64) };
    let mut rig = Rig::with_options(options);
    rig.put(1, &[1, 2, 3, 4]);
    rig.get(1, &[1, 2, 3, 4], &[]);
}

#[test]
fn jobs_that_make_no_sense_are_handed_back() {
    #[track_caller]
    fn check(rig: &mut Rig, id: u64, direction: TierDirection, chunks: &[(u64, u32)]) {
        let before = rig.store.counts();
        let chunks =
            chunks.iter().map(|&(n, slot)| TierChunk { key: key(n), slot: SlotId(slot), end_token: None });
        let job = TierJob { id: JobId(id), req: RequestId(1), direction, chunks: chunks.collect() };
        let rejected = rig.store.submit(job.clone()).unwrap_err();
        assert_eq!((rejected.reason, rejected.job), (RejectReason::Invalid, job));
        assert_eq!(rig.store.counts(), before);
        rig.store.assert_consistent();
    }
    let mut rig = Rig::new(4);
    check(&mut rig, 50, TierDirection::Write, &[]);
    check(&mut rig, 50, TierDirection::Read, &[]);
    check(&mut rig, 50, TierDirection::Write, &[(1, 0), (2, 64)]);
    check(&mut rig, 50, TierDirection::Read, &[(1, u32::MAX)]);
    rig.put(1, &[1, 2]);
    check(&mut rig, 50, TierDirection::Read, &[(1, 5), (2, 5)]);
    // The number of a job that is running, or has ended and was not polled.
    let open = rig.read(1, &[1]);
    check(&mut rig, open.0, TierDirection::Read, &[(2, 5)]);
    rig.run_all(&[]);
    rig.write(1, &[1]);
    check(&mut rig, open.0, TierDirection::Read, &[(2, 5)]);
    rig.poll();
    assert_eq!(rig.store.stats().jobs_rejected, 7);
}

/// B58: in their order, once, and each balanced by what was there before.
#[test]
fn events_replay_to_what_is_there() {
    let mut rig = Rig::new(2);
    rig.put(1, &[1, 2]);
    assert_eq!(rig.events(), [(EventKind::Stored, keys([1, 2]))]);
    rig.put(2, &[3]);
    rig.read(1, &[1]);
    rig.run_all(&[(1, Trouble::Eio)]);
    rig.poll();
    let mut events = Vec::new();
    rig.store.take_events(&mut events);
    let event = |kind, n| OffloadEvent { tier: "nvme".into(), medium: Medium::Ssd, kind, keys: keys([n]) };
    assert_eq!(
        events,
        [event(EventKind::Removed, 2), event(EventKind::Stored, 3), event(EventKind::Removed, 1)]
    );
    assert_eq!(rig.events(), [], "each event comes once");
}

#[test]
fn events_can_be_switched_off() {
    let options = NvmeOptions { record_events: false, ..NvmeOptions::new("unused", 2, CHUNK_BYTES as u64) };
    let mut rig = Rig::with_options(options);
    rig.put(1, &[1, 2]);
    assert_eq!(rig.events(), []);
}

#[test]
fn no_request_is_remembered_after_its_end() {
    let mut rig = Rig::new(4);
    assert_eq!(rig.store.on_new_request(&RequestContext::new(RequestId(1))), OffloadPolicy::RequestLevel);
    rig.announce(1);
    rig.put(1, &[1]);
    rig.put(2, &[2]);
    assert_eq!(rig.store.num_requests(), 1, "request 2 was never announced");
    rig.store.on_request_finished(RequestId(1));
    rig.store.on_request_finished(RequestId(1));
    rig.store.on_request_finished(RequestId(3));
    assert_eq!(rig.store.num_requests(), 0);
}

#[test]
fn direct_calls_and_jobs_share_the_store() {
    let mut rig = Rig::new(2);
    let mut bytes = [0; CHUNK_BYTES];
    rig.store.write_chunk(key(1), &super::content(1, 0, CHUNK_BYTES)).unwrap();
    rig.get(1, &[1], &[]);
    rig.write(1, &[2]);
    assert!(matches!(rig.store.write_chunk(key(2), &bytes), Err(ChunkError::Pending)));
    assert!(!rig.store.read_chunk(&key(2), &mut bytes).unwrap());
    rig.run_all(&[]);
    assert!(rig.store.read_chunk(&key(2), &mut bytes).unwrap(), "a direct call takes in what has ended");
    rig.read(1, &[1, 2]);
    assert!(matches!(rig.store.write_chunk(key(3), &bytes), Err(ChunkError::NoRoom)));
    rig.run_all(&[]);
    rig.poll();
    assert!(matches!(
        rig.store.write_chunk(key(3), &bytes[1..]),
        Err(ChunkError::Length { given: 39, chunk_bytes: 40 })
    ));
    assert!(rig.store.read_chunk(&key(1), &mut bytes[..1]).is_err());
    rig.disk.set(Trouble::Eio);
    assert!(matches!(rig.store.write_chunk(key(3), &bytes), Err(ChunkError::Write(_))));
    // One of the two went for the third; the other one is found to be unreadable.
    assert!(!rig.store.read_chunk(&key(1), &mut bytes).unwrap());
    assert!(!rig.store.read_chunk(&key(2), &mut bytes).unwrap());
    rig.disk.set(Trouble::None);
    rig.store.assert_consistent();
    assert_eq!(rig.store.counts().quarantined, 2);
}
