//! What the index is told, and what is taken over from it.

use std::{
    fs::File,
    io,
    sync::{Arc, Mutex},
    time::Duration,
};

use crossbeam_channel::Sender;
use kvo_core::{EventKind, SecondaryTier, TierCompletion};
use kvo_policies::PolicyKind;

use super::{CHUNK_BYTES, Rig, Trouble, key, keys};
use crate::{
    Admission, AdmissionRule, BreakerOptions, ChunkError, CloseError, NvmeOptions, TierState,
    checksum::checksum,
    create_store,
    engine::Event,
    file::StableFile,
    files,
    format::{Record, RecordState},
    journal::{Entry, FileJournal, Journal, Recovered},
};

/// What a journal was told, for a test to look at.
#[derive(Debug, Default)]
struct Told {
    entries: Vec<Entry>,
    order: Option<Vec<u32>>,
    fails: bool,
}

struct Listener {
    told: Arc<Mutex<Told>>,
}

impl Journal for Listener {
    fn put(&mut self, entry: Entry) {
        self.told.lock().unwrap().entries.push(entry);
    }

    fn close(&mut self, order: &[u32], _: u64) -> io::Result<()> {
        let mut told = self.told.lock().unwrap();
        told.order = Some(order.to_vec());
        if told.fails { Err(io::Error::from_raw_os_error(5)) } else { Ok(()) }
    }
}

struct Heard {
    rig: Rig,
    told: Arc<Mutex<Told>>,
    events: Sender<Event>,
}

fn rig(options: NvmeOptions, recovered: Recovered) -> Heard {
    let told = Arc::<Mutex<Told>>::default();
    let mut to_store = None;
    let rig = Rig::with_journal(options, recovered, |events| {
        to_store = Some(events);
        Box::new(Listener { told: told.clone() })
    });
    Heard { rig, told, events: to_store.unwrap() }
}

fn options(capacity: u32, durable: bool) -> NvmeOptions {
    NvmeOptions { durable, ..NvmeOptions::new("unused", capacity, CHUNK_BYTES as u64) }
}

fn chunk(entry: &Entry) -> Record {
    let RecordState::Chunk(record) = entry.state else { panic!("{entry:?}") };
    record
}

#[test]
fn each_chunk_that_is_written_is_recorded_with_its_request_and_place() {
    let Heard { mut rig, told, .. } = rig(options(4, false), Recovered::default());
    rig.announce(7);
    rig.put(7, &[1, 2]);
    rig.put(7, &[3]);
    rig.put(8, &[4]);
    let records: Vec<Record> = told.lock().unwrap().entries.iter().map(chunk).collect();
    assert_eq!(records.iter().map(|record| record.key).collect::<Vec<_>>(), keys(1..5));
    assert_eq!(records.iter().map(|record| record.end_token).collect::<Vec<_>>(), [16, 32, 48, 64].map(Some));
    assert!(
        records.iter().all(|record| record.length as usize == CHUNK_BYTES && record.generation >> 40 == 1)
    );
    let run = |n: usize| records[n].run;
    assert!(run(0) == run(1) && run(1) == run(2) && run(2) != run(3));
    assert_eq!(rig.store.stats().records, 4);
}

#[test]
fn a_slot_that_failed_is_recorded_and_stays_out_of_use() {
    let Heard { mut rig, told, .. } = rig(options(2, false), Recovered::default());
    let job = rig.write(1, &[1]);
    rig.run_all(&[(1, Trouble::Eio)]);
    assert_eq!(rig.poll(), [TierCompletion::except(job, keys([1]))]);
    let entries = told.lock().unwrap().entries.clone();
    assert_eq!(entries.len(), 2);
    assert!(entries.iter().all(|entry| entry.state == RecordState::Quarantined));
    let slots = [entries[0].slot, entries[1].slot];
    drop(rig);

    let recovered = Recovered { quarantined: slots.to_vec(), ..Recovered::default() };
    let Heard { rig, .. } = self::rig(options(4, false), recovered);
    rig.store.assert_consistent();
    assert_eq!((rig.store.counts().quarantined, rig.store.counts().free), (2, 2));
}

