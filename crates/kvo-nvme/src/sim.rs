//! The whole store on a simulated disk: one thread, one seed, no kernel.
//!
//! ```text
//!   walk ── steps ──▶ NvmeStore ── Op ────▶ Transfers ── Worker ──▶ SimFile ───▶ Disk ── Image: seen │ stable
//!    │                 ▲    └───── Entry ──▶ Records ──── Writer ──▶ SimIndex ──▶  ▲
//!    └── checks, Book  └────────── Event ───────┘   └── SimMemory                  └── Faults, drawn by the seed
//! ```
//!
//! The store, its recovery, and the code that hashes, compares, moves and records the chunks are what ships; only the
//! device, the kernel, the host memory and the order in which things happen are simulated. A step ends one transfer of
//! the test's choice in one of many ways, or lets the journal write a batch, or ends the store: closed, killed, or cut
//! off from power, which keeps of every sector of every write since the last sync the old bytes or the new ones; amid
//! transfers, a batch or a close. Then the next store opens what is there. Payloads are made of key, version and place,
//! so that any mix of any two is seen.
//!
//! After each step:
//!
//! 1. a read has given exactly what was written for its key and generation, or has failed;
//! 2. the slots' states add up to the capacity;
//! 3. each job is reported once, with keys of its own, each once, and, before its deadline, with nothing of it still
//!    under way;
//! 4. a slot that a transfer uses is pinned or being written, by that transfer's tenant;
//! 5. no slot of the host memory is given back while a transfer uses it;
//! 6. the events add up to what is there.
//!
//! When a store has ended:
//!
//! 7. of each key the newest generation counts that has a valid record, and nothing else is there, however often an
//!    opening is begun;
//! 8. a killed store loses at most the chunks whose records were on their way, and no slot that failed is used again;
//! 9. what a durable one called written is there, whatever happens but decay and lies of the disk;
//! 10. the same is true of everything after a store was closed without an error.
//!
//! At the end of a walk nothing goes wrong any more: then every job ends, also those whose transfers never do, the
//! counters are what the disk has counted, and each chunk that is there is read, and comes exactly if the disk has its
//! bytes.
//!
//! What is not promised: a chunk that was evicted may be there again after a crash, and then in an older version than
//! the last one that was evicted. Chunks of one key have one content, so this is no wrong byte.
//!
//! `KVO_NVME_SIM_SEEDS=N` walks from the first N seeds, `KVO_NVME_SIM_SEED=S` from one.

mod book;
mod calls;
mod crashes;
mod facts;
mod fish;
mod life;
mod memory;
mod walk;
mod walks;

use std::sync::Arc;

use kvo_core::{ManualClock, RequestContext, RequestId, SecondaryTier, TierDirection, TierLookup};

use crate::{
    NvmeOptions, TierState,
    slots::{SlotState, Tenant},
    testing::{
        Disk, Faults, Plant, Records, Rng, Shared, TransferTally, Transfers,
        life::{Life, format, open},
        lock, share,
    },
};

use self::{
    book::Book,
    life::Live,
    memory::{SimMemory, content, key, number},
    walk::{Decaying, Step},
};

const NUM_HOST_SLOTS: u32 = 48;

/// A store on a simulated disk, and its caller.
struct Sim {
    store: Live,
    transfers: Shared<Transfers>,
    records: Shared<Records>,
    disk: Shared<Disk>,
    memory: Arc<SimMemory>,
    clock: ManualClock,
    book: Book,
    options: NvmeOptions,
    plant: Option<Plant>,
    lives: LivesTally,
}

/// How often stores have ended, and what the next ones have found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct LivesTally {
    /// By [`End`](crate::testing::End).
    ends: [u64; 3],
    chunks_recovered: u64,
}

impl LivesTally {
    fn add(&mut self, other: &Self) {
        for (sum, ends) in self.ends.iter_mut().zip(other.ends) {
            *sum += ends;
        }
        self.chunks_recovered += other.chunks_recovered;
    }
}

