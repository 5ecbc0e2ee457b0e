//! A file per chunk: the layout of engines' own disk tiers.

use std::{
    fs::{self, File, OpenOptions},
    hash::{DefaultHasher, Hasher},
    io::{self, Read, Write},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    sync::atomic::{AtomicUsize, Ordering},
    thread,
};

use anyhow::Context;
use kvo_bench::nvme::{Checked, Cost, Direction, HostChunks, Keys, Meter, Subject, allows_direct_io};
use kvo_core::{HostMemory, SlotId};
use rustix::fs::OFlags;

/// As many as vLLM's file-system tier has for either direction.
const THREADS: usize = 16;

/// Each chunk in a file of its own, in directories by hash: written beside its place, then renamed.
pub(crate) struct FilePerChunk {
    dir: PathBuf,
    host: HostChunks,
    keys: Keys,
    is_direct: bool,
    /// The files of the last write, by chunk.
    paths: Vec<PathBuf>,
}

impl FilePerChunk {
    /// What it is called.
    pub(crate) const NAME: &str = "file-per-chunk";

    /// What it does, for whoever reads the figures.
    pub(crate) const ABOUT: &str = "tmp file, write, rename, in directories by hash, around the page cache, 16 threads; \
        no checksum, no sync; the files of the round before are removed outside of the time";

    pub(crate) fn new(dir: &Path, host: &HostChunks, group: u32) -> anyhow::Result<Self> {
        let is_direct = allows_direct_io(dir)?;
        let keys = Keys::new(group, host.num_chunks());
        Ok(Self { dir: dir.to_owned(), host: host.clone(), keys, is_direct, paths: Vec::new() })
    }

    /// `hhh/hh/HASH.bin`.
    fn path(&self, index: u32) -> PathBuf {
        // Numbered keys would all lie in one directory, which those of an engine do not.
        let mut hasher = DefaultHasher::new();
        hasher.write(&self.keys.key(index).to_bytes());
        let hash = format!("{:016x}", hasher.finish());
        self.dir.join(&hash[..3]).join(&hash[3..5]).join(format!("{hash}.bin"))
    }

    fn open(&self, options: &mut OpenOptions, path: &Path) -> io::Result<File> {
        if self.is_direct {
            options.custom_flags(i32::try_from(OFlags::DIRECT.bits()).unwrap_or_default());
        }
        options.open(path)
    }

    fn write_chunk(&self, slot: SlotId, path: &Path) -> anyhow::Result<()> {
        // As this layout does at every write: most chunks of a large store are the first in their directory.
        path.parent().map_or(Ok(()), fs::create_dir_all)?;
        let beside = path.with_extension("tmp");
        let mut file = self.open(OpenOptions::new().write(true).create_new(true), &beside)?;
        let mut result = Ok(());
        self.host.region().with_read(slot, &mut |bytes| result = file.write_all(bytes))?;
        result?;
        Ok(fs::rename(&beside, path)?)
    }

    fn read_chunk(&self, slot: SlotId, path: &Path) -> anyhow::Result<()> {
        let mut file = self.open(OpenOptions::new().read(true), path)?;
        let mut result = Ok(());
        self.host.region().with_write(slot, &mut |bytes| result = file.read_exact(bytes))?;
        Ok(result?)
    }

    fn move_all(&self, direction: Direction) -> anyhow::Result<()> {
        let next = AtomicUsize::new(0);
        let work = || {
            loop {
                let index = next.fetch_add(1, Ordering::Relaxed);
                let Some(path) = self.paths.get(index) else { return Ok(()) };
                let slot = SlotId(u32::try_from(index)?);
                match direction {
                    Direction::Write => self.write_chunk(slot, path),
                    Direction::Read => self.read_chunk(slot, path),
                }
                .with_context(|| format!("{direction} of {}", path.display()))?;
            }
        };
        thread::scope(|scope| {
            let threads: Vec<_> = (0..THREADS).map(|_| scope.spawn(work)).collect();
            threads
                .into_iter()
                .try_for_each(|thread| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
        })
    }

    /// New keys. The files of the last write are removed; their directories stay, as they do in a store that lives on.
    fn begin_write(&mut self) -> anyhow::Result<()> {
        for path in self.paths.drain(..) {
            fs::remove_file(&path).with_context(|| format!("cannot remove {}", path.display()))?;
        }
        self.keys.next_write();
        self.paths = (0..self.host.num_chunks()).map(|index| self.path(index)).collect();
        Ok(())
    }
}

impl Subject for FilePerChunk {
    fn name(&self) -> &str {
        Self::NAME
    }

    fn prepare(&mut self, direction: Direction) -> anyhow::Result<()> {
        match direction {
            Direction::Write => {
                self.begin_write()?;
                self.host.fill(|index| self.keys.key(index))?;
            }
            Direction::Read => self.host.clear()?,
        }
        Ok(())
    }

    fn run(&mut self, direction: Direction) -> anyhow::Result<Cost> {
        let meter = Meter::start();
        self.move_all(direction)?;
        Ok(meter.stop())
    }

    fn check(&mut self) -> anyhow::Result<Option<Checked>> {
        Ok(Some(self.host.compare(|index| self.keys.key(index))?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_written_is_read_and_only_the_last_write_stays() {
        let dir = tempfile::tempdir().unwrap();
        let host = HostChunks::new(20, 4096, 0).unwrap();
        let mut files = FilePerChunk::new(dir.path(), &host, 1).unwrap();
        for _ in 0..2 {
            files.prepare(Direction::Write).unwrap();
            files.run(Direction::Write).unwrap();
            files.prepare(Direction::Read).unwrap();
            files.run(Direction::Read).unwrap();
            assert_eq!(files.check().unwrap().unwrap(), Checked { right_bytes: 20 * 4096, wrong_chunks: 0 });
        }
        let bytes = kvo_bench::nvme::bytes_on_disk(dir.path()).unwrap();
        // Two writes have made up to two directories a chunk, of a block each.
        assert!((20 * 4096..=(20 + 2 * 2 * 20) * 4096).contains(&bytes), "{bytes}");
    }
}
