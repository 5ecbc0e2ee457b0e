//! The files of a store: made or opened, checked, locked, and taken over.
//!
//! ```text
//!   dirs[0]/kvo-nvme.index   superblock A │ superblock B │ a record a slot ... │ eviction order
//!   dirs[0]/kvo-nvme.data    header │ slots of device 0 ...
//!   dirs[1]/kvo-nvme.data    header │ slots of device 1 ...
//! ```
//!
//! The index file is made first and is the last to be removed, so data without an index is never ours. Until a
//! superblock says that the store is made, whoever opens it finishes the making. What is in the files is believed only
//! as far as it is sealed and agrees with the rest; what disagrees is named, and nothing is written before all of it
//! has been looked at. `docs/FORMAT.md` says what is where, and in which order it is written.

mod aligned;
mod create;
mod inspect;
mod judge;
mod locked;
mod reopen;
mod space;
mod system;

use std::{
    fs::{self, File},
    io,
    path::{Path, PathBuf},
};

pub use self::inspect::{ChunkDamage, ChunkInfo, Contents, Inspection, StoreInfo, create_store};
pub(crate) use self::reopen::CleanAgain;
use self::{
    create::create,
    judge::{Verdict, judge},
    locked::{Access, LockedFile, check_directories},
    reopen::reopen,
    system::{Real, System},
};
#[cfg(any(test, feature = "testing"))]
pub(crate) use self::{
    judge::as_if_lost,
    reopen::{Superblocks, begin_epoch},
};
use crate::{
    IfOther, NvmeOptions, OpenError,
    file::write_all_at,
    format::{BLOCK_BYTES, Superblock},
    journal::Recovered,
    options::Geometry,
};

/// The name of the store's file of chunks in each of its directories.
pub const FILE_NAME: &str = "kvo-nvme.data";
/// The name of the store's index file, in the first of its directories.
pub const INDEX_FILE_NAME: &str = "kvo-nvme.index";

/// How often to look again when another store makes or removes its files meanwhile.
const LOOK_TRIES: u32 = 16;

/// A store's files, ready for I/O; each is locked as long as it is open.
#[derive(Debug)]
pub(crate) struct OpenFiles {
    /// As it is, which may be smaller than was asked for.
    pub(crate) geometry: Geometry,
    /// One a device, in their order.
    pub(crate) data: Vec<DataFile>,
    pub(crate) index: Index,
    /// Whether the data files' I/O goes past the page cache.
    pub(crate) direct: bool,
    /// Whether a data file lies on a file system that writes elsewhere what is overwritten, and so can meet a full
    /// disk at any write.
    pub(crate) copy_on_write: bool,
    pub(crate) recovered: Recovered,
    /// The files that were not there before, to be [removed](remove) if the store cannot be opened for another reason.
    pub(crate) made: Vec<Made>,
    /// What to write if the store cannot be opened for another reason and was closed before.
    pub(crate) clean_again: Option<CleanAgain>,
}

/// A file that was not there before, and its lock: as long as that is kept, nobody has made the file theirs.
#[derive(Debug)]
pub(crate) struct Made {
    path: PathBuf,
    _lock: File,
}

/// A file of slots.
#[derive(Debug)]
pub(crate) struct DataFile {
    pub(crate) file: File,
    pub(crate) path: PathBuf,
}

/// The index file, and what its newest superblock says.
#[derive(Debug)]
pub(crate) struct Index {
    pub(crate) file: File,
    pub(crate) path: PathBuf,
    pub(crate) superblock: Superblock,
    /// Which of the two blocks that is; the other one is written next.
    pub(crate) block: usize,
}

/// Opens the store of `options` in its directories, or makes it, with `geometry`.
///
/// `direct` asks for I/O past the page cache; a file system that cannot do it is no error. When this returns, the
/// superblock with the epoch of this opening is on the device, and nothing is written any more but by the caller.
///
/// # Errors
/// See [`OpenError`].
pub(crate) fn open(options: &NvmeOptions, geometry: Geometry, direct: bool) -> Result<OpenFiles, OpenError> {
    open_with(options, geometry, direct, &Real)
}

