//! The runner of recorded behaviour: that it finds what differs, and that the recordings pass.

use std::{
    fs,
    path::{Path, PathBuf},
};

use kvo_tests::conformance::{Mismatch, replay, scenario_files};

const HEADER: &str = r#"{"format":1,"manager":"cpu","policy":"lru","num_chunks":2,"store_threshold":1,"max_tracker_size":64,"seed":1}"#;
const BEGIN: &str = r#"{"op":"new_request","req":"r0"}"#;

fn scenario(dir: &Path, lines: &[&str]) -> PathBuf {
    let file = dir.join("scenario.jsonl");
    fs::write(&file, lines.join("\n")).unwrap();
    file
}

fn mismatch(lines: &[&str]) -> Mismatch {
    let dir = tempfile::tempdir().unwrap();
    replay(&scenario(dir.path(), lines)).unwrap().expect_err("the scenario must not pass")
}

#[track_caller]
fn check_refused(lines: &[&str], line: usize, wanted: &str) {
    let dir = tempfile::tempdir().unwrap();
    let file = scenario(dir.path(), lines);
    let error = format!("{:#}", replay(&file).expect_err("the file must be refused"));
    assert!(error.contains(&format!("{}:{line}", file.display())) && error.contains(wanted), "{error}");
}

#[test]
fn a_differing_answer_is_shown_with_its_line_and_both_answers() {
    let lookup = r#"{"op":"lookup","req":"r0","key":[7,0],"expect":"HIT"}"#;
    let found = mismatch(&[HEADER, BEGIN, lookup]);
    assert_eq!((found.line, found.expected.as_str(), found.actual.as_str()), (3, r#""HIT""#, r#""MISS""#));
    assert!(found.to_string().contains("scenario.jsonl:3"), "{found}");
}

#[test]
fn an_order_of_eviction_that_differs_is_found() {
    let store = r#"{"op":"prepare_store","req":"r0","keys":[[1,0],[2,0]],"expect":{"keys_to_store":[[1,0],[2,0]],"evicted":[]}}"#;
    let done = r#"{"op":"complete_store","req":"r0","keys":[[1,0],[2,0]],"success":true}"#;
    let right = r#"{"op":"prepare_store","req":"r0","keys":[[3,0],[4,0]],"expect":{"keys_to_store":[[3,0],[4,0]],"evicted":[[1,0],[2,0]]}}"#;
    let dir = tempfile::tempdir().unwrap();
    let compared = replay(&scenario(dir.path(), &[HEADER, BEGIN, store, done, right])).unwrap().unwrap();
    assert_eq!(compared, 2, "both answers were compared");
    let wrong = right.replace("[[1,0],[2,0]]}", "[[2,0],[1,0]]}");
    assert_eq!(mismatch(&[HEADER, BEGIN, store, done, &wrong]).line, 5);
}

#[test]
fn an_answer_that_the_recording_lacks_is_a_difference() {
    assert_eq!(mismatch(&[HEADER, r#"{"op":"stats"}"#]).line, 2);
}

#[test]
fn what_is_no_scenario_is_refused_by_file_and_line() {
    check_refused(&["{}"], 1, "format");
    check_refused(&[&HEADER.replace("\"format\":1", "\"format\":2")], 1, "format 1");
    check_refused(&[&HEADER.replace("lru", "mru")], 1, "mru");
    check_refused(&[&HEADER.replace("\"num_chunks\":2", "\"num_chunks\":0")], 1, "num_slots");
    check_refused(&[HEADER, BEGIN, r#"{"op":"dance","req":"r0"}"#], 3, "dance");
    check_refused(&[HEADER, r#"{"op":"lookup","req":"r9","key":[1,0],"expect":"MISS"}"#], 2, "r9");
    check_refused(&[HEADER, BEGIN, "{"], 3, "EOF");
    check_refused(
        &[HEADER, BEGIN, r#"{"op":"complete_store","req":"r0","keys":[[1,0]],"success":true}"#],
        3,
        "r0",
    );
}

#[test]
fn a_directory_without_scenarios_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let error = scenario_files(dir.path()).unwrap_err().to_string();
    assert!(error.contains("no scenario"), "{error}");
    assert!(scenario_files(&dir.path().join("absent")).is_err());
    let empty = dir.path().join("empty.jsonl");
    fs::write(&empty, "").unwrap();
    assert!(replay(&empty).unwrap_err().to_string().contains("is empty"));
}

#[test]
fn the_recordings_of_the_reference_pass() {
    let shared = std::env::var_os("KVO_SHARED").map_or_else(
        || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared"),
        |dir| Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(dir),
    );
    let dir = shared.join("conformance");
    if !dir.is_dir() {
        eprintln!("SKIPPED: no recordings at {}; KVO_SHARED names the directory above them", dir.display());
        return;
    }
    for file in scenario_files(&dir).unwrap() {
        if let Err(mismatch) = replay(&file).unwrap() {
            panic!("{mismatch}");
        }
    }
}
