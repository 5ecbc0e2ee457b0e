//! What goes wrong when a store is opened.

use std::{fs, path::Path};

use kvo_core::{BlockHash, GroupIdx, OffloadKey};

use super::Memory;
use crate::{EngineKind, FILE_NAME, IfOther, NvmeOptions, NvmeStore, OpenError};

/// Where the slots begin in the file.
const START: u64 = 2 << 20;

#[track_caller]
fn open_fails(options: NvmeOptions) -> OpenError {
    let dir = options.dirs[0].clone();
    let existed = dir.join(FILE_NAME).exists();
    let error = NvmeStore::open_without_memory(options).expect_err("it opened");
    assert_eq!(dir.join(FILE_NAME).exists(), existed, "a failed open leaves nothing behind: {error}");
    assert!(!error.to_string().is_empty());
    error
}

fn options(dir: &Path) -> NvmeOptions {
    NvmeOptions::new(dir, 4, 4096)
}

/// B64: the field is named, before anything is made.
#[test]
fn every_number_must_be_at_least_one() {
    let dir = tempfile::tempdir().unwrap();
    let base = options(dir.path());
    for (field, options) in [
        ("capacity_chunks", NvmeOptions { capacity_chunks: 0, ..base.clone() }),
        ("chunk_bytes", NvmeOptions { chunk_bytes: 0, ..base.clone() }),
        ("num_threads", NvmeOptions { num_threads: 0, ..base.clone() }),
        ("queue_chunks_max", NvmeOptions { queue_chunks_max: 0, ..base.clone() }),
    ] {
        let error = open_fails(options);
        assert!(matches!(error, OpenError::Zero { field: named } if named == field), "{error}");
        assert_eq!(error.to_string(), format!("{field} must be at least 1"));
    }
}

#[test]
fn sizes_that_overflow_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    for (capacity_chunks, chunk_bytes) in [(1, u64::MAX), (u32::MAX, 1 << 40), (2, 1 << 62)] {
        let error = open_fails(NvmeOptions { capacity_chunks, chunk_bytes, ..options(dir.path()) });
        assert!(matches!(error, OpenError::Overflow { .. }), "{error}");
    }
    let error = open_fails(NvmeOptions { num_threads: usize::MAX, ..options(dir.path()) });
    assert!(matches!(error, OpenError::TooLarge { field: "num_threads", max: 256, .. }), "{error}");
}

#[test]
fn chunks_must_be_as_long_as_the_slots_of_the_host_memory() {
    let dir = tempfile::tempdir().unwrap();
    let error = NvmeStore::open(options(dir.path()), Memory::new(4, 4095)).unwrap_err();
    assert!(matches!(error, OpenError::ChunkBytes { chunk_bytes: 4096, slot_bytes: 4095 }), "{error}");
    NvmeStore::open(options(dir.path()), Memory::new(4, 4096)).unwrap();
}

#[test]
fn a_missing_directory_is_named_and_not_made() {
    let dir = tempfile::tempdir().unwrap();
    let missing = dir.path().join("not/mounted");
    let error = open_fails(options(&missing));
    assert!(matches!(&error, OpenError::DirectoryMissing { path } if *path == missing), "{error}");
    assert!(!missing.exists());
}

#[test]
fn a_file_in_place_of_the_directory_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    fs::write(&file, b"x").unwrap();
    let error = open_fails(options(&file));
    assert!(matches!(&error, OpenError::NotADirectory { path } if *path == file), "{error}");
    let error = open_fails(options(&file.join("below")));
    assert!(matches!(error, OpenError::NotADirectory { .. }), "{error}");
}

#[test]
fn a_directory_that_takes_no_files_is_named() {
    // Nobody, root included, makes files here: no permission, or a read-only mount.
    let sys = Path::new("/sys/kernel");
    if !sys.is_dir() {
        eprintln!("SKIPPED: there is no /sys/kernel");
        return;
    }
    let error = open_fails(options(sys));
    assert!(matches!(error, OpenError::NotWritable { .. }), "{error:?}");
}

