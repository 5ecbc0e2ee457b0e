//! The store against a naive model of it, operation by operation, with transfers that end in any order and fail in
//! every way.
//!
//! `KVO_NVME_SEED=<number>` replays one episode.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque},
    io,
    time::Duration,
};

use kvo_core::{
    EventKind, JobId, OffloadKey, RejectReason, RequestId, SecondaryTier, SlotId, TierChunk, TierCompletion,
    TierDirection, TierJob, TierLookup,
};
use kvo_policies::{GhostHits, PolicyKind};

use super::{CHUNK_BYTES, Rig, Trouble, content, key};
use crate::{
    BreakerOptions, NvmeOptions, SlotCounts,
    engine::{Action, Op as Transfer},
    testing::Rng,
};

const NUM_EPISODES: u64 = 600;
const OPS_PER_EPISODE: usize = 500;
const NUM_KEYS: u64 = 24;
const NUM_REQUESTS: u64 = 5;

/// One step of an episode. Which chunk, job or transfer a number means is decided modulo what there is.
#[derive(Clone, Debug)]
enum Op {
    Announce(u64),
    Finish(u64),
    Write {
        req: u64,
        ns: Vec<u64>,
        positions: bool,
    },
    Read {
        req: u64,
        ns: Vec<u64>,
        positions: bool,
    },
    /// Runs one of the queued transfers, with trouble; `busy`: its host slot is held by someone else.
    Run {
        pick: usize,
        trouble: Trouble,
        busy: bool,
    },
    FlipBit {
        n: u64,
        bit: u64,
    },
    Lookup(u64),
    Poll,
}

fn draw(rng: &mut Rng, faults: bool) -> Op {
    let req = rng.below(NUM_REQUESTS);
    match rng.below(100) {
        0..4 => Op::Announce(req),
        4..8 => Op::Finish(req),
        8..30 => Op::Write { req, ns: draw_ns(rng), positions: rng.one_in(2) },
        30..48 => Op::Read { req, ns: draw_ns(rng), positions: rng.one_in(2) },
        48..84 => Op::Run {
            pick: usize::try_from(rng.below(1 << 20)).unwrap(),
            trouble: if faults && rng.one_in(20) { draw_trouble(rng) } else { Trouble::None },
            busy: faults && rng.one_in(80),
        },
        84 if faults => Op::FlipBit { n: rng.below(NUM_KEYS), bit: rng.next() },
        84..91 => Op::Lookup(rng.below(NUM_KEYS)),
        _ => Op::Poll,
    }
}

/// Mostly a run of neighbours, as a prefix is; sometimes anything, with repeats.
fn draw_ns(rng: &mut Rng) -> Vec<u64> {
    let count = 1 + rng.below(6);
    let first = rng.below(NUM_KEYS);
    let scattered = rng.one_in(4);
    (0..count).map(|i| if scattered { rng.below(NUM_KEYS) } else { (first + i) % NUM_KEYS }).collect()
}

fn draw_trouble(rng: &mut Rng) -> Trouble {
    match rng.below(16) {
        0 => Trouble::Eio,
        1 => Trouble::Error(io::ErrorKind::OutOfMemory),
        2..5 => Trouble::Lost,
        5..8 => Trouble::Torn,
        8..10 => Trouble::Eof,
        10 => Trouble::Panic,
        _ => Trouble::Short,
    }
}

/// Where the model thinks a chunk is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Chunk {
    Writing { slot: u32 },
    Valid { slot: u32, pins: u32 },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Good,
    /// Failed, and it is not the slot's fault.
    Innocent,
    Corrupt,
    Broken,
}

#[derive(Debug)]
struct ModelJob {
    direction: TierDirection,
    chunks: Vec<TierChunk>,
    undecided: usize,
    failed: BTreeSet<usize>,
    /// What the reads that went well have put into the host slots.
    arrived: Vec<(u32, Vec<u8>)>,
}

