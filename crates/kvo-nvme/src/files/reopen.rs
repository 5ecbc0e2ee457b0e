//! A store that is there, taken over: its table read, its files ready, its epoch begun.

use std::{fs::File, io};

use rustix::fs::{Advice, fadvise};

use super::{
    DataFile, Found, Index, OpenFiles, block_start,
    judge::Known,
    locked::LockedFile,
    space::{Volumes, refill},
    system::System,
};
use crate::{
    NvmeOptions, OpenError,
    file::{StableFile, read_exact_at, write_all_at},
    format::{BLOCK_BYTES, RECORD_BYTES, RECORDS_START, StoreState, Superblock, order_start, record_start},
    journal::Recovered,
    recovery::Recovery,
};

/// Bytes of the table that are read at once.
const PIECE_BYTES: usize = 4 << 20;
const RECORDS_A_BLOCK: u32 = 32;
const _: () = assert!(RECORDS_A_BLOCK as usize * RECORD_BYTES == BLOCK_BYTES);

/// Takes over the store that was judged to be the one that is asked for.
///
/// # Errors
/// See [`OpenError`]; then it holds what it held, but for records that do not count, and may count as not closed if the
/// index could not be written.
pub(crate) fn reopen(
    found: Found,
    known: Known,
    options: &NvmeOptions,
    system: &dyn System,
) -> Result<OpenFiles, OpenError> {
    let Known { superblock, block, superblock_damaged, geometry } = known;
    let refilled = found.data.iter().flatten().chain(&found.index).map(|file| refill(system, file));
    if let Err(error) = refilled.collect::<Result<(), _>>() {
        let volumes = Volumes::of(&found, &options.dirs, system)?;
        return Err(error.told(|| volumes.no_room_in(&options.dirs[0], &geometry)));
    }
    found.data.iter().flatten().chain(&found.index).for_each(LockedFile::keep_private);
    let Found { index: Some(index), data } = found else {
        unreachable!("a store without an index is not judged to be there");
    };
    let mut recovered = read_table(&index.file, &superblock).map_err(|source| index.error("read", source))?;
    recovered.report.superblock_damaged = superblock_damaged;
    if superblock_damaged {
        let path = &index.path;
        tracing::warn!(?path, "a superblock is damaged, the other one is used");
    }
    if options.durable {
        // What a store that was killed had only told the system is called written from now on.
        data.iter().flatten().try_for_each(LockedFile::sync)?;
    }
    erase(&index.file, &recovered.foreign).map_err(|source| index.error("write", source))?;
    // Asked for while there is nothing to undo yet.
    let again = index.file.try_clone().map_err(|source| index.error("keep", source))?;
    let superblocks = Superblocks { newest: superblock, block, is_other_damaged: superblock_damaged };
    let (superblock, block) = begin_epoch(&index.file, &superblocks)
        .map_err(|source| index.error("write the superblock of", source))?;
    let clean_again = CleanAgain::of(again, &superblocks.newest, &superblock, block);
    let LockedFile { file, path } = index;
    Ok(OpenFiles {
        geometry,
        data: data.into_iter().flatten().map(|LockedFile { file, path }| DataFile { file, path }).collect(),
        index: Index { file, path, superblock, block },
        direct: false,
        copy_on_write: false,
        recovered,
        made: Vec::new(),
        clean_again,
    })
}

/// What a store that was closed and could not be opened again is to be: closed, and with the order that it had. No record
/// of the epoch in between was written, and the order is where it was.
#[derive(Debug)]
pub(crate) struct CleanAgain {
    index: File,
    superblock: Superblock,
    block: usize,
}

impl CleanAgain {
    /// After `begun`, which is in `block`; none if `newest`, which was before it, does not say clean.
    fn of(index: File, newest: &Superblock, begun: &Superblock, block: usize) -> Option<Self> {
        let Superblock { order_slots, order_sum, .. } = *newest;
        let superblock = Superblock { order_slots, order_sum, ..begun.next(StoreState::Clean) };
        (newest.state == StoreState::Clean).then_some(Self { index, superblock, block: 1 - block })
    }

    /// Writes it, once nothing else writes the index any more. If that fails, the store is one that was not closed.
    pub(crate) fn write(self) {
        let Self { index, superblock, block } = self;
        let written = write_all_at(&index, &superblock.encode(), block_start(block));
        if let Err(error) = written.and_then(|()| index.sync()) {
            tracing::warn!(%error, "the store counts as not closed");
        }
    }
}

