//! What the index file is told: records of slots, and at the end the eviction order.

mod thread;
mod writer;

use std::io;

pub(crate) use self::thread::FileJournal;
#[cfg(any(test, feature = "testing"))]
pub(crate) use self::writer::{Outcome, Writer};

use crate::format::RecordState;

/// A record for one slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) slot: u32,
    pub(crate) state: RecordState,
}

/// What keeps the records of a store. It answers by [`Event`](crate::engine::Event)s to the channel that it was made
/// with.
pub(crate) trait Journal: Send {
    /// Takes a record, to be written with others in a while: after a number of them, or a time. Never waits, and does
    /// no I/O. Records of one slot reach the file in the order in which they were put.
    ///
    /// In durable mode an [`Event::Recorded`](crate::engine::Event::Recorded) comes for each record of a chunk, once
    /// the payload and the record are on stable storage, or that has failed. Otherwise one comes for failures only.
    fn put(&mut self, entry: Entry);

    /// Writes what is left, syncs data and index, writes `order` (slots, the next to be evicted first) and a superblock
    /// that says clean. Waits for all of it, but not for ever.
    ///
    /// # Errors
    /// If anything could not be written, now or before: then the superblock does not say clean.
    /// [`TimedOut`](io::ErrorKind::TimedOut) if the device hangs; should it come back, it may say clean after all, and
    /// truly.
    fn close(&mut self, order: &[u32], written_bytes: u64) -> io::Result<()>;
}

/// What an earlier store has left, as the one that is being opened takes it over.
#[derive(Debug, Default)]
pub(crate) struct Recovered {
    /// The chunks, each key once, the next to be evicted first.
    pub(crate) chunks: Vec<Entry>,
    /// Slots that failed.
    pub(crate) quarantined: Vec<u32>,
    /// Slots whose record is not one of this store as it is: of an epoch that has not been, or of another length.
    pub(crate) foreign: Vec<u32>,
    /// What was found and is not used.
    pub(crate) report: RecoveryReport,
}

/// What opening a store has found in its index.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RecoveryReport {
    /// Whether the store was closed before, and not killed.
    pub clean: bool,
    /// Chunks that may have been overwritten, as far as is known: those of a store that was killed, until each has been
    /// read once. They are hits, and their bytes are compared when they are read; offered again, they are written again.
    pub unproven: u32,
    /// Whether it was closed and the eviction order that it left is damaged: it is made from the records then.
    pub order_damaged: bool,
    /// Whether one of the two superblocks was damaged; the other one was used.
    pub superblock_damaged: bool,
    /// Chunks that are there again.
    pub chunks: u32,
    /// Records that were torn, or that nothing of ours wrote.
    pub damaged_records: u32,
    /// Records of another length than a chunk's, or of an epoch that is still to come.
    pub foreign_records: u32,
    /// Older records of keys that a newer one names.
    pub superseded_records: u32,
    /// Slots that had failed before and are not used.
    pub quarantined: u32,
}

/// Keeps nothing: for tests of what has nothing to do with it.
#[cfg(test)]
pub(crate) struct NoJournal;

#[cfg(test)]
impl Journal for NoJournal {
    fn put(&mut self, _: Entry) {}

    fn close(&mut self, _: &[u32], _: u64) -> io::Result<()> {
        Ok(())
    }
}
