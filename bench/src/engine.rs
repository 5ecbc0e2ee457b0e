//! A small inference engine around kvo: it computes nothing but bytes that are a function of each block's hash, and
//! checks every block it finds in its GPU memory against that function.
//!
//! ```text
//!   request ─▶ GPU block cache ─miss─▶ TieringManager: CPU slots ─miss─▶ NVMe store
//!                  │                        │  promote, load
//!              blocks it has            blocks that come up, each byte compared
//!                  └──────────── the rest is computed, then offered and stored
//! ```
//!
//! Requests run one at a time, and the tiers come to rest between them, so hits are a function of the trace alone.

mod choice;
mod gpu;
mod gpu_cache;
mod pattern;
mod shared_store;
mod stats;

use std::{
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context, bail, ensure};
use hashbrown::HashSet;
use kvo_core::{
    BlockId, ChunkLayout, GroupIdx, LookupResult, OffloadKey, OffloadManager, RequestContext, RequestId,
    SecondaryTier, SlotId, StoreOutcome, Transfer, TransferClass, TransferResult,
};
use kvo_cpu::{CpuManager, CpuOptions, HostRegion, RegionOptions};
use kvo_cuda::{BlockLayout, ChunkBlocks, CopyPlanner};
use kvo_nvme::{NvmeOptions, NvmeStore};
use kvo_policies::{CachePolicy, PolicyKind};
use kvo_tiering::{TieringManager, TieringOptions};

pub use self::{
    choice::{ChosenDevice, DeviceChoice, ReplayDevice},
    gpu::GpuFailed,
    stats::{EdgeSummary, ReplayStats, StepSummary, TierHits},
};
use self::{gpu::Gpu, gpu_cache::GpuCache, shared_store::SharedStore, stats::StepTimes};

use crate::{TraceRequest, bytes, key};

/// How long a copy or a tier may take before the run gives up.
const PATIENCE: Duration = Duration::from_mins(1);

/// What a [`ReplayEngine`] is built with.
#[derive(Clone, Debug)]
pub struct ReplayOptions {
    /// Where GPU memory is.
    pub device: ReplayDevice,
    /// Blocks of GPU memory.
    pub gpu_blocks: u32,
    /// Slots in CPU memory, one block each.
    pub cpu_chunks: u32,
    /// Chunks of the NVMe store; 0 leaves the tier out.
    pub nvme_chunks: u32,
    /// Bytes a block, over all layers and planes.
    pub block_bytes: u32,
    /// Tokens a block.
    pub block_tokens: u32,
    /// The eviction policy of the CPU tier and of the NVMe store.
    pub policy: PolicyKind,
    /// For a test of the checks: the block compared under this number, counted from 0, has one bit flipped first.
    pub flip_bit_in_block: Option<u64>,
}

/// An engine with one GPU, which may be simulated in host memory, and every tier of kvo.
#[derive(Debug)]
pub struct ReplayEngine {
    options: ReplayOptions,
    gpu: GpuCache,
    planner: CopyPlanner,
    device: Box<dyn Gpu>,
    manager: TieringManager<Box<dyn CachePolicy>>,
    store: Option<SharedStore>,
    /// What this engine has offered, if the store held chunks when it was opened.
    offered: Option<HashSet<OffloadKey>>,
    steps: StepTimes,
    stats: ReplayStats,
    block: Vec<u8>,
}

