//! Everything from one configuration.

use std::{
    path::Path,
    time::{Duration, Instant},
};

use kvo_connector::{
    AnyDevice, BlockHasher, BuildError, CopyOutcome, DeviceKind, EngineIdentity, GroupOptions, NvmeConfig,
    Offload, OffloadConfig, PrefixMatch, RequestParams, Scheduled, StepInput, Worker, WorkerReport,
};
use kvo_core::{BlockId, ChunkLayout, DeviceSpan, HostMemory, OffloadManager, RequestId};
use kvo_cuda::BlockLayout;

const BLOCK_TOKENS: u32 = 4;
const NUM_BLOCKS: u32 = 8;

fn chunk() -> ChunkLayout {
    ChunkLayout::new(2, 2, 64, 1).unwrap()
}

fn layout() -> BlockLayout {
    BlockLayout::layer_first(&chunk(), NUM_BLOCKS, u64::from(NUM_BLOCKS) * chunk().block_bytes()).unwrap()
}

fn config() -> OffloadConfig {
    let mut config = OffloadConfig::new(16 * chunk().chunk_bytes());
    config.cpu.huge_pages = false;
    config.cpu.policy = String::from("lru");
    config.device.kind = DeviceKind::Host;
    config
}

fn identity(epoch: u64) -> EngineIdentity {
    EngineIdentity::new("example", "a byte", epoch)
}

fn build(config: OffloadConfig) -> Result<Offload, BuildError> {
    build_for(identity(1), config)
}

fn build_for(identity: EngineIdentity, config: OffloadConfig) -> Result<Offload, BuildError> {
    Offload::builder(config, identity, layout(), vec![GroupOptions::full(BLOCK_TOKENS)], BLOCK_TOKENS).build()
}

#[track_caller]
fn check_refused(change: impl FnOnce(&mut OffloadConfig), words: &str) {
    let mut config = config();
    change(&mut config);
    let error = build(config).unwrap_err();
    assert!(error.to_string().contains(words), "\"{error}\" is to say \"{words}\"");
}

/// B43 and B64: a budget without room for a chunk, a name that is none, and a number that cannot be.
#[test]
fn a_field_that_cannot_be_is_named() {
    check_refused(|config| config.cpu.bytes = 255, "cpu.bytes: 255 bytes are less than a chunk, 256");
    check_refused(
        |config| config.cpu.bytes = u64::MAX,
        "cpu.bytes: 18446744073709551615 bytes are more than",
    );
    check_refused(|config| config.cpu.policy = String::from("lru2"), "cpu.policy: ");
    check_refused(|config| config.cpu.store_threshold = 0, "store_threshold");
    check_refused(|config| config.requests.offer_chunks_max = 0, "offer_chunks_max must be at least 1");
    check_refused(|config| config.requests.load_chunks_max = Some(0), "load_chunks_max must be at least 1");
    check_refused(
        |config| config.requests.copy_patience_ms = 0,
        "requests.copy_patience_ms must be at least 1",
    );
    check_refused(|config| config.device.deadline_ms = Some(0), "device.deadline_ms must be at least 1");
    let nvme = |change: fn(&mut NvmeConfig)| {
        move |config: &mut OffloadConfig| {
            let mut nvme = NvmeConfig::new("nowhere/at/all", 1 << 20);
            change(&mut nvme);
            config.nvme = Some(nvme);
        }
    };
    check_refused(nvme(|nvme| nvme.dirs.clear()), "nvme.dirs must be at least 1");
    check_refused(nvme(|nvme| nvme.bytes = 1), "nvme.bytes: 1 bytes are less than a chunk");
    check_refused(nvme(|nvme| nvme.policy = String::from("mru")), "nvme.policy: ");
    check_refused(nvme(|nvme| nvme.deadline_ms = 0), "nvme.deadline_ms must be at least 1");
    check_refused(nvme(|_| ()), "nowhere/at/all");
    check_refused(|config| config.pressure.promotion_share = 0, "pressure: promotion_share is 0 percent");
    check_refused(|config| config.pressure.cascade_share = 101, "pressure: cascade_share is 101 percent");
    check_refused(
        |config| config.pressure.writes_fast_ms = 200,
        "pressure: writes: the low watermark is 200ms",
    );
    check_refused(
        |config| config.pressure.reads_slow_ms = 100,
        "pressure: reads: the low watermark is 100ms",
    );
    check_refused(|config| config.pressure.pause_max_ms = 1, "pressure: pause is 1s, and must not be longer");
    check_refused(|config| config.pressure.failures_max = 0, "pressure: failures_max must be at least 1");
    check_refused(|config| config.pressure.pause_ms = 0, "pressure.pause_ms must be at least 1");
    let late = |config: &mut OffloadConfig| {
        config.nvme = Some(NvmeConfig::new("nowhere/at/all", 1 << 20));
        config.pressure.job_deadline_ms = Some(30_000);
    };
    check_refused(
        late,
        "pressure.job_deadline_ms is 30s, and must be longer than nvme.deadline_ms, which is 30s",
    );
}

