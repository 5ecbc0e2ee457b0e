//! A worker on a GPU's device, over the driver for tests: a prefix goes to the tier and comes back, layer by layer, to the
//! byte.

use std::{sync::Arc, time::Duration};

use kvo_connector::{
    BlockHasher, Connector, ConnectorOptions, CopyOutcome, GroupOptions, LayerOrder, Namespace, PrefixMatch,
    RequestParams, Scheduled, StepInput, StepPlan, Worker, WorkerOptions, WorkerReport,
};
use kvo_core::{BlockId, ChunkLayout, ComputePoint, DeviceSpan, ManualClock, RequestId, StreamHandle};
use kvo_cpu::{CpuManager, CpuOptions, HostRegion, RegionOptions};
use kvo_cuda::{BlockLayout, CudaOptions, Fingerprint, PathTable};
use kvo_fakecuda::FakeDriver;
use kvo_gpu_check::CudaWorker;
use kvo_policies::Lru;

const BLOCK_TOKENS: u32 = 4;
const NUM_BLOCKS: u32 = 16;
const LAYERS: u32 = 3;
const LONG: Duration = Duration::from_mins(1);
const NAMESPACE: Namespace = Namespace { fingerprint: Fingerprint([1; 32]), epoch: 1 };

struct Engine {
    connector: Connector<CpuManager<Lru>>,
    worker: Worker<CudaWorker>,
    cache: DeviceSpan,
    stream: StreamHandle,
    chunk: ChunkLayout,
}

impl Engine {
    fn new() -> Self {
        let chunk = ChunkLayout::new(LAYERS, 2, 48, 2).unwrap();
        let slot_bytes = usize::try_from(chunk.chunk_bytes()).unwrap();
        let region = RegionOptions { huge_pages: false, ..RegionOptions::new(8, slot_bytes) };
        let region = Arc::new(HostRegion::anonymous(&region).unwrap());
        let options = CudaOptions { table: Some(PathTable::published()), ..CudaOptions::new(0) };
        let mut gpu = CudaWorker::new(options, region).unwrap();
        let cache = gpu.allocate(u64::from(NUM_BLOCKS) * chunk.block_bytes()).unwrap();
        let stream = gpu.create_stream().unwrap();
        let layout = BlockLayout::layer_first(&chunk, NUM_BLOCKS, cache.bytes()).unwrap();
        let mut options = WorkerOptions::default();
        options.plan.mark_bytes_min = 1;
        let worker = Worker::new(gpu, &[cache], layout, (8, chunk.chunk_bytes()), options).unwrap();
        let manager = CpuManager::new(CpuOptions::new(8), Lru::new(8)).unwrap();
        let groups = vec![GroupOptions::full(BLOCK_TOKENS).with_blocks_per_chunk(2)];
        let options = ConnectorOptions::new(NAMESPACE, groups, BLOCK_TOKENS);
        let connector = Connector::new(options, manager, Box::new(ManualClock::default())).unwrap();
        Self { connector, worker, cache, stream, chunk }
    }

    fn begin(&mut self, id: u64, tokens: &[u32]) -> RequestId {
        let (id, num) = (RequestId(id), u32::try_from(tokens.len()).unwrap());
        self.connector.new_request(id, num, RequestParams::default()).unwrap();
        let hashes = BlockHasher::new(b"gpu").blocks(BLOCK_TOKENS as usize, tokens);
        self.connector.add_hashes(id, num, &hashes).unwrap();
        id
    }

    fn point(&self) -> ComputePoint {
        ComputePoint::Stream(self.stream)
    }

    /// Reports what has ended, until nothing is under way.
    fn settle(&mut self) -> Vec<CopyOutcome> {
        self.worker.drain(LONG).unwrap();
        let mut reports = Vec::new();
        self.worker.poll(&mut reports);
        let ended = reports.into_iter().map(|report| match report {
            WorkerReport::Ended { copy, result, failure } => {
                assert_eq!(failure, None);
                self.connector.copy_reported(copy, 0, result).unwrap()
            }
            WorkerReport::Released { copy } => panic!("{copy:?} was not held"),
        });
        ended.collect()
    }

