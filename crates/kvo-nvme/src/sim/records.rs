//! The journal: records that reach the index in batches, step by step, as the test says.
//!
//! ```text
//!   put ──▶ queued ──▶ batch:  [sync data ──▶]  a sector of records, another ..  [──▶ sync index ──▶ Recorded]
//!                              └─ durable                                           └─ durable
//! ```

use std::{collections::BTreeSet, io};

use crossbeam_channel::Sender;
use rustix::io::Errno;

use super::{
    disk::{Disk, Shared, lock},
    engine::Plant,
    image::SECTOR_BYTES,
};
use crate::{
    engine::Event,
    format::{
        BLOCK_BYTES, RECORD_BYTES, RECORDS_START, Record, RecordState, StoreState, Superblock, encode_order,
        order_start, order_sum,
    },
    journal::{Entry, Journal},
};

/// Records that are on their way to the index.
pub(super) struct Records {
    pub(super) superblock: Superblock,
    /// Which of the two blocks that is.
    pub(super) block: usize,
    pub(super) num_put: u64,
    /// In durable mode: whether a record is written the moment that it is put, because someone waits for it.
    pub(super) at_once: bool,
    is_durable: bool,
    /// What the table is to be.
    table: Vec<u8>,
    queued: Vec<Entry>,
    batch: Option<Batch>,
    condition: Condition,
    /// Slots whose records could not be written, and were not since.
    unwritten: BTreeSet<u32>,
    /// The last chunk's record that was put.
    pub(super) last: Option<Record>,
    disk: Shared<Disk>,
    events: Sender<Event>,
    plant: Option<Plant>,
}

/// What can be said of the index.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Condition {
    Good,
    /// Something could not be written.
    Incomplete,
    /// A sync has failed: nothing is called safe any more.
    Poisoned,
}

/// Records that are being written.
struct Batch {
    entries: Vec<Entry>,
    /// Places of sectors in the table.
    sectors: BTreeSet<usize>,
    data_synced: bool,
    /// Slots whose records could not be written.
    failed: BTreeSet<u32>,
}

fn sector_of(slot: u32) -> usize {
    slot as usize * RECORD_BYTES / SECTOR_BYTES
}

impl Records {
    pub(super) fn new(
        disk: Shared<Disk>,
        (superblock, block): (Superblock, usize),
        events: Sender<Event>,
        is_durable: bool,
        plant: Option<Plant>,
    ) -> Self {
        let bytes = (superblock.num_slots as usize * RECORD_BYTES).next_multiple_of(SECTOR_BYTES);
        let table = lock(&disk).index.bytes(RECORDS_START, bytes).to_vec();
        Self {
            superblock,
            block,
            num_put: 0,
            at_once: false,
            is_durable,
            table,
            queued: Vec::new(),
            batch: None,
            condition: Condition::Good,
            unwritten: BTreeSet::new(),
            last: None,
            disk,
            events,
            plant,
        }
    }

    pub(super) fn is_idle(&self) -> bool {
        self.queued.is_empty() && self.batch.is_none()
    }

    /// Whether the record of a slot may not be what was put last.
    pub(super) fn may_lack(&self, slot: u32) -> bool {
        let batched = self.batch.iter().flat_map(|batch| &batch.entries);
        self.queued.iter().chain(batched).any(|entry| entry.slot == slot) || self.unwritten.contains(&slot)
    }

    /// Does the next thing that is to be done.
    pub(super) fn advance(&mut self) {
        let Some(mut batch) = self.batch.take().or_else(|| self.gather()) else { return };
        if self.is_durable && !batch.data_synced && self.plant != Some(Plant::CalledSafeEarly) {
            batch.data_synced = true;
            self.sync(Disk::sync_data);
        } else if let Some(sector) = batch.sectors.pop_first() {
            self.write(sector, &mut batch);
        } else {
            if self.is_durable && self.plant != Some(Plant::CalledSafeEarly) {
                self.sync(Disk::sync_index);
            }
            self.answer(&batch);
            return;
        }
        self.batch = Some(batch);
    }

