//! How a store begins and ends: opened from what is on the disk, killed, or cut off from power; and what must be there
//! again.

use std::{io, sync::Arc, time::Duration};

use hashbrown::HashMap;
use kvo_core::{Clock, HostMemory, ManualClock, OffloadKey};

use super::{
    disk::{Disk, Shared, SimFile, SimIndex, lock, share},
    faults::Kind,
    image::Image,
    records::{Records, SimJournal},
    transfers::{Hold, Host, Plant, SimEngine, Transfers, direction},
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
pub enum End {
    /// It is closed.
    Closed,
    /// Its process is killed: whatever it had told the system is there.
    Killed,
    /// The machine loses its power: of what was not synced, each sector is there or not.
    PowerLost,
}

/// Makes an empty store on the disk.
pub(crate) fn format(disk: &mut Disk, options: &NvmeOptions) {
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
pub(crate) fn begin(disk: &Shared<Disk>) -> io::Result<(Superblock, usize)> {
    let superblocks = superblocks(&lock(disk));
    lock(disk).is_opening = true;
    let begun = begin_epoch(&SimIndex { disk: Arc::clone(disk) }, &superblocks);
    lock(disk).is_opening = false;
    begun
}

/// A store that is open, and what is below it.
pub(crate) struct Life {
    pub(crate) store: NvmeStore,
    pub(crate) transfers: Shared<Transfers>,
    pub(crate) records: Shared<Records>,
}

/// Opens the store that is on the disk.
pub(crate) fn open(
    options: &NvmeOptions,
    disk: &Shared<Disk>,
    (memory, host): (Arc<dyn HostMemory>, Box<dyn Host>),
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
        memory,
        geometry,
        checksum: options.checksum,
    };
    let (sender, events) = crossbeam_channel::unbounded();
    lock(disk).skips_syncs = plant == Some(Plant::SyncsSkipped);
    let records = share(Records::new(Arc::clone(disk), begun.clone(), sender.clone(), options.durable));
    let transfers = share(Transfers::new(Arc::clone(disk), host, worker.clone(), sender, plant));
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
    Life { store, transfers, records }
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

/// An open store and what is below it, to be looked at.
#[derive(Clone, Copy)]
pub(crate) struct View<'a> {
    pub(crate) store: &'a NvmeStore,
    pub(crate) transfers: &'a Shared<Transfers>,
    pub(crate) records: &'a Shared<Records>,
    pub(crate) disk: &'a Shared<Disk>,
}

impl View<'_> {
    /// What is readable, and where.
    pub(crate) fn resident(&self) -> Vec<(u32, Tenant)> {
        let valid = self.store.slot_states().filter_map(|(slot, state)| match state {
            SlotState::Valid { tenant, .. } => Some((slot, tenant)),
            _ => None,
        });
        valid.collect()
    }

    /// A slot that a transfer uses is pinned or being written, by that transfer's tenant.
    pub(crate) fn check_slots(&self) {
        let states: Vec<SlotState> = self.store.slot_states().map(|(_, state)| state).collect();
        for pending in &lock(self.transfers).pending {
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

    /// Each chunk, and each slot that failed, has its record in the index, or with those that are on their way: so a
    /// process that is killed loses at most what is on its way.
    pub(crate) fn check_records(&self) {
        let (disk, records) = (lock(self.disk), lock(self.records));
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
    pub(crate) fn check_payloads(&self, chunks: &[(u32, Tenant)]) {
        let (disk, transfers) = (lock(self.disk), lock(self.transfers));
        for (slot, tenant) in chunks {
            let is_whole = is_whole(&disk, &transfers, *slot, tenant);
            assert!(is_whole || disk.tainted.contains(slot), "{tenant:?} in slot {slot} has changed");
        }
    }

    /// Slots that failed are used no more.
    pub(crate) fn check_quarantined(&self) {
        let disk = lock(self.disk);
        for (slot, state) in self.store.slot_states() {
            let has_failed = record_on(&disk, slot) == Some(RecordState::Quarantined);
            assert_eq!(has_failed, state == SlotState::Quarantined, "slot {slot} is {state:?}");
        }
    }

    /// Of chunks that nobody was promised, the bytes may be gone, which the first read finds.
    pub(crate) fn pardon(&self) {
        let resident = self.resident();
        let (mut disk, transfers) = (lock(self.disk), lock(self.transfers));
        disk.forget_dropped();
        for (slot, tenant) in resident {
            if !is_whole(&disk, &transfers, slot, &tenant) {
                disk.tainted.insert(slot);
            }
        }
    }
}

/// What a store has left that has ended.
pub(crate) struct Left {
    /// How it has ended after all.
    pub(crate) end: End,
    /// What was written down of what was there.
    expected: Vec<(u32, Tenant)>,
    /// Whether what had called itself written survives this end.
    is_safe: bool,
}

/// Ends a store in some way. A close may be cut short, and openings before the next one in vain. If it is `quiet`, nothing
/// was under way.
pub(crate) fn end(
    disk: &Shared<Disk>,
    Life { store, transfers, records }: Life,
    (end, is_quiet): (End, bool),
    is_durable: bool,
) -> Left {
    let view = View { store: &store, transfers: &transfers, records: &records, disk };
    let resident = view.resident();
    view.check_records();
    view.check_payloads(&resident);
    // While a store is closed, chunks are still dropped, and others written.
    let is_final = is_quiet || end != End::Closed;
    let end = stop(disk, store, (&transfers, &records), end);
    let is_closed = end == End::Closed;
    let bit = lock(disk).rng.next();
    if lock(disk).strikes(Kind::Decay) {
        lock(disk).decay_superblock(true, bit);
    }
    let (end, is_begun) = begin_in_vain(disk, end);
    // Of what was written down, all must be there; and everything was, if that can be known.
    let is_owed = is_final && (is_closed || is_durable);
    let expected = recorded(disk, &resident, is_owed);
    check_recovery(disk, &expected, is_closed && !is_begun);
    Left { end, expected, is_safe: is_durable || is_closed || end != End::PowerLost }
}

impl Left {
    /// What must be there is there, in the store that was opened since. Returns how many chunks it has.
    pub(crate) fn check(&self, view: View<'_>) -> u64 {
        let are_there = tenants(&view.resident());
        for (key, generation) in tenants(&self.expected) {
            assert_eq!(are_there.get(&key), Some(&generation), "chunk {key:?} is gone");
        }
        if self.is_safe {
            view.check_payloads(&self.expected);
        }
        view.check_quarantined();
        view.pardon();
        are_there.len() as u64
    }
}

/// Ends the store; says how it ended after all.
fn stop(
    disk: &Shared<Disk>,
    store: NvmeStore,
    (transfers, records): (&Shared<Transfers>, &Shared<Records>),
    mut end: End,
) -> End {
    let mut store = Some(store);
    if end == End::Closed {
        let mut cut = lock(disk);
        if cut.strikes(Kind::CutOff) {
            let calls = cut.rng.below(12);
            cut.light_fuse(calls);
        }
        drop(cut);
        let result = store.take().expect("it is open").close(Duration::ZERO);
        lock(disk).put_out_fuse();
        if result.is_ok() {
            return end;
        }
        end = lock(disk).rng.pick(&[End::Killed, End::PowerLost]);
    }
    let (mut ending, mut batch) = (lock(transfers), lock(records));
    ending.be_killed();
    batch.be_killed();
    drop((ending, batch));
    if end == End::PowerLost {
        lock(disk).lose_power();
    }
    // It goes only now: it has no way to the disk any more.
    drop(store);
    end
}

/// Openings that are killed at once, or lose their power; says what has happened all in all, and whether an epoch may
/// have begun.
fn begin_in_vain(disk: &Shared<Disk>, mut end: End) -> (End, bool) {
    let mut is_begun = false;
    while lock(disk).strikes(Kind::CutOff) {
        is_begun = true;
        let fuse = lock(disk).rng.below(4);
        lock(disk).light_fuse(fuse);
        let _ = begin(disk);
        lock(disk).put_out_fuse();
        if lock(disk).rng.one_in(2) {
            lock(disk).lose_power();
            end = End::PowerLost;
        }
    }
    (end, is_begun)
}

/// Those of the chunks whose records are on the disk; if it is `owed`, all but those whose record the disk has lost
/// without a word, or for which it has brought another back.
fn recorded(disk: &Shared<Disk>, chunks: &[(u32, Tenant)], is_owed: bool) -> Vec<(u32, Tenant)> {
    let disk = lock(disk);
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
fn check_recovery(disk: &Shared<Disk>, expected: &[(u32, Tenant)], is_closed: bool) {
    let disk = lock(disk);
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

/// Whether the disk has the very bytes of a chunk.
fn is_whole(disk: &Disk, transfers: &Transfers, slot: u32, tenant: &Tenant) -> bool {
    let version = transfers.versions[&(tenant.key, tenant.generation)];
    transfers.host.is_content(&tenant.key, version, disk.chunk(slot))
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
