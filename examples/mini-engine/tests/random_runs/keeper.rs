//! A small offload for tests of the seam: one chunk a block, copied by the device, with everything that can go wrong
//! drawn from a seed.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    ops::Range,
    sync::{Arc, RwLock},
    time::Duration,
};

use kvo_core::{
    BlockHash, BlockId, GroupIdx, HostMemory, JobId, RequestId, SlotAccessError, SlotId, TransferClass,
};
use kvo_cuda::{ChunkBlocks, CopyPlanner, LayerMarks, PlanOptions};
use kvo_mini_engine::{
    BlocksAfter, CopyFailure, CopyJob, EngineError, KvCaches, LoadStart, Offload, OffloadEvents, PrefixMatch,
    RequestView, SplitMix64, StepInput, StepPlan,
};

/// Slots in the memory of the test.
pub(crate) struct Slots(Vec<RwLock<Vec<u8>>>);

impl Slots {
    pub(crate) fn new(num_slots: u32, slot_bytes: usize) -> Arc<Self> {
        Arc::new(Self((0..num_slots).map(|_| RwLock::new(vec![0; slot_bytes])).collect()))
    }

    fn slot(&self, slot: SlotId) -> Result<&RwLock<Vec<u8>>, SlotAccessError> {
        let num_slots = self.num_slots();
        self.0.get(slot.0 as usize).ok_or(SlotAccessError::OutOfRange { slot, num_slots })
    }
}

impl HostMemory for Slots {
    fn num_slots(&self) -> u32 {
        u32::try_from(self.0.len()).unwrap()
    }

    fn slot_bytes(&self) -> usize {
        self.0[0].read().unwrap().len()
    }

    fn with_read(&self, slot: SlotId, read: &mut dyn FnMut(&[u8])) -> Result<(), SlotAccessError> {
        let bytes = self.slot(slot)?.try_read().map_err(|_| SlotAccessError::Busy { slot })?;
        read(&bytes);
        Ok(())
    }

    fn with_write(&self, slot: SlotId, write: &mut dyn FnMut(&mut [u8])) -> Result<(), SlotAccessError> {
        let mut bytes = self.slot(slot)?.try_write().map_err(|_| SlotAccessError::Busy { slot })?;
        write(&mut bytes);
        Ok(())
    }
}

/// Group and hash, in an order that no hash table decides.
type Key = (usize, BlockHash);

#[derive(Debug)]
struct Chunk {
    slot: SlotId,
    /// Whether its bytes are there.
    is_ready: bool,
    pins: u32,
    /// When it was stored or loaded last.
    used: u64,
}

#[derive(Debug)]
enum Work {
    Store,
    Load { request: RequestId, load: Range<usize> },
}

#[derive(Debug)]
struct Job {
    work: Work,
    keys: Vec<Key>,
    blocks: HashSet<(usize, BlockId)>,
    owners: Vec<RequestId>,
    /// Over for the request, while the device may still touch its bytes.
    is_held: bool,
}

/// What happened, so that a test knows that it did.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Seen {
    pub(crate) stored: u64,
    pub(crate) loaded: u64,
    pub(crate) failed: u64,
    pub(crate) held: u64,
    pub(crate) waited: u64,
    pub(crate) parked: u64,
    pub(crate) evicted: u64,
}

/// Keeps blocks in slots, least recently used ones first to go.
pub(crate) struct Keeper {
    random: SplitMix64,
    num_slots: u32,
    planner: Option<CopyPlanner>,
    windows: Vec<Option<usize>>,
    block_tokens: usize,
    chunks: BTreeMap<Key, Chunk>,
    free: Vec<SlotId>,
    jobs: HashMap<JobId, Job>,
    loads: Vec<CopyJob>,
    /// The blocks of requests that are over, which stay away until this says so.
    parked: HashMap<RequestId, HashSet<(usize, BlockId)>>,
    next_job: u64,
    now: u64,
    pub(crate) seen: Seen,
}

