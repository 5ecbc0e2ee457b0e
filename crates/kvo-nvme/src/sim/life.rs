//! How a store begins and ends: opened from what is on the disk, closed, killed, or cut off from power; and what must
//! be there again.

use std::{
    ops::{Deref, DerefMut},
    sync::Arc,
    time::Duration,
};

use hashbrown::HashMap;
use kvo_core::{Clock, HostMemory, ManualClock, OffloadKey};

use super::{
    Sim,
    disk::{Disk, Shared, SimFile, lock, share},
    engine::{Plant, SimEngine, Transfers, number},
    image::Image,
    memory::{SimMemory, content},
    records::{Records, SimJournal},
};
use crate::{
    EngineInfo, EngineKind, NvmeOptions, NvmeStore,
    file::ChunkFile,
    format::{
        BLOCK_BYTES, RECORD_BYTES, RECORDS_START, Record, RecordState, StoreId, StoreState, Superblock,
        newest, number_of, order_start,
    },
    journal::{Entry, Recovered},
    options::Geometry,
    recovery::recover,
    slots::{SlotState, Tenant},
    store::Parts,
    worker::Worker,
};

const ID: StoreId = StoreId(*b"a simulated disk");

/// How a store ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// It is closed.
    Closed,
    /// Its process is killed: whatever it had told the system is there.
    Killed,
    /// The machine loses its power: of what was not synced, each sector is there or not.
    PowerLost,
}

/// What a disk, a memory and a clock are put together to.
pub(super) struct Life {
    pub(super) store: Live,
    pub(super) transfers: Shared<Transfers>,
    pub(super) records: Shared<Records>,
}

/// Makes an empty store on the disk.
pub(super) fn format(disk: &mut Disk, options: &NvmeOptions) {
    let Geometry { capacity, num_devices, stride_bytes, .. } = disk.geometry;
    let superblock = Superblock {
        id: ID,
        sequence: 1,
        epoch: 0,
        chunk_bytes: options.chunk_bytes,
        stride_bytes,
        num_slots: capacity,
        asked_slots: capacity,
        num_devices,
        checksum_kind: number_of(options.checksum),
        state: StoreState::Open,
        fingerprint: options.fingerprint,
        created_s: 0,
        written_bytes: 0,
        order_slots: 0,
        order_sum: 0,
    };
    disk.index.write(0, &superblock.encode(), |_| true);
    disk.index.sync();
}

/// The superblock that counts, and which of the two it is.
fn superblock(disk: &Disk) -> (Superblock, usize) {
    let block = |nth: usize| {
        let bytes = disk.index.bytes((nth * BLOCK_BYTES) as u64, BLOCK_BYTES);
        Superblock::decode(bytes.try_into().expect("a block"))
    };
    newest([block(0), block(1)]).expect("a superblock is whole at any time")
}

fn read_index(disk: &Disk) -> Recovered {
    let (superblock, _) = superblock(disk);
    let records = disk.index.bytes(RECORDS_START, superblock.num_slots as usize * RECORD_BYTES);
    let order = disk.index.bytes(order_start(superblock.num_slots), superblock.order_slots as usize * 4);
    recover(&superblock, records, (superblock.state == StoreState::Clean).then_some(order))
}

/// Begins an epoch: the first thing that is written when a store is opened.
fn begin_epoch(disk: &mut Disk) -> (Superblock, usize) {
    let (old, block) = superblock(disk);
    let next = Superblock { epoch: old.epoch + 1, ..old.next(StoreState::Open) };
    disk.index.write(((1 - block) * BLOCK_BYTES) as u64, &next.encode(), |_| true);
    (next, 1 - block)
}

/// Opens the store that is on the disk.
pub(super) fn open(
    options: &NvmeOptions,
    disk: &Shared<Disk>,
    memory: &Arc<SimMemory>,
    clock: &ManualClock,
    plant: Option<Plant>,
) -> Life {
    let mut recovered = read_index(&lock(disk));
    let begun = begin_epoch(&mut lock(disk));
    lock(disk).index.sync();
    if options.durable && plant != Some(Plant::OpenedUnsynced) {
        // What a killed process had written is called safe from now on.
        lock(disk).data.iter_mut().for_each(Image::sync);
    }
    if plant == Some(Plant::OlderRecovered) {
        prefer_older(&lock(disk), &mut recovered);
    }
    let geometry = lock(disk).geometry;
    let file = |device| Arc::new(SimFile { disk: Arc::clone(disk), device }) as Arc<dyn ChunkFile>;
    let worker = Worker {
        files: (0..geometry.num_devices).map(file).collect(),
        memory: Arc::clone(memory) as Arc<dyn HostMemory>,
        geometry,
        checksum: options.checksum,
    };
    let (sender, events) = crossbeam_channel::unbounded();
    lock(disk).skips_syncs = plant == Some(Plant::SyncsSkipped);
    let records = share(Records::new(Arc::clone(disk), begun.clone(), sender.clone(), options.durable));
    let transfers =
        share(Transfers::new(Arc::clone(disk), Arc::clone(memory), worker.clone(), sender, plant));
    let info =
        EngineInfo { kind: EngineKind::Threads, fallback: None, registered_buffers: false, direct_io: true };
    let parts = Parts {
        worker,
        engine: Box::new(SimEngine(Arc::clone(&transfers))),
        info,
        journal: Box::new(SimJournal(Arc::clone(&records))),
        events,
        clock: Box::new(clock.clone()) as Box<dyn Clock>,
        recovered,
        epoch: begun.0.epoch,
        written_before: begun.0.written_bytes,
        copied_bytes: Arc::default(),
        copy_on_write: false,
        files: Vec::new(),
        paths: Vec::new(),
    };
    let store = NvmeStore::assemble(options.clone(), parts).expect("there is memory for a few slots");
    Life { store: Live(Some(store)), transfers, records }
}

