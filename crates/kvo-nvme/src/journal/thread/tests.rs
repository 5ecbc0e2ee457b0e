//! Journals on files in memory that log each call and fail when told to, and on real ones.

use std::{
    cell::Cell,
    collections::VecDeque,
    sync::{Mutex, MutexGuard, PoisonError},
};

use kvo_core::{BlockHash, GroupIdx, OffloadKey};

use super::*;
use crate::{
    file::ChunkFile,
    files,
    format::{
        RECORD_BYTES, Record, StoreId, StoreState, Superblock, encode_order, index_bytes, order_start,
        order_sum, record_start,
    },
    recovery::recover,
};

const NUM_SLOTS: u32 = 100;
/// Longer than any test: a record that is waited for so long is one that was forgotten.
const FOREVER: Duration = Duration::from_mins(1);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Call {
    /// Offset and bytes.
    Write(u64, usize),
    SyncIndex,
    SyncData(usize),
}

#[derive(Clone, Copy, Debug)]
enum Answer {
    Go,
    /// Writes so few bytes.
    Short(usize),
    Fail(i32),
    Panic,
}

const EIO: i32 = 5;
const EAGAIN: i32 = 11;
const EINTR: i32 = 4;
const ENOSPC: i32 = 28;

/// The index and two data files.
struct Disk {
    state: Mutex<State>,
    /// Held while a test wants I/O to hang.
    gate: Mutex<()>,
}

#[derive(Default)]
struct State {
    index: Vec<u8>,
    calls: Vec<Call>,
    /// To the next calls; afterwards all succeed.
    answers: VecDeque<Answer>,
}

impl Disk {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn answer(&self, call: Call) -> io::Result<usize> {
        drop(self.gate.lock().unwrap());
        let mut state = self.state();
        state.calls.push(call);
        let len = if let Call::Write(_, len) = call { len } else { 0 };
        match state.answers.pop_front().unwrap_or(Answer::Go) {
            Answer::Go => Ok(len),
            Answer::Short(count) => Ok(count),
            Answer::Fail(errno) => Err(io::Error::from_raw_os_error(errno)),
            Answer::Panic => panic!("this panic belongs to the test"),
        }
    }
}

/// One of the files: the index, or the data of a device.
struct Part(Arc<Disk>, Option<usize>);

impl ChunkFile for Part {
    fn read_at(&self, _: &mut [u8], _: u64) -> io::Result<usize> {
        panic!("a journal reads nothing")
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<usize> {
        assert_eq!(self.1, None, "a journal writes the index only");
        let count = self.0.answer(Call::Write(offset, bytes.len()))?;
        let at = usize::try_from(offset).unwrap();
        self.0.state().index[at..at + count].copy_from_slice(&bytes[..count]);
        Ok(count)
    }
}

impl StableFile for Part {
    fn sync(&self) -> io::Result<()> {
        self.0.answer(self.1.map_or(Call::SyncIndex, Call::SyncData)).map(|_| ())
    }
}

struct Rig {
    disk: Arc<Disk>,
    journal: FileJournal,
    events: Receiver<Event>,
    /// Whether it was said that nothing is recorded any more.
    was_lost: Cell<bool>,
    /// How often it was said that records could not be written.
    num_failed: Cell<u32>,
}

impl Rig {
    /// A journal that writes what has come when nothing more does.
    fn new(durable: bool) -> Self {
        Self::at(Pace { entries: 1, wait: FOREVER }, durable)
    }

    fn at(pace: Pace, durable: bool) -> Self {
        let (disk, writer) = writer(durable);
        let (sender, events) = crossbeam_channel::unbounded();
        Self {
            disk,
            journal: FileJournal::start_at("journal", pace, writer, sender).unwrap(),
            events,
            was_lost: Cell::new(false),
            num_failed: Cell::new(0),
        }
    }

    fn plan(&self, answers: impl IntoIterator<Item = Answer>) {
        self.disk.state().answers.extend(answers);
    }

    /// Puts records while the disk hangs.
    fn put(&mut self, slots: &[u32], generation: u64) {
        let gate = self.disk.gate.lock().unwrap();
        for &slot in slots {
            self.journal.put(entry(slot, generation));
        }
        drop(gate);
    }