impl ReplayEngine {
    /// Builds the engine. The NVMe store goes to `nvme_dir`, which must exist.
    ///
    /// # Errors
    /// If a size cannot be: memory or disk space are missing, or sizes overflow. The error says which and how much.
    pub fn new(options: ReplayOptions, nvme_dir: &Path) -> anyhow::Result<Self> {
        let chunk = chunk_layout(options.block_bytes)?;
        let device_bytes = u64::from(options.gpu_blocks)
            .checked_mul(chunk.block_bytes())
            .context("--gpu-blocks times --block-bytes does not fit 64 bits")?;
        let layout = BlockLayout::layer_first(&chunk, options.gpu_blocks, device_bytes)?;
        let slot_bytes = usize::try_from(chunk.chunk_bytes())?;

        let region = HostRegion::anonymous(&RegionOptions::new(options.cpu_chunks, slot_bytes))
            .context("the CPU tier (--cpu-chunks, --block-bytes)")?;
        let region = Arc::new(region);
        let device = gpu::new(options.device, &layout, device_bytes, region.clone())?;
        // It names the first region.
        let planner = CopyPlanner::new(layout, options.cpu_chunks, chunk.chunk_bytes())?;

        let primary =
            CpuManager::new(CpuOptions::new(options.cpu_chunks), options.policy.build(options.cpu_chunks))?;
        let mut store = None;
        let mut tiers: Vec<Box<dyn SecondaryTier>> = Vec::new();
        if options.nvme_chunks > 0 {
            let nvme = NvmeOptions {
                policy: options.policy,
                ..NvmeOptions::new(nvme_dir, options.nvme_chunks, chunk.chunk_bytes())
            };
            let shared = SharedStore::new(NvmeStore::open(nvme, region)?);
            tiers.push(Box::new(shared.clone()));
            store = Some(shared);
        }
        let recovered = store.as_ref().map_or(0, SharedStore::recovered_chunks);
        let start = Instant::now();
        let manager = TieringManager::new(
            primary,
            tiers,
            TieringOptions::new(chunk.chunk_bytes()),
            Box::new(move || start.elapsed()),
        )?;
        Ok(Self {
            gpu: GpuCache::new(options.gpu_blocks),
            block: vec![0; slot_bytes],
            steps: StepTimes::default(),
            stats: ReplayStats { recovered_chunks: recovered.into(), ..ReplayStats::default() },
            offered: (recovered > 0).then(HashSet::new),
            options,
            planner,
            device,
            manager,
            store,
        })
    }

    /// Serves one request: finds its prefix, loads it, computes the rest, stores it.
    ///
    /// # Errors
    /// If a part of the system refuses a call that it should take, or does not answer in time: a defect of kvo, or a
    /// machine in trouble. Where it is the GPU that failed, the error has a [`GpuFailed`]; then the engine serves no
    /// more. Bytes that differ are no error here: they are counted.
    pub fn serve(&mut self, number: u64, request: &TraceRequest) -> anyhow::Result<()> {
        // What exceeds the GPU could not be computed in one go; it counts as missed.
        let served = request.blocks.len().min(self.options.gpu_blocks as usize);
        let blocks = &request.blocks[..served];
        let keys: Vec<OffloadKey> = blocks.iter().map(|&block| key(block)).collect();
        let mut context = RequestContext::new(RequestId(number));
        let end_tokens = (1..).map(|blocks: u32| blocks.saturating_mul(self.options.block_tokens));
        context.set_positions(keys.iter().copied().zip(end_tokens));
        self.manager.new_request(&mut context)?;

        let on_gpu = self.gpu.leading(&keys);
        let (from_cpu, from_nvme) = self.bring_up(&mut context, &keys[on_gpu..])?;
        let loaded = from_cpu + from_nvme;
        let ids = self.gpu.allocate(&keys).context("the GPU cache has no room for one request")?;
        self.load(&mut context, &keys[on_gpu..on_gpu + loaded], &ids[on_gpu..on_gpu + loaded])?;
        self.compute(&keys[on_gpu + loaded..], &ids[on_gpu + loaded..])?;
        self.check(&keys[..on_gpu + loaded], &ids[..on_gpu + loaded])?;
        self.offer(&mut context, &keys, &ids)?;

        self.gpu.finish(&keys);
        self.steps.time(|| self.manager.on_request_finished(&mut context))?;
        self.end_step();
        self.settle()?;
        self.count(request, on_gpu, from_cpu, from_nvme);
        Ok(())
    }

    /// Requests served so far.
    pub fn served(&self) -> u64 {
        self.stats.requests
    }

    /// For a test of what comes of it: breaks the GPU for good.
    ///
    /// # Errors
    /// If it is broken already.
    pub fn break_gpu(&mut self) -> anyhow::Result<()> {
        self.device.break_down()
    }