    fn gather(&mut self) -> Option<Batch> {
        if self.queued.is_empty() {
            return None;
        }
        let entries = std::mem::take(&mut self.queued);
        for entry in &entries {
            let bytes = entry.state.encode(self.superblock.id, entry.slot);
            let at = entry.slot as usize * RECORD_BYTES;
            self.table[at..at + RECORD_BYTES].copy_from_slice(&bytes);
        }
        let sectors = entries.iter().map(|entry| sector_of(entry.slot)).collect();
        Some(Batch { entries, sectors, data_synced: false, failed: BTreeSet::new() })
    }

    fn sync(&mut self, sync: impl FnOnce(&mut Disk) -> io::Result<()>) {
        if sync(&mut lock(&self.disk)).is_err() {
            self.condition = Condition::Poisoned;
        }
    }

    fn write(&mut self, sector: usize, batch: &mut Batch) {
        let at = sector * SECTOR_BYTES;
        let bytes = self.table[at..at + SECTOR_BYTES].try_into().expect("a sector");
        if lock(&self.disk).write_records(RECORDS_START + at as u64, bytes).is_err() {
            self.condition = self.condition.max(Condition::Incomplete);
            let slots = batch.entries.iter().map(|entry| entry.slot);
            batch.failed.extend(slots.filter(|slot| sector_of(*slot) == sector));
            self.unwritten.extend(&batch.failed);
        } else {
            self.unwritten.retain(|slot| sector_of(*slot) != sector);
        }
    }

    /// Says how the records of a batch have ended.
    fn answer(&mut self, batch: &Batch) {
        for Entry { slot, state } in &batch.entries {
            let RecordState::Chunk(record) = state else { continue };
            let has_failed =
                batch.failed.contains(slot) || self.is_durable && self.condition == Condition::Poisoned;
            if self.is_durable || has_failed {
                let result = if has_failed { Err(Errno::IO.into()) } else { Ok(()) };
                // A store that is gone does not want to know.
                let (slot, generation) = (*slot, record.generation);
                let _ = self.events.send(Event::Recorded { slot, generation, result });
            }
        }
    }

    pub(super) fn finish(&mut self) {
        while !self.is_idle() {
            self.advance();
        }
    }

    /// What a process that is killed had under way may have reached the index, in parts.
    pub(super) fn be_killed(&mut self) {
        let Some(Batch { sectors, data_synced, .. }) = self.batch.take() else { return };
        for sector in sectors.into_iter().filter(|_| data_synced || !self.is_durable) {
            if lock(&self.disk).rng.one_in(2) {
                let at = sector * SECTOR_BYTES;
                let bytes = &self.table[at..at + SECTOR_BYTES];
                lock(&self.disk).index.write(RECORDS_START + at as u64, bytes, |_| true);
            }
        }
        self.queued.clear();
    }

    fn write_end(&mut self, order: &[u32], written_bytes: u64) -> io::Result<()> {
        let disk = &mut lock(&self.disk);
        let bytes = encode_order(order);
        let start = order_start(self.superblock.num_slots);
        if disk.strikes(super::faults::Kind::Record) {
            return Err(Errno::IO.into());
        }
        disk.index.write(start, &bytes, |_| true);
        disk.sync_index()?;
        let superblock = Superblock {
            order_slots: u32::try_from(order.len()).expect("at most all slots"),
            order_sum: order_sum(&bytes),
            written_bytes: self.superblock.written_bytes + written_bytes,
            ..self.superblock.next(StoreState::Clean)
        };
        let block = 1 - self.block;
        disk.index.write((block * BLOCK_BYTES) as u64, &superblock.encode(), |_| true);
        disk.sync_index()
    }
}

/// The store's end of [`Records`].
pub(super) struct SimJournal(pub(super) Shared<Records>);

impl Journal for SimJournal {
    fn put(&mut self, entry: Entry) {
        let mut records = lock(&self.0);
        records.num_put += 1;
        if let RecordState::Chunk(record) = entry.state {
            records.last = Some(record);
        }
        records.queued.push(entry);
        if records.at_once {
            records.finish();
        }
    }

    fn close(&mut self, order: &[u32], written_bytes: u64) -> io::Result<()> {
        let mut records = lock(&self.0);
        records.finish();
        if !records.is_durable {
            records.sync(Disk::sync_data);
            records.sync(Disk::sync_index);
        }
        if records.condition != Condition::Good {
            return Err(io::Error::other("something could not be written before"));
        }
        records.write_end(order, written_bytes)
    }
}
