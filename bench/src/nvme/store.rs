//! The store, driven as a tier is.

use std::{
    fs::File,
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context, bail, ensure};
use kvo_core::{
    HostMemory, JobId, OffloadKey, RequestContext, RequestId, SecondaryTier, SlotId, TierChunk,
    TierDirection, TierJob, TierOutcome,
};
use kvo_cpu::{HostRegion, RegionOptions};
use kvo_nvme::{NvmeOptions, NvmeStore};

use super::{Direction, limit::drop_cached};
use crate::{bytes, key};

/// Chunks of a job: about what a request's step gives a tier.
pub const CHUNKS_PER_JOB: usize = 32;

/// A store that no disk is too slow for.
const PATIENCE: Duration = Duration::from_mins(10);

/// A store with as many chunks as a round moves, over host memory with as many slots.
pub(super) struct StoreRun {
    store: NvmeStore,
    /// The store's file, to wait for the device and to drop what is cached of it.
    file: File,
    region: Arc<HostRegion>,
    num_chunks: u32,
    jobs: u64,
    /// Rounds of writes so far; the chunks of the last one are there.
    rounds: u32,
}

impl StoreRun {
    pub(super) fn new(dir: &Path, chunk_bytes: usize, num_chunks: u32, depth: u16) -> anyhow::Result<Self> {
        let region = HostRegion::anonymous(&RegionOptions::new(num_chunks, chunk_bytes))
            .with_context(|| format!("no host memory for {num_chunks} chunks of {chunk_bytes} bytes"))?;
        let region = Arc::new(region);
        let options = NvmeOptions {
            num_threads: depth.into(),
            queue_chunks_max: num_chunks as usize,
            ..NvmeOptions::new(dir, num_chunks, chunk_bytes as u64)
        };
        let store = NvmeStore::open(options, Arc::clone(&region) as Arc<dyn HostMemory>)?;
        let file = File::open(store.path())
            .with_context(|| format!("cannot open the store's file {}", store.path().display()))?;
        Ok(Self { store, file, region, num_chunks, jobs: 0, rounds: 0 })
    }

    /// Writes fresh chunks, which evict those of the round before, and waits until the device has them.
    pub(super) fn write(&mut self) -> anyhow::Result<Duration> {
        self.rounds += 1;
        for index in 0..self.num_chunks {
            let key = self.key(index);
            self.region.with_write(SlotId(index), &mut |slot| bytes::fill(&key, slot))?;
        }
        self.time(Direction::Write, |index, _| index)
    }

    /// Reads the chunks of the last write, from the device as far as the system can be told to forget them.
    ///
    /// Each comes into the slot from which another was written, so that what is left there cannot pass for it.
    pub(super) fn read(&mut self) -> anyhow::Result<Duration> {
        drop_cached(&self.file).context("cannot drop the cached pages of the store's file")?;
        self.time(Direction::Read, slot_of_read)
    }

    /// Compares what the last read brought: the bytes that are right, and the chunks that are not.
    pub(super) fn verify(&self) -> anyhow::Result<(u64, u64)> {
        let (mut right, mut wrong) = (0, 0);
        for index in 0..self.num_chunks {
            let key = self.key(index);
            self.region.with_read(SlotId(slot_of_read(index, self.num_chunks)), &mut |slot| {
                if bytes::holds(&key, slot) {
                    right += slot.len() as u64;
                } else {
                    wrong += 1;
                }
            })?;
        }
        Ok((right, wrong))
    }

    fn key(&self, index: u32) -> OffloadKey {
        key(self.rounds.wrapping_mul(self.num_chunks).wrapping_add(index))
    }

    /// From the first submission until every job is reported and, for a write, on the device.
    fn time(&mut self, direction: Direction, slot: fn(u32, u32) -> u32) -> anyhow::Result<Duration> {
        let req = RequestId(self.jobs);
        let jobs = self.jobs_of(req, direction, slot);
        let num_jobs = jobs.len();
        let started = Instant::now();
        self.store.on_new_request(&RequestContext::new(req));
        for job in jobs {
            self.store.submit(job)?;
        }
        self.store.drain(PATIENCE)?;
        let mut done = Vec::with_capacity(num_jobs);
        self.store.poll(&mut done);
        self.store.on_request_finished(req);
        if direction == Direction::Write {
            self.file.sync_data().context("the store's file cannot be synced")?;
        }
        let took = started.elapsed();
        ensure!(done.len() == num_jobs, "the store reported {} of {num_jobs} jobs", done.len());
        if let Some(bad) = done.iter().find(|completion| completion.outcome != TierOutcome::Done) {
            bail!(
                "the store failed a {direction} job: {:?}; its stats: {:?}",
                bad.outcome,
                self.store.stats()
            );
        }
        Ok(took)
    }

    fn jobs_of(&mut self, req: RequestId, direction: Direction, slot: fn(u32, u32) -> u32) -> Vec<TierJob> {
        let chunks: Vec<_> = (0..self.num_chunks)
            .map(|index| TierChunk {
                key: self.key(index),
                slot: SlotId(slot(index, self.num_chunks)),
                end_token: None,
            })
            .collect();
        let direction = match direction {
            Direction::Write => TierDirection::Write,
            Direction::Read => TierDirection::Read,
        };
        chunks
            .chunks(CHUNKS_PER_JOB)
            .map(|chunks| {
                self.jobs += 1;
                TierJob { id: JobId(self.jobs), req, direction, chunks: chunks.to_vec() }
            })
            .collect()
    }
}

fn slot_of_read(index: u32, num_chunks: u32) -> u32 {
    (index + 1) % num_chunks
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_round_reads_back_what_it_wrote_and_sees_one_wrong_byte() {
        let dir = tempfile::tempdir().unwrap();
        let mut run = StoreRun::new(dir.path(), 4096, 40, 2).unwrap();
        for _ in 0..2 {
            run.write().unwrap();
            assert_ne!(run.verify().unwrap(), (40 * 4096, 0), "nothing was read yet");
            run.read().unwrap();
            assert_eq!(run.verify().unwrap(), (40 * 4096, 0));
        }
        run.region.with_write(SlotId(7), &mut |slot| slot[100] ^= 1).unwrap();
        assert_eq!(run.verify().unwrap(), (39 * 4096, 1));
        assert_eq!(run.store.stats().chunks_evicted, 40);
    }
}