struct Model {
    rig: Rig,
    capacity: u32,
    queue_chunks_max: usize,
    chunks: BTreeMap<u64, Chunk>,
    /// Slots of dropped chunks that are still being read: pins, and whether they are broken.
    retiring: HashMap<u32, (u32, bool)>,
    quarantined: HashSet<u32>,
    strikes: HashMap<u32, u32>,
    /// What the last successful write has put, or should have put, into each slot.
    on_disk: HashMap<u32, Vec<u8>>,
    corrupt: HashSet<u32>,
    jobs: BTreeMap<JobId, ModelJob>,
    waiters: Vec<(u64, JobId, usize)>,
    queued: Vec<Transfer>,
    ended: VecDeque<(Transfer, End)>,
    /// Chunks whose first slot has failed.
    again: HashSet<(JobId, u32)>,
    completed: Vec<JobId>,
    free_host: Vec<u32>,
    announced: BTreeSet<u64>,
    /// Chunks that the events say are there.
    replayed: BTreeSet<u64>,
    versions: u64,
    last_generation: u64,
    num_reported: u64,
    num_reads_checked: u64,
}

/// The number of a key made by [`key`].
fn number(key: &OffloadKey) -> u64 {
    u64::from_be_bytes(key.hash().0[24..].try_into().unwrap())
}

fn host(slot: SlotId) -> usize {
    slot.0 as usize
}

impl Model {
    fn new(rng: &mut Rng) -> Self {
        let capacity = 1 + u32::try_from(rng.below(20)).unwrap();
        let queue_chunks_max = 1 + usize::try_from(rng.below(20)).unwrap();
        let policy = match rng.below(3) {
            0 => PolicyKind::Lru,
            1 => PolicyKind::Arc(GhostHits::T1),
            _ => PolicyKind::Arc(GhostHits::T2),
        };
        let options = NvmeOptions {
            policy,
            queue_chunks_max,
            record_events: true,
            // What closes the store has tests of its own.
            breaker: BreakerOptions { errors: u32::MAX, ..BreakerOptions::default() },
            ..NvmeOptions::new("unused", capacity, CHUNK_BYTES as u64)
        };
        Self {
            rig: Rig::with_options(options),
            capacity,
            queue_chunks_max,
            chunks: BTreeMap::new(),
            retiring: HashMap::new(),
            quarantined: HashSet::new(),
            strikes: HashMap::new(),
            on_disk: HashMap::new(),
            corrupt: HashSet::new(),
            jobs: BTreeMap::new(),
            waiters: Vec::new(),
            queued: Vec::new(),
            ended: VecDeque::new(),
            again: HashSet::new(),
            completed: Vec::new(),
            free_host: (0..64).collect(),
            announced: BTreeSet::new(),
            replayed: BTreeSet::new(),
            versions: 0,
            last_generation: 0,
            num_reported: 0,
            num_reads_checked: 0,
        }
    }

    fn apply(&mut self, op: &Op) {
        match op {
            Op::Announce(req) => {
                self.rig.announce(*req);
                self.announced.insert(*req);
            }
            Op::Finish(req) => {
                self.rig.store.on_request_finished(RequestId(*req));
                self.announced.remove(req);
            }
            Op::Write { req, ns, positions } => self.submit(*req, TierDirection::Write, ns, *positions),
            Op::Read { req, ns, positions } => self.submit(*req, TierDirection::Read, ns, *positions),
            Op::Run { pick, trouble, busy } => self.run(*pick, *trouble, *busy),
            Op::FlipBit { n, bit } => self.flip_bit(*n, *bit),
            Op::Lookup(n) => {
                let there = matches!(self.chunks.get(n), Some(Chunk::Valid { .. }));
                let expected = if there { TierLookup::Hit } else { TierLookup::Miss };
                assert_eq!(self.rig.store.lookup(RequestId(0), &key(*n)), expected);
            }
            Op::Poll => self.poll(),
        }
        self.check();
    }

