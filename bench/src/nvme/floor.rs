//! The floor: threads that do nothing but positional I/O.

use std::{
    fs::{File, OpenOptions},
    io,
    os::unix::fs::{FileExt, OpenOptionsExt},
    path::Path,
    sync::atomic::{AtomicUsize, Ordering},
    thread,
};

use anyhow::Context;
use kvo_core::{HostMemory, SlotId};
use rustix::fs::{Advice, OFlags};

use super::{Checked, Cost, Direction, HostChunks, Keys, Meter, SlotFile, Subject};
use crate::micro::shuffle;

/// Plain positional I/O between the host memory and the file, in random order, on some threads: no checksum, no index,
/// no queue.
#[derive(Debug)]
pub struct Floor {
    slots: SlotFile,
    file: File,
    host: HostChunks,
    threads: u16,
    keys: Keys,
    /// The numbers of the chunks in the order of this run.
    order: Vec<u32>,
    runs: u64,
}

impl Floor {
    /// What it is called.
    pub const NAME: &str = "floor";

    /// Over `slots`, on so many threads. Its keys are those of subject number `group`.
    ///
    /// # Errors
    /// If the file cannot be opened.
    pub fn new(slots: &SlotFile, host: &HostChunks, threads: u16, group: u32) -> anyhow::Result<Self> {
        let file = slots.open().context("cannot open the file for plain I/O")?;
        let keys = Keys::new(group, host.num_chunks());
        let order = (0..host.num_chunks()).collect();
        Ok(Self { slots: slots.clone(), file, host: host.clone(), threads, keys, order, runs: 0 })
    }

    /// One chunk between its slot and its place.
    fn move_chunk(&self, direction: Direction, index: u32) -> anyhow::Result<()> {
        let (slot, offset) = (SlotId(index), self.slots.offset(index));
        let mut result = Ok(());
        match direction {
            Direction::Write => self.host.region().with_read(slot, &mut |bytes| {
                result = self.file.write_all_at(bytes, offset);
            }),
            Direction::Read => self.host.region().with_write(slot, &mut |bytes| {
                result = self.file.read_exact_at(bytes, offset);
            }),
        }?;
        result.with_context(|| format!("the plain {direction} of chunk {index} failed"))
    }

    fn move_all(&self, direction: Direction) -> anyhow::Result<()> {
        let next = AtomicUsize::new(0);
        let work = || {
            while let Some(index) = self.order.get(next.fetch_add(1, Ordering::Relaxed)) {
                self.move_chunk(direction, *index)?;
            }
            Ok(())
        };
        thread::scope(|scope| {
            let threads: Vec<_> = (0..self.threads).map(|_| scope.spawn(work)).collect();
            threads
                .into_iter()
                .try_for_each(|thread| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
        })
    }
}

impl Subject for Floor {
    fn name(&self) -> &str {
        Self::NAME
    }

    fn prepare(&mut self, direction: Direction) -> anyhow::Result<()> {
        self.runs += 1;
        shuffle(&mut self.order, self.runs);
        match direction {
            Direction::Write => {
                self.keys.next_write();
                self.host.fill(|index| self.keys.key(index))?;
            }
            Direction::Read => {
                self.host.clear()?;
                if !self.slots.is_direct() {
                    drop_cached(&self.file).context("cannot drop the cached pages of the plain file")?;
                }
            }
        }
        Ok(())
    }

    fn run(&mut self, direction: Direction) -> anyhow::Result<Cost> {
        let meter = Meter::start();
        self.move_all(direction)?;
        if direction == Direction::Write {
            self.file.sync_data().context("the plain file cannot be synced")?;
        }
        Ok(meter.stop())
    }

    fn check(&mut self) -> anyhow::Result<Option<Checked>> {
        Ok(Some(self.host.compare(|index| self.keys.key(index))?))
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
pub fn allows_direct_io(dir: &Path) -> anyhow::Result<bool> {
    let path = dir.join("probe.data");
    let failed = || format!("cannot make a file in {}", dir.display());
    // A file system that knows nothing of it refuses to open, or to write.
    File::create(&path).with_context(failed)?;
    let probe = HostChunks::new(1, 4096, 0)?;
    let mut works = false;
    let flags = i32::try_from(OFlags::DIRECT.bits()).unwrap_or_default();
    if let Ok(file) = OpenOptions::new().write(true).custom_flags(flags).open(&path) {
        probe.region().with_read(SlotId(0), &mut |bytes| works = file.write_all_at(bytes, 0).is_ok())?;
    }
    std::fs::remove_file(&path).with_context(failed)?;
    Ok(works)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_chunk_is_written_and_read_once_a_run() {
        let dir = tempfile::tempdir().unwrap();
        let host = HostChunks::new(5, 8192, 0).unwrap();
        let slots = SlotFile::make(dir.path(), &host).unwrap();
        let mut floor = Floor::new(&slots, &host, 2, 0).unwrap();
        for _ in 0..2 {
            floor.prepare(Direction::Write).unwrap();
            floor.run(Direction::Write).unwrap();
            floor.prepare(Direction::Read).unwrap();
            assert_eq!(floor.check().unwrap().unwrap().wrong_chunks, 5, "nothing was read yet");
            floor.run(Direction::Read).unwrap();
            let all = Checked { right_bytes: 5 * 8192, wrong_chunks: 0 };
            assert_eq!(floor.check().unwrap(), Some(all));
        }
    }

    #[test]
    fn a_directory_that_is_not_there_is_an_error() {
        assert!(allows_direct_io(Path::new("no/such/directory")).is_err());
    }
}
