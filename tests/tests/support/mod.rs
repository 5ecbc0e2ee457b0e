//! A tiny engine over the public API, whose every byte is checked, and tiers to disturb it with.

#![allow(dead_code, unreachable_pub, unused_imports, reason = "each test program uses its own part")]

pub mod blocks;
pub mod content;
pub mod engine;
pub mod fifo;
pub mod ledger;
pub mod stalling;
pub mod tiers;

use std::{path::Path, sync::Arc};

use kvo_core::{ChunkLayout, HostMemory, LookupResult, OffloadKey};
use kvo_cpu::{HostRegion, RegionOptions};
use kvo_nvme::{FILE_NAME, NvmeOptions, NvmeStore};
use kvo_policies::{CachePolicy, Lru};

pub use content::{Rng, chunk_content, key};
pub use engine::{Completion, Engine, NotLoaded, Offered, Request};
pub use fifo::Fifo;
pub use stalling::Stalling;
pub use tiers::{Backing, Call, LONG, SteppedMemory, Watched};

/// How the device arranges its blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrangement {
    LayerFirst,
    Interleaved,
    BlockFirst,
}

/// What an engine is made of.
#[derive(Clone, Copy, Debug)]
pub struct Setup {
    pub arrangement: Arrangement,
    pub blocks_per_chunk: u32,
    pub num_groups: u32,
    pub num_slots: u32,
    pub num_blocks: u32,
    pub seed: u64,
    pub retry_failed_jobs: bool,
    pub num_io_threads: usize,
}

impl Setup {
    /// One KV group, two blocks a chunk, block-first, and so many slots.
    pub fn new(num_slots: u32) -> Self {
        Self {
            arrangement: Arrangement::BlockFirst,
            blocks_per_chunk: 2,
            num_groups: 1,
            num_slots,
            num_blocks: 64,
            seed: 1,
            retry_failed_jobs: false,
            num_io_threads: 4,
        }
    }

    /// 3 layers of K and V, 40 bytes a page.
    pub fn chunk(&self) -> ChunkLayout {
        ChunkLayout::new(3, 2, 40, self.blocks_per_chunk).unwrap()
    }

    pub fn chunk_bytes(&self) -> usize {
        usize::try_from(self.chunk().chunk_bytes()).unwrap()
    }

    /// Host memory of the setup's slots.
    pub fn region(&self) -> Arc<dyn HostMemory> {
        let options = RegionOptions {
            huge_pages: false,
            prefault_threads: 0,
            ..RegionOptions::new(self.num_slots, self.chunk_bytes())
        };
        Arc::new(HostRegion::anonymous(&options).unwrap())
    }

    /// A store of `capacity_chunks` in `dir`, to be watched.
    pub fn nvme(&self, dir: &Path, capacity_chunks: u32, region: &Arc<dyn HostMemory>) -> Watched<NvmeStore> {
        let mut options = NvmeOptions::new(dir, capacity_chunks, self.chunk_bytes() as u64);
        options.num_threads = self.num_io_threads;
        options.record_events = true;
        Watched::new(NvmeStore::open(options, Arc::clone(region)).unwrap())
    }
}

/// A memory tier, to be watched.
pub fn memory_tier(capacity_chunks: u32, region: &Arc<dyn HostMemory>) -> Watched<SteppedMemory> {
    Watched::new(SteppedMemory::new("memory", capacity_chunks, Arc::clone(region)))
}

/// An engine with LRU over an NVMe store of 64 chunks.
pub struct OverNvme {
    pub engine: Engine,
    pub nvme: Watched<NvmeStore>,
    pub dir: tempfile::TempDir,
}

impl OverNvme {
    pub fn new(setup: Setup) -> Self {
        let policy = Box::new(Lru::new(setup.num_slots));
        Self::with_policy(setup, policy)
    }

    pub fn with_policy(setup: Setup, policy: Box<dyn CachePolicy>) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let region = setup.region();
        let nvme = setup.nvme(dir.path(), 64, &region);
        let mut engine = Engine::new(setup, region, policy, vec![]);
        engine.add_tier(nvme.clone());
        Self { engine, nvme, dir }
    }
}

/// Chunks `len` of prompt number `n`, which shares none with another.
pub fn prompt(n: u64, len: u64) -> Vec<u64> {
    (0..len).map(|chunk| n * 1000 + chunk).collect()
}

/// The keys of a prompt in one group.
pub fn keys(prompt: &[u64], group: u32) -> Vec<OffloadKey> {
    prompt.iter().map(|n| key(*n, group)).collect()
}

/// Flips a bit in the store's file where it holds the chunk of `key`.
#[track_caller]
pub fn corrupt(dir: &Path, key: &OffloadKey, chunk_bytes: usize) {
    let path = dir.join(FILE_NAME);
    let mut file = std::fs::read(&path).unwrap();
    let content = chunk_content(key, chunk_bytes);
    let slots: Vec<usize> =
        (0..file.len()).step_by(4096).filter(|start| file[*start..].starts_with(&content)).collect();
    let [start] = slots[..] else { panic!("{key:?} is in the file at {slots:?}, not once") };
    file[start + chunk_bytes / 2] ^= 0x10;
    std::fs::write(&path, file).unwrap();
}

/// Checks which of `keys` the primary tier has ready.
#[track_caller]
pub fn check_resident(engine: &Engine, keys: &[OffloadKey], expected: bool) {
    for key in keys {
        let found = engine.manager().primary().peek(key);
        let wanted = if expected { LookupResult::Hit } else { LookupResult::Miss };
        assert_eq!(found, wanted, "{key:?} in the primary tier");
    }
}

/// Serves other prompts until none of `keys` is in the primary tier.
#[track_caller]
pub fn push_down(engine: &mut Engine, keys: &[OffloadKey], others: &[&[u64]]) {
    for _ in 0..10 {
        if keys.iter().all(|key| engine.manager().primary().peek(key) == LookupResult::Miss) {
            return;
        }
        for other in others {
            engine.serve(other, 0);
        }
    }
    panic!("other prompts do not push {keys:?} down");
}

/// The seed that the environment names, which is then to be run alone.
pub fn chosen_seed() -> Option<u64> {
    let chosen = std::env::var("KVO_TEST_SEED").ok();
    chosen.map(|seed| seed.parse().expect("KVO_TEST_SEED is a number"))
}

/// When the manager is told that no copy from before a reset is under way any more.
#[derive(Default)]
pub struct Flush(Option<usize>);

impl Flush {
    /// It is told at the end of a step, after so many others.
    pub fn begin(&mut self, steps: usize) {
        self.0 = Some(steps);
    }

    /// A step has ended.
    pub fn step(&mut self, engine: &mut Engine) {
        if self.0 == Some(0) {
            engine.manager_mut().on_reset_flushed();
        }
        self.0 = self.0.and_then(|steps| steps.checked_sub(1));
    }
}