    fn submit(&mut self, req: u64, direction: TierDirection, ns: &[u64], positions: bool) {
        if self.free_host.len() < ns.len() {
            return;
        }
        let slots = self.free_host.split_off(self.free_host.len() - ns.len());
        for (n, slot) in ns.iter().zip(&slots) {
            self.versions += 1;
            self.rig.memory.fill(*slot, &content(*n, self.versions, CHUNK_BYTES));
        }
        let chunks: Vec<TierChunk> = ns
            .iter()
            .zip(&slots)
            .map(|(n, slot)| TierChunk {
                key: key(*n),
                slot: SlotId(*slot),
                end_token: positions.then(|| u32::try_from(n * 16 + 16).unwrap()),
            })
            .collect();
        self.rig.next_job += 1;
        let id = JobId(self.rig.next_job);
        let job = TierJob { id, req: RequestId(req), direction, chunks: chunks.clone() };

        // The store takes in what has ended before it looks at the job.
        self.absorb();
        let inflight = self.queued.len();
        let result = self.rig.store.submit(job.clone());
        if inflight > 0 && inflight + ns.len() > self.queue_chunks_max {
            let rejected = result.expect_err("the queue is full");
            assert_eq!((rejected.reason, rejected.job), (RejectReason::Busy, job));
            self.free_host.extend(slots);
            return;
        }
        result.expect("the queue has room");
        let mut job =
            ModelJob { direction, chunks, undecided: 0, failed: BTreeSet::new(), arrived: Vec::new() };
        match direction {
            TierDirection::Write => self.plan_write(id, &mut job, ns),
            TierDirection::Read => self.plan_read(id, &mut job, ns),
        }
        let decided = job.undecided == 0;
        self.jobs.insert(id, job);
        if decided {
            self.completed.push(id);
        }
        assert!(self.rig.next_op().is_none(), "a transfer too many");
    }

    fn plan_write(&mut self, id: JobId, job: &mut ModelJob, ns: &[u64]) {
        let mut absent = Vec::new();
        for n in ns {
            if !self.chunks.contains_key(n) && !absent.contains(n) {
                absent.push(*n);
            }
        }
        let evictable =
            |n: &u64, chunk: &Chunk| matches!(chunk, Chunk::Valid { pins: 0, .. }) && !ns.contains(n);
        let num_evictable = self.chunks.iter().filter(|(n, chunk)| evictable(n, chunk)).count();
        let free = self.counts().free as usize;
        let num_evicted = absent.len().saturating_sub(free).min(num_evictable);
        let room = absent.len().min(free + num_evicted);

        // Which ones are evicted is the policy's choice, among those that may be.
        let removed: Vec<u64> = self
            .replay()
            .into_iter()
            .map(|(kind, n)| {
                assert_eq!(kind, EventKind::Removed);
                n
            })
            .collect();
        assert_eq!(removed.len(), num_evicted, "evicted {removed:?} for {absent:?}");
        for n in removed {
            let chunk = self.chunks.remove(&n).expect("only what is there is evicted");
            assert!(evictable(&n, &chunk), "chunk {n} was evicted: {chunk:?}");
        }

        let mut written = absent[..room].iter();
        let mut next = written.next();
        for (index, n) in ns.iter().enumerate() {
            if next == Some(n) {
                next = written.next();
                let op = self.rig.next_op().expect("a write is queued");
                assert_eq!((op.job, op.tenant.key, op.host), (id, key(*n), job.chunks[index].slot));
                assert!(matches!(op.action, Action::Write));
                self.assert_unused(op.slot);
                assert!(op.tenant.generation > self.last_generation, "a generation comes again: {op:?}");
                self.last_generation = op.tenant.generation;
                self.chunks.insert(*n, Chunk::Writing { slot: op.slot });
                self.queued.push(op);
                job.undecided += 1;
                continue;
            }
            match self.chunks.get(n) {
                Some(Chunk::Valid { .. }) => {}
                Some(Chunk::Writing { .. }) => {
                    job.undecided += 1;
                    self.waiters.push((*n, id, index));
                }
                None => {
                    job.failed.insert(index);
                }
            }
        }
    }

