//! The tier in memory, with real bytes.

mod support;

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    thread,
};

use kvo_core::{
    EventKind, HostMemory, JobId, LookupResult, ManualClock, Medium, OffloadEvent, OffloadKey,
    OffloadManager, RejectReason, RequestContext, RequestId, SecondaryTier, SlotId, TierChunk,
    TierCompletion, TierDirection, TierJob, TierLookup, TierOutcome,
};
use kvo_cpu::{HostRegion, RegionOptions};
use kvo_policies::{CachePolicy, Eviction, KeyAccess, Lru, RequestRecency, Residents};
use kvo_tiering::{MemoryTier, MemoryTierWorker, TieringOptions};
use support::{
    begin, check_quiet, events, finish, key, keys, load, loaded, lookups, offer, over, store, stored,
};

const SLOT_BYTES: usize = 512;
const NO_SLOT: SlotId = SlotId(99);

fn region(num_slots: u32) -> Arc<HostRegion> {
    let options = RegionOptions { prefault_threads: 0, ..RegionOptions::new(num_slots, SLOT_BYTES) };
    Arc::new(HostRegion::anonymous(&options).expect("there is memory for a few slots"))
}

/// What the bytes of a chunk are, in every place.
fn pattern(key: OffloadKey) -> Vec<u8> {
    (0..SLOT_BYTES).map(|at| key.hash().0[31].wrapping_mul(31).wrapping_add(at.to_le_bytes()[0])).collect()
}

fn put(region: &HostRegion, slot: SlotId, bytes: &[u8]) {
    region.with_write(slot, &mut |slot| slot.copy_from_slice(bytes)).expect("nobody else uses the slot");
}

fn get(region: &HostRegion, slot: SlotId) -> Vec<u8> {
    let mut copy = Vec::new();
    region.with_read(slot, &mut |bytes| copy = bytes.to_vec()).expect("nobody writes the slot");
    copy
}

/// A tier, its worker, and a region whose slot n holds chunk n.
struct Bed<P = Lru> {
    region: Arc<HostRegion>,
    tier: MemoryTier<P>,
    worker: MemoryTierWorker<HostRegion>,
    begun: Vec<u64>,
    next_job: u64,
}

impl Bed {
    fn new(capacity_chunks: u32) -> Self {
        Self::with_policy(capacity_chunks, Lru::new(capacity_chunks))
    }
}

impl<P: CachePolicy> Bed<P> {
    fn with_policy(capacity_chunks: u32, policy: P) -> Self {
        let region = region(8);
        (0..8).for_each(|n| put(&region, SlotId(n), &pattern(key(u64::from(n)))));
        let (tier, worker) = MemoryTier::new("memory", capacity_chunks, policy, region.clone())
            .expect("the options are valid");
        Self { region, tier, worker, begun: Vec::new(), next_job: 0 }
    }

    /// Tells the tier of a request that it has not seen yet.
    fn begin(&mut self, req: u64) {
        if !self.begun.contains(&req) {
            self.begun.push(req);
            self.tier.on_new_request(&RequestContext::new(RequestId(req)));
        }
    }

    /// A job of request `req` on chunks and their slots, each chunk at 16 times its place from 1.
    fn job(&mut self, req: u64, direction: TierDirection, chunks: &[(u64, SlotId)]) -> TierJob {
        self.begin(req);
        let id = JobId(self.next_job);
        self.next_job += 1;
        let chunk = |(at, (n, slot)): (u32, &(u64, SlotId))| TierChunk {
            key: key(*n),
            slot: *slot,
            end_token: Some(16 * (at + 1)),
        };
        let chunks = (0..).zip(chunks).map(chunk).collect();
        TierJob { id, req: RequestId(req), direction, chunks }
    }

    fn submit(&mut self, req: u64, direction: TierDirection, chunks: &[(u64, SlotId)]) -> JobId {
        let job = self.job(req, direction, chunks);
        let id = job.id;
        self.tier.submit(job).expect("the worker is there");
        id
    }

    fn write(&mut self, req: u64, numbers: &[u32]) -> JobId {
        let chunks: Vec<_> = numbers.iter().map(|n| (u64::from(*n), SlotId(*n))).collect();
        self.submit(req, TierDirection::Write, &chunks)
    }

    fn poll(&mut self) -> Vec<TierCompletion> {
        let mut done = Vec::new();
        self.tier.poll(&mut done);
        done
    }

    /// Does all work; the outcomes in the order of reports.
    fn work(&mut self) -> Vec<TierOutcome> {
        self.worker.run_queued();
        self.poll().into_iter().map(|report| report.outcome).collect()
    }

