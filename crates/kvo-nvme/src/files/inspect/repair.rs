//! What can be mended. Each call sees what it wrote to the device.

use std::{io, path::PathBuf};

use super::Inspection;
use crate::{
    Damage, FileDamage, OpenError,
    file::write_all_at,
    files::{
        aligned::AlignedBytes,
        judge::{header_of, other, read_superblock},
        locked::LockedFile,
        write_superblock,
    },
    format::{DATA_START, EPOCH_MAX, RECORD_BYTES, StoreState, record_start},
};

/// Bytes that are written at once to fill a store.
pub(super) const PIECE_BYTES: u64 = 1 << 20;
/// Bytes after which filling waits for the device.
pub(super) const SYNC_BYTES: u64 = 256 << 20;

/// A part of a piece.
pub(super) fn usize_of(bytes: u64) -> usize {
    usize::try_from(bytes).expect("a piece fits the memory")
}

impl Inspection {
    /// Writes a damaged superblock again from the other one; whether one was.
    ///
    /// The one that was lost may have been the newer one, so the store counts as not closed: its eviction order is made
    /// from its records when it is opened.
    ///
    /// # Errors
    /// [`OpenError::NotWritable`], [`OpenError::Linked`], [`OpenError::Other`] if the epochs of the store are used up, and
    /// [`OpenError::Io`]; the good superblock is not touched.
    pub fn repair_superblock(&mut self) -> Result<bool, OpenError> {
        let is_made = self.superblock.state != StoreState::Creating;
        let Some(damaged) = self.superblocks.iter().position(Result::is_err).filter(|_| is_made) else {
            return Ok(false);
        };
        self.check_writable()?;
        if self.superblock.epoch > EPOCH_MAX {
            let wanted = format!("at most {EPOCH_MAX}");
            return Err(other(&self.index.path, "epoch", self.superblock.epoch, wanted));
        }
        // As it is understood already: of the epoch that the lost one may have been of, and open.
        let again = self.superblock.next(StoreState::Open);
        write_superblock(&self.index, &again, damaged)?;
        self.superblocks = [0, 1].map(|block| read_superblock(&self.index.file, block));
        (self.superblock, self.block) = (again, damaged);
        Ok(true)
    }

    /// The data files whose headers are damaged and can be written again. A header of another store, or of what is no
    /// store, is not damaged.
    pub fn damaged_headers(&self) -> Vec<PathBuf> {
        let damaged = self.problems.iter().filter_map(|problem| match problem {
            OpenError::Damaged {
                path,
                damage: FileDamage::Header(Damage::Empty | Damage::Checksum | Damage::Field(_)),
            } => Some(path.clone()),
            _ => None,
        });
        damaged.collect()
    }

    /// Writes the [damaged headers](Self::damaged_headers) again.
    ///
    /// # Errors
    /// [`OpenError::NotWritable`], [`OpenError::Linked`], and [`OpenError::Io`]; some of them may be good then.
    pub fn repair_headers(&mut self) -> Result<(), OpenError> {
        self.check_writable()?;
        let damaged = self.damaged_headers();
        for (device, file) in (0..).zip(&self.data) {
            if let Some(file) = file
                && damaged.contains(&file.path)
            {
                let header = header_of(&self.superblock, &self.geometry, device).encode();
                write_all_at(&file.file, &header, 0).map_err(|source| file.error("write", source))?;
                file.sync()?;
            }
        }
        self.look_for_problems();
        Ok(())
    }

    /// Empties the records of these slots: what they held is gone, and they are free when the store is opened, also
    /// those that were quarantined. Slots that the store does not have are passed over.
    ///
    /// # Errors
    /// [`OpenError::NotWritable`], [`OpenError::Linked`], and [`OpenError::Io`]; some of the records may be empty then.
    pub fn clear_records(&mut self, slots: &[u32]) -> Result<(), OpenError> {
        self.check_writable()?;
        let num_slots = self.superblock.num_slots;
        for slot in slots.iter().filter(|slot| **slot < num_slots) {
            write_all_at(&self.index.file, &[0; RECORD_BYTES], record_start(*slot))
                .map_err(|source| self.index.error("write", source))?;
        }
        self.index.sync()
    }

    /// Forgets an eviction order that is damaged: the store counts as not closed, and the order is made from its records
    /// when it is opened.
    ///
    /// # Errors
    /// [`OpenError::NotWritable`], [`OpenError::Linked`], and [`OpenError::Io`].
    pub fn forget_order(&mut self) -> Result<(), OpenError> {
        self.check_writable()?;
        let next = self.superblock.next(StoreState::Open);
        write_superblock(&self.index, &next, 1 - self.block)?;
        self.block = 1 - self.block;
        self.superblocks[self.block] = Ok(next.clone());
        self.superblock = next;
        Ok(())
    }

    /// Writes every block of the slots of a store that has just been made once, so that no later write is slower than
    /// the others. `progress` is told of the bytes, as they are written; if it answers `false`, that is enough.
    ///
    /// # Errors
    /// [`OpenError::NotWritable`], [`OpenError::Linked`]; [`OpenError::Damaged`] and [`OpenError::Other`] as
    /// [`wipe`](Self::wipe), and nothing was written then; and [`OpenError::Io`]; the store is as good as it was.
    pub fn fill(&mut self, progress: &mut dyn FnMut(u64) -> bool) -> Result<(), OpenError> {
        self.check_writable()?;
        self.check_whole()?;
        let zeroes = AlignedBytes::zeroed(usize_of(PIECE_BYTES));
        for (device, file) in (0..).zip(&self.data) {
            let Some(file) = file else { continue };
            let mut fill = || -> io::Result<bool> {
                let (end, mut offset) = (self.geometry.file_bytes(device), DATA_START);
                while offset < end {
                    let count = PIECE_BYTES.min(end - offset);
                    write_all_at(&file.file, &zeroes.bytes()[..usize_of(count)], offset)?;
                    offset += count;
                    if (offset - DATA_START).is_multiple_of(SYNC_BYTES) {
                        file.file.sync_data()?;
                    }
                    if !progress(count) {
                        return Ok(false);
                    }
                }
                file.file.sync_all().map(|()| true)
            };
            if !fill().map_err(|source| file.error("fill", source))? {
                break;
            }
        }
        Ok(())
    }

    /// Checks that the files may be written, and are no others too. Whose they are is not asked: whoever mends a store may
    /// be another user than the one who has it.
    pub(super) fn check_writable(&self) -> Result<(), OpenError> {
        if let Some(kind) = self.not_writable {
            return Err(OpenError::NotWritable { path: self.index.path.clone(), source: kind.into() });
        }
        self.index.check_one_name()?;
        self.data.iter().flatten().try_for_each(LockedFile::check_one_name)
    }
}