    fn plan_read(&mut self, id: JobId, job: &mut ModelJob, ns: &[u64]) {
        for (index, n) in ns.iter().enumerate() {
            let Some(Chunk::Valid { slot, pins }) = self.chunks.get_mut(n) else {
                job.failed.insert(index);
                continue;
            };
            *pins += 1;
            let op = self.rig.next_op().expect("a read is queued");
            assert_eq!((op.job, op.tenant.key, op.slot), (id, key(*n), *slot));
            assert_eq!(op.host, job.chunks[index].slot);
            assert!(matches!(op.action, Action::Read { .. }));
            self.queued.push(op);
            job.undecided += 1;
        }
    }

    fn assert_unused(&self, slot: u32) {
        assert!(slot < self.capacity, "slot {slot} of {}", self.capacity);
        let used = |chunk: &Chunk| match chunk {
            Chunk::Writing { slot: other } | Chunk::Valid { slot: other, .. } => *other == slot,
        };
        assert!(!self.chunks.values().any(used), "slot {slot} has two tenants");
        assert!(!self.retiring.contains_key(&slot), "slot {slot} is still being read");
        assert!(!self.quarantined.contains(&slot), "slot {slot} is quarantined");
    }

    fn run(&mut self, pick: usize, trouble: Trouble, busy: bool) {
        if self.queued.is_empty() {
            return;
        }
        let op = self.queued.swap_remove(pick % self.queued.len());
        let host_slot = host(op.host);
        let end = match op.action {
            _ if busy => End::Innocent,
            Action::Write => self.write_end(&op, trouble),
            Action::Read { .. } => self.read_end(&op, trouble),
        };
        let memory = self.rig.memory.clone();
        if busy {
            let _held = memory.slots[host_slot].write().unwrap_or_else(std::sync::PoisonError::into_inner);
            self.rig.run(op, trouble);
        } else {
            self.rig.run(op, trouble);
        }
        if end == End::Good && matches!(op.action, Action::Read { .. }) {
            let bytes = self.on_disk[&op.slot].clone();
            assert_eq!(memory.bytes(op.host.0), bytes, "{op:?}");
            self.num_reads_checked += 1;
            self.jobs.get_mut(&op.job).unwrap().arrived.push((op.host.0, bytes));
        }
        self.ended.push_back((op, end));
    }

    fn write_end(&mut self, op: &Transfer, trouble: Trouble) -> End {
        match trouble {
            Trouble::None | Trouble::Short | Trouble::Lost | Trouble::Torn => {
                self.on_disk.insert(op.slot, self.rig.memory.bytes(op.host.0));
                // Every write has other bytes, in the first half and in the second.
                if matches!(trouble, Trouble::Lost | Trouble::Torn) {
                    self.corrupt.insert(op.slot);
                } else {
                    self.corrupt.remove(&op.slot);
                }
                End::Good
            }
            Trouble::Eio | Trouble::Eof => End::Broken,
            Trouble::Error(_) | Trouble::Panic => End::Innocent,
            Trouble::Over => unreachable!("it is not drawn"),
        }
    }

    fn read_end(&self, op: &Transfer, trouble: Trouble) -> End {
        match trouble {
            Trouble::None | Trouble::Short | Trouble::Lost | Trouble::Torn => {
                if self.corrupt.contains(&op.slot) { End::Corrupt } else { End::Good }
            }
            Trouble::Eio => End::Broken,
            Trouble::Eof => End::Corrupt,
            Trouble::Error(_) | Trouble::Panic => End::Innocent,
            Trouble::Over => unreachable!("it is not drawn"),
        }
    }

