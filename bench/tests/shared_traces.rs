//! Public traces are read as published. Skipped where the files are not there.

mod common;

use kvo_bench::{ReadOptions, read_trace};

#[track_caller]
fn check(file: &str, requests: usize, accesses: u64, unique: u32, fingerprint: &str) {
    let Some(traces) = common::shared_traces() else { return };
    let trace = read_trace(&traces.join(file), ReadOptions::default()).unwrap();
    assert_eq!(trace.requests.len(), requests);
    assert_eq!(trace.num_accesses(), accesses);
    assert_eq!(trace.num_unique, unique);
    assert_eq!(trace.fingerprint().to_string(), fingerprint);
}

#[test]
fn mooncake_conversation_has_its_fingerprint() {
    check("conversation_trace.jsonl", 12_031, 288_500, 182_790, "3b1774616d9d00d3");
}

#[test]
fn mooncake_synthetic_has_its_fingerprint() {
    check("synthetic_trace.jsonl", 3_993, 121_877, 43_924, "8b19b62c86af7fd6");
}

#[test]
fn weka_sessions_have_their_fingerprint() {
    check("weka512.jsonl.gz", 7_468, 1_801_983, 66_801, "ba0ee44bf9e0bc3b");
}
