//! Real stores on real files that are closed, dropped or left, and opened again.

use std::{path::Path, sync::Arc, time::Duration};

use kvo_core::{
    JobId, RequestContext, RequestId, SecondaryTier, SlotId, TierChunk, TierDirection, TierJob, TierLookup,
};
use kvo_cpu::{HostRegion, RegionOptions};

use super::{content, key};
use crate::{EngineKind, NvmeOptions, NvmeStore};

const BYTES: usize = 16 << 10;
const LONG: Duration = Duration::from_mins(1);
const ENGINES: [EngineKind; 2] = [EngineKind::Threads, EngineKind::Auto];

struct Open {
    store: NvmeStore,
    memory: Arc<HostRegion>,
    jobs: u64,
}

impl Open {
    fn new(options: NvmeOptions) -> Self {
        let region =
            RegionOptions { huge_pages: false, prefault_threads: 0, ..RegionOptions::new(16, BYTES) };
        let memory = Arc::new(HostRegion::anonymous(&region).unwrap());
        let store = NvmeStore::open(options, Arc::clone(&memory) as _).unwrap();
        store.assert_consistent();
        Self { store, memory, jobs: 0 }
    }

    /// Moves chunks by the host slots of the same numbers; returns those that failed.
    fn run(&mut self, req: u64, direction: TierDirection, ns: &[u64]) -> Vec<u64> {
        use kvo_core::{HostMemory, TierOutcome};
        let slot = |n: u64| SlotId(u32::try_from(n % 16).unwrap());
        if direction == TierDirection::Write {
            for &n in ns {
                self.memory
                    .with_write(slot(n), &mut |bytes| bytes.copy_from_slice(&content(n, 0, BYTES)))
                    .unwrap();
            }
        }
        self.jobs += 1;
        let chunks = ns.iter().map(|&n| TierChunk {
            key: key(n),
            slot: slot(n),
            end_token: Some(u32::try_from(n * 16).unwrap()),
        });
        let job = TierJob { id: JobId(self.jobs), req: RequestId(req), direction, chunks: chunks.collect() };
        self.store.submit(job).unwrap();
        self.store.drain(LONG).unwrap();
        let mut done = Vec::new();
        self.store.poll(&mut done);
        let [done] = &done[..] else { panic!("{done:?}") };
        let failed = match &done.outcome {
            TierOutcome::Done => vec![],
            TierOutcome::Partial { failed } => {
                ns.iter().copied().filter(|&n| failed.contains(&key(n))).collect()
            }
            TierOutcome::Failed => ns.to_vec(),
        };
        if direction == TierDirection::Read {
            for &n in ns.iter().filter(|n| !failed.contains(n)) {
                self.memory
                    .with_read(slot(n), &mut |bytes| assert_eq!(bytes, content(n, 0, BYTES), "chunk {n}"))
                    .unwrap();
            }
        }
        failed
    }

    /// A request that writes chunks and ends.
    fn request(&mut self, req: u64, ns: &[u64]) {
        self.store.on_new_request(&RequestContext::new(RequestId(req)));
        assert_eq!(self.run(req, TierDirection::Write, ns), []);
        self.store.on_request_finished(RequestId(req));
    }
}

fn options(dir: &Path, engine: EngineKind) -> NvmeOptions {
    NvmeOptions { engine, ..NvmeOptions::new(dir, 8, BYTES as u64) }
}

#[test]
fn a_store_that_was_closed_has_all_its_chunks_again_in_their_order() {
    for engine in ENGINES {
        let dir = tempfile::tempdir().unwrap();
        let mut open = Open::new(options(dir.path(), engine));
        open.request(1, &[1, 2, 3]);
        open.request(2, &[4, 5, 6]);
        // The first request's prefix is read again, so the second's goes first.
        open.store.on_new_request(&RequestContext::new(RequestId(3)));
        assert_eq!(open.run(3, TierDirection::Read, &[1, 2]), []);
        open.store.on_request_finished(RequestId(3));
        open.store.close(LONG).unwrap();

        let mut open = Open::new(options(dir.path(), engine));
        let report = open.store.recovery();
        assert_eq!((report.clean, report.chunks, report.damaged_records), (true, 6, 0));
        assert_eq!(open.store.wear().written_bytes_in_life, 6 * BYTES as u64);
        assert_eq!(open.run(1, TierDirection::Read, &[1, 2, 3, 4, 5, 6]), []);
        drop(open);

        // What the last reads did to the order is not what is asked: they were one request.
        let mut open = Open::new(options(dir.path(), engine));
        open.request(4, &[11, 12, 13]);
        open.store.assert_consistent();
        assert_eq!(open.run(5, TierDirection::Read, &[1, 2, 3, 4, 5]), [], "the tail alone has gone");
        assert_eq!(open.run(5, TierDirection::Read, &[6]), [6]);
    }
}

