//! Tests of the whole store: on a disk in memory whose I/O a test runs by hand, and on real files with threads.

mod admission;
mod breaker;
mod faults;
mod jobs;
mod late;
mod model;
mod open;
mod order;
mod records;
mod restart;
mod threads;

use std::{
    io,
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError, RwLock},
    time::Duration,
};

use crossbeam_channel::Sender;
use kvo_core::{
    BlockHash, EventKind, GroupIdx, HostMemory, JobId, JobRejected, ManualClock, OffloadEvent, OffloadKey,
    RequestContext, RequestId, SecondaryTier, SlotAccessError, SlotId, TierChunk, TierCompletion,
    TierDirection, TierJob, TierLookup,
};

use crate::{
    EngineKind, NvmeOptions, NvmeStore,
    engine::{ByHand, EngineInfo, Event, Op, Pool},
    file::ChunkFile,
    journal::{Journal, NoJournal, Recovered},
    store::Parts,
    worker::Worker,
};

const CHUNK_BYTES: usize = 40;

fn key(n: u64) -> OffloadKey {
    OffloadKey::new(BlockHash::from_u64(n), GroupIdx(0))
}

fn keys(ns: impl IntoIterator<Item = u64>) -> Vec<OffloadKey> {
    ns.into_iter().map(key).collect()
}

/// The content of version `version` of chunk `n`: no two are equal.
fn content(n: u64, version: u64, chunk_bytes: usize) -> Vec<u8> {
    let words = (0_u64..).flat_map(|i| (n << 40 | version << 8 | (i & 0xff)).to_le_bytes());
    words.take(chunk_bytes).collect()
}

/// Host memory that a test can look into.
struct Memory {
    slots: Vec<RwLock<Vec<u8>>>,
    slot_bytes: usize,
}

impl Memory {
    fn new(num_slots: u32, slot_bytes: usize) -> Arc<Self> {
        let slots = (0..num_slots).map(|_| RwLock::new(vec![0; slot_bytes])).collect();
        Arc::new(Self { slots, slot_bytes })
    }

    fn fill(&self, slot: u32, bytes: &[u8]) {
        self.slots[slot as usize].write().unwrap_or_else(PoisonError::into_inner).copy_from_slice(bytes);
    }

    fn bytes(&self, slot: u32) -> Vec<u8> {
        self.slots[slot as usize].read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn slot(&self, slot: SlotId) -> Result<&RwLock<Vec<u8>>, SlotAccessError> {
        let num_slots = self.num_slots();
        self.slots.get(slot.0 as usize).ok_or(SlotAccessError::OutOfRange { slot, num_slots })
    }
}

impl HostMemory for Memory {
    fn num_slots(&self) -> u32 {
        u32::try_from(self.slots.len()).unwrap()
    }

    fn slot_bytes(&self) -> usize {
        self.slot_bytes
    }

    fn with_read(&self, slot: SlotId, read: &mut dyn FnMut(&[u8])) -> Result<(), SlotAccessError> {
        match self.slot(slot)?.try_read() {
            Ok(bytes) => read(&bytes),
            Err(std::sync::TryLockError::Poisoned(bytes)) => read(&bytes.into_inner()),
            Err(std::sync::TryLockError::WouldBlock) => return Err(SlotAccessError::Busy { slot }),
        }
        Ok(())
    }

    fn with_write(&self, slot: SlotId, write: &mut dyn FnMut(&mut [u8])) -> Result<(), SlotAccessError> {
        match self.slot(slot)?.try_write() {
            Ok(mut bytes) => write(&mut bytes),
            Err(std::sync::TryLockError::Poisoned(bytes)) => write(&mut bytes.into_inner()),
            Err(std::sync::TryLockError::WouldBlock) => return Err(SlotAccessError::Busy { slot }),
        }
        Ok(())
    }
}

/// Memory that panics when slot 3 is touched.
pub(crate) struct Trap(pub(crate) Arc<dyn HostMemory>);

impl HostMemory for Trap {
    fn num_slots(&self) -> u32 {
        self.0.num_slots()
    }

    fn slot_bytes(&self) -> usize {
        self.0.slot_bytes()
    }

    fn with_read(&self, slot: SlotId, read: &mut dyn FnMut(&[u8])) -> Result<(), SlotAccessError> {
        assert_ne!(slot, SlotId(3), "this panic belongs to the test");
        self.0.with_read(slot, read)
    }