    /// Which chunks of 0 to 7 can be found.
    fn found(&mut self) -> Vec<u64> {
        let found: Vec<u64> =
            (0..8).filter(|n| self.tier.lookup(RequestId(0), &key(*n)) == TierLookup::Hit).collect();
        assert_eq!(found.len(), self.tier.num_ready(), "whether all that is there can be found");
        found
    }

    fn events(&mut self) -> Vec<(EventKind, Vec<OffloadKey>)> {
        let mut events = Vec::new();
        self.tier.take_events(&mut events);
        let named = |event: &OffloadEvent| &*event.tier == "memory" && event.medium == Medium::Memory;
        assert!(events.iter().all(named));
        events.into_iter().map(|event| (event.kind, event.keys)).collect()
    }
}

fn except(failed: &[OffloadKey]) -> TierOutcome {
    TierOutcome::Partial { failed: failed.to_vec() }
}

#[test]
fn bytes_come_back_as_they_went() {
    let mut bed = Bed::new(8);
    let job = bed.write(1, &[1, 2, 3]);
    assert_eq!(bed.found(), [0_u64; 0], "nothing can be found before its write has ended");
    assert_eq!(bed.poll(), [], "nothing has been copied yet");
    assert_eq!(bed.worker.run_queued(), 1);
    assert_eq!(bed.found(), [0_u64; 0], "nor before the tier has heard of it");
    assert_eq!(bed.poll(), [TierCompletion::done(job)]);
    assert_eq!(bed.found(), [1, 2, 3]);
    // Into other slots, in another order.
    let read = [(3, SlotId(5)), (1, SlotId(6)), (2, SlotId(7))];
    bed.submit(2, TierDirection::Read, &read);
    assert_eq!(bed.work(), [TierOutcome::Done]);
    for (n, slot) in read {
        assert_eq!(get(&bed.region, slot), pattern(key(n)));
    }
    assert_eq!(bed.events(), [(EventKind::Stored, keys([1, 2, 3]).to_vec())]);
    assert_eq!(bed.poll(), [], "each job is reported once");
}

#[test]
fn a_full_tier_evicts_the_oldest_chunk_and_says_so() {
    let mut bed = Bed::new(2);
    for n in 1..4 {
        bed.write(u64::from(n), &[n]);
        bed.tier.on_request_finished(RequestId(u64::from(n)));
        assert_eq!(bed.work(), [TierOutcome::Done]);
    }
    assert_eq!(bed.found(), [2, 3]);
    let stored = |numbers: &[u64]| (EventKind::Stored, numbers.iter().map(|n| key(*n)).collect::<Vec<_>>());
    assert_eq!(bed.events(), [stored(&[1, 2]), (EventKind::Removed, vec![key(1)]), stored(&[3])]);
    let kept = format!("{:?}", bed.worker);
    assert!(kept.contains("03/0: [") && !kept.contains("01/0: ["), "its bytes are freed");
    bed.submit(9, TierDirection::Read, &[(1, SlotId(7))]);
    assert_eq!(bed.work(), [except(&[key(1)])], "what was evicted cannot be read");
    assert_eq!(get(&bed.region, SlotId(7)), pattern(key(7)), "and its slot is left alone");
}

/// B29: what was refused is taken once there is room.
#[test]
fn where_room_runs_out_the_heads_are_kept() {
    let mut bed = Bed::new(2);
    bed.write(1, &[1, 2, 3, 4]);
    assert_eq!(bed.work(), [except(&keys([3, 4]))]);
    assert_eq!(bed.found(), [1, 2]);
    bed.write(2, &[3, 4]);
    assert_eq!(bed.work(), [TierOutcome::Done]);
    assert_eq!(bed.found(), [3, 4]);
}

/// B04: those that were read longest ago go first.
#[test]
fn a_chunk_just_written_is_not_the_next_to_go() {
    let mut bed = Bed::new(3);
    for n in 1..=3 {
        bed.write(u64::from(n), &[n]);
        bed.tier.on_request_finished(RequestId(u64::from(n)));
    }
    bed.work();
    // Read in another order than they were written in.
    for (n, req) in [(2, 12), (3, 13), (1, 11)] {
        bed.submit(req, TierDirection::Read, &[(n, SlotId(7))]);
        bed.work();
        bed.tier.on_request_finished(RequestId(req));
    }
    for (n, left) in [(4, [1, 3, 4]), (5, [1, 4, 5])] {
        bed.write(20 + u64::from(n), &[n]);
        bed.tier.on_request_finished(RequestId(20 + u64::from(n)));
        assert_eq!(bed.work(), [TierOutcome::Done]);
        assert_eq!(bed.found(), left);
    }
}