    /// The next event: slot, generation, number of the error.
    #[track_caller]
    fn event(&self) -> (u32, u64, Option<i32>) {
        loop {
            match self.events.recv_timeout(FOREVER).expect("an event comes") {
                Event::Recorded { slot, generation, result } => {
                    return (slot, generation, result.err().map(|error| error.raw_os_error().unwrap_or(0)));
                }
                // Comes before the records that it costs, once.
                Event::JournalLost(_) => assert!(!self.was_lost.replace(true)),
                Event::IndexFailed(_) => self.num_failed.set(self.num_failed.get() + 1),
                Event::Moved(done) => panic!("{done:?}"),
            }
        }
    }

    /// Waits until the thread has taken all records that were put.
    #[track_caller]
    fn wait_until_taken(&self) {
        let (start, messages) = (Instant::now(), self.journal.messages.as_ref().unwrap());
        while !messages.is_empty() {
            assert!(start.elapsed() < FOREVER, "{} are not taken", messages.len());
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// Waits until so many calls were made; all of them.
    #[track_caller]
    fn calls(&self, count: usize) -> Vec<Call> {
        let start = Instant::now();
        while self.disk.state().calls.len() < count {
            assert!(start.elapsed() < FOREVER, "{:?}", self.disk.state().calls);
            thread::sleep(Duration::from_millis(1));
        }
        self.disk.state().calls.clone()
    }

    fn recovered(&self) -> Vec<(u32, u64)> {
        let state = self.disk.state();
        let start = usize::try_from(record_start(0)).unwrap();
        let recovered = recover(&superblock(), &state.index[start..], None);
        assert_eq!(recovered.report.damaged_records, 0);
        let mut chunks: Vec<_> =
            recovered.chunks.iter().map(|entry| (entry.slot, generation(entry))).collect();
        chunks.sort_unstable();
        chunks
    }
}

fn writer(durable: bool) -> (Arc<Disk>, Writer) {
    let index = vec![0; usize::try_from(index_bytes(NUM_SLOTS)).unwrap()];
    let state = Mutex::new(State { index, ..State::default() });
    let disk = Arc::new(Disk { state, gate: Mutex::new(()) });
    let data = [0, 1].map(|device| Arc::new(Part(disk.clone(), Some(device))) as _);
    let index = Box::new(Part(disk.clone(), None));
    (disk, Writer::new(index, (superblock(), 0), data.to_vec(), durable))
}

fn superblock() -> Superblock {
    Superblock {
        id: StoreId([7; 16]),
        sequence: 1,
        epoch: 1,
        chunk_bytes: 4096,
        stride_bytes: 4096,
        num_slots: NUM_SLOTS,
        asked_slots: NUM_SLOTS,
        num_devices: 2,
        checksum_kind: 1,
        state: StoreState::Open,
        fingerprint: [0; 32],
        created_s: 0,
        written_bytes: 0,
        order_slots: 0,
        order_sum: 0,
    }
}

/// A record for `slot`; its key is its own.
fn entry(slot: u32, generation: u64) -> Entry {
    let state = RecordState::Chunk(Record {
        key: OffloadKey::new(BlockHash::from_u64(slot.into()), GroupIdx(0)),
        length: 4096,
        generation,
        checksum: 0,
        run: 0,
        end_token: None,
    });
    Entry { slot, state }
}

fn generation(entry: &Entry) -> u64 {
    match entry.state {
        RecordState::Chunk(record) => record.generation,
        RecordState::Quarantined => panic!("{entry:?}"),
    }
}

fn write(slot: u32, records: usize) -> Call {
    Call::Write(record_start(slot), records * RECORD_BYTES)
}

#[test]
fn neighbours_are_written_in_one_piece_and_the_newest_counts() {
    let mut rig = Rig::at(Pace { entries: 6, wait: FOREVER }, false);
    for (slot, generation) in [(5, 1), (9, 2), (4, 3), (5, 4), (6, 5), (5, 6)] {
        rig.journal.put(entry(slot, generation));
    }
    assert_eq!(rig.calls(2), [write(4, 3), write(9, 1)]);
    rig.journal.close(&[], 0).unwrap();
    assert_eq!(rig.recovered(), [(4, 3), (5, 6), (6, 5), (9, 2)]);
    assert!(rig.events.is_empty(), "only failures are told");
}

#[test]
fn a_batch_waits_until_it_is_large_enough() {
    let mut rig = Rig::at(Pace { entries: 3, wait: FOREVER }, false);
    rig.journal.put(entry(0, 1));
    rig.journal.put(entry(1, 2));
    // One that did not wait would write these two.
    rig.wait_until_taken();
    rig.journal.put(entry(2, 3));
    assert_eq!(rig.calls(1), [write(0, 3)]);
}

#[test]
fn a_batch_does_not_wait_for_ever() {
    let mut rig = Rig::at(Pace { entries: 1000, wait: Duration::from_millis(20) }, false);
    let start = Instant::now();
    rig.journal.put(entry(3, 1));
    assert_eq!(rig.calls(1), [write(3, 1)]);
    assert!(start.elapsed() >= Duration::from_millis(20));
}

#[test]
fn a_durable_record_comes_after_its_payload_and_before_its_event() {
    let mut rig = Rig::new(true);
    rig.journal.put(entry(3, 1));
    assert_eq!(rig.event(), (3, 1, None));
    assert_eq!(rig.calls(3), [Call::SyncData(1), write(3, 1), Call::SyncIndex]);
}

#[test]
fn durable_records_that_wait_share_their_syncs() {
    let mut rig = Rig::new(true);
    let gate = rig.disk.gate.lock().unwrap();
    rig.journal.put(entry(0, 1));
    // The thread hangs in its first sync, or is about to begin it.
    rig.wait_until_taken();
    for slot in 1..50 {
        rig.journal.put(entry(slot, u64::from(slot) + 1));
    }
    drop(gate);
    for slot in 0..50 {
        assert_eq!(rig.event(), (slot, u64::from(slot) + 1, None));
    }
    let calls = rig.calls(0);
    let syncs = calls.iter().filter(|call| **call == Call::SyncIndex).count();
    assert!(syncs <= 2, "{calls:?}");
}

#[test]
fn each_durable_record_is_told_even_if_a_newer_one_took_its_place() {
    let mut rig = Rig::new(true);
    rig.put(&[4, 4, 4], 1);
    for _ in 0..3 {
        assert_eq!(rig.event(), (4, 1, None));
    }
}

#[test]
fn a_record_that_cannot_be_written_is_told_alone() {
    for errno in [EIO, ENOSPC] {
        let mut rig = Rig::at(Pace { entries: 3, wait: FOREVER }, false);
        // Two pieces, the second one fails.
        rig.plan([Answer::Go, Answer::Fail(errno)]);
        rig.put(&[0, 1, 7], 1);
        assert_eq!(rig.event(), (7, 1, Some(errno)));
        rig.put(&[8, 9, 10], 2);
        assert_eq!(rig.calls(3)[2], write(8, 3));
        let error = rig.journal.close(&[], 0).unwrap_err();
        assert_eq!(error.kind(), io::Error::from_raw_os_error(errno).kind());
        assert!(rig.events.is_empty());
        assert_eq!(rig.recovered(), [(0, 1), (1, 1), (8, 2), (9, 2), (10, 2)]);
        assert_eq!(rig.disk.state().index[4096..8192], [0; 4096], "no superblock says clean");
    }
}

#[test]
fn a_durable_record_that_cannot_be_written_is_told_alone() {
    let (disk, mut writer) = writer(true);
    disk.state().answers.extend([Answer::Go, Answer::Go, Answer::Go, Answer::Fail(ENOSPC)]);
    let outcome = writer.write(&[entry(0, 1), entry(1, 1), entry(7, 1)]);
    let errors = [0, 1, 7].map(|slot| outcome.of(slot).err().and_then(|error| error.raw_os_error()));
    assert_eq!(errors, [None, None, Some(ENOSPC)]);
    let calls = [Call::SyncData(0), Call::SyncData(1), write(0, 2), write(7, 1), Call::SyncIndex];
    assert_eq!(disk.state().calls, calls);
    assert!(matches!(writer.write(&[entry(7, 2)]), Outcome::Written));
    writer.close(&[], 0).unwrap_err();
}

#[test]
fn short_and_interrupted_writes_go_on() {
    let mut rig = Rig::at(Pace { entries: 2, wait: FOREVER }, false);
    let troubles = [
        Answer::Short(100),
        Answer::Fail(EINTR),
        Answer::Fail(EAGAIN),
        Answer::Short(1),
        Answer::Fail(EAGAIN),
    ];
    rig.plan(troubles);
    rig.put(&[2, 3], 9);
    assert_eq!(rig.calls(6)[5], Call::Write(record_start(2) + 101, 2 * RECORD_BYTES - 101));
    rig.journal.close(&[], 0).unwrap();
    assert_eq!(rig.recovered(), [(2, 9), (3, 9)]);
}

#[test]
fn a_write_that_makes_no_progress_is_given_up() {
    for trouble in [Answer::Fail(EAGAIN), Answer::Fail(EINTR), Answer::Short(0)] {
        let mut rig = Rig::new(false);
        rig.plan([trouble; 20]);
        rig.put(&[2], 9);
        assert!(rig.event().2.is_some());
        let calls = rig.calls(0).len();
        assert!(calls <= 10, "{calls} calls");
    }
}

#[test]
fn after_a_failed_sync_nothing_durable_is_trusted() {
    // The data's sync, and the index's.
    for good in [0, 2] {
        let mut rig = Rig::new(true);
        rig.plan([Answer::Go; 2].into_iter().take(good));
        rig.plan([Answer::Fail(EIO)]);
        rig.put(&[0], 1);
        assert_eq!(rig.event(), (0, 1, Some(EIO)));
        let calls = rig.calls(good + 1).len();
        for slot in 1..4 {
            rig.put(&[slot], 2);
            assert!(rig.event().2.is_some());
        }
        rig.journal.close(&[0], 0).unwrap_err();
        assert_eq!(rig.calls(0).len(), calls, "it goes on as if nothing had happened");
    }
}

#[test]
fn a_batch_that_cannot_be_written_is_one_error_and_each_kind_is_told() {
    for durable in [false, true] {
        let pace = Pace { entries: 4, wait: FOREVER };
        let mut rig = Rig::at(pace, durable);
        if durable {
            rig.plan([Answer::Go]);
        }
        rig.plan([Answer::Fail(EIO), Answer::Fail(EIO), Answer::Fail(ENOSPC), Answer::Fail(EIO)]);
        // No two are neighbours, so that each is a write of its own.
        rig.put(&[0, 2, 4, 6], 1);
        let failed = [(0, 1, Some(EIO)), (2, 1, Some(EIO)), (4, 1, Some(ENOSPC)), (6, 1, Some(EIO))];
        assert_eq!([0; 4].map(|_| rig.event()), failed);
        assert_eq!((rig.num_failed.get(), rig.was_lost.get()), (2, false));
    }
}

/// B40: the bytes are safe before their record is.
#[test]
fn a_record_is_not_written_before_its_payload_is_safe() {
    let mut rig = Rig::new(true);
    rig.plan([Answer::Fail(EIO)]);
    rig.put(&[0], 1);
    assert!(rig.event().2.is_some());
    assert_eq!(rig.calls(1), [Call::SyncData(0)]);
}

#[test]
fn a_close_sees_all_to_the_device_before_it_says_so() {
    let mut rig = Rig::at(Pace { entries: 1000, wait: FOREVER }, false);
    rig.journal.put(entry(1, 1));
    rig.journal.put(entry(2, 2));
    rig.journal.close(&[2, 1], 77).unwrap();
    let expected = [
        write(1, 2),
        Call::SyncData(0),
        Call::SyncData(1),
        Call::SyncIndex,
        Call::Write(order_start(NUM_SLOTS), 8),
        Call::SyncIndex,
        // The first block has the superblock of the opening.
        Call::Write(4096, 4096),
        Call::SyncIndex,
    ];
    assert_eq!(rig.calls(8), expected);
    let state = rig.disk.state();
    let clean = Superblock::decode(state.index[4096..8192].try_into().unwrap()).unwrap();
    let order = encode_order(&[2, 1]);
    let expected = Superblock {
        sequence: 2,
        state: StoreState::Clean,
        order_slots: 2,
        order_sum: order_sum(&order),
        written_bytes: 77,
        ..superblock()
    };
    assert_eq!(clean, expected);
    let at = usize::try_from(order_start(NUM_SLOTS)).unwrap();
    assert_eq!(state.index[at..at + 8], order);
}

#[test]
fn a_close_that_fails_at_any_call_does_not_say_clean_or_says_so_truly() {
    for good in 0..8 {
        let mut rig = Rig::at(Pace { entries: 1000, wait: FOREVER }, false);
        rig.journal.put(entry(1, 1));
        rig.plan((0..good).map(|_| Answer::Go));
        rig.plan([Answer::Fail(EIO)]);
        rig.journal.close(&[1], 0).unwrap_err();
        let state = rig.disk.state();
        // Only the last sync comes after the superblock: then all that it says is on the device.
        let is_written = Superblock::decode(state.index[4096..8192].try_into().unwrap()).is_ok();
        assert_eq!(is_written, good == 7, "call {good}");
    }
}

#[test]
fn a_journal_that_is_closed_takes_nothing() {
    let mut rig = Rig::new(false);
    rig.journal.close(&[], 0).unwrap();
    let calls = rig.calls(0).len();
    rig.journal.put(entry(1, 1));
    assert!(matches!(rig.event(), (1, 1, Some(_))));
    rig.journal.close(&[], 0).unwrap_err();
    assert_eq!(rig.calls(0).len(), calls);
}

#[test]
fn a_journal_that_is_dropped_writes_what_it_has() {
    let mut rig = Rig::at(Pace { entries: 1000, wait: FOREVER }, false);
    rig.journal.put(entry(1, 1));
    rig.journal.put(entry(3, 2));
    let Rig { disk, journal, .. } = rig;
    drop(journal);
    assert_eq!(disk.state().calls, [write(1, 1), write(3, 1)]);
}

/// B64: a thread that dies says so, and with every record that comes.
#[test]
fn a_panic_fails_its_batch_and_all_that_follow() {
    for durable in [false, true] {
        let mut rig = Rig::new(durable);
        rig.plan([Answer::Panic]);
        for slot in 0..3 {
            rig.journal.put(entry(slot, 1));
        }
        for slot in 0..3 {
            assert_eq!(rig.event(), (slot, 1, Some(0)));
        }
        rig.journal.close(&[], 0).unwrap_err();
    }
}

#[test]
fn a_put_does_not_wait_for_a_disk_that_hangs() {
    let mut rig = Rig::new(false);
    let gate = rig.disk.gate.lock().unwrap();
    for generation in 0..10_000 {
        rig.journal.put(entry(u32::try_from(generation % 90).unwrap(), generation));
    }
    drop(gate);
    rig.journal.close(&[], 0).unwrap();
    let recovered = rig.recovered();
    assert_eq!(recovered.len(), 90);
    assert!(recovered.iter().all(|&(_, generation)| generation >= 10_000 - 90), "the last one of each slot");
}

#[test]
fn a_close_does_not_wait_for_ever_for_a_disk_that_hangs() {
    let mut rig = Rig::new(true);
    rig.journal.patience = Duration::from_millis(50);
    let gate = rig.disk.gate.lock().unwrap();
    rig.journal.put(entry(1, 1));
    let error = rig.journal.close(&[1], 0).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    drop(gate);
}

#[test]
fn a_drop_does_not_wait_for_ever_for_a_disk_that_hangs() {
    let mut rig = Rig::new(true);
    rig.journal.patience = Duration::from_millis(50);
    let gate = rig.disk.gate.lock().unwrap();
    rig.journal.put(entry(1, 1));
    let Rig { disk: _, journal, events, .. } = rig;
    drop(journal);
    drop(gate);
    // It goes on by itself once it can.
    assert!(matches!(events.recv_timeout(FOREVER), Ok(Event::Recorded { slot: 1, result: Ok(()), .. })));
}

#[test]
fn broken_slots_are_recorded_without_an_event() {
    let mut rig = Rig::new(true);
    rig.journal.put(Entry { slot: 1, state: RecordState::Quarantined });
    rig.journal.put(entry(2, 1));
    assert_eq!(rig.event(), (2, 1, None));
    assert!(rig.events.is_empty());
}

/// Opens a real store and starts its journal.
fn real(options: &NvmeOptions) -> (FileJournal, crate::journal::Recovered) {
    let files = files::open(options, options.geometry(None).unwrap(), false).unwrap();
    let data = files.data.into_iter().map(|data| Arc::new(data.file) as _).collect();
    let (sender, _) = crossbeam_channel::unbounded();
    (FileJournal::start(files.index, data, options, sender).unwrap(), files.recovered)
}

#[test]
fn what_is_closed_is_there_again_in_its_order() {
    let dir = tempfile::tempdir().unwrap();
    for durable in [false, true] {
        let options = NvmeOptions {
            durable,
            if_other: crate::IfOther::Empty,
            fingerprint: [u8::from(durable); 32],
            ..NvmeOptions::new(dir.path(), 50, 4096)
        };
        let (mut journal, recovered) = real(&options);
        assert_eq!(recovered.report, crate::RecoveryReport::default());
        let entries: Vec<_> = [7, 3, 40].map(|slot| entry(slot, (1 << 40) + u64::from(slot))).into();
        for entry in &entries {
            journal.put(*entry);
        }
        journal.put(Entry { slot: 9, state: RecordState::Quarantined });
        journal.close(&[7, 3, 40], 12).unwrap();
        // The lock is given back by then.
        let (journal, recovered) = real(&options);
        assert!(recovered.report.clean);
        assert_eq!((recovered.chunks, recovered.quarantined), (entries.clone(), vec![9]));
        drop(journal);
        let (_, recovered) = real(&options);
        assert!(!recovered.report.clean);
        assert_eq!(recovered.chunks.len(), 3);
    }
}

/// How often the thread of this name went to sleep.
fn sleeps(name: &str) -> Option<u64> {
    std::fs::read_dir("/proc/self/task").ok()?.flatten().find_map(|task| {
        let read = |file| std::fs::read_to_string(task.path().join(file)).ok();
        let status = read("status")?;
        let count = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"))?;
        (read("comm")?.trim() == name).then(|| count.trim().parse().ok())?
    })
}

#[test]
fn an_idle_journal_sleeps() {
    let (_disk, writer) = writer(false);
    let pace = Pace { entries: 32, wait: Duration::from_millis(10) };
    let (sender, _events) = crossbeam_channel::unbounded();
    let mut journal = FileJournal::start_at("idle-journal", pace, writer, sender).unwrap();
    journal.put(entry(1, 1));
    let (start, mut before) = (Instant::now(), None);
    loop {
        let Some(count) = sleeps("idle-journal") else {
            eprintln!("SKIPPED: the system does not count how often a thread sleeps");
            return;
        };
        if before.replace(count) == Some(count) {
            break;
        }
        // It may have had something to do until now, but does not for ever.
        assert!(start.elapsed() < FOREVER, "it woke {count} times");
        // Fifty times as long as it waits while there is something to write.
        thread::sleep(Duration::from_millis(500));
    }
}

/// B65: an end takes no longer than it may.
#[test]
fn a_close_gives_a_disk_that_hangs_up_and_leaves_it_the_file() {
    let mut rig = Rig::new(false);
    rig.journal.patience = Duration::from_millis(50);
    let disk = Arc::clone(&rig.disk);
    let gate = disk.gate.lock().unwrap();
    rig.journal.put(entry(1, 7));
    let error = rig.journal.close(&[], 0).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    let start = Instant::now();
    drop(rig);
    assert!(start.elapsed() < FOREVER, "a drop after it waits for nothing");
    drop(gate);
}