/// B04 and B50: in the order that it had, the oldest first.
#[test]
fn a_store_that_was_never_closed_has_what_it_recorded() {
    for engine in ENGINES {
        let dir = tempfile::tempdir().unwrap();
        let mut open = Open::new(NvmeOptions { durable: true, ..options(dir.path(), engine) });
        open.request(1, &[1, 2, 3, 4]);
        open.request(2, &[5, 6]);
        let copy = tempfile::tempdir().unwrap();
        copy_unclosed(&open, dir.path(), copy.path());

        let mut again = Open::new(options(copy.path(), engine));
        let report = again.store.recovery();
        assert_eq!((report.clean, report.chunks), (false, 6));
        // The older request goes first, its tail before its head.
        again.request(3, &[11, 12, 13, 14, 15]);
        assert_eq!(again.run(4, TierDirection::Read, &[1, 2, 3, 4, 5, 6]), [2, 3, 4]);
    }
}

/// B50 and B56: what a killed store has is known when it is opened again, counted once, and goes before what comes; a
/// record that cannot be read is counted as that.
#[test]
fn a_killed_store_knows_what_it_has_and_counts_nothing_twice() {
    for (engine, is_damaged) in [(0, false), (1, false), (0, true)].map(|(nth, bad)| (ENGINES[nth], bad)) {
        let dir = tempfile::tempdir().unwrap();
        let mut open = Open::new(NvmeOptions { durable: true, ..options(dir.path(), engine) });
        open.request(1, &[1, 2, 3, 4]);
        open.request(2, &[5, 6, 7]);
        let copy = tempfile::tempdir().unwrap();
        copy_unclosed(&open, dir.path(), copy.path());
        if is_damaged {
            let index = copy.path().join(crate::INDEX_FILE_NAME);
            let mut bytes = std::fs::read(&index).unwrap();
            let records = bytes[8192..].chunks_mut(128);
            let last = records.take(8).filter(|record| record[0] == 1).last().unwrap();
            last[60] ^= 1;
            std::fs::write(&index, &bytes).unwrap();
        }

        let mut again = Open::new(options(copy.path(), engine));
        let num_lost = u32::from(is_damaged);
        let report = again.store.recovery();
        assert_eq!((report.chunks, report.damaged_records), (7 - num_lost, num_lost));
        let check_counts = |again: &Open, num_chunks: u32| {
            let counts = again.store.counts();
            assert!(counts.add_up(), "{counts:?}");
            assert_eq!((counts.evictable, counts.free), (num_chunks, 8 - num_chunks), "{counts:?}");
        };
        check_counts(&again, 7 - num_lost);
        let is_there = |again: &mut Open, n| again.store.lookup(RequestId(9), &key(n)) == TierLookup::Hit;
        let there: Vec<u64> = (1..8).filter(|n| is_there(&mut again, *n)).collect();
        assert_eq!(there.len(), 7 - num_lost as usize);
        // Some are written once more.
        again.request(3, &there[3..]);
        check_counts(&again, 7 - num_lost);
        assert_eq!(again.run(4, TierDirection::Read, &there[3..]), []);
        // New ones take what is free, and then the room of the oldest, their tail first.
        again.request(5, &(11..12 + u64::from(num_lost)).collect::<Vec<_>>());
        check_counts(&again, 8);
        again.request(6, &[21, 22]);
        check_counts(&again, 8);
        let left: Vec<u64> = (1..8).filter(|n| is_there(&mut again, *n)).collect();
        assert_eq!(left, [&there[..1], &there[3..]].concat());
        assert_eq!(again.run(7, TierDirection::Read, &left), []);
    }
}

/// Copies the files of a store as they are, as if its process had died: nothing is closed, and only the locks are let
/// go.
fn copy_unclosed(open: &Open, from: &Path, to: &Path) {
    for file in &open.store.files_for_tests() {
        rustix::fs::flock(&**file, rustix::fs::FlockOperation::Unlock).unwrap();
    }
    for entry in std::fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        std::fs::copy(&path, to.join(path.file_name().unwrap())).unwrap();
    }
}

