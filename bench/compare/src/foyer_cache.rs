//! foyer's hybrid cache with its block engine on disk and positional I/O, and no memory to speak of.

use std::{
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use anyhow::{Context, ensure};
use bytes::Bytes;
use foyer::{
    BlockEngineConfig, DeviceBuilder, FsDeviceBuilder, HybridCache, HybridCacheBuilder, HybridCachePolicy,
    PsyncIoEngineConfig,
};
use kvo_bench::nvme::{Checked, Cost, Direction, HostChunks, Keys, Meter, Subject, allows_direct_io};
use kvo_core::{HostMemory, OffloadKey, SlotId};
use tokio::runtime::Runtime;

/// Inserts or gets under way.
const CONCURRENCY: usize = 16;

/// foyer's own unit on disk; a chunk must fit.
const BLOCK_BYTES: usize = 16 << 20;

/// A cache on disk with room for one and a half rounds: of a block, chunks of 2 MiB fill seven eighths.
pub(crate) struct FoyerCache {
    runtime: Runtime,
    cache: Cache,
    host: HostChunks,
    keys: Keys,
    /// By chunk, what is inserted, copied out of the host memory before the clock starts.
    values: Arc<Vec<(u64, Bytes)>>,
}

type Cache = HybridCache<u64, Bytes>;

impl FoyerCache {
    /// What it is called.
    pub(crate) const NAME: &str = "foyer";

    /// How it is set up, for whoever reads the figures.
    pub(crate) const ABOUT: &str = "0.22, hybrid cache with room for no chunk in memory, block engine, psync, around the \
        page cache, 16 inserts or gets under way, each insert awaited until it is flushed, a buffer pool that drops none \
        of them; values are ready before the clock starts, and what it returns is not copied to a slot but dropped; it \
        is read once more, outside of the time, to be compared";

    pub(crate) fn new(dir: &Path, host: &HostChunks, group: u32) -> anyhow::Result<Self> {
        ensure!(host.chunk_bytes() < BLOCK_BYTES, "a block of {BLOCK_BYTES} bytes holds no such chunk");
        let runtime = Runtime::new().context("cannot start tokio")?;
        let cache = runtime.block_on(open(dir, host)).context("foyer cannot be opened")?;
        let keys = Keys::new(group, host.num_chunks());
        Ok(Self { runtime, cache, host: host.clone(), keys, values: Arc::default() })
    }

    /// Copies the values out of the host memory.
    fn take_values(&mut self) -> anyhow::Result<()> {
        let value = |index| {
            let mut value = Bytes::new();
            let copy = &mut |slot: &[u8]| value = Bytes::copy_from_slice(slot);
            self.host.region().with_read(SlotId(index), copy)?;
            Ok((number(&self.keys.key(index)), value))
        };
        let values = (0..self.host.num_chunks()).map(value).collect::<anyhow::Result<_>>()?;
        self.values = Arc::new(values);
        Ok(())
    }

    /// Does `work` for every chunk, with so many under way, and returns what came out, in no order.
    fn each<R: Send + 'static, F>(
        &self,
        work: impl Fn(Cache, u64, Bytes) -> F + Clone + Send + 'static,
    ) -> anyhow::Result<Vec<R>>
    where
        F: Future<Output = anyhow::Result<R>> + Send,
    {
        let next = Arc::new(AtomicUsize::new(0));
        let tasks: Vec<_> = (0..CONCURRENCY)
            .map(|_| {
                let (next, values, cache) = (Arc::clone(&next), Arc::clone(&self.values), self.cache.clone());
                let work = work.clone();
                self.runtime.spawn(async move {
                    let mut done = Vec::new();
                    while let Some((key, value)) = values.get(next.fetch_add(1, Ordering::Relaxed)) {
                        done.push(work(cache.clone(), *key, value.clone()).await?);
                    }
                    anyhow::Ok(done)
                })
            })
            .collect();
        let mut all = Vec::new();
        for task in tasks {
            all.extend(self.runtime.block_on(task).context("a task ended early")??);
        }
        Ok(all)
    }
}

