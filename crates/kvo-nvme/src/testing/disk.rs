//! The devices: images of the files, and what happens to each transfer.

use std::{
    io,
    ops::Range,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use hashbrown::HashSet;
use rustix::io::Errno;

use super::{
    faults::{Call, Faults, Kind, Lie, Plan},
    image::{Image, SECTOR_BYTES},
    rng::Rng,
};
use crate::{
    file::{ChunkFile, StableFile},
    format::{
        BLOCK_BYTES, DATA_START, Damage, RECORD_BYTES, RECORDS_START, Superblock, index_bytes, newest,
        record_start,
    },
    options::Geometry,
};

/// A share of something that one thread uses.
pub(crate) type Shared<T> = Arc<Mutex<T>>;

pub(crate) fn share<T>(value: T) -> Shared<T> {
    Arc::new(Mutex::new(value))
}

/// The lock of something that one thread uses; a check that failed under it is no reason not to look at it.
pub(crate) fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.try_lock().unwrap_or_else(|error| match error {
        std::sync::TryLockError::Poisoned(poisoned) => PoisonError::into_inner(poisoned),
        std::sync::TryLockError::WouldBlock => {
            panic!("the simulation has one thread, and takes each lock once")
        }
    })
}

/// All that is stored.
pub(crate) struct Disk {
    /// One a device.
    pub(crate) data: Vec<Image>,
    pub(crate) index: Image,
    pub(crate) faults: Faults,
    pub(crate) rng: Rng,
    pub(crate) geometry: Geometry,
    /// How the transfer goes that runs now.
    plan: Plan,
    /// Slots whose bytes are not those that the disk said it had written.
    pub(crate) tainted: HashSet<u32>,
    /// Slots whose records are not.
    pub(crate) tainted_records: HashSet<u32>,
    /// Those of them whose records were written again; with the next sync they are good.
    rewritten_records: HashSet<u32>,
    /// Slots, and those of records, some of which a failed sync has dropped. The store was told; the next one will not be.
    dropped: HashSet<u32>,
    dropped_records: HashSet<u32>,
    /// Whether a superblock has decayed.
    pub(crate) lost_superblock: bool,
    /// A store is being opened: its syncs go well.
    pub(crate) is_opening: bool,
    /// A defect: a sync does nothing.
    pub(crate) skips_syncs: bool,
    /// Calls that the journal still makes before its process ends.
    fuse: Option<u64>,
}

impl Disk {
    pub(crate) fn new(geometry: Geometry, faults: Faults, rng: Rng) -> Self {
        let image = |device| Image::new(geometry.file_bytes(device), BLOCK_BYTES as u64..DATA_START);
        Self {
            data: (0..geometry.num_devices).map(image).collect(),
            index: Image::new(index_bytes(geometry.capacity), 0..0),
            faults,
            rng,
            geometry,
            plan: Plan::good(),
            tainted: HashSet::new(),
            tainted_records: HashSet::new(),
            rewritten_records: HashSet::new(),
            dropped: HashSet::new(),
            dropped_records: HashSet::new(),
            lost_superblock: false,
            is_opening: false,
            skips_syncs: false,
            fuse: None,
        }
    }

    /// Says how the next transfer goes.
    pub(crate) fn set_plan(&mut self, plan: Plan) {
        self.plan = plan;
    }

    pub(crate) fn draw_plan(&mut self, is_write: bool) -> Plan {
        Plan::draw(&mut self.faults, &mut self.rng, is_write)
    }

    /// The bytes of a chunk as a read gives them.
    pub(crate) fn chunk(&self, slot: u32) -> &[u8] {
        let place = self.geometry.place(slot);
        self.data[place.device as usize].bytes(place.offset, self.geometry.chunk_bytes)
    }

