//! A store looked into without being opened: what it is, what is in it, what is wrong with it.

use std::{fmt, io, path::PathBuf};

use kvo_core::OffloadKey;
use rustix::io::Errno;

use super::{
    Found,
    aligned::AlignedBytes,
    create::create,
    index_path,
    judge::{Verdict, as_if_lost, check_data_file, check_length, judge, other},
    locked::{Access, LockedFile, check_directories},
    remove,
    reopen::{Piece, each_piece, read_table},
    system::{Real, set_direct},
    write_superblock,
};
use crate::{
    ChecksumKind, FileDamage, NvmeOptions, OpenError, RecoveryReport,
    checksum::checksum,
    file::read_exact_at,
    format::{
        Damage, FORMAT_VERSION, RECORD_BYTES, Record, RecordState, StoreId, StoreState, Superblock,
        index_bytes, newest, number_of, order_start, order_sum,
    },
    options::Geometry,
};

mod repair;
mod wipe;

#[cfg(test)]
mod tests;

/// A store that is looked into. Nobody else can open it meanwhile.
///
/// Nothing is written but by the calls that mend something, so that files which may only be read are enough for the
/// others. What is wrong with the store is told, and what is left of it
/// can be read, as far as one superblock says what is where.
pub struct Inspection {
    dirs: Vec<PathBuf>,
    index: LockedFile,
    /// One a directory, where it is there.
    data: Vec<Option<LockedFile>>,
    superblocks: [Result<Superblock, Damage>; 2],
    /// The one that counts, as it is to be understood.
    superblock: Superblock,
    block: usize,
    geometry: Geometry,
    problems: Vec<OpenError>,
    /// Why its files could be opened for reading only.
    not_writable: Option<io::ErrorKind>,
    /// Of one slot.
    buffer: AlignedBytes,
}

/// What a store is.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct StoreInfo {
    /// The name that was drawn when it was made.
    pub id: StoreId,
    /// How it was left.
    pub state: StoreState,
    /// Of the format.
    pub version: u32,
    /// One more at each write of a superblock.
    pub sequence: u64,
    /// One more at each opening.
    pub epoch: u64,
    /// Bytes of a chunk.
    pub chunk_bytes: u64,
    /// Bytes from one slot of a data file to the next.
    pub stride_bytes: u64,
    /// Slots that it has.
    pub capacity_chunks: u32,
    /// Slots that were asked for; more than there are if there was too little room.
    pub asked_chunks: u32,
    /// Directories that it is on.
    pub num_devices: u32,
    /// What is computed over each chunk; none if it is nothing that this version knows, or nothing at all.
    pub checksum: Option<ChecksumKind>,
    /// What the chunks' bytes mean, as the one who made the store has said it.
    pub fingerprint: [u8; 32],
    /// When it was made, in seconds since the epoch of Unix.
    pub created_s: u64,
    /// Payload bytes that were written in its life, up to this superblock.
    pub written_bytes: u64,
}

/// A chunk, as the record of its slot says it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ChunkInfo {
    /// Where it is.
    pub slot: u32,
    /// Whose it is.
    pub key: OffloadKey,
    /// Bytes of it.
    pub length: u32,
    /// Of the write: a later write has a higher one.
    pub generation: u64,
    /// Where it ends in its request, in tokens.
    pub end_token: Option<u32>,
    checksum: u64,
}

/// What is in a store by its records.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Contents {
    /// The chunks, each key once, the next to be evicted first.
    pub chunks: Vec<ChunkInfo>,
    /// Slots that failed, and are not used.
    pub quarantined: Vec<u32>,
    /// Slots whose records are torn, cannot be read, or are nothing that this version wrote.
    pub damaged: Vec<u32>,
    /// The same in numbers, as opening the store would tell it.
    pub report: RecoveryReport,
}

/// Why a chunk is not what was written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ChunkDamage {
    /// It cannot be read.
    #[error("cannot be read: {0}")]
    Unreadable(io::Error),
    /// Its bytes are other ones.
    #[error("the checksum is {found:#018x}, written was {written:#018x}")]
    Checksum {
        /// What its record says.
        written: u64,
        /// What its bytes sum up to.
        found: u64,
    },
}

