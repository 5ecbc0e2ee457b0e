//! `kill -9` at random moments: what the index had is there again, and nothing else is wrong.
//!
//! A child process writes chunks by jobs and reports on a pipe, in the store's own order, which have come and which were
//! evicted, and whose records it has seen in the index file. The parent kills it, and compares what is in the store with
//! what the child has said.
//!
//! From when a chunk is owed is no matter of time: a batch waits for 100 ms at most, and then for a processor and for
//! the system, however long that takes. A record that is in the index stays there, though its process does not. That
//! each gets there without a further one is what the child waits for before the later kills.
//!
//! What a kill costs is printed: with 32 records to a batch it is 31 of them at the most, for up to 65 ms, and half as
//! many again, for up to 95 ms, on a machine with three times as much to do as it has processors.

mod books;
mod child;

use std::{
    collections::BTreeMap,
    io::{BufRead, BufReader, Read},
    path::Path,
    process::Stdio,
    sync::mpsc::{self, RecvTimeoutError, Sender},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use kvo_nvme::{EngineKind, INDEX_FILE_NAME, Inspection, NvmeOptions, NvmeStore, OpenError};
use rustix::time::{ClockId, clock_gettime};

use self::{books::Books, child::write_until_killed};
use crate::rig::{Found, LONG, Rng, child, content, engines, key, options, read_all, told};

/// B50.
#[test]
fn what_was_written_before_a_kill_is_there_again() {
    check(OwedFrom::Record, 50, "what_was_written_before_a_kill_is_there_again");
}

/// B50, to the last chunk.
#[test]
fn what_was_durable_before_a_kill_is_there_again_to_the_last_chunk() {
    check(OwedFrom::Start, 20, "what_was_durable_before_a_kill_is_there_again_to_the_last_chunk");
}

/// Since when a chunk must survive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OwedFrom {
    /// Since its record is in the index.
    Record,
    /// Since it can be read: the store is durable.
    Start,
}

/// What a child is told.
struct Orders {
    engine: EngineKind,
    owed_from: OwedFrom,
    /// The first chunk that nobody has written yet.
    next: u64,
    seed: u64,
    dir: String,
}

impl Orders {
    fn encode(&self) -> String {
        let Self { engine, owed_from, next, seed, dir } = self;
        let (is_uring, is_durable) = (*engine == EngineKind::Uring, *owed_from == OwedFrom::Start);
        format!("{is_uring} {is_durable} {next} {seed} {dir}")
    }

    fn decode(told: &str) -> Self {
        let words: Vec<_> = told.splitn(5, ' ').collect();
        let [is_uring, is_durable, next, seed, dir] = words[..] else { panic!("strange orders: {told}") };
        Self {
            engine: if is_uring == "true" { EngineKind::Uring } else { EngineKind::Threads },
            owed_from: if is_durable == "true" { OwedFrom::Start } else { OwedFrom::Record },
            next: next.parse().unwrap(),
            seed: seed.parse().unwrap(),
            dir: dir.to_owned(),
        }
    }

    fn options(&self) -> NvmeOptions {
        let durable = self.owed_from == OwedFrom::Start;
        // Small enough that chunks are evicted, large enough that not all are before they count.
        let capacity = if durable { 96 } else { 768 };
        NvmeOptions { engine: self.engine, durable, ..options(&self.dir, capacity) }
    }
}

#[track_caller]
fn check(owed_from: OwedFrom, rounds: u32, test: &str) {
    if let Some(told) = told() {
        write_until_killed(&Orders::decode(&told));
    }
    let mut rng = Rng::of_test(test);
    let dir = tempfile::tempdir().unwrap();
    let engines = engines();
    let mut books = Books::new(owed_from);
    let mut slowest = Duration::ZERO;
    for round in 0..rounds {
        let engine = engines[round as usize % engines.len()];
        let dir = dir.path().to_str().unwrap().to_owned();
        let orders = Orders { engine, owed_from, next: books.next, seed: rng.next(), dir };
        // Soon after the start, in the midst of opening or of making the store, or after much was written.
        let after = if round % 3 == 2 { After::Settled } else { After::Start };
        let (said, killed_at) = run_and_kill(test, &orders, after, Duration::from_millis(rng.below(120)));
        books.take_in(&said);
        let (found, waited) = look(&orders, books.next, rng.below(2) == 0);
        slowest = slowest.max(waited);
        books.compare(&found, killed_at);
    }
    eprintln!("{test}: {rounds} rounds, {books}; opened again after {slowest:?} at the most");
    books.assert_enough();
}

