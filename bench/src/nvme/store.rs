//! The store, driven as a tier is.

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, bail, ensure};
use kvo_core::{
    JobId, RequestContext, RequestId, SecondaryTier, SlotId, TierChunk, TierDirection, TierJob, TierOutcome,
};
use kvo_nvme::{ChecksumKind, EngineKind, IfOther, NvmeOptions, NvmeStore};

use super::{Checked, Cost, Direction, HostChunks, Keys, Meter, SlotFile, Subject, floor::drop_cached};
use crate::micro::shuffle;

/// Chunks of a job: about what a request's step gives a tier.
pub const CHUNKS_PER_JOB: usize = 32;

/// A store that no disk is too slow for.
const PATIENCE: Duration = Duration::from_mins(10);

/// With what a store is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreKind {
    /// The engine alone: no checksum.
    Raw,
    /// As it is by default: checksums, and `io_uring` where that works.
    Full,
    /// With checksums, on a pool of threads: what is left where `io_uring` is not permitted.
    Pool,
}

impl StoreKind {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Raw, Self::Full, Self::Pool];

    /// What it is called.
    pub fn name(self) -> &'static str {
        match self {
            Self::Raw => "raw",
            Self::Full => "full",
            Self::Pool => "pool",
        }
    }

    /// Options for a store in `dir` of as many chunks as `host` has.
    pub fn options(self, dir: &Path, host: &HostChunks) -> NvmeOptions {
        let (checksum, engine) = match self {
            Self::Raw => (ChecksumKind::Off, EngineKind::Auto),
            Self::Full => (ChecksumKind::Xxh3, EngineKind::Auto),
            Self::Pool => (ChecksumKind::Xxh3, EngineKind::Threads),
        };
        NvmeOptions {
            checksum,
            engine,
            queue_chunks_max: host.num_chunks() as usize,
            ..NvmeOptions::new(dir, host.num_chunks(), host.chunk_bytes() as u64)
        }
    }
}

/// A store with as many chunks as a round moves, over host memory with as many slots; a new one in every round, in the
/// blocks of the file that is there.
#[derive(Debug)]
pub struct StoreRun {
    name: String,
    kind: StoreKind,
    slots: SlotFile,
    host: HostChunks,
    keys: Keys,
    group: u32,
    jobs: u64,
    /// The numbers of the chunks, in the order of this run.
    order: Vec<u32>,
    /// While a round of it runs.
    open: Option<(NvmeStore, StoreFiles)>,
}

impl StoreRun {
    /// In the directory of `slots`. Its keys are those of subject number `group`.
    pub fn new(kind: StoreKind, slots: &SlotFile, host: &HostChunks, group: u32) -> Self {
        Self {
            name: kind.name().to_owned(),
            kind,
            slots: slots.clone(),
            host: host.clone(),
            keys: Keys::new(group, host.num_chunks()),
            group,
            jobs: 0,
            order: (0..host.num_chunks()).collect(),
            open: None,
        }
    }

    /// Calls itself otherwise, where its kind says too little.
    #[must_use]
    pub fn named(self, name: &str) -> Self {
        Self { name: name.to_owned(), ..self }
    }

    fn jobs_of(&mut self, req: RequestId, direction: Direction) -> Vec<TierJob> {
        let direction = match direction {
            Direction::Write => TierDirection::Write,
            Direction::Read => TierDirection::Read,
        };
        let chunk =
            |index: &u32| TierChunk { key: self.keys.key(*index), slot: SlotId(*index), end_token: None };
        let jobs = self.order.chunks(CHUNKS_PER_JOB).map(|indices| {
            self.jobs += 1;
            let chunks = indices.iter().map(chunk).collect();
            TierJob { id: JobId(self.jobs), req, direction, chunks }
        });
        jobs.collect()
    }
}

impl Subject for StoreRun {
    fn name(&self) -> &str {
        &self.name
    }

    fn open(&mut self) -> anyhow::Result<()> {
        // No other subject, and no other round, leaves a store that could be taken for this one.
        let mut fingerprint = [0; 32];
        fingerprint[..4].copy_from_slice(&self.group.to_le_bytes());
        fingerprint[4..12].copy_from_slice(&self.keys.writes().to_le_bytes());
        let dir = self.slots.dir();
        let options =
            NvmeOptions { fingerprint, if_other: IfOther::Empty, ..self.kind.options(dir, &self.host) };
        let store = NvmeStore::open(options, self.host.memory()).context("it cannot be opened")?;
        ensure!(store.path() == self.slots.path(), "its file is {}", store.path().display());
        self.open = Some((store, StoreFiles::open(dir)?));
        Ok(())
    }