    /// A bit of a chunk changes where it lies.
    pub(crate) fn decay(&mut self, slot: u32, bit: u64) {
        let place = self.geometry.place(slot);
        let (at, bit) = (bit / 8 % self.geometry.chunk_bytes as u64, u32::try_from(bit % 8).expect("small"));
        self.data[place.device as usize].flip(place.offset + at, bit);
        self.tainted.insert(slot);
    }

    /// A write of `bytes` that never comes to an end: any of its sectors may be there.
    pub(crate) fn write_in_part(&mut self, slot: u32, bytes: &[u8]) {
        let place = self.geometry.place(slot);
        let rng = &mut self.rng;
        let eighths = rng.below(9);
        self.data[place.device as usize].write(place.offset, bytes, |_| rng.below(8) < eighths);
    }

    /// A bit of a record changes where it lies.
    pub(crate) fn decay_record(&mut self, slot: u32, bit: u64) {
        let (at, bit) = (bit / 8 % RECORD_BYTES as u64, u32::try_from(bit % 8).expect("small"));
        self.index.flip(record_start(slot) + at, bit);
        self.taint_records([slot]);
    }

    pub(crate) fn superblock(&self, block: usize) -> Result<Superblock, Damage> {
        let bytes = self.index.bytes((block * BLOCK_BYTES) as u64, BLOCK_BYTES);
        Superblock::decode(bytes.try_into().expect("a block"))
    }

    /// A bit of the newer superblock, or of the older one, changes where it lies, if the other is good.
    pub(crate) fn decay_superblock(&mut self, is_newer: bool, bit: u64) {
        let Ok((_, newest)) = newest([self.superblock(0), self.superblock(1)]) else { return };
        let block = if is_newer { newest } else { 1 - newest };
        if self.superblock(1 - block).is_ok() && self.index.is_synced(((1 - block) * BLOCK_BYTES) as u64) {
            let (at, bit) = (bit / 8 % BLOCK_BYTES as u64, u32::try_from(bit % 8).expect("small"));
            self.index.flip((block * BLOCK_BYTES) as u64 + at, bit);
            self.lost_superblock = true;
        }
    }

    /// The record of a slot, as a read gives it.
    pub(crate) fn record(&self, slot: u32) -> &[u8; RECORD_BYTES] {
        self.index.bytes(record_start(slot), RECORD_BYTES).try_into().expect("of that length")
    }

    /// Lets the process end when the journal has made so many calls.
    pub(crate) fn light_fuse(&mut self, calls: u64) {
        self.fuse = Some(calls);
    }

    pub(crate) fn put_out_fuse(&mut self) {
        self.fuse = None;
    }

    /// Whether the process has ended at this call, or before it.
    fn burn_fuse(&mut self) -> Option<Burnt> {
        let left = self.fuse.as_mut()?;
        let burnt = if *left == 0 { Some(Burnt::Before) } else { None };
        *left = left.saturating_sub(1);
        if *left == 0 && burnt.is_none() { Some(Burnt::Now) } else { burnt }
    }

    fn write_index(&mut self, bytes: &[u8], offset: u64) -> io::Result<usize> {
        if let Some(burnt) = self.burn_fuse() {
            if burnt == Burnt::Now {
                let rng = &mut self.rng;
                self.index.write(offset, bytes, |_| rng.one_in(2));
            }
            return Err(Errno::IO.into());
        }
        if offset < RECORDS_START {
            self.index.write(offset, bytes, |_| true);
            return Ok(bytes.len());
        }
        let slots = records_in(offset, bytes.len(), self.geometry.capacity);
        if self.strikes(Kind::Record) {
            let rng = &mut self.rng;
            self.index.write(offset, bytes, |_| rng.one_in(2));
            return Err(self.rng.pick(&[Errno::IO, Errno::NOSPC]).into());
        }
        if self.strikes(Kind::Interrupted) {
            return Err(Errno::INTR.into());
        }
        if self.strikes(Kind::Short) {
            let count = 1 + self.rng.index(bytes.len());
            self.index.write(offset, &bytes[..count], |_| true);
            return Ok(count);
        }
        let is_torn = self.strikes(Kind::Torn);
        if is_torn || self.strikes(Kind::Lost) {
            let rng = &mut self.rng;
            self.index.write(offset, bytes, |_| is_torn && rng.one_in(2));
            self.taint_records(slots);
        } else {
            self.index.write(offset, bytes, |_| true);
            self.rewritten_records.extend(slots);
        }
        Ok(bytes.len())
    }