#[test]
fn a_chunk_that_is_being_written_counts_against_the_capacity() {
    let mut bed = Bed::new(2);
    bed.write(1, &[1, 2]);
    bed.write(2, &[3]);
    assert_eq!(bed.work(), [TierOutcome::Done, except(&[key(3)])]);
    assert_eq!(bed.found(), [1, 2]);
}

/// The plainest policy there can be: it is told nothing of pins. Counts how often it was cleared.
#[derive(Debug, Default)]
struct Fifo(Vec<SlotId>, Arc<AtomicU32>);

impl CachePolicy for Fifo {
    fn insert(
        &mut self,
        _: &mut RequestRecency,
        slot: SlotId,
        _: &OffloadKey,
        _: Option<u32>,
        _: &dyn Residents,
    ) {
        self.0.push(slot);
    }

    fn remove(&mut self, slot: SlotId) {
        self.0.retain(|of| *of != slot);
    }

    fn evict(&mut self, count: usize, tier: &dyn Residents, victims: &mut Vec<SlotId>) -> bool {
        let may_go = |slot: &&SlotId| tier.may_evict(**slot) == Eviction::Allowed;
        let chosen: Vec<SlotId> = self.0.iter().filter(may_go).take(count).copied().collect();
        let enough = chosen.len() == count;
        if enough {
            self.0.retain(|slot| !chosen.contains(slot));
            victims.extend(chosen);
        }
        enough
    }

    fn touch(&mut self, _: &[KeyAccess], _: &dyn Residents) {}

