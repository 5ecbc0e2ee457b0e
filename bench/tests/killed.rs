//! A replay that is killed half-way, and goes on in another process over what is left of its store.

mod common;

use std::{fs, os::unix::process::ExitStatusExt, path::Path, process::Command};

use serde_json::Value;

/// Requests before the kill, and after it.
const BEFORE: usize = 400;
const AFTER: usize = 400;

fn replay(trace: &str, store: &Path, out: &Path, more: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kvo-bench"));
    command.args([
        "replay",
        "--trace",
        trace,
        "--gpu-blocks",
        "256",
        "--cpu-chunks",
        "512",
        "--nvme-chunks",
        "4096",
    ]);
    command.args(["--block-bytes", "4096", "--keep-store"]).arg(store).args(more).env("KVO_BENCH_OUT", out);
    command
}

#[track_caller]
fn check(trace: &str) {
    let (store, out) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let all = format!("0..{}", BEFORE + AFTER);
    let killed =
        replay(trace, store.path(), out.path(), &["--requests", &all, "--kill-after", &BEFORE.to_string()])
            .output()
            .unwrap();
    assert_eq!(killed.status.signal(), Some(9), "{}", String::from_utf8_lossy(&killed.stderr));
    assert!(fs::read_dir(out.path()).unwrap().next().is_none(), "it was killed before its end");

    let rest = format!("{BEFORE}..{}", BEFORE + AFTER);
    let output = replay(trace, store.path(), out.path(), &["--requests", &rest]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{said}{}", String::from_utf8_lossy(&output.stderr));
    let json = fs::read(out.path().join("replay.json")).unwrap();
    let results = &serde_json::from_slice::<Value>(&json).unwrap()["results"];
    let count = |field: &str| results[field].as_u64().unwrap();
    let counts =
        ["requests", "blocks_compared", "mismatches", "recovered_chunks", "blocks_found_again"].map(count);
    eprintln!("{trace}: requests, compared, mismatches, recovered, found again: {counts:?}");
    let [requests, compared, mismatches, recovered, found_again] = counts;
    assert_eq!((requests, mismatches), (AFTER as u64, 0));
    assert!(compared >= found_again && recovered > 1000 && found_again > 100, "{counts:?}");
}

#[test]
fn a_replay_that_was_killed_goes_on_with_what_it_had_stored() {
    check("synth:1000:5");
}

#[test]
fn a_replay_of_conversations_that_was_killed_goes_on_with_what_it_had_stored() {
    let Some(traces) = common::shared_traces() else { return };
    check(traces.join("conversation_trace.jsonl").to_str().unwrap());
}
