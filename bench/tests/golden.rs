//! The shipping policies in the shipping CPU tier give the published figures, integer by integer.

mod common;

use indicatif::ProgressBar;
use kvo_bench::{Interrupt, ReadOptions, Trace, golden, kvo_synth, read_trace, run_cells};

/// Runs every published cell of the trace.
#[track_caller]
fn check(trace: &Trace) {
    let fingerprint = trace.fingerprint();
    let published: Vec<_> = golden::all().filter(|cell| cell.trace == fingerprint.value()).collect();
    assert_eq!(published.len(), 50, "10 policies at 5 capacities are published for {}", trace.name);
    let cells: Vec<_> = published.iter().map(|cell| (cell.policy, cell.capacity)).collect();
    let results = run_cells(trace, &cells, &Interrupt::manual(), &ProgressBar::hidden()).unwrap();
    for (cell, result) in published.iter().zip(&results) {
        assert_eq!(result.requests, trace.requests.len());
        assert!(cell.agrees(result), "published {cell:x?}, counted {result:?}");
    }
}

#[track_caller]
fn check_file(file: &str) {
    let Some(traces) = common::shared_traces() else { return };
    check(&read_trace(&traces.join(file), ReadOptions::default()).unwrap());
}

#[test]
fn small_generated_traffic_gives_the_published_hits_and_evictions() {
    check(&kvo_synth(400, 7));
}

#[test]
fn generated_traffic_gives_the_published_hits() {
    check(&kvo_synth(4000, 42));
}

#[test]
fn mooncake_conversation_gives_the_published_hits() {
    check_file("conversation_trace.jsonl");
}

#[test]
fn mooncake_synthetic_gives_the_published_hits() {
    check_file("synthetic_trace.jsonl");
}

#[test]
fn weka_sessions_give_the_published_hits() {
    check_file("weka512.jsonl.gz");
}
