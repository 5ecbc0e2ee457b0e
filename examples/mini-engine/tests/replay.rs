//! Traffic fills a CPU tier, other traffic replaces a quarter of it, and the first prompt comes again: what is loaded is
//! exactly what should be left, and nothing of the answer changes by one bit.

#[path = "support/connected.rs"]
mod connected;
#[path = "support/mod.rs"]
mod support;

use std::{
    io::{BufRead, BufReader},
    path::Path,
    process::{Command, Stdio},
    sync::Arc,
    time::{Duration, Instant},
};

use connected::{Kvo, Parts, connect, plain};
use kvo_core::{BlockHash, GroupIdx, HostMemory, SecondaryTier};
use kvo_cuda::LinkModel;
use kvo_mini_engine::{Engine, EngineOptions, KvCaches, Model, NewRequest, Offload, Output, SplitMix64};
use kvo_nvme::{NvmeOptions, NvmeStore};
use support::{TINY, WINDOW, alone, check_answer, check_empty, engine, options, tokens};

const CHUNKS: u32 = 64;
const BLOCK_TOKENS: u32 = 16;

/// What is tried.
struct Case<'a> {
    model: &'a Arc<Model>,
    policy: &'a str,
    /// Chunks of the CPU tier.
    cpu_chunks: u32,
    blocks_per_chunk: u32,
    /// A store below it.
    store: Option<&'a Path>,
    /// Blocks of each group on the device.
    num_blocks: u32,
    by_layer: bool,
    /// Whether the prompt has come twice before the other traffic.
    is_reused: bool,
    /// How many other prompts come between.
    num_others: u64,
}

impl Case<'_> {
    /// A CPU tier of 64 chunks of 16 tokens by LRU, nothing below it, and plenty of blocks.
    fn usual() -> Self {
        Self {
            model: &TINY,
            policy: "lru",
            cpu_chunks: CHUNKS,
            blocks_per_chunk: 1,
            store: None,
            num_blocks: 160,
            by_layer: false,
            is_reused: false,
            num_others: 1,
        }
    }

    fn options(&self) -> EngineOptions {
        EngineOptions {
            block_tokens: BLOCK_TOKENS,
            num_blocks: self.num_blocks,
            // All chunks of another prompt are one offer.
            step_tokens: 300,
            block_seed: Some(5),
            ..options()
        }
    }

    fn engine(&self) -> Engine<Kvo> {
        let caches = KvCaches::plan(self.model.config(), &self.options()).unwrap();
        let fingerprint = caches.fingerprint("tiny, seed 1", self.blocks_per_chunk).unwrap();
        let mut tiers = |host: Arc<dyn HostMemory>| {
            let open = |dir: &Path| -> Box<dyn SecondaryTier> {
                let options = NvmeOptions::new(dir, 4 * CHUNKS, host.slot_bytes() as u64);
                let options = NvmeOptions { fingerprint: fingerprint.0, ..options };
                Box::new(NvmeStore::open(options, Arc::clone(&host)).unwrap())
            };
            self.store.map(open).into_iter().collect()
        };
        let parts = Parts {
            policy: self.policy,
            cpu_chunks: self.cpu_chunks,
            blocks_per_chunk: self.blocks_per_chunk,
            load_chunks_max: usize::MAX,
            deadline: None,
            lookup_patience: Duration::from_mins(1),
            copy_patience: Duration::from_mins(1),
            wrap: &plain,
            tiers: &mut tiers,
        };
        let mut engine = connect(self.model, self.options(), parts);
        engine.offload_mut().by_layer = self.by_layer;
        engine
    }

    /// Runs the experiment: `expected` tokens are loaded in the replay.
    #[track_caller]
    fn check(&self, expected: u64) {
        let mut engine = self.engine();
        let expected_answer = alone(self.model, first());
        let stored = run(&mut engine, first());
        assert_eq!((stored.hits.loaded_tokens, stored.hits.device_tokens), (0, 0));
        check_answer(&stored, &expected_answer, "stored");
        let num_groups = engine.caches().groups().len() as u64;
        let chunks = u64::from(CHUNKS / self.blocks_per_chunk) * num_groups;
        assert_eq!(chunks_stored(&engine), chunks, "every chunk is stored");

        if self.is_reused {
            check_hit(&mut engine, &expected_answer);
        }
        for seed in 2..2 + self.num_others {
            assert_eq!(run(&mut engine, other(seed)).hits.loaded_tokens, 0);
        }
        assert_eq!(chunks_stored(&engine), chunks + self.num_others * chunks / 4);
        engine.forget_device();

        let replay = run(&mut engine, first());
        assert_eq!((replay.hits.loaded_tokens, replay.hits.device_tokens), (expected, 0), "the replay");
        check_answer(&replay, &expected_answer, "the replay");
        assert_eq!(replay.hits.computed_tokens, 1025 + 7 - expected);
        check_hit(&mut engine, &replay);
        check_bytes(&engine, self.model);
        check_empty(&engine, "the replay");
        check_settled(&engine);
    }
}