#[test]
fn a_read_only_directory_is_named() {
    use std::os::unix::fs::PermissionsExt;
    let dir = tempfile::tempdir().unwrap();
    let inner = dir.path().join("inner");
    fs::create_dir(&inner).unwrap();
    fs::set_permissions(&inner, fs::Permissions::from_mode(0o555)).unwrap();
    if fs::write(inner.join("probe"), b"").is_ok() {
        eprintln!("SKIPPED: permissions do not hold this user back");
        return;
    }
    let error = open_fails(options(&inner));
    assert!(matches!(error, OpenError::NotWritable { .. }), "{error:?}");
}

#[test]
fn a_full_disk_shows_what_is_needed_and_what_there_is() {
    let dir = tempfile::tempdir().unwrap();
    let error =
        open_fails(NvmeOptions { capacity_chunks: u32::MAX, chunk_bytes: 1 << 20, ..options(dir.path()) });
    let OpenError::NoRoom { needed_bytes, allocated_bytes, available_bytes, ref path } = error else {
        panic!("{error}");
    };
    // The index has 128 bytes a slot, and room for the order.
    let slots = u64::from(u32::MAX);
    assert!(
        (START + (slots << 20) + 128 * slots..START + (slots << 20) + 150 * slots).contains(&needed_bytes)
    );
    assert_eq!(allocated_bytes, 0);
    assert!(available_bytes < needed_bytes);
    assert_eq!(*path, dir.path().join(FILE_NAME));
    let message = error.to_string();
    assert!(message.contains(&needed_bytes.to_string()) && message.contains(&available_bytes.to_string()));
}

#[test]
fn the_file_has_a_block_behind_every_byte() {
    use std::os::unix::fs::MetadataExt;
    let dir = tempfile::tempdir().unwrap();
    let store = NvmeStore::open_without_memory(NvmeOptions::new(dir.path(), 100, 5000)).unwrap();
    let metadata = fs::metadata(store.path()).unwrap();
    assert_eq!((metadata.len(), store.file_bytes()), (START + 100 * 8192, START + 100 * 8192));
    assert!(metadata.blocks() * 512 >= metadata.len(), "{} blocks", metadata.blocks());
    assert_eq!(metadata.mode() & 0o777, 0o600);
}

#[test]
fn a_second_store_on_the_same_directory_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let first = NvmeStore::open_without_memory(options(dir.path())).unwrap();
    let error = open_fails(options(dir.path()));
    assert!(matches!(error, OpenError::InUse { .. }), "{error}");
    drop(first);
    NvmeStore::open_without_memory(options(dir.path())).unwrap();
}

#[test]
fn a_store_of_another_size_is_another_store() {
    let dir = tempfile::tempdir().unwrap();
    let key = OffloadKey::new(BlockHash::from_u64(1), GroupIdx(0));
    let mut store = NvmeStore::open_without_memory(options(dir.path())).unwrap();
    store.write_chunk(key, &[7; 4096]).unwrap();
    drop(store);
    for capacity_chunks in [2, 8] {
        let other = NvmeOptions { capacity_chunks, ..options(dir.path()) };
        let error = open_fails(other.clone());
        assert!(matches!(error, OpenError::Other { field: "capacity_chunks", .. }), "{error}");
        let emptied = NvmeOptions { if_other: IfOther::Empty, ..other };
        let mut store = NvmeStore::open_without_memory(emptied).unwrap();
        assert!(!store.read_chunk(&key, &mut [0; 4096]).unwrap());
        assert_eq!(fs::metadata(store.path()).unwrap().len(), START + u64::from(capacity_chunks) * 4096);
        assert_eq!(store.counts().free, capacity_chunks);
    }
}

/// B65, in the middle of being made.
#[test]
fn a_store_whose_engine_does_not_start_leaves_no_file() {
    let dir = tempfile::tempdir().unwrap();
    // Memory that may move is nothing for a ring.
    let memory = Memory::new(2, 4096);
    let options = NvmeOptions { engine: EngineKind::Uring, ..options(dir.path()) };
    let error = NvmeStore::open(options, memory).unwrap_err();
    assert!(matches!(error, OpenError::Uring { .. }), "{error}");
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
}
