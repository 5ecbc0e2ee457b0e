//! The simulated disk for systems on top of a store: with their host memory and their clock.

use std::{fmt, sync::Arc};

use hashbrown::HashMap;
use kvo_core::{HostMemory, ManualClock, OffloadKey, SecondaryTier, SlotAccessError, SlotId, TierDirection};

use super::{
    disk::{Disk, Shared, lock, share},
    faults::{Faults, Kind},
    life::{self, End, Left, Life, View},
    records::Records,
    rng::Rng,
    transfers::{Hold, Host, Plant, Transfers},
};
use crate::{NvmeOptions, NvmeStore, OpenError, engine::Op};

/// Host memory whose slots can be held for longer than a call, as a kernel holds them while it copies.
pub trait HoldableMemory: HostMemory {
    /// Keeps others from writing a slot, or for a [read](TierDirection::Read) of a tier, which writes it, from touching
    /// it, until what comes back is dropped.
    ///
    /// # Errors
    /// [`SlotAccessError`] if somebody else has it.
    fn hold(&self, slot: SlotId, direction: TierDirection) -> Result<Box<dyn Send>, SlotAccessError>;
}

/// A disk with a store on it, which outlives every process that opens it.
pub struct SimDisk {
    disk: Shared<Disk>,
    options: NvmeOptions,
    plant: Option<Plant>,
    contents: Shared<Contents>,
    /// What the last store has left.
    left: Option<(Left, Shared<Transfers>)>,
}

/// What is below an open store: its transfers and its journal.
pub struct Underneath {
    transfers: Shared<Transfers>,
    records: Shared<Records>,
    disk: Shared<Disk>,
}

/// Every content that was ever written, by its number.
type Contents = Vec<Box<[u8]>>;

impl SimDisk {
    /// A disk with an empty store on it, for the options' number of devices. The options' directories are not looked at.
    ///
    /// # Errors
    /// [`OpenError`] names an option that cannot be.
    pub fn new(
        options: NvmeOptions,
        faults: Faults,
        seed: u64,
        plant: Option<Plant>,
    ) -> Result<Self, OpenError> {
        let geometry = options.geometry(None)?;
        let mut disk = Disk::new(geometry, faults, Rng::new(seed));
        life::format(&mut disk, &options);
        Ok(Self { disk: share(disk), options, plant, contents: Shared::default(), left: None })
    }

    /// Opens the store, and checks that all is there that must be.
    ///
    /// # Panics
    /// If not.
    pub fn open(
        &mut self,
        memory: Arc<dyn HoldableMemory>,
        clock: &ManualClock,
        durable: bool,
    ) -> (NvmeStore, Underneath) {
        self.options.durable = durable;
        let held = HashMap::new();
        let host = Outside { memory: Arc::clone(&memory), held, contents: Arc::clone(&self.contents) };
        let host = (memory as Arc<dyn HostMemory>, Box::new(host) as Box<dyn Host>);
        let Life { store, transfers, records } =
            life::open(&self.options, &self.disk, host, clock, self.plant);
        let underneath = Underneath { transfers, records, disk: Arc::clone(&self.disk) };
        if let Some((left, before)) = self.left.take() {
            lock(&underneath.transfers).inherit(&mut lock(&before));
            left.check(underneath.view(&store));
        }
        (store, underneath)
    }

    /// Ends a store in some way, and checks what it has left. A close may be cut short: says how it has ended after all.
    ///
    /// # Panics
    /// If something is not on the disk that must be.
    pub fn end(&mut self, store: NvmeStore, underneath: Underneath, end: End) -> End {
        let Underneath { transfers, records, .. } = underneath;
        let life = Life { store, transfers: Arc::clone(&transfers), records };
        let left = life::end(&self.disk, life, (end, false), self.options.durable);
        let end = left.end;
        self.left = Some((left, transfers));
        end
    }

    /// From now on nothing goes wrong any more.
    pub fn stop_faults(&mut self) {
        lock(&self.disk).faults.stop();
    }

    /// A bit of a chunk, of a record or of the newer superblock changes where it lies.
    pub fn decay(&mut self, of: Kind, nth: u64, bit: u64) {
        let mut disk = lock(&self.disk);
        let slot = u32::try_from(nth % u64::from(disk.geometry.capacity)).expect("a slot");
        match of {
            Kind::Record => disk.decay_record(slot, bit),
            Kind::CutOff => disk.decay_superblock(false, bit),
            _ => disk.decay(slot, bit),
        }
    }

    /// How often each kind of trouble has happened.
    pub fn struck(&self) -> impl Iterator<Item = (Kind, u64)> + use<> {
        Kind::ALL.into_iter().zip(lock(&self.disk).faults.struck())
    }
}

impl Underneath {
    /// Begins one of the transfers that have not begun. Says whether there was any.
    pub fn begin(&self, nth: usize) -> bool {
        self.work(nth, false)
    }