#[test]
fn a_durable_write_is_reported_when_its_record_is_safe() {
    let Heard { mut rig, told, events } = rig(options(4, true), Recovered::default());
    let first = rig.write(1, &[1]);
    let second = rig.write(2, &[1]);
    rig.run_all(&[]);
    assert_eq!(rig.poll(), [], "the record is on its way");
    rig.check_resident(0..2, &[]);
    let entry = told.lock().unwrap().entries[0];
    let (slot, generation) = (entry.slot, chunk(&entry).generation);
    events.send(Event::Recorded { slot, generation, result: Ok(()) }).unwrap();
    assert_eq!(rig.poll(), [first, second].map(TierCompletion::done));
    rig.get(3, &[1], &[]);
}

/// B40: whoever has been told of a chunk can read it, and nobody is told, or finds it, before.
#[test]
fn a_chunk_is_announced_once_it_can_be_read_and_not_before() {
    for is_durable in [false, true] {
        let options = NvmeOptions { record_events: true, ..options(4, is_durable) };
        let Heard { mut rig, told, events } = rig(options, Recovered::default());
        let is_nowhere = |rig: &mut Rig| {
            rig.check_resident(0..2, &[]);
            assert_eq!(rig.events(), [], "durable: {is_durable}");
        };
        let job = rig.write(1, &[1]);
        is_nowhere(&mut rig);
        let op = rig.next_op().unwrap();
        rig.run(op, Trouble::None);
        is_nowhere(&mut rig);
        if is_durable {
            assert_eq!(rig.poll(), [], "its record is on its way");
            is_nowhere(&mut rig);
            let entry = told.lock().unwrap().entries[0];
            let generation = chunk(&entry).generation;
            events.send(Event::Recorded { slot: entry.slot, generation, result: Ok(()) }).unwrap();
            is_nowhere(&mut rig);
        }
        assert_eq!(rig.poll(), [TierCompletion::done(job)]);
        assert_eq!(rig.events(), [(EventKind::Stored, keys([1]))]);
        rig.get(2, &[1], &[]);
    }
}

/// B40: what could not be recorded was announced to nobody, has left its room, and can come again.
#[test]
fn a_durable_write_whose_record_fails_is_failed() {
    let options = NvmeOptions { record_events: true, ..options(4, true) };
    let Heard { mut rig, told, events } = rig(options, Recovered::default());
    for (nth, is_safe) in [false, true].into_iter().enumerate() {
        let job = rig.write(1, &[1]);
        rig.run_all(&[]);
        assert_eq!(rig.poll(), []);
        let entry = told.lock().unwrap().entries[nth];
        let (slot, generation) = (entry.slot, chunk(&entry).generation);
        let result = if is_safe { Ok(()) } else { Err(io::Error::from_raw_os_error(5)) };
        events.send(Event::Recorded { slot, generation, result }).unwrap();
        let (failed, told) =
            if is_safe { (vec![], vec![(EventKind::Stored, keys([1]))]) } else { (keys([1]), vec![]) };
        assert_eq!(rig.poll(), [TierCompletion::except(job, failed)]);
        assert_eq!(rig.events(), told);
        let stats = rig.store.stats();
        let expected = (1, 4 - u32::from(is_safe), 0);
        assert_eq!((stats.record_errors, stats.counts.free, stats.counts.quarantined), expected);
    }
    rig.get(2, &[1], &[]);
}

/// B49: of a sync that fails nothing is believed, and what is there can still be read.
#[test]
fn a_failed_sync_is_one_error_however_many_records_it_costs() {
    let Heard { mut rig, told, events } = rig(options(32, true), Recovered::default());
    let ns: Vec<u64> = (1..=20).collect();
    let first = rig.write(1, &[30]);
    rig.run_all(&[]);
    assert_eq!(rig.poll(), []);
    events.send(Event::Recorded { slot: 0, generation: 1 << 40, result: Ok(()) }).unwrap();
    assert_eq!(rig.poll(), [TierCompletion::done(first)]);

    let job = rig.write(1, &ns);
    rig.run_all(&[]);
    assert_eq!(rig.poll(), []);
    let eio = || io::Error::from_raw_os_error(5);
    events.send(Event::JournalLost(eio())).unwrap();
    for entry in &told.lock().unwrap().entries[1..] {
        let generation = chunk(entry).generation;
        events.send(Event::Recorded { slot: entry.slot, generation, result: Err(eio()) }).unwrap();
    }
    assert_eq!(rig.poll(), [TierCompletion::except(job, keys(ns))]);
    assert_eq!((rig.store.state(), rig.store.stats().record_errors), (TierState::ReadOnly, 20));
    rig.get(2, &[30], &[]);
}