impl Keeper {
    pub(crate) fn new(num_slots: u32, seed: u64) -> Self {
        Self {
            random: SplitMix64::stream(seed, 77),
            num_slots,
            planner: None,
            windows: Vec::new(),
            block_tokens: 0,
            chunks: BTreeMap::new(),
            free: (0..num_slots).map(SlotId).collect(),
            jobs: HashMap::new(),
            loads: Vec::new(),
            parked: HashMap::new(),
            next_job: 0,
            now: 0,
            seen: Seen::default(),
        }
    }

    /// Nothing is pinned, nothing in flight, and each slot is free or one chunk's.
    pub(crate) fn assert_quiet(&self) {
        assert!(self.jobs.is_empty() && self.parked.is_empty() && self.loads.is_empty());
        assert!(self.chunks.values().all(|chunk| chunk.is_ready && chunk.pins == 0));
        assert_eq!(self.free.len() + self.chunks.len(), self.num_slots as usize);
    }

    fn one_in(&mut self, bound: u64) -> bool {
        self.random.below(bound) == 0
    }

    /// A deadline that cannot be kept, now and then, before the copies have begun or within them.
    fn deadline(&mut self) -> Option<Duration> {
        let within = Duration::from_micros(self.random.below(400));
        self.one_in(12).then_some(within)
    }

    /// The blocks of a group that a request which goes on behind `tokens` tokens attends to.
    fn needed(&self, group: usize, tokens: usize) -> Range<usize> {
        let first =
            self.windows[group].map_or(0, |window| (tokens + 1).saturating_sub(window) / self.block_tokens);
        first..tokens / self.block_tokens
    }

    fn is_ready(&self, key: Key) -> bool {
        self.chunks.get(&key).is_some_and(|chunk| chunk.is_ready)
    }

    /// A slot that is free, or was used longest ago and is nobody's now.
    fn take_slot(&mut self) -> Option<SlotId> {
        if let Some(slot) = self.free.pop() {
            return Some(slot);
        }
        let evictable = self.chunks.iter().filter(|(_, chunk)| chunk.is_ready && chunk.pins == 0);
        let key = *evictable.min_by_key(|(key, chunk)| (chunk.used, **key))?.0;
        self.seen.evicted += 1;
        self.chunks.remove(&key).map(|chunk| chunk.slot)
    }

    fn next_job(&mut self) -> JobId {
        self.next_job += 1;
        JobId(self.next_job)
    }

    /// Keys and blocks of a request from block to block, those that its tables have.
    fn keyed(request: &RequestView<'_>, blocks: &Range<usize>) -> Vec<(Key, BlockId)> {
        let tables = request.tables.iter().enumerate();
        let of_table = |(group, table): (usize, &kvo_mini_engine::BlockTable)| {
            let entries = blocks.clone().filter_map(|nth| Some(((group, request.hashes[nth]), table[nth]?)));
            entries.collect::<Vec<_>>()
        };
        tables.flat_map(of_table).collect()
    }

    fn ops(
        &mut self,
        work: &Work,
        keyed: &[(Key, BlockId)],
        by_layer: bool,
    ) -> (Vec<kvo_core::CopyOp>, LayerMarks) {
        let blocks: Vec<[BlockId; 1]> = keyed.iter().map(|(_, block)| [*block]).collect();
        let chunks: Vec<ChunkBlocks<'_>> = keyed
            .iter()
            .zip(&blocks)
            .map(|((key, _), blocks)| ChunkBlocks {
                group: GroupIdx(u32::try_from(key.0).unwrap()),
                slot: self.chunks[key].slot,
                skip: 0,
                blocks,
            })
            .collect();
        let (mut ops, mut marks) = (Vec::new(), LayerMarks::default());
        let planner = self.planner.as_mut().unwrap();
        match work {
            Work::Store => planner.plan_store(&chunks, &mut ops).unwrap(),
            Work::Load { .. } if by_layer => {
                planner.plan_load_by_layer(&chunks, &mut ops, &mut marks).unwrap();
            }
            Work::Load { .. } => planner.plan_load(&chunks, &mut ops).unwrap(),
        }
        (ops, marks)
    }

