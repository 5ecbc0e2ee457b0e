//! The limit: threads that do nothing but positional I/O.

use std::{
    fs::{File, OpenOptions},
    io,
    os::unix::fs::{FileExt, OpenOptionsExt},
    path::Path,
    sync::atomic::{AtomicU32, Ordering},
    thread,
    time::{Duration, Instant},
};

use kvo_core::OffloadKey;
use rustix::fs::{Advice, FallocateFlags, OFlags};

use super::Direction;
use crate::{bytes, key};

/// What direct I/O wants buffers to be aligned to.
const ALIGN_BYTES: usize = 4096;

/// A file of as many chunks as the store has, and as many threads.
#[derive(Debug)]
pub(super) struct Limit {
    file: File,
    is_direct: bool,
    chunk_bytes: usize,
    num_chunks: u32,
    /// One a thread.
    buffers: Vec<Buffer>,
}

impl Limit {
    /// Makes the file in `dir`, with room for all of it.
    pub(super) fn new(
        dir: &Path,
        chunk_bytes: usize,
        num_chunks: u32,
        depth: u16,
        is_direct: bool,
    ) -> io::Result<Self> {
        let file = open(&dir.join("limit.data"), is_direct)?;
        let file_bytes = chunk_bytes as u64 * u64::from(num_chunks);
        // Where room cannot be taken ahead, the round that does not count takes it.
        let _ = rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, file_bytes);
        let buffers = (0..u32::from(depth)).map(|thread| Buffer::filled(chunk_bytes, &key(thread))).collect();
        Ok(Self { file, is_direct, chunk_bytes, num_chunks, buffers })
    }

    /// Moves every chunk once, and for a write waits until the device has it.
    pub(super) fn run(&mut self, direction: Direction) -> io::Result<Duration> {
        if direction == Direction::Read && !self.is_direct {
            drop_cached(&self.file)?;
        }
        let started = Instant::now();
        let next = AtomicU32::new(0);
        let (file, chunk_bytes, num_chunks) = (&self.file, self.chunk_bytes as u64, self.num_chunks);
        let work = |buffer: &mut Buffer| -> io::Result<()> {
            loop {
                let chunk = next.fetch_add(1, Ordering::Relaxed);
                if chunk >= num_chunks {
                    return Ok(());
                }
                let offset = u64::from(chunk) * chunk_bytes;
                match direction {
                    Direction::Write => file.write_all_at(buffer.bytes(), offset)?,
                    Direction::Read => file.read_exact_at(buffer.bytes_mut(), offset)?,
                }
            }
        };
        thread::scope(|scope| {
            let threads: Vec<_> =
                self.buffers.iter_mut().map(|buffer| scope.spawn(move || work(buffer))).collect();
            threads
                .into_iter()
                .try_for_each(|thread| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
        })?;
        if direction == Direction::Write {
            self.file.sync_data()?;
        }
        Ok(started.elapsed())
    }
}

/// Forgets what the page cache has of a file whose bytes are on the device.
pub(super) fn drop_cached(file: &File) -> io::Result<()> {
    Ok(rustix::fs::fadvise(file, 0, None, Advice::DontNeed)?)
}

/// Whether files in `dir` can be read and written around the page cache.
///
/// # Errors
/// If no file can be made there.
pub fn allows_direct_io(dir: &Path) -> io::Result<bool> {
    let path = dir.join("probe.data");
    // A file system that knows nothing of it refuses to open, or to write.
    open(&path, false)?;
    let buffer = Buffer::filled(ALIGN_BYTES, &key(0));
    Ok(open(&path, true).and_then(|file| file.write_all_at(buffer.bytes(), 0)).is_ok())
}

fn open(path: &Path, is_direct: bool) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(true);
    if is_direct {
        options.custom_flags(i32::try_from(OFlags::DIRECT.bits()).unwrap_or_default());
    }
    options.open(path)
}

/// Bytes that begin at a multiple of [`ALIGN_BYTES`].
#[derive(Debug)]
struct Buffer {
    room: Vec<u8>,
    start: usize,
    len: usize,
}

impl Buffer {
    fn filled(len: usize, key: &OffloadKey) -> Self {
        let room = vec![0; len + ALIGN_BYTES];
        let start = room.as_ptr().align_offset(ALIGN_BYTES);
        let mut buffer = Self { room, start, len };
        bytes::fill(key, buffer.bytes_mut());
        buffer
    }

    fn bytes(&self) -> &[u8] {
        &self.room[self.start..self.start + self.len]
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.room[self.start..self.start + self.len]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_chunk_is_written_and_read_once_a_run() {
        let dir = tempfile::tempdir().unwrap();
        let is_direct = allows_direct_io(dir.path()).unwrap();
        let mut limit = Limit::new(dir.path(), 8192, 5, 2, is_direct).unwrap();
        limit.run(Direction::Write).unwrap();
        let bytes = std::fs::read(dir.path().join("limit.data")).unwrap();
        assert_eq!(bytes.len(), 5 * 8192);
        let is_of_a_thread = |chunk: &[u8]| (0..2).any(|thread| bytes::holds(&key(thread), chunk));
        assert!(bytes.chunks(8192).all(is_of_a_thread));
        limit.buffers.iter_mut().for_each(|buffer| buffer.bytes_mut().fill(0));
        limit.run(Direction::Read).unwrap();
        // One thread may have been faster than the other could start.
        assert!(limit.buffers.iter().any(|buffer| is_of_a_thread(buffer.bytes())));
    }

    #[test]
    fn a_directory_that_is_not_there_is_an_error() {
        assert!(allows_direct_io(Path::new("no/such/directory")).is_err());
    }
}