    /// What has happened so far.
    pub fn stats(&self) -> ReplayStats {
        let mut stats = self.stats.clone();
        stats.steps = self.steps.summary();
        let (device, tiering) = (self.device.stats(), self.manager.stats());
        let is_simulated = self.device.is_simulated();
        let store = self.store.as_ref().map(SharedStore::stats);
        let block_bytes = u64::from(self.options.block_bytes);
        stats.add_edges(&device, is_simulated, &tiering, store.as_ref(), block_bytes);
        stats
    }

    /// Looks for the leading keys below the GPU and waits for those on their way. Returns how many the CPU tier had,
    /// and how many came up from the store.
    fn bring_up(
        &mut self,
        context: &mut RequestContext,
        keys: &[OffloadKey],
    ) -> anyhow::Result<(usize, usize)> {
        let mut from_nvme = vec![false; keys.len()];
        let started = Instant::now();
        loop {
            let mut leading_hits = None;
            let mut found = 0;
            self.steps.time(|| {
                for (key, was_below) in keys.iter().zip(&mut from_nvme) {
                    match self.manager.lookup(context, key) {
                        LookupResult::Miss => break,
                        LookupResult::Hit => {}
                        LookupResult::HitPending | LookupResult::Retry => {
                            *was_below = true;
                            leading_hits.get_or_insert(found);
                        }
                    }
                    found += 1;
                }
            });
            if leading_hits.is_none() {
                let promoted = from_nvme[..found].iter().filter(|was_below| **was_below).count();
                if let Some(offered) = &self.offered {
                    let of_before =
                        |(key, was_below): &(&OffloadKey, &bool)| **was_below && !offered.contains(*key);
                    let found_again = keys[..found].iter().zip(&from_nvme).filter(of_before).count();
                    self.stats.blocks_found_again += found_again as u64;
                }
                return Ok((found - promoted, promoted));
            }
            ensure!(started.elapsed() < PATIENCE, "promotions did not arrive within {PATIENCE:?}");
            self.end_step();
            self.settle()?;
        }
    }

    /// Copies the chunks of `keys`, all ready in the CPU tier, into the GPU blocks `ids`.
    fn load(
        &mut self,
        context: &mut RequestContext,
        keys: &[OffloadKey],
        ids: &[BlockId],
    ) -> anyhow::Result<()> {
        if keys.is_empty() {
            return Ok(());
        }
        let job = self.steps.time(|| self.manager.prepare_load(context, keys))?;
        self.copy(TransferClass::Demand, &job.slots, ids)?.context("a load failed")?;
        self.steps.time(|| self.manager.complete_load(job.token))?;
        Ok(())
    }

    /// Lets the GPU compute blocks.
    fn compute(&mut self, keys: &[OffloadKey], ids: &[BlockId]) -> anyhow::Result<()> {
        let blocks: Vec<(OffloadKey, BlockId)> = keys.iter().copied().zip(ids.iter().copied()).collect();
        self.device.compute(blocks)
    }

    /// Compares blocks of GPU memory with what they must hold.
    fn check(&mut self, keys: &[OffloadKey], ids: &[BlockId]) -> anyhow::Result<()> {
        for (key, id) in keys.iter().zip(ids) {
            if self.options.flip_bit_in_block == Some(self.stats.blocks_compared) {
                self.device.flip_bit(*id)?;
            }
            self.device.read_block(*id, &mut self.block)?;
            self.stats.blocks_compared += 1;
            self.stats.mismatches += u64::from(!bytes::holds(key, &self.block));
        }
        Ok(())
    }

    /// Offers the request's blocks to the CPU tier and stores those that it takes.
    fn offer(
        &mut self,
        context: &mut RequestContext,
        keys: &[OffloadKey],
        ids: &[BlockId],
    ) -> anyhow::Result<()> {
        // The tier holds at most its capacity; the head is of most use.
        let offered = keys.len().min(self.options.cpu_chunks as usize);
        if let Some(all) = &mut self.offered {
            all.extend(&keys[..offered]);
        }
        match self.steps.time(|| self.manager.prepare_store(context, &keys[..offered]))? {
            StoreOutcome::NothingToStore => {}
            StoreOutcome::Refused(_) => self.stats.offers_refused += 1,
            StoreOutcome::Prepared(job) => {
                let id_of = |wanted: &OffloadKey| keys.iter().zip(ids).find(|(key, _)| *key == wanted);
                let ids =
                    job.keys.iter().map(|key| id_of(key).map(|(_, id)| *id)).collect::<Option<Vec<_>>>();
                let ids = ids.context("the CPU tier wants keys that were not offered")?;
                let copied = self.copy(TransferClass::Store, &job.slots, &ids)?;
                let result = if copied.is_ok() { TransferResult::Done } else { TransferResult::Failed };
                self.steps.time(|| self.manager.complete_store(job.token, result))?;
                copied.context("a store failed")?;
            }
        }
        Ok(())
    }