/// Every chunk's record on the disk, slot by slot.
fn records_on(disk: &Disk) -> impl Iterator<Item = (u32, Record)> {
    (0..disk.geometry.capacity).filter_map(|slot| match record_on(disk, slot) {
        Some(RecordState::Chunk(record)) => Some((slot, record)),
        _ => None,
    })
}

/// A defect: of two records of a key, the older one counts.
fn prefer_older(disk: &Disk, recovered: &mut Recovered) {
    for entry in &mut recovered.chunks {
        let RecordState::Chunk(record) = entry.state else { continue };
        let same = records_on(disk).filter(|(_, other)| other.key == record.key);
        let (slot, oldest) = same.min_by_key(|(_, other)| other.generation).expect("it is there");
        (entry.slot, entry.state) = (slot, RecordState::Chunk(oldest));
    }
}

/// The store, until it is closed.
pub(super) struct Live(Option<NvmeStore>);

impl Deref for Live {
    type Target = NvmeStore;

    fn deref(&self) -> &NvmeStore {
        self.0.as_ref().expect("a store that is closed is opened again at once")
    }
}

impl DerefMut for Live {
    fn deref_mut(&mut self) -> &mut NvmeStore {
        self.0.as_mut().expect("a store that is closed is opened again at once")
    }
}

impl Sim {
    /// Ends the store in some way, and opens it again.
    pub(super) fn begin_anew(&mut self, end: End, durable: bool) {
        let is_quiet = end == End::Closed && lock(&self.disk).rng.one_in(2);
        if is_quiet {
            self.finish();
        }
        let resident = self.resident();
        self.check_records();
        self.check_payloads(&resident);
        // While a store is closed, chunks are still dropped, and others written.
        let is_final = is_quiet || end != End::Closed;
        let end = self.end(end);
        // Of what was written down, all must be there; and everything was, if that can be known.
        let is_owed = is_final && (end == End::Closed || self.options.durable);
        let expected = self.recorded(&resident, is_owed);
        self.check_recovery(&expected, end == End::Closed);
        let was_durable = std::mem::replace(&mut self.options.durable, durable);
        self.open_again();
        let are_there = tenants(&self.resident());
        for (key, generation) in tenants(&expected) {
            assert_eq!(are_there.get(&key), Some(&generation), "chunk {} is gone", number(&key));
        }
        if was_durable || end != End::PowerLost {
            self.check_payloads(&expected);
        }
        self.check_quarantined();
        self.pardon();
        self.lives.ends[end as usize] += 1;
        self.lives.chunks_recovered += are_there.len() as u64;
    }

    /// What is readable, and where.
    fn resident(&self) -> Vec<(u32, Tenant)> {
        let valid = self.store.slot_states().filter_map(|(slot, state)| match state {
            SlotState::Valid { tenant, .. } => Some((slot, tenant)),
            _ => None,
        });
        valid.collect()
    }

    /// Each chunk, and each slot that failed, has its record in the index, or with those that are on their way: so a
    /// process that is killed loses at most what is on its way.
    fn check_records(&self) {
        let (disk, records) = (lock(&self.disk), lock(&self.records));
        for (slot, state) in self.store.slot_states() {
            let is_recorded = match state {
                SlotState::Valid { tenant, .. } => is_recorded(&disk, slot, &tenant),
                SlotState::Quarantined => record_on(&disk, slot) == Some(RecordState::Quarantined),
                _ => continue,
            };
            let is_excused = disk.tainted_records.contains(&slot) || records.may_lack(slot);
            assert!(is_recorded || is_excused, "slot {slot}, {state:?}, was never recorded");
        }
    }

    /// Each chunk is there to the byte, unless something untold has happened to it.
    fn check_payloads(&self, chunks: &[(u32, Tenant)]) {
        let (disk, transfers) = (lock(&self.disk), lock(&self.transfers));
        for (slot, tenant) in chunks {
            let is_whole = self.is_whole(&disk, &transfers, *slot, tenant);
            let n = number(&tenant.key);
            assert!(is_whole || disk.tainted.contains(slot), "chunk {n} in slot {slot} has changed");
        }
    }

    /// Slots that failed are used no more.
    fn check_quarantined(&self) {
        let disk = lock(&self.disk);
        for (slot, state) in self.store.slot_states() {
            let has_failed = record_on(&disk, slot) == Some(RecordState::Quarantined);
            assert_eq!(has_failed, state == SlotState::Quarantined, "slot {slot} is {state:?}");
        }
    }

