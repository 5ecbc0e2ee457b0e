//! What is secret is nowhere in what is printed: salts and token ids, on the whole way through all tiers, at the finest level of
//! the log.

use std::{
    fmt::{self, Write},
    path::Path,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use kvo_connector::{
    BlockHasher, Connector, ConnectorOptions, CopyResult, EventDetail, GroupOptions, Namespace, PrefixMatch,
    RequestParams, Scheduled, StepInput,
};
use kvo_core::{BlockHash, BlockId, HostMemory, ManualClock, RequestId, SecondaryTier};
use kvo_cpu::{CpuManager, CpuOptions, HostRegion, RegionOptions};
use kvo_cuda::Fingerprint;
use kvo_nvme::{NvmeOptions, NvmeStore};
use kvo_policies::Lru;
use kvo_tiering::{TieringManager, TieringOptions};
use tracing::{
    Event, Metadata, Subscriber,
    field::{Field, Visit},
    span::{Attributes, Id, Record},
};

const CHUNK: u32 = 16;
const SLOT_BYTES: usize = 4096;
/// Bytes and numbers that nothing else has.
const SALT: [u8; 32] = [0xc7; 32];
const FIRST_TOKEN: u32 = 3_141_592_000;

/// Keeps all that is logged, as text.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<String>>);

struct Text<'a>(&'a mut String);

impl Visit for Text<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        writeln!(self.0, "{field} = {value:?}").unwrap();
    }
}

impl Log {
    fn record(&self, record: impl FnOnce(&mut Text<'_>)) {
        record(&mut Text(&mut self.0.lock().unwrap()));
    }
}

impl Subscriber for Log {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, span: &Attributes<'_>) -> Id {
        self.record(|text| {
            writeln!(text.0, "{}", span.metadata().name()).unwrap();
            span.record(text);
        });
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, values: &Record<'_>) {
        self.record(|text| values.record(text));
    }

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        self.record(|text| event.record(text));
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

/// Checks that neither is in `text`, in any form that a print would give it.
#[track_caller]
fn check_silent(text: &str, what: &str) {
    let hex = BlockHash(SALT).to_string()[..8].to_owned();
    let list = format!("{0}, {0}, {0}", SALT[0]);
    let line = format!("{},\n", SALT[0]);
    for secret in [hex.clone(), hex.to_uppercase(), list, line, "3141592".to_owned()] {
        let at = text.find(&secret);
        let around = at.map(|at| &text[at.saturating_sub(200)..text.len().min(at + 200)]);
        assert_eq!(around, None, "{what} has \"{secret}\"");
    }
}

struct Engine {
    connector: Connector<TieringManager<Lru>>,
    region: Arc<HostRegion>,
    next: u64,
    /// Whatever there was to print.
    printed: String,
}

impl Engine {
    fn new(dir: &Path) -> Self {
        let options =
            RegionOptions { huge_pages: false, prefault_threads: 0, ..RegionOptions::new(4, SLOT_BYTES) };
        let region = Arc::new(HostRegion::anonymous(&options).unwrap());
        let options = NvmeOptions { record_events: true, ..NvmeOptions::new(dir, 6, SLOT_BYTES as u64) };
        let store = NvmeStore::open(options, region.clone()).unwrap();
        let tiers: Vec<Box<dyn SecondaryTier>> = vec![Box::new(store)];
        let options = CpuOptions { record_events: true, ..CpuOptions::new(4) };
        let primary = CpuManager::new(options, Lru::new(4)).unwrap();
        let options = TieringOptions::new(SLOT_BYTES as u64);
        let manager = TieringManager::new(primary, tiers, options, Box::new(ManualClock::default())).unwrap();
        let namespace = Namespace::new(Fingerprint([1; 32]), 1);
        let mut options = ConnectorOptions::new(namespace, vec![GroupOptions::full(CHUNK)], CHUNK);
        options.events = Some(EventDetail::Tokens);
        let connector = Connector::new(options, manager, Box::new(ManualClock::default())).unwrap();
        Self { connector, region, next: 0, printed: String::new() }
    }

    fn print(&mut self, what: &dyn fmt::Debug) {
        write!(self.printed, "{what:?}\n{what:#?}\n").unwrap();
    }

    /// Serves a request of one of several prompts of two chunks; says how many tokens were loaded.
    fn serve(&mut self, prompt: u32, result: CopyResult) -> u32 {
        let id = RequestId(self.next);
        self.next += 1;
        let tokens: Vec<u32> = (0..=2 * CHUNK).map(|nth| FIRST_TOKEN + 100 * prompt + nth % 100).collect();
        let num = 2 * CHUNK + 1;
        let params = RequestParams { salt: Some(SALT), ..RequestParams::default() };
        self.print(&params);
        self.connector.new_request(id, num, params).unwrap();
        let again = RequestParams { salt: Some(SALT), ..RequestParams::default() };
        let error = self.connector.new_request(id, num, again).unwrap_err();
        self.print(&error);
        self.connector.add_tokens(id, &tokens).unwrap();
        let hasher = BlockHasher::new(b"");
        self.connector.add_hashes(id, num, &hasher.blocks(CHUNK as usize, &tokens)).unwrap();
        let found = self.find(id);
        let first = u32::try_from(id.0).unwrap() * 3;
        let blocks: Vec<_> = (first..first + 3).map(|block| Some(BlockId(block))).collect();
        let mut new_blocks = [blocks.as_slice()];
        if found > 0 {
            self.connector.blocks_allocated(id, &[&blocks]).unwrap();
            new_blocks = [&[]];
            self.step(&StepInput::default(), CopyResult::Done);
        }
        let scheduled = [Scheduled {
            request: id,
            kept_blocks: &[],
            new_blocks: &new_blocks,
            computed: found,
            settled: num,
        }];
        self.step(&StepInput { preempted: &[], scheduled: &scheduled }, result);
        let finish = self.connector.request_finished(id).unwrap();
        self.print(&finish);
        self.settle();
        found
    }

