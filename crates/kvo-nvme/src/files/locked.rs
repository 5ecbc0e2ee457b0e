//! Files that are opened by name and locked against every other store.

use std::{
    fs::{self, File, OpenOptions},
    io,
    os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt},
    path::{Path, PathBuf},
    thread,
    time::Duration,
};

use rustix::{
    fs::{FlockOperation, OFlags, fcntl_getfl, fcntl_setfl, flock},
    io::Errno,
};

use crate::OpenError;

/// How often to try for a lock that another one holds, and how long to wait in between. Who looks into a store holds its
/// lock for a moment; so does a process that was killed, until the kernel has taken its ring apart, which goes on after
/// the process has ended. Another store does so for long.
const LOCK_TRIES: u32 = 50;
const LOCK_PAUSE: Duration = Duration::from_millis(10);
/// How often to open again when the file vanishes between opening and locking.
const OPEN_TRIES: u32 = 16;

/// An open file that no other store has open; the lock lasts as long as the file is open.
#[derive(Debug)]
pub(crate) struct LockedFile {
    pub(crate) file: File,
    pub(crate) path: PathBuf,
}

/// What a file is opened for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    ReadOnly,
    ReadWrite,
    /// The same, of a file that is not there yet.
    New,
}

impl LockedFile {
    /// The file, if there is one of this name.
    pub(crate) fn open(path: &Path, access: Access) -> Result<Option<Self>, OpenError> {
        for _ in 0..OPEN_TRIES {
            let file = match open(path, access) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
                other => other.map_err(|source| open_error(path, source))?,
            };
            if let Some(locked) = Self::lock(file, path)? {
                return Ok(Some(locked));
            }
        }
        Err(OpenError::InUse { path: path.to_path_buf() })
    }

    /// A new file; none if there is one of this name by now.
    pub(crate) fn make(path: &Path) -> Result<Option<Self>, OpenError> {
        match open(path, Access::New) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(None),
            other => Self::lock(other.map_err(|source| open_error(path, source))?, path),
        }
    }

    /// Takes the lock. None if the file has lost its name meanwhile: the lock is on the file, and one that was removed
    /// keeps nobody out.
    fn lock(file: File, path: &Path) -> Result<Option<Self>, OpenError> {
        let locked = Self { file, path: path.to_path_buf() };
        if !locked.metadata()?.is_file() {
            return Err(OpenError::NotAFile { path: locked.path });
        }
        take_lock(&locked.file, path)?;
        // A file with this flag may be told to come again by the kernel where another one waits.
        let flags = fcntl_getfl(&locked.file).map_err(|errno| locked.error("inspect", errno.into()))?;
        fcntl_setfl(&locked.file, flags - OFlags::NONBLOCK)
            .map_err(|errno| locked.error("prepare", errno.into()))?;
        Ok((locked.metadata()?.nlink() > 0).then_some(locked))
    }

    pub(crate) fn metadata(&self) -> Result<fs::Metadata, OpenError> {
        self.file.metadata().map_err(|source| self.error("inspect", source))
    }

    pub(crate) fn len(&self) -> Result<u64, OpenError> {
        Ok(self.metadata()?.len())
    }

    /// Bytes of its blocks.
    pub(crate) fn allocated_bytes(&self) -> Result<u64, OpenError> {
        Ok(self.metadata()?.blocks().saturating_mul(512))
    }

    /// Cuts it, if it is longer.
    pub(crate) fn cut(&self, bytes: u64) -> Result<(), OpenError> {
        if self.len()? <= bytes {
            return Ok(());
        }
        self.file.set_len(bytes).map_err(|source| self.error("shorten", source))
    }

    /// Checks that it is ours alone: of the user that we are, and without another name. Whoever else owns a file may have
    /// it open, and read and change it at any time; what has two names is somebody's other file too.
    pub(crate) fn check_ours(&self, user: u32) -> Result<(), OpenError> {
        let owner = self.metadata()?.uid();
        if owner != user {
            return Err(OpenError::OtherUser { path: self.path.clone(), owner, user });
        }
        self.check_one_name()
    }

    /// Checks that it is no file of another name too.
    pub(crate) fn check_one_name(&self) -> Result<(), OpenError> {
        match self.metadata()?.nlink() {
            0 | 1 => Ok(()),
            num_names => Err(OpenError::Linked { path: self.path.clone(), num_names }),
        }
    }

    /// Lets nobody else read it, whatever it was made with. Of a file system without such modes it is told.
    pub(crate) fn keep_private(&self) {
        if let Err(error) = self.file.set_permissions(fs::Permissions::from_mode(0o600)) {
            tracing::warn!(path = ?self.path, %error, "the file stays open to others");
        }
    }

    /// Sees it, its length and its blocks to the device.
    pub(crate) fn sync(&self) -> Result<(), OpenError> {
        self.file.sync_all().map_err(|source| self.error("sync", source))
    }

    pub(crate) fn error(&self, operation: &'static str, source: io::Error) -> OpenError {
        OpenError::Io { operation, path: self.path.clone(), source }
    }
}

fn take_lock(file: &File, path: &Path) -> Result<(), OpenError> {
    for last in (0..LOCK_TRIES).rev() {
        match flock(file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(()),
            Err(Errno::WOULDBLOCK | Errno::INTR) if last > 0 => thread::sleep(LOCK_PAUSE),
            Err(Errno::WOULDBLOCK) => break,
            Err(errno) => {
                return Err(OpenError::Io {
                    operation: "lock",
                    path: path.to_path_buf(),
                    source: errno.into(),
                });
            }
        }
    }
    Err(OpenError::InUse { path: path.to_path_buf() })
}

/// Checks that each is a directory, and another one.
pub(crate) fn check_directories(dirs: &[PathBuf]) -> Result<(), OpenError> {
    let mut seen = Vec::with_capacity(dirs.len());
    for dir in dirs {
        let metadata = fs::metadata(dir).map_err(|source| directory_error(dir, source))?;
        if !metadata.is_dir() {
            return Err(OpenError::NotADirectory { path: dir.clone() });
        }
        let inode = (metadata.dev(), metadata.ino());
        if seen.contains(&inode) {
            return Err(OpenError::SameDirectory { path: dir.clone() });
        }
        seen.push(inode);
    }
    Ok(())
}

fn directory_error(dir: &Path, source: io::Error) -> OpenError {
    let path = dir.to_path_buf();
    match source.kind() {
        io::ErrorKind::NotFound => OpenError::DirectoryMissing { path },
        io::ErrorKind::NotADirectory => OpenError::NotADirectory { path },
        io::ErrorKind::PermissionDenied => OpenError::NotWritable { path, source },
        _ => OpenError::Io { operation: "inspect", path, source },
    }
}

/// Sees the names in the directory to the device.
pub(crate) fn sync_directory(dir: &Path) -> Result<(), OpenError> {
    let error = |source| OpenError::Io { operation: "sync", path: dir.to_path_buf(), source };
    File::open(dir).map_err(error)?.sync_all().map_err(error)
}

fn open(path: &Path, access: Access) -> io::Result<File> {
    // Not through a link, and not waiting for the other end of a pipe.
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
    OpenOptions::new()
        .read(true)
        .write(access != Access::ReadOnly)
        .create_new(access == Access::New)
        .mode(0o600)
        .custom_flags(flags.bits().cast_signed())
        .open(path)
}

pub(crate) fn open_error(path: &Path, source: io::Error) -> OpenError {
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
