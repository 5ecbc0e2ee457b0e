//! A small engine: requests come, share prefixes, compute in pieces, are preempted, aborted, and finish.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use kvo_connector::{
    BlockHasher, Connector, ConnectorOptions, ConnectorStats, CopyId, CopyOutcome, Finish, GroupOptions,
    Namespace, PrefixMatch, RequestParams, Scheduled, StepInput, StepPlan, WorkerReport,
};
use kvo_core::{
    BlockId, ChunkCounts, Clock, HostMemory, ManualClock, OffloadManager, RequestId, SecondaryTier, SlotId,
};
use kvo_cpu::{CpuManager, CpuOptions, HostRegion};
use kvo_cuda::Fingerprint;
use kvo_policies::{CachePolicy, Lru, PolicyKind};
use kvo_tiering::{MemoryTier, MemoryTierWorker, TieringManager, TieringOptions};

use crate::{
    memory::{Caches, LAYERS},
    random::{Random, mix},
    rank::Rank,
    request::{Request, allocate},
};

const NAMESPACE: Namespace = Namespace { fingerprint: Fingerprint([1; 32]), epoch: 1 };

#[derive(Clone, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is one thing that may happen or not")]
pub(crate) struct Setup {
    pub(crate) groups: Vec<GroupOptions>,
    pub(crate) num_slots: u32,
    pub(crate) num_blocks: u32,
    /// Chunks of a tier below; 0 leaves it out.
    pub(crate) lower_chunks: u32,
    pub(crate) arc: bool,
    pub(crate) steps: u32,
    /// Copies that find their slots in use, and copies that are late.
    pub(crate) faults: bool,
    pub(crate) resets: bool,
    pub(crate) drafts: bool,
    pub(crate) load_chunks_max: usize,
    /// More than one have no tier below.
    pub(crate) num_workers: u32,
}

/// What has happened in a run.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Sums {
    finished: u64,
    aborted: u64,
    preempted: u64,
    loaded_tokens: u64,
    loads: u64,
    pub(crate) loads_failed: u64,
    /// Of which something in front was good.
    pub(crate) failed_partly: u64,
    stores: u64,
    stores_failed: u64,
    offers_refused: u64,
    asked_again: u64,
    waits: u64,
    held: u64,
    pub(crate) resets: u64,
    /// Requests that had KV data of former weights.
    pub(crate) outdated: u64,
    pub(crate) by_layer: u64,
    late: u64,
}

impl Sums {
    pub(crate) fn add(&mut self, other: &Self) {
        let Self { finished, aborted, preempted, loaded_tokens, loads, loads_failed, .. } = other;
        self.finished += finished;
        self.aborted += aborted;
        self.preempted += preempted;
        self.loaded_tokens += loaded_tokens;
        self.loads += loads;
        self.loads_failed += loads_failed;
        self.failed_partly += other.failed_partly;
        self.stores += other.stores;
        self.stores_failed += other.stores_failed;
        self.offers_refused += other.offers_refused;
        self.asked_again += other.asked_again;
        self.waits += other.waits;
        self.held += other.held;
        self.resets += other.resets;
        self.outdated += other.outdated;
        self.by_layer += other.by_layer;
        self.late += other.late;
    }

    pub(crate) fn all_happened(&self) -> bool {
        let Self { finished, aborted, preempted, loaded_tokens, loads, loads_failed, .. } = *self;
        let first = [finished, aborted, preempted, loaded_tokens, loads, loads_failed];
        let second = [self.stores, self.stores_failed, self.offers_refused, self.asked_again, self.waits];
        let third = [self.held, self.resets, self.outdated, self.by_layer, self.late];
        first.iter().chain(&second).chain(&third).all(|count| *count > 0)
    }
}

pub(crate) struct Engine {
    setup: Setup,
    connector: Connector<TieringManager<Box<dyn CachePolicy>>>,
    /// Each computes all, in caches of its own.
    ranks: Vec<Rank>,
    lower: Option<MemoryTierWorker<HostRegion>>,
    clock: ManualClock,
    /// By pool.
    free: BTreeMap<u32, Vec<BlockId>>,
    requests: BTreeMap<u64, Request>,
    waiting: VecDeque<u64>,
    /// Blocks that are kept until no copy uses them.
    kept: BTreeMap<u64, Vec<(u32, BlockId)>>,
    /// Requests whose loads failed.
    to_preempt: Vec<u64>,
    next: u64,
    wrong: Arc<AtomicU64>,
    /// What compute behind the layers of a load has found wrong, which counts if the load succeeds.
    behind: BTreeMap<CopyId, Arc<AtomicU64>>,
    succeeded: Vec<Arc<AtomicU64>>,
    hasher: BlockHasher,
    hash_tokens: u32,
    /// Which weights compute.
    epoch: u64,
    sums: Sums,
}

