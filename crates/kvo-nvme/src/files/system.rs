//! What is asked of the system while files are made and opened; the seam at which tests put faults.

use std::{fs::File, io, path::Path};

use rustix::{
    fs::{
        FallocateFlags, IFlags, OFlags, fallocate, fcntl_getfl, fcntl_setfl, fstatfs, ioctl_getflags,
        ioctl_setflags, statvfs,
    },
    io::{Errno, retry_on_intr},
    process::geteuid,
};

use super::aligned::AlignedBytes;
use crate::{
    file::{read_exact_at, write_all_at},
    format::BLOCK_BYTES,
};

/// File systems that write elsewhere what is overwritten, by the magic numbers that the kernel gives them.
const BTRFS: u64 = 0x9123_683e;
const ZFS: u64 = 0x2fc1_2fc1;
const BCACHEFS: u64 = 0xca45_1a4e;

/// Where a data file is written and read on trial: between its header and its slots.
const TRIAL_OFFSET: u64 = 1 << 20;

/// Room on a file system.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Space {
    /// Bytes that may be allocated.
    pub(crate) available_bytes: u64,
    pub(crate) total_bytes: u64,
}

/// The system, or a test's stand-in for parts of it.
pub(crate) trait System {
    /// Gives the file blocks for its first `bytes` bytes, and that length at least.
    fn allocate(&self, file: &File, bytes: u64) -> Result<(), Errno> {
        retry_on_intr(|| fallocate(file, FallocateFlags::empty(), 0, bytes))
    }

    /// Asks for the room on the file system of `dir`.
    fn space(&self, dir: &Path) -> Result<Space, Errno> {
        let stat = statvfs(dir)?;
        let bytes = |blocks: u64| blocks.saturating_mul(stat.f_frsize);
        Ok(Space { available_bytes: bytes(stat.f_bavail), total_bytes: bytes(stat.f_blocks) })
    }

    /// The magic number of the file system of `file`.
    fn file_system(&self, file: &File) -> Result<u64, Errno> {
        // A word of the kernel, which has a sign on some machines: only its lower half counts.
        fstatfs(file).map(|stat| stat.f_type.cast_unsigned() & 0xffff_ffff)
    }

    /// Lets the file's I/O go past the page cache, if the file system can do so.
    fn make_direct(&self, file: &File) -> io::Result<()> {
        set_direct(file, true)
    }

    /// Whose files are ours.
    fn user(&self) -> u32 {
        geteuid().as_raw()
    }

    /// Comes before each step of a creation that a loss of power could part from the one before.
    fn before_step(&self) {}
}

/// The system as it is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Real;

impl System for Real {}

/// Turns direct I/O on or off.
pub(crate) fn set_direct(file: &File, direct: bool) -> io::Result<()> {
    let mut flags = fcntl_getfl(file)?;
    flags.set(OFlags::DIRECT, direct);
    Ok(fcntl_setfl(file, flags)?)
}

/// Writes and reads a block between header and slots: not every file system that takes the flag for direct I/O does
/// such I/O.
pub(crate) fn try_io(file: &File) -> io::Result<()> {
    let mut block = AlignedBytes::zeroed(BLOCK_BYTES);
    let pattern: Vec<u8> = (0..=u8::MAX).cycle().take(BLOCK_BYTES).collect();
    block.bytes_mut().copy_from_slice(&pattern);
    write_all_at(file, block.bytes(), TRIAL_OFFSET)?;
    block.bytes_mut().fill(0);
    read_exact_at(file, block.bytes_mut(), TRIAL_OFFSET)?;
    if block.bytes() == pattern {
        Ok(())
    } else {
        Err(io::Error::other("a block came back with other bytes than were written"))
    }
}

/// Whether overwriting the file needs new blocks: then it can meet a full disk, however many blocks it has.
pub(crate) fn is_copy_on_write(system: &dyn System, file: &File) -> bool {
    match system.file_system(file) {
        Ok(BTRFS) => !ioctl_getflags(file).is_ok_and(|flags| flags.contains(IFlags::NOCOW)),
        Ok(ZFS | BCACHEFS) => true,
        Ok(_) => false,
        Err(errno) => {
            tracing::warn!(%errno, "cannot tell which file system this is");
            false
        }
    }
}

/// Asks the file system not to copy on write, where it can be asked: only as long as the file is empty.
pub(crate) fn avoid_copy_on_write(system: &dyn System, file: &File) {
    if system.file_system(file) == Ok(BTRFS)
        && let Err(errno) = ioctl_getflags(file).and_then(|flags| ioctl_setflags(file, flags | IFlags::NOCOW))
    {
        tracing::debug!(%errno, "the file stays copy-on-write");
    }
}