/// B43: workers get the manager's number of slots, and what is left of a budget is no slot.
#[test]
fn a_budget_is_so_many_whole_chunks() {
    let chunk_bytes = chunk().chunk_bytes();
    for (bytes, num_slots) in [(chunk_bytes, 1), (4 * chunk_bytes - 1, 3), (4 * chunk_bytes, 4)] {
        let mut config = config();
        config.cpu.bytes = bytes;
        let offload = build(config).unwrap();
        assert_eq!(offload.num_slots(), num_slots);
        assert_eq!(offload.connector.manager().counts().capacity, num_slots);
        assert_eq!(offload.host().num_slots(), num_slots);
    }
}

#[test]
fn an_engine_that_says_two_things_of_itself_is_refused() {
    let two = vec![GroupOptions::full(BLOCK_TOKENS); 2];
    let error = Offload::builder(config(), identity(1), layout(), two, BLOCK_TOKENS).build().unwrap_err();
    assert_eq!(error.to_string(), "the layout has 1 groups, and 2 were given");
    let four = vec![GroupOptions::full(BLOCK_TOKENS).with_blocks_per_chunk(4)];
    let error = Offload::builder(config(), identity(1), layout(), four, BLOCK_TOKENS).build().unwrap_err();
    assert_eq!(error.to_string(), "group 0 has 4 blocks a chunk, in the layout 1");
    let odd = vec![GroupOptions::full(BLOCK_TOKENS)];
    let error = Offload::builder(config(), identity(1), layout(), odd, 3).build().unwrap_err();
    assert!(error.to_string().contains("no multiple of hash_tokens, 3"), "{error}");
}

/// B64: what is of another type is refused with its field.
#[test]
fn a_configuration_survives_toml_and_json() {
    let mut config = config();
    config.nvme = Some(NvmeConfig::new("/mnt/nvme", 1 << 40));
    config.device.deadline_ms = Some(250);
    let toml = toml::to_string(&config).unwrap();
    assert_eq!(toml::from_str::<OffloadConfig>(&toml).unwrap(), config);
    let json = serde_json::to_string(&config).unwrap();
    assert_eq!(serde_json::from_str::<OffloadConfig>(&json).unwrap(), config);
    let few: OffloadConfig = toml::from_str("[cpu]\nbytes = 4096").unwrap();
    assert_eq!(few, OffloadConfig::new(4096));
    let error = toml::from_str::<OffloadConfig>("[cpu]\nbytes = 4096\npolicie = \"lru\"").unwrap_err();
    assert!(error.to_string().contains("unknown field `policie`"), "{error}");
    let error = toml::from_str::<OffloadConfig>("[cpu]\nbytes = \"4096\"").unwrap_err();
    assert!(error.to_string().contains("bytes"), "{error}");
    let text = "[cpu]\nbytes = 4096\nhuge_pages = \"false\"";
    let error = toml::from_str::<OffloadConfig>(text).unwrap_err().to_string();
    assert!(error.contains("huge_pages") && error.contains("boolean"), "{error}");
    for bytes in ["-1", "1.5", "99999999999999999999"] {
        let error = toml::from_str::<OffloadConfig>(&format!("[cpu]\nbytes = {bytes}")).unwrap_err();
        assert!(error.to_string().contains("bytes"), "{error}");
    }
    let error =
        serde_json::from_str::<OffloadConfig>("{\"cpu\": {\"bytes\": 1}, \"device\": {\"kind\": \"tpu\"}}");
    assert!(error.unwrap_err().to_string().contains("`host`, `cuda`, `auto`"));
}

/// An engine of one request after the other.
struct Engine {
    offload: Offload,
    worker: Worker<AnyDevice>,
    cache: DeviceSpan,
    next: u64,
}

impl Engine {
    fn new(dir: Option<&Path>, epoch: u64) -> Self {
        let nvme = dir.map(|dir| NvmeConfig::new(dir, 32 << 12));
        let offload = build_for(identity(epoch), OffloadConfig { nvme, ..config() }).unwrap();
        let (device, why) = offload.open_device().unwrap();
        assert_eq!(why, "as device.kind says");
        let AnyDevice::Host(host) = &device else { panic!("the configuration says host") };
        let cache = host.alloc(u64::from(NUM_BLOCKS) * chunk().block_bytes()).unwrap();
        let worker = offload.worker(device, &[cache]).unwrap();
        Self { offload, worker, cache, next: 0 }
    }

