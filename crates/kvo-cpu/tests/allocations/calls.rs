//! What each call of a manager allocates, for requests of few chunks and of many.
//!
//! The promises are those of the crate's documentation, under "Allocations".

use kvo_core::{
    JobToken, LookupResult, OffloadKey, OffloadManager, RequestContext, RequestId, StoreJob, StoreOutcome,
};
use kvo_cpu::{CpuManager, CpuOptions};
use kvo_policies::{CachePolicy, GhostHits, PolicyKind};

use crate::{
    allocations,
    support::{all_kinds, key, stored},
};

const CAPACITY: u32 = 4_096;

/// The state of a request, and the list that it is in.
const BEGIN: usize = 2;
/// The keys and the slots of the job; one more if anything was evicted.
const STORE: usize = 2;
/// The slots of the job.
const LOAD: usize = 1;

/// How often the record of a request of so many chunks doubles, from 4 places on.
fn doublings(chunks: usize) -> usize {
    chunks.next_power_of_two().trailing_zeros().max(2) as usize - 1
}

/// A manager, and its requests, each of which does one thing.
struct Caller {
    manager: CpuManager<Box<dyn CachePolicy>>,
    num_requests: u64,
    num_chains: u64,
    num_loaded: usize,
    /// Allocations beyond what is promised, all together.
    excess: usize,
}

impl Caller {
    fn new(kind: PolicyKind) -> Self {
        let manager = CpuManager::new(CpuOptions::new(CAPACITY), kind.build(CAPACITY)).unwrap();
        Self { manager, num_requests: 0, num_chains: 0, num_loaded: 0, excess: 0 }
    }

    /// Makes a call that is promised to allocate no more than `most`.
    fn call(&mut self, most: usize, call: impl FnOnce(&mut Self)) {
        self.excess += allocations(|| call(self)).saturating_sub(most);
    }

    fn begin(&mut self, keys: &[OffloadKey]) -> RequestContext {
        self.num_requests += 1;
        let mut req = RequestContext::new(RequestId(self.num_requests));
        req.set_positions(keys.iter().copied().zip((1..).map(|chunk| 16 * chunk)));
        self.call(BEGIN, |caller| _ = caller.manager.new_request(&mut req).unwrap());
        req
    }

    /// A chain that is not there. Every other one was, a tier and a half ago, and may have ghosts.
    fn absent_chain(&mut self, chunks: usize) -> Vec<OffloadKey> {
        let chain = |number: u64| -> Vec<OffloadKey> {
            (0..chunks as u64).map(|at| key(number * chunks as u64 + at)).collect()
        };
        self.num_chains += 1;
        let before = self.num_chains.saturating_sub((3 * u64::from(CAPACITY) / 2 / chunks as u64) | 1);
        let old = chain(before);
        let is_absent = |key: &OffloadKey| self.manager.peek(key) == LookupResult::Miss;
        let is_again = self.num_chains % 2 == 1 && before > 0 && old.iter().all(is_absent);
        if is_again { old } else { chain(self.num_chains) }
    }

    /// The job, and what was allocated beyond its own lists.
    fn prepare_store(&mut self, req: &mut RequestContext, keys: &[OffloadKey]) -> (StoreJob, usize) {
        let mut prepared = None;
        let made = allocations(|| match self.manager.prepare_store(req, keys).unwrap() {
            StoreOutcome::Prepared(job) => prepared = Some(job),
            other => panic!("there is room: {other:?}"),
        });
        let job = prepared.expect("it was just made");
        assert_eq!(job.keys.len(), keys.len());
        let own = STORE + usize::from(!job.evicted.is_empty());
        (job, made.saturating_sub(own))
    }

    fn complete_store(&mut self, token: JobToken) {
        self.call(0, |caller| stored(&mut caller.manager, token));
    }

    fn finish(&mut self, mut req: RequestContext) {
        self.call(0, |caller| caller.manager.on_request_finished(&mut req).unwrap());
    }

    /// A new request stores a chain, `per_call` chunks at a time.
    fn store(&mut self, chunks: usize, per_call: usize) -> Vec<OffloadKey> {
        let chain = self.absent_chain(chunks);
        let mut req = self.begin(&chain);
        for part in chain.chunks(per_call) {
            let (job, beyond) = self.prepare_store(&mut req, part);
            self.excess += beyond;
            self.complete_store(job.token);
        }
        self.finish(req);
        chain
    }

    /// A new request looks a chain up, and a key that is not there, and loads what it finds.
    fn load(&mut self, keys: &[OffloadKey]) {
        let mut req = self.begin(keys);
        let mut ready = 0;
        self.call(0, |Self { manager, .. }| {
            ready = manager.lookup_prefix(&mut req, keys).ready;
            assert_eq!(manager.lookup(&mut req, &key(u64::MAX)), LookupResult::Miss);
        });
        // A policy that protects much may have evicted some of the last chain already.
        self.num_loaded += ready;
        let mut job = None;
        self.call(LOAD, |caller| {
            job = Some(caller.manager.prepare_load(&mut req, &keys[..ready]).unwrap());
        });
        let token = job.expect("it was just made").token;
        self.call(0, |caller| caller.manager.complete_load(token).unwrap());
        self.finish(req);
    }