    fn prepare(&mut self, direction: Direction) -> anyhow::Result<()> {
        match direction {
            Direction::Write => {
                self.keys.next_write();
                self.order.sort_unstable();
                self.host.fill(|index| self.keys.key(index))?;
            }
            Direction::Read => {
                shuffle(&mut self.order, self.jobs);
                self.host.clear()?;
                let (_, files) = self.open.as_ref().context("not open")?;
                files.drop_cached()?;
            }
        }
        Ok(())
    }

    /// From the first submission until every job is reported and, for a write, on the device.
    fn run(&mut self, direction: Direction) -> anyhow::Result<Cost> {
        let req = RequestId(self.jobs);
        let jobs = self.jobs_of(req, direction);
        let num_jobs = jobs.len();
        let (store, files) = self.open.as_mut().context("not open")?;
        let meter = Meter::start();
        store.on_new_request(&RequestContext::new(req));
        for job in jobs {
            store.submit(job)?;
        }
        store.drain(PATIENCE)?;
        let mut done = Vec::with_capacity(num_jobs);
        store.poll(&mut done);
        store.on_request_finished(req);
        if direction == Direction::Write {
            files.sync()?;
        }
        let cost = meter.stop();
        ensure!(done.len() == num_jobs, "the store reported {} of {num_jobs} jobs", done.len());
        if let Some(bad) = done.iter().find(|completion| completion.outcome != TierOutcome::Done) {
            bail!("a job failed: {:?}; the store: {:?}", bad.outcome, store.stats());
        }
        Ok(cost)
    }

    fn check(&mut self) -> anyhow::Result<Option<Checked>> {
        Ok(Some(self.host.compare(|index| self.keys.key(index))?))
    }

    fn close(&mut self) -> anyhow::Result<()> {
        let Some((store, _)) = self.open.take() else { return Ok(()) };
        let copied_bytes = store.stats().copied_bytes;
        ensure!(copied_bytes == 0, "{copied_bytes} bytes of chunks were copied on their way");
        store.close(PATIENCE).context("it does not close")
    }
}

/// All files of a store, opened once more: to wait for the device, and to drop what is cached of them.
#[derive(Debug)]
pub(super) struct StoreFiles(Vec<(PathBuf, File)>);

impl StoreFiles {
    pub(super) fn open(dir: &Path) -> anyhow::Result<Self> {
        let failed = || format!("cannot look at the store's files in {}", dir.display());
        let mut files = Vec::new();
        for entry in fs::read_dir(dir).with_context(failed)? {
            let path = entry.with_context(failed)?.path();
            if path.is_file() {
                let file = File::open(&path).with_context(failed)?;
                files.push((path, file));
            }
        }
        Ok(Self(files))
    }

    pub(super) fn sync(&self) -> anyhow::Result<()> {
        self.0.iter().try_for_each(|(path, file)| {
            file.sync_data().with_context(|| format!("{} cannot be synced", path.display()))
        })
    }

    pub(super) fn drop_cached(&self) -> anyhow::Result<()> {
        self.0.iter().try_for_each(|(path, file)| {
            drop_cached(file).with_context(|| format!("cannot drop the cached pages of {}", path.display()))
        })
    }
}

#[cfg(test)]
mod tests {
    use kvo_core::HostMemory;

    use super::*;

    #[test]
    fn every_kind_reads_back_what_it_wrote_in_the_same_blocks_and_one_wrong_byte_is_seen() {
        let dir = tempfile::tempdir().unwrap();
        let host = HostChunks::new(40, 4096, 0).unwrap();
        let slots = SlotFile::make(dir.path(), &host).unwrap();
        let inode = || std::os::unix::fs::MetadataExt::ino(&fs::metadata(slots.path()).unwrap());
        let before = inode();
        for kind in StoreKind::ALL {
            let mut run = StoreRun::new(kind, &slots, &host, 1);
            for _ in 0..2 {
                run.open().unwrap();
                run.prepare(Direction::Write).unwrap();
                run.run(Direction::Write).unwrap();
                run.prepare(Direction::Read).unwrap();
                assert_eq!(run.check().unwrap().unwrap().wrong_chunks, 40, "nothing was read yet");
                run.run(Direction::Read).unwrap();
                let all = Checked { right_bytes: 40 * 4096, wrong_chunks: 0 };
                assert_eq!(run.check().unwrap(), Some(all));
                run.close().unwrap();
            }
            host.region().with_write(SlotId(7), &mut |slot| slot[100] ^= 1).unwrap();
            assert_eq!(run.check().unwrap().unwrap().wrong_chunks, 1);
        }
        assert_eq!(inode(), before, "the file is the one that was made");
    }
}