/// Erases records that do not count, before an epoch begins in which they would. The sync with which it begins is behind
/// them.
fn erase(index: &dyn StableFile, slots: &[u32]) -> io::Result<()> {
    slots.iter().try_for_each(|slot| write_all_at(index, &[0; RECORD_BYTES], record_start(*slot)))
}

/// The superblocks of a store that is opened.
#[derive(Debug)]
pub(crate) struct Superblocks {
    /// As it is to be understood.
    pub(crate) newest: Superblock,
    /// In which of the two blocks it is.
    pub(crate) block: usize,
    pub(crate) is_other_damaged: bool,
}

/// Begins an epoch: writes the next superblock in the place of the older one. Returns it, and where it is.
///
/// # Errors
/// If the index could not be written or synced; the store is as it was, or of an epoch in which nothing was written.
pub(crate) fn begin_epoch(
    index: &dyn StableFile,
    superblocks: &Superblocks,
) -> io::Result<(Superblock, usize)> {
    let Superblocks { newest, block, is_other_damaged } = superblocks;
    // Whoever was killed may have told only the system of the newest superblock; on the device, the one that is
    // overwritten now may be the only good one. Had a sync failed, another would say nothing unless it is written again.
    if !is_other_damaged {
        write_all_at(index, &newest.encode(), block_start(*block))?;
    }
    index.sync()?;
    let begun = write_next(index, newest, *block)?;
    if *is_other_damaged {
        // What was left of the two is older than the lost one: were this one lost too, nobody would know how much older.
        return write_next(index, &begun.0, begun.1);
    }
    Ok(begun)
}

/// Writes the superblock of the next epoch into the other block, and sees it to the device.
fn write_next(
    index: &dyn StableFile,
    superblock: &Superblock,
    block: usize,
) -> io::Result<(Superblock, usize)> {
    let next = Superblock { epoch: superblock.epoch + 1, ..superblock.next(StoreState::Open) };
    write_all_at(index, &next.encode(), block_start(1 - block))?;
    index.sync()?;
    Ok((next, 1 - block))
}

/// Reads the table and the eviction order behind it, in one pass. The file is as long as `superblock` says.
pub(crate) fn read_table(index: &File, superblock: &Superblock) -> io::Result<Recovered> {
    // Only a hint.
    let _ = fadvise(index, RECORDS_START, None, Advice::Sequential);
    let mut recovery = Recovery::new(superblock);
    each_piece(index, superblock.num_slots, &mut |piece| match piece {
        Piece::Records(bytes) => recovery.take(bytes),
        Piece::Unreadable(count) => recovery.skip(count),
    })?;
    let order = match superblock.state {
        StoreState::Clean => read_order(index, superblock),
        StoreState::Open | StoreState::Creating => None,
    };
    Ok(recovery.finish(order.as_deref()))
}

/// A part of the table.
pub(crate) enum Piece<'a> {
    Records(&'a [u8]),
    /// So many records cannot be read.
    Unreadable(u32),
}

/// Gives the table to `take`, piece by piece. A block that the device cannot read costs its own records only.
pub(crate) fn each_piece(index: &File, num_slots: u32, take: &mut dyn FnMut(Piece<'_>)) -> io::Result<()> {
    let end = order_start(num_slots);
    let mut piece = vec![0; PIECE_BYTES.min(usize::try_from(end - RECORDS_START).unwrap_or(PIECE_BYTES))];
    let mut offset = RECORDS_START;
    while offset < end {
        let count = usize::try_from(end - offset).unwrap_or(PIECE_BYTES).min(PIECE_BYTES);
        let piece = &mut piece[..count];
        match read_exact_at(index, piece, offset) {
            Ok(()) => take(Piece::Records(piece)),
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Err(error),
            Err(error) => {
                tracing::warn!(%error, offset, "part of the index cannot be read");
                for (block, at) in piece.chunks_mut(BLOCK_BYTES).zip((offset..).step_by(BLOCK_BYTES)) {
                    match read_exact_at(index, block, at) {
                        Ok(()) => take(Piece::Records(block)),
                        Err(_) => take(Piece::Unreadable(RECORDS_A_BLOCK)),
                    }
                }
            }
        }
        offset += count as u64;
    }
    Ok(())
}

/// The bytes of the eviction order, if they can be read.
pub(crate) fn read_order(index: &File, superblock: &Superblock) -> Option<Vec<u8>> {
    let mut order = vec![0; superblock.order_slots as usize * 4];
    match read_exact_at(index, &mut order, order_start(superblock.num_slots)) {
        Ok(()) => Some(order),
        Err(error) => {
            tracing::warn!(%error, "the eviction order cannot be read");
            None
        }
    }
}
