//! `create` and `bench`.

use std::{fs, os::unix::fs::MetadataExt};

use serde_json::json;

use crate::rig::{NUM_SLOTS, Store, run};

fn strings(args: &[&str]) -> Vec<String> {
    args.iter().map(|arg| (*arg).to_owned()).collect()
}

#[test]
fn a_store_is_made_as_asked_on_one_directory_or_more() {
    for num_dirs in [1, 3] {
        let store = Store::new(num_dirs);
        let stat = store.json("stat", &[], 0);
        assert_eq!(stat["capacity_chunks"], json!(NUM_SLOTS));
        assert_eq!((&stat["chunk_bytes"], &stat["stride_bytes"]), (&json!(8192), &json!(8192)));
        assert_eq!((&stat["state"], &stat["used_chunks"]), (&json!("clean"), &json!(0)));
        assert_eq!(stat["dirs"].as_array().unwrap().len(), num_dirs);
        assert_eq!(stat["fingerprint"], json!("0".repeat(64)));
        assert_eq!(stat["damage"], json!([]));
    }
}

#[test]
fn a_size_is_never_exceeded_and_nearly_used() {
    let dirs = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let [a, b] = dirs.each_ref().map(|dir| dir.path().to_str().unwrap());
    let fingerprint = "ab".repeat(32);
    let args = ["create", "--chunk-bytes=5000", "--capacity-bytes=6MiB", "--fingerprint", &fingerprint];
    let ran = run([&args[..], &["--json", a, b]].concat());
    assert_eq!(ran.status, 0, "{}", ran.err);
    let made: serde_json::Value = serde_json::from_str(&ran.out).unwrap();
    assert_eq!((&made["fingerprint"], &made["preinit"]), (&json!(fingerprint), &json!(false)));
    let files = [format!("{a}/kvo-nvme.index"), format!("{a}/kvo-nvme.data"), format!("{b}/kvo-nvme.data")];
    let lengths: u64 = files.iter().map(|file| fs::metadata(file).unwrap().len()).sum();
    let blocks: u64 = files.iter().map(|file| fs::metadata(file).unwrap().blocks() * 512).sum();
    assert!(lengths <= 6 << 20 && lengths + 8192 + 8192 > 6 << 20, "{lengths}");
    assert!(blocks >= lengths, "{blocks} bytes of blocks for {lengths}");
}

#[test]
fn every_block_is_written_once_if_asked() {
    let dir = tempfile::tempdir().unwrap();
    let args = ["create", "--chunk-bytes=64KiB", "--capacity-chunks=20", "--preinit"];
    let ran = run([&args[..], &[dir.path().to_str().unwrap()]].concat());
    assert_eq!(ran.status, 0, "{}", ran.err);
    assert!(ran.out.starts_with("made a store, and wrote every block once\n"), "{}", ran.out);
    assert!(ran.out.contains("0 of 20"), "{}", ran.out);
}

#[test]
fn a_store_that_is_there_is_left_alone_unless_it_is_to_be_emptied() {
    let store = Store::with_chunks(2, 5);
    let same = ["--chunk-bytes=8KiB", "--capacity-chunks=40"];
    let other = ["--chunk-bytes=4KiB", "--capacity-chunks=40"];
    for (options, kind) in [(same, "exists"), (other, "other_store")] {
        let error = store.untouched_by(|store| store.json("create", &options, 3));
        assert_eq!(error["error"]["kind"], json!(kind));
        let ran = store.run("create", &options);
        assert!(ran.err.contains("--empty"), "{}", ran.err);
    }
    let made = store.json("create", &["--empty", other[0], other[1]], 0);
    assert_eq!((&made["used_chunks"], &made["chunk_bytes"]), (&json!(0), &json!(4096)));
}

#[test]
fn too_little_room_is_an_error_or_a_smaller_store() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().to_str().unwrap();
    let args = ["create", "--chunk-bytes=1GiB", "--capacity-chunks=4000000", path];
    let ran = run(args);
    assert_eq!(ran.status, 3, "{}", ran.out);
    assert!(ran.err.contains("--shrink") && ran.err.contains("bytes are available"), "{}", ran.err);
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0, "nothing is left behind");
}

#[test]
fn arguments_that_cannot_be_are_refused_with_status_2() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().to_str().unwrap();
    let size = "--chunk-bytes=8KiB";
    let long = "--capacity-chunks=10";
    let cases: [&[&str]; 14] = [
        &[],
        &["paint"],
        &["stat"],
        &["create", path],
        &["create", size, path],
        &["create", long, path],
        &["create", size, long, "--capacity-bytes=1GiB", path],
        &["create", size, "--capacity-chunks=0", path],
        &["create", size, "--capacity-bytes=2MiB", path],
        &["create", "--chunk-bytes=5GiB", long, path],
        &["create", "--chunk-bytes=elephant", long, path],
        &["create", size, long, "--fingerprint=12", path],
        &["create", size, long, path, path],
        &["repair", "--rate=1MB", path],
    ];
    for args in cases {
        let ran = run(strings(args));
        assert_eq!(ran.status, 2, "{args:?}: {}", ran.err);
        assert!(!ran.err.is_empty());
    }
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
}

#[test]
fn help_says_the_statuses() {
    let ran = run(["--help"]);
    assert_eq!(ran.status, 0);
    for line in
        ["0  all is well", "1  damage", "2  the command", "3  the store cannot", "4  the store is in use"]
    {
        assert!(ran.out.contains(line), "{line:?} in {}", ran.out);
    }
}

#[test]
fn a_bench_measures_and_leaves_nothing_behind() {
    let store = Store::with_chunks(1, 3);
    let path = store.dir().to_str().unwrap();
    let args = ["bench", "--chunk-bytes=64KiB", "--round-bytes=1MiB", "--rounds=2", "--depth=2", path];
    let text = store.untouched_by(|_| run(args));
    assert_eq!(text.status, 0, "{}", text.err);
    assert!(text.out.contains("store over plain"), "{}", text.out);
    let ran = store.untouched_by(|_| run([&args[..], &["--json"]].concat()));
    let report: serde_json::Value = serde_json::from_str(&ran.out).unwrap();
    for way in ["write", "read"] {
        assert_eq!(report[way]["store_bytes_per_s"].as_array().unwrap().len(), 2);
        assert!(report[way]["ratio"].as_f64().unwrap() > 0.0);
    }
    let ran = run(["bench", "no/such/directory"]);
    assert_eq!(ran.status, 3, "{}", ran.err);
}