    fn step(&mut self, scheduled: &[Scheduled<'_>]) -> StepPlan {
        let plan = self.connector.build_step(&StepInput { preempted: &[], scheduled }).unwrap();
        assert_eq!(plan.wait_for, []);
        plan
    }

    /// The pages of a block, of all layers and planes.
    fn pages(&mut self, block: BlockId) -> Vec<Vec<u8>> {
        let (page_bytes, cache) = (self.chunk.page_bytes(), self.cache);
        let page = |nth: u64| {
            let mut page = vec![0; usize::try_from(page_bytes).unwrap()];
            let at = (nth * u64::from(NUM_BLOCKS) + u64::from(block.0)) * page_bytes;
            self.worker.device_mut().download(cache.address() + at, &mut page).unwrap();
            page
        };
        (0..u64::from(LAYERS) * 2).map(page).collect()
    }
}

fn blocks(blocks: impl IntoIterator<Item = u32>) -> Vec<Option<BlockId>> {
    blocks.into_iter().map(|block| Some(BlockId(block))).collect()
}

#[test]
fn a_prefix_comes_back_from_a_gpu_layer_by_layer() {
    let fake = FakeDriver::load().expect("cargo builds the library for this test").exclusive();
    let mut engine = Engine::new();
    let tokens: Vec<u32> = (0..=6 * BLOCK_TOKENS).collect();
    let num = u32::try_from(tokens.len()).unwrap();

    // Compute fills the whole cache, some time after this call; what is stored waits for it.
    let cache = engine.cache;
    let content: Vec<u8> = (0..cache.bytes()).map(|nth| (nth % 251).to_le_bytes()[0]).collect();
    let first = engine.begin(1, &tokens);
    let table = blocks([3, 9, 4, 5, 0, 7, 1]);
    let new_blocks = [table.as_slice()];
    let compute =
        Scheduled { request: first, kept_blocks: &[], new_blocks: &new_blocks, computed: 0, settled: num };
    let plan = engine.step(&[compute]);
    let stream = engine.stream;
    engine.worker.device_mut().upload_on(stream, cache.address(), &content).unwrap();
    engine.worker.start_stores(&plan, engine.point());
    assert_eq!(engine.settle(), [CopyOutcome::Stored { request: first }]);
    let stored: Vec<_> = table[..6].iter().flatten().map(|block| engine.pages(*block)).collect();
    let _ = engine.connector.request_finished(first).unwrap();

    // Everything else is on the device by then.
    engine.worker.device_mut().upload(cache.address(), &vec![0xee; content.len()]).unwrap();
    let second = engine.begin(2, &tokens);
    assert_eq!(engine.connector.match_prefix(second, 0), Ok(PrefixMatch::Loadable(6 * BLOCK_TOKENS)));
    let table = blocks([8, 2, 15, 14, 11, 10]);
    let copy = engine.connector.blocks_allocated(second, &[&table]).unwrap();
    let plan = engine.step(&[]);
    engine.worker.start_loads(&plan, engine.point());
    for layer in 0..LAYERS {
        while engine.worker.order_layer(copy, layer, stream).unwrap() == LayerOrder::NotYet {
            std::thread::yield_now();
        }
    }
    // What is on the stream now is behind all layers.
    engine.worker.device_mut().synchronize(stream).unwrap();
    for (block, expected) in table.iter().flatten().zip(&stored) {
        assert_eq!(engine.pages(*block), *expected, "block {}", block.0);
    }
    let loaded = CopyOutcome::Loaded { request: second, computed: 6 * BLOCK_TOKENS };
    assert_eq!(engine.settle(), [loaded]);
    assert_eq!(engine.pages(BlockId(3)), vec![vec![0xee; 48]; 6], "no other block was touched");
    assert_eq!(fake.violations(), []);
}