async fn open(dir: &Path, host: &HostChunks) -> anyhow::Result<Cache> {
    let round_bytes = host.chunk_bytes() * host.num_chunks() as usize;
    let capacity = (round_bytes + round_bytes / 2).max(8 * BLOCK_BYTES);
    // All that is under way at a time fits its buffer with room to spare, or it would drop some.
    let pool_bytes = 2 * CONCURRENCY * (host.chunk_bytes() + (64 << 10));
    let is_direct = allows_direct_io(dir)?;
    let device = FsDeviceBuilder::new(dir).with_capacity(capacity).with_direct(is_direct).build()?;
    let engine = BlockEngineConfig::new(device)
        .with_block_size(BLOCK_BYTES)
        .with_buffer_pool_size(pool_bytes)
        .with_submit_queue_size_threshold(2 * pool_bytes);
    let cache = HybridCacheBuilder::new()
        .with_policy(HybridCachePolicy::WriteOnInsertion)
        .with_flush_on_close(false)
        .memory(1)
        .with_shards(1)
        .with_weighter(|_: &u64, value: &Bytes| value.len())
        .storage()
        .with_io_engine_config(PsyncIoEngineConfig::new())
        .with_engine_config(engine)
        .build()
        .await?;
    Ok(cache)
}

/// The number that a key of the bench is made of, and its subject.
fn number(key: &OffloadKey) -> u64 {
    let bytes = key.to_bytes();
    let (_, last) = bytes[..32].split_last_chunk::<8>().expect("32 bytes end in 8");
    u64::from_be_bytes(*last)
}

async fn insert(cache: Cache, key: u64, value: Bytes) -> anyhow::Result<()> {
    let entry = cache.storage_writer(key).force().insert(value);
    ensure!(entry.is_some(), "foyer did not take chunk {key}");
    drop(entry);
    cache.storage().wait().await;
    Ok(())
}

/// Whether the chunk is there.
async fn get(cache: Cache, key: u64, _: Bytes) -> anyhow::Result<bool> {
    Ok(cache.get(&key).await?.is_some())
}

async fn get_and_compare(cache: Cache, key: u64, value: Bytes) -> anyhow::Result<Checked> {
    let right = cache.get(&key).await?.is_some_and(|entry| *entry.value() == value);
    let (right_bytes, wrong_chunks) = if right { (value.len() as u64, 0) } else { (0, 1) };
    Ok(Checked { right_bytes, wrong_chunks })
}

impl Subject for FoyerCache {
    fn name(&self) -> &str {
        Self::NAME
    }

    fn prepare(&mut self, direction: Direction) -> anyhow::Result<()> {
        if direction == Direction::Write {
            self.keys.next_write();
            self.host.fill(|index| self.keys.key(index))?;
            self.take_values()?;
        }
        Ok(())
    }

    fn run(&mut self, direction: Direction) -> anyhow::Result<Cost> {
        let meter = Meter::start();
        match direction {
            Direction::Write => {
                self.each(insert)?;
                Ok(meter.stop())
            }
            Direction::Read => {
                let found = self.each(get)?;
                let cost = meter.stop();
                let missed = found.iter().filter(|found| !**found).count();
                ensure!(missed == 0, "foyer has lost {missed} of {} chunks", found.len());
                Ok(cost)
            }
        }
    }

    fn check(&mut self) -> anyhow::Result<Option<Checked>> {
        Ok(Some(self.each(get_and_compare)?.into_iter().fold(Checked::default(), Checked::and)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_chunk_is_inserted_and_found_round_by_round() {
        let dir = tempfile::tempdir().unwrap();
        let host = HostChunks::new(64, 256 << 10, 0).unwrap();
        let mut foyer = FoyerCache::new(dir.path(), &host, 1).unwrap();
        for _ in 0..3 {
            foyer.prepare(Direction::Write).unwrap();
            foyer.run(Direction::Write).unwrap();
            foyer.prepare(Direction::Read).unwrap();
            foyer.run(Direction::Read).unwrap();
            let all = Checked { right_bytes: 64 * (256 << 10), wrong_chunks: 0 };
            assert_eq!(foyer.check().unwrap(), Some(all));
        }
    }

    #[test]
    fn numbers_are_those_of_the_keys() {
        let mut keys = Keys::new(3, 10);
        keys.next_write();
        assert_eq!(number(&keys.key(4)), 14);
    }
}
