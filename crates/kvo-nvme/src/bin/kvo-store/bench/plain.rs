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

use kvo_core::{HostMemory, SlotId, TierDirection};
use kvo_cpu::HostRegion;
use rustix::fs::{FallocateFlags, OFlags};

use super::{filled_memory, forget_cached};

/// A file of as many chunks as the store has.
pub(super) struct Plain {
    file: File,
    is_direct: bool,
    chunk_bytes: usize,
    num_chunks: u32,
    /// A slot a thread, on pages of the same size as the store's.
    memory: HostRegion,
}

impl Plain {
    /// Makes the file, with room for all chunks; it goes around the page cache if that works here.
    pub(super) fn new(path: &Path, chunk_bytes: usize, num_chunks: u32, depth: u16) -> anyhow::Result<Self> {
        let mut plain = Self {
            file: open(path, OFlags::empty())?,
            is_direct: false,
            chunk_bytes,
            num_chunks,
            memory: filled_memory(depth.into(), chunk_bytes)?,
        };
        let file_bytes = chunk_bytes as u64 * u64::from(num_chunks);
        // Where room cannot be taken ahead, the round that does not count takes it.
        let _ = rustix::fs::fallocate(&plain.file, FallocateFlags::empty(), 0, file_bytes);
        // A file system that knows nothing of it refuses to open, or to write.
        if let Ok(direct) = open(path, OFlags::DIRECT)
            && write_from(&plain.memory, SlotId(0), &direct, 0).is_ok()
        {
            (plain.file, plain.is_direct) = (direct, true);
        }
        Ok(plain)
    }

    pub(super) fn is_direct(&self) -> bool {
        self.is_direct
    }

    /// Moves every chunk once. A write counts until the device has it.
    pub(super) fn run(&self, direction: TierDirection) -> io::Result<Duration> {
        if direction == TierDirection::Read && !self.is_direct {
            forget_cached(&self.file)?;
        }
        let (file, memory) = (&self.file, &self.memory);
        let (chunk_bytes, num_chunks) = (self.chunk_bytes as u64, self.num_chunks);
        let next = AtomicU32::new(0);
        let next = &next;
        let work = move |slot: SlotId| -> io::Result<()> {
            loop {
                let chunk = next.fetch_add(1, Ordering::Relaxed);
                if chunk >= num_chunks {
                    return Ok(());
                }
                let offset = u64::from(chunk) * chunk_bytes;
                match direction {
                    TierDirection::Write => write_from(memory, slot, file, offset)?,
                    TierDirection::Read => read_into(memory, slot, file, offset)?,
                }
            }
        };
        let started = Instant::now();
        thread::scope(|scope| {
            let threads: Vec<_> =
                (0..memory.num_slots()).map(|slot| scope.spawn(move || work(SlotId(slot)))).collect();
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

fn write_from(memory: &HostRegion, slot: SlotId, file: &File, offset: u64) -> io::Result<()> {
    let mut result = Ok(());
    let write = &mut |bytes: &[u8]| result = file.write_all_at(bytes, offset);
    memory.with_read(slot, write).map_err(io::Error::other)?;
    result
}

fn read_into(memory: &HostRegion, slot: SlotId, file: &File, offset: u64) -> io::Result<()> {
    let mut result = Ok(());
    let read = &mut |bytes: &mut [u8]| result = file.read_exact_at(bytes, offset);
    memory.with_write(slot, read).map_err(io::Error::other)?;
    result
}
