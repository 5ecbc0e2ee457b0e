//! A store in a directory, damaged: whatever was done to it, a chunk is what was written, or a miss.

use std::{
    collections::HashSet,
    fs::{self, File, OpenOptions},
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    time::Duration,
};

use kvo_core::OffloadKey;

use super::{
    damage::Damaged,
    image::{self, CHUNK_BYTES, NUM_DEVICES, NUM_SLOTS, key, payload},
    input::Input,
};
use crate::{
    Contents, EngineKind, FILE_NAME, INDEX_FILE_NAME, Inspection, NvmeOptions, NvmeStore, OpenError,
    format::{DATA_START, EPOCH_MAX, StoreState},
};

const LONG: Duration = Duration::from_mins(1);
/// Written by the store itself, after the damage.
const NEW_KEY: u64 = 99;

pub(super) fn store(dir: &Path, data: &[u8]) {
    let mut input = Input::new(data);
    let how = input.u8();
    let dirs = [dir.join("a"), dir.join("b")];
    write_files(&dirs, &Damaged::of(&mut input));
    let inspected = inspect(&dirs);
    if how & 1 != 0 {
        mend(&dirs, inspected.as_ref());
    }
    if how & 3 != 3 {
        open(&dirs, how & 4 != 0);
    }
}

fn paths(dirs: &[PathBuf; 2]) -> [PathBuf; 3] {
    [dirs[0].join(INDEX_FILE_NAME), dirs[0].join(FILE_NAME), dirs[1].join(FILE_NAME)]
}

/// Files that are there are written over, which is a good deal faster than new ones.
fn write_files(dirs: &[PathBuf; 2], damaged: &Damaged) {
    for dir in dirs {
        fs::create_dir_all(dir).expect("the directory can be written");
    }
    let [index, data @ ..] = paths(dirs);
    let image = &damaged.image;
    write_file(&index, damaged, 0, &[(0, &image.index)]);
    for ((device, path), data) in (1..).zip(&data).zip(&image.data) {
        write_file(path, damaged, device, &[(0, &data.header), (DATA_START, &data.slots)]);
    }
}

fn write_file(path: &Path, damaged: &Damaged, number: usize, parts: &[(u64, &Vec<u8>)]) {
    if damaged.missing[number] {
        if let Err(error) = fs::remove_file(path) {
            assert_eq!(error.kind(), std::io::ErrorKind::NotFound);
        }
        return;
    }
    let options = OpenOptions::new().write(true).create(true).truncate(false).open(path);
    let write = |file: File| {
        for (start, bytes) in parts {
            file.write_all_at(bytes, *start)?;
        }
        let end = parts.iter().map(|(start, bytes)| start + bytes.len() as u64).max().unwrap_or(0);
        file.set_len(end.saturating_add_signed(damaged.longer[number]))
    };
    options.and_then(write).expect("the files can be written");
}

/// What is in the files, where something can be.
fn read_files(dirs: &[PathBuf; 2]) -> Vec<Option<Vec<u8>>> {
    let read = |path: &PathBuf| {
        let file = File::open(path).ok()?;
        let len = file.metadata().expect("the file is there").len();
        let mut bytes = vec![0; 1 << 16];
        let half = bytes.len() / 2;
        for (part, start) in bytes.chunks_mut(half).zip([0, DATA_START]) {
            let mut at = 0;
            while let Ok(count @ 1..) = file.read_at(&mut part[at..], start + at as u64) {
                at += count;
            }
        }
        bytes.extend(len.to_le_bytes());
        Some(bytes)
    };
    paths(dirs).iter().map(read).collect()
}

/// What an inspection has found.
#[derive(Default)]
struct Inspected {
    /// The chunks that can be read.
    good: HashSet<(OffloadKey, u64)>,
    /// Whether a store with our options must open.
    opens: bool,
    order_damaged: bool,
    damaged: Vec<u32>,
}

/// Looks into the store, which changes nothing, and reads every chunk of it.
fn inspect(dirs: &[PathBuf; 2]) -> Option<Inspected> {
    let before = read_files(dirs);
    let inspected = look(dirs);
    assert!(read_files(dirs) == before, "looking into a store has changed it");
    inspected
}

