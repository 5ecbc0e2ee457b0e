//! The engine: requests, blocks, a device, a manager and its tiers, driven step by step.

use std::{
    collections::{BTreeMap, HashMap},
    ops::Range,
    sync::{Arc, mpsc},
    time::Instant,
};

use kvo_core::{
    BlockId, CompleteErrorReason, CopyOp, DeviceBackend, Direction, GroupIdx, HostMemory, JobToken,
    LoadError, LookupResult, ManualClock, OffloadKey, OffloadManager, Refusal, RequestContext, RequestId,
    SecondaryTier, SlotId, StoreOutcome, Ticket, Transfer, TransferClass, TransferCompletion, TransferResult,
};
use kvo_cpu::{CpuManager, CpuOptions};
use kvo_cuda::{BlockLayout, ChunkBlocks, CopyPlanner, HostDevice, HostDeviceOptions};
use kvo_policies::CachePolicy;
use kvo_tiering::{PressureOptions, ResetReport, TieringManager, TieringOptions};

use super::{
    Arrangement, Setup,
    blocks::Blocks,
    content::key,
    ledger::Ledger,
    tiers::{Backing, LONG, Watched},
};

/// Rounds after which an engine that has not come to rest never will.
const ROUNDS_MAX: usize = 60;

/// A request: its prompt as chunk numbers, head to tail, and the blocks that it has for them.
pub struct Request {
    pub context: RequestContext,
    pub prompt: Vec<u64>,
    blocks: BTreeMap<OffloadKey, Vec<BlockId>>,
    num_groups: u32,
}

impl Request {
    pub fn id(&self) -> RequestId {
        self.context.id()
    }

    /// The keys of some chunks, all groups of each, head to tail.
    pub fn keys(&self, chunks: Range<usize>) -> Vec<OffloadKey> {
        let groups = 0..self.num_groups;
        self.prompt[chunks].iter().flat_map(|n| groups.clone().map(move |group| key(*n, group))).collect()
    }
}

/// What became of an offer.
#[derive(Debug, PartialEq, Eq)]
pub enum Offered {
    /// The copies run.
    Running(Ticket),
    Nothing,
    Refused(Refusal),
    /// The device did not take the copies; the job has ended as failed.
    NotTaken,
}

/// Why a load did not begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotLoaded {
    /// A chunk was evicted since the lookup.
    Gone,
    /// The device did not take the copies; the job has ended.
    NotTaken,
}

/// A transfer that has ended.
#[derive(Debug, PartialEq, Eq)]
pub struct Completion {
    pub ticket: Ticket,
    pub req: RequestId,
    pub direction: Direction,
    /// The bytes arrived, and the manager knew the job.
    pub arrived: bool,
    /// Why the manager did not know the job.
    pub void: Option<CompleteErrorReason>,
}

/// A transfer on the device.
struct Open {
    req: RequestId,
    token: JobToken,
    direction: Direction,
    /// The blocks, with what is to be in them after a load.
    blocks: Vec<(BlockId, (OffloadKey, u32))>,
}

/// The engine.
pub struct Engine {
    setup: Setup,
    policy: Option<Box<dyn CachePolicy>>,
    parts: Vec<Box<dyn SecondaryTier>>,
    manager: Option<TieringManager<Box<dyn CachePolicy>>>,
    pub device: HostDevice,
    pub region: Arc<dyn HostMemory>,
    pub blocks: Blocks,
    pub ledger: Ledger,
    planner: CopyPlanner,
    tiers: Vec<Box<dyn Backing>>,
    next_request: u64,
    transfers: HashMap<Ticket, Open>,
    /// Transfers that have ended and that the manager was not told of yet.
    ended: Vec<TransferCompletion>,
    /// Failed transfers whose slots and blocks the device may still touch: for the manager they have not ended.
    held: Vec<TransferCompletion>,
}

impl Engine {
    pub fn new(
        setup: Setup,
        region: Arc<dyn HostMemory>,
        policy: Box<dyn CachePolicy>,
        tiers: Vec<Box<dyn SecondaryTier>>,
    ) -> Self {
        let (device, planner, blocks) = device(&setup, &region);
        Self {
            setup,
            policy: Some(policy),
            parts: tiers,
            manager: None,
            device,
            region,
            blocks,
            ledger: Ledger::default(),
            planner,
            tiers: Vec::new(),
            next_request: 0,
            transfers: HashMap::new(),
            ended: Vec::new(),
            held: Vec::new(),
        }
    }

