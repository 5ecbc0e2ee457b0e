//! The one file that all subjects write and read in turns.

use std::{
    fs::{File, OpenOptions},
    io,
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
};

use anyhow::Context;
use rustix::fs::{FallocateFlags, OFlags};

use super::{HostChunks, allows_direct_io};

/// Where the chunks begin in the file, as they do in a store's.
const START_BYTES: u64 = 2 << 20;

/// A store's data file, in which a chunk has the same place for everyone.
///
/// How fast a disk writes depends on the place: on a virtual one by a third from one file to the next. So the subjects
/// share these blocks: each round of a store makes a new store of what is there, and the others write over it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlotFile {
    dir: PathBuf,
    chunk_bytes: u64,
    is_direct: bool,
}

impl SlotFile {
    /// Makes the file in `dir`, a directory of its own, with blocks for all chunks of `host`.
    ///
    /// # Errors
    /// If the file cannot be made.
    pub fn make(dir: &Path, host: &HostChunks) -> anyhow::Result<Self> {
        let is_direct = allows_direct_io(dir)?;
        let chunk_bytes = host.chunk_bytes() as u64;
        let this = Self { dir: dir.to_owned(), chunk_bytes, is_direct };
        let make = || {
            let file = File::create(this.path())?;
            let bytes = START_BYTES + chunk_bytes * u64::from(host.num_chunks());
            // Where blocks cannot be taken ahead, the round that does not count takes them.
            let _ = rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, bytes);
            io::Result::Ok(())
        };
        make().with_context(|| format!("cannot make {}", this.path().display()))?;
        Ok(this)
    }

    /// Its directory.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The file.
    pub fn path(&self) -> PathBuf {
        self.dir.join(kvo_nvme::FILE_NAME)
    }

    /// Whether it is read and written around the page cache.
    pub fn is_direct(&self) -> bool {
        self.is_direct
    }

    /// Where the chunks begin.
    pub fn start(&self) -> u64 {
        START_BYTES
    }

    /// Where chunk `index` is.
    pub fn offset(&self, index: u32) -> u64 {
        START_BYTES + u64::from(index) * self.chunk_bytes
    }

    /// Opens it for plain I/O.
    pub(super) fn open(&self) -> io::Result<File> {
        let mut options = OpenOptions::new();
        options.read(true).write(true);
        if self.is_direct {
            options.custom_flags(i32::try_from(OFlags::DIRECT.bits()).unwrap_or_default());
        }
        options.open(self.path())
    }
}