    fn turn_over(&mut self, times: usize, chunks: usize, per_call: usize) {
        for _ in 0..times * CAPACITY as usize / chunks {
            let keys = self.store(chunks, per_call);
            if !self.num_chains.is_multiple_of(3) {
                self.load(&keys);
            }
        }
    }
}

#[track_caller]
fn check(kind: PolicyKind, chunks: usize, per_call: usize) {
    const TURNOVERS: usize = 30;
    let mut caller = Caller::new(kind);
    caller.turn_over(5, chunks, per_call);
    (caller.excess, caller.num_loaded) = (0, 0);
    caller.turn_over(TURNOVERS, chunks, per_call);
    // ARC remembers in a table which keys of an offer had ghosts; what is taken out leaves places behind in it.
    let tables = usize::from(matches!(kind, PolicyKind::Arc(GhostHits::T2 | GhostHits::Canonical)));
    let excess = caller.excess;
    assert!(excess <= tables, "{kind}, {chunks} by {per_call}: {excess} allocations beyond what is promised");
    assert!(caller.num_loaded > TURNOVERS * CAPACITY as usize / 3, "most chains are loaded");
}

#[test]
fn a_call_allocates_its_job_and_nothing_for_each_chunk() {
    for kind in all_kinds() {
        for (chunks, per_call) in [(1, 1), (5, 1), (32, 32), (256, 32), (1024, 1024)] {
            check(kind, chunks, per_call);
        }
    }
}

/// Keys that are not met in the order of their positions are searched for, in two tables of the request, and sorted.
#[track_caller]
fn check_out_of_order(kind: PolicyKind, chunks: usize) {
    let mut caller = Caller::new(kind);
    for round in 0..60 {
        let chain = caller.absent_chain(chunks);
        let mut req = caller.begin(&chain);
        let mut more = 0;
        // The last ones first.
        for part in chain.chunks(16).rev() {
            let (job, beyond) = caller.prepare_store(&mut req, part);
            more += beyond;
            caller.complete_store(job.token);
        }
        more += allocations(|| caller.manager.on_request_finished(&mut req).unwrap());
        // The positions come into their table at once; the record and its table double.
        let most = 1 + 2 * doublings(chunks) + 1;
        caller.excess = if round < 30 { 0 } else { caller.excess + more.saturating_sub(most) };
    }
    assert_eq!(caller.excess, 0, "{kind}, {chunks} chunks: allocations beyond what is promised");
}

#[test]
fn a_request_out_of_order_allocates_two_tables_and_a_buffer() {
    for chunks in [32, 256, 1024] {
        all_kinds().for_each(|kind| check_out_of_order(kind, chunks));
    }
}

#[test]
fn a_manager_that_records_events_allocates_a_list_for_each() {
    let options = CpuOptions { record_events: true, ..CpuOptions::new(CAPACITY) };
    let mut manager = CpuManager::new(options, PolicyKind::Lru.build(CAPACITY)).unwrap();
    let mut events = Vec::with_capacity(8);
    let mut steps = |chunks: usize, from: u64| {
        let keys: Vec<OffloadKey> = (from..).map(key).take(chunks).collect();
        let mut req = RequestContext::new(RequestId(from));
        req.set_positions(keys.iter().copied().zip((1..).map(|chunk| 16 * chunk)));
        let made = allocations(|| {
            let StoreOutcome::Prepared(job) = manager.prepare_store(&mut req, &keys).unwrap() else {
                panic!("there is room")
            };
            stored(&mut manager, job.token);
            manager.take_events(&mut events);
        });
        let num_events = events.len();
        events.clear();
        (made, num_events)
    };
    (0..100).for_each(|round| _ = steps(512, 1_000 * round));
    for (round, chunks) in (100..).zip([1, 32, 512]) {
        let (made, num_events) = steps(chunks, 1_000 * round);
        assert_eq!(num_events, 2, "removed and stored");
        // The stored keys are put together one by one.
        let most = BEGIN + STORE + 1 + doublings(chunks) + doublings(chunks) + num_events;
        assert!(made <= most, "{made} for {chunks} chunks, {most} at most");
    }
}

/// The tree of keys by the time of their last offer is all that allocates as keys come and go.
#[test]
fn a_threshold_allocates_a_node_for_several_keys() {
    let options = CpuOptions { store_threshold: 2, tracker_keys_max: 2_000, ..CpuOptions::new(CAPACITY) };
    let mut manager = CpuManager::new(options, PolicyKind::Lru.build(CAPACITY)).unwrap();
    let mut offer = |number: u64| {
        let keys: Vec<OffloadKey> = (1_000 * number..).map(key).take(100).collect();
        let mut req = RequestContext::new(RequestId(number));
        allocations(|| {
            let outcome = manager.prepare_store(&mut req, &keys).unwrap();
            assert!(matches!(outcome, StoreOutcome::NothingToStore), "offered for the first time");
        })
    };
    (0..100).for_each(|number| _ = offer(number));
    let made: usize = (100..200).map(&mut offer).sum();
    assert!(made <= 100 * (BEGIN + 100 / 5), "{made} allocations for 10000 keys");
}