impl Inspection {
    /// Looks into the store in `dirs`, given in the order in which it was made.
    ///
    /// # Errors
    /// [`OpenError::InUse`] if a store or another inspection has it open, [`OpenError::Other`] if it is of another
    /// version or no store is there, [`OpenError::Damaged`] if neither superblock can be used or there is no index,
    /// and the errors of directories and files. Whatever else is wrong is no error here but one of
    /// [`problems`](Self::problems).
    pub fn open(dirs: &[PathBuf]) -> Result<Self, OpenError> {
        if dirs.is_empty() {
            return Err(OpenError::Zero { field: "dirs" });
        }
        check_directories(dirs)?;
        let (found, not_writable) = match Found::look(dirs, Access::ReadWrite) {
            Err(OpenError::NotWritable { source, .. }) => {
                (Found::look(dirs, Access::ReadOnly)?, Some(source.kind()))
            }
            found => (found?, None),
        };
        let superblocks = found.superblocks();
        let (Some(index), Some(superblocks)) = (found.index, superblocks) else {
            return Err(OpenError::Damaged { path: index_path(&dirs[0]), damage: FileDamage::Missing });
        };
        let mut inspection = Self::of(dirs, index, found.data, superblocks)?;
        inspection.not_writable = not_writable;
        Ok(inspection)
    }

    fn of(
        dirs: &[PathBuf],
        index: LockedFile,
        data: Vec<Option<LockedFile>>,
        superblocks: [Result<Superblock, Damage>; 2],
    ) -> Result<Self, OpenError> {
        let mut is_one_lost = false;
        for block in &superblocks {
            match block {
                Err(Damage::Version(version)) => {
                    return Err(other(&index.path, "format version", version, FORMAT_VERSION));
                }
                Err(_) => is_one_lost = true,
                Ok(_) => {}
            }
        }
        let (superblock, block) = newest(superblocks.clone()).map_err(|[a, b]| OpenError::Damaged {
            path: index.path.clone(),
            damage: FileDamage::Superblocks(a, b),
        })?;
        let is_made = superblock.state != StoreState::Creating;
        let superblock = if is_one_lost && is_made { as_if_lost(&superblock) } else { superblock };
        let geometry = superblock.geometry().ok_or_else(|| {
            other(&index.path, "num_slots", superblock.num_slots, "as many as files can hold")
        })?;
        let slot_bytes = usize::try_from(geometry.stride_bytes)
            .map_err(|_| other(&index.path, "chunk_bytes", superblock.chunk_bytes, "what fits the memory"))?;
        let buffer = AlignedBytes::zeroed(slot_bytes);
        let dirs = dirs.to_vec();
        let mut inspection = Self {
            dirs,
            index,
            data,
            superblocks,
            superblock,
            block,
            geometry,
            problems: Vec::new(),
            not_writable: None,
            buffer,
        };
        inspection.look_for_problems();
        Ok(inspection)
    }

    fn look_for_problems(&mut self) {
        self.problems.clear();
        if self.superblock.state == StoreState::Creating {
            return;
        }
        let wanted = self.superblock.num_devices as usize;
        self.problems.extend(self.check_dirs().err());
        let length = check_length(&self.index, index_bytes(self.superblock.num_slots));
        self.problems.extend(length.err());
        for ((device, file), dir) in (0..).zip(&self.data).zip(&self.dirs).take(wanted) {
            let check = check_data_file(file.as_ref(), dir, &self.superblock, &self.geometry, device);
            self.problems.extend(check.err());
        }
    }

    /// Checks that as many directories were given as the store has devices.
    fn check_dirs(&self) -> Result<(), OpenError> {
        let (wanted, given) = (self.superblock.num_devices as usize, self.dirs.len());
        if wanted == given { Ok(()) } else { Err(other(&self.index.path, "dirs", wanted, given)) }
    }

