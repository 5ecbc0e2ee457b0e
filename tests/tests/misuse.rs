//! What cannot be built says why, with the numbers and the path.

mod support;

use std::sync::Arc;

use kvo_core::{ManualClock, SecondaryTier};
use kvo_cpu::{CpuManager, CpuOptions, HostRegion, RegionError, RegionOptions};
use kvo_nvme::{FILE_NAME, INDEX_FILE_NAME, NvmeOptions, NvmeStore, OpenError};
use kvo_policies::Lru;
use kvo_tiering::{TieringConfigError, TieringManager, TieringOptions};
use support::{Setup, memory_tier};

/// Opens a store that cannot be opened, and checks what the error says.
#[track_caller]
fn check_open(options: NvmeOptions, says: &[&str]) -> OpenError {
    let setup = Setup::new(2);
    let error = NvmeStore::open(options, setup.region()).expect_err("it cannot be opened");
    let text = error.to_string();
    for part in says {
        assert!(text.contains(part), "{text:?} must say {part:?}");
    }
    assert!(!text.ends_with('.') && !text.contains('\n'), "{text:?}");
    error
}

/// B37: a tier that cannot work is none.
#[test]
fn a_store_names_the_directory_that_it_cannot_use() {
    let chunk_bytes = Setup::new(2).chunk_bytes() as u64;
    let dir = tempfile::tempdir().unwrap();
    let missing = dir.path().join("missing");
    let error = check_open(
        NvmeOptions::new(&missing, 8, chunk_bytes),
        &[missing.to_str().unwrap(), "does not exist"],
    );
    assert!(matches!(&error, OpenError::DirectoryMissing { path } if *path == missing), "{error:?}");
    assert!(!missing.exists(), "the store makes no directory");

    let file = dir.path().join("file");
    std::fs::write(&file, b"precious").unwrap();
    let error =
        check_open(NvmeOptions::new(&file, 8, chunk_bytes), &[file.to_str().unwrap(), "not a directory"]);
    assert!(matches!(&error, OpenError::NotADirectory { path } if *path == file), "{error:?}");
    assert_eq!(std::fs::read(&file).unwrap(), b"precious");
}

#[test]
fn a_store_that_does_not_fit_the_disk_names_the_file_and_the_bytes() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join(FILE_NAME);
    // 4 EiB, more than any disk has.
    let needed_at_least = u64::from(u32::MAX) << 30;
    let error = NvmeStore::open_without_memory(NvmeOptions::new(dir.path(), u32::MAX, 1 << 30))
        .expect_err("no disk has an exbibyte");
    let OpenError::NoRoom { path, needed_bytes, allocated_bytes: 0, available_bytes } = &error else {
        panic!("{error:?}");
    };
    assert_eq!(path, &file);
    assert!(*needed_bytes > needed_at_least && *available_bytes < needed_at_least, "{error}");
    let text = error.to_string();
    for part in [file.to_str().unwrap(), &needed_bytes.to_string(), &available_bytes.to_string()] {
        assert!(text.contains(part), "{text:?} must say {part:?}");
    }
    assert!(!file.exists(), "nothing is left behind");
}

#[test]
fn a_store_says_that_its_chunks_are_not_the_slots_of_the_host_memory() {
    let setup = Setup::new(2);
    let (slot, chunk) = (setup.chunk_bytes() as u64, setup.chunk_bytes() as u64 + 8);
    let dir = tempfile::tempdir().unwrap();
    let error = check_open(NvmeOptions::new(dir.path(), 8, chunk), &[&slot.to_string(), &chunk.to_string()]);
    assert!(
        matches!(error, OpenError::ChunkBytes { chunk_bytes, slot_bytes } if (chunk_bytes, slot_bytes) == (chunk, slot))
    );
    assert!(std::fs::read_dir(dir.path()).unwrap().next().is_none());
}

#[test]
fn two_stores_do_not_share_a_directory() {
    let setup = Setup::new(2);
    let dir = tempfile::tempdir().unwrap();
    let options = NvmeOptions::new(dir.path(), 4, setup.chunk_bytes() as u64);
    let first = NvmeStore::open(options.clone(), setup.region()).unwrap();
    let index = dir.path().join(INDEX_FILE_NAME);
    check_open(options.clone(), &[index.to_str().unwrap(), "in use"]);
    drop(first);
    NvmeStore::open(options, setup.region()).expect("the first one is gone");
}

#[test]
fn a_region_that_does_not_fit_the_memory_names_both_numbers() {
    let slot_bytes = 1 << 30;
    let options = RegionOptions::new(1 << 20, slot_bytes);
    let error = HostRegion::anonymous(&options).expect_err("no machine has a pebibyte");
    let RegionError::NotEnoughMemory { asked_bytes, available_bytes } = error else { panic!("{error:?}") };
    assert_eq!(asked_bytes, slot_bytes << 20);
    let text = RegionError::NotEnoughMemory { asked_bytes, available_bytes }.to_string();
    assert!(text.contains(&asked_bytes.to_string()) && text.contains(&available_bytes.to_string()), "{text}");
    assert!(available_bytes < asked_bytes as u64);

    let error = HostRegion::anonymous(&RegionOptions::new(u32::MAX, usize::MAX / 2)).unwrap_err();
    let text = error.to_string();
    assert!(text.contains(&u32::MAX.to_string()) && text.contains(&(usize::MAX / 2).to_string()), "{text}");
}

#[test]
fn tiers_of_one_name_make_no_manager() {
    let setup = Setup::new(2);
    let region = setup.region();
    let tiers: Vec<Box<dyn SecondaryTier>> =
        (0..2).map(|_| Box::new(memory_tier(4, &region)) as Box<dyn SecondaryTier>).collect();
    let primary = CpuManager::new(CpuOptions::new(2), Lru::new(2)).unwrap();
    let clock = Box::new(ManualClock::default());
    let error = TieringManager::new(primary, tiers, TieringOptions::new(1), clock).unwrap_err();
    assert_eq!(error, TieringConfigError::DuplicateTier { name: "memory".to_owned() });
    assert_eq!(Arc::strong_count(&region), 1, "what the tiers shared is given back");
}
