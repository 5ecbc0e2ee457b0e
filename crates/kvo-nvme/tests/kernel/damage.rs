//! Flipped bits, exchanged, cut and missing files: what `docs/FORMAT.md` says is what happens.

use std::{
    fs::{self, File, OpenOptions},
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
};

use kvo_nvme::{
    EngineKind, FILE_NAME, FileDamage, INDEX_FILE_NAME, IfOther, Inspection, NvmeOptions, NvmeStore,
    OpenError,
};
use tempfile::TempDir;

use crate::rig::{
    CHUNK_BYTES, Found, LONG, RECORD_BYTES, RECORDS_START, Rig, Rng, engines, key, options, read_all,
};

const CAPACITY: u32 = 64;
const NUM_CHUNKS: u64 = 60;
/// As the format has them.
const BLOCK_BYTES: u64 = 4096;
const DATA_START: u64 = 2 << 20;

/// A store that was filled and closed.
struct Closed {
    dirs: Vec<TempDir>,
}

impl Closed {
    fn new(num_devices: usize) -> Self {
        let closed = Self { dirs: (0..num_devices).map(|_| tempfile::tempdir().unwrap()).collect() };
        let mut rig = Rig::open(&closed.options());
        assert_eq!(rig.put(0..NUM_CHUNKS).misses, []);
        rig.close();
        closed
    }

    fn paths(&self) -> Vec<PathBuf> {
        self.dirs.iter().map(|dir| dir.path().to_owned()).collect()
    }

    fn options(&self) -> NvmeOptions {
        NvmeOptions { dirs: self.paths(), ..options("", CAPACITY) }
    }

    fn index(&self) -> PathBuf {
        self.dirs[0].path().join(INDEX_FILE_NAME)
    }

    fn data(&self, device: usize) -> PathBuf {
        self.dirs[device].path().join(FILE_NAME)
    }

    /// The slot of each chunk.
    fn slots(&self) -> Vec<u64> {
        let inspection = Inspection::open(&self.paths()).unwrap();
        let chunks = inspection.read_records().unwrap().chunks;
        let slot_of = |n| chunks.iter().find(|chunk| chunk.key == key(n)).unwrap().slot.into();
        (0..NUM_CHUNKS).map(slot_of).collect()
    }

    fn flip_payload(&self, slot: u64, bit: u64) {
        let num_devices = self.dirs.len() as u64;
        let (device, index) = (slot % num_devices, slot / num_devices);
        flip(&self.data(usize::try_from(device).unwrap()), DATA_START + index * CHUNK_BYTES as u64, bit);
    }

    fn flip_record(&self, slot: u64, bit: u64) {
        flip(&self.index(), RECORDS_START + slot * RECORD_BYTES as u64, bit);
    }

    fn flip_superblock(&self, block: u64) {
        flip(&self.index(), block * BLOCK_BYTES, 24 * 8);
    }

    fn files(&self) -> Vec<(PathBuf, Vec<u8>)> {
        let entries = self.dirs.iter().flat_map(|dir| fs::read_dir(dir.path()).unwrap());
        let mut paths: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
        paths.sort();
        paths.into_iter().map(|path| (path.clone(), fs::read(path).unwrap())).collect()
    }

    /// Opening fails and changes nothing; if told so, it makes an empty store that works.
    #[track_caller]
    fn check_refused(&self, is_as_expected: impl Fn(&OpenError) -> bool) {
        let before = self.files();
        let error = NvmeStore::open_without_memory(self.options()).unwrap_err();
        assert!(is_as_expected(&error), "{error:?}");
        assert!(self.files() == before, "files have changed");

        let mut rig = Rig::open(&NvmeOptions { if_other: IfOther::Empty, ..self.options() });
        assert_eq!(rig.get(0..NUM_CHUNKS).hits, [], "it is a new store");
        assert_eq!(rig.put(100..110).hits.len(), 10);
        rig.close();
        let mut rig = Rig::open(&self.options());
        assert_eq!(rig.get(100..110).hits.len(), 10);
    }

    /// The store opens, and every chunk is there.
    #[track_caller]
    fn check_whole(&self) -> kvo_nvme::RecoveryReport {
        let mut store = NvmeStore::open_without_memory(self.options()).unwrap();
        assert_eq!(read_all(&mut store, NUM_CHUNKS).misses, []);
        let report = store.recovery();
        store.close(LONG).unwrap();
        report
    }
}

/// Turns one bit, counted from `start`.
fn flip(path: &Path, start: u64, bit: u64) {
    let file = OpenOptions::new().read(true).write(true).open(path).unwrap();
    let (mut byte, at) = ([0], start + bit / 8);
    file.read_exact_at(&mut byte, at).unwrap();
    byte[0] ^= 1 << (bit % 8);
    file.write_all_at(&byte, at).unwrap();
    file.sync_all().unwrap();
}

