//! The store's file: opened, locked, and given all of its blocks before the first chunk is written.

use std::{
    fs::{self, File, OpenOptions},
    io,
    os::unix::fs::{MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

use rustix::{
    fs::{FallocateFlags, FlockOperation, OFlags, fallocate, flock, fstatvfs},
    io::{Errno, retry_on_intr},
};

use crate::{FILE_NAME, OpenError, file::write_all_at};

/// How often to open again when the file vanishes between opening and locking.
const OPEN_TRIES: u32 = 16;

/// What gives the file its blocks: `fallocate`, or a test's stand-in for it.
type Allocate<'a> = &'a dyn Fn(&File, u64) -> Result<(), Errno>;

/// A file with all of its blocks, locked as long as it is open.
#[derive(Debug)]
pub(crate) struct Room {
    pub(crate) file: File,
    pub(crate) path: PathBuf,
    /// Whether it was made just now, and not there before.
    pub(crate) created: bool,
}

/// Opens the store's file in `dir`, locks it, and makes it `bytes` long with a block behind every byte.
///
/// What an earlier store left there is used as room. On an error a file that was made here is removed, and one that
/// was there is not longer than before.
pub(crate) fn prepare(dir: &Path, bytes: u64) -> Result<Room, OpenError> {
    prepare_with(dir, bytes, &|file, bytes| {
        retry_on_intr(|| fallocate(file, FallocateFlags::empty(), 0, bytes))
    })
}

fn prepare_with(dir: &Path, bytes: u64, allocate: Allocate<'_>) -> Result<Room, OpenError> {
    check_directory(dir)?;
    let path = dir.join(FILE_NAME);
    let (file, created) = open_locked(&path)?;
    let old_bytes = metadata(&file, &path)?.len();
    if let Err(error) = give_blocks(&file, &path, bytes, allocate) {
        // The first error says why; if tidying up fails too, the file stays, and the next store uses it as room.
        let _ = if created { fs::remove_file(&path) } else { file.set_len(old_bytes.min(bytes)) };
        return Err(error);
    }
    Ok(Room { file, path, created })
}

fn check_directory(dir: &Path) -> Result<(), OpenError> {
    let path = || dir.to_path_buf();
    match fs::metadata(dir) {
        Ok(metadata) if metadata.is_dir() => Ok(()),
        Ok(_) => Err(OpenError::NotADirectory { path: path() }),
        Err(source) => Err(match source.kind() {
            io::ErrorKind::NotFound => OpenError::DirectoryMissing { path: path() },
            io::ErrorKind::NotADirectory => OpenError::NotADirectory { path: path() },
            io::ErrorKind::PermissionDenied => OpenError::NotWritable { path: path(), source },
            _ => OpenError::Io { operation: "inspect", path: path(), source },
        }),
    }
}

/// Opens or makes the file and takes its lock; says whether it was made.
fn open_locked(path: &Path) -> Result<(File, bool), OpenError> {
    for _ in 0..OPEN_TRIES {
        let (file, created) = match open(path, true) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => (open(path, false), false),
            other => (other, true),
        };
        let file = match file {
            // Another store gave up and removed its file just now.
            Err(error) if !created && error.kind() == io::ErrorKind::NotFound => continue,
            other => other.map_err(|source| open_error(path, source))?,
        };
        if !metadata(&file, path)?.is_file() {
            return Err(OpenError::NotAFile { path: path.to_path_buf() });
        }
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => return Err(OpenError::InUse { path: path.to_path_buf() }),
            Err(errno) => return Err(io_error("lock", path, errno.into())),
        }
        // The lock is on the file, not on its name: one that was removed meanwhile keeps nobody out.
        if metadata(&file, path)?.nlink() > 0 {
            return Ok((file, created));
        }
    }
    Err(OpenError::InUse { path: path.to_path_buf() })
}

fn open(path: &Path, create_new: bool) -> io::Result<File> {
    // Not through a link, and not waiting for the other end of a pipe.
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
    OpenOptions::new()
        .read(true)
        .write(true)
        .create_new(create_new)
        .mode(0o600)
        .custom_flags(flags.bits().cast_signed())
        .open(path)
}

fn open_error(path: &Path, source: io::Error) -> OpenError {
    let path = path.to_path_buf();
    match source.kind() {
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
            OpenError::NotWritable { path, source }
        }
        io::ErrorKind::IsADirectory => OpenError::NotAFile { path },
        _ if matches!(Errno::from_io_error(&source), Some(Errno::LOOP | Errno::NXIO)) => {
            OpenError::NotAFile { path }
        }
        _ => OpenError::Io { operation: "open", path, source },
    }
}