impl Engine {
    pub(crate) fn new(setup: Setup, random: &mut Random) -> Self {
        let slot_bytes = Caches::slot_bytes(&setup.groups);
        let ranks: Vec<_> =
            (0..setup.num_workers).map(|_| Rank::new(&setup, slot_bytes, random.next())).collect();
        let host = Arc::clone(&ranks[0].host);
        let clock = ManualClock::default();
        let kind = if setup.arc { PolicyKind::Arc(kvo_policies::GhostHits::T1) } else { PolicyKind::Lru };
        let primary = CpuManager::new(CpuOptions::new(setup.num_slots), kind.build(setup.num_slots)).unwrap();
        let (mut tiers, mut lower): (Vec<Box<dyn SecondaryTier>>, _) = (Vec::new(), None);
        if setup.lower_chunks > 0 {
            let policy = Lru::new(setup.lower_chunks);
            let (tier, worker) = MemoryTier::new("lower", setup.lower_chunks, policy, host.clone()).unwrap();
            tiers.push(Box::new(tier));
            lower = Some(worker);
        }
        let tiering = TieringOptions::new(slot_bytes);
        let manager = TieringManager::new(primary, tiers, tiering, Box::new(clock.clone_as_clock())).unwrap();
        let hash_tokens = setup.groups.iter().map(|group| group.block_tokens).min().unwrap();
        let options = ConnectorOptions {
            lookup_patience: Duration::from_millis(20),
            copy_patience: if setup.faults { Duration::from_millis(6) } else { Duration::from_mins(1) },
            offer_chunks_max: 1 + random.index(8),
            load_chunks_max: setup.load_chunks_max,
            num_workers: setup.num_workers,
            ..ConnectorOptions::new(NAMESPACE, setup.groups.clone(), hash_tokens)
        };
        let connector = Connector::new(options, manager, Box::new(clock.clone_as_clock())).unwrap();
        let blocks = || (0..setup.num_blocks).map(BlockId).collect::<Vec<_>>();
        let free = setup.groups.iter().map(|group| (group.pool, blocks())).collect();
        Self {
            setup,
            connector,
            ranks,
            lower,
            clock,
            free,
            requests: BTreeMap::new(),
            waiting: VecDeque::new(),
            kept: BTreeMap::new(),
            to_preempt: Vec::new(),
            next: 0,
            wrong: Arc::default(),
            behind: BTreeMap::new(),
            succeeded: Vec::new(),
            hasher: BlockHasher::new(b"simulated"),
            hash_tokens,
            epoch: NAMESPACE.epoch,
            sums: Sums::default(),
        }
    }

    pub(crate) fn run(mut self, random: &mut Random) -> Sums {
        for _ in 0..self.setup.steps {
            if self.requests.len() < 8 && random.one_in(2) {
                self.arrive(random);
            }
            if self.setup.resets && random.one_in(40) {
                self.reset(random);
            }
            self.step(random);
        }
        let mut steps = 0;
        while !self.requests.is_empty() || self.connector.has_pending_work() {
            self.step(random);
            steps += 1;
            assert!(steps < 20_000, "no progress: {:?}, {:?}", self.requests, self.connector);
        }
        self.is_at_rest(random);
        self.sums
    }