    fn find(&mut self, id: RequestId) -> u32 {
        let start = Instant::now();
        loop {
            match self.connector.match_prefix(id, 0).unwrap() {
                PrefixMatch::Loadable(tokens) => return tokens,
                PrefixMatch::AskAgain => {
                    self.step(&StepInput::default(), CopyResult::Done);
                    nap(start);
                }
            }
        }
    }

    fn step(&mut self, input: &StepInput<'_>, result: CopyResult) {
        let plan = self.connector.build_step(input).unwrap();
        self.print(&plan);
        for copy in plan.loads.iter().chain(&plan.stores) {
            for chunk in copy.chunks().filter(|_| !plan.stores.is_empty()) {
                self.region.with_write(chunk.slot, &mut |bytes| bytes.fill(1)).unwrap();
            }
            let outcome = self.connector.copy_reported(copy.copy, 0, result).unwrap();
            self.print(&outcome);
        }
    }

    fn settle(&mut self) {
        let start = Instant::now();
        while self.connector.has_pending_work() {
            self.step(&StepInput::default(), CopyResult::Done);
            nap(start);
        }
        let (stats, counts) = (self.connector.stats(), self.connector.counts());
        self.print(&stats);
        self.print(&counts);
        let text = format!("{:?} {:#?}", self.connector, self.connector.manager());
        self.printed.push_str(&text);
        let options = self.connector.options().clone();
        self.print(&options);
    }
}

fn nap(start: Instant) {
    assert!(start.elapsed() < Duration::from_mins(1), "the store does not get on");
    std::thread::sleep(Duration::from_millis(1));
}

/// All that a salted request goes through: stores and their failure, evictions in both tiers, promotions, loads, resets,
/// another epoch, a chunk whose bytes are damaged on disk, and a restart.
#[test]
fn no_salt_and_no_token_id_is_logged_or_printed() {
    let log = Log::default();
    // Threads of the store have this as well.
    tracing::subscriber::set_global_default(log.clone()).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let mut engine = Engine::new(dir.path());
    for prompt in [0, 1, 2] {
        assert_eq!(engine.serve(prompt, CopyResult::Done), 0);
    }
    assert_eq!(engine.serve(0, CopyResult::Done), 2 * CHUNK, "by the store");
    engine.serve(3, CopyResult::Failed);
    let flush = engine.connector.reset();
    engine.print(&flush);
    // Every payload is damaged.
    let data = dir.path().join(kvo_nvme::FILE_NAME);
    let file = std::fs::OpenOptions::new().write(true).open(data).unwrap();
    for slot in 0..6 {
        let at = (2 << 20) + slot * SLOT_BYTES as u64;
        std::os::unix::fs::FileExt::write_all_at(&file, &[0xee; 64], at).unwrap();
    }
    engine.serve(0, CopyResult::Done);
    let flush = engine.connector.reset_to(2).unwrap();
    engine.print(&flush);
    assert_eq!(engine.serve(1, CopyResult::Done), 0);
    let mut printed = std::mem::take(&mut engine.printed);
    drop(engine);
    let mut engine = Engine::new(dir.path());
    engine.serve(1, CopyResult::Done);
    printed.push_str(&engine.printed);
    drop(engine);

    check_silent(&printed, "what is printed");
    let logged = log.0.lock().unwrap().clone();
    assert!(logged.contains("evicted") && logged.contains("checksum"), "the log is to be whole: {logged}");
    check_silent(&logged, "the log");
    for entry in std::fs::read_dir(dir.path()).unwrap() {
        check_silent(entry.unwrap().file_name().to_str().unwrap(), "a name of a file");
    }
    let index = std::fs::read(dir.path().join(kvo_nvme::INDEX_FILE_NAME)).unwrap();
    assert!(!index.windows(8).any(|bytes| bytes == &SALT[..8]), "the index has the salt");
    assert!(
        !index
            .windows(4)
            .any(|bytes| (FIRST_TOKEN..FIRST_TOKEN + 400).any(|token| bytes == token.to_le_bytes()))
    );
}

/// So that the check above is known to see what it looks for.
#[test]
fn a_secret_that_is_printed_in_any_form_is_seen() {
    let hex = BlockHash(SALT).to_string();
    let token = FIRST_TOKEN + 17;
    for text in [hex.to_uppercase(), hex, format!("{SALT:?}"), format!("{SALT:#?}"), format!("[{token}]")] {
        std::panic::catch_unwind(|| check_silent(&text, "it")).unwrap_err();
    }
}
