//! The whole store on a simulated disk: one thread, one seed, no kernel.
//!
//! ```text
//!   walk ── steps ──▶ NvmeStore ── Op ──▶ Transfers ── Worker ──▶ SimFile ──▶ Disk ── Image: seen │ stable
//!    │                    ▲                   │  ▲                              ▲
//!    └── checks, Book     └────── Event ──────┘  └── SimMemory                  └── Faults, drawn by the seed
//! ```
//!
//! The store, and the code that hashes, compares and moves the bytes, are what ships; only the device, the kernel and
//! the host memory under them are simulated. A step ends one transfer of the test's choice, in one of many ways.
//! Payloads are made of key, version and place, so that any mix of any two is seen. After each step:
//!
//! 1. a read has given exactly what was written for its key and generation, or has failed;
//! 2. the slots' states add up to the capacity;
//! 3. each job is reported once, with keys of its own, each once, and with nothing of it still under way;
//! 4. a slot that a transfer uses is pinned or being written, by that transfer's tenant;
//! 5. no slot of the host memory is given back while a transfer uses it;
//! 6. the events add up to what is there.
//!
//! At the end of a walk nothing goes wrong any more: then every job ends, and each chunk that is there is read, and
//! comes exactly if the disk has its bytes.
//!
//! `KVO_NVME_SIM_SEEDS=N` walks from the first N seeds, `KVO_NVME_SIM_SEED=S` from one.

mod book;
mod disk;
mod engine;
mod facts;
mod faults;
mod fish;
mod image;
mod memory;
mod rng;
mod walk;
mod walks;

use std::{path::PathBuf, sync::Arc};

use kvo_core::{
    HostMemory, JobId, RejectReason, RequestContext, RequestId, SecondaryTier, SlotId, TierChunk,
    TierDirection, TierJob, TierLookup,
};

use crate::{
    ChunkError, NvmeOptions, NvmeStore,
    file::ChunkFile,
    slots::{SlotState, Tenant},
    worker::Worker,
};

use self::{
    book::{Book, OpenJob},
    disk::{Disk, Shared, SimFile, lock, share},
    engine::{Plant, SimEngine, TransferTally, Transfers, direction, key, number},
    faults::{Faults, Plan},
    memory::{Hold, SimMemory, content},
    rng::Rng,
    walk::Step,
};

const NUM_HOST_SLOTS: u32 = 48;

/// A store on a simulated disk, and its caller.
struct Sim {
    store: NvmeStore,
    transfers: Shared<Transfers>,
    disk: Shared<Disk>,
    memory: Arc<SimMemory>,
    book: Book,
}

impl Sim {
    fn new(options: NvmeOptions, faults: Faults, rng: Rng, plant: Option<Plant>) -> Self {
        let chunk_bytes = usize::try_from(options.chunk_bytes).expect("chunks are small");
        let memory = SimMemory::new(NUM_HOST_SLOTS, chunk_bytes);
        let geometry = options.geometry(Some(&*memory)).expect("the options are good");
        let disk = share(Disk::new(geometry, faults, rng));
        let file = |device| Arc::new(SimFile { disk: Arc::clone(&disk), device }) as Arc<dyn ChunkFile>;
        let worker = Worker {
            files: (0..geometry.num_devices).map(file).collect(),
            memory: Arc::clone(&memory) as Arc<dyn HostMemory>,
            geometry,
        };
        let (sender, events) = crossbeam_channel::unbounded();
        let transfers =
            share(Transfers::new(Arc::clone(&disk), Arc::clone(&memory), worker.clone(), sender, plant));
        let engine = Box::new(SimEngine(Arc::clone(&transfers)));
        let store = NvmeStore::assemble(options, PathBuf::new(), worker, (engine, events), 1);
        Self { store, transfers, disk, memory, book: Book::new(NUM_HOST_SLOTS) }
    }