fn give_blocks(file: &File, path: &Path, bytes: u64, allocate: Allocate<'_>) -> Result<(), OpenError> {
    if metadata(file, path)?.len() > bytes {
        file.set_len(bytes).map_err(|source| io_error("shorten", path, source))?;
    }
    let allocated_bytes = metadata(file, path)?.blocks().saturating_mul(512).min(bytes);
    let available_bytes = available_bytes(file, path)?;
    let no_room = || OpenError::NoRoom {
        path: path.to_path_buf(),
        needed_bytes: bytes,
        allocated_bytes,
        available_bytes,
    };
    // Asking first spares a long allocation that must fail, and gives the numbers.
    if bytes - allocated_bytes > available_bytes {
        return Err(no_room());
    }
    match allocate(file, bytes) {
        Ok(()) => Ok(()),
        Err(Errno::NOSPC | Errno::DQUOT) => Err(no_room()),
        Err(Errno::OPNOTSUPP | Errno::NOSYS) => {
            tracing::warn!(?path, bytes, "no fallocate on this file system: writing zeroes instead");
            write_zeroes(file, bytes).map_err(|source| match source.kind() {
                io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => no_room(),
                _ => io_error("fill", path, source),
            })
        }
        Err(errno) => Err(io_error("allocate", path, errno.into())),
    }
}

fn available_bytes(file: &File, path: &Path) -> Result<u64, OpenError> {
    let stat = fstatvfs(file).map_err(|errno| io_error("ask for the room of", path, errno.into()))?;
    Ok(stat.f_bavail.saturating_mul(stat.f_frsize))
}

/// Writes the whole file and waits for the disk, so that a lack of room shows now and not at some later write-back.
fn write_zeroes(file: &File, bytes: u64) -> io::Result<()> {
    let zeroes = vec![0; 1 << 20];
    let mut offset = 0;
    while offset < bytes {
        let count = (bytes - offset).min(zeroes.len() as u64);
        write_all_at(file, &zeroes[..usize::try_from(count).unwrap_or(zeroes.len())], offset)?;
        offset += count;
    }
    file.sync_all()
}

fn metadata(file: &File, path: &Path) -> Result<fs::Metadata, OpenError> {
    file.metadata().map_err(|source| io_error("inspect", path, source))
}

fn io_error(operation: &'static str, path: &Path, source: io::Error) -> OpenError {
    OpenError::Io { operation, path: path.to_path_buf(), source }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn no_fallocate(_: &File, _: u64) -> Result<(), Errno> {
        Err(Errno::OPNOTSUPP)
    }

    #[test]
    fn without_fallocate_every_block_is_written() {
        let dir = tempfile::tempdir().unwrap();
        let bytes = 3 * 1024 * 1024 + 4096;
        let Room { file, path, created } = prepare_with(dir.path(), bytes, &no_fallocate).unwrap();
        assert!(created);
        assert_eq!(path, dir.path().join(FILE_NAME));
        let metadata = file.metadata().unwrap();
        assert_eq!(metadata.len(), bytes);
        assert!(metadata.blocks() * 512 >= bytes, "{} blocks", metadata.blocks());
    }

    #[test]
    fn a_failed_allocation_removes_the_file_that_was_made() {
        let dir = tempfile::tempdir().unwrap();
        let error = prepare_with(dir.path(), 8192, &|_, _| Err(Errno::NOSPC)).unwrap_err();
        assert!(matches!(error, OpenError::NoRoom { needed_bytes: 8192, allocated_bytes: 0, .. }), "{error}");
        assert!(!dir.path().join(FILE_NAME).exists());
        let error = prepare_with(dir.path(), 8192, &|_, _| Err(Errno::IO)).unwrap_err();
        assert!(matches!(error, OpenError::Io { operation: "allocate", .. }), "{error}");
        assert!(!dir.path().join(FILE_NAME).exists());
    }

    #[test]
    fn a_failed_allocation_keeps_an_earlier_file_at_its_length() {
        let dir = tempfile::tempdir().unwrap();
        drop(prepare(dir.path(), 8192).unwrap());
        let grow_then_fail = |file: &File, _: u64| {
            file.set_len(12_288).unwrap();
            Err(Errno::NOSPC)
        };
        let error = prepare_with(dir.path(), 16_384, &grow_then_fail).unwrap_err();
        assert!(matches!(error, OpenError::NoRoom { allocated_bytes: 8192, .. }), "{error}");
        assert_eq!(fs::metadata(dir.path().join(FILE_NAME)).unwrap().len(), 8192);
    }

    #[test]
    fn an_earlier_file_is_cut_to_size() {
        let dir = tempfile::tempdir().unwrap();
        drop(prepare(dir.path(), 40_960).unwrap());
        let Room { file, created, .. } = prepare(dir.path(), 8192).unwrap();
        assert!(!created);
        assert_eq!(file.metadata().unwrap().len(), 8192);
        assert!(file.metadata().unwrap().blocks() * 512 < 40_960);
    }

    #[test]
    fn a_link_or_a_directory_in_the_place_of_the_file_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let target = dir.path().join("elsewhere");
        fs::write(&target, b"precious").unwrap();
        std::os::unix::fs::symlink(&target, dir.path().join(FILE_NAME)).unwrap();
        let error = prepare(dir.path(), 8192).unwrap_err();
        assert!(matches!(error, OpenError::NotAFile { .. }), "{error:?}");
        assert_eq!(fs::read(&target).unwrap(), b"precious");

        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join(FILE_NAME)).unwrap();
        let error = prepare(dir.path(), 8192).unwrap_err();
        assert!(matches!(error, OpenError::NotAFile { .. }), "{error:?}");
    }
}