fn open_with(
    options: &NvmeOptions,
    geometry: Geometry,
    direct: bool,
    system: &dyn System,
) -> Result<OpenFiles, OpenError> {
    check_directories(&options.dirs)?;
    for _ in 0..LOOK_TRIES {
        let found = Found::look(&options.dirs, Access::ReadWrite)?;
        found.check_ours(system)?;
        let verdict = match judge(&found, options, &geometry) {
            Err(error) if error.is_of_contents() && options.if_other == IfOther::Empty => {
                tracing::warn!(%error, "emptied: a new store is made in its place");
                Verdict::Make(found.history())
            }
            verdict => verdict?,
        };
        let opened = match verdict {
            Verdict::Make(history) => create(found, history, options, &geometry, system)?,
            Verdict::Open(known) => Some(reopen(found, known, options, system)?),
        };
        let Some(mut files) = opened else { continue };
        files.copy_on_write = warn_of_copy_on_write(&files.data, system);
        files.direct = direct && make_direct(&files.data, system);
        return Ok(files);
    }
    Err(OpenError::InUse { path: index_path(&options.dirs[0]) })
}

/// What is in the directories, opened and locked.
#[derive(Debug)]
struct Found {
    index: Option<LockedFile>,
    /// One a directory.
    data: Vec<Option<LockedFile>>,
}

impl Found {
    fn look(dirs: &[PathBuf], access: Access) -> Result<Self, OpenError> {
        let index = LockedFile::open(&index_path(&dirs[0]), access)?;
        let data = dirs.iter().map(|dir| LockedFile::open(&data_path(dir), access));
        Ok(Self { index, data: data.collect::<Result<_, _>>()? })
    }

    /// Checks of every file that it is ours alone.
    fn check_ours(&self, system: &dyn System) -> Result<(), OpenError> {
        let user = system.user();
        self.index.iter().chain(self.data.iter().flatten()).try_for_each(|file| file.check_ours(user))
    }
}

fn index_path(dir: &Path) -> PathBuf {
    dir.join(INDEX_FILE_NAME)
}

fn data_path(dir: &Path) -> PathBuf {
    dir.join(FILE_NAME)
}

/// Where the superblock `block` of an index begins.
fn block_start(block: usize) -> u64 {
    (block * BLOCK_BYTES) as u64
}

/// Writes the superblock into one of the two blocks, and sees it to the device.
fn write_superblock(index: &LockedFile, superblock: &Superblock, block: usize) -> Result<(), OpenError> {
    write_all_at(&index.file, &superblock.encode(), block_start(block))
        .and_then(|()| index.file.sync_all())
        .map_err(|source| index.error("write the superblock of", source))
}

fn warn_of_copy_on_write(data: &[DataFile], system: &dyn System) -> bool {
    let found = data.iter().find(|data| system::is_copy_on_write(system, &data.file));
    if let Some(DataFile { path, .. }) = found {
        tracing::warn!(?path, "this file system copies on write: writes may meet a full disk");
    }
    found.is_some()
}

/// Turns direct I/O on, for all files or for none.
fn make_direct(data: &[DataFile], system: &dyn System) -> bool {
    for DataFile { file, path } in data {
        let result = system.make_direct(file).and_then(|()| system::try_io(file));
        if let Err(error) = result {
            tracing::info!(?path, %error, "no direct I/O on this file system: the page cache is used");
            for DataFile { file, path } in data {
                if let Err(error) = system::set_direct(file, false) {
                    tracing::warn!(?path, %error, "cannot turn direct I/O off");
                }
            }
            return false;
        }
    }
    true
}

/// Removes files, the one that was made last first, while they are locked. What cannot be removed is room for the next
/// store.
pub(crate) fn remove(made: &[Made]) {
    for Made { path, .. } in made.iter().rev() {
        if let Err(error) = fs::remove_file(path)
            && error.kind() != io::ErrorKind::NotFound
        {
            tracing::warn!(?path, %error, "cannot remove a file that was made for nothing");
        }
    }
}

#[cfg(test)]
mod tests;
