//! B55: weights that change, while chunks of the old ones are in every tier and on their way. A test is the device here: it
//! fills slots, and looks into them.

use std::{
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use kvo_connector::{
    BlockHasher, Connector, ConnectorOptions, CopyResult, GroupOptions, Namespace, PrefixMatch,
    RequestParams, Scheduled, StepInput, StepPlan,
};
use kvo_core::{BlockId, HostMemory, ManualClock, RequestId, SecondaryTier, SlotId};
use kvo_cpu::{CpuManager, CpuOptions, HostRegion, RegionOptions};
use kvo_cuda::Fingerprint;
use kvo_nvme::{Inspection, NvmeOptions, NvmeStore};
use kvo_policies::Lru;
use kvo_tiering::{MemoryTier, MemoryTierWorker, TieringManager, TieringOptions};

const CHUNK: u32 = 16;
const SLOTS: u32 = 8;
const SLOT_BYTES: usize = 4096;
const FINGERPRINT: Fingerprint = Fingerprint([1; 32]);
/// A prompt of two chunks and a token.
const NUM: u32 = 2 * CHUNK + 1;

fn region() -> Arc<HostRegion> {
    let options =
        RegionOptions { huge_pages: false, prefault_threads: 0, ..RegionOptions::new(SLOTS, SLOT_BYTES) };
    Arc::new(HostRegion::anonymous(&options).unwrap())
}

struct Engine {
    connector: Connector<TieringManager<Lru>>,
    region: Arc<HostRegion>,
    next: u64,
}

impl Engine {
    fn new(region: Arc<HostRegion>, tier: Box<dyn SecondaryTier>, epoch: u64) -> Self {
        let primary = CpuManager::new(CpuOptions::new(SLOTS), Lru::new(SLOTS)).unwrap();
        let options = TieringOptions::new(SLOT_BYTES as u64);
        let manager =
            TieringManager::new(primary, vec![tier], options, Box::new(ManualClock::default())).unwrap();
        let namespace = Namespace::new(FINGERPRINT, epoch);
        let options = ConnectorOptions::new(namespace, vec![GroupOptions::full(CHUNK)], CHUNK);
        let connector = Connector::new(options, manager, Box::new(ManualClock::default())).unwrap();
        Self { connector, region, next: 0 }
    }

    /// Over a store in `dir`.
    fn over_store(dir: &Path, epoch: u64) -> Self {
        let region = region();
        let options =
            NvmeOptions { fingerprint: FINGERPRINT.0, ..NvmeOptions::new(dir, 32, SLOT_BYTES as u64) };
        let store = NvmeStore::open(options, region.clone()).unwrap();
        Self::new(region, Box::new(store), epoch)
    }

    /// Over memory, whose worker the test runs.
    fn over_memory(epoch: u64) -> (Self, MemoryTierWorker<HostRegion>) {
        let region = region();
        let (tier, worker) = MemoryTier::new("lower", 32, Lru::new(32), region.clone()).unwrap();
        (Self::new(region, Box::new(tier), epoch), worker)
    }

    fn announce(&mut self) -> RequestId {
        let id = RequestId(self.next);
        self.next += 1;
        let tokens: Vec<u32> = (0..NUM).collect();
        self.connector.new_request(id, NUM, RequestParams::default()).unwrap();
        let hashes = BlockHasher::new(b"").blocks(CHUNK as usize, &tokens);
        self.connector.add_hashes(id, NUM, &hashes).unwrap();
        id
    }

    fn blocks(id: RequestId) -> Vec<Option<BlockId>> {
        let first = u32::try_from(id.0).unwrap() * 3;
        (first..first + 3).map(|block| Some(BlockId(block))).collect()
    }

    /// A request of one prompt: says what it has found of it, chunk by chunk; the rest is computed by weights that give
    /// `byte`.
    fn serve(&mut self, byte: u8, mut below: impl FnMut() -> usize) -> Vec<u8> {
        let id = self.announce();
        let found = self.load(id, &mut below);
        let blocks = Self::blocks(id);
        let new_blocks = [if found.is_empty() { &blocks[..] } else { &[] }];
        let computed = u32::try_from(found.len()).unwrap() * CHUNK;
        let plan = self.compute(id, &new_blocks, computed);
        self.store(&plan, byte);
        let _ = self.connector.request_finished(id).unwrap();
        self.settle(below);
        found
    }

    fn load(&mut self, id: RequestId, mut below: impl FnMut() -> usize) -> Vec<u8> {
        let start = Instant::now();
        let tokens = loop {
            match self.connector.match_prefix(id, 0).unwrap() {
                PrefixMatch::Loadable(tokens) => break tokens,
                PrefixMatch::AskAgain => {
                    self.step();
                    nap(start);
                    below();
                }
            }
        };
        if tokens == 0 {
            return Vec::new();
        }
        self.connector.blocks_allocated(id, &[&Self::blocks(id)]).unwrap();
        let plan = self.step();
        let mut found = Vec::new();
        for chunk in plan.loads[0].chunks() {
            self.region.with_read(chunk.slot, &mut |bytes| found.push(all_one(bytes))).unwrap();
        }
        self.connector.copy_reported(plan.loads[0].copy, 0, CopyResult::Done).unwrap();
        found
    }

    fn compute(&mut self, id: RequestId, new_blocks: &[&[Option<BlockId>]], computed: u32) -> StepPlan {
        let scheduled = [Scheduled { request: id, kept_blocks: &[], new_blocks, computed, settled: NUM }];
        self.connector.build_step(&StepInput { preempted: &[], scheduled: &scheduled }).unwrap()
    }

    /// Does what a plan says of stores.
    fn store(&mut self, plan: &StepPlan, byte: u8) {
        for store in &plan.stores {
            for chunk in store.chunks() {
                self.region.with_write(chunk.slot, &mut |bytes| bytes.fill(byte)).unwrap();
            }
            self.connector.copy_reported(store.copy, 0, CopyResult::Done).unwrap();
        }
    }

    fn step(&mut self) -> StepPlan {
        self.connector.build_step(&StepInput::default()).unwrap()
    }

    fn settle(&mut self, mut below: impl FnMut() -> usize) {
        let start = Instant::now();
        while self.connector.has_pending_work() {
            below();
            self.step();
            nap(start);
        }
    }
}

fn all_one(bytes: &[u8]) -> u8 {
    assert!(bytes.iter().all(|byte| *byte == bytes[0]));
    bytes[0]
}

/// A moment for the store's threads, in a loop that began at `start`.
fn nap(start: Instant) {
    assert!(start.elapsed() < Duration::from_mins(1), "the tier does not get on");
    std::thread::sleep(Duration::from_millis(1));
}

/// B55: in memory and on disk, with the old epoch after a restart and with the new one.
#[test]
fn a_store_answers_for_the_weights_of_now_whatever_it_keeps_of_others() {
    let dir = tempfile::tempdir().unwrap();
    let mut engine = Engine::over_store(dir.path(), 1);
    assert_eq!(engine.serve(1, || 0), []);
    // An engine that sleeps: memory is dropped, the store is not.
    let flush = engine.connector.reset();
    assert_eq!((flush.tiers_cleared, flush.tiers_kept), (vec!["cpu".to_owned()], vec!["nvme".to_owned()]));
    assert_eq!((flush.epoch, flush.outdated), (1, vec![]));
    assert_eq!(engine.serve(9, || 0), [1, 1]);
    // New weights: nothing is found until it is stored again, and then what was stored.
    let flush = engine.connector.reset_to(2).unwrap();
    assert_eq!((flush.tiers_cleared, flush.tiers_kept), (vec!["cpu".to_owned()], vec!["nvme".to_owned()]));
    assert_eq!(flush.epoch, 2);
    assert_eq!(engine.serve(2, || 0), []);
    let _ = engine.connector.reset();
    assert_eq!(engine.serve(9, || 0), [2, 2]);
    drop(engine);
    // After restarts each finds its own.
    for (epoch, found) in [(1, &[1, 1][..]), (2, &[2, 2]), (3, &[]), (1, &[1, 1])] {
        let mut engine = Engine::over_store(dir.path(), epoch);
        assert_eq!(engine.serve(3, || 0), found, "epoch {epoch}");
    }
}

/// B55: what was on its way to the store.
#[test]
fn a_cascade_of_former_weights_that_ends_late_is_theirs_alone() {
    let (mut engine, mut lower) = Engine::over_memory(1);
    let id = engine.announce();
    let blocks = Engine::blocks(id);
    let plan = engine.compute(id, &[&blocks], 0);
    engine.store(&plan, 1);
    let _ = engine.connector.request_finished(id).unwrap();
    let flush = engine.connector.reset_to(2).unwrap();
    assert_eq!((flush.epoch, flush.tiers_kept), (2, vec!["lower".to_owned()]));
    // The cascade has not even begun.
    lower.run_queued();
    engine.settle(|| 0);
    assert_eq!(engine.serve(2, || lower.run_queued()), []);
    let _ = engine.connector.reset();
    assert_eq!(engine.serve(9, || lower.run_queued()), [2, 2]);
    engine.connector.reset_to(1).unwrap();
    assert_eq!(engine.serve(9, || lower.run_queued()), [1, 1], "it came to where it belongs");
}

/// B55: what was on its way from the device.
#[test]
fn a_store_of_former_weights_that_ends_late_is_in_no_tier() {
    let (mut engine, mut lower) = Engine::over_memory(1);
    let id = engine.announce();
    let blocks = Engine::blocks(id);
    let plan = engine.compute(id, &[&blocks], 0);
    assert_eq!(engine.connector.reset_to(2).unwrap().copies_open, 1);
    engine.store(&plan, 1);
    let _ = engine.connector.request_finished(id).unwrap();
    engine.settle(|| lower.run_queued());
    for epoch in [1, 2] {
        let _ = engine.connector.reset_to(epoch);
        assert_eq!(engine.serve(9 + u8::try_from(epoch).unwrap(), || lower.run_queued()), []);
    }
}

/// B55: what was on its way up.
#[test]
fn a_promotion_of_former_weights_that_ends_late_is_found_by_nobody() {
    let (mut engine, mut lower) = Engine::over_memory(1);
    assert_eq!(engine.serve(1, || lower.run_queued()), []);
    let _ = engine.connector.reset();
    let id = engine.announce();
    assert_eq!(engine.connector.match_prefix(id, 0), Ok(PrefixMatch::AskAgain));
    engine.step(); // submits the promotion
    engine.connector.reset_to(2).unwrap();
    lower.run_queued();
    engine.settle(|| 0);
    assert_eq!(engine.connector.match_prefix(id, 0), Ok(PrefixMatch::Loadable(0)));
    let _ = engine.connector.request_finished(id).unwrap();
    assert_eq!(engine.serve(2, || lower.run_queued()), []);
}

/// A wipe on reset: nothing is stored or brought up between the last copy of before and the first one after it.
#[test]
fn slots_are_wiped_after_a_reset_while_requests_go_on() {
    let (mut engine, mut lower) = Engine::over_memory(1);
    assert_eq!(engine.serve(1, || lower.run_queued()), []);
    let id = engine.announce();
    let blocks = Engine::blocks(id);
    engine.connector.hold();
    engine.connector.reset_to(2).unwrap();
    assert_eq!(engine.connector.match_prefix(id, 0), Ok(PrefixMatch::Loadable(0)));
    let plan = engine.compute(id, &[&blocks], 0);
    assert_eq!(plan, StepPlan::default(), "nothing is stored");
    assert!(engine.connector.is_drained());
    let has_any = |engine: &Engine, wanted: u8| {
        (0..SLOTS).any(|slot| {
            let mut found = false;
            engine.region.with_read(SlotId(slot), &mut |bytes| found = bytes.contains(&wanted)).unwrap();
            found
        })
    };
    assert!(has_any(&engine, 1), "what was dropped is still there");
    let region = engine.region.clone();
    assert_eq!(std::thread::spawn(move || region.wipe()).join().unwrap(), []);
    assert!(!has_any(&engine, 1));
    engine.connector.go_on();
    // Its chunks are offered now.
    let scheduled =
        [Scheduled { request: id, kept_blocks: &[], new_blocks: &[], computed: NUM, settled: NUM }];
    let plan = engine.connector.build_step(&StepInput { preempted: &[], scheduled: &scheduled }).unwrap();
    engine.store(&plan, 2);
    let _ = engine.connector.request_finished(id).unwrap();
    engine.settle(|| lower.run_queued());
    assert_eq!(engine.serve(9, || lower.run_queued()), [2, 2]);
}

/// The disk's share of that: the tiers are shut down, the store is wiped, and a connector for the new weights is made. The
/// process goes on.
#[test]
fn a_store_is_wiped_between_two_epochs() {
    let dir = tempfile::tempdir().unwrap();
    // None but those that were stored.
    let runs_of = |byte: u8| {
        let files = std::fs::read_dir(dir.path()).unwrap();
        let bytes = files.flat_map(|file| std::fs::read(file.unwrap().path()).unwrap());
        bytes.collect::<Vec<_>>().windows(64).filter(|run| run.iter().all(|of| *of == byte)).count()
    };
    let mut engine = Engine::over_store(dir.path(), 1);
    assert_eq!(engine.serve(0xa1, || 0), []);
    let (flush, left) = engine.connector.shut_down(Duration::from_secs(10));
    assert!(flush.loads_void.is_empty() && left.is_clean(), "{left:?}");
    assert!(runs_of(0xa1) > 0, "what was shut down is still there");
    // The connector of before may be there still: its store has let go of the files.
    assert!(Inspection::open(&[dir.path().into()]).unwrap().wipe(&mut |_| true).unwrap());
    assert_eq!(runs_of(0xa1), 0);
    let mut next = Engine::over_store(dir.path(), 2);
    drop(engine);
    assert_eq!(next.serve(0xa2, || 0), []);
    let _ = next.connector.reset();
    assert_eq!(next.serve(9, || 0), [0xa2, 0xa2]);
    next.connector.reset_to(1).unwrap();
    assert_eq!(next.serve(9, || 0), []);
}

#[test]
fn a_connector_is_not_drained_while_a_copy_or_a_tier_has_a_slot() {
    let (mut engine, mut lower) = Engine::over_memory(1);
    let id = engine.announce();
    let blocks = Engine::blocks(id);
    let plan = engine.compute(id, &[&blocks], 0);
    engine.connector.hold();
    let _ = engine.connector.reset();
    assert!(!engine.connector.is_drained(), "a store writes into it");
    engine.store(&plan, 1);
    assert!(engine.connector.is_drained());
    engine.connector.go_on();
    let scheduled =
        [Scheduled { request: id, kept_blocks: &[], new_blocks: &[], computed: NUM, settled: NUM }];
    let plan = engine.connector.build_step(&StepInput { preempted: &[], scheduled: &scheduled }).unwrap();
    engine.store(&plan, 1);
    engine.connector.hold();
    let _ = engine.connector.reset();
    assert!(!engine.connector.is_drained(), "a cascade reads it");
    engine.settle(|| lower.run_queued());
    assert!(engine.connector.is_drained());
    let _ = engine.connector.request_finished(id).unwrap();
}