    fn apply(&mut self, step: &Step) {
        match step {
            Step::Announce(req) => {
                self.store.on_new_request(&RequestContext::new(RequestId(*req)));
            }
            Step::Finish(req) => self.store.on_request_finished(RequestId(*req)),
            Step::Write { req, ns, positions } => self.submit(*req, TierDirection::Write, ns, *positions),
            Step::Read { req, ns, positions } => self.submit(*req, TierDirection::Read, ns, *positions),
            Step::WriteDirectly(n) => self.write_directly(*n),
            Step::ReadDirectly(n) => self.read_directly(*n),
            Step::Lookup(n) => {
                let hit = self.store.lookup(RequestId(0), &key(*n)) == TierLookup::Hit;
                assert_eq!(hit, self.book.resident.contains(n), "chunk {n}");
            }
            Step::Poll => self.poll(),
            Step::Begin(place) => self.work(*place, false),
            Step::End(place) => self.work(*place, true),
            Step::Decay { slot, bit } => {
                let mut disk = lock(&self.disk);
                let slot = u32::try_from(slot % u64::from(disk.geometry.capacity)).expect("a slot");
                disk.decay(slot, *bit);
            }
        }
        lock(&self.transfers).step += 1;
        self.check();
    }

    fn submit(&mut self, req: u64, direction: TierDirection, ns: &[u64], positions: bool) {
        let Some(hosts) = self.book.take_host(ns.len()) else { return };
        let mut chunks: Vec<TierChunk> = Vec::with_capacity(ns.len());
        for (n, slot) in ns.iter().zip(&hosts) {
            let end_token = positions.then(|| u32::try_from(n * 16 + 16).expect("small"));
            // A write names a chunk twice with the same slot.
            let earlier = chunks.iter().find(|chunk| chunk.key == key(*n)).map(|chunk| chunk.slot);
            let slot = match (direction, earlier) {
                (TierDirection::Write, Some(earlier)) => earlier,
                (TierDirection::Write, None) => {
                    self.memory.fill(*slot, *n, self.book.next_version());
                    *slot
                }
                (TierDirection::Read, _) => {
                    self.memory.clear(*slot);
                    *slot
                }
            };
            chunks.push(TierChunk { key: key(*n), slot, end_token });
        }
        self.book.next_job += 1;
        let id = JobId(self.book.next_job);
        let job = TierJob { id, req: RequestId(req), direction, chunks: chunks.clone() };
        match self.store.submit(job.clone()) {
            Ok(()) => {
                let used = |slot: &SlotId| chunks.iter().any(|chunk| chunk.slot == *slot);
                self.book.free_host.extend(hosts.iter().filter(|slot| !used(slot)));
                self.book.jobs.insert(id, OpenJob { direction, chunks });
            }
            Err(rejected) => {
                assert_eq!(rejected.job, job, "a job is handed back as it was");
                assert_eq!(rejected.reason, RejectReason::Busy);
                self.book.free_host.extend(hosts);
            }
        }
    }

    fn write_directly(&mut self, n: u64) {
        let version = self.book.next_version();
        let plan = lock(&self.disk).draw_plan(true);
        lock(&self.disk).set_plan(plan);
        let result = self.store.write_chunk(key(n), &content(n, version, self.memory.chunk_bytes()));
        lock(&self.disk).set_plan(Plan::good());
        let tenant = self.tenant(n);
        let mut transfers = lock(&self.transfers);
        match result {
            Ok(()) => {
                let Tenant { key, generation } = tenant.expect("a chunk that was written is there");
                if !transfers.versions.contains_key(&(key, generation)) {
                    transfers.versions.insert((key, generation), version);
                    transfers.tally.written += 1;
                }
            }
            Err(ChunkError::Write(_)) => transfers.tally.failed_writes += 1,
            Err(ChunkError::Pending | ChunkError::NoRoom) => {}
            Err(error) => panic!("{error}"),
        }
    }

    fn read_directly(&mut self, n: u64) {
        let mut bytes = vec![0xee; self.memory.chunk_bytes()];
        let misses = self.store.stats().read_misses;
        let plan = lock(&self.disk).draw_plan(false);
        lock(&self.disk).set_plan(plan);
        let hit = self.store.read_chunk(&key(n), &mut bytes).expect("the length is right");
        lock(&self.disk).set_plan(Plan::good());
        if hit {
            let Tenant { key, generation } = self.tenant(n).expect("what was read is there");
            let version = lock(&self.transfers).versions[&(key, generation)];
            assert!(bytes == content(n, version, bytes.len()), "chunk {n} has other bytes");
        }
        let missed = self.store.stats().read_misses > misses;
        let tally = &mut lock(&self.transfers).tally;
        tally.read += u64::from(hit);
        tally.failed_reads += u64::from(!hit && !missed);
    }