fn look(dirs: &[PathBuf; 2]) -> Option<Inspected> {
    let mut inspection = match Inspection::open(dirs) {
        Ok(inspection) => inspection,
        Err(error) => {
            assert!(error.is_of_contents(), "{error:?}");
            return None;
        }
    };
    let opens = is_ours(&inspection) && inspection.problems().is_empty();
    // An index that was cut has no table.
    let Ok(contents) = inspection.read_records() else {
        assert!(!opens, "a store without problems has a table");
        return Some(Inspected::default());
    };
    check_contents(&contents, inspection.info().capacity_chunks);
    let mut good = HashSet::new();
    for chunk in &contents.chunks {
        if let Ok(bytes) = inspection.read_chunk(chunk) {
            check_bytes(&chunk.key, Some(chunk.generation), bytes);
            good.insert((chunk.key, chunk.generation));
        }
    }
    Some(Inspected { good, opens, order_damaged: contents.report.order_damaged, damaged: contents.damaged })
}

/// Whether the store is what [`options`] ask for.
fn is_ours(inspection: &Inspection) -> bool {
    let info = inspection.info();
    let is_made = info.state != StoreState::Creating;
    // There are epochs for an opening beside a damaged superblock.
    let is_known = info.checksum.is_some() && info.fingerprint == [0; 32] && info.epoch < EPOCH_MAX - 1;
    let sizes = (info.chunk_bytes, info.capacity_chunks, info.num_devices);
    is_made && is_known && sizes == (CHUNK_BYTES as u64, NUM_SLOTS, NUM_DEVICES)
}

fn check_contents(contents: &Contents, capacity: u32) {
    let mut slots: Vec<u32> = contents.chunks.iter().map(|chunk| chunk.slot).collect();
    slots.extend(contents.quarantined.iter().chain(&contents.damaged));
    assert!(slots.iter().all(|slot| *slot < capacity), "{contents:?}");
    let (num_slots, keys) = (slots.len(), contents.chunks.iter().map(|chunk| chunk.key));
    assert_eq!(slots.into_iter().collect::<HashSet<_>>().len(), num_slots, "a slot is there twice");
    assert_eq!(keys.collect::<HashSet<_>>().len(), contents.chunks.len(), "a key is there twice");
    let report = contents.report;
    assert_eq!(report.chunks as usize, contents.chunks.len());
    assert_eq!(report.quarantined as usize, contents.quarantined.len());
    assert_eq!(report.damaged_records as usize, contents.damaged.len());
}

/// Checks that these bytes were written for this key, and in this generation, if one is known.
fn check_bytes(key: &OffloadKey, generation: Option<u64>, bytes: &[u8]) {
    let is_written = image::writes().any(|(written, its_generation)| {
        let is_it = written == *key && generation.is_none_or(|generation| generation == its_generation);
        is_it && payload(&written, its_generation) == bytes
    });
    assert!(is_written, "nobody has written these bytes for {key:?} in {generation:?}");
}

/// Mends what can be mended: then it is as told, and nothing that was good is lost.
fn mend(dirs: &[PathBuf; 2], inspected: Option<&Inspected>) {
    let Some(inspected) = inspected else { return };
    let mut inspection = Inspection::open(dirs).expect("it was looked into before");
    if inspection.info().state == StoreState::Creating {
        return;
    }
    match inspection.repair_superblock() {
        // Its epochs are used up.
        Err(OpenError::Other { field: "epoch", .. }) => return,
        repaired => repaired.expect("a superblock can be written"),
    };
    if inspected.order_damaged {
        inspection.forget_order().expect("a superblock can be written");
    }
    inspection.repair_headers().expect("headers can be written");
    inspection.clear_records(&inspected.damaged).expect("records can be written");
    drop(inspection);
    let inspection = Inspection::open(dirs).expect("a mended store can be looked into");
    assert!(inspection.superblocks().iter().all(Result::is_ok), "{:?}", inspection.superblocks());
    assert_eq!(inspection.damaged_headers(), Vec::<PathBuf>::new());
    drop(inspection);
    let again = inspect(dirs).expect("a mended store can be looked into");
    assert!(again.damaged.is_empty() && !again.order_damaged);
    assert!(again.good.is_superset(&inspected.good), "mending has lost a chunk");
    assert!(again.opens || !inspected.opens, "mending has broken the store");
}

