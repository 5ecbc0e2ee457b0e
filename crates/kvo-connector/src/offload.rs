//! Policy, tiers, device and connector, wired from one configuration.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use kvo_core::{DeviceBackend, DeviceSpan, SecondaryTier};
use kvo_cpu::{CpuManager, CpuOptions, HostRegion, RegionOptions};
use kvo_cuda::{
    BlockLayout, ChunkIdentity, CudaDevice, CudaError, CudaOptions, Fingerprint, GeometryError, HostDevice,
    HostDeviceError, HostDeviceOptions, Parallelism, Probe, probe,
};
use kvo_nvme::{NvmeOptions, NvmeStore, OpenError};
use kvo_policies::{CachePolicy, PolicyNameError};
use kvo_tiering::{TieringConfigError, TieringManager, TieringOptions};

use crate::{
    Connector, ConnectorOptions, GroupOptions, Namespace, OptionsError, Worker, WorkerError, WorkerOptions,
    offload::{
        config::{pieces, policy, time},
        device::AnyDevice,
    },
};

mod config;
pub(crate) mod device;

pub use self::config::{
    CpuConfig, DeviceConfig, DeviceKind, NvmeConfig, OffloadConfig, PressureConfig, RequestsConfig,
};

/// The scheduler's side and what its workers share: see [`Offload::builder`].
#[derive(Debug)]
pub struct Offload {
    /// The scheduler's side.
    pub connector: Connector<TieringManager<Box<dyn CachePolicy>>>,
    region: Arc<HostRegion>,
    layout: BlockLayout,
    device: DeviceConfig,
    deadline: Option<Duration>,
    num_slots: u32,
    slot_bytes: u64,
}

/// What an engine computes: whatever makes its KV data useless to others, beside its layout and its groups.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EngineIdentity {
    /// The model with everything that its KV data depends on: name, revision, quantisation. Not adapters, which requests
    /// [name](crate::RequestParams::adapter).
    pub model: String,
    /// The type of a KV number, with its scale or packing where it has one.
    pub dtype: String,
    /// Which part of a model this engine's chunks hold.
    pub parallelism: Parallelism,
    /// Which weights of the model it has: see [`Namespace::epoch`].
    pub epoch: u64,
}

impl EngineIdentity {
    /// An engine that splits nothing.
    pub fn new(model: impl Into<String>, dtype: impl Into<String>, epoch: u64) -> Self {
        Self { model: model.into(), dtype: dtype.into(), parallelism: Parallelism::SINGLE, epoch }
    }
}

/// Makes an [`Offload`].
#[derive(Clone, Debug)]
pub struct OffloadBuilder {
    config: OffloadConfig,
    identity: EngineIdentity,
    layout: BlockLayout,
    groups: Vec<GroupOptions>,
    hash_tokens: u32,
    num_workers: u32,
}