    /// Whose bytes the store says it has for chunk `n`.
    fn tenant(&self, n: u64) -> Option<Tenant> {
        self.store.slot_states().find_map(|(_, state)| match state {
            SlotState::Valid { tenant, .. } if tenant.key == key(n) => Some(tenant),
            _ => None,
        })
    }

    fn poll(&mut self) {
        let mut done = Vec::new();
        self.store.poll(&mut done);
        let transfers = lock(&self.transfers);
        for report in &done {
            self.book.end_job(report, &transfers, &self.memory);
        }
    }

    /// Begins or ends one of the transfers.
    fn work(&mut self, place: usize, running: bool) {
        let mut transfers = lock(&self.transfers);
        let count = transfers.ready(running).count();
        if count == 0 {
            return;
        }
        let place = transfers.ready(running).nth(place % count).expect("below the count");
        if running { transfers.end(place) } else { transfers.begin(place) }
    }

    fn check(&mut self) {
        self.store.assert_consistent();
        assert!(self.store.counts().add_up(), "{:?}", self.store.counts());
        let mut events = Vec::new();
        self.store.take_events(&mut events);
        self.book.replay(events);
        let states: Vec<SlotState> = self.store.slot_states().map(|(_, state)| state).collect();
        let resident = states.iter().filter_map(|state| match state {
            SlotState::Valid { tenant, .. } => Some(number(&tenant.key)),
            _ => None,
        });
        let mut resident: Vec<u64> = resident.collect();
        resident.sort_unstable();
        assert!(resident.iter().eq(&self.book.resident), "the events do not add up to what is there");
        for pending in &lock(&self.transfers).pending {
            let (op, state) = (&pending.op, states[pending.op.slot as usize]);
            let is_held = match (direction(op), state) {
                (Hold::Reads, SlotState::Writing { tenant }) => tenant == op.tenant,
                (Hold::Writes, SlotState::Valid { tenant, pins, .. }) => tenant == op.tenant && pins > 0,
                (Hold::Writes, SlotState::Retiring { pins, .. }) => pins > 0,
                _ => false,
            };
            assert!(is_held, "{op:?} has not ended, and its slot is {state:?}");
        }
    }

    /// Nothing goes wrong any more: everything ends, and each chunk that is there is read.
    fn settle(&mut self) {
        lock(&self.disk).faults.stop();
        {
            let mut transfers = lock(&self.transfers);
            transfers.unstick();
            assert_eq!(transfers.finish(), 0);
        }
        self.apply(&Step::Poll);
        assert!(self.book.jobs.is_empty(), "never reported: {:?}", self.book.jobs);
        assert_eq!(self.book.free_host.len(), NUM_HOST_SLOTS as usize);
        let counts = self.store.counts();
        assert_eq!((counts.writing, counts.pinned, counts.retiring), (0, 0, 0), "{counts:?}");
        self.check_counters();
        self.read_all();
    }

    /// The store has counted what the disk has done.
    fn check_counters(&self) {
        let stats = self.store.stats();
        let counted = TransferTally {
            written: stats.write.chunks,
            read: stats.read.chunks,
            failed_writes: stats.write_errors,
            failed_reads: stats.read_errors + stats.checksum_failures,
        };
        assert_eq!(counted, lock(&self.transfers).tally);
        assert_eq!((stats.memory_errors, stats.jobs_inflight, stats.chunks_inflight), (0, 0, 0));
    }

    /// Each chunk that is there is read: it comes, if the disk has its bytes, and fails if not.
    fn read_all(&mut self) {
        for n in self.book.resident.clone() {
            let (slot, tenant) = self.place(n).expect("resident");
            let version = lock(&self.transfers).versions[&(tenant.key, tenant.generation)];
            let is_whole = *lock(&self.disk).chunk(slot) == content(n, version, self.memory.chunk_bytes());
            self.apply(&Step::ReadDirectly(n));
            assert_eq!(self.book.resident.contains(&n), is_whole, "chunk {n} in slot {slot}");
        }
    }

    fn place(&self, n: u64) -> Option<(u32, Tenant)> {
        self.store.slot_states().find_map(|(slot, state)| match state {
            SlotState::Valid { tenant, .. } if tenant.key == key(n) => Some((slot, tenant)),
            _ => None,
        })
    }
}
