//! `repair`.

use serde_json::json;

use crate::rig::{Store, flip};

#[test]
fn a_good_store_has_nothing_to_be_mended() {
    let store = Store::with_chunks(2, 6);
    let report = store.untouched_by(|store| store.json("repair", &["--yes", "--verify"], 0));
    assert_eq!((&report["done"], &report["verified"]), (&json!(true), &json!(true)));
    assert!(store.text("repair", &[], 0).contains("there is nothing to be done"));
}

#[test]
fn nothing_is_changed_without_yes() {
    let store = Store::with_chunks(2, 6);
    store.flip_superblock(0);
    store.flip_record(2);
    store.flip_payload(3);
    store.quarantine(20);
    let options = ["--verify", "--release-quarantined"];
    let text = store.untouched_by(|store| store.text("repair", &options, 1));
    for line in [
        "would be done: a superblock is written again",
        "would be done: 1 slot: the damaged records are emptied",
        "would be done: 1 slot: they failed, and are used again",
        "would be done: 1 bad chunk dropped",
        "nothing was changed; --yes does it",
    ] {
        assert!(text.contains(line), "{line:?} in {text}");
    }
    let report = store.untouched_by(|store| store.json("repair", &options, 1));
    assert_eq!(report["done"], json!(false));
}

#[test]
fn a_superblock_is_written_again_from_its_twin() {
    for block in [0, 1] {
        let store = Store::with_chunks(2, 6);
        let id = store.json("stat", &[], 0)["id"].clone();
        store.flip_superblock(block);
        assert_eq!(store.json("repair", &["--yes"], 1)["superblock"], json!(true));
        let stat = store.json("stat", &[], 0);
        assert_eq!((&stat["id"], &stat["used_chunks"]), (&id, &json!(6)));
        store.json("verify", &[], 0);
        assert_eq!(store.json("repair", &["--yes"], 0)["superblock"], json!(false), "it is mended");
    }
}

#[test]
fn damaged_records_are_emptied_and_bad_chunks_dropped() {
    let store = Store::with_chunks(1, 10);
    store.flip_record(4);
    store.flip_payload(5);
    store.flip_payload(6);
    let report = store.json("repair", &["--yes"], 1);
    assert_eq!((&report["damaged_records"], &report["verified"]), (&json!([4]), &json!(false)));
    assert_eq!(store.json("stat", &[], 0)["used_chunks"], json!(9));
    assert_eq!(store.record(4), [0; 128]);

    let report = store.json("repair", &["--yes", "--verify"], 1);
    assert_eq!(report["bad_chunks"].as_array().unwrap().len(), 2);
    let stat = store.json("stat", &[], 0);
    assert_eq!((&stat["used_chunks"], &stat["free_chunks"]), (&json!(7), &json!(33)));
    assert_eq!(store.json("verify", &[], 0)["checked_chunks"], json!(7));
}

#[test]
fn failed_slots_are_released_only_if_asked() {
    let store = Store::with_chunks(1, 3);
    store.quarantine(8);
    store.quarantine(9);
    let report = store.json("repair", &["--yes"], 0);
    assert_eq!((&report["released_slots"], &report["quarantined_slots"]), (&json!([]), &json!([8, 9])));
    assert_eq!(store.json("stat", &[], 0)["quarantined_chunks"], json!(2));
    assert!(store.text("repair", &[], 0).contains("2 slots failed and stay unused"));
    let report = store.json("repair", &["--yes", "--release-quarantined"], 0);
    assert_eq!(report["released_slots"], json!([8, 9]));
    let stat = store.json("stat", &[], 0);
    assert_eq!((&stat["quarantined_chunks"], &stat["used_chunks"]), (&json!(0), &json!(3)));
}

#[test]
fn a_damaged_header_is_written_again() {
    let store = Store::with_chunks(2, 6);
    flip(&store.data(1), 100);
    let stat = store.json("stat", &[], 1);
    assert_eq!(stat["damage"][0]["what"], json!("file"));
    let report = store.json("repair", &["--yes"], 1);
    assert_eq!(report["headers"], json!([store.data(1)]));
    assert_eq!(report["left"], json!([]));
    store.json("stat", &[], 0);
    store.json("verify", &[], 0);
}
