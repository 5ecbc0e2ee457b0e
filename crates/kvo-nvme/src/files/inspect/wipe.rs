//! A store made to hold nothing, in its records and in its bytes.

use std::{io, ops::Range};

use super::{
    Inspection,
    repair::{PIECE_BYTES, SYNC_BYTES, usize_of},
};
use crate::{
    Contents, OpenError,
    file::{StableFile, write_all_at},
    files::{
        aligned::AlignedBytes,
        system::{set_direct, try_io},
        write_superblock,
    },
    format::{
        BLOCK_BYTES, DATA_START, RECORDS_START, RecordState, StoreState, Superblock, index_bytes, order_sum,
        record_start,
    },
    health::{StoreVerdict, Task, classify_io},
    options::Geometry,
};

impl Inspection {
    /// Empties every record, then writes zeros over every slot, and sees both to the device; says whether all of it was
    /// done. `progress` is told of the bytes of slots, as they are written; if it answers `false`, that is enough.
    ///
    /// From when it is first told of any, no chunk is found, also if this is killed: the store opens again, empty. Once it has
    /// said `true`, no byte of a chunk is in the files either. It is to be called again if it has not. What a device or a
    /// file system keeps of bytes that were overwritten is theirs to say.
    ///
    /// What the device does not let be overwritten does not keep the others from it: all are tried. Slots that had failed
    /// are among them, and stay unused.
    ///
    /// # Errors
    /// [`OpenError::NotWiped`] if there were such slots: no chunk is found any more, all other slots are overwritten,
    /// and the store opens again, empty. It may be called again.
    ///
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
        if !self.overwrite_slots(progress)? {
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

    /// Writes zeros over every slot; says whether all were tried.
    fn overwrite_slots(&self, progress: &mut dyn FnMut(u64) -> bool) -> Result<bool, OpenError> {
        let (mut num_slots, mut first) = (0, None);
        for (device, file) in (0..).zip(&self.data) {
            let Some(file) = file else { continue };
            // Through the page cache nobody is told which slot it was.
            let is_direct = set_direct(&file.file, true).is_ok();
            if is_direct && try_io(&file.file).is_err() {
                set_direct(&file.file, false).map_err(|source| file.error("prepare", source))?;
            }
            let overwritten = overwrite(&file.file, &self.geometry, device, progress);
            if is_direct {
                set_direct(&file.file, false).map_err(|source| file.error("prepare", source))?;
            }
            let Some(left) = overwritten else { return Ok(false) };
            num_slots += left.num_slots;
            first = first.or(left.error.map(|source| (file.path.clone(), source)));
        }
        match first {
            None => Ok(true),
            Some((path, source)) => Err(OpenError::NotWiped { path, num_slots, source }),
        }
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

/// Slots of a device that could not be overwritten, as they are found, ascending.
#[derive(Debug, Default)]
pub(super) struct Left {
    pub(super) num_slots: u32,
    /// The first that is not known yet.
    next: u32,
    /// Of the first of them.
    pub(super) error: Option<io::Error>,
}

impl Left {
    fn add(&mut self, slots: Range<u32>, error: io::Error) {
        self.num_slots += slots.end.saturating_sub(slots.start.max(self.next));
        self.next = self.next.max(slots.end);
        self.error.get_or_insert(error);
    }
}

/// Writes zeros over the slots of a device, block by block where a piece cannot be written whole; returns what is left,
/// or nothing if `progress` has had enough. A device that takes nothing any more is not asked for every slot.
pub(super) fn overwrite(
    file: &dyn StableFile,
    geometry: &Geometry,
    device: u32,
    progress: &mut dyn FnMut(u64) -> bool,
) -> Option<Left> {
    let zeroes = AlignedBytes::zeroed(usize_of(PIECE_BYTES));
    let num_slots = geometry.slots_of(device);
    let slot_at = |offset: u64| {
        u32::try_from((offset - DATA_START) / geometry.stride_bytes).expect("below the number of slots")
    };
    let (end, mut offset, mut left) = (geometry.file_bytes(device), DATA_START, Left::default());
    let mut synced = Ok(());
    while offset < end {
        let count = PIECE_BYTES.min(end - offset);
        if let Err(error) = write_all_at(file, &zeroes.bytes()[..usize_of(count)], offset) {
            if takes_nothing(&error) {
                left.add(slot_at(offset)..num_slots, error);
                break;
            }
            for at in (offset..offset + count).step_by(BLOCK_BYTES) {
                if let Err(error) = write_all_at(file, &zeroes.bytes()[..BLOCK_BYTES], at) {
                    left.add(slot_at(at)..slot_at(at) + 1, error);
                }
            }
        }
        offset += count;
        if (offset - DATA_START).is_multiple_of(SYNC_BYTES) {
            synced = synced.and_then(|()| file.sync());
        }
        if !progress(count) {
            return None;
        }
    }
    if let Err(error) = synced.and_then(|()| file.sync()) {
        // The system tells of lost pages once, and not whose they were.
        left = Left::default();
        left.add(0..num_slots, error);
    }
    Some(left)
}

/// Whether an error is of the whole device, so that it would be that of every other slot too.
fn takes_nothing(error: &io::Error) -> bool {
    matches!(classify_io(Task::Write, error).store, StoreVerdict::Open | StoreVerdict::ReadOnly)
}
