//! `kill -9` at random moments: what was written long enough before is there again, and nothing else is wrong.
//!
//! A child process writes chunks by jobs and reports on a pipe what was acknowledged, and what was evicted. The parent
//! kills it, and compares what is in the store with what the child has said.

use std::{
    collections::{BTreeMap, BTreeSet},
    io::{Read, Write},
    path::Path,
    process::{Child, Stdio},
    thread,
    time::{Duration, Instant},
};

use kvo_core::TierDirection;
use kvo_nvme::{EngineKind, INDEX_FILE_NAME, Inspection, NvmeOptions, NvmeStore, OpenError};
use rustix::time::{ClockId, clock_gettime};

use crate::rig::{
    Found, JOB_CHUNKS, JOBS_MAX, LONG, Rig, Rng, child, content, engines, key, options, read_all, told,
};

/// Records wait for 100 ms at most; the rest is for a machine that has other things to do.
const SETTLED: Duration = Duration::from_millis(200);

#[test]
fn what_was_written_before_a_kill_is_there_again() {
    check(Durability::Settled, 50, "what_was_written_before_a_kill_is_there_again");
}

#[test]
fn what_was_durable_before_a_kill_is_there_again_to_the_last_chunk() {
    check(Durability::AtOnce, 20, "what_was_durable_before_a_kill_is_there_again_to_the_last_chunk");
}

/// When a chunk must survive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Durability {
    /// A while after it was acknowledged.
    Settled,
    /// From then on.
    AtOnce,
}

/// What a child is told.
struct Orders {
    engine: EngineKind,
    durability: Durability,
    /// The first chunk that nobody has written yet.
    next: u64,
    seed: u64,
    dir: String,
}

impl Orders {
    fn encode(&self) -> String {
        let Self { engine, durability, next, seed, dir } = self;
        let (is_uring, is_durable) = (*engine == EngineKind::Uring, *durability == Durability::AtOnce);
        format!("{is_uring} {is_durable} {next} {seed} {dir}")
    }

    fn decode(told: &str) -> Self {
        let words: Vec<_> = told.splitn(5, ' ').collect();
        let [is_uring, is_durable, next, seed, dir] = words[..] else { panic!("strange orders: {told}") };
        Self {
            engine: if is_uring == "true" { EngineKind::Uring } else { EngineKind::Threads },
            durability: if is_durable == "true" { Durability::AtOnce } else { Durability::Settled },
            next: next.parse().unwrap(),
            seed: seed.parse().unwrap(),
            dir: dir.to_owned(),
        }
    }

    fn options(&self) -> NvmeOptions {
        let durable = self.durability == Durability::AtOnce;
        // Small enough that chunks are evicted, large enough that not all are before they count.
        let capacity = if durable { 96 } else { 768 };
        NvmeOptions { engine: self.engine, durable, ..options(&self.dir, capacity) }
    }
}

#[track_caller]
fn check(durability: Durability, rounds: u32, test: &str) {
    if let Some(told) = told() {
        write_until_killed(&Orders::decode(&told));
    }
    let mut rng = Rng::of_test(test);
    let dir = tempfile::tempdir().unwrap();
    let engines = engines();
    let mut books = Books::default();
    let mut slowest = Duration::ZERO;
    for round in 0..rounds {
        let engine = engines[round as usize % engines.len()];
        let dir = dir.path().to_str().unwrap().to_owned();
        let orders = Orders { engine, durability, next: books.next, seed: rng.next(), dir };
        // Often soon after the opening, sometimes when most of what was written is old enough to count.
        let life = if rng.below(3) == 0 { 250 + rng.below(150) } else { rng.below(120) };
        let (said, killed_at) = run_and_kill(test, &orders, Duration::from_millis(life));
        books.take_in(&said);
        let (found, waited) = look(&orders, books.next, rng.below(2) == 0);
        slowest = slowest.max(waited);
        books.compare(&found, durability, killed_at);
    }
    eprintln!("{test}: {rounds} rounds, {books:?}; opened again after {slowest:?} at the most");
    assert!(books.owed_new > 100 && books.owed > 1000, "so few chunks that were owed prove nothing");
    assert!(books.evicted > 0, "nothing was evicted");
    assert!(books.held_up * 10 <= rounds, "{} of {rounds} rounds have lost chunks", books.held_up);
}

/// What the child said, and when it was killed.
fn run_and_kill(test: &str, orders: &Orders, life: Duration) -> (String, Duration) {
    let mut command = child(module_path!(), test, orders.encode());
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let out = read_along(child.stdout.take().unwrap());
    let err = read_along(child.stderr.take().unwrap());
    thread::sleep(life);
    let killed_at = now();
    kill(&mut child, || err.join().unwrap());
    (out.join().unwrap(), killed_at)
}

#[track_caller]
fn kill(child: &mut Child, err: impl FnOnce() -> String) {
    child.kill().unwrap();
    let status = child.wait().unwrap();
    assert!(status.code().is_none(), "it ended by itself: {status:?}\n{}", err());
}