#[test]
fn a_batch_of_records_that_fails_is_one_error_of_the_device() {
    let breaker = BreakerOptions { errors: 3, ..BreakerOptions::default() };
    let options = NvmeOptions { breaker, ..options(32, false) };
    let Heard { mut rig, told, events } = rig(options, Recovered::default());
    rig.put(1, &(1..=20).collect::<Vec<u64>>());
    let eio = || io::Error::from_raw_os_error(5);
    for batch in told.lock().unwrap().entries.chunks(10) {
        events.send(Event::IndexFailed(eio())).unwrap();
        for entry in batch {
            let generation = chunk(entry).generation;
            events.send(Event::Recorded { slot: entry.slot, generation, result: Err(eio()) }).unwrap();
        }
    }
    assert_eq!(rig.poll(), []);
    let stats = rig.store.stats();
    assert_eq!((rig.store.state(), stats.record_errors), (TierState::Up, 20));
    events.send(Event::IndexFailed(eio())).unwrap();
    assert_eq!(rig.poll(), []);
    assert_eq!(rig.store.state(), TierState::Open, "the third");
}

#[test]
fn a_durable_chunk_whose_record_does_not_come_is_late_and_there_when_it_does() {
    let options = NvmeOptions { deadline: Duration::from_millis(20), ..options(4, true) };
    let Heard { mut rig, told, events } = rig(options, Recovered::default());
    let bytes = vec![3; CHUNK_BYTES];
    let error = rig.store.write_chunk(key(1), &bytes).unwrap_err();
    assert!(matches!(&error, ChunkError::Write(error) if error.kind() == io::ErrorKind::TimedOut), "{error}");
    assert!(matches!(rig.store.write_chunk(key(1), &bytes), Err(ChunkError::Pending)));
    assert!(!rig.store.read_chunk(&key(1), &mut bytes.clone()).unwrap());
    rig.store.assert_consistent();

    let entry = told.lock().unwrap().entries[0];
    let generation = chunk(&entry).generation;
    events.send(Event::Recorded { slot: entry.slot, generation, result: Ok(()) }).unwrap();
    assert!(rig.store.read_chunk(&key(1), &mut bytes.clone()).unwrap());
}

/// A job that waits for a direct write ends with its record, as that does, and with no later write into its slot.
#[test]
fn a_job_that_waits_for_a_late_record_of_a_direct_write_ends_with_it() {
    for is_safe in [true, false] {
        let options = NvmeOptions { deadline: Duration::from_millis(20), ..options(1, true) };
        let Heard { mut rig, told, events } = rig(options, Recovered::default());
        rig.store.write_chunk(key(1), &[3; CHUNK_BYTES]).unwrap_err();
        let job = rig.write(1, &[1]);
        assert_eq!(rig.poll(), [], "nobody knows yet");

        let entry = told.lock().unwrap().entries[0];
        let (slot, generation) = (entry.slot, chunk(&entry).generation);
        let result = if is_safe { Ok(()) } else { Err(io::Error::from_raw_os_error(5)) };
        events.send(Event::Recorded { slot, generation, result }).unwrap();
        let failed = if is_safe { vec![] } else { keys([1]) };
        assert_eq!(rig.poll(), [TierCompletion::except(job, failed)], "safe: {is_safe}");
        rig.check_resident(0..2, if is_safe { &[1] } else { &[] });
    }
}

