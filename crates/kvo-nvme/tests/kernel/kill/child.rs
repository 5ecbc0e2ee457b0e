//! The process that is killed.

use std::{
    collections::BTreeSet,
    fmt::Write as _,
    fs::File,
    io::Write,
    os::unix::fs::FileExt,
    path::Path,
    thread,
    time::{Duration, Instant},
};

use kvo_core::{EventKind, OffloadKey, TierDirection};
use kvo_nvme::INDEX_FILE_NAME;

use super::{Orders, OwedFrom, now};
use crate::rig::{JOB_CHUNKS, JOBS_MAX, LONG, RECORD_BYTES, RECORDS_START, Rig, Rng, number};

/// Between jobs, and between looks at the index: so slow that what is written in a life is read again soon.
const PACE: Duration = Duration::from_millis(3);

/// Writes and reads chunks by jobs. A line is said before a write job begins, and one for what has become of chunks; the
/// parent has both as soon as they are said.
pub(super) fn write_until_killed(orders: &Orders) -> ! {
    let mut child = Child::open(orders);
    // What the harness says ends without an end of line.
    say("\n");
    let mut rest = 100 + child.rng.below(200);
    loop {
        child.submit();
        child.poll();
        if child.next - orders.next >= rest {
            child.settle();
            rest = u64::MAX;
        }
        thread::sleep(PACE);
    }
}

fn say(lines: &str) {
    std::io::stdout().lock().write_all(lines.as_bytes()).unwrap();
}

struct Child {
    rig: Rig,
    rng: Rng,
    /// The first chunk that nobody has written yet.
    next: u64,
    owed_from: OwedFrom,
    index: File,
    /// The newest generation that was there before.
    before: u64,
    /// Chunks that have come in this life.
    came: BTreeSet<u64>,
    /// Those whose records are to be looked for.
    unwritten: BTreeSet<u64>,
}

impl Child {
    fn open(orders: &Orders) -> Self {
        let rig = Rig::open(&orders.options());
        let index = File::open(Path::new(&orders.dir).join(INDEX_FILE_NAME)).unwrap();
        let before = records(&index, rig.store.capacity_chunks()).map(|(_, generation)| generation).max();
        Self {
            rig,
            rng: Rng::of(orders.seed),
            next: orders.next,
            owed_from: orders.owed_from,
            index,
            before: before.unwrap_or(0),
            came: BTreeSet::new(),
            unwritten: BTreeSet::new(),
        }
    }

    /// Begins as many jobs as may run.
    fn submit(&mut self) {
        while self.rig.num_jobs() < JOBS_MAX && self.rig.may_submit() {
            let (next, count) = (self.next, 1 + self.rng.below(JOB_CHUNKS as u64));
            if next > 0 && self.rng.below(4) == 0 {
                let ns: Vec<_> = (0..count.min(next)).map(|back| next - 1 - back).collect();
                assert!(self.rig.submit(TierDirection::Read, &ns));
                continue;
            }
            // Now and then chunks that were there before.
            let first = if self.rng.below(8) == 0 { self.rng.below(next + 1) } else { next };
            let ns: Vec<_> = (first..first + count).collect();
            self.next = next.max(first + count);
            say(&format!("begin {count} {}\n", self.next));
            assert!(self.rig.submit(TierDirection::Write, &ns));
            let events = self.events();
            say(&(events + "begun\n"));
        }
    }

    /// Takes in what has ended, and looks whether its records are in the index.
    fn poll(&mut self) {
        for ended in self.rig.poll() {
            assert!(ended.direction == TierDirection::Read || ended.failed.is_empty());
        }
        let events = self.events();
        say(&(events + &self.written()));
    }

    /// Waits until everything that has come is in the index, though nothing more comes.
    fn settle(&mut self) {
        let started = Instant::now();
        while self.rig.num_jobs() > 0 || !self.unwritten.is_empty() {
            assert!(started.elapsed() < LONG, "the index never got the records of {:?}", self.unwritten);
            thread::sleep(PACE);
            self.poll();
        }
        say("settled\n");
    }

    /// What the store says, in its order. That a write job is done would not do: by then its chunks may be evicted.
    fn events(&mut self) -> String {
        let (mut lines, at) = (String::new(), now().as_micros());
        for (kind, n) in self.rig.events() {
            match kind {
                EventKind::Stored => {
                    writeln!(lines, "stored {n} {at}").unwrap();
                    // The record of one that came before cannot be told from the earlier one.
                    if self.came.insert(n) && self.owed_from == OwedFrom::Record {
                        self.unwritten.insert(n);
                    }
                }
                EventKind::Removed => {
                    writeln!(lines, "gone {n}").unwrap();
                    self.unwritten.remove(&n);
                }
                other => panic!("{other:?} of chunk {n}"),
            }
        }
        lines
    }

    /// Chunks that are there and whose records have got into the index.
    fn written(&mut self) -> String {
        if self.unwritten.is_empty() {
            return String::new();
        }
        let mut lines = String::new();
        for (n, generation) in records(&self.index, self.rig.store.capacity_chunks()) {
            if generation > self.before && self.unwritten.remove(&n) {
                writeln!(lines, "written {n}").unwrap();
            }
        }
        lines
    }
}

/// Chunk and generation of each record in an index of so many slots.
fn records(index: &File, capacity: u32) -> impl Iterator<Item = (u64, u64)> {
    let mut bytes = vec![0; capacity as usize * RECORD_BYTES];
    index.read_exact_at(&mut bytes, RECORDS_START).unwrap();
    let chunks: Vec<_> =
        bytes.chunks_exact(RECORD_BYTES).filter(|record| record[0] == 1).map(chunk_of).collect();
    chunks.into_iter()
}

fn chunk_of(record: &[u8]) -> (u64, u64) {
    let key = OffloadKey::from_bytes(record[8..44].try_into().unwrap());
    (number(&key), u64::from_le_bytes(record[48..56].try_into().unwrap()))
}