    fn arrive(&mut self, random: &mut Random) {
        let id = self.next;
        self.next += 1;
        // One of a few documents, some of it, and something of its own behind.
        let document = random.below(4);
        let shared = random.index(60);
        let own = 1 + random.index(20);
        let of_document = |nth: usize| u32::try_from(mix(document << 32 | nth as u64) % 1000).unwrap();
        let mut tokens: Vec<u32> = (0..shared).map(of_document).collect();
        tokens.extend((0..own).map(|nth| u32::try_from(2000 + (id * 100 + nth as u64) % 10_000).unwrap()));
        if random.one_in(4) {
            tokens.truncate(shared.max(1));
        }
        let (salt, adapter) = (random.one_in(8).then_some([7; 32]), random.one_in(8).then_some([7; 32]));
        let params = RequestParams {
            salt,
            adapter,
            load_tokens_max: random.one_in(6).then(|| u32::try_from(random.below(30)).unwrap()),
            store_tokens_max: random.one_in(6).then(|| u32::try_from(random.below(60)).unwrap()),
            prompt_only: random.one_in(6),
            skip_reading: random.one_in(10),
            ..RequestParams::default()
        };
        let prompt = u32::try_from(tokens.len()).unwrap();
        if self.connector.new_request(RequestId(id), prompt, params).is_err() {
            return;
        }
        let tenant = 1 + u64::from(salt.is_some()) + 2 * u64::from(adapter.is_some());
        let wanted = tokens.len() + random.index(30);
        let request = Request::new(tokens, wanted, tenant, self.setup.groups.len());
        self.requests.insert(id, request);
        self.tell_hashes(id);
        self.waiting.push_back(id);
    }

    fn tell_hashes(&mut self, id: u64) {
        let request = self.requests.get_mut(&id).unwrap();
        let hashes = self.hasher.blocks(self.hash_tokens as usize, &request.tokens);
        let new = &hashes[request.num_hashes..];
        let num_tokens = u32::try_from(request.tokens.len()).unwrap();
        self.connector.add_hashes(RequestId(id), num_tokens, new).unwrap();
        request.num_hashes = hashes.len();
    }

    fn step(&mut self, random: &mut Random) {
        self.some_time(random);
        self.collect(random);
        self.abort_some(random);
        self.start_some(random);
        self.compute_some(random);
        self.finish_some(random);
        self.clock.advance(Duration::from_millis(1));
    }

    /// The device and the lower tier get on with it.
    fn some_time(&mut self, random: &mut Random) {
        if self.setup.faults {
            // Deadlines are the device's.
            let now = self.clock.now();
            for rank in &mut self.ranks {
                rank.worker.device_mut().0.advance_to(now);
            }
        }
        for rank in &mut self.ranks {
            for _ in 0..random.below(60) {
                rank.step();
            }
        }
        if let Some(lower) = &mut self.lower
            && random.one_in(2)
        {
            lower.run_queued();
        }
        // A slot that somebody has hold of fails the copies that need it.
        if self.setup.faults && random.one_in(12) {
            let slot = SlotId(u32::try_from(random.below(u64::from(self.setup.num_slots))).unwrap());
            let Rank { worker, host, .. } = self.some_rank(random);
            let device = worker.device_mut();
            let _ = host.with_write(slot, &mut |_| {
                for _ in 0..random.below(20) {
                    device.0.step();
                }
            });
        }
    }

    fn step_devices(&mut self) {
        self.ranks.iter_mut().for_each(Rank::step);
    }

    fn some_rank(&mut self, random: &mut Random) -> &mut Rank {
        let nth = random.index(self.ranks.len());
        &mut self.ranks[nth]
    }

    fn collect(&mut self, random: &mut Random) {
        for rank in &mut self.ranks {
            rank.worker.poll(&mut rank.reports);
        }
        let mut late = Vec::new();
        self.connector.take_late(&mut late);
        self.sums.late += late.len() as u64;
        for outcome in late {
            self.copy_ended(outcome);
        }
        for worker in 0..self.setup.num_workers {
            self.collect_of(worker, random);
        }
        let mut settled = Vec::new();
        self.connector.take_settled(&mut settled);
        for id in settled {
            for (pool, block) in self.kept.remove(&id.0).unwrap_or_default() {
                self.free.get_mut(&pool).unwrap().push(block);
            }
        }
    }

    /// Tells what a worker has reported.
    fn collect_of(&mut self, worker: u32, random: &mut Random) {
        let mut kept = Vec::new();
        for report in std::mem::take(&mut self.ranks[worker as usize].reports) {
            // Some take their time, and one copy's come in order.
            let copy = |report: &WorkerReport| match report {
                WorkerReport::Ended { copy, .. } | WorkerReport::Released { copy } => *copy,
            };
            let is_slow = self.setup.faults && random.one_in(30);
            if is_slow || kept.iter().any(|kept| copy(kept) == copy(&report)) {
                kept.push(report);
                continue;
            }
            match report {
                WorkerReport::Ended { copy, result, .. } => {
                    let outcome = self.connector.copy_reported(copy, worker, result).unwrap();
                    self.sums.held += u64::from(result == kvo_connector::CopyResult::FailedAndHeld);
                    self.copy_ended(outcome);
                    self.forget_behind(copy, outcome);
                }
                WorkerReport::Released { copy } => self.connector.copy_released(copy, worker).unwrap(),
            }
        }
        self.ranks[worker as usize].reports = kept;
    }