/// What comes again at once is on the device, and its logits are the same.
#[track_caller]
fn check_hit(engine: &mut Engine<Kvo>, expected: &Output) {
    let hit = run(engine, first());
    assert_eq!((hit.hits.loaded_tokens, hit.hits.device_tokens), (0, 1024), "a device hit");
    check_answer(&hit, expected, "a device hit");
}

fn chunks_stored(engine: &Engine<Kvo>) -> u64 {
    engine.offload().connector().manager().stats().primary.chunks_stored
}

/// 64 blocks and a token, and 8 tokens of answer.
fn first() -> NewRequest {
    NewRequest::new(tokens(&mut SplitMix64::new(1), 1025), 8)
}

/// 16 blocks and a token.
fn other(seed: u64) -> NewRequest {
    NewRequest::new(tokens(&mut SplitMix64::new(seed), 257), 8)
}

#[track_caller]
fn run<O: Offload>(engine: &mut Engine<O>, request: NewRequest) -> Output {
    engine.add(request).unwrap();
    let mut outputs = engine.run().unwrap();
    assert_eq!(outputs.len(), 1);
    outputs.pop().unwrap()
}

/// The names of the first prompt's blocks.
fn names<O: Offload>(engine: &mut Engine<O>) -> Vec<BlockHash> {
    let id = engine.add(first()).unwrap();
    let names = engine.request(id).unwrap().hashes.to_vec();
    engine.abort(id).unwrap();
    names
}

/// What the replay has on the device, loaded or not, is to the byte what an engine without offloading computes.
#[track_caller]
fn check_bytes(replayed: &Engine<Kvo>, model: &Arc<Model>) {
    let mut plain = engine(model, EngineOptions { num_blocks: 160, block_tokens: BLOCK_TOKENS, ..options() });
    run(&mut plain, first());
    let names = names(&mut plain);
    let mut compared = 0;
    for (group, number) in plain.caches().groups().iter().zip(0..) {
        let found = |engine: &Engine<Kvo>, name| engine.cached_block(GroupIdx(number), name);
        for name in &names {
            let Some(block) = found(replayed, name) else {
                assert!(group.window.is_some(), "only blocks in front of a window are not there");
                continue;
            };
            let expected = plain.cached_block(GroupIdx(number), name).unwrap();
            for (&layer, plane) in group.layers.iter().flat_map(|layer| [(layer, 0), (layer, 1)]) {
                let bytes = page(&plain, (layer, plane), expected);
                assert!(bytes.iter().any(|byte| *byte != 0));
                assert_eq!(page(replayed, (layer, plane), block), bytes, "layer {layer}, plane {plane}");
                compared += 1;
            }
        }
    }
    assert!(compared >= 64 * 2, "{compared} pages");
}

fn page<O: Offload>(engine: &Engine<O>, (layer, plane): (usize, usize), block: kvo_core::BlockId) -> Vec<u8> {
    let mut bytes = vec![0; usize::try_from(engine.caches().page_bytes()).unwrap()];
    let address = engine.caches().page_address(layer, plane, block);
    engine.device().memory().read(address, &mut bytes).unwrap();
    bytes
}

/// No request, copy, block or pin is left.
#[track_caller]
fn check_settled(engine: &Engine<Kvo>) {
    let connector = engine.offload().connector();
    let (stats, counts) = (connector.stats(), connector.counts());
    assert_eq!((stats.open_requests, stats.open_copies, stats.blocks_in_use), (0, 0, 0));
    assert_eq!((counts.pending, counts.pinned), (0, 0));
}

#[test]
fn what_lru_has_left_is_loaded_and_no_bit_differs() {
    Case::usual().check(768);
    Case { by_layer: true, ..Case::usual() }.check(768);
    Case { is_reused: true, num_others: 2, ..Case::usual() }.check(512);
}

/// Chunks that came once are in T1, which goes by recency: the other traffic replaces the 16 of the tail, as with LRU.
/// Those that came twice are in T2. The first of two other prompts finds T1 empty and replaces the tail of T2; the second
/// finds T1 above its target, which is 0, and replaces the first.
#[test]
fn what_arc_has_left_is_loaded_and_no_bit_differs() {
    Case { policy: "arc", ..Case::usual() }.check(768);
    Case { policy: "arc", is_reused: true, num_others: 2, ..Case::usual() }.check(768);
}

#[test]
fn with_a_store_below_nothing_is_lost() {
    let dir = tempfile::tempdir().unwrap();
    Case { store: Some(dir.path()), ..Case::usual() }.check(1024);
    let dir = tempfile::tempdir().unwrap();
    Case { store: Some(dir.path()), policy: "arc", by_layer: true, ..Case::usual() }.check(1024);
}