#[test]
fn chunks_are_dealt_to_several_devices_and_come_back_from_them() {
    for engine in ENGINES {
        let dirs = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
        let paths = dirs.iter().map(|dir| dir.path().to_path_buf()).collect();
        let options = NvmeOptions { dirs: paths, ..options(dirs[0].path(), engine) };
        let mut open = Open::new(options.clone());
        assert_eq!((open.store.paths().len(), open.store.capacity_chunks()), (3, 8));
        open.request(1, &[1, 2, 3, 4, 5, 6, 7, 8]);
        open.store.close(LONG).unwrap();
        let mut open = Open::new(options);
        assert_eq!(open.run(2, TierDirection::Read, &[1, 2, 3, 4, 5, 6, 7, 8]), []);
        let used =
            |dir: &tempfile::TempDir| std::fs::metadata(dir.path().join(crate::FILE_NAME)).unwrap().len();
        assert_eq!(dirs.each_ref().map(used), [3, 3, 2].map(|slots| (2 << 20) + slots * BYTES as u64));
    }
}

#[test]
fn nothing_is_copied_between_a_region_and_the_files() {
    let dir = tempfile::tempdir().unwrap();
    let mut open = Open::new(options(dir.path(), EngineKind::Auto));
    open.request(1, &[1, 2, 3]);
    assert_eq!(open.run(2, TierDirection::Read, &[1, 2, 3]), []);
    assert_eq!((open.store.stats().copied_bytes, open.store.engine_stats().copied_bytes), (0, 0));
    if open.store.engine_info().direct_io {
        let mut bytes = vec![0; BYTES + 1];
        assert!(open.store.read_chunk(&key(1), &mut bytes[1..]).unwrap());
        assert_eq!(open.store.stats().copied_bytes, BYTES as u64, "a direct call's bytes lie anywhere");
    } else {
        eprintln!("SKIPPED: no direct I/O in {}", dir.path().display());
    }
}

#[test]
fn a_store_that_says_it_wrote_more_than_can_be_counted_is_used_and_closed() {
    use crate::format::{BLOCK_BYTES, Superblock};
    for engine in ENGINES {
        let dir = tempfile::tempdir().unwrap();
        Open::new(options(dir.path(), engine)).store.close(LONG).unwrap();
        let index = dir.path().join(crate::INDEX_FILE_NAME);
        let mut bytes = std::fs::read(&index).unwrap();
        for block in bytes[..2 * BLOCK_BYTES].chunks_mut(BLOCK_BYTES) {
            let superblock = Superblock::decode(block.as_array().unwrap()).unwrap();
            block.copy_from_slice(&Superblock { written_bytes: u64::MAX, ..superblock }.encode());
        }
        std::fs::write(&index, &bytes).unwrap();

        let mut open = Open::new(options(dir.path(), engine));
        open.request(1, &[1, 2]);
        assert_eq!(open.store.wear().written_bytes_in_life, u64::MAX);
        open.store.close(LONG).unwrap();
        let open = Open::new(options(dir.path(), engine));
        assert!(open.store.recovery().clean);
    }
}

/// What keeps a store from being opened and is not of its files costs it nothing.
#[test]
fn a_store_that_was_closed_and_cannot_be_opened_keeps_its_order_and_its_proof() {
    let dir = tempfile::tempdir().unwrap();
    let options = NvmeOptions::new(dir.path(), 3, BYTES as u64);
    let mut open = Open::new(options.clone());
    assert!(open.run(1, TierDirection::Write, &[1, 2, 3]).is_empty());
    assert!(open.run(2, TierDirection::Read, &[2]).is_empty());
    open.store.close(LONG).unwrap();

    for failures in 1..4 {
        // Of memory that may move no address can be given to the kernel.
        let uring = NvmeOptions { engine: EngineKind::Uring, ..options.clone() };
        let error = NvmeStore::open(uring, super::Memory::new(16, BYTES)).unwrap_err();
        assert!(matches!(error, crate::OpenError::Uring { .. }), "{error}");
        let mut open = Open::new(options.clone());
        let report = open.store.recovery();
        assert!(report.clean && !report.order_damaged, "{failures}: {report:?}");
        assert_eq!((report.chunks, report.unproven), (3, 0));
        let hits =
            |store: &mut NvmeStore| [1, 2, 3].map(|n| store.lookup(RequestId(0), &key(n)) == TierLookup::Hit);
        assert_eq!(hits(&mut open.store), [true; 3]);
        open.store.close(LONG).unwrap();
    }
    let mut open = Open::new(options);
    assert!(open.run(3, TierDirection::Write, &[4, 5]).is_empty());
    assert_eq!(open.store.lookup(RequestId(0), &key(2)), TierLookup::Hit, "the last that was used goes last");
}
