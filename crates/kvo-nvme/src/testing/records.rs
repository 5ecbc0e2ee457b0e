//! The journal: the code that ships writes the records, when the test says so.

use std::{collections::BTreeSet, io, sync::Arc};

use crossbeam_channel::Sender;

use super::disk::{Disk, Shared, SimFile, SimIndex, lock};
use crate::{
    engine::Event,
    file::StableFile,
    format::{Record, RecordState, Superblock},
    journal::{Entry, Journal, Outcome, Writer},
};

/// Records that are on their way to the index.
pub(crate) struct Records {
    pub(crate) num_put: u64,
    /// In durable mode: whether a record is written the moment that it is put, because someone waits for it.
    pub(crate) at_once: bool,
    /// The last chunk's record that was put.
    pub(crate) last: Option<Record>,
    queued: Vec<Entry>,
    /// Slots whose records could not be written, and were not since.
    unwritten: BTreeSet<u32>,
    writer: Writer,
    disk: Shared<Disk>,
    events: Sender<Event>,
    /// Whether the store was told that nothing is recorded any more.
    is_lost: bool,
}

impl Records {
    pub(crate) fn new(
        disk: Shared<Disk>,
        superblock: (Superblock, usize),
        events: Sender<Event>,
        is_durable: bool,
    ) -> Self {
        let file = |device| Arc::new(SimFile { disk: Arc::clone(&disk), device }) as Arc<dyn StableFile>;
        let data = (0..superblock.0.num_devices).map(file).collect();
        let index = Box::new(SimIndex { disk: Arc::clone(&disk) });
        Self {
            num_put: 0,
            at_once: false,
            last: None,
            queued: Vec::new(),
            unwritten: BTreeSet::new(),
            writer: Writer::new(index, superblock, data, is_durable),
            disk,
            events,
            is_lost: false,
        }
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.queued.is_empty()
    }

    /// Whether the record of a slot may not be what was put last.
    pub(crate) fn may_lack(&self, slot: u32) -> bool {
        self.queued.iter().any(|entry| entry.slot == slot) || self.unwritten.contains(&slot)
    }

    /// Writes a batch: some of the records, those that were put first.
    pub(crate) fn advance(&mut self) {
        if self.queued.is_empty() {
            return;
        }
        let count = 1 + lock(&self.disk).rng.index(self.queued.len());
        self.write(count);
    }

    pub(crate) fn finish(&mut self) {
        if !self.queued.is_empty() {
            self.write(self.queued.len());
        }
    }

    fn write(&mut self, count: usize) {
        let batch: Vec<Entry> = self.queued.drain(..count).collect();
        let outcome = self.writer.write(&batch);
        self.tell(&batch, &outcome);
    }

    /// Says how the records of a batch have ended: all of them in durable mode, else those that failed.
    fn tell(&mut self, batch: &[Entry], outcome: &Outcome) {
        outcome.tell(&mut self.is_lost, &self.events);
        for Entry { slot, state } in batch {
            let result = outcome.of(*slot);
            if result.is_ok() {
                self.unwritten.remove(slot);
            } else {
                self.unwritten.insert(*slot);
            }
            let RecordState::Chunk(Record { generation, .. }) = *state else { continue };
            if self.writer.is_durable() || result.is_err() {
                // A store that is gone does not want to know.
                let _ = self.events.send(Event::Recorded { slot: *slot, generation, result });
            }
        }
    }

    /// The process ends, perhaps amid a batch.
    pub(crate) fn be_killed(&mut self) {
        let fuse = lock(&self.disk).rng.below(8);
        lock(&self.disk).light_fuse(fuse);
        let batch = std::mem::take(&mut self.queued);
        self.writer.write(&batch);
        lock(&self.disk).put_out_fuse();
    }
}

/// The store's end of [`Records`].
pub(crate) struct SimJournal(pub(crate) Shared<Records>);

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
        records.writer.close(order, written_bytes)
    }
}