    /// Adds a tier below those there are. Only before the first request.
    pub fn add_tier<T: Backing + 'static>(&mut self, tier: Watched<T>) {
        assert!(self.manager.is_none(), "tiers are added before the manager is used");
        self.parts.push(Box::new(tier.clone()));
        self.tiers.push(Box::new(tier));
    }

    /// Puts the manager together, once.
    pub fn start(&mut self) {
        let Some(policy) = self.policy.take() else { return };
        let options = CpuOptions { record_events: true, ..CpuOptions::new(self.setup.num_slots) };
        let primary = CpuManager::new(options, policy).unwrap();
        let options = TieringOptions {
            retry_failed_jobs: self.setup.retry_failed_jobs,
            // A share of a few slots is nothing.
            pressure: PressureOptions {
                promotion_share: None,
                cascade_share: None,
                ..PressureOptions::default()
            },
            ..TieringOptions::new(self.setup.chunk().chunk_bytes())
        };
        let tiers = std::mem::take(&mut self.parts);
        let clock = Box::new(ManualClock::default());
        self.manager = Some(TieringManager::new(primary, tiers, options, clock).unwrap());
    }

    pub fn manager(&self) -> &TieringManager<Box<dyn CachePolicy>> {
        self.manager.as_ref().expect("the engine was started")
    }

    pub fn manager_mut(&mut self) -> &mut TieringManager<Box<dyn CachePolicy>> {
        self.start();
        self.manager.as_mut().expect("the engine was started")
    }

    /// A request begins. Its key at chunk `i` of every group ends at token `16 * (i + 1)`.
    pub fn begin(&mut self, prompt: &[u64]) -> Request {
        self.next_request += 1;
        let num_groups = self.setup.num_groups;
        let context = RequestContext::new(RequestId(self.next_request));
        let mut req = Request { context, prompt: prompt.to_vec(), blocks: BTreeMap::new(), num_groups };
        for (end_token, chunk) in (1..).map(|nth| nth * 16).zip(0..prompt.len()) {
            let keys = req.keys(chunk..chunk + 1);
            req.context.set_positions(keys.into_iter().map(|key| (key, end_token)));
        }
        self.manager_mut().new_request(&mut req.context).unwrap();
        req
    }

    /// Looks for the longest prefix of which every group is there. Says how many chunks are ready, and whether more
    /// may become so.
    pub fn look(&mut self, req: &mut Request) -> (usize, bool) {
        let (mut ready, mut waiting) = (0, false);
        for chunk in 0..req.prompt.len() {
            let keys = req.keys(chunk..chunk + 1);
            let found: Vec<LookupResult> =
                keys.iter().map(|key| self.manager_mut().lookup(&mut req.context, key)).collect();
            if found.contains(&LookupResult::Miss) {
                break;
            }
            waiting |= found.iter().any(|result| *result != LookupResult::Hit);
            ready += usize::from(!waiting);
        }
        (ready, waiting)
    }

    /// Looks step after step until no tier is still looking or bringing.
    #[track_caller]
    pub fn look_until_decided(&mut self, req: &mut Request) -> usize {
        for _ in 0..ROUNDS_MAX {
            let (ready, waiting) = self.look(req);
            if !waiting {
                return ready;
            }
            self.end_step();
            self.drain_tiers();
        }
        panic!("the lookups of {} do not come to an end", req.id());
    }

    /// Starts to load the first `chunks` chunks, less the first `skip` blocks of each group, into blocks that hold
    /// canaries. The blocks left out are computed.
    #[track_caller]
    pub fn load(&mut self, req: &mut Request, chunks: usize, skip: u32) -> Result<Ticket, NotLoaded> {
        let keys = req.keys(0..chunks);
        let job = match self.manager_mut().prepare_load(&mut req.context, &keys) {
            Ok(job) => job,
            Err(LoadError::NotReady { .. }) => return Err(NotLoaded::Gone),
            Err(error) => panic!("{error}"),
        };
        let mut targets = Vec::new();
        let mut ops = Vec::new();
        let mut runs = Vec::new();
        for group in 0..self.setup.num_groups as usize {
            let of_group = |nth: usize| nth % self.setup.num_groups as usize == group;
            let nths: Vec<usize> = (0..keys.len()).filter(|nth| of_group(*nth)).collect();
            let slots: Vec<SlotId> = nths.iter().map(|nth| job.slots[*nth]).collect();
            let mut run = Vec::new();
            for (chunk, nth) in nths.iter().enumerate() {
                for (block, sub_block) in self.blocks_of(req, keys[*nth]).into_iter().zip(0..) {
                    if chunk == 0 && sub_block < skip {
                        self.blocks.write(&self.device, block, (keys[*nth], sub_block));
                        continue;
                    }
                    self.blocks.write_canary(&self.device, block);
                    self.blocks.forget(block);
                    run.push(block);
                    targets.push((block, (keys[*nth], sub_block)));
                }
            }
            runs.push((slots, run));
        }
        let spread: Vec<ChunkBlocks<'_>> = runs
            .iter()
            .flat_map(|(slots, run)| self.planner.spread(GroupIdx(0), skip, slots, run).unwrap())
            .collect();
        self.planner.plan_load(&spread, &mut ops).unwrap();
        self.submit(req.id(), job.token, TransferClass::Demand, ops, targets).map_err(|token| {
            self.manager_mut().complete_load(token).unwrap();
            NotLoaded::NotTaken
        })
    }

    /// Puts the compute of some chunks on the stream.
    pub fn compute(&mut self, req: &mut Request, chunks: Range<usize>) {
        for key in req.keys(chunks) {
            for (block, sub_block) in self.blocks_of(req, key).into_iter().zip(0..) {
                self.blocks.write(&self.device, block, (key, sub_block));
            }
        }
    }

    /// Offers some chunks, and starts the copies of those that are wanted.
    #[track_caller]
    pub fn offer(&mut self, req: &mut Request, chunks: Range<usize>) -> Offered {
        let keys = req.keys(chunks);
        let job = match self.manager_mut().prepare_store(&mut req.context, &keys).unwrap() {
            StoreOutcome::NothingToStore => return Offered::Nothing,
            StoreOutcome::Refused(refusal) => return Offered::Refused(refusal),
            StoreOutcome::Prepared(job) => job,
        };
        assert_eq!(job.keys.len(), job.slots.len());
        let chunk = |(key, slot): (&OffloadKey, &SlotId)| ChunkBlocks {
            group: GroupIdx(0),
            slot: *slot,
            skip: 0,
            blocks: req.blocks.get(key).expect("what is offered was computed or loaded"),
        };
        let chunks: Vec<ChunkBlocks<'_>> = job.keys.iter().zip(&job.slots).map(chunk).collect();
        let mut ops = Vec::new();
        self.planner.plan_store(&chunks, &mut ops).unwrap();
        let blocks = |key: &OffloadKey| {
            let key = *key;
            req.blocks[&key].iter().zip(0..).map(move |(block, sub_block)| (*block, (key, sub_block)))
        };
        let sources = job.keys.iter().flat_map(blocks).collect();
        match self.submit(req.id(), job.token, TransferClass::Store, ops, sources) {
            Ok(ticket) => Offered::Running(ticket),
            Err(token) => {
                self.manager_mut().complete_store(token, TransferResult::Failed).unwrap();
                Offered::NotTaken
            }
        }
    }

    /// Submits copies behind everything that is on the compute stream; hands the token back if the device takes
    /// none.
    fn submit(
        &mut self,
        req: RequestId,
        token: JobToken,
        class: TransferClass,
        ops: Vec<CopyOp>,
        blocks: Vec<(BlockId, (OffloadKey, u32))>,
    ) -> Result<Ticket, JobToken> {
        // A dead device makes no fence, and then nothing may be copied.
        let Ok(after) = self.device.record_fence(self.device.compute().point()) else { return Err(token) };
        match self.device.submit(Transfer::new(class, ops, after)) {
            Ok(ticket) => {
                let direction = class.direction();
                let held: Vec<BlockId> = blocks.iter().map(|(block, _)| *block).collect();
                self.blocks.hold(&held);
                self.transfers.insert(ticket, Open { req, token, direction, blocks });
                Ok(ticket)
            }
            Err(_) => Err(token),
        }
    }

    /// The blocks of a chunk of a request.
    fn blocks_of(&mut self, req: &mut Request, key: OffloadKey) -> Vec<BlockId> {
        let (blocks, count) = (&mut self.blocks, self.setup.blocks_per_chunk);
        req.blocks.entry(key).or_insert_with(|| (0..count).map(|_| blocks.allocate()).collect()).clone()
    }

    /// Waits until every transfer has ended. The manager is told by [`complete`](Self::complete).
    #[track_caller]
    pub fn drain_device(&mut self) {
        self.device.drain(LONG).expect("transfers end");
        self.poll_device();
        let started = Instant::now();
        while !self.held.is_empty() {
            assert!(started.elapsed() < LONG, "the device does not let go of {:?}", self.held);
            std::thread::yield_now();
            self.poll_device();
        }
        // The two lanes race each other; what follows shall not depend on it.
        self.ended.sort_by_key(|completion| completion.ticket);
    }

    /// Takes in the transfers that have ended by now.
    pub fn poll_device(&mut self) {
        self.device.poll(&mut self.ended);
        self.sort_out_held();
    }

    /// A transfer that is held has not ended before the device lets go of it.
    fn sort_out_held(&mut self) {
        self.held.extend(self.ended.extract_if(.., |completion| completion.held));
        let mut released = Vec::new();
        self.device.take_released(&mut released);
        let is_over = |completion: &mut TransferCompletion| released.contains(&completion.ticket);
        self.ended.extend(self.held.extract_if(.., is_over));
    }

    /// Waits until a transfer has ended, if one is in flight.
    pub fn wait_device(&mut self) {
        self.device.wait(LONG, &mut self.ended);
        self.sort_out_held();
    }

    /// Transfers that have ended and that the manager was not told of.
    pub fn num_ended(&self) -> usize {
        self.ended.len()
    }

    /// Tells the manager of the `nth` transfer that has ended, and checks every byte of a load.
    #[track_caller]
    pub fn complete(&mut self, nth: usize) -> Completion {
        let TransferCompletion { ticket, result, .. } = self.ended.swap_remove(nth);
        let Open { req, token, direction, blocks } =
            self.transfers.remove(&ticket).expect("a transfer ends once");
        let known = match direction {
            Direction::Load => {
                if result.is_ok() {
                    for (block, content) in &blocks {
                        self.blocks.arrived(&self.device, *block, *content);
                    }
                }
                self.manager_mut().complete_load(token)
            }
            Direction::Store => {
                let result = if result.is_ok() { TransferResult::Done } else { TransferResult::Failed };
                self.manager_mut().complete_store(token, result)
            }
        };
        self.blocks.release(blocks.into_iter().map(|(block, _)| block));
        let void = known.err().map(|error| error.reason);
        Completion { ticket, req, direction, arrived: result.is_ok() && void.is_none(), void }
    }

    /// Waits for all transfers and tells the manager of each.
    #[track_caller]
    pub fn complete_all(&mut self) -> Vec<Completion> {
        self.drain_device();
        (0..self.ended.len()).map(|_| self.complete(0)).collect()
    }

    /// Ends a step, follows the events, and checks the books.
    #[track_caller]
    pub fn end_step(&mut self) {
        self.manager_mut().on_schedule_end();
        self.follow_events();
        self.manager().primary().assert_consistent();
        assert!(self.manager().counts().add_up(), "{:?}", self.manager().counts());
    }

    #[track_caller]
    pub fn follow_events(&mut self) {
        let mut events = Vec::new();
        self.manager_mut().take_events(&mut events);
        self.ledger.follow(&events);
    }

    pub fn drain_tiers(&mut self) {
        self.tiers.iter_mut().for_each(|tier| tier.drain());
    }

    /// The request ends. Its blocks are free for others once no copy needs them.
    pub fn finish(&mut self, req: &mut Request) {
        self.manager_mut().on_request_finished(&mut req.context).unwrap();
        self.blocks.release(std::mem::take(&mut req.blocks).into_values().flatten());
    }

    /// Steps until nothing is under way any more.
    #[track_caller]
    pub fn settle(&mut self) {
        for _ in 0..ROUNDS_MAX {
            self.complete_all();
            self.drain_tiers();
            self.end_step();
            if !self.manager().has_pending_work() {
                return;
            }
        }
        panic!("the engine does not come to rest: {:?}", self.manager().stats());
    }

    /// Checks that nothing is left under way or held, and every byte of the device.
    #[track_caller]
    pub fn check_quiet(&self) {
        let stats = self.manager().stats();
        let counts = stats.primary.counts;
        assert_eq!((counts.pending, counts.pinned), (0, 0), "{counts:?}");
        assert_eq!(counts.free + counts.evictable, counts.capacity);
        assert_eq!((stats.open_requests, stats.primary.open_jobs, stats.primary.parked_slots), (0, 0, 0));
        assert!(!self.manager().has_pending_work());
        assert!(
            stats.tiers.iter().all(|tier| tier.active_jobs == 0 && tier.invalid_reports == 0),
            "{stats:?}"
        );
        assert!(self.transfers.is_empty() && self.ended.is_empty() && self.held.is_empty());
        assert_eq!(self.device.take_races(), []);
        for slot in (0..self.setup.num_slots).map(SlotId) {
            self.region.with_write(slot, &mut |_| {}).expect("nobody uses a slot any more");
        }
        self.device.compute().synchronize(LONG).expect("the compute stream gets its work done");
        self.blocks.check_all(&self.device);
    }

    /// A whole request: loads the longest prefix there is, less `skip` blocks, computes the rest, offers everything,
    /// finishes, and waits until all is quiet. Returns how many chunks were loaded.
    #[track_caller]
    pub fn serve(&mut self, prompt: &[u64], skip: u32) -> usize {
        let mut req = self.begin(prompt);
        let ready = self.look_until_decided(&mut req);
        if ready > 0 {
            self.load(&mut req, ready, skip).expect("the device takes the load");
            let completions = self.complete_all();
            assert!(completions.iter().all(|completion| completion.arrived), "{completions:?}");
        }
        self.compute(&mut req, ready..prompt.len());
        let offered = self.offer(&mut req, 0..prompt.len());
        assert!(matches!(offered, Offered::Running(_) | Offered::Nothing), "{offered:?}");
        let completions = self.complete_all();
        assert!(completions.iter().all(|completion| completion.arrived), "{completions:?}");
        self.finish(&mut req);
        self.settle();
        self.check_quiet();
        ready
    }

    /// Holds up the compute stream, and with it every copy submitted from now on, until the sender is dropped.
    pub fn hold_compute(&self) -> mpsc::Sender<()> {
        let (gate, opened) = mpsc::channel();
        let wait = move |_: &_| {
            let _ = opened.recv();
        };
        self.device.compute().launch(wait).unwrap();
        gate
    }

    /// Resets the primary tier. The copies that are under way still have to end.
    #[track_caller]
    pub fn reset(&mut self) -> ResetReport {
        let report = self.manager_mut().reset();
        self.follow_events();
        self.ledger.forget("cpu");
        report
    }

    /// Replaces the device, as an engine does whose GPU died. The slots and the tiers stay.
    pub fn replace_device(&mut self) {
        assert!(self.transfers.is_empty(), "every transfer of the old device has ended");
        (self.device, self.planner, self.blocks) = device(&self.setup, &self.region);
    }
}

fn device(setup: &Setup, region: &Arc<dyn HostMemory>) -> (HostDevice, CopyPlanner, Blocks) {
    let chunk = setup.chunk();
    let device_bytes = u64::from(setup.num_blocks) * chunk.block_bytes();
    let arrange = match setup.arrangement {
        Arrangement::LayerFirst => BlockLayout::layer_first,
        Arrangement::Interleaved => BlockLayout::layer_first_interleaved,
        Arrangement::BlockFirst => BlockLayout::block_first,
    };
    let layout = arrange(&chunk, setup.num_blocks, device_bytes).unwrap();
    let planner = CopyPlanner::new(layout.clone(), setup.num_slots, chunk.chunk_bytes()).unwrap();
    let options = HostDeviceOptions {
        inflight_max: 4096,
        segment_bytes: 1024,
        detect_races: true,
        ..HostDeviceOptions::default()
    };
    let mut device = HostDevice::new(options, Arc::clone(region)).unwrap();
    let span = device.alloc(device_bytes).unwrap();
    // The planner names the first region.
    device.attach(span).unwrap();
    let blocks = Blocks::new(layout, span.address(), &device, setup.seed);
    (device, planner, blocks)
}
