//! Threads that do nothing but positional I/O.

use std::{
    fs::{File, OpenOptions},
    io,
    os::unix::fs::{FileExt, OpenOptionsExt},
    path::Path,
    sync::atomic::{AtomicU32, Ordering},
    thread,
    time::{Duration, Instant},
};

use kvo_core::TierDirection;
use rustix::fs::{FallocateFlags, OFlags};

use super::{forget_cached, memory::filled};

/// What I/O around the page cache wants buffers and lengths to be a multiple of.
const ALIGN_BYTES: usize = 4096;

/// A file of as many chunks as the store has.
pub(super) struct Plain {
    file: File,
    is_direct: bool,
    chunk_bytes: usize,
    num_chunks: u32,
    /// One a thread.
    buffers: Vec<Buffer>,
}

impl Plain {
    /// Makes the file, with room for all chunks; it goes around the page cache if that works here.
    pub(super) fn new(path: &Path, chunk_bytes: usize, num_chunks: u32, depth: u16) -> io::Result<Self> {
        let mut plain = Self {
            file: open(path, OFlags::empty())?,
            is_direct: false,
            chunk_bytes,
            num_chunks,
            buffers: (0..u64::from(depth)).map(|seed| Buffer::new(chunk_bytes, seed)).collect(),
        };
        let file_bytes = chunk_bytes as u64 * u64::from(num_chunks);
        // Where room cannot be taken ahead, the round that does not count takes it.
        let _ = rustix::fs::fallocate(&plain.file, FallocateFlags::empty(), 0, file_bytes);
        // A file system that knows nothing of it refuses to open, or to write.
        if let Ok(direct) = open(path, OFlags::DIRECT)
            && direct.write_all_at(plain.buffers[0].bytes(), 0).is_ok()
        {
            (plain.file, plain.is_direct) = (direct, true);
        }
        Ok(plain)
    }

    pub(super) fn is_direct(&self) -> bool {
        self.is_direct
    }

    /// Moves every chunk once. A write counts until the device has it.
    pub(super) fn run(&mut self, direction: TierDirection) -> io::Result<Duration> {
        if direction == TierDirection::Read && !self.is_direct {
            forget_cached(&self.file)?;
        }
        let (file, chunk_bytes, num_chunks) = (&self.file, self.chunk_bytes as u64, self.num_chunks);
        let next = AtomicU32::new(0);
        let work = |buffer: &mut Buffer| -> io::Result<()> {
            loop {
                let chunk = next.fetch_add(1, Ordering::Relaxed);
                if chunk >= num_chunks {
                    return Ok(());
                }
                let offset = u64::from(chunk) * chunk_bytes;
                match direction {
                    TierDirection::Write => file.write_all_at(buffer.bytes(), offset)?,
                    TierDirection::Read => file.read_exact_at(buffer.bytes_mut(), offset)?,
                }
            }
        };
        let started = Instant::now();
        thread::scope(|scope| {
            let threads: Vec<_> =
                self.buffers.iter_mut().map(|buffer| scope.spawn(move || work(buffer))).collect();
            let join = |thread: thread::ScopedJoinHandle<'_, io::Result<()>>| {
                thread.join().unwrap_or_else(|_| Err(io::Error::other("a thread panicked")))
            };
            threads.into_iter().map(join).collect::<Vec<_>>().into_iter().collect::<io::Result<()>>()
        })?;
        if direction == TierDirection::Write {
            self.file.sync_data()?;
        }
        Ok(started.elapsed())
    }
}

fn open(path: &Path, flags: OFlags) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false).custom_flags(flags.bits().cast_signed());
    options.open(path)
}

/// Bytes that begin at a multiple of [`ALIGN_BYTES`].
struct Buffer {
    room: Vec<u8>,
    start: usize,
    len: usize,
}

impl Buffer {
    fn new(len: usize, seed: u64) -> Self {
        let room = filled(len + ALIGN_BYTES, seed);
        let start = room.as_ptr().align_offset(ALIGN_BYTES);
        Self { room, start, len }
    }

    fn bytes(&self) -> &[u8] {
        &self.room[self.start..self.start + self.len]
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.room[self.start..self.start + self.len]
    }
}