fn cut(path: &Path, fewer: u64) {
    let file = File::options().write(true).open(path).unwrap();
    file.set_len(file.metadata().unwrap().len() - fewer).unwrap();
}

/// Chunks whose numbers are in `wrong` are misses, and no others.
#[track_caller]
fn check_misses(found: &Found, wrong: &[u64]) {
    let mut wrong = wrong.to_vec();
    wrong.sort_unstable();
    let mut misses = found.misses.clone();
    misses.sort_unstable();
    assert_eq!(misses, wrong);
    assert_eq!((found.hits.len() + misses.len()) as u64, NUM_CHUNKS);
}

#[test]
fn so_many_flipped_payloads_are_so_many_misses() {
    let mut rng = Rng::of_test("so_many_flipped_payloads_are_so_many_misses");
    for engine in engines() {
        for num_devices in [1, 3] {
            let closed = Closed::new(num_devices);
            let slots = closed.slots();
            let wrong = rng.some_below(20, NUM_CHUNKS);
            for &n in &wrong {
                closed.flip_payload(slots[usize::try_from(n).unwrap()], rng.below(CHUNK_BYTES as u64 * 8));
            }
            let mut rig = Rig::open(&NvmeOptions { engine, ..closed.options() });
            check_misses(&rig.get(0..NUM_CHUNKS), &wrong);
            assert_eq!((rig.store.stats().checksum_failures, rig.store.stats().chunks_dropped), (20, 20));
            // What was lost can be written again, and nothing else has changed.
            assert_eq!(rig.put(wrong.iter().copied()).misses, []);
            check_misses(&rig.get(0..NUM_CHUNKS), &[]);
            rig.close();
        }
    }
}

#[test]
fn so_many_flipped_records_are_so_many_misses() {
    let mut rng = Rng::of_test("so_many_flipped_records_are_so_many_misses");
    let closed = Closed::new(2);
    let slots = closed.slots();
    let wrong = rng.some_below(20, NUM_CHUNKS);
    for &n in &wrong {
        closed.flip_record(slots[usize::try_from(n).unwrap()], rng.below(RECORD_BYTES as u64 * 8));
    }
    let mut rig = Rig::open(&closed.options());
    check_misses(&rig.get(0..NUM_CHUNKS), &wrong);
    let (report, stats) = (rig.store.recovery(), rig.store.stats());
    assert_eq!((report.damaged_records, report.chunks), (20, 40));
    assert_eq!(stats.checksum_failures, 0, "known beforehand");
    rig.close();
}

/// B53: the bytes of another chunk, whole as they are, are no hit.
#[test]
fn payloads_that_have_changed_places_are_misses() {
    for engine in engines() {
        let closed = Closed::new(1);
        let slots = closed.slots();
        let file = OpenOptions::new().read(true).write(true).open(closed.data(0)).unwrap();
        let places = [3, 40].map(|n: usize| DATA_START + slots[n] * CHUNK_BYTES as u64);
        let payloads = places.map(|place| {
            let mut bytes = vec![0; CHUNK_BYTES];
            file.read_exact_at(&mut bytes, place).unwrap();
            bytes
        });
        file.write_all_at(&payloads[0], places[1]).unwrap();
        file.write_all_at(&payloads[1], places[0]).unwrap();
        file.sync_all().unwrap();
        let mut rig = Rig::open(&NvmeOptions { engine, ..closed.options() });
        check_misses(&rig.get(0..NUM_CHUNKS), &[3, 40]);
    }
}

#[test]
fn exchanged_data_files_are_refused() {
    let closed = Closed::new(2);
    let [a, b] = [0, 1].map(|device| closed.data(device));
    let aside = a.with_extension("aside");
    fs::rename(&a, &aside).unwrap();
    fs::rename(&b, &a).unwrap();
    fs::rename(&aside, &b).unwrap();
    closed.check_refused(|error| matches!(error, OpenError::Other { field: "device", .. }));

    let closed = Closed::new(2);
    let mut paths = closed.paths();
    paths.reverse();
    let error = NvmeStore::open_without_memory(NvmeOptions { dirs: paths, ..closed.options() }).unwrap_err();
    assert!(matches!(error, OpenError::Other { .. }), "{error:?}");
    closed.check_whole();
}

#[test]
fn a_data_file_of_another_store_is_refused() {
    let (closed, other) = (Closed::new(2), Closed::new(2));
    fs::copy(other.data(1), closed.data(1)).unwrap();
    closed.check_refused(|error| matches!(error, OpenError::Other { .. }));
}

#[test]
fn files_that_were_cut_are_refused() {
    let closed = Closed::new(2);
    cut(&closed.data(1), CHUNK_BYTES as u64);
    closed.check_refused(
        |error| matches!(error, OpenError::Damaged { damage: FileDamage::Length { .. }, path } if path.ends_with(FILE_NAME)),
    );

    let closed = Closed::new(1);
    cut(&closed.index(), 1);
    closed.check_refused(
        |error| matches!(error, OpenError::Damaged { damage: FileDamage::Length { .. }, path } if path.ends_with(INDEX_FILE_NAME)),
    );
}