fn read_along(mut from: impl Read + Send + 'static) -> thread::JoinHandle<String> {
    thread::spawn(move || {
        let mut said = String::new();
        from.read_to_string(&mut said).unwrap();
        said
    })
}

/// The time that all processes have in common.
fn now() -> Duration {
    clock_gettime(ClockId::Monotonic).try_into().unwrap()
}

/// The child: reports before it begins a job, and what has left the store for it.
fn write_until_killed(orders: &Orders) -> ! {
    let mut rng = Rng::of(orders.seed);
    let mut next = orders.next;
    let mut rig = Rig::open(&orders.options());
    // What the harness says ends without an end of line.
    say("\n");
    loop {
        while rig.num_jobs() < JOBS_MAX && rig.may_submit() {
            let count = 1 + rng.below(JOB_CHUNKS as u64);
            if next > 0 && rng.below(4) == 0 {
                let ns: Vec<_> = (0..count.min(next)).map(|back| next - 1 - back).collect();
                assert!(rig.submit(TierDirection::Read, &ns));
            } else {
                // Now and then chunks that were there before.
                let first = if rng.below(8) == 0 { rng.below(next + 1) } else { next };
                let ns: Vec<_> = (first..first + count).collect();
                next = next.max(first + count);
                say(&format!("begin {count} {next}\n"));
                assert!(rig.submit(TierDirection::Write, &ns));
                let gone: Vec<_> = rig.removed(next).iter().map(|n| format!("gone {n}\n")).collect();
                say(&(gone.concat() + "begun\n"));
            }
        }
        for ended in rig.poll() {
            assert!(ended.direction == TierDirection::Read || ended.failed.is_empty());
            let at = now().as_micros();
            let lines: Vec<_> = ended.done.iter().map(|n| format!("done {n} {at}\n")).collect();
            if ended.direction == TierDirection::Write {
                say(&lines.concat());
            }
        }
        thread::sleep(Duration::from_millis(3));
    }
}

fn say(lines: &str) {
    std::io::stdout().lock().write_all(lines.as_bytes()).unwrap();
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

/// What must be in the store.
#[derive(Default)]
struct Books {
    /// The first chunk that nobody has begun to write.
    next: u64,
    /// Chunks that have survived a kill.
    old: BTreeSet<u64>,
    /// Chunks of this round, with the time at which they were acknowledged.
    new: BTreeMap<u64, Duration>,
    /// Chunks that may have been evicted without a word, because the child was killed before it could say so.
    untold: usize,
    owed: usize,
    /// Those of them that were written in the same round.
    owed_new: usize,
    evicted: usize,
    /// Rounds in which a batch was not written in time.
    held_up: u32,
}

impl Books {
    fn take_in(&mut self, said: &str) {
        self.new.clear();
        self.untold = 0;
        // The last line may be half a line.
        let (whole, _) = said.rsplit_once('\n').unwrap_or_default();
        for line in whole.lines() {
            let words: Vec<_> = line.split(' ').collect();
            let number = |at: usize| words[at].parse::<u64>().unwrap();
            match words[0] {
                "begin" => {
                    self.untold = usize::try_from(number(1)).unwrap();
                    self.next = number(2);
                }
                "begun" => self.untold = 0,
                "gone" => {
                    self.evicted += 1;
                    self.old.remove(&number(1));
                    self.new.remove(&number(1));
                }
                "done" => {
                    self.new.insert(number(1), Duration::from_micros(number(2)));
                }
                // What the harness says.
                _ => {}
            }
        }
    }

    #[track_caller]
    fn compare(&mut self, found: &Found, durability: Durability, killed_at: Duration) {
        let margin = if durability == Durability::AtOnce { Duration::ZERO } else { SETTLED };
        let settled = self.new.iter().filter(|(_, at)| **at + margin <= killed_at || margin.is_zero());
        let owed: BTreeSet<u64> = settled.map(|(n, _)| *n).chain(self.old.iter().copied()).collect();
        let lost: Vec<_> = owed
            .iter()
            .filter(|n| !found.hits.contains(n))
            .map(|n| (n, self.new.get(n).map(|at| killed_at.saturating_sub(*at))))
            .collect();
        // A kernel that is busy with the file system's own journal can hold the write of a batch up for longer.
        let is_held_up = !margin.is_zero() && lost.iter().all(|(_, age)| age.is_some());
        if lost.len() > self.untold && is_held_up {
            eprintln!("a batch was held up: {lost:?}");
            self.held_up += 1;
        } else {
            assert!(lost.len() <= self.untold, "{} may be gone, lost are {lost:?}", self.untold);
        }
        self.owed += owed.len();
        self.owed_new += owed.difference(&self.old).count();
        self.old = found.hits.iter().copied().collect();
    }
}

impl std::fmt::Debug for Books {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { next, owed, owed_new, evicted, .. } = self;
        write!(
            f,
            "{next} chunks written, {owed} owed and there ({owed_new} of the same round), {evicted} evicted"
        )
    }
}