/// What a child is waited for before its last moments begin.
#[derive(Clone, Copy, PartialEq, Eq)]
enum After {
    Start,
    /// All that it had was in the index once.
    Settled,
}

/// What the child said, and when it was killed: so long after what it was waited for.
fn run_and_kill(test: &str, orders: &Orders, after: After, life: Duration) -> (String, Duration) {
    let mut command = child(module_path!(), test, orders.encode());
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let (settled, has_settled) = mpsc::channel();
    let out = read_along(child.stdout.take().unwrap(), Some(settled));
    let err = read_along(child.stderr.take().unwrap(), None);
    let waited = match after {
        After::Start => Ok(()),
        // The child itself gives up after less.
        After::Settled => has_settled.recv_timeout(2 * LONG),
    };
    // The kill is to come at any moment.
    thread::sleep(life);
    let killed_at = now();
    child.kill().unwrap();
    let status = child.wait().unwrap();
    let (said, err) = (out.join().unwrap(), err.join().unwrap());
    assert!(status.code().is_none(), "it ended by itself: {status:?}\n{err}");
    assert_ne!(waited, Err(RecvTimeoutError::Timeout), "it hung\n{err}");
    (said, killed_at)
}

/// Reads what a child says, and tells when it says that it has settled.
fn read_along(from: impl Read + Send + 'static, settled: Option<Sender<()>>) -> JoinHandle<String> {
    thread::spawn(move || {
        let (mut from, mut said) = (BufReader::new(from), String::new());
        loop {
            let start = said.len();
            if from.read_line(&mut said).unwrap() == 0 {
                return said;
            }
            if said[start..] == *"settled\n"
                && let Some(settled) = &settled
            {
                // Nobody waits for a child that is to be killed before.
                let _ = settled.send(());
            }
        }
    })
}

/// The time that all processes have in common.
fn now() -> Duration {
    clock_gettime(ClockId::Monotonic).try_into().unwrap()
}

/// What is in the store that the child has left, and how long it took to open it. By another store, which closes it; or
/// without one, so that the next child finds it as the last has left it.
///
/// It must open at once: whoever starts a process again after a kill does not wait for the kernel to tidy up.
fn look(orders: &Orders, end: u64, by_store: bool) -> (Found, Duration) {
    let started = Instant::now();
    if by_store || !Path::new(&orders.dir).join(INDEX_FILE_NAME).exists() {
        let mut store = NvmeStore::open_without_memory(orders.options()).unwrap();
        let waited = started.elapsed();
        let found = read_all(&mut store, end);
        store.close(LONG).unwrap();
        return (found, waited);
    }
    // A child that was killed early may have left a store that is not made yet.
    let mut inspection = match Inspection::open(&[orders.dir.clone().into()]) {
        Err(OpenError::Damaged { .. }) if end == 0 => return (Found::default(), started.elapsed()),
        inspection => inspection.unwrap(),
    };
    let waited = started.elapsed();
    let chunks = inspection.read_records().unwrap().chunks;
    let chunks: BTreeMap<_, _> = chunks.into_iter().map(|chunk| (chunk.key.to_bytes(), chunk)).collect();
    let (hits, misses) = (0..end).partition(|&n| {
        let Some(chunk) = chunks.get(&key(n).to_bytes()) else { return false };
        inspection.read_chunk(chunk).is_ok_and(|bytes| {
            assert!(bytes == content(n), "chunk {n} has wrong bytes");
            true
        })
    });
    (Found { hits, misses }, waited)
}