    /// Copies between slots and GPU blocks, one to one, after everything that the GPU was told to compute.
    fn copy(
        &mut self,
        class: TransferClass,
        slots: &[SlotId],
        ids: &[BlockId],
    ) -> anyhow::Result<anyhow::Result<u64>> {
        let chunks: Vec<ChunkBlocks<'_>> = slots
            .iter()
            .zip(ids)
            .map(|(slot, id)| ChunkBlocks {
                group: GroupIdx(0),
                slot: *slot,
                skip: 0,
                blocks: std::slice::from_ref(id),
            })
            .collect();
        let mut ops = Vec::new();
        match class {
            TransferClass::Store => self.planner.plan_store(&chunks, &mut ops)?,
            _ => self.planner.plan_load(&chunks, &mut ops)?,
        }
        let after = self.device.fence()?;
        let device = self.device.device();
        let ticket = device
            .submit(Transfer::new(class, ops, after))
            .map_err(|error| error.reason)
            .context(GpuFailed)?;
        let (started, mut done) = (Instant::now(), Vec::new());
        while done.is_empty() {
            ensure!(started.elapsed() < PATIENCE, "a copy did not end within {PATIENCE:?}");
            device.wait(PATIENCE, &mut done);
        }
        match done.pop() {
            Some(completion) if completion.ticket == ticket => Ok(completion.result.context(GpuFailed)),
            other => bail!("one copy is in flight, and {other:?} ended"),
        }
    }

    fn end_step(&mut self) {
        self.steps.time(|| self.manager.on_schedule_end());
        self.steps.end_step();
    }

    /// Lets the tiers come to rest.
    fn settle(&mut self) -> anyhow::Result<()> {
        let started = Instant::now();
        while self.manager.has_pending_work() {
            ensure!(started.elapsed() < PATIENCE, "the tiers did not come to rest within {PATIENCE:?}");
            if let Some(store) = &self.store {
                store.drain(PATIENCE).context("the NVMe store")?;
            }
            self.end_step();
        }
        Ok(())
    }

    fn count(&mut self, request: &TraceRequest, on_gpu: usize, from_cpu: usize, from_nvme: usize) {
        let stats = &mut self.stats;
        stats.requests += 1;
        stats.blocks += request.blocks.len() as u64;
        stats.tokens += u64::from(request.input_tokens);
        let mut first = 0;
        let shares = [(on_gpu, &mut stats.gpu), (from_cpu, &mut stats.cpu), (from_nvme, &mut stats.nvme)];
        // Loads mix both lower tiers; a block's tokens are all the same but for the last one.
        for (num_blocks, hits) in shares {
            let tokens_before = |blocks: usize| {
                (blocks as u64 * u64::from(self.options.block_tokens)).min(u64::from(request.input_tokens))
            };
            hits.blocks += num_blocks as u64;
            hits.tokens += tokens_before(first + num_blocks) - tokens_before(first);
            first += num_blocks;
        }
    }
}

/// Several layers of K and V where the block's size allows it, else one plane.
fn chunk_layout(block_bytes: u32) -> anyhow::Result<ChunkLayout> {
    const LAYERS: u32 = 4;
    const PLANES: u32 = 2;
    let pages = LAYERS * PLANES;
    Ok(if block_bytes.is_multiple_of(pages) {
        ChunkLayout::new(LAYERS, PLANES, u64::from(block_bytes / pages), 1)?
    } else {
        ChunkLayout::new(1, 1, u64::from(block_bytes), 1)?
    })
}