    /// Of chunks that nobody was promised, the bytes may be gone, which the first read finds.
    fn pardon(&self) {
        let resident = self.resident();
        let (mut disk, transfers) = (lock(&self.disk), lock(&self.transfers));
        for (slot, tenant) in resident {
            if !self.is_whole(&disk, &transfers, slot, &tenant) {
                disk.tainted.insert(slot);
            }
        }
    }

    /// Whether the disk has the very bytes of a chunk.
    fn is_whole(&self, disk: &Disk, transfers: &Transfers, slot: u32, tenant: &Tenant) -> bool {
        let version = transfers.versions[&(tenant.key, tenant.generation)];
        *disk.chunk(slot) == content(number(&tenant.key), version, self.memory.chunk_bytes())
    }

    /// Ends the store; says how it ended after all. A close may be cut short.
    fn end(&mut self, mut end: End) -> End {
        if end == End::Closed {
            let store = self.store.0.take().expect("it is open");
            let fuse = lock(&self.disk).rng.below(40);
            lock(&self.disk).light_fuse(fuse);
            let result = store.close(Duration::ZERO);
            lock(&self.disk).put_out_fuse();
            if result.is_ok() {
                return end;
            }
            end = lock(&self.disk).rng.pick(&[End::Killed, End::PowerLost]);
        }
        let (mut transfers, mut records) = (lock(&self.transfers), lock(&self.records));
        transfers.be_killed();
        records.be_killed();
        if end == End::PowerLost {
            lock(&self.disk).lose_power();
        }
        end
    }

    /// Those of the chunks whose records are on the disk; if it is `owed`, all but those whose record the disk has lost
    /// without a word.
    fn recorded(&self, chunks: &[(u32, Tenant)], is_owed: bool) -> Vec<(u32, Tenant)> {
        let disk = lock(&self.disk);
        let mut recorded = chunks.to_vec();
        recorded.retain(|(slot, tenant)| {
            let is_there = is_recorded(&disk, *slot, tenant);
            let may_lack = !is_owed || disk.tainted_records.contains(slot);
            assert!(is_there || may_lack, "the record of {tenant:?} in slot {slot} is gone");
            is_there
        });
        recorded
    }

    /// What is recovered is what the records say, the newest of each key, however often one begins.
    fn check_recovery(&mut self, expected: &[(u32, Tenant)], is_closed: bool) {
        let mut disk = lock(&self.disk);
        let mut newest: HashMap<OffloadKey, (u64, u32)> = HashMap::new();
        for (slot, record) in records_on(&disk) {
            let known = newest.entry(record.key).or_insert((record.generation, slot));
            *known = (*known).max((record.generation, slot));
        }
        let recovered = read_index(&disk);
        let is_clean = recovered.report.clean || disk.lost_more_than_records;
        assert!(is_clean || !is_closed, "closed, and not clean");
        assert_eq!(recovered.chunks.len(), newest.len());
        for entry in &recovered.chunks {
            let RecordState::Chunk(record) = entry.state else { panic!("{entry:?} is no chunk") };
            assert_eq!(newest.get(&record.key), Some(&(record.generation, entry.slot)), "{entry:?}");
        }
        for (slot, tenant) in expected {
            assert_eq!(newest.get(&tenant.key), Some(&(tenant.generation, *slot)), "{tenant:?}");
        }
        // An opening that ends when it has begun its epoch, or half begun it, changes nothing.
        if disk.rng.one_in(2) {
            begin_epoch(&mut disk);
            let mut again = read_index(&disk);
            let mut before = recovered;
            if before.report.clean {
                let slot = |entry: &Entry| entry.slot;
                before.chunks.sort_unstable_by_key(slot);
                again.chunks.sort_unstable_by_key(slot);
            }
            assert_eq!((again.chunks, again.quarantined), (before.chunks, before.quarantined));
        }
    }

    fn open_again(&mut self) {
        self.memory.let_go_of_all();
        let Life { store, transfers, records } =
            open(&self.options, &self.disk, &self.memory, &self.clock, self.plant);
        lock(&transfers).inherit(&mut lock(&self.transfers));
        // The store of before goes only now: it has no way to the disk any more.
        (self.store, self.transfers, self.records) = (store, transfers, records);
        let resident = self.resident();
        self.book.begin_anew(resident.iter().map(|(_, tenant)| number(&tenant.key)));
    }
}

fn record_on(disk: &Disk, slot: u32) -> Option<RecordState> {
    RecordState::decode(disk.record(slot), ID, slot).ok()
}

fn is_recorded(disk: &Disk, slot: u32, tenant: &Tenant) -> bool {
    let is_it = |record: Record| record.key == tenant.key && record.generation == tenant.generation;
    matches!(record_on(disk, slot), Some(RecordState::Chunk(record)) if is_it(record))
}

fn tenants(chunks: &[(u32, Tenant)]) -> HashMap<OffloadKey, u64> {
    chunks.iter().map(|(_, tenant)| (tenant.key, tenant.generation)).collect()
}