fn options(dirs: &[PathBuf; 2]) -> NvmeOptions {
    NvmeOptions {
        dirs: dirs.to_vec(),
        engine: EngineKind::Threads,
        num_threads: 1,
        ..NvmeOptions::new("", NUM_SLOTS, CHUNK_BYTES as u64)
    }
}

/// Opens the store, uses it, closes or drops it, and opens it again.
fn open(dirs: &[PathBuf; 2], is_dropped: bool) {
    let (before, inspected) = (read_files(dirs), inspect(dirs));
    let must_open = inspected.as_ref().is_some_and(|inspected| inspected.opens);
    let mut store = match NvmeStore::open_without_memory(options(dirs)) {
        Ok(store) => store,
        Err(error) => {
            check_refusal(&error, must_open);
            assert!(read_files(dirs) == before, "a store that was refused is another one");
            return;
        }
    };
    let hits = read_all(&mut store, &[]);
    if let Some(inspected) = inspected.filter(|inspected| inspected.opens) {
        let good: HashSet<_> = inspected.good.iter().map(|(key, _)| *key).collect();
        assert_eq!(hits, good, "what can be read is read");
    }
    let wear = store.wear();
    assert!(wear.written_bytes_in_life >= wear.written_bytes);
    store.close(LONG).expect("files in memory can be written");

    let Some(mut store) = open_again(dirs) else { return };
    let report = store.recovery();
    assert!(report.clean && !report.order_damaged && report.damaged_records <= NUM_SLOTS, "{report:?}");
    assert!(read_all(&mut store, &[]).is_superset(&hits), "a closed store has its chunks");
    let new = vec![0x5a; CHUNK_BYTES];
    let is_written = store.write_chunk(key(NEW_KEY), &new).is_ok();
    assert_eq!(read_all(&mut store, &new).contains(&key(NEW_KEY)), is_written);
    if is_dropped {
        drop(store);
    } else {
        store.close(LONG).expect("files in memory can be written");
    }

    let Some(mut store) = open_again(dirs) else { return };
    let hits = read_all(&mut store, &new);
    assert!(is_dropped || hits.contains(&key(NEW_KEY)) == is_written, "a closed store has its chunks");
}

/// A store that was closed or left opens, until its epochs are used up.
fn open_again(dirs: &[PathBuf; 2]) -> Option<NvmeStore> {
    match NvmeStore::open_without_memory(options(dirs)) {
        Ok(store) => Some(store),
        Err(OpenError::Other { field: "epoch", .. }) => None,
        Err(error) => panic!("a store that was left does not open: {error:?}"),
    }
}

fn check_refusal(error: &OpenError, must_open: bool) {
    assert!(error.is_of_contents(), "{error:?}");
    assert!(!must_open, "nobody has told of it: {error:?}");
}

/// Reads every chunk that may be there. Those that are, are right.
fn read_all(store: &mut NvmeStore, new: &[u8]) -> HashSet<OffloadKey> {
    let (mut bytes, mut hits) = (vec![0; CHUNK_BYTES], HashSet::new());
    let keys: HashSet<OffloadKey> = image::writes().map(|(key, _)| key).collect();
    for key in keys.into_iter().chain([key(NEW_KEY)]) {
        if !store.read_chunk(&key, &mut bytes).expect("files in memory can be read") {
            continue;
        }
        if key == image::key(NEW_KEY) {
            assert!(bytes == new, "the new chunk has other bytes");
        } else {
            check_bytes(&key, None, &bytes);
        }
        hits.insert(key);
    }
    let counts = store.counts();
    assert!(counts.add_up(), "{counts:?}");
    hits
}