/// 65 blocks are what the prompt and its answer take: each is given out again and again, also while it is stored.
#[test]
fn with_hardly_any_blocks_on_the_device_it_is_the_same() {
    Case { num_blocks: 65, ..Case::usual() }.check(768);
    Case { num_blocks: 65, by_layer: true, ..Case::usual() }.check(768);
}

/// Of a prompt that came once the tails of both groups go. Coming twice, it has used all chunks of the full group, and of
/// the other one those of the last window: the rest of that one goes first, and is not missed.
#[test]
fn with_a_window_group_it_is_the_same() {
    let case = || Case { model: &WINDOW, cpu_chunks: 2 * CHUNKS, ..Case::usual() };
    case().check(768);
    Case { by_layer: true, ..case() }.check(768);
    Case { is_reused: true, ..case() }.check(1024);
}

#[test]
fn with_four_blocks_a_chunk_it_is_the_same() {
    for by_layer in [false, true] {
        Case { cpu_chunks: CHUNKS / 4, blocks_per_chunk: 4, by_layer, ..Case::usual() }.check(768);
    }
}

/// The load takes longer than it may, and the device goes on with what it has begun when that is noticed: layers that
/// run behind it wait for that, and nothing of the step counts.
#[test]
fn a_load_by_layer_that_is_late_is_computed_again() {
    let link = LinkModel { op_us: 2000.0, ..LinkModel::new(10.0) };
    // A store is one chunk, of four copies; the load is all chunks, of a hundred.
    let options = EngineOptions { link: Some(link), step_tokens: 16, ..Case::usual().options() };
    let parts = Parts {
        policy: "lru",
        cpu_chunks: CHUNKS,
        blocks_per_chunk: 1,
        load_chunks_max: usize::MAX,
        deadline: Some(Duration::from_millis(150)),
        lookup_patience: Duration::from_mins(1),
        copy_patience: Duration::from_mins(1),
        wrap: &plain,
        tiers: &mut |_| Vec::new(),
    };
    let mut engine = connect(&TINY, options, parts);
    engine.offload_mut().by_layer = true;
    let request = || NewRequest::new(tokens(&mut SplitMix64::new(1), 401), 4);
    let expected = alone(&TINY, request());
    engine.add(request()).unwrap();
    while !engine.is_idle() {
        engine.step().unwrap();
        // A store that is behind others may not be late.
        std::thread::sleep(Duration::from_millis(12));
    }
    assert_eq!(engine.offload().connector().stats().stores_failed, 0);
    engine.forget_device();
    let again = run(&mut engine, request());
    assert_eq!((again.hits.failed_tokens, again.hits.loaded_tokens), (400, 0));
    assert_eq!(again.hits.computed_tokens, 404);
    check_answer(&again, &expected, "after a failed load");
    assert_eq!(engine.offload().connector().stats().loads_failed, 1);
    check_empty(&engine, "after a failed load");
    check_settled(&engine);
}

/// B05 and B50. The program computes round after round until it is killed; what it has stored by then is loaded by the
/// next engine.
#[test]
fn what_a_killed_process_has_stored_comes_back() {
    let dir = tempfile::tempdir().unwrap();
    let prompt: Vec<String> = first().prompt.iter().map(ToString::to_string).collect();
    let mut child = Command::new(env!("CARGO_BIN_EXE_kvo-mini-engine"))
        .args(["--tokens", &prompt.join(","), "--max-tokens", "8", "--rounds", "1000000", "--blocks", "160"])
        .args(["--offload", "cpu+nvme", "--cpu-chunks", "64", "--nvme-chunks", "256", "--nvme-dir"])
        .arg(dir.path())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
    let answer = lines.next().unwrap();
    assert!(lines.any(|line| line.starts_with("round 3: ")), "it answers");
    // What a store that is killed has not recorded is of the last tenth of a second.
    let until = Instant::now() + Duration::from_millis(500);
    assert!(lines.any(|line| line.starts_with("round ") && Instant::now() > until));
    child.kill().unwrap();
    assert!(!child.wait().unwrap().success());

    let case = Case { store: Some(dir.path()), ..Case::usual() };
    let mut engine = case.engine();
    assert_eq!(engine.offload().connector().counts().free, CHUNKS, "nothing is in the CPU tier");
    let loaded = run(&mut engine, first());
    assert_eq!((loaded.hits.loaded_tokens, loaded.hits.device_tokens), (1024, 0));
    assert_eq!(answer, format!("answer 0: {:?}", loaded.tokens));
    check_answer(&loaded, &alone(&TINY, first()), "after the kill");
    check_hit(&mut engine, &loaded);
    let promoted = engine.offload().connector().manager().stats().primary.chunks_promoted;
    assert_eq!(promoted, u64::from(CHUNKS));
    check_bytes(&engine, &TINY);
    check_empty(&engine, "after the kill");
    check_settled(&engine);
}