    /// Serves a request in the first blocks; says how many tokens were loaded.
    fn serve(&mut self, tokens: &[u32]) -> u32 {
        let id = RequestId(self.next);
        self.next += 1;
        let num = u32::try_from(tokens.len()).unwrap();
        let hashes = BlockHasher::new(b"").blocks(BLOCK_TOKENS as usize, tokens);
        let connector = &mut self.offload.connector;
        connector.new_request(id, num, RequestParams::default()).unwrap();
        connector.add_hashes(id, num, &hashes).unwrap();
        let blocks: Vec<_> = (0..num.div_ceil(BLOCK_TOKENS)).map(|block| Some(BlockId(block))).collect();
        let start = Instant::now();
        let found = loop {
            match self.offload.connector.match_prefix(id, 0).unwrap() {
                PrefixMatch::Loadable(tokens) => break tokens,
                PrefixMatch::AskAgain => {
                    self.step(&StepInput::default());
                    nap(start);
                }
            }
        };
        let mut new_blocks = [blocks.as_slice()];
        if found > 0 {
            self.offload.connector.blocks_allocated(id, &[&blocks]).unwrap();
            self.step(&StepInput::default());
            new_blocks = [&[]];
        }
        let compute = Scheduled {
            request: id,
            kept_blocks: &[],
            new_blocks: &new_blocks,
            computed: found,
            settled: num,
        };
        self.step(&StepInput { preempted: &[], scheduled: &[compute] });
        let _ = self.offload.connector.request_finished(id).unwrap();
        found
    }

    fn step(&mut self, input: &StepInput<'_>) {
        let plan = self.offload.connector.build_step(input).unwrap();
        let AnyDevice::Host(device) = self.worker.device() else { unreachable!() };
        let (stream, cache) = (device.compute().clone(), self.cache);
        assert_eq!(self.worker.order_behind(&plan.wait_for, stream.handle()), Ok(vec![]));
        self.worker.start_loads(&plan, stream.point());
        if !input.scheduled.is_empty() && input.scheduled[0].computed == 0 {
            let bytes = usize::try_from(cache.bytes()).unwrap();
            stream
                .launch_write(cache.address(), (0..bytes).map(|nth| nth.to_le_bytes()[0]).collect())
                .unwrap();
        }
        self.worker.start_stores(&plan, stream.point());
        self.worker.drain(Duration::from_mins(1)).unwrap();
        let mut reports = Vec::new();
        self.worker.poll(&mut reports);
        for report in reports {
            let WorkerReport::Ended { copy, result, .. } = report else { panic!("nothing is held") };
            let outcome = self.offload.connector.copy_reported(copy, 0, result).unwrap();
            assert!(!matches!(outcome, CopyOutcome::LoadFailed { .. } | CopyOutcome::StoreFailed { .. }));
        }
    }

    fn settle(&mut self) {
        let start = Instant::now();
        while self.offload.connector.has_pending_work() {
            self.step(&StepInput::default());
            nap(start);
        }
    }
}

/// A moment for the store's threads, between two steps that look what they have done since `start`.
fn nap(start: Instant) {
    assert!(start.elapsed() < Duration::from_mins(1), "the store does not get on");
    std::thread::sleep(Duration::from_millis(1));
}

fn tokens() -> Vec<u32> {
    (0..=6 * BLOCK_TOKENS).collect()
}

#[test]
fn what_one_configuration_makes_brings_a_prefix_back() {
    let mut engine = Engine::new(None, 1);
    assert_eq!((engine.offload.num_slots(), engine.offload.slot_bytes()), (16, 256));
    assert_eq!(engine.serve(&tokens()), 0);
    assert_eq!(engine.serve(&tokens()), 24);
}

#[test]
fn a_store_that_is_opened_again_brings_a_prefix_back() {
    let dir = tempfile::tempdir().unwrap();
    let mut engine = Engine::new(Some(dir.path()), 1);
    assert_eq!(engine.serve(&tokens()), 0);
    engine.settle();
    drop(engine);
    let mut engine = Engine::new(Some(dir.path()), 1);
    assert_eq!(engine.offload.connector.manager().counts().free, 16);
    assert_eq!(engine.serve(&tokens()), 24);
    let promoted = engine.offload.connector.manager().stats().primary.chunks_promoted;
    assert_eq!(promoted, 6);
}

#[test]
fn an_engine_that_starts_with_other_weights_finds_nothing_of_before() {
    let dir = tempfile::tempdir().unwrap();
    for (epoch, found) in [(1, 0), (2, 0), (1, 24), (2, 24)] {
        let mut engine = Engine::new(Some(dir.path()), epoch);
        assert_eq!(engine.serve(&tokens()), found, "epoch {epoch}");
        engine.settle();
    }
}

#[test]
fn the_store_of_another_engine_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let nvme = Some(NvmeConfig::new(dir.path(), 32 << 12));
    let config = OffloadConfig { nvme, ..config() };
    drop(build_for(identity(1), config.clone()).unwrap());
    for identity in
        [EngineIdentity::new("another", "a byte", 1), EngineIdentity::new("example", "two bytes", 1)]
    {
        let error = build_for(identity, config.clone()).unwrap_err();
        assert!(error.to_string().contains("its fingerprint is"), "{error}");
    }
    // Blocks of another number of tokens are another layout, as long as they are.
    let groups = vec![GroupOptions::full(2 * BLOCK_TOKENS)];
    let error = Offload::builder(config, identity(1), layout(), groups, BLOCK_TOKENS).build().unwrap_err();
    assert!(error.to_string().contains("its fingerprint is"), "{error}");
}
