//! `stat`, `ls` and `verify`.

use std::{
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::rig::{NUM_SLOTS, Store, generation, key};

/// The slots of the chunks in a report.
fn slots(report: &Value, list: &str) -> Vec<u64> {
    report[list].as_array().unwrap().iter().map(|chunk| chunk["slot"].as_u64().unwrap()).collect()
}

#[test]
fn stat_counts_what_is_there() {
    let store = Store::with_chunks(2, 10);
    store.quarantine(30);
    let stat = store.untouched_by(|store| store.json("stat", &[], 0));
    assert_eq!(stat["used_chunks"], json!(10));
    assert_eq!(stat["quarantined_chunks"], json!(1));
    assert_eq!(stat["free_chunks"], json!(NUM_SLOTS - 11));
    assert_eq!(stat["used_bytes"], json!(10 * 8192));
    assert_eq!(stat["superblocks"].as_array().unwrap().len(), 2);
    let text = store.text("stat", &[], 0);
    assert!(text.contains("10 of 40 (25 %)") && text.contains("1 slot, not used any more"), "{text}");
}

#[test]
fn stat_tells_the_writes_of_its_life() {
    let store = Store::new(1);
    // Where the format has the time of making and the bytes that were written.
    let (created, written) = (112, 120);
    store.patch_superblocks(written, &(3_u64 << 30).to_le_bytes());
    let stat = store.json("stat", &[], 0);
    assert_eq!(stat["written_bytes"], json!(3_u64 << 30));
    assert_eq!(stat["drive_writes_per_day"], Value::Null, "its first hour is too short");

    let ten_days_ago = stat["created_s"].as_u64().unwrap() - 10 * 86400;
    store.patch_superblocks(created, &ten_days_ago.to_le_bytes());
    let stat = store.json("stat", &[], 0);
    let a_day = stat["drive_writes_per_day"].as_f64().unwrap();
    let expected = (3_u64 << 30) as f64 / (f64::from(NUM_SLOTS) * 8192.0) / 10.0;
    assert!((a_day / expected - 1.0).abs() < 0.01, "{a_day}, {expected}");
    assert!(store.text("stat", &[], 0).contains("3.0 GiB in its life"));

    for nonsense in [u64::MAX, 1 << 40, 0] {
        store.patch_superblocks(created, &nonsense.to_le_bytes());
        store.json("stat", &[], 0);
        store.text("stat", &[], 0);
    }
}

#[test]
fn ls_lists_chunks_in_each_order_up_to_a_limit() {
    let store = Store::new(2);
    for (n, slot) in [(1, 7), (2, 3), (3, 20)] {
        store.put(n, slot);
    }
    let list = |options: &[&str]| store.untouched_by(|store| store.json("ls", options, 0));
    assert_eq!(slots(&list(&[]), "chunks"), [20, 3, 7], "the newest first");
    assert_eq!(slots(&list(&["--order=slot"]), "chunks"), [3, 7, 20]);
    assert_eq!(slots(&list(&["--order=eviction"]), "chunks"), [20, 3, 7], "one request, its tail first");
    let limited = list(&["--limit=1"]);
    assert_eq!((slots(&limited, "chunks"), &limited["num_chunks"]), (vec![20], &json!(3)));

    let chunk = &list(&["--order=slot"])["chunks"][0];
    let expected = json!({
        "slot": 3,
        "key": key(2).hash().to_string(),
        "group": 2,
        "length": 8192,
        "generation": generation(2),
        "end_token": 32,
    });
    assert_eq!(*chunk, expected);
    let text = store.text("ls", &["--limit=1"], 0);
    assert!(text.contains(&key(3).hash().to_string()) && text.contains("2 chunks more"), "{text}");
}

#[test]
fn verify_reads_every_chunk() {
    for num_dirs in [1, 3] {
        let store = Store::with_chunks(num_dirs, 12);
        let report = store.untouched_by(|store| store.json("verify", &[], 0));
        assert_eq!((&report["num_chunks"], &report["checked_chunks"]), (&json!(12), &json!(12)));
        assert_eq!(report["bad_chunks"], json!([]));
        assert_eq!(report["read_bytes"], json!(12 * 8192));
        assert!(store.text("verify", &[], 0).contains("12 of 12 chunks checked, 0 bad"));
    }
}

#[test]
fn each_flipped_chunk_is_found_and_no_other() {
    let store = Store::with_chunks(2, 30);
    let flipped = [0, 7, 8, 29];
    for slot in flipped {
        store.flip_payload(slot);
    }
    let report = store.untouched_by(|store| store.json("verify", &[], 1));
    assert_eq!(slots(&report, "bad_chunks"), [0, 7, 8, 29]);
    assert_eq!(report["checked_chunks"], json!(30), "it goes on behind a bad one");
    assert_eq!(report["bad_chunks"][1]["key"], json!(key(7).hash().to_string()));
    assert!(report["bad_chunks"][1]["damage"].as_str().unwrap().contains("checksum"));
    let text = store.text("verify", &[], 1);
    assert!(text.contains("30 of 30 chunks checked, 4 bad"), "{text}");
    assert_eq!(text.matches("the checksum is").count(), 4, "{text}");
    store.json("stat", &[], 0);
}

#[test]
fn verify_is_held_down_to_a_rate() {
    let store = Store::with_chunks(1, 9);
    let started = Instant::now();
    store.json("verify", &["--rate=256KiB"], 0);
    // Eight chunks before the last one begins.
    assert!(started.elapsed().as_secs_f64() >= 0.25, "{:?}", started.elapsed());
}

#[test]
fn damaged_records_and_superblocks_are_told_and_the_rest_is_read() {
    let store = Store::with_chunks(1, 10);
    store.flip_record(4);
    store.flip_record(25);
    store.flip_superblock(1);
    let stat = store.untouched_by(|store| store.json("stat", &[], 1));
    assert_eq!((&stat["damaged_records"], &stat["used_chunks"]), (&json!(2), &json!(9)));
    let what: Vec<_> = stat["damage"].as_array().unwrap().iter().map(|damage| &damage["what"]).collect();
    assert_eq!(what, ["superblock", "records"]);
    assert_eq!(stat["superblocks"][1]["damage"], json!("wrong checksum"));
    assert_eq!(stat["superblocks"][0]["damage"], Value::Null);
    let text = store.text("stat", &[], 1);
    assert!(text.contains("the second superblock: wrong checksum"), "{text}");
    assert!(text.contains("2 records, the first of slot 4"), "{text}");

    let report = store.json("verify", &[], 1);
    assert_eq!((&report["checked_chunks"], &report["bad_chunks"]), (&json!(9), &json!([])));
    assert_eq!(store.json("ls", &[], 0)["num_chunks"], json!(9));
}

/// Waits until a process waits for a time that it has set itself.
#[track_caller]
fn wait_for_nap(pid: Pid) {
    let (path, start) = (format!("/proc/{}/syscall", pid.as_raw_nonzero()), Instant::now());
    let naps = [libc::SYS_nanosleep, libc::SYS_clock_nanosleep].map(|call| call.to_string());
    loop {
        let call = std::fs::read_to_string(&path).unwrap();
        if call.split(' ').next().is_some_and(|call| naps.iter().any(|nap| nap == call)) {
            return;
        }
        assert!(start.elapsed() < Duration::from_mins(1), "it does not wait, it is in {call}");
        thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn ctrl_c_ends_verify_with_what_it_had() {
    let store = Store::with_chunks(1, 10);
    let args = ["verify", "--json", "--rate=100", store.dir().to_str().unwrap()];
    let child =
        Command::new(env!("CARGO_BIN_EXE_kvo-store")).args(args).stdout(Stdio::piped()).spawn().unwrap();
    // The first chunk goes at once, the second would in 80 seconds.
    let pid = Pid::from_child(&child);
    wait_for_nap(pid);
    kill_process(pid, Signal::INT).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&report["num_chunks"], &report["checked_chunks"]), (&json!(10), &json!(1)));
}