    fn begin(
        &mut self,
        work: Work,
        keyed: &[(Key, BlockId)],
        owners: Vec<RequestId>,
        by_layer: bool,
    ) -> CopyJob {
        let (ops, marks) = self.ops(&work, keyed, by_layer);
        let class = if matches!(work, Work::Store) { TransferClass::Store } else { TransferClass::Demand };
        let keys = keyed.iter().map(|(key, _)| *key).collect();
        let blocks = keyed.iter().map(|(key, block)| (key.0, *block)).collect();
        let job = self.next_job();
        self.jobs.insert(job, Job { work, keys, blocks, owners, is_held: false });
        CopyJob { job, class, ops, marks, deadline: self.deadline() }
    }

    /// Lets go of what a job that is over had, and of parked requests that no other has anything of.
    fn end(&mut self, job: JobId, is_good: bool, events: &mut OffloadEvents) {
        let ended = self.jobs.remove(&job).unwrap();
        for key in ended.keys {
            let chunk = self.chunks.get_mut(&key).unwrap();
            match ended.work {
                Work::Store if !is_good => {
                    let slot = chunk.slot;
                    self.chunks.remove(&key);
                    self.free.push(slot);
                }
                Work::Store => chunk.is_ready = true,
                Work::Load { .. } => chunk.pins -= 1,
            }
        }
        let jobs = &self.jobs;
        let is_used = |id: &RequestId| jobs.values().any(|job| job.owners.contains(id));
        let released: Vec<RequestId> =
            ended.owners.into_iter().filter(|id| self.parked.contains_key(id) && !is_used(id)).collect();
        for id in released {
            if self.parked.remove(&id).is_some() {
                events.released.push(id);
            }
        }
    }
}

impl Offload for Keeper {
    fn attach(&mut self, caches: &KvCaches) -> Result<(), EngineError> {
        let layout = caches.layout(1)?;
        let slot_bytes = layout.groups().iter().map(kvo_cuda::GroupLayout::chunk_bytes).max().unwrap();
        let options = PlanOptions { mark_bytes_min: 1, ..PlanOptions::default() };
        self.planner = Some(CopyPlanner::with_options(layout, self.num_slots, slot_bytes, options)?);
        self.windows =
            caches.groups().iter().map(|group| group.window.map(|window| window as usize)).collect();
        self.block_tokens = caches.block_tokens() as usize;
        Ok(())
    }

