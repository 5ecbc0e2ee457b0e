//! How a process begins, ends, and begins anew over the same disk.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::Arc,
};

use kvo_connector::{BlockHasher, Connector, ConnectorOptions, Namespace};
use kvo_core::{BlockId, Clock, ManualClock, SecondaryTier};
use kvo_cpu::{CpuManager, CpuOptions};
use kvo_cuda::Fingerprint;
use kvo_nvme::testing::{End, HoldableMemory, SimDisk};
use kvo_tiering::{MemoryTier, TieringManager, TieringOptions};

use super::{Engine, request::Free};
use crate::{
    caches::slot_bytes,
    canary::Plant,
    host::Joined,
    ledger::Ledger,
    random::Random,
    rank::{Rank, region},
    run::Tally,
    setup::{Setup, Trouble},
    tier::{Inner, Scripted, SharedTier, Tier, lock},
    watch::Watch,
};

pub(super) const PRIMARY: &str = "cpu";
const MEMORY: &str = "memory";
const NVME: &str = "nvme";

/// What begins and ends with a process.
struct Process {
    connector: Connector<Watch>,
    ranks: Vec<Rank>,
    host: Arc<Joined>,
    tiers: Vec<(&'static str, SharedTier)>,
    free: Free,
    ledger: Ledger,
}

fn begin(
    setup: &Setup,
    plant: Option<Plant>,
    clock: &ManualClock,
    disk: &mut Option<SimDisk>,
    random: &mut Random,
) -> Process {
    let regions: Vec<_> = (0..setup.num_workers).map(|_| region(setup)).collect();
    let now = clock.now();
    let rank =
        |(number, host): (u32, &Arc<_>)| Rank::new(number, setup, Arc::clone(host), random.next(), now);
    let ranks = (0..).zip(&regions).map(rank).collect();
    let host = Arc::new(Joined::new(regions, plant));
    let mut ledger = Ledger::default();
    let mut tiers = Vec::new();
    let mut put = |name, inner, random: &mut Random| {
        let tier = Tier::new(inner, Arc::clone(&host), Random::new(random.next()), setup.rates, plant);
        tiers.push((name, Arc::new(std::sync::Mutex::new(tier))));
    };
    if let Some(memory) = &setup.memory {
        let policy = memory.policy.build(memory.capacity_chunks);
        let (tier, worker) = MemoryTier::new(MEMORY, memory.capacity_chunks, policy, Arc::clone(&host))
            .expect("the options are good");
        put(MEMORY, Inner::Memory { tier, worker: Some(worker), wants_all: memory.wants_all }, random);
    }
    if let (Some(nvme), Some(disk)) = (&setup.nvme, disk) {
        let durable = random.below(4) < nvme.durable_quarters;
        let (store, underneath) = disk.open(Arc::clone(&host) as Arc<dyn HoldableMemory>, clock, durable);
        ledger.begin(NVME, underneath.keys(&store));
        put(NVME, Inner::Nvme { store: Some(store), underneath: Some(underneath) }, random);
    }
    if setup.nvme_first {
        tiers.reverse();
    }
    let connector = connect(setup, plant, clock, &tiers);
    let blocks = || (0..setup.num_blocks).map(BlockId).collect::<Vec<_>>();
    let free = setup.groups.iter().map(|group| (group.pool, blocks())).collect();
    Process { connector, ranks, host, tiers, free, ledger }
}

fn connect(
    setup: &Setup,
    plant: Option<Plant>,
    clock: &ManualClock,
    tiers: &[(&'static str, SharedTier)],
) -> Connector<Watch> {
    let options = CpuOptions {
        store_threshold: setup.store_threshold,
        record_events: true,
        ..CpuOptions::new(setup.num_slots)
    };
    let primary =
        CpuManager::new(options, setup.policy.build(setup.num_slots)).expect("the options are good");
    let chunk_bytes = slot_bytes(&setup.groups, setup.token_bytes) * u64::from(setup.num_workers);
    let options = TieringOptions {
        inflight_cascades_max: setup.inflight_cascades_max,
        retry_failed_jobs: setup.retry_failed_jobs,
        ..TieringOptions::new(chunk_bytes).with_pressure(setup.pressure.clone())
    };
    let scripted = |(name, tier): &(&'static str, SharedTier)| -> Box<dyn SecondaryTier> {
        Box::new(Scripted { tier: Arc::clone(tier), name })
    };
    let below = tiers.iter().map(scripted).collect();
    let manager =
        TieringManager::new(primary, below, options, Box::new(clock.clone())).expect("the options are good");
    let shared = tiers.iter().map(|(_, tier)| Arc::clone(tier)).collect();
    let manager = Watch::new(manager, shared, plant);
    let options = ConnectorOptions {
        lookup_patience: setup.lookup_patience,
        copy_patience: setup.copy_patience,
        offer_chunks_max: setup.offer_chunks_max,
        load_chunks_max: setup.load_chunks_max,
        num_workers: setup.num_workers,
        economy: setup.economy,
        events: setup.events,
        ..ConnectorOptions::new(namespace(setup), setup.groups.clone(), hash_tokens(setup))
    };
    let stands_still = plant == Some(Plant::DeadlinesIgnored);
    let clock = if stands_still { ManualClock::default() } else { clock.clone() };
    Connector::new(options, manager, Box::new(clock)).expect("the options are good")
}

/// Whose chunks there are.
pub(super) fn namespace(setup: &Setup) -> Namespace {
    Namespace::new(Fingerprint([0; 32]), setup.epoch)
}

fn hash_tokens(setup: &Setup) -> u32 {
    setup.groups.iter().map(|group| group.block_tokens).min().expect("there is a group")
}

impl Engine {
    pub(crate) fn new(setup: &Setup, seed: u64, plant: Option<Plant>) -> Self {
        let mut random = Random::new(seed);
        let clock = ManualClock::default();
        let seed_of_disk = random.next();
        let mut disk = setup.nvme.as_ref().map(|nvme| {
            let plant = plant.and_then(Plant::of_store);
            SimDisk::new(nvme.options.clone(), nvme.faults.clone(), seed_of_disk, plant)
                .expect("the options are good")
        });
        let Process { connector, ranks, host, tiers, free, ledger } =
            begin(setup, plant, &clock, &mut disk, &mut random);
        Self {
            setup: setup.clone(),
            plant,
            random,
            clock,
            standstill: 0,
            disk,
            hasher: BlockHasher::new(b"simulated"),
            hash_tokens: hash_tokens(setup),
            next: 0,
            prompts: VecDeque::new(),
            tally: Tally::default(),
            notes: None,
            connector,
            ranks,
            host,
            tiers,
            free,
            requests: BTreeMap::new(),
            waiting: VecDeque::new(),
            kept: BTreeMap::new(),
            settled: VecDeque::new(),
            to_preempt: Vec::new(),
            wrong: Arc::default(),
            behind: BTreeMap::new(),
            succeeded: Vec::new(),
            spoilt: BTreeSet::new(),
            wipe: None,
            shut_down_left: None,
            dies_in_step: None,
            last_ended: None,
            ledger,
        }
    }

    /// The process ends in some way, at once, and another begins: whoever had asked for something asks again.
    pub(super) fn begin_anew(&mut self, end: End) {
        self.sum_up();
        for (_, tier) in &self.tiers {
            let Inner::Nvme { store, underneath } = &mut lock(tier).inner else { continue };
            if let (Some(disk), Some(store), Some(underneath)) =
                (&mut self.disk, store.take(), underneath.take())
            {
                let end = disk.end(store, underneath, end);
                self.tally.ends[end as usize] += 1;
            }
        }
        if self.setup.rates.of(Trouble::Weights) > 0 && self.random.one_in(3) {
            self.change_weights();
        }
        let Process { connector, ranks, host, tiers, free, ledger } =
            begin(&self.setup, self.plant, &self.clock, &mut self.disk, &mut self.random);
        (self.connector, self.ranks, self.host, self.tiers) = (connector, ranks, host, tiers);
        (self.free, self.ledger) = (free, ledger);
        self.waiting.clear();
        self.kept.clear();
        self.settled.clear();
        self.to_preempt.clear();
        self.behind.clear();
        self.succeeded.clear();
        self.spoilt.clear();
        (self.dies_in_step, self.last_ended) = (None, None);
        (self.wipe, self.shut_down_left) = (None, None);
        for request in std::mem::take(&mut self.requests).into_values() {
            self.ask(request.prompt);
        }
    }

    /// Adds up what this process has counted.
    pub(super) fn sum_up(&mut self) {
        let stats = self.connector.stats();
        let tally = &mut self.tally;
        tally.loads += stats.loads;
        tally.loads_failed += stats.loads_failed;
        tally.stores += stats.stores;
        tally.stores_failed += stats.stores_failed;
        tally.late += stats.copies_late;
        tally.waits += stats.waits;
        tally.asked_again += stats.asked_again;
        tally.patience_ended += stats.patience_ended;
        let manager = self.connector.manager().inner.stats();
        tally.promoted += manager.primary.chunks_promoted;
        tally.evicted += manager.primary.chunks_evicted;
        for (of_tier, (_, tier)) in manager.tiers.iter().zip(&self.tiers) {
            tally.chunks_written += of_tier.written.chunks;
            tally.jobs_late += of_tier.jobs_late;
            for (trouble, count) in &lock(tier).struck {
                *tally.struck.entry(*trouble).or_default() += count;
            }
        }
    }
}
