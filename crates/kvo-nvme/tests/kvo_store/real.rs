//! The program beside the store itself.

use std::{fs, time::Duration};

use kvo_core::{BlockHash, GroupIdx, OffloadKey};
use kvo_nvme::{NvmeOptions, NvmeStore};
use serde_json::json;

use crate::rig::{CHUNK_BYTES, NUM_SLOTS, Store, flip};

fn open(store: &Store) -> NvmeStore {
    let dirs = store.dirs.iter().map(|dir| dir.path().to_path_buf()).collect();
    let options = NvmeOptions { dirs, ..NvmeOptions::new("", NUM_SLOTS, CHUNK_BYTES) };
    NvmeStore::open_without_memory(options).unwrap()
}

fn key(n: u64) -> OffloadKey {
    OffloadKey::new(BlockHash::from_u64(n), GroupIdx(1))
}

fn chunk(n: u64) -> Vec<u8> {
    vec![n.to_le_bytes()[0]; usize::try_from(CHUNK_BYTES).unwrap()]
}

/// Which of the chunks a store has, with the right bytes.
fn hits(store: &mut NvmeStore, ns: std::ops::Range<u64>) -> Vec<u64> {
    let mut bytes = chunk(0);
    ns.filter(|n| store.read_chunk(&key(*n), &mut bytes).unwrap() && bytes == chunk(*n)).collect()
}

#[test]
fn what_a_store_has_written_is_listed_and_verified() {
    let files = Store::new(2);
    let mut store = open(&files);
    for n in 0..20 {
        store.write_chunk(key(n), &chunk(n)).unwrap();
    }
    for command in ["stat", "ls", "verify", "repair"] {
        assert_eq!(files.run(command, &[]).status, 4, "{command}: it is open");
    }
    store.close(Duration::from_mins(1)).unwrap();

    let stat = files.json("stat", &[], 0);
    assert_eq!((&stat["state"], &stat["used_chunks"]), (&json!("clean"), &json!(20)));
    assert_eq!(stat["written_bytes"], json!(20 * CHUNK_BYTES));
    assert_eq!(files.json("verify", &[], 0)["checked_chunks"], json!(20));
    let listed = files.json("ls", &["--order=eviction"], 0);
    let keys: Vec<_> = listed["chunks"].as_array().unwrap().iter().map(|chunk| &chunk["key"]).collect();
    let expected: Vec<_> = (0..20).map(|n| key(n).hash().to_string()).collect();
    assert_eq!(keys, expected.iter().collect::<Vec<_>>(), "the one that was used least recently goes first");
}

#[test]
fn a_store_that_was_mended_opens_and_has_the_rest() {
    let files = Store::new(1);
    let mut store = open(&files);
    for n in 0..10 {
        store.write_chunk(key(n), &chunk(n)).unwrap();
    }
    store.close(Duration::from_mins(1)).unwrap();
    let slot_of = |n: u64| {
        let listed = files.json("ls", &[], 0);
        let hash = json!(key(n).hash().to_string());
        let chunk = listed["chunks"].as_array().unwrap().iter().find(|chunk| chunk["key"] == hash).unwrap();
        u32::try_from(chunk["slot"].as_u64().unwrap()).unwrap()
    };
    let (bad, lost) = (slot_of(3), slot_of(6));
    files.flip_payload(bad);
    files.flip_record(lost);
    files.flip_superblock(0);
    // The eviction order, behind the records of 40 slots.
    flip(&files.index(), 16384);
    let report = files.json("repair", &["--yes", "--verify"], 1);
    assert_eq!(report["bad_chunks"][0]["slot"], json!(bad));
    assert_eq!(report["damaged_records"], json!([lost]));
    files.json("verify", &[], 0);

    let mut store = open(&files);
    assert_eq!(store.recovery().damaged_records, 0);
    assert_eq!(hits(&mut store, 0..10), [0, 1, 2, 4, 5, 7, 8, 9]);
    store.write_chunk(key(3), &chunk(3)).unwrap();
    assert_eq!(hits(&mut store, 0..10), [0, 1, 2, 3, 4, 5, 7, 8, 9]);
    drop(store);
    files.json("verify", &[], 0);
}

#[test]
fn a_damaged_order_alone_is_mended_and_a_copy_of_a_running_store_is_told_as_not_closed() {
    let files = Store::new(1);
    let mut store = open(&files);
    for n in 0..5 {
        store.write_chunk(key(n), &chunk(n)).unwrap();
    }
    let running: Vec<_> = [files.index(), files.data(0)].map(|path| (fs::read(&path).unwrap(), path)).into();
    store.close(Duration::from_mins(1)).unwrap();
    flip(&files.index(), 16384);
    let stat = files.json("stat", &[], 1);
    assert_eq!(stat["damage"][0]["what"], json!("order"));
    assert_eq!(files.json("repair", &["--yes"], 1)["order"], json!(true));
    let stat = files.json("stat", &[], 0);
    assert_eq!((&stat["state"], &stat["used_chunks"]), (&json!("open"), &json!(5)));

    for (bytes, path) in running {
        fs::write(path, bytes).unwrap();
    }
    let stat = files.json("stat", &[], 0);
    assert_eq!(stat["state"], json!("open"));
    assert!(files.text("stat", &[], 0).contains("not closed"));
    files.json("verify", &[], 0);
}