    fn with_write(&self, slot: SlotId, write: &mut dyn FnMut(&mut [u8])) -> Result<(), SlotAccessError> {
        assert_ne!(slot, SlotId(3), "this panic belongs to the test");
        self.0.with_write(slot, write)
    }
}

/// What happens to the next transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Trouble {
    None,
    /// The system reports this error.
    Error(io::ErrorKind),
    /// An error of the disk itself.
    Eio,
    /// Few bytes a call, with interruptions in between.
    Short,
    /// The file is over.
    Eof,
    /// The system says that it has moved more than it was asked for.
    Over,
    /// The disk says that it has written, and has not.
    Lost,
    /// The disk says that it has written all, and has written half.
    Torn,
    Panic,
}

/// A disk in memory, with at most one trouble at a time, until it is replaced.
struct Disk {
    bytes: Mutex<Vec<u8>>,
    trouble: Mutex<(Trouble, u32)>,
}

impl Disk {
    fn set(&self, trouble: Trouble) {
        *self.trouble.lock().unwrap() = (trouble, 0);
    }

    fn flip_bit(&self, at: u64) {
        self.bytes.lock().unwrap()[usize::try_from(at).unwrap()] ^= 1;
    }

    /// How many of `wanted` bytes are to be moved.
    fn decide(&self, wanted: usize) -> io::Result<usize> {
        let (trouble, calls) = {
            let mut trouble = self.trouble.lock().unwrap();
            trouble.1 += 1;
            *trouble
        };
        match trouble {
            Trouble::None | Trouble::Lost | Trouble::Torn => Ok(wanted),
            Trouble::Error(kind) => Err(kind.into()),
            Trouble::Eio => Err(io::Error::from_raw_os_error(5)),
            Trouble::Short if calls % 3 == 0 => Err(io::ErrorKind::Interrupted.into()),
            Trouble::Short => Ok(wanted.min(7)),
            Trouble::Eof => Ok(0),
            Trouble::Over => Ok(2 * wanted),
            Trouble::Panic => panic!("this panic belongs to the test"),
        }
    }
}

impl ChunkFile for Disk {
    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<usize> {
        let count = self.decide(bytes.len())?;
        let moved = count.min(bytes.len());
        let at = usize::try_from(offset).unwrap();
        bytes[..moved].copy_from_slice(&self.bytes.lock().unwrap()[at..at + moved]);
        Ok(count)
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<usize> {
        let count = self.decide(bytes.len())?;
        let moved = match self.trouble.lock().unwrap().0 {
            Trouble::Lost => 0,
            Trouble::Torn => count / 2,
            _ => count.min(bytes.len()),
        };
        let at = usize::try_from(offset).unwrap();
        self.bytes.lock().unwrap()[at..at + moved].copy_from_slice(&bytes[..moved]);
        Ok(count)
    }
}

/// A store without threads on a disk in memory.
struct Rig {
    store: NvmeStore,
    memory: Arc<Memory>,
    disk: Arc<Disk>,
    worker: Worker,
    hand: ByHand,
    clock: ManualClock,
    next_job: u64,
}

impl Rig {
    /// A store of `capacity` chunks over 64 slots of host memory.
    fn new(capacity: u32) -> Self {
        Self::with_options(NvmeOptions {
            record_events: true,
            ..NvmeOptions::new("unused", capacity, CHUNK_BYTES as u64)
        })
    }

    fn with_options(options: NvmeOptions) -> Self {
        Self::with_journal(options, Recovered::default(), |_| Box::new(NoJournal))
    }

    /// As [`with_options`](Self::with_options), with what was recovered and with the journal that `journal` makes of the
    /// way to the store.
    fn with_journal(
        options: NvmeOptions,
        recovered: Recovered,
        journal: impl FnOnce(Sender<Event>) -> Box<dyn Journal>,
    ) -> Self {
        let memory = Memory::new(64, CHUNK_BYTES);
        let geometry = options.geometry(Some(&*memory)).unwrap();
        let disk = Arc::new(Disk {
            bytes: Mutex::new(vec![0; usize::try_from(geometry.file_bytes(0)).unwrap()]),
            trouble: Mutex::new((Trouble::None, 0)),
        });
        let worker = Worker {
            files: Arc::new([disk.clone() as _]),
            memory: memory.clone(),
            geometry,
            checksum: options.checksum,
        };
        let clock = ManualClock::default();
        let (sender, events) = crossbeam_channel::unbounded();
        let journal = journal(sender.clone());
        let (pool, hand) = Pool::by_hand(sender);
        let info = EngineInfo {
            kind: EngineKind::Threads,
            fallback: None,
            registered_buffers: false,
            direct_io: false,
        };
        let parts = Parts {
            worker: worker.clone(),
            engine: Box::new(pool),
            info,
            journal,
            events,
            clock: Box::new(clock.clone()),
            recovered,
            epoch: 1,
            written_before: 1 << 30,
            copied_bytes: Arc::default(),
            copy_on_write: false,
            files: Vec::new(),
            paths: vec![PathBuf::new()],
        };
        let store = NvmeStore::assemble(options, parts).unwrap();
        Self { store, memory, disk, worker, hand, clock, next_job: 0 }
    }

