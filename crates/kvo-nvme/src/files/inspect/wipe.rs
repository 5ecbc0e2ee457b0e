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
        block_start,
        judge::{as_if_lost, read_superblock},
        system::{set_direct, try_io},
        write_superblock,
    },
    format::{
        BLOCK_BYTES, DATA_START, RECORD_BYTES, RECORDS_START, RecordState, StoreState, Superblock,
        WIPED_EPOCH, index_bytes, newest, order_sum, record_start,
    },
    health::{StoreVerdict, Task, classify_io},
    options::Geometry,
};

impl Inspection {
    /// Empties every record, then writes zeros over every slot, and sees both to the device; says whether all of it was
    /// done. `progress` is told of the bytes of slots, as they are written; if it answers `false`, that is enough.
    ///
    /// From the first superblock on that it writes, no chunk is found, also if this is killed: the store opens again,
    /// empty. Once it has said `true`, no byte of a chunk is in the files either. It is to be called again if it has not.
    /// What a device or a file system keeps of bytes that were overwritten is theirs to say.
    ///
    /// What the device does not let be overwritten does not keep the others from it: all are tried. Slots that had failed
    /// are among them, and stay unused.
    ///
    /// # Errors
    /// [`OpenError::NotWiped`] if there were such slots: no chunk is found any more, all other slots are overwritten,
    /// and the store opens again, empty. It may be called again.
    ///
    /// [`OpenError::NotWritable`], [`OpenError::Linked`]; [`OpenError::Damaged`] and [`OpenError::Other`] if a file is not
    /// there, not whole, or of another store, or a directory too many or too few was given, and nothing was written then;
    /// and [`OpenError::Io`].
    pub fn wipe(&mut self, progress: &mut dyn FnMut(u64) -> bool) -> Result<bool, OpenError> {
        self.check_writable()?;
        self.check_whole()?;
        self.repair_superblock()?;
        let quarantined =
            self.read_records().map_or_else(|_| Vec::new(), |found: Contents| found.quarantined);
        let epochs = self.superblocks.iter().flatten().map(|superblock| superblock.epoch);
        let epoch = epochs.max().unwrap_or_default().max(WIPED_EPOCH + 1);
        let before = Before { newest: &self.superblock, block: self.block, epoch };
        let dropped = drop_chunks(&self.index.file, &before, &quarantined);
        self.look_again();
        dropped.map_err(|source| self.index.error("write", source))?;
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

    /// Takes the superblocks as they are in the file now.
    fn look_again(&mut self) {
        self.superblocks = [0, 1].map(|block| read_superblock(&self.index.file, block));
        if let Ok((superblock, block)) = newest(self.superblocks.clone()) {
            let is_one_lost = self.superblocks.iter().any(Result::is_err);
            self.superblock = if is_one_lost { as_if_lost(&superblock) } else { superblock };
            self.block = block;
        }
    }
}

/// The superblocks of an index whose chunks are to be dropped. Both are good.
pub(super) struct Before<'a> {
    pub(super) newest: &'a Superblock,
    /// In which of the two blocks it is.
    pub(super) block: usize,
    /// The highest epoch that has been.
    pub(super) epoch: u64,
}

/// Empties all records, but for those of slots that had failed, and the order behind them.
///
/// First a superblock of epoch [`WIPED_EPOCH`] goes over the older of the two, and to the device: in it no record counts,
/// of whatever epoch. So wherever this ends, no chunk is found from then on, and an opening erases the records that are
/// left. One of the last epoch goes over the other superblock at the end.
pub(super) fn drop_chunks(
    index: &dyn StableFile,
    before: &Before<'_>,
    quarantined: &[u32],
) -> io::Result<()> {
    let Before { newest, block, epoch } = before;
    // That of a wipe that was killed stays where it is: were the other one torn, it would count as of the epoch after.
    let (begun, at) = match newest.epoch {
        WIPED_EPOCH => ((*newest).clone(), *block),
        _ => (Superblock { epoch: WIPED_EPOCH, ..newest.next(StoreState::Open) }, 1 - block),
    };
    write_all_at(index, &begun.encode(), block_start(at))?;
    index.sync()?;
    clear_table(index, newest, quarantined)?;
    let ended = Superblock { epoch: *epoch, ..begun.next(StoreState::Open) };
    write_all_at(index, &ended.encode(), block_start(1 - at))?;
    index.sync()
}

/// Writes zeros over all records and the order behind them, and over those of slots that had failed what they are.
fn clear_table(index: &dyn StableFile, superblock: &Superblock, quarantined: &[u32]) -> io::Result<()> {
    let mut piece = AlignedBytes::zeroed(usize_of(PIECE_BYTES));
    let (mut offset, end) = (RECORDS_START, index_bytes(superblock.num_slots));
    while offset < end {
        let range = offset..end.min(offset + PIECE_BYTES);
        let piece = &mut piece.bytes_mut()[..usize_of(range.end - offset)];
        piece.fill(0);
        for slot in quarantined.iter().filter(|slot| range.contains(&record_start(**slot))) {
            let record = RecordState::Quarantined.encode(superblock.id, *slot);
            piece[usize_of(record_start(*slot) - offset)..][..RECORD_BYTES].copy_from_slice(&record);
        }
        write_all_at(index, piece, offset)?;
        offset = range.end;
    }
    index.sync()
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