    fn new_request(&mut self, _: RequestView<'_>) {}

    fn match_prefix(&mut self, request: RequestView<'_>, limit: usize) -> PrefixMatch {
        if self.one_in(6) {
            return PrefixMatch::Again;
        }
        let first = request.computed / self.block_tokens;
        let is_there = |end: &usize| {
            (0..self.windows.len()).all(|group| {
                let needed = self.needed(group, end * self.block_tokens);
                (needed.start.max(first)..needed.end).all(|nth| self.is_ready((group, request.hashes[nth])))
            })
        };
        let end = (first..=limit / self.block_tokens).rev().find(is_there).unwrap();
        PrefixMatch::Loadable((end - first) * self.block_tokens)
    }

    fn blocks_allocated(&mut self, request: RequestView<'_>, load: Range<usize>) -> LoadStart {
        if self.one_in(8) {
            return LoadStart::Gone;
        }
        let by_layer = self.one_in(2);
        let blocks = load.start / self.block_tokens..load.end / self.block_tokens;
        let keyed = Self::keyed(&request, &blocks);
        self.now += 1;
        for (key, _) in &keyed {
            let chunk = self.chunks.get_mut(key).unwrap();
            chunk.pins += 1;
            chunk.used = self.now;
        }
        let job = self.begin(Work::Load { request: request.id, load }, &keyed, vec![request.id], by_layer);
        self.loads.push(job);
        if by_layer { LoadStart::ByLayer } else { LoadStart::Wait }
    }

    fn build_step(&mut self, step: &StepInput<'_>) -> StepPlan {
        self.now += 1;
        let given_out: HashSet<(usize, BlockId)> = step
            .new_blocks
            .iter()
            .enumerate()
            .flat_map(|(group, blocks)| blocks.iter().map(move |block| (group, *block)))
            .collect();
        assert!(
            self.parked.values().all(|parked| parked.is_disjoint(&given_out)),
            "a parked block was given out"
        );
        let loads = std::mem::take(&mut self.loads);
        // The loads of this step bring what the new blocks are for.
        let is_new = |id: &JobId| loads.iter().any(|load| load.job == *id);
        let in_use = self.jobs.iter().filter(|(id, job)| !is_new(id) && !job.blocks.is_disjoint(&given_out));
        let wait_for: Vec<JobId> = in_use.map(|(id, _)| *id).collect();
        self.seen.waited += wait_for.len() as u64;
        let mut stores = Vec::new();
        for scheduled in step.scheduled {
            // What is computed behind a load may be wrong until that has ended.
            let is_layered = |load: &CopyJob| self.jobs[&load.job].owners.contains(&scheduled.request.id);
            if loads.iter().any(is_layered) {
                continue;
            }
            let full = scheduled.tokens.start / self.block_tokens..scheduled.tokens.end / self.block_tokens;
            let mut kept = Vec::new();
            for (key, block) in Self::keyed(&scheduled.request, &full) {
                if self.chunks.contains_key(&key) {
                    continue;
                }
                let Some(slot) = self.take_slot() else { break };
                let chunk = Chunk { slot, is_ready: false, pins: 0, used: self.now };
                self.chunks.insert(key, chunk);
                kept.push((key, block));
            }
            if !kept.is_empty() {
                self.seen.stored += kept.len() as u64;
                stores.push(self.begin(Work::Store, &kept, vec![scheduled.request.id], false));
            }
        }
        StepPlan { wait_for, loads, stores }
    }

    fn job_done(
        &mut self,
        job: JobId,
        result: Result<u64, CopyFailure>,
        held: bool,
        events: &mut OffloadEvents,
    ) {
        let lies = self.one_in(6);
        let open = &self.jobs[&job];
        if let Work::Load { request, load } = &open.work {
            let blocks = (load.end - load.start) / self.block_tokens;
            // What has come is said to be less, too.
            let good = match result {
                Ok(_) if lies => blocks / 2,
                Ok(_) => blocks,
                Err(_) => 0,
            };
            self.seen.loaded += good as u64;
            self.seen.failed += u64::from(good < blocks);
            events.loads_ended.push((*request, load.start + good * self.block_tokens));
        }
        if held {
            self.seen.held += 1;
            self.jobs.get_mut(&job).unwrap().is_held = true;
        } else {
            self.end(job, result.is_ok(), events);
        }
    }

    fn job_released(&mut self, job: JobId, events: &mut OffloadEvents) {
        assert!(self.jobs[&job].is_held);
        self.end(job, false, events);
    }

    fn request_finished(&mut self, request: RequestView<'_>) -> BlocksAfter {
        let is_used = self.jobs.values().any(|job| job.owners.contains(&request.id));
        if is_used && self.one_in(2) {
            self.seen.parked += 1;
            let blocks = request.tables.iter().enumerate();
            let blocks =
                blocks.flat_map(|(group, table)| table.iter().flatten().map(move |block| (group, *block)));
            self.parked.insert(request.id, blocks.collect());
            return BlocksAfter::Parked;
        }
        BlocksAfter::Free
    }

    fn reset(&mut self) {
        let is_free = |chunk: &Chunk| chunk.is_ready && chunk.pins == 0;
        let free = self.chunks.extract_if(.., |_, chunk| is_free(chunk));
        self.free.extend(free.map(|(_, chunk)| chunk.slot));
    }

    fn has_pending_work(&self) -> bool {
        !self.jobs.is_empty()
    }
}