    /// Compute behind the layers of a load counts if that went well.
    fn forget_behind(&mut self, copy: CopyId, outcome: CopyOutcome) {
        if outcome == CopyOutcome::Open {
            return;
        }
        let wrong = self.behind.remove(&copy);
        if matches!(outcome, CopyOutcome::Loaded { .. }) {
            self.succeeded.extend(wrong);
        }
    }

    fn copy_ended(&mut self, outcome: CopyOutcome) {
        let (id, computed) = match outcome {
            CopyOutcome::Loaded { request, computed } => {
                let before = self.requests[&request.0].computed;
                self.sums.loaded_tokens += u64::from(computed.saturating_sub(before));
                (request.0, computed.max(before))
            }
            CopyOutcome::LoadFailed { request, computed } => {
                self.sums.failed_partly += u64::from(computed > 0);
                (request.0, computed)
            }
            _ => return,
        };
        let request = self.requests.get_mut(&id).unwrap();
        assert!(request.loading.take().is_some());
        request.computed = computed;
        request.behind_layers = None;
        // Of a window there are only the blocks that were to be loaded: it begins anew.
        if request.tables.iter().flatten().any(Option::is_none) && computed == 0 {
            self.to_preempt.push(id);
        }
    }

    fn abort_some(&mut self, random: &mut Random) {
        let ids: Vec<u64> = self.requests.keys().copied().collect();
        if !ids.is_empty() && random.one_in(25) {
            self.sums.aborted += 1;
            self.finish(random.pick(&ids), random);
        }
    }

    fn finish_some(&mut self, random: &mut Random) {
        let is_done = |request: &Request| {
            request.is_running && request.loading.is_none() && request.tokens.len() >= request.wanted
        };
        let done: Vec<u64> = self.requests.iter().filter(|(_, of)| is_done(of)).map(|(id, _)| *id).collect();
        for id in done {
            self.sums.finished += 1;
            self.finish(id, random);
        }
    }

    fn finish(&mut self, id: u64, random: &mut Random) {
        let request = self.requests.remove(&id).unwrap();
        self.waiting.retain(|waiting| *waiting != id);
        let finish = self.connector.request_finished(RequestId(id)).unwrap();
        let blocks = request.all_blocks(&self.setup.groups);
        // Either is allowed: the plan says what to wait for.
        if finish == Finish::Settled || random.one_in(2) {
            for (pool, block) in blocks {
                self.free.get_mut(&pool).unwrap().push(block);
            }
            self.kept.insert(id, Vec::new());
        } else {
            self.kept.insert(id, blocks);
        }
        if finish == Finish::Settled {
            self.kept.remove(&id);
        }
    }

    /// Requests that wait are matched; what is found is loaded, and the rest computed.
    fn start_some(&mut self, random: &mut Random) {
        for _ in 0..self.waiting.len().min(2) {
            let Some(id) = self.waiting.pop_front() else { return };
            let found = match self.connector.match_prefix(RequestId(id), 0).unwrap() {
                PrefixMatch::AskAgain => {
                    self.waiting.push_back(id);
                    continue;
                }
                PrefixMatch::Loadable(tokens) => tokens,
            };
            let request = self.requests.get_mut(&id).unwrap();
            // An engine may have other ideas.
            if found > 0 && !random.one_in(10) {
                let end = if found as usize + 1 == request.tokens.len() { found + 1 } else { found };
                if !allocate(request, &self.setup.groups, &mut self.free, found, end, random) {
                    self.waiting.push_back(id);
                    continue;
                }
                let tables: Vec<_> = request.tables.iter().map(Vec::as_slice).collect();
                let copy = self.connector.blocks_allocated(RequestId(id), &tables).unwrap();
                request.told = request.tables.iter().map(Vec::len).collect();
                request.loading = Some(copy);
                request.compute(0..found, self.epoch);
                // Only the layers of one copy are waited for.
                let is_one_copy = self.connector.options().load_chunks_max == usize::MAX;
                request.behind_layers = (is_one_copy && random.one_in(2)).then_some(found);
            }
            request.is_running = true;
        }
    }