impl Sim {
    fn new(options: NvmeOptions, faults: Faults, rng: Rng, plant: Option<Plant>) -> Self {
        let chunk_bytes = usize::try_from(options.chunk_bytes).expect("chunks are small");
        let memory = SimMemory::new(NUM_HOST_SLOTS, chunk_bytes);
        let geometry = options.geometry(Some(&*memory)).expect("the options are good");
        let mut disk = Disk::new(geometry, faults, rng);
        format(&mut disk, &options);
        let (disk, clock) = (share(disk), ManualClock::default());
        let host = (Arc::clone(&memory) as _, Box::new(Arc::clone(&memory)) as _);
        let Life { store, transfers, records } = open(&options, &disk, host, &clock, plant);
        let store = Live(Some(store));
        let book = Book::new(NUM_HOST_SLOTS);
        let lives = LivesTally::default();
        Self { store, transfers, records, disk, memory, clock, book, options, plant, lives }
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
                let may_hit = self.store.state() == TierState::Up;
                assert!(hit == self.book.resident.contains(n) || !hit && !may_hit, "chunk {n}");
            }
            Step::Poll => self.poll(),
            Step::Begin(place) => self.work(*place, false),
            Step::End(place) => self.work(*place, true),
            Step::Record => lock(&self.records).advance(),
            Step::Pass(time) => self.clock.advance(*time),
            Step::Decay { of, nth, bit } => {
                let mut disk = lock(&self.disk);
                let slot = u32::try_from(nth % u64::from(disk.geometry.capacity)).expect("a slot");
                match of {
                    Decaying::Chunk => disk.decay(slot, *bit),
                    Decaying::Record => disk.decay_record(slot, *bit),
                    Decaying::Superblock => disk.decay_superblock(false, *bit),
                }
            }
            Step::BeginAnew { end, durable } => self.begin_anew(*end, *durable),
        }
        lock(&self.transfers).step += 1;
        self.check();
    }

    fn check(&mut self) {
        self.store.assert_consistent();
        assert!(self.store.counts().add_up(), "{:?}", self.store.counts());
        self.take_events();
        let resident = self.view().resident();
        let mut resident: Vec<u64> = resident.iter().map(|(_, tenant)| number(&tenant.key)).collect();
        resident.sort_unstable();
        assert!(resident.iter().eq(&self.book.resident), "the events do not add up to what is there");
        self.view().check_slots();
    }

    fn take_events(&mut self) {
        let mut events = Vec::new();
        self.store.take_events(&mut events);
        self.book.replay(events);
    }

    /// Ends all that can end, and takes in what has.
    fn finish(&mut self) {
        loop {
            lock(&self.transfers).finish();
            lock(&self.records).finish();
            self.apply(&Step::Poll);
            // A write that has failed was begun anew.
            let is_idle = lock(&self.transfers).is_idle() && lock(&self.records).is_idle();
            if is_idle {
                break;
            }
        }
    }

    /// Nothing goes wrong any more: everything ends, or is reported late, and each chunk that is there is read.
    fn settle(&mut self) {
        lock(&self.disk).faults.stop();
        self.finish();
        self.apply(&Step::Pass(self.options.deadline));
        self.apply(&Step::Poll);
        assert!(self.book.jobs.is_empty(), "never reported: {:?}", self.book.jobs);
        lock(&self.transfers).unstick();
        self.finish();
        assert_eq!(self.book.free_host.len(), NUM_HOST_SLOTS as usize);
        let counts = self.store.counts();
        assert_eq!((counts.writing, counts.pinned, counts.retiring), (0, 0, 0), "{counts:?}");
        self.check_counters();
        self.read_all();
    }

    /// The store has counted what the disk has done.
    fn check_counters(&self) {
        let (stats, records) = (self.store.stats(), lock(&self.records));
        let counted = TransferTally {
            written: stats.write.chunks,
            read: stats.read.chunks,
            failed_writes: stats.write_errors,
            failed_reads: stats.read_errors + stats.checksum_failures,
        };
        let tally = lock(&self.transfers).tally;
        if stats.late == 0 && stats.record_errors == 0 {
            assert_eq!(counted, tally);
        }
        assert_eq!((stats.late, stats.records), (stats.late_ended, records.num_put));
        assert_eq!((stats.memory_errors, stats.jobs_inflight, stats.chunks_inflight), (0, 0, 0));
    }

    /// Each chunk that is there is read: it comes, if the disk has its bytes, and fails if not.
    fn read_all(&mut self) {
        for n in self.book.resident.clone() {
            let (slot, tenant) = self.place(n).expect("resident");
            let version = lock(&self.transfers).versions[&(tenant.key, tenant.generation)];
            let is_whole = *lock(&self.disk).chunk(slot) == content(n, version, self.memory.chunk_bytes());
            // A device that had failed too often is tried again.
            self.apply(&Step::Pass(self.options.breaker.pause));
            self.apply(&Step::ReadDirectly(n));
            assert_eq!(self.book.resident.contains(&n), is_whole, "chunk {n} in slot {slot}");
        }
    }

    /// Where the store says it has chunk `n`.
    fn place(&self, n: u64) -> Option<(u32, Tenant)> {
        self.store.slot_states().find_map(|(slot, state)| match state {
            SlotState::Valid { tenant, .. } if tenant.key == key(n) => Some((slot, tenant)),
            _ => None,
        })
    }
}