    /// A store begins that knows nothing of what was dropped under the one before.
    pub(crate) fn forget_dropped(&mut self) {
        self.tainted.extend(self.dropped.drain());
        let records = std::mem::take(&mut self.dropped_records);
        self.taint_records(records);
    }

    fn taint_records(&mut self, slots: impl IntoIterator<Item = u32>) {
        for slot in slots {
            self.rewritten_records.remove(&slot);
            self.tainted_records.insert(slot);
        }
    }

    /// Sees to it that what was written to the file of a device is on stable storage.
    pub(crate) fn sync_data(&mut self, device: u32) -> io::Result<()> {
        if self.skips_syncs {
            return Ok(());
        }
        if self.burn_fuse().is_some() {
            return Err(Errno::IO.into());
        }
        if self.strikes(Kind::Sync) {
            let dropped = self.data[device as usize].fail_sync(&mut self.rng);
            let slots = dropped.into_iter().map(|offset| self.slot_at(device, offset).0);
            let slots: Vec<u32> = slots.collect();
            self.dropped.extend(slots);
            return Err(Errno::IO.into());
        }
        self.data[device as usize].sync();
        Ok(())
    }

    /// The same for the index.
    pub(crate) fn sync_index(&mut self) -> io::Result<()> {
        if self.skips_syncs {
            return Ok(());
        }
        if self.burn_fuse().is_some() {
            return Err(Errno::IO.into());
        }
        if !self.is_opening && self.strikes(Kind::Sync) {
            for offset in self.index.fail_sync(&mut self.rng) {
                self.dropped_records.extend(records_in(offset, SECTOR_BYTES, self.geometry.capacity));
            }
            return Err(Errno::IO.into());
        }
        self.index.sync();
        for slot in self.rewritten_records.drain() {
            self.tainted_records.remove(&slot);
        }
        Ok(())
    }

    /// The machine loses its power.
    pub(crate) fn lose_power(&mut self) {
        let eighths = self.rng.below(9);
        for image in self.data.iter_mut().chain([&mut self.index]) {
            image.lose_power(&mut self.rng, eighths);
        }
    }

    /// The slot in the file of `device` in which `offset` lies, and where in it.
    fn slot_at(&self, device: u32, offset: u64) -> (u32, u64) {
        let within = offset - DATA_START;
        let nth = u32::try_from(within / self.geometry.stride_bytes).expect("a slot");
        (nth * self.geometry.num_devices + device, within % self.geometry.stride_bytes)
    }

    /// How many of `wanted` bytes the next call moves.
    fn decide(&mut self, wanted: usize) -> io::Result<usize> {
        match self.plan.calls.pop_front() {
            None => Ok(wanted),
            Some(Call::Short(bytes)) => Ok(wanted.min(bytes)),
            Some(Call::Error(errno)) => Err(errno.into()),
        }
    }

    fn read(&mut self, device: u32, bytes: &mut [u8], offset: u64) -> io::Result<usize> {
        let count = self.decide(bytes.len())?;
        let image = &self.data[device as usize];
        bytes[..count].copy_from_slice(image.bytes(offset, count));
        match self.plan.lie {
            Lie::ReadFlip(bit) if count > 0 => {
                let bit = bit % (count as u64 * 8);
                bytes[usize::try_from(bit / 8).expect("within")] ^= 1 << (bit % 8);
                self.plan.lie = Lie::None;
            }
            Lie::Stale(sectors) => {
                let stale = image.stable(offset, count).chunks(SECTOR_BYTES);
                for ((nth, old), new) in (0..).zip(stale).zip(bytes.chunks_mut(SECTOR_BYTES)) {
                    if sectors >> nth & 1 == 1 {
                        new[..old.len()].copy_from_slice(old);
                    }
                }
            }
            _ => {}
        }
        Ok(count)
    }