    /// Checks that the store is made, and that every data file is there, of this store, and whole.
    fn check_whole(&self) -> Result<(), OpenError> {
        if self.superblock.state == StoreState::Creating {
            return Err(other(&self.index.path, "state", "being made", "made"));
        }
        self.check_dirs()?;
        check_length(&self.index, index_bytes(self.superblock.num_slots))?;
        for ((device, file), dir) in (0..).zip(&self.data).zip(&self.dirs) {
            check_data_file(file.as_ref(), dir, &self.superblock, &self.geometry, device)?;
        }
        Ok(())
    }

    /// Its directories.
    pub fn dirs(&self) -> &[PathBuf] {
        &self.dirs
    }

    /// What the store is, by the superblock that counts.
    pub fn info(&self) -> StoreInfo {
        StoreInfo::of(&self.superblock)
    }

    /// What each of the two superblocks says, or why it says nothing.
    pub fn superblocks(&self) -> [Result<StoreInfo, Damage>; 2] {
        self.superblocks.each_ref().map(|block| match block {
            Ok(superblock) => Ok(StoreInfo::of(superblock)),
            Err(damage) => Err(*damage),
        })
    }

    /// Why the store could not be opened, as it is: damage of files, or directories that are missing or mixed up. A
    /// damaged superblock does not keep anybody from opening it, as long as the other one is there.
    pub fn problems(&self) -> &[OpenError] {
        &self.problems
    }

    /// The same, where nothing else is wanted of the store.
    pub fn into_problems(self) -> Vec<OpenError> {
        self.problems
    }

