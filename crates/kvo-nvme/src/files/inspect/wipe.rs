//! A store made to hold nothing, in its records and in its bytes.

use super::{Inspection, repair::usize_of};
use crate::{
    Contents, OpenError,
    file::write_all_at,
    files::{aligned::AlignedBytes, write_superblock},
    format::{RECORDS_START, RecordState, StoreState, Superblock, index_bytes, order_sum, record_start},
};

/// Bytes of the table that are written at once.
const PIECE_BYTES: u64 = 1 << 20;

impl Inspection {
    /// Empties every record, then writes zeros over every slot, and sees both to the device; says whether all of it was
    /// done. `progress` is told of the bytes of slots, as they are written; if it answers `false`, that is enough.
    ///
    /// From when it is first told of any, no chunk is found, also if this is killed: the store opens again, empty. Once it has
    /// said `true`, no byte of a chunk is in the files either. It is to be called again if it has not. What a device or a
    /// file system keeps of bytes that were overwritten is theirs to say.
    ///
    /// Slots that had failed stay unused. Their bytes are overwritten if the device lets them be.
    ///
    /// # Errors
    /// [`OpenError::NotWritable`]; [`OpenError::Damaged`] and [`OpenError::Other`] if a file is not there, not whole, or of
    /// another store, or a directory too many or too few was given, and nothing was written then; and [`OpenError::Io`].
    pub fn wipe(&mut self, progress: &mut dyn FnMut(u64) -> bool) -> Result<bool, OpenError> {
        self.check_writable()?;
        self.check_whole()?;
        self.repair_superblock()?;
        let quarantined =
            self.read_records().map_or_else(|_| Vec::new(), |found: Contents| found.quarantined);
        // What is said of the eviction order goes first: it is of chunks that are about to go.
        self.forget_order()?;
        self.clear_table(&quarantined)?;
        if !self.fill_slots(progress)? {
            return Ok(false);
        }
        let next = self.superblock.next(StoreState::Clean);
        let clean = Superblock { order_slots: 0, order_sum: order_sum(&[]), ..next };
        write_superblock(&self.index, &clean, 1 - self.block)?;
        self.block = 1 - self.block;
        self.superblocks[self.block] = Ok(clean.clone());
        self.superblock = clean;
        Ok(true)
    }

    /// Writes zeros over all records and the order behind them, but for those of slots that had failed.
    fn clear_table(&mut self, quarantined: &[u32]) -> Result<(), OpenError> {
        let error = |source| self.index.error("write", source);
        let zeroes = AlignedBytes::zeroed(usize_of(PIECE_BYTES));
        let (mut offset, end) = (RECORDS_START, index_bytes(self.superblock.num_slots));
        while offset < end {
            let count = PIECE_BYTES.min(end - offset);
            let piece = &zeroes.bytes()[..usize_of(count)];
            write_all_at(&self.index.file, piece, offset).map_err(error)?;
            offset += count;
        }
        for slot in quarantined {
            let record = RecordState::Quarantined.encode(self.superblock.id, *slot);
            write_all_at(&self.index.file, &record, record_start(*slot)).map_err(error)?;
        }
        self.index.sync()
    }
}