    fn flip_bit(&mut self, n: u64, bit: u64) {
        let Some(&Chunk::Valid { slot, .. }) = self.chunks.get(&n) else { return };
        // A second flip could undo the first.
        if self.corrupt.insert(slot) {
            self.rig.disk.flip_bit(self.rig.worker.geometry.place(slot).offset + bit % CHUNK_BYTES as u64);
        }
    }

    /// What the store does with what has ended: at a poll, and before a job is looked at.
    fn absorb(&mut self) {
        let _ = self.rig.store.drain(Duration::ZERO);
        let events = self.rig.events();
        let removed = events.iter().filter(|(kind, _)| *kind == EventKind::Removed);
        // Of the chunks that go for writes which are begun anew, the store has chosen which.
        let mut removed: VecDeque<u64> = removed.flat_map(|(_, keys)| keys.iter().map(number)).collect();
        while let Some((op, end)) = self.ended.pop_front() {
            let n = number(&op.tenant.key);
            match op.action {
                Action::Write => {
                    assert_eq!(self.chunks[&n], Chunk::Writing { slot: op.slot });
                    if end == End::Broken && self.again.insert((op.job, op.index)) {
                        let evictable = self.evictable_for(op.job);
                        let used = self.chunks.len() + self.retiring.len() + self.quarantined.len();
                        let is_full = used == self.capacity as usize;
                        if !is_full || !evictable.is_empty() {
                            if is_full {
                                let evicted = removed.pop_front().expect("one is evicted");
                                assert!(evictable.contains(&evicted), "{evicted} of {evictable:?}");
                                self.chunks.remove(&evicted);
                            }
                            self.quarantined.insert(op.slot);
                            self.write_anew(&op);
                            continue;
                        }
                    }
                    if end == End::Good {
                        self.chunks.insert(n, Chunk::Valid { slot: op.slot, pins: 0 });
                    } else {
                        self.chunks.remove(&n);
                    }
                    if end == End::Broken {
                        self.quarantined.insert(op.slot);
                    }
                    self.decide(op.job, op.index as usize, end == End::Good);
                    for (_, job, index) in
                        self.waiters.extract_if(.., |(of, ..)| *of == n).collect::<Vec<_>>()
                    {
                        self.decide(job, index, end == End::Good);
                    }
                }
                Action::Read { .. } => {
                    if self.end_read(n, op.slot, end) {
                        assert_eq!(removed.pop_front(), Some(n));
                    }
                    self.decide(op.job, op.index as usize, end == End::Good);
                }
            }
        }
        assert_eq!(removed, [], "removed without a reason");
        assert_eq!(self.replay_all(events), []);
    }

    /// The chunks that may be evicted for a write of this job that goes to another slot: none of the job's own.
    fn evictable_for(&self, job: JobId) -> BTreeSet<u64> {
        let own: HashSet<u64> = self.jobs[&job].chunks.iter().map(|chunk| number(&chunk.key)).collect();
        let evictable =
            |(n, chunk): &(&u64, &Chunk)| matches!(chunk, Chunk::Valid { pins: 0, .. }) && !own.contains(*n);
        self.chunks.iter().filter(evictable).map(|(n, _)| *n).collect()
    }

    /// The write that the store has begun in another slot because this one failed.
    fn write_anew(&mut self, failed: &Transfer) {
        let op = self.rig.next_op().expect("the write is queued anew");
        assert_eq!((op.job, op.index, op.host), (failed.job, failed.index, failed.host));
        assert_eq!(op.tenant.key, failed.tenant.key);
        assert_ne!(op.slot, failed.slot);
        assert!(op.tenant.generation > self.last_generation, "a generation comes again: {op:?}");
        self.last_generation = op.tenant.generation;
        self.chunks.remove(&number(&op.tenant.key));
        self.assert_unused(op.slot);
        self.chunks.insert(number(&op.tenant.key), Chunk::Writing { slot: op.slot });
        self.queued.push(op);
    }

