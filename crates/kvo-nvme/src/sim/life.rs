//! How a store begins and ends: opened from what is on the disk, closed, killed, or cut off from power; and what must
//! be there again.

use std::{
    io,
    ops::{Deref, DerefMut},
    sync::Arc,
    time::Duration,
};

use hashbrown::HashMap;
use kvo_core::{Clock, HostMemory, ManualClock, OffloadKey};

use super::{
    Sim,
    disk::{Disk, Shared, SimFile, SimIndex, lock, share},
    engine::{Plant, SimEngine, Transfers, number},
    faults::Kind,
    image::Image,
    memory::{SimMemory, content},
    records::{Records, SimJournal},
};
use crate::{
    EngineInfo, EngineKind, NvmeOptions, NvmeStore,
    file::ChunkFile,
    files::{Superblocks, as_if_lost, begin_epoch},
    format::{
        BLOCK_BYTES, RECORD_BYTES, RECORDS_START, Record, RecordState, StoreId, StoreState, Superblock,
        newest, number_of, order_start,
    },
    journal::Recovered,
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
    for (block, superblock) in [(0, superblock.next(StoreState::Open)), (1, superblock)] {
        disk.index.write((block * BLOCK_BYTES) as u64, &superblock.encode(), |_| true);
    }
    disk.index.sync();
}

/// The superblocks, as the code that ships understands them.
fn superblocks(disk: &Disk) -> Superblocks {
    let blocks = [0, 1].map(|block| disk.superblock(block));
    let is_other_damaged = blocks.iter().any(Result::is_err);
    let (newest, block) = newest(blocks).expect("a superblock is whole at any time");
    let newest = if is_other_damaged { as_if_lost(&newest) } else { newest };
    Superblocks { newest, block, is_other_damaged }
}

fn read_index(disk: &Disk) -> Recovered {
    let superblock = superblocks(disk).newest;
    let records = disk.index.bytes(RECORDS_START, superblock.num_slots as usize * RECORD_BYTES);
    let order = disk.index.bytes(order_start(superblock.num_slots), superblock.order_slots as usize * 4);
    recover(&superblock, records, (superblock.state == StoreState::Clean).then_some(order))
}

/// Begins the next epoch.
///
/// # Errors
/// If the process ends amid it.
pub(super) fn begin(disk: &Shared<Disk>) -> io::Result<(Superblock, usize)> {
    let superblocks = superblocks(&lock(disk));
    lock(disk).is_opening = true;
    let begun = begin_epoch(&SimIndex { disk: Arc::clone(disk) }, &superblocks);
    lock(disk).is_opening = false;
    begun
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
    let begun = begin(disk).expect("nothing goes wrong with superblocks but the end of a process");
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
        let is_closed = end == End::Closed;
        let bit = lock(&self.disk).rng.next();
        if lock(&self.disk).strikes(Kind::Decay) {
            lock(&self.disk).decay_superblock(true, bit);
        }
        let (end, is_begun) = self.begin_in_vain(end);
        // Of what was written down, all must be there; and everything was, if that can be known.
        let is_owed = is_final && (is_closed || self.options.durable);
        let expected = self.recorded(&resident, is_owed);
        self.check_recovery(&expected, is_closed && !is_begun);
        let was_durable = std::mem::replace(&mut self.options.durable, durable);
        self.open_again();
        let are_there = tenants(&self.resident());
        for (key, generation) in tenants(&expected) {
            assert_eq!(are_there.get(&key), Some(&generation), "chunk {} is gone", number(&key));
        }
        if was_durable || is_closed || end != End::PowerLost {
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
        disk.forget_dropped();
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
            let mut disk = lock(&self.disk);
            if disk.strikes(Kind::CutOff) {
                let calls = disk.rng.below(12);
                disk.light_fuse(calls);
            }
            drop(disk);
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

    /// Openings that are killed at once, or lose their power; says what has happened all in all, and whether an epoch may
    /// have begun.
    fn begin_in_vain(&mut self, mut end: End) -> (End, bool) {
        let mut is_begun = false;
        while lock(&self.disk).strikes(Kind::CutOff) {
            is_begun = true;
            let fuse = lock(&self.disk).rng.below(4);
            lock(&self.disk).light_fuse(fuse);
            let _ = begin(&self.disk);
            lock(&self.disk).put_out_fuse();
            if lock(&self.disk).rng.one_in(2) {
                lock(&self.disk).lose_power();
                end = End::PowerLost;
            }
        }
        (end, is_begun)
    }

    /// Those of the chunks whose records are on the disk; if it is `owed`, all but those whose record the disk has lost
    /// without a word, or for which it has brought another back.
    fn recorded(&self, chunks: &[(u32, Tenant)], is_owed: bool) -> Vec<(u32, Tenant)> {
        let disk = lock(&self.disk);
        let mut recorded = chunks.to_vec();
        recorded.retain(|(slot, tenant)| {
            let is_there = is_recorded(&disk, *slot, tenant);
            let may_lack = !is_owed || disk.tainted_records.contains(slot);
            assert!(is_there || may_lack, "the record of {tenant:?} in slot {slot} is gone");
            let is_newer =
                |(_, other): &(u32, Record)| other.key == tenant.key && other.generation > tenant.generation;
            let newer = records_on(&disk).find(is_newer);
            is_there && !newer.is_some_and(|(other, _)| disk.tainted_records.contains(&other))
        });
        recorded
    }

    /// What is recovered is what the records say, the newest of each key, however often one looks.
    fn check_recovery(&mut self, expected: &[(u32, Tenant)], is_closed: bool) {
        let disk = lock(&self.disk);
        let mut newest: HashMap<OffloadKey, (u64, u32)> = HashMap::new();
        for (slot, record) in records_on(&disk) {
            let known = newest.entry(record.key).or_insert((record.generation, slot));
            *known = (*known).max((record.generation, slot));
        }
        let recovered = read_index(&disk);
        let is_clean = recovered.report.clean || disk.lost_superblock;
        assert!(is_clean || !is_closed, "closed, and not clean");
        assert_eq!(recovered.chunks.len(), newest.len());
        for entry in &recovered.chunks {
            let RecordState::Chunk(record) = entry.state else { panic!("{entry:?} is no chunk") };
            assert_eq!(newest.get(&record.key), Some(&(record.generation, entry.slot)), "{entry:?}");
        }
        for (slot, tenant) in expected {
            assert_eq!(newest.get(&tenant.key), Some(&(tenant.generation, *slot)), "{tenant:?}");
        }
        let again = read_index(&disk);
        assert_eq!((again.chunks, again.quarantined), (recovered.chunks, recovered.quarantined));
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