    fn clear(&mut self) {
        self.0.clear();
        self.1.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn a_chunk_that_is_being_read_is_not_evicted() {
    check_reads_pin(Bed::new(1));
    check_reads_pin(Bed::with_policy(1, Fifo::default()));
}

#[track_caller]
fn check_reads_pin<P: CachePolicy>(mut bed: Bed<P>) {
    bed.write(1, &[1]);
    bed.work();
    for slot in [SlotId(6), SlotId(7)] {
        bed.submit(2, TierDirection::Read, &[(1, slot)]);
    }
    bed.write(3, &[2]);
    assert_eq!(bed.work(), [TierOutcome::Done, TierOutcome::Done, except(&[key(2)])]);
    assert_eq!(get(&bed.region, SlotId(7)), pattern(key(1)));
    bed.write(3, &[2]);
    assert_eq!(bed.work(), [TierOutcome::Done], "the reads have ended");
    assert_eq!(bed.found(), [2]);
}

#[test]
fn a_write_of_a_resident_chunk_copies_nothing() {
    let mut bed = Bed::new(2);
    bed.write(1, &[1]);
    bed.work();
    put(&bed.region, SlotId(1), &pattern(key(5)));
    bed.write(2, &[1]);
    bed.submit(3, TierDirection::Read, &[(1, SlotId(7))]);
    assert_eq!(bed.work(), [TierOutcome::Done, TierOutcome::Done]);
    assert_eq!(get(&bed.region, SlotId(7)), pattern(key(1)));
    let stored = (EventKind::Stored, vec![key(1)]);
    assert_eq!(bed.events(), [stored], "it was stored once");
}

#[test]
fn a_chunk_whose_slot_cannot_be_accessed_fails_alone() {
    let mut bed = Bed::new(4);
    bed.submit(1, TierDirection::Write, &[(1, SlotId(1)), (2, NO_SLOT), (3, SlotId(3))]);
    assert_eq!(bed.work(), [except(&[key(2)])]);
    assert_eq!(bed.found(), [1, 3]);
    bed.submit(2, TierDirection::Read, &[(1, NO_SLOT), (3, SlotId(7))]);
    assert_eq!(bed.work(), [except(&[key(1)])]);
    assert_eq!(get(&bed.region, SlotId(7)), pattern(key(3)));
    assert_eq!(bed.found(), [1, 3], "the tier still has what it could not give");
    // The failed write has left its room.
    bed.write(3, &[2, 4]);
    assert_eq!(bed.work(), [TierOutcome::Done]);
    assert_eq!(bed.found(), [1, 2, 3, 4]);
}

#[test]
fn a_tier_without_a_worker_is_unavailable() {
    let mut bed = Bed::new(4);
    bed.write(1, &[1]);
    bed.work();
    let (write, read) = (
        bed.job(2, TierDirection::Write, &[(2, SlotId(2))]),
        bed.job(2, TierDirection::Read, &[(1, SlotId(7))]),
    );
    let Bed { mut tier, worker, .. } = bed;
    drop(worker);
    for job in [write, read] {
        let rejected = tier.submit(job.clone()).expect_err("nobody would copy");
        assert_eq!(rejected.job, job, "the job comes back");
        assert!(matches!(rejected.reason, RejectReason::Unavailable));
    }
    let mut done = Vec::new();
    tier.poll(&mut done);
    assert_eq!(done, [], "what was handed back is not reported");
    assert_eq!(tier.lookup(RequestId(3), &key(2)), TierLookup::Miss);
    assert_eq!(tier.num_ready(), 0, "the bytes went with the worker");
    assert_eq!(tier.lookup(RequestId(3), &key(1)), TierLookup::Miss);
}

/// B64: each of them, at the next poll.
#[test]
fn the_jobs_of_a_worker_that_goes_away_fail() {
    let mut bed = Bed::new(4);
    let job = bed.write(1, &[1]);
    let Bed { mut tier, worker, .. } = bed;
    drop(worker);
    let mut done = Vec::new();
    tier.poll(&mut done);
    assert_eq!(done, [TierCompletion::failed(job)]);
}

/// To clear a policy takes time for each chunk that the tier has room for.
#[test]
fn a_worker_that_goes_away_is_noticed_once() {
    let policy = Fifo::default();
    let clears = Arc::clone(&policy.1);
    let mut bed = Bed::with_policy(4, policy);
    bed.write(1, &[1]);
    bed.work();
    let job = bed.job(2, TierDirection::Write, &[(2, SlotId(2))]);
    let Bed { mut tier, worker, .. } = bed;
    drop(worker);
    for _ in 0..3 {
        tier.poll(&mut Vec::new());
        tier.submit(job.clone()).expect_err("nobody would copy");
    }
    assert_eq!(clears.load(Ordering::Relaxed), 1);
    assert_eq!(tier.num_ready(), 0);
}

#[test]
fn a_write_that_relied_on_a_write_that_failed_fails_too() {
    let mut bed = Bed::new(4);
    bed.submit(1, TierDirection::Write, &[(1, NO_SLOT)]);
    bed.submit(2, TierDirection::Write, &[(1, SlotId(1))]);
    assert_eq!(bed.work(), [except(&[key(1)]), except(&[key(1)])]);
}

#[test]
fn a_read_after_the_finish_leaves_nothing_of_its_request() {
    let mut bed = Bed::new(4);
    bed.write(1, &[1]);
    bed.tier.on_request_finished(RequestId(1));
    bed.work();
    bed.begin(2);
    bed.tier.on_request_finished(RequestId(2));
    bed.submit(2, TierDirection::Read, &[(1, SlotId(7))]);
    assert_eq!(bed.work(), [TierOutcome::Done]);
    assert!(format!("{:?}", bed.tier).contains("requests: {}"), "{:?}", bed.tier);
}

#[test]
fn the_tail_of_a_request_is_evicted_before_its_head() {
    for finishes in [true, false] {
        let mut bed = Bed::new(3);
        // In no order.
        for (n, end_token) in [(1, 16), (3, 48), (2, 32)] {
            let mut job = bed.job(1, TierDirection::Write, &[(u64::from(n), SlotId(n))]);
            job.chunks[0].end_token = Some(end_token);
            bed.tier.submit(job).expect("the worker is there");
        }
        bed.work();
        if finishes {
            bed.tier.on_request_finished(RequestId(1));
        }
        for (new, left) in [(4, [1, 2, 4]), (5, [1, 4, 5]), (6, [4, 5, 6])] {
            bed.write(u64::from(new), &[new]);
            assert_eq!(bed.work(), [TierOutcome::Done]);
            assert_eq!(bed.found(), left, "the request is finished: {finishes}");
        }
    }
}

#[test]
fn a_job_never_evicts_a_chunk_of_its_own() {
    let mut bed = Bed::new(2);
    for n in [1, 2] {
        bed.write(u64::from(n), &[n]);
        bed.tier.on_request_finished(RequestId(u64::from(n)));
    }
    bed.work();
    bed.events();
    // Without positions, so that it does not raise the oldest chunk, which is named last.
    let mut job = bed.job(3, TierDirection::Write, &[(3, SlotId(3)), (1, SlotId(1))]);
    job.chunks.iter_mut().for_each(|chunk| chunk.end_token = None);
    bed.tier.submit(job).expect("the worker is there");
    assert_eq!(bed.work(), [TierOutcome::Done]);
    assert_eq!(bed.found(), [1, 3]);
    let seen = [(EventKind::Removed, vec![key(2)]), (EventKind::Stored, vec![key(3)])];
    assert_eq!(bed.events(), seen, "it did not go and come back either");
}

#[test]
fn a_request_counts_as_one_access_when_it_finishes() {
    let mut bed = Bed::new(2);
    bed.write(1, &[1]);
    bed.write(2, &[2]);
    bed.work();
    bed.tier.on_request_finished(RequestId(2));
    bed.tier.on_request_finished(RequestId(1));
    bed.write(3, &[3]);
    bed.work();
    assert_eq!(bed.found(), [1, 3], "the one that finished last stays");
    bed.tier.on_request_finished(RequestId(3));
    bed.submit(4, TierDirection::Read, &[(1, SlotId(7))]);
    bed.work();
    bed.tier.on_request_finished(RequestId(4));
    bed.write(5, &[5]);
    bed.work();
    assert_eq!(bed.found(), [1, 5], "a read is an access");
}

#[test]
fn the_worker_runs_on_a_thread_of_its_own_and_ends_with_its_tier() {
    let mut bed = Bed::new(4);
    bed.begin(1);
    let Bed { region, mut tier, worker, .. } = bed;
    let thread = thread::spawn(move || worker.run_until_closed());
    let chunk = |n: u32, slot| TierChunk { key: key(u64::from(n)), slot: SlotId(slot), end_token: None };
    for (id, direction, slot) in [(0, TierDirection::Write, 1), (1, TierDirection::Read, 7)] {
        let job = TierJob { id: JobId(id), req: RequestId(1), direction, chunks: vec![chunk(1, slot)] };
        tier.submit(job).expect("the worker is there");
        let mut done = Vec::new();
        while done.is_empty() {
            thread::yield_now();
            tier.poll(&mut done);
        }
        assert_eq!(done, [TierCompletion::done(JobId(id))]);
    }
    drop(tier);
    thread.join().expect("the worker ends in peace");
    assert_eq!(get(&region, SlotId(7)), pattern(key(1)));
}

#[test]
fn chunks_go_through_a_manager_to_the_tier_and_back_with_their_bytes() {
    let region = region(2);
    let (tier, mut worker) =
        MemoryTier::new("memory", 6, Lru::new(6), region.clone()).expect("valid options");
    let mut manager =
        over(2, vec![Box::new(tier)], TieringOptions::new(SLOT_BYTES as u64), ManualClock::default());
    for n in 0..6 {
        let mut req = begin(&mut manager, n);
        let job = offer(&mut manager, &mut req, &[key(n)]);
        put(&region, job.slots[0], &pattern(key(n)));
        stored(&mut manager, job.token);
        finish(&mut manager, &mut req);
        worker.run_queued();
        manager.on_schedule_end();
    }
    for n in (0..6).rev() {
        let mut req = begin(&mut manager, 10 + n);
        if manager.lookup(&mut req, &key(n)) == LookupResult::HitPending {
            manager.on_schedule_end();
            worker.run_queued();
        }
        assert_eq!(lookups(&mut manager, &mut req, &[key(n)]), [LookupResult::Hit]);
        let job = load(&mut manager, &mut req, &[key(n)]);
        assert_eq!(get(&region, job.slots[0]), pattern(key(n)));
        loaded(&mut manager, job.token);
        finish(&mut manager, &mut req);
        manager.on_schedule_end();
    }
    manager.on_schedule_end();
    check_quiet(&manager);
    let stats = manager.stats();
    assert_eq!((stats.tiers[0].written.chunks, stats.tiers[0].read.chunks), (6, 4));
    assert_eq!(stats.tiers[0].read.bytes, 4 * SLOT_BYTES as u64);
    let stored_at = |tier: &str, events: &[OffloadEvent]| {
        let of_tier = |event: &&OffloadEvent| &*event.tier == tier && event.kind == EventKind::Stored;
        events.iter().filter(of_tier).map(|event| event.keys.len()).sum::<usize>()
    };
    let events = events(&mut manager);
    assert_eq!((stored_at("cpu", &events), stored_at("memory", &events)), (10, 6));
    // A store below does not free the primary, and the other way round.
    let mut req = begin(&mut manager, 99);
    assert_eq!(store(&mut manager, &mut req, &[key(50)]).len(), 1);
}