    /// Reads all records. Nothing is in a store whose making has not ended.
    ///
    /// # Errors
    /// If the index cannot be read, or is too short for its records; single blocks that cannot be read are damaged
    /// records.
    pub fn read_records(&self) -> io::Result<Contents> {
        if self.superblock.state == StoreState::Creating {
            return Ok(Contents::default());
        }
        // How many slots there are is believed from here on, and memory taken for them.
        if self.index.file.metadata()?.len() < order_start(self.superblock.num_slots) {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let recovered = read_table(&self.index.file, &self.superblock)?;
        let mut report = recovered.report;
        report.superblock_damaged = self.superblocks.iter().any(Result::is_err);
        let chunk = |entry: &crate::journal::Entry| match entry.state {
            RecordState::Chunk(record) => Some(ChunkInfo::of(entry.slot, &record)),
            RecordState::Quarantined => None,
        };
        Ok(Contents {
            chunks: recovered.chunks.iter().filter_map(chunk).collect(),
            quarantined: recovered.quarantined,
            damaged: self.damaged_records()?,
            report,
        })
    }

    fn damaged_records(&self) -> io::Result<Vec<u32>> {
        let (id, num_slots) = (self.superblock.id, self.superblock.num_slots);
        let (mut next, mut damaged) = (0, Vec::new());
        each_piece(&self.index.file, num_slots, &mut |piece| match piece {
            Piece::Records(bytes) => {
                for bytes in bytes.as_chunks::<RECORD_BYTES>().0 {
                    let is_damaged = matches!(RecordState::decode(bytes, id, next), Err(damage) if damage != Damage::Empty);
                    damaged.extend((is_damaged && next < num_slots).then_some(next));
                    next += 1;
                }
            }
            Piece::Unreadable(count) => {
                damaged.extend((next..next + count).filter(|slot| *slot < num_slots));
                next += count;
            }
        })?;
        Ok(damaged)
    }

    /// Reads a chunk from the device and compares its checksum; its bytes are good then, and are lent.
    ///
    /// # Errors
    /// [`ChunkDamage`]; the others can be read all the same.
    pub fn read_chunk(&mut self, chunk: &ChunkInfo) -> Result<&[u8], ChunkDamage> {
        let length = chunk.length as usize;
        if chunk.slot >= self.geometry.capacity || length > self.buffer.bytes().len() {
            return Err(ChunkDamage::Unreadable(Errno::INVAL.into()));
        }
        self.fill_buffer(chunk.slot).map_err(ChunkDamage::Unreadable)?;
        let bytes = &self.buffer.bytes()[..length];
        let found = checksum(&chunk.key, chunk.generation, bytes);
        if found == chunk.checksum {
            Ok(bytes)
        } else {
            Err(ChunkDamage::Checksum { written: chunk.checksum, found })
        }
    }

    /// Reads a slot past the page cache, where the file system can do so.
    fn fill_buffer(&mut self, slot: u32) -> io::Result<()> {
        let place = self.geometry.place(slot);
        let Some(LockedFile { file, .. }) = self.data.get(place.device as usize).and_then(Option::as_ref)
        else {
            return Err(io::ErrorKind::NotFound.into());
        };
        let is_direct = set_direct(file, true).is_ok();
        let result = read_exact_at(file, self.buffer.bytes_mut(), place.offset);
        if is_direct {
            // Headers are read and written from where memory happens to lie.
            set_direct(file, false)?;
        }
        match result {
            Err(error) if is_direct && Errno::from_io_error(&error) == Some(Errno::INVAL) => {
                read_exact_at(file, self.buffer.bytes_mut(), place.offset)
            }
            result => result,
        }
    }
}

impl StoreInfo {
    fn of(superblock: &Superblock) -> Self {
        let is_known = superblock.checksum_kind == number_of(ChecksumKind::Xxh3);
        Self {
            id: superblock.id,
            state: superblock.state,
            version: FORMAT_VERSION,
            sequence: superblock.sequence,
            epoch: superblock.epoch,
            chunk_bytes: superblock.chunk_bytes,
            stride_bytes: superblock.stride_bytes,
            capacity_chunks: superblock.num_slots,
            asked_chunks: superblock.asked_slots,
            num_devices: superblock.num_devices,
            checksum: is_known.then_some(ChecksumKind::Xxh3),
            fingerprint: superblock.fingerprint,
            created_s: superblock.created_s,
            written_bytes: superblock.written_bytes,
        }
    }
}

impl ChunkInfo {
    fn of(slot: u32, record: &Record) -> Self {
        Self {
            slot,
            key: record.key,
            length: record.length,
            generation: record.generation,
            end_token: record.end_token,
            checksum: record.checksum,
        }
    }
}

/// Makes a store, gives it all its room, and closes it: the next opening finds it empty. A store whose making was
/// interrupted is finished.
///
/// A store that is there is emptied if `options` say so ([`IfOther::Empty`](crate::IfOther::Empty)), the same one too.
///
/// # Errors
/// [`OpenError::Exists`] if the store of `options` is there and is not to be emptied; else as
/// [`NvmeStore::open`](crate::NvmeStore::open).
pub fn create_store(options: &NvmeOptions) -> Result<Inspection, OpenError> {
    let geometry = options.geometry(None)?;
    check_directories(&options.dirs)?;
    for _ in 0..super::LOOK_TRIES {
        let found = Found::look(&options.dirs, Access::ReadWrite)?;
        found.check_ours(&Real)?;
        let is_to_empty = options.if_other == crate::IfOther::Empty;
        let history = match judge(&found, options, &geometry) {
            Ok(Verdict::Make(history)) => history,
            Ok(Verdict::Open(_)) if !is_to_empty => {
                return Err(OpenError::Exists { path: index_path(&options.dirs[0]) });
            }
            Err(error) if !is_to_empty || !error.is_of_contents() => return Err(error),
            Ok(Verdict::Open(_)) | Err(_) => found.history(),
        };
        let Some(files) = create(found, history, options, &geometry, &Real)? else { continue };
        let super::Index { file, path, superblock, block } = files.index;
        let index = LockedFile { file, path };
        let clean = Superblock { order_sum: order_sum(&[]), ..superblock.next(StoreState::Clean) };
        write_superblock(&index, &clean, 1 - block).inspect_err(|_| remove(&files.made))?;
        let data = files.data.into_iter().map(|data| Some(LockedFile { file: data.file, path: data.path }));
        let data = data.collect();
        let mut superblocks = [Ok(superblock), Ok(clean)];
        superblocks.rotate_left(block);
        return Inspection::of(&options.dirs, index, data, superblocks);
    }
    Err(OpenError::InUse { path: index_path(&options.dirs[0]) })
}

impl fmt::Debug for Inspection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Inspection")
            .field("dirs", &self.dirs)
            .field("superblocks", &self.superblocks)
            .finish_non_exhaustive()
    }
}
