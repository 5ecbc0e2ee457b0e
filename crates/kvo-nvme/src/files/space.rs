//! Room: how much a store needs on each file system, how large a store fits, and blocks for every byte of it.

use std::{
    fs::{self, File},
    io,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

use rustix::{
    fs::{Advice, fadvise},
    io::Errno,
};

use super::{
    Found,
    aligned::AlignedBytes,
    data_path,
    locked::LockedFile,
    system::{Space, System},
};
use crate::{OpenError, file::write_all_at, format::index_bytes, options::Geometry};

/// A store that is made smaller leaves one part of so many of each file system free.
const SPARED_PARTS: u64 = 100;
/// Bytes that are written at once where blocks are written for their own sake.
const PIECE_BYTES: usize = 1 << 20;
/// Bytes after which such writes wait for the device.
const SYNC_BYTES: u64 = 256 << 20;

/// The file systems of a store, and what it has there.
#[derive(Debug)]
pub(crate) struct Volumes(Vec<Volume>);

#[derive(Debug)]
struct Volume {
    /// The system's number of the file system.
    number: u64,
    /// The store's devices on it.
    devices: Vec<u32>,
    /// One of the store's files there.
    path: PathBuf,
    space: Space,
    /// Bytes of blocks that the store's files have already.
    allocated_bytes: u64,
}

impl Volumes {
    pub(crate) fn of(found: &Found, dirs: &[PathBuf], system: &dyn System) -> Result<Self, OpenError> {
        let mut volumes: Vec<Volume> = Vec::new();
        for ((dir, device), file) in dirs.iter().zip(0..).zip(&found.data) {
            let index = found.index.as_ref().filter(|_| device == 0);
            let mut allocated_bytes = 0;
            for file in [index, file.as_ref()].into_iter().flatten() {
                allocated_bytes += file.allocated_bytes()?;
            }
            let error = |source| OpenError::Io { operation: "inspect", path: dir.clone(), source };
            let number = fs::metadata(dir).map_err(error)?.dev();
            if let Some(volume) = volumes.iter_mut().find(|volume| volume.number == number) {
                volume.devices.push(device);
                volume.allocated_bytes += allocated_bytes;
            } else {
                let space = system.space(dir).map_err(|errno| error(errno.into()))?;
                let devices = vec![device];
                volumes.push(Volume { number, devices, path: data_path(dir), space, allocated_bytes });
            }
        }
        Ok(Self(volumes))
    }

    /// Whether there is room for the store.
    ///
    /// # Errors
    /// [`OpenError::NoRoom`], with the numbers of the first file system that has too little.
    pub(crate) fn check(&self, geometry: &Geometry) -> Result<(), OpenError> {
        match self.0.iter().find(|volume| !volume.holds(geometry, 0)) {
            Some(volume) => Err(volume.no_room(geometry)),
            None => Ok(()),
        }
    }

    /// The largest store below `geometry` that leaves some of each file system free.
    ///
    /// # Errors
    /// [`OpenError::NoRoom`] if not even one slot a device does.
    pub(crate) fn largest_below(&self, geometry: &Geometry) -> Result<Geometry, OpenError> {
        let holds = |capacity| {
            let smaller = geometry.with_capacity(capacity);
            self.0.iter().all(|volume| volume.holds(&smaller, volume.space.total_bytes / SPARED_PARTS))
        };
        // Invariant: what is below `low` fits, what is from `high` on does not.
        let (mut low, mut high) = (geometry.num_devices, geometry.capacity);
        while low < high {
            let middle = low + (high - low) / 2;
            if holds(middle) {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        let capacity = low - 1;
        if capacity >= geometry.num_devices {
            return Ok(geometry.with_capacity(capacity));
        }
        let smallest = geometry.with_capacity(geometry.num_devices);
        let full = self.0.iter().find(|volume| !volume.holds(geometry, 0)).unwrap_or(&self.0[0]);
        Err(full.no_room(&smallest))
    }

    /// What to say when the system had no room for the file at `path`.
    pub(crate) fn no_room_in(&self, path: &Path, geometry: &Geometry) -> OpenError {
        let number = fs::metadata(path).map(|metadata| metadata.dev()).ok();
        let volume = self.0.iter().find(|volume| Some(volume.number) == number).unwrap_or(&self.0[0]);
        volume.no_room(geometry)
    }
}

impl Volume {
    fn needed_bytes(&self, geometry: &Geometry) -> u64 {
        let index = if self.devices.contains(&0) { index_bytes(geometry.capacity) } else { 0 };
        self.devices.iter().fold(index, |sum, &device| sum.saturating_add(geometry.file_bytes(device)))
    }

    fn holds(&self, geometry: &Geometry, spared_bytes: u64) -> bool {
        let room = self.space.available_bytes.saturating_add(self.allocated_bytes);
        self.needed_bytes(geometry).saturating_add(spared_bytes) <= room
    }

    fn no_room(&self, geometry: &Geometry) -> OpenError {
        OpenError::NoRoom {
            path: self.path.clone(),
            needed_bytes: self.needed_bytes(geometry),
            allocated_bytes: self.allocated_bytes,
            available_bytes: self.space.available_bytes,
        }
    }
}

/// Why a file did not get its blocks.
#[derive(Debug)]
pub(crate) enum AllocateError {
    /// The file system or a quota is full.
    NoRoom,
    Other(OpenError),
}

impl AllocateError {
    /// The error as it is told, with what `no_room` finds out.
    pub(crate) fn told(self, no_room: impl FnOnce() -> OpenError) -> OpenError {
        match self {
            Self::NoRoom => no_room(),
            Self::Other(error) => error,
        }
    }
}

impl From<OpenError> for AllocateError {
    fn from(error: OpenError) -> Self {
        Self::Other(error)
    }
}

/// Makes `file` exactly `bytes` long with a block behind every byte; what is before `start` stays as it is.
pub(crate) fn give_blocks(
    system: &dyn System,
    file: &LockedFile,
    start: u64,
    bytes: u64,
) -> Result<(), AllocateError> {
    file.cut(bytes)?;
    match system.allocate(&file.file, bytes) {
        Ok(()) => Ok(()),
        Err(Errno::NOSPC | Errno::DQUOT) => Err(AllocateError::NoRoom),
        Err(Errno::OPNOTSUPP | Errno::NOSYS) => {
            let path = &file.path;
            tracing::warn!(?path, bytes, "no fallocate on this file system: writing zeroes instead");
            write_zeroes(file, start, bytes)
        }
        Err(errno) => Err(file.error("allocate", errno.into()).into()),
    }
}

/// Writes every byte from `start` to `end` and waits for the device, so that a lack of room shows now and not at some
/// later write-back.
pub(crate) fn write_zeroes(file: &LockedFile, start: u64, end: u64) -> Result<(), AllocateError> {
    write_zeroes_to(&file.file, start, end).map_err(|source| match source.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => AllocateError::NoRoom,
        _ => file.error("fill", source).into(),
    })
}

fn write_zeroes_to(file: &File, start: u64, end: u64) -> io::Result<()> {
    let zeroes = AlignedBytes::zeroed(PIECE_BYTES);
    let (mut offset, mut synced) = (start, start);
    while offset < end {
        let count = usize::try_from(end - offset).unwrap_or(PIECE_BYTES).min(PIECE_BYTES);
        write_all_at(file, &zeroes.bytes()[..count], offset)?;
        offset += count as u64;
        if offset - synced >= SYNC_BYTES {
            file.sync_data()?;
            // It helps the others on this machine; where it does nothing, nothing is lost.
            let _ = fadvise(file, synced, None, Advice::DontNeed);
            synced = offset;
        }
    }
    file.sync_all()
}

/// Gives blocks back to a file that lost them where a copy left out zeros; what it holds stays as it is.
pub(crate) fn refill(system: &dyn System, file: &LockedFile) -> Result<(), AllocateError> {
    let bytes = file.len()?;
    if file.allocated_bytes()? >= bytes {
        return Ok(());
    }
    match system.allocate(&file.file, bytes) {
        Ok(()) => Ok(()),
        Err(Errno::NOSPC | Errno::DQUOT) => Err(AllocateError::NoRoom),
        Err(errno) => {
            let path = &file.path;
            tracing::warn!(?path, %errno, "the file has holes that cannot be filled: writes may meet a full disk");
            Ok(())
        }
    }
}