    /// Says whether the chunk is dropped by this.
    fn end_read(&mut self, n: u64, slot: u32, end: End) -> bool {
        let is_dropped = !self.retiring.contains_key(&slot);
        if let Some((pins, broken)) = self.retiring.get_mut(&slot) {
            *pins -= 1;
            *broken |= end == End::Broken;
        } else {
            let Some(Chunk::Valid { slot: of, pins }) = self.chunks.get_mut(&n) else {
                panic!("chunk {n} was being read");
            };
            assert_eq!(*of, slot);
            *pins -= 1;
            if matches!(end, End::Good | End::Innocent) {
                return false;
            }
            let pins = *pins;
            self.chunks.remove(&n);
            let strikes = self.strikes.entry(slot).or_default();
            *strikes += u32::from(end == End::Corrupt);
            self.retiring.insert(slot, (pins, end == End::Broken || *strikes >= 2));
        }
        if let Some(&(0, broken)) = self.retiring.get(&slot) {
            self.retiring.remove(&slot);
            if broken {
                self.quarantined.insert(slot);
            }
        }
        is_dropped
    }

    fn decide(&mut self, job: JobId, index: usize, good: bool) {
        let open = self.jobs.get_mut(&job).unwrap();
        open.undecided -= 1;
        if !good {
            open.failed.insert(index);
        }
        if open.undecided == 0 {
            self.completed.push(job);
        }
    }

    fn poll(&mut self) {
        self.absorb();
        let mut expected = Vec::new();
        for id in std::mem::take(&mut self.completed) {
            let job = self.jobs.remove(&id).expect("each job is reported once");
            let mut failed = Vec::new();
            for index in job.failed {
                let key = job.chunks[index].key;
                if !failed.contains(&key) {
                    failed.push(key);
                }
            }
            if job.direction == TierDirection::Read {
                for (slot, bytes) in job.arrived {
                    assert_eq!(self.rig.memory.bytes(slot), bytes);
                }
            }
            self.free_host.extend(job.chunks.iter().map(|chunk| chunk.slot.0));
            expected.push(TierCompletion::except(id, failed));
            self.num_reported += 1;
        }
        assert_eq!(self.rig.poll(), expected);
    }

    /// Takes the store's events, applies them to what earlier ones said, and returns the removals since the store
    /// last took in what had ended (their number is checked by the caller).
    fn replay(&mut self) -> Vec<(EventKind, u64)> {
        let events = self.rig.events();
        self.replay_all(events)
    }

    /// As [`replay`](Self::replay), of `events`, which were taken.
    fn replay_all(&mut self, events: Vec<(EventKind, Vec<OffloadKey>)>) -> Vec<(EventKind, u64)> {
        let resident: BTreeSet<u64> = self.resident().collect();
        let mut unexplained = Vec::new();
        for (kind, keys) in events {
            assert!(!keys.is_empty());
            for n in keys.iter().map(number) {
                match kind {
                    EventKind::Stored => assert!(self.replayed.insert(n), "chunk {n} was stored twice"),
                    _ => assert!(self.replayed.remove(&n), "chunk {n} was removed twice"),
                }
                if kind == EventKind::Removed && resident.contains(&n) && !self.replayed.contains(&n) {
                    unexplained.push((kind, n));
                }
            }
        }
        unexplained.retain(|(_, n)| !self.replayed.contains(n));
        unexplained
    }

    fn resident(&self) -> impl Iterator<Item = u64> {
        self.chunks.iter().filter(|(_, chunk)| matches!(chunk, Chunk::Valid { .. })).map(|(n, _)| *n)
    }

    fn counts(&self) -> SlotCounts {
        let mut counts = SlotCounts {
            capacity: self.capacity,
            retiring: u32::try_from(self.retiring.len()).unwrap(),
            quarantined: u32::try_from(self.quarantined.len()).unwrap(),
            ..SlotCounts::default()
        };
        for chunk in self.chunks.values() {
            match chunk {
                Chunk::Writing { .. } => counts.writing += 1,
                Chunk::Valid { pins: 0, .. } => counts.evictable += 1,
                Chunk::Valid { .. } => counts.pinned += 1,
            }
        }
        let used = counts.writing + counts.evictable + counts.pinned + counts.retiring + counts.quarantined;
        assert!(used <= self.capacity, "the quota is exceeded: {counts:?}");
        counts.free = self.capacity - used;
        counts
    }