    /// One step's compute, with the connector's plan around it.
    fn compute_some(&mut self, random: &mut Random) {
        let ids: Vec<u64> = self.requests.iter().filter(|(_, of)| of.is_running).map(|(id, _)| *id).collect();
        let (mut preempted, mut pieces) = (Vec::new(), Vec::new());
        for id in ids {
            let request = self.requests.get_mut(&id).unwrap();
            match request.behind_layers {
                Some(end) if request.computed < end => request.computed = end,
                _ if request.loading.is_some() || random.one_in(4) => continue,
                _ => {}
            }
            let left = u32::try_from(request.tokens.len()).unwrap() - request.computed;
            let count = if left == 0 {
                continue;
            } else {
                1 + u32::try_from(random.below(u64::from(left.min(16)))).unwrap()
            };
            request.leave_behind(&self.setup.groups, &mut self.free);
            if self.setup.drafts && random.one_in(3) {
                request.take_back(&self.setup.groups, &mut self.free);
            }
            let (from, to) = (request.computed, request.computed + count);
            if allocate(request, &self.setup.groups, &mut self.free, from, to, random) {
                pieces.push((id, count));
            } else {
                self.to_preempt.push(id);
            }
        }
        for id in std::mem::take(&mut self.to_preempt) {
            let Some(request) = self.requests.get_mut(&id) else { continue };
            self.sums.preempted += 1;
            for (pool, block) in request.all_blocks(&self.setup.groups) {
                self.free.get_mut(&pool).unwrap().push(block);
            }
            request.preempt();
            preempted.push(RequestId(id));
            self.waiting.push_back(id);
            pieces.retain(|(piece, _)| *piece != id);
        }
        self.run_pieces(&preempted, &pieces, random);
    }

    fn run_pieces(&mut self, preempted: &[RequestId], pieces: &[(u64, u32)], random: &mut Random) {
        let mut drafts = BTreeMap::new();
        if self.setup.drafts {
            for (id, count) in pieces {
                // The last ones are only a draft: somebody else's tokens, to be computed once more.
                drafts.insert(*id, u32::try_from(random.below(u64::from(*count))).unwrap());
            }
        }
        let draft = |id: &u64| drafts.get(id).copied().unwrap_or(0);
        let new: Vec<Vec<&[Option<BlockId>]>> =
            pieces.iter().map(|(id, _)| self.requests[id].new_blocks()).collect();
        let scheduled: Vec<_> = pieces
            .iter()
            .zip(&new)
            .map(|((id, count), new_blocks)| Scheduled {
                request: RequestId(*id),
                kept_blocks: &self.requests[id].told,
                new_blocks,
                computed: self.requests[id].computed,
                settled: self.requests[id].computed + count - draft(id),
            })
            .collect();
        let plan = self.connector.build_step(&StepInput { preempted, scheduled: &scheduled }).unwrap();
        drop(scheduled);
        for rank in &mut self.ranks {
            let mut wait_for = plan.wait_for.clone();
            loop {
                wait_for = rank.worker.order_behind(&wait_for, rank.stream).unwrap();
                if wait_for.is_empty() {
                    break;
                }
                rank.step();
            }
            rank.worker.start_loads(&plan, rank.point());
        }
        let copies: Vec<_> = plan.loads.iter().map(|load| load.copy).collect();
        if let [_, behind @ ..] = copies.as_slice()
            && !behind.is_empty()
        {
            self.spoil(&plan, random.pick(behind), random);
        }
        for (id, count) in pieces {
            let request = self.requests.get_mut(id).unwrap();
            request.told = request.tables.iter().map(Vec::len).collect();
            request.compute(request.computed..request.computed + count, self.epoch);
            let (reads, writes) = request.accesses(&self.setup.groups, *count, draft(id));
            request.computed += count - draft(id);
            let Some(copy) = request.loading else {
                for rank in &mut self.ranks {
                    rank.compute(&reads, &writes, 0..LAYERS, &self.wrong);
                }
                continue;
            };
            self.spoil(&plan, copy, random);
            let wrong = Arc::<AtomicU64>::default();
            for rank in &mut self.ranks {
                for layer in 0..LAYERS {
                    rank.wait_for_layer(copy, layer);
                    rank.compute(&reads, &writes, layer..layer + 1, &wrong);
                }
            }
            self.sums.by_layer += 1;
            self.behind.insert(copy, wrong);
        }
        for rank in &mut self.ranks {
            rank.worker.start_stores(&plan, rank.point());
        }
        for (id, _) in pieces {
            let request = self.requests.get_mut(id).unwrap();
            if request.computed as usize == request.tokens.len() && request.tokens.len() < request.wanted {
                let token = u32::try_from(mix(*id << 20 | request.tokens.len() as u64) % 5000).unwrap();
                request.push(token);
                self.tell_hashes(*id);
            }
        }
    }

