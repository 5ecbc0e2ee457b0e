//! `wipe`.

use std::fs;

use serde_json::json;

use crate::rig::Store;

#[test]
fn nothing_is_wiped_without_yes() {
    let store = Store::with_chunks(2, 6);
    let text = store.untouched_by(|store| store.text("wipe", &[], 0));
    assert!(text.contains("would be done: 6 chunks dropped") && text.contains("--yes does it"), "{text}");
    assert_eq!(store.untouched_by(|store| store.json("wipe", &[], 0))["done"], json!(false));
}

#[test]
fn after_a_wipe_the_store_is_there_and_nothing_is_in_it() {
    let store = Store::with_chunks(2, 6);
    let report = store.json("wipe", &["--yes"], 0);
    assert_eq!((&report["done"], &report["num_chunks"]), (&json!(true), &json!(6)));
    let stat = store.json("stat", &[], 0);
    assert_eq!((&stat["used_chunks"], &stat["state"]), (&json!(0), &json!("clean")));
    for device in [0, 1] {
        let bytes = fs::read(store.data(device)).unwrap();
        assert!(bytes[2 << 20..].iter().all(|byte| *byte == 0), "device {device}");
    }
    assert!(store.text("wipe", &["--yes"], 0).contains("dropped 0 chunks"));
}