    fn announce(&mut self, req: u64) {
        self.store.on_new_request(&RequestContext::new(RequestId(req)));
    }

    /// Submits a job of request `req` for the chunks `ns`, in the host slots of the same numbers, at positions 16,
    /// 32, .. in the request.
    #[track_caller]
    fn try_submit(&mut self, req: u64, direction: TierDirection, ns: &[u64]) -> Result<JobId, JobRejected> {
        self.next_job += 1;
        let id = JobId(self.next_job);
        let chunks = ns.iter().map(|&n| TierChunk {
            key: key(n),
            slot: SlotId(u32::try_from(n % 64).unwrap()),
            end_token: Some(u32::try_from(n).unwrap() * 16),
        });
        let job = TierJob { id, req: RequestId(req), direction, chunks: chunks.collect() };
        let result = self.store.submit(job);
        self.store.assert_consistent();
        result.map(|()| id)
    }

    #[track_caller]
    fn write(&mut self, req: u64, ns: &[u64]) -> JobId {
        for &n in ns {
            self.memory.fill(u32::try_from(n % 64).unwrap(), &content(n, 0, CHUNK_BYTES));
        }
        self.try_submit(req, TierDirection::Write, ns).unwrap()
    }

    #[track_caller]
    fn read(&mut self, req: u64, ns: &[u64]) -> JobId {
        for &n in ns {
            self.memory.fill(u32::try_from(n % 64).unwrap(), &[0xee; CHUNK_BYTES]);
        }
        self.try_submit(req, TierDirection::Read, ns).unwrap()
    }

    /// The next op in the queue, taken out of it.
    fn next_op(&mut self) -> Option<Op> {
        self.hand.queue.try_recv().ok()
    }

    /// Runs one op with `trouble`.
    fn run(&mut self, op: Op, trouble: Trouble) {
        self.disk.set(trouble);
        let done = self.worker.run(op);
        self.disk.set(Trouble::None);
        self.hand.events.send(Event::Moved(done)).unwrap();
    }

    /// Runs everything that is queued; the ops of chunk `n` with the trouble that `troubles` gives.
    fn run_all(&mut self, troubles: &[(u64, Trouble)]) {
        while let Some(op) = self.next_op() {
            let trouble = troubles.iter().find(|(n, _)| key(*n) == op.tenant.key);
            self.run(op, trouble.map_or(Trouble::None, |&(_, trouble)| trouble));
            if trouble.is_some() {
                // A write that has failed is queued anew once the store knows.
                let _ = self.store.drain(Duration::ZERO);
            }
        }
    }

    /// What has become of jobs, but not how much of each was copied.
    #[track_caller]
    fn poll(&mut self) -> Vec<TierCompletion> {
        let done = self.poll_all().into_iter();
        done.map(|completion| TierCompletion { copied: None, ..completion }).collect()
    }

    #[track_caller]
    fn poll_all(&mut self) -> Vec<TierCompletion> {
        let mut done = Vec::new();
        self.store.poll(&mut done);
        self.store.assert_consistent();
        done
    }

    /// Writes chunks and sees to it that they arrive.
    #[track_caller]
    fn put(&mut self, req: u64, ns: &[u64]) {
        let job = self.write(req, ns);
        self.run_all(&[]);
        assert_eq!(self.poll(), [TierCompletion::done(job)]);
    }

    /// Reads chunks; they must come with the right bytes, but for those in `failed`.
    #[track_caller]
    fn get(&mut self, req: u64, ns: &[u64], failed: &[u64]) {
        let job = self.read(req, ns);
        self.run_all(&[]);
        assert_eq!(self.poll(), [TierCompletion::except(job, keys(failed.iter().copied()))]);
        for n in ns.iter().filter(|n| !failed.contains(n)) {
            assert_eq!(
                self.memory.bytes(u32::try_from(n % 64).unwrap()),
                content(*n, 0, CHUNK_BYTES),
                "chunk {n}"
            );
        }
    }

    #[track_caller]
    fn check_resident(&mut self, among: impl IntoIterator<Item = u64>, resident: &[u64]) {
        let found: Vec<u64> = among
            .into_iter()
            .filter(|&n| self.store.lookup(RequestId(0), &key(n)) == TierLookup::Hit)
            .collect();
        assert_eq!(found, resident);
    }

    fn events(&mut self) -> Vec<(EventKind, Vec<OffloadKey>)> {
        let mut events: Vec<OffloadEvent> = Vec::new();
        self.store.take_events(&mut events);
        events.into_iter().map(|event| (event.kind, event.keys)).collect()
    }
}