    fn write(&mut self, device: u32, bytes: &[u8], offset: u64) -> io::Result<usize> {
        let (slot, within) = self.slot_at(device, offset);
        let lie = self.plan.lie;
        let count = match self.decide(bytes.len()) {
            Ok(count) => count,
            Err(error) => {
                // What an error leaves behind is anyone's guess.
                self.tainted.insert(slot);
                if error.kind() != io::ErrorKind::Interrupted && self.rng.one_in(2) {
                    let rng = &mut self.rng;
                    self.data[device as usize].write(offset, bytes, |_| rng.one_in(2));
                }
                return Err(error);
            }
        };
        let bytes = &bytes[..count];
        let image = &mut self.data[device as usize];
        let first = within / SECTOR_BYTES as u64;
        match lie {
            Lie::Lost => {}
            Lie::Torn(sectors) => {
                image.write(offset, bytes, |nth| sectors >> ((first + nth as u64) % 64) & 1 == 0);
            }
            Lie::Misdirected(by) => {
                let (nth, num_slots) = (slot / self.geometry.num_devices, self.geometry.slots_of(device));
                let other = (nth + by) % num_slots;
                let at = DATA_START + u64::from(other) * self.geometry.stride_bytes + within;
                image.write(at, bytes, |_| true);
                if other != nth {
                    self.tainted.insert(other * self.geometry.num_devices + device);
                }
            }
            _ => image.write(offset, bytes, |_| true),
        }
        if matches!(lie, Lie::Lost | Lie::Torn(_) | Lie::Misdirected(_)) {
            self.tainted.insert(slot);
        } else if usize::try_from(within).expect("within a slot") + count == self.geometry.chunk_bytes {
            // Earlier calls of the same transfer have written what lies before.
            self.tainted.remove(&slot);
        }
        Ok(count)
    }

    /// Whether a kind of trouble happens now.
    pub(crate) fn strikes(&mut self, kind: Kind) -> bool {
        self.faults.strikes(kind, &mut self.rng)
    }
}

/// Whether the process ends amid this call, or has ended before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Burnt {
    Now,
    Before,
}

/// The slots of which some of the record is in `count` bytes of the index at `offset`.
fn records_in(offset: u64, count: usize, num_slots: u32) -> Range<u32> {
    let slot = |bytes: u64| u32::try_from(bytes / RECORD_BYTES as u64).expect("small").min(num_slots);
    let end = (offset + count as u64).saturating_sub(RECORDS_START);
    slot(offset.saturating_sub(RECORDS_START))..slot(end.next_multiple_of(RECORD_BYTES as u64))
}

/// The file of one device.
pub(crate) struct SimFile {
    pub(crate) disk: Shared<Disk>,
    pub(crate) device: u32,
}

impl ChunkFile for SimFile {
    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<usize> {
        lock(&self.disk).read(self.device, bytes, offset)
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<usize> {
        lock(&self.disk).write(self.device, bytes, offset)
    }
}

impl StableFile for SimFile {
    fn sync(&self) -> io::Result<()> {
        lock(&self.disk).sync_data(self.device)
    }
}

/// The index file, to be written.
pub(crate) struct SimIndex {
    pub(crate) disk: Shared<Disk>,
}

impl ChunkFile for SimIndex {
    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<usize> {
        bytes.copy_from_slice(lock(&self.disk).index.bytes(offset, bytes.len()));
        Ok(bytes.len())
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<usize> {
        lock(&self.disk).write_index(bytes, offset)
    }
}

impl StableFile for SimIndex {
    fn sync(&self) -> io::Result<()> {
        lock(&self.disk).sync_index()
    }
}