/// An offload cannot be made. The field is that of the configuration.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BuildError {
    /// A policy's name is not known.
    #[error("{field}: {error}")]
    Policy {
        /// The field.
        field: &'static str,
        /// What is wrong with it.
        #[source]
        error: PolicyNameError,
    },
    /// There is no room for one chunk.
    #[error("{field}: {bytes} bytes are less than a chunk, {chunk_bytes}")]
    TooSmall {
        /// The field.
        field: &'static str,
        /// What it has.
        bytes: u64,
        /// A chunk.
        chunk_bytes: u64,
    },
    /// There is room for more chunks than can be counted.
    #[error("{field}: {bytes} bytes are more than 2^32 chunks of {chunk_bytes}")]
    TooLarge {
        /// The field.
        field: &'static str,
        /// What it has.
        bytes: u64,
        /// A chunk.
        chunk_bytes: u64,
    },
    /// A count or a time that must be at least 1 is 0.
    #[error("{field} must be at least 1")]
    Zero {
        /// The field.
        field: &'static str,
    },
    /// The layout and the groups are not of the same engine.
    #[error("the layout has {layout} groups, and {groups} were given")]
    NumberOfGroups {
        /// Groups of the layout.
        layout: usize,
        /// Groups that were given.
        groups: usize,
    },
    /// A group has other chunks in the layout.
    #[error("group {group} has {given} blocks a chunk, in the layout {layout}")]
    BlocksPerChunk {
        /// The group.
        group: usize,
        /// What was given.
        given: u32,
        /// What the layout has.
        layout: u32,
    },
    /// The layout has no fingerprint.
    #[error(transparent)]
    Geometry(#[from] GeometryError),
    /// Options of the connector.
    #[error(transparent)]
    Options(#[from] OptionsError),
    /// The primary tier.
    #[error("cpu: {0}")]
    Cpu(#[from] kvo_cpu::ConfigError),
    /// Its memory.
    #[error("cpu.bytes: {0}")]
    Region(#[from] kvo_cpu::RegionError),
    /// The store.
    #[error("nvme: {0}")]
    Nvme(#[from] OpenError),
    /// What tiers and waiting requests may take.
    #[error("pressure: {0}")]
    Tiering(#[from] TieringConfigError),
    /// A store's own deadline would come too late.
    #[error(
        "pressure.job_deadline_ms is {job:?}, and must be longer than nvme.deadline_ms, which is {store:?}"
    )]
    JobDeadline {
        /// When a tier is fenced off.
        job: Duration,
        /// When the store gives a chunk up.
        store: Duration,
    },
}

/// A device cannot be had.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DeviceError {
    /// No GPU, or not that one.
    #[error("device.kind is \"cuda\": {0}")]
    Cuda(#[from] CudaError),
    /// Not even the host's memory.
    #[error("device.kind is \"host\": {0}")]
    Host(#[from] HostDeviceError),
}

impl Offload {
    /// For an engine that computes what `identity` says, in blocks that are as `layout` says, in `groups`, hashed every
    /// `hash_tokens` tokens.
    ///
    /// What a chunk is goes into a [fingerprint](kvo_cuda::Fingerprint): model, type and parallelism, the tokens of each
    /// group's blocks, and what the layout says of chunks, but not where its blocks are and how many. All names of chunks have
    /// it, and a store that outlives the engine is recognised by it: one of another engine is refused. The epoch goes into the
    /// names alone, so that a store may have chunks of several. Neither has what groups attend to, their pools, or
    /// `hash_tokens`: those are of the model, of the process, and of the engine's hashes.
    ///
    /// ```
    /// use kvo_connector::{EngineIdentity, GroupOptions, Offload, OffloadConfig};
    /// use kvo_core::ChunkLayout;
    /// use kvo_cuda::BlockLayout;
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let chunk = ChunkLayout::new(2, 2, 4096, 1)?;
    /// let layout = BlockLayout::layer_first(&chunk, 100, 100 * chunk.block_bytes())?;
    /// let config = OffloadConfig::new(1 << 20);
    /// let identity = EngineIdentity::new("example-8b@4f2c", "bfloat16", 1);
    /// let offload = Offload::builder(config, identity, layout, vec![GroupOptions::full(16)], 16).build()?;
    /// let (device, why) = offload.open_device()?;
    /// println!("{} copies, {why}", kvo_core::DeviceBackend::info(&device).name);
    /// # let kvo_connector::AnyDevice::Host(device) = device else { return Ok(()) };
    /// let caches = [device.alloc(100 * chunk.block_bytes())?];
    /// let worker = offload.worker(device, &caches)?;
    /// assert_eq!((offload.num_slots(), worker.num_open()), (64, 0));
    /// # Ok(())
    /// # }
    /// ```
    pub fn builder(
        config: OffloadConfig,
        identity: EngineIdentity,
        layout: BlockLayout,
        groups: Vec<GroupOptions>,
        hash_tokens: u32,
    ) -> OffloadBuilder {
        OffloadBuilder { config, identity, layout, groups, hash_tokens, num_workers: 1 }
    }

    /// The slots' memory, for devices.
    pub fn host(&self) -> &Arc<HostRegion> {
        &self.region
    }

    /// How many slots there are.
    pub fn num_slots(&self) -> u32 {
        self.num_slots
    }

    /// Bytes of a slot: those of the largest group's chunk.
    pub fn slot_bytes(&self) -> u64 {
        self.slot_bytes
    }

    /// The device that the configuration names, to which nothing is attached; and why it is this one, in words.
    ///
    /// # Errors
    /// [`DeviceError`] says why there is none.
    pub fn open_device(&self) -> Result<(AnyDevice, String), DeviceError> {
        let found = probe();
        let is_gpu = match self.device.kind {
            DeviceKind::Auto => matches!(found, Probe::Devices(_)),
            kind => kind == DeviceKind::Cuda,
        };
        let why = if self.device.kind == DeviceKind::Auto {
            format!("as the probe says: {found}")
        } else {
            "as device.kind says".to_owned()
        };
        let host = Arc::clone(&self.region);
        let device = if is_gpu {
            AnyDevice::Cuda(CudaDevice::new(CudaOptions::new(self.device.ordinal), host)?)
        } else {
            AnyDevice::Host(HostDevice::new(HostDeviceOptions::default(), host)?)
        };
        Ok((device, why))
    }

    /// A worker on a device to which nothing is attached yet; `caches` are the layout's regions, in order.
    ///
    /// # Errors
    /// [`WorkerError`] names what does not fit.
    pub fn worker<D: DeviceBackend>(
        &self,
        device: D,
        caches: &[DeviceSpan],
    ) -> Result<Worker<D>, WorkerError> {
        let options = WorkerOptions { deadline: self.deadline, ..WorkerOptions::default() };
        Worker::new(device, caches, self.layout.clone(), (self.num_slots, self.slot_bytes), options)
    }
}

impl OffloadBuilder {
    /// Workers that run each plan; 1 unless this says otherwise.
    #[must_use]
    pub fn with_num_workers(self, num_workers: u32) -> Self {
        Self { num_workers, ..self }
    }

    /// Checks everything, takes the memory, and opens the store.
    ///
    /// # Errors
    /// [`BuildError`] names the field that cannot be; then nothing is left of it.
    pub fn build(self) -> Result<Offload, BuildError> {
        let Self { config, identity, layout, groups, hash_tokens, num_workers } = self;
        let OffloadConfig { cpu, nvme, device, requests, pressure } = &config;
        fits(&layout, &groups)?;
        let namespace = identity.namespace(&layout, &groups)?;
        let options = ConnectorOptions {
            num_workers,
            recompute_last: requests.recompute_last,
            lookup_patience: Duration::from_millis(requests.lookup_patience_ms),
            copy_patience: time("requests.copy_patience_ms", requests.copy_patience_ms)?,
            offer_chunks_max: requests.offer_chunks_max,
            load_chunks_max: requests.load_chunks_max.unwrap_or(usize::MAX),
            failed_stores_max: requests.failed_stores_max,
            ..ConnectorOptions::new(namespace, groups, hash_tokens)
        };
        options.check()?;
        let deadline = device.deadline_ms.map(|ms| time("device.deadline_ms", ms)).transpose()?;
        let slot_bytes = layout.groups().iter().map(kvo_cuda::GroupLayout::chunk_bytes).max().unwrap_or(0);
        let num_slots = pieces("cpu.bytes", cpu.bytes, slot_bytes)?;
        let kind = policy("cpu.policy", &cpu.policy)?;
        let fingerprint = namespace.fingerprint;
        let store = nvme.as_ref().map(|nvme| nvme_options(nvme, slot_bytes, fingerprint)).transpose()?;
        let pressure = pressure.options(store.as_ref().map(|store| store.deadline))?;
        pressure.check()?;
        let tiering = TieringOptions::new(slot_bytes).with_pressure(pressure);
        let slot = usize::try_from(slot_bytes).map_err(|_| BuildError::TooLarge {
            field: "cpu.bytes",
            bytes: cpu.bytes,
            chunk_bytes: slot_bytes,
        })?;
        let region = RegionOptions { huge_pages: cpu.huge_pages, ..RegionOptions::new(num_slots, slot) };
        let region = Arc::new(HostRegion::anonymous(&region)?);
        // Behind the region, which knows whether there can be so many: tables of the slots would take memory for all.
        let num_slots_max = CpuOptions::NUM_SLOTS_MAX;
        let policy = kind
            .try_build(num_slots)
            .map_err(|_| kvo_cpu::ConfigError::TooManySlots { num_slots, num_slots_max })?;
        let primary = CpuManager::new(
            CpuOptions {
                store_threshold: cpu.store_threshold,
                record_events: cpu.record_events,
                ..CpuOptions::new(num_slots)
            },
            policy,
        )?;
        let mut tiers: Vec<Box<dyn SecondaryTier>> = Vec::new();
        if let Some(store) = store {
            tiers.push(Box::new(NvmeStore::open(store, Arc::clone(&region) as _)?));
        }
        let start = Instant::now();
        let clock = move || start.elapsed();
        let manager = TieringManager::new(primary, tiers, tiering, Box::new(clock))?;
        let connector = Connector::new(options, manager, Box::new(clock))?;
        Ok(Offload { connector, region, layout, device: config.device, deadline, num_slots, slot_bytes })
    }
}

impl EngineIdentity {
    fn namespace(self, layout: &BlockLayout, groups: &[GroupOptions]) -> Result<Namespace, GeometryError> {
        let Self { model, dtype, parallelism, epoch } = self;
        let tokens_per_block = groups.iter().map(|group| group.block_tokens).collect();
        let identity = ChunkIdentity { model, dtype, tokens_per_block, parallelism };
        Ok(Namespace::new(layout.fingerprint(&identity)?, epoch))
    }
}

fn fits(layout: &BlockLayout, groups: &[GroupOptions]) -> Result<(), BuildError> {
    if layout.groups().len() != groups.len() {
        return Err(BuildError::NumberOfGroups { layout: layout.groups().len(), groups: groups.len() });
    }
    for (group, (of_layout, given)) in layout.groups().iter().zip(groups).enumerate() {
        let (layout, given) = (of_layout.blocks_per_chunk(), given.blocks_per_chunk);
        if layout != given {
            return Err(BuildError::BlocksPerChunk { group, given, layout });
        }
    }
    Ok(())
}

fn nvme_options(
    config: &NvmeConfig,
    chunk_bytes: u64,
    Fingerprint(fingerprint): Fingerprint,
) -> Result<NvmeOptions, BuildError> {
    let Some(first) = config.dirs.first() else { return Err(BuildError::Zero { field: "nvme.dirs" }) };
    let capacity_chunks = pieces("nvme.bytes", config.bytes, chunk_bytes)?;
    let options = NvmeOptions::new(first, capacity_chunks, chunk_bytes);
    Ok(NvmeOptions {
        dirs: config.dirs.clone(),
        policy: policy("nvme.policy", &config.policy)?,
        durable: config.durable,
        deadline: time("nvme.deadline_ms", config.deadline_ms)?,
        fingerprint,
        ..options
    })
}