#[test]
fn a_data_file_or_an_index_that_is_missing_is_noticed() {
    let closed = Closed::new(2);
    fs::remove_file(closed.data(1)).unwrap();
    closed.check_refused(|error| matches!(error, OpenError::Damaged { damage: FileDamage::Missing, .. }));

    let closed = Closed::new(2);
    fs::remove_file(closed.index()).unwrap();
    closed.check_refused(|error| matches!(error, OpenError::Other { .. }));
}

#[test]
fn one_superblock_is_enough() {
    for block in [0, 1] {
        let closed = Closed::new(2);
        closed.flip_superblock(block);
        let report = closed.check_whole();
        assert!(report.superblock_damaged && !report.clean, "{report:?}");
        // Both are written anew within two openings.
        assert!(closed.check_whole().clean);
        assert!(!closed.check_whole().superblock_damaged);
    }
}

#[test]
fn without_a_superblock_or_a_header_nothing_is_opened() {
    let closed = Closed::new(2);
    closed.flip_superblock(0);
    closed.flip_superblock(1);
    closed.check_refused(|error| {
        matches!(error, OpenError::Damaged { damage: FileDamage::Superblocks(..), .. })
    });

    let closed = Closed::new(2);
    flip(&closed.data(1), 0, 12 * 8);
    closed.check_refused(|error| matches!(error, OpenError::Damaged { damage: FileDamage::Header(_), .. }));
}

/// B14: each of them once.
#[test]
fn a_file_that_is_cut_while_the_store_is_open_costs_the_chunks_behind_the_cut() {
    for engine in engines() {
        let closed = Closed::new(1);
        let slots = closed.slots();
        let mut rig = Rig::open(&NvmeOptions { engine, ..closed.options() });
        File::options()
            .write(true)
            .open(closed.data(0))
            .unwrap()
            .set_len(DATA_START + 30 * CHUNK_BYTES as u64)
            .unwrap();
        let behind: Vec<u64> =
            (0..NUM_CHUNKS).filter(|&n| slots[usize::try_from(n).unwrap()] >= 30).collect();
        check_misses(&rig.get(0..NUM_CHUNKS), &behind);
        assert!(engine == EngineKind::Threads || rig.store.engine_stats().strange_completions == 0);
    }
}

/// Chunk 1 goes into the slot of chunk 0, and the process is killed before the index knows.
#[test]
fn a_chunk_whose_slot_was_used_again_before_the_kill_is_not_taken_for_written() {
    for engine in engines() {
        for (durable, is_closed) in [(false, false), (true, false), (true, true)] {
            let dir = tempfile::tempdir().unwrap();
            let options = NvmeOptions { engine, durable, ..options(dir.path(), 1) };
            let mut rig = Rig::open(&options);
            assert_eq!(rig.put([0]).hits, [0]);
            rig.store.close(LONG).unwrap();
            let index = dir.path().join(INDEX_FILE_NAME);
            let mut rig = Rig::open(&options);
            let before = fs::read(&index).unwrap();
            assert_eq!(rig.put([1]).hits, [1]);
            drop(rig);
            fs::write(&index, before).unwrap();

            let mut rig = Rig::open(&options);
            assert_eq!((rig.store.recovery().chunks, rig.store.recovery().unproven), (1, 1));
            if is_closed {
                rig.store.close(LONG).unwrap();
                rig = Rig::open(&options);
                let report = rig.store.recovery();
                assert_eq!((report.clean, report.unproven), (true, 1), "a clean close proves nothing");
            }
            assert_eq!(rig.put([0]).hits, [0]);
            assert_eq!(rig.get([0]).hits, [0], "{engine:?}, durable: {durable}, closed: {is_closed}");

            rig.store.close(LONG).unwrap();
            let report = Rig::open(&options).store.recovery();
            assert_eq!((report.clean, report.chunks, report.unproven), (true, 1, 0));
        }
    }
}

#[test]
fn a_chunk_that_was_read_since_the_kill_is_not_written_again() {
    let dir = tempfile::tempdir().unwrap();
    let options = NvmeOptions { durable: true, ..options(dir.path(), 4) };
    let mut rig = Rig::open(&options);
    assert_eq!(rig.put(0..3).hits, [0, 1, 2]);
    let index = dir.path().join(INDEX_FILE_NAME);
    let killed = fs::read(&index).unwrap();
    drop(rig);
    fs::write(&index, killed).unwrap();
    let mut rig = Rig::open(&options);
    assert_eq!(rig.store.recovery().unproven, 3);
    assert_eq!(rig.get([1]).hits, [1]);
    assert_eq!(rig.put(0..3).hits, [0, 1, 2]);
    let stats = rig.store.stats();
    assert_eq!((stats.chunks_present, stats.write.chunks), (1, 2));
}