    /// Has hold of a slot while a load needs it.
    fn spoil(&mut self, plan: &StepPlan, copy: CopyId, random: &mut Random) {
        let load = plan.loads.iter().find(|load| load.copy == copy);
        let slots =
            load.map(|load| load.chunks().map(|chunk| chunk.slot).collect::<Vec<_>>()).unwrap_or_default();
        if slots.is_empty() || !self.setup.faults || !random.one_in(3) {
            return;
        }
        let slot = random.pick(&slots);
        let Rank { worker, host, .. } = self.some_rank(random);
        let device = worker.device_mut();
        let _ = host.with_write(slot, &mut |_| {
            for _ in 0..40 {
                device.0.step();
            }
        });
    }

    fn reset(&mut self, random: &mut Random) {
        self.sums.resets += 1;
        // Weights that were there before may come again.
        let epoch = random.below(3);
        let flush = if epoch == self.epoch {
            assert!(self.connector.reset_to(epoch).is_err());
            self.connector.reset()
        } else {
            self.epoch = epoch;
            self.connector.reset_to(epoch).unwrap()
        };
        self.sums.outdated += flush.outdated.len() as u64;
        for id in flush.loads_void {
            let request = self.requests.get_mut(&id.0).unwrap();
            assert!(request.loading.take().is_some());
            // Its blocks may still be written: it takes others.
            for (pool, block) in request.all_blocks(&self.setup.groups) {
                self.free.get_mut(&pool).unwrap().push(block);
            }
            request.preempt();
            self.waiting.push_back(id.0);
            let input = [id];
            self.connector.build_step(&StepInput { preempted: &input, scheduled: &[] }).unwrap();
        }
    }

    fn is_at_rest(&mut self, random: &mut Random) {
        for _ in 0..10_000 {
            self.step_devices();
        }
        while self.ranks.iter().any(|rank| rank.worker.num_open() > 0 || !rank.reports.is_empty()) {
            self.collect(random);
        }
        self.collect(random);
        self.connector.build_step(&StepInput::default()).unwrap();
        let ConnectorStats { open_requests, open_copies, blocks_in_use, .. } = self.connector.stats();
        assert_eq!((open_requests, open_copies, blocks_in_use), (0, 0, 0));
        let ChunkCounts { pending, pinned, .. } = self.connector.manager().counts();
        assert_eq!((pending, pinned), (0, 0), "no slot and no pin is left");
        assert_eq!(self.connector.manager().stats().open_requests, 0);
        for (pool, free) in &mut self.free {
            free.sort_unstable();
            free.dedup();
            assert_eq!(free.len(), self.setup.num_blocks as usize, "blocks of pool {pool}");
        }
        for rank in &self.ranks {
            assert_eq!(rank.worker.device().0.device().take_races(), []);
        }
        let wrong = self.succeeded.iter().chain([&self.wrong]).map(|wrong| wrong.load(Ordering::Relaxed));
        assert_eq!(wrong.sum::<u64>(), 0, "tokens that compute read");
        let stats = self.connector.stats();
        let sums = &mut self.sums;
        (sums.loads, sums.loads_failed) = (stats.loads, stats.loads_failed);
        (sums.stores, sums.stores_failed) = (stats.stores, stats.stores_failed);
        (sums.offers_refused, sums.asked_again) = (stats.offers_refused, stats.asked_again);
        sums.waits = stats.waits;
    }
}

/// A manual clock is a clock; a clone of it tells the same time.
trait AsClock {
    fn clone_as_clock(&self) -> ManualClock;
}

impl AsClock for ManualClock {
    fn clone_as_clock(&self) -> ManualClock {
        self.clone()
    }
}