    /// Ends one of the transfers that have begun and may end. Says whether there was any.
    pub fn end(&self, nth: usize) -> bool {
        self.work(nth, true)
    }

    fn work(&self, nth: usize, running: bool) -> bool {
        let mut transfers = lock(&self.transfers);
        transfers.step += 1;
        let count = transfers.ready(running).count();
        if count == 0 {
            return false;
        }
        let place = transfers.ready(running).nth(nth % count).expect("below the count");
        if running {
            transfers.end(place);
        } else {
            transfers.begin(place);
        }
        true
    }

    /// The journal writes some of the records that were put first.
    pub fn record(&self) {
        lock(&self.records).advance();
    }

    /// Ends all that can end.
    pub fn finish(&self) {
        lock(&self.transfers).finish();
        lock(&self.records).finish();
    }

    /// What would never end, ends.
    pub fn unstick(&self) {
        lock(&self.transfers).unstick();
    }

    /// Transfers that have not ended.
    pub fn num_open(&self) -> usize {
        lock(&self.transfers).pending.len()
    }

    /// What is in the store.
    pub fn keys(&self, store: &NvmeStore) -> Vec<OffloadKey> {
        self.view(store).resident().into_iter().map(|(_, tenant)| tenant.key).collect()
    }

    /// The store's books agree with each other and with its transfers.
    ///
    /// # Panics
    /// If not.
    pub fn check(&self, store: &NvmeStore) {
        store.assert_consistent();
        self.view(store).check_slots();
    }

    /// What is on the disk is what the store says it has, to the byte, but for what the disk has done without a word. At a
    /// time when nothing is under way.
    ///
    /// # Panics
    /// If not.
    pub fn check_settled(&self, store: &NvmeStore) {
        let view = self.view(store);
        view.check_records();
        let resident = view.resident();
        view.check_payloads(&resident);
        let counts = store.counts();
        let used = u32::try_from(resident.len()).expect("no more than slots");
        assert_eq!((counts.evictable, counts.pinned, counts.writing, counts.retiring), (used, 0, 0, 0));
    }

    /// Ends all that is under way, and takes note of it in a store of whose jobs nobody wants to know any more.
    pub fn settle(&self, store: &mut NvmeStore) {
        loop {
            self.finish();
            store.poll(&mut Vec::new());
            store.take_released(&mut Vec::new());
            if lock(&self.transfers).is_idle() && lock(&self.records).is_idle() {
                break;
            }
        }
    }

    fn view<'a>(&'a self, store: &'a NvmeStore) -> View<'a> {
        let Self { transfers, records, disk } = self;
        View { store, transfers, records, disk }
    }
}

/// The memory of a system above.
struct Outside {
    memory: Arc<dyn HoldableMemory>,
    held: HashMap<SlotId, Vec<Box<dyn Send>>>,
    contents: Shared<Contents>,
}

impl Host for Outside {
    fn hold(&mut self, slot: SlotId, how: Hold) {
        let direction = match how {
            Hold::Reads => TierDirection::Write,
            Hold::Writes => TierDirection::Read,
        };
        let held = self.memory.hold(slot, direction);
        let held = held.unwrap_or_else(|error| panic!("a transfer of the store begins: {error}"));
        self.held.entry(slot).or_default().push(held);
    }

    fn let_go(&mut self, slot: SlotId, _: Hold) {
        if let Some(held) = self.held.get_mut(&slot) {
            held.pop();
        }
    }

    fn bytes(&self, slot: SlotId) -> Vec<u8> {
        let mut found = Vec::new();
        let read = self.memory.with_read(slot, &mut |bytes| found = bytes.to_vec());
        read.unwrap_or_else(|error| panic!("a transfer of the store has this slot: {error}"));
        found
    }

    fn version(&mut self, op: &Op) -> u64 {
        let bytes = self.bytes(op.host).into_boxed_slice();
        let mut contents = lock(&self.contents);
        contents.push(bytes);
        contents.len() as u64 - 1
    }

    fn check_written(&self, op: &Op, version: u64) {
        let is_content = self.is_content(&op.tenant.key, version, &self.bytes(op.host));
        assert!(is_content, "slot {} has changed while {op:?} wrote it", op.host);
    }

    fn check_read(&mut self, _: &Op, _: u64) {}

    fn is_content(&self, _: &OffloadKey, version: u64, bytes: &[u8]) -> bool {
        let version = usize::try_from(version).expect("a number of ours");
        *lock(&self.contents)[version] == *bytes
    }
}

impl fmt::Debug for SimDisk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SimDisk")
            .field("options", &self.options)
            .field("plant", &self.plant)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for Underneath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Underneath").field("transfers", &self.transfers).finish_non_exhaustive()
    }
}