#[test]
fn without_durability_a_failed_record_costs_nothing_now() {
    let Heard { mut rig, events, .. } = rig(options(4, false), Recovered::default());
    rig.put(1, &[1]);
    let result = Err(io::Error::from_raw_os_error(28));
    events.send(Event::Recorded { slot: 0, generation: 1 << 40, result }).unwrap();
    assert_eq!(rig.poll(), []);
    rig.get(1, &[1], &[]);
    assert_eq!(rig.store.stats().record_errors, 1);
}

/// Chunks `ns` as if recovered in this order, the next to be evicted first.
fn recovered(ns: &[u64]) -> Recovered {
    let chunks = ns.iter().zip(0..).map(|(&n, slot)| Entry {
        slot,
        state: RecordState::Chunk(Record {
            key: key(n),
            length: u32::try_from(CHUNK_BYTES).unwrap(),
            generation: n,
            checksum: 0,
            run: 1,
            end_token: None,
        }),
    });
    Recovered { chunks: chunks.collect(), ..Recovered::default() }
}

/// B04: what was there before is older than what comes, in the order that it had.
#[test]
fn chunks_that_were_recovered_are_there_and_go_in_their_order() {
    for policy in ["lru", "arc", "slru", "aslru", "ylru", "s3fifo", "fifo"] {
        let policy: PolicyKind = policy.parse().unwrap();
        let ns = [5, 3, 9, 1, 7];
        let options = NvmeOptions { policy, record_events: true, ..options(5, false) };
        let Heard { mut rig, .. } = rig(options, recovered(&ns));
        rig.store.assert_consistent();
        rig.check_resident(0..10, &[1, 3, 5, 7, 9]);
        assert_eq!(rig.events(), [], "nobody is told of what was there before");
        for evicted in 1..=5 {
            rig.put(1, &[20 + evicted as u64]);
            let mut left = ns[evicted..].to_vec();
            left.sort_unstable();
            rig.check_resident(0..10, &left);
        }
    }
}

#[test]
fn a_store_that_is_closed_hands_its_eviction_order_over() {
    let Heard { mut rig, told, .. } = rig(options(4, false), Recovered::default());
    rig.announce(1);
    rig.put(1, &[1, 2, 3]);
    rig.store.on_request_finished(kvo_core::RequestId(1));
    let slots: Vec<u32> = told.lock().unwrap().entries.iter().map(|entry| entry.slot).collect();
    rig.store.close(Duration::from_secs(1)).unwrap();
    let expected: Vec<u32> = slots.into_iter().rev().collect();
    assert_eq!(told.lock().unwrap().order, Some(expected), "the tail goes first");
}

/// B65: a step that fails is told, and the others are done.
#[test]
fn a_store_whose_index_fails_says_so_when_it_is_closed() {
    let Heard { rig, told, .. } = rig(options(4, false), Recovered::default());
    told.lock().unwrap().fails = true;
    let error = rig.store.close(Duration::from_secs(1)).unwrap_err();
    assert!(matches!(error, CloseError::Index(_)), "{error}");
}

/// B65: and once; the files are those of a store that was not closed.
#[test]
fn a_store_whose_index_fails_says_so_once_when_it_is_shut_down_and_opens_as_after_a_crash() {
    for fails in [true, false] {
        let dir = tempfile::tempdir().unwrap();
        let options = NvmeOptions::new(dir.path(), 4, CHUNK_BYTES as u64);
        drop(create_store(&options).unwrap());
        let open = || files::open(&options, options.geometry(None).unwrap(), false).unwrap();
        let files::OpenFiles { mut index, data, recovered, .. } = open();
        assert!(recovered.report.clean);
        if fails {
            // What may only be read takes no record and no superblock.
            index.file = File::open(&index.path).unwrap();
        }
        let data = data.into_iter().map(|data| Arc::new(data.file) as Arc<dyn StableFile>).collect();
        let journal = |events| -> Box<dyn Journal> {
            Box::new(FileJournal::start(index, data, &options, events).unwrap())
        };
        let mut rig = Rig::with_journal(options.clone(), Recovered::default(), journal);
        rig.put(1, &[1]);
        let first = rig.store.shut_down(Duration::from_secs(1));
        let is_told = first.is_err_and(|error| matches!(error.downcast_ref(), Some(CloseError::Index(_))));
        assert_eq!(is_told, fails);
        rig.store.shut_down(Duration::from_secs(1)).unwrap();
        drop(rig);
        let report = open().recovered.report;
        assert_eq!((report.clean, report.chunks), (!fails, u32::from(!fails)));
    }
}

