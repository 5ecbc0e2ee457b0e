//! An engine connected to kvo, for tests.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use kvo_connector::{Connector, ConnectorOptions, Namespace, WorkerOptions};
use kvo_core::{HostMemory, SecondaryTier};
use kvo_cpu::{CpuManager, CpuOptions, HostRegion, RegionOptions};
use kvo_cuda::{GroupLayout, PlanOptions};
use kvo_mini_engine::{Connected, Engine, EngineOptions, KvCaches, Model};
use kvo_policies::{CachePolicy, PolicyKind};
use kvo_tiering::{TieringManager, TieringOptions};

pub(crate) type Kvo = Connected<TieringManager<Box<dyn CachePolicy>>>;

/// What an engine is connected to.
pub(crate) struct Parts<'a> {
    pub(crate) policy: &'a str,
    pub(crate) cpu_chunks: u32,
    pub(crate) blocks_per_chunk: u32,
    /// Of one copy of a load.
    pub(crate) load_chunks_max: usize,
    pub(crate) deadline: Option<Duration>,
    pub(crate) lookup_patience: Duration,
    pub(crate) copy_patience: Duration,
    /// What devices and tiers see of the slots.
    pub(crate) wrap: &'a dyn Fn(Arc<HostRegion>) -> Arc<dyn HostMemory>,
    pub(crate) tiers: &'a mut dyn FnMut(Arc<dyn HostMemory>) -> Vec<Box<dyn SecondaryTier>>,
}

/// Slots as they are.
pub(crate) fn plain(region: Arc<HostRegion>) -> Arc<dyn HostMemory> {
    region
}

pub(crate) fn connect(model: &Arc<Model>, options: EngineOptions, parts: Parts<'_>) -> Engine<Kvo> {
    let Parts {
        policy,
        cpu_chunks,
        blocks_per_chunk,
        load_chunks_max,
        deadline,
        lookup_patience,
        copy_patience,
        wrap,
        tiers,
    } = parts;
    let caches = KvCaches::plan(model.config(), &options).unwrap();
    let layout = caches.layout(blocks_per_chunk).unwrap();
    let slot_bytes = layout.groups().iter().map(GroupLayout::chunk_bytes).max().unwrap();
    let slot = usize::try_from(slot_bytes).unwrap();
    let region = RegionOptions { huge_pages: false, ..RegionOptions::new(cpu_chunks, slot) };
    let host = wrap(Arc::new(HostRegion::anonymous(&region).unwrap()));
    let policy = policy.parse::<PolicyKind>().unwrap().build(cpu_chunks);
    let primary = CpuManager::new(CpuOptions::new(cpu_chunks), policy).unwrap();
    let start = Instant::now();
    let clock = move || start.elapsed();
    let tiers = tiers(Arc::clone(&host));
    let manager =
        TieringManager::new(primary, tiers, TieringOptions::new(slot_bytes), Box::new(clock)).unwrap();
    // A test has one model, and the program, whose store one of them takes over, calls it so.
    let namespace = Namespace::new(caches.fingerprint("tiny, seed 1", blocks_per_chunk).unwrap(), 0);
    let connector_options = ConnectorOptions {
        lookup_patience,
        copy_patience,
        offer_chunks_max: 16,
        load_chunks_max,
        ..ConnectorOptions::new(namespace, caches.group_options(blocks_per_chunk), options.block_tokens)
    };
    let connector = Connector::new(connector_options, manager, Box::new(clock)).unwrap();
    // Marks as close as they can be.
    let plan = PlanOptions { mark_bytes_min: 1, ..PlanOptions::default() };
    let worker = WorkerOptions { deadline, plan };
    Engine::new(Arc::clone(model), options, Connected::new(connector, host, worker)).unwrap()
}