    fn check(&mut self) {
        self.rig.store.assert_consistent();
        let counts = self.rig.store.counts();
        assert!(counts.add_up(), "{counts:?}");
        assert_eq!(counts, self.counts());
        assert_eq!(self.replay(), [], "removed without a reason");
        assert!(self.resident().eq(self.replayed.iter().copied()), "the events replay to what is there");
        let stats = self.rig.store.stats();
        assert_eq!(stats.chunks_inflight, self.queued.len() + self.ended.len());
        assert_eq!(stats.jobs_inflight, self.jobs.len());
        assert_eq!(self.rig.store.num_requests(), self.announced.len());
    }

    /// Lets everything end.
    fn settle(&mut self) {
        while !self.queued.is_empty() {
            self.apply(&Op::Run { pick: 0, trouble: Trouble::None, busy: false });
            // Writes that failed before are begun anew only now.
            self.apply(&Op::Poll);
        }
        self.apply(&Op::Poll);
        assert!(self.jobs.is_empty(), "jobs were never reported: {:?}", self.jobs);
        assert_eq!(self.free_host.len(), 64);
        let counts = self.rig.store.counts();
        assert_eq!((counts.writing, counts.pinned, counts.retiring), (0, 0, 0));
    }
}

/// Says how to replay an episode that fails.
struct Announce {
    seed: u64,
    step: usize,
    op: Option<Op>,
}

impl Drop for Announce {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let Self { seed, step, op } = self;
            eprintln!("failed at step {step}, {op:?}; replay with KVO_NVME_SEED={seed}");
        }
    }
}

/// Runs one episode; returns the operations, jobs reported, and reads whose bytes were compared.
fn episode(seed: u64) -> (u64, u64, u64) {
    let mut announce = Announce { seed, step: 0, op: None };
    let mut rng = Rng::new(seed);
    let mut model = Model::new(&mut rng);
    let faults = !rng.one_in(3);
    for step in 0..OPS_PER_EPISODE {
        let op = draw(&mut rng, faults);
        (announce.step, announce.op) = (step, Some(op.clone()));
        model.apply(&op);
    }
    model.settle();
    // Every chunk that is there comes back right, or is one that the model knows to be corrupt.
    if faults {
        for n in 0..NUM_KEYS {
            model.apply(&Op::Read { req: 0, ns: vec![n], positions: false });
        }
        model.settle();
    }
    (OPS_PER_EPISODE as u64, model.num_reported, model.num_reads_checked)
}

#[test]
fn the_store_does_what_the_model_does() {
    // The panics that belong to the test would otherwise fill the output.
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        let own =
            info.payload().downcast_ref::<&str>().is_some_and(|text| text.contains("belongs to the test"));
        if !own {
            hook(info);
        }
    }));
    let seeds = match std::env::var("KVO_NVME_SEED") {
        Ok(seed) => {
            let seed = seed.parse().expect("KVO_NVME_SEED is a number");
            seed..seed + 1
        }
        Err(_) => 1..NUM_EPISODES + 1,
    };
    println!("seeds {seeds:?}");
    let (mut ops, mut jobs, mut reads) = (0, 0, 0);
    for seed in seeds.clone() {
        let done = episode(seed);
        (ops, jobs, reads) = (ops + done.0, jobs + done.1, reads + done.2);
    }
    println!("{ops} operations, {jobs} jobs, {reads} reads compared");
    if seeds.end - seeds.start == NUM_EPISODES {
        assert!(ops >= 100_000 && jobs > 30_000 && reads > 10_000, "{ops} ops, {jobs} jobs, {reads} reads");
    }
}