#[test]
fn what_was_written_is_counted_over_the_life_of_the_store_and_by_the_day() {
    let mut rig = Rig::new(4);
    rig.put(1, &[1, 2]);
    rig.clock.advance(Duration::from_hours(12));
    let (wear, written) = (rig.store.wear(), 2 * CHUNK_BYTES as u64);
    assert_eq!((wear.written_bytes, wear.written_bytes_in_life), (written, (1 << 30) + written));
    // Half of the capacity in half a day, and slots of 4 KiB for 40 bytes each.
    assert!((wear.drive_writes_per_day - 1.0).abs() < 1e-9, "{wear:?}");
    let expected = 2.0 * (4096.0 + 128.0) / written as f64;
    assert!((wear.write_amplification - expected).abs() < 1e-9, "{wear:?}");
}

/// A store that was killed, with chunk 1, which may have been overwritten.
fn killed(options: NvmeOptions) -> Rig {
    let mut recovered = recovered(&[1]);
    let RecordState::Chunk(record) = &mut recovered.chunks[0].state else { panic!("it is a chunk") };
    record.checksum = checksum(&key(1), record.generation, &[0; CHUNK_BYTES]);
    recovered.report.unproven = 1;
    rig(options, recovered).rig
}

#[test]
fn a_write_of_an_unproven_chunk_waits_for_whoever_reads_it() {
    for trouble in [None, Some((1, Trouble::Eio))] {
        let mut rig = killed(options(4, false));
        let read = rig.read(1, &[1]);
        let write = rig.write(2, &[1]);
        assert!(matches!(rig.store.write_chunk(key(1), &[0; CHUNK_BYTES]), Err(ChunkError::Pending)));
        rig.store.assert_consistent();
        rig.run_all(trouble.as_slice());
        let ended = |job| match trouble {
            None => TierCompletion::done(job),
            Some(_) => TierCompletion::except(job, keys([1])),
        };
        assert_eq!(rig.poll(), [write, read].map(ended));
        rig.store.assert_consistent();
    }
}

#[test]
fn an_unproven_chunk_gives_no_room_to_others_of_its_job() {
    let mut rig = killed(options(2, false));
    rig.put(1, &[2]);
    let read = rig.read(2, &[2]);
    let write = rig.write(3, &[3, 1]);
    assert_eq!(rig.poll(), [TierCompletion::except(write, keys([3, 1]))], "nobody can say that it is whole");
    rig.check_resident(0..4, &[1, 2]);
    rig.run_all(&[]);
    assert_eq!(rig.poll(), [TierCompletion::done(read)]);
    // Where it comes first, it has its own room.
    let read = rig.read(2, &[2]);
    let write = rig.write(3, &[1, 3]);
    rig.run_all(&[]);
    assert_eq!(rig.poll(), [TierCompletion::done(read), TierCompletion::except(write, keys([3]))]);
    rig.get(4, &[1, 2], &[]);
}

#[test]
fn an_unproven_chunk_that_is_not_let_in_again_stays_a_hit() {
    let admission = Admission { rule: AdmissionRule::SecondOffer { keys_max: 8 }, ..Admission::default() };
    let mut rig = killed(NvmeOptions { admission, ..options(4, false) });
    let first = rig.write(2, &[1]);
    assert_eq!(rig.poll(), [TierCompletion::except(first, keys([1]))], "nobody can say that it is whole");
    rig.check_resident(0..2, &[1]);
    assert_eq!(rig.store.stats().chunks_unadmitted, 1);
    let second = rig.write(3, &[1]);
    rig.run_all(&[]);
    assert_eq!(rig.poll(), [TierCompletion::done(second)]);
    rig.store.assert_consistent();
    rig.get(4, &[1], &[]);
}
