//! From the records of an index to the chunks that a store begins with: which are there, and which goes first.
//!
//! Nothing here does I/O. The same bytes give the same chunks, and bytes that were recovered give themselves.

use std::{cmp::Reverse, hash::BuildHasher};

use hashbrown::{DefaultHashBuilder, HashMap, HashTable, hash_table::Entry as Place};
use kvo_core::reserve_table;

use crate::{
    RecoveryReport,
    format::{Damage, RECORD_BYTES, Record, RecordState, StoreState, Superblock, decode_order, epoch_of},
    journal::{Entry, Recovered},
};

/// The chunks of a store whose table is `records`, from slot 0 on, and whose eviction order is `order`.
///
/// For stores whose table is in memory at once, as those of tests are; [`Recovery`] takes it in pieces.
#[cfg(any(test, feature = "testing", kvo_fuzzing))]
pub(crate) fn recover(superblock: &Superblock, records: &[u8], order: Option<&[u8]>) -> Recovered {
    let mut recovery = Recovery::new(superblock);
    recovery.take(records);
    recovery.finish(order)
}

/// Takes the table piece by piece, and keeps the newest valid record of each key.
pub(crate) struct Recovery<'a> {
    superblock: &'a Superblock,
    next_slot: u32,
    chunks: Vec<(u32, Record)>,
    /// Places in `chunks`, found by the key there.
    by_key: HashTable<u32>,
    hasher: DefaultHashBuilder,
    quarantined: Vec<u32>,
    foreign: Vec<u32>,
    report: RecoveryReport,
}

impl<'a> Recovery<'a> {
    /// Of the store that `superblock` was the newest superblock of. Its number of slots is believed: compare it to the
    /// length of the file first.
    pub(crate) fn new(superblock: &'a Superblock) -> Self {
        let clean = superblock.state == StoreState::Clean;
        // Tables that grow are moved again and again. Without memory for all of it, they do.
        let mut by_key = HashTable::new();
        let _ = by_key.try_reserve(superblock.num_slots as usize, |_| 0);
        Self {
            superblock,
            next_slot: 0,
            chunks: reserve_table(superblock.num_slots as usize).unwrap_or_default(),
            by_key,
            hasher: DefaultHashBuilder::default(),
            quarantined: Vec::new(),
            foreign: Vec::new(),
            report: RecoveryReport { clean, ..RecoveryReport::default() },
        }
    }

    /// Takes the records of the next slots. Whatever is behind the last slot is left alone.
    pub(crate) fn take(&mut self, records: &[u8]) {
        let (records, _) = records.as_chunks::<RECORD_BYTES>();
        for bytes in records {
            if self.next_slot == self.superblock.num_slots {
                return;
            }
            let slot = self.next_slot;
            self.next_slot += 1;
            match RecordState::decode(bytes, self.superblock.id, slot) {
                Ok(RecordState::Chunk(record)) => self.take_chunk(slot, record),
                Ok(RecordState::Quarantined) => self.quarantined.push(slot),
                Err(Damage::Empty) => {}
                Err(_) => self.report.damaged_records += 1,
            }
        }
    }

    /// Passes over the records of `count` slots, which cannot be read.
    pub(crate) fn skip(&mut self, count: u32) {
        let count = count.min(self.superblock.num_slots - self.next_slot);
        self.next_slot += count;
        self.report.damaged_records += count;
    }

    fn take_chunk(&mut self, slot: u32, record: Record) {
        let is_ours = u64::from(record.length) == self.superblock.chunk_bytes
            && epoch_of(record.generation) <= self.superblock.epoch;
        if !is_ours {
            self.report.foreign_records += 1;
            self.foreign.push(slot);
            return;
        }
        let Self { chunks, by_key, hasher, .. } = self;
        let key = |at: u32| &chunks[at as usize].1.key;
        let hash = hasher.hash_one(record.key);
        let found = by_key.entry(hash, |&at| *key(at) == record.key, |&at| hasher.hash_one(key(at)));
        match found {
            Place::Occupied(found) => {
                let known = &mut chunks[*found.get() as usize];
                if record.generation > known.1.generation {
                    *known = (slot, record);
                }
                self.report.superseded_records += 1;
            }
            Place::Vacant(vacant) => {
                vacant.insert(count(chunks.len()));
                chunks.push((slot, record));
            }
        }
    }

    /// The chunks, the next to be evicted first: in the `order` of a clean close, if it is whole, else by runs.
    pub(crate) fn finish(mut self, order: Option<&[u8]>) -> Recovered {
        let order = match (self.report.clean, order) {
            (true, order) => order.and_then(|bytes| decode_order(bytes, self.superblock)),
            (false, _) => None,
        };
        self.report.order_damaged = self.report.clean && order.is_none();
        self.report.chunks = count(self.chunks.len());
        self.report.quarantined = count(self.quarantined.len());
        let (chunks, num_unnamed) = self.sorted(&order.unwrap_or_default());
        self.report.unproven = count(num_unnamed);
        Recovered { chunks, quarantined: self.quarantined, foreign: self.foreign, report: self.report }
    }

    /// The chunks, and how many of them the order does not name.
    fn sorted(&self, order: &[u32]) -> (Vec<Entry>, usize) {
        // Slots that the order does not name go first: nobody knew when they were used.
        let mut ranks = vec![0_u32; if order.is_empty() { 0 } else { self.superblock.num_slots as usize }];
        for (&slot, rank) in order.iter().zip(1..) {
            ranks[slot as usize] = rank;
        }
        let ages = run_ages(&self.chunks);
        let mut places = reserve_table(self.chunks.len()).unwrap_or_default();
        places.extend((0_u32..).zip(&self.chunks).map(|(at, (slot, record))| {
            let rank = ranks.get(*slot as usize).copied().unwrap_or(0);
            (rank, ages[&run_of(record)], tail_first(record), at)
        }));
        places.sort_unstable();
        let num_unnamed = places.partition_point(|(rank, ..)| *rank == 0);
        let mut sorted = reserve_table(places.len()).unwrap_or_default();
        sorted.extend(places.into_iter().map(|(.., at)| {
            let (slot, record) = self.chunks[at as usize];
            Entry { slot, state: RecordState::Chunk(record) }
        }));
        (sorted, num_unnamed)
    }
}

/// The newest generation of each run: a run is as old as the last that was written of it.
fn run_ages(chunks: &[(u32, Record)]) -> HashMap<(u64, u64), u64> {
    let mut ages = HashMap::new();
    for (_, record) in chunks {
        let age = ages.entry(run_of(record)).or_insert(record.generation);
        *age = record.generation.max(*age);
    }
    ages
}

/// A request does not outlive the store that it writes to, so runs of two epochs are two runs.
fn run_of(record: &Record) -> (u64, u64) {
    (epoch_of(record.generation), record.run)
}

/// The order within a run: from the tail to the head, what has no position last, and there the newest first.
fn tail_first(record: &Record) -> (bool, Reverse<u32>, Reverse<u64>) {
    (record.end_token.is_none(), Reverse(record.end_token.unwrap_or(0)), Reverse(record.generation))
}

/// There are no more chunks than slots, whose numbers have 32 bits.
fn count(len: usize) -> u32 {
    u32::try_from(len).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests;
