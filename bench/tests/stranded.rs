//! Which policies strand chunks: keep some that are resident while one before them in their prefix is not.

mod common;

use indicatif::ProgressBar;
use kvo_bench::{Contender, ContenderList, Interrupt, ReadOptions, Trace, kvo_synth, read_trace, run_cells};

/// Of each policy the worst sample of all capacities, in percent of the resident chunks.
fn worst(trace: &Trace, policies: &str, percents: &[u32]) -> Vec<(Contender, f64)> {
    let ContenderList(policies) = policies.parse().unwrap();
    let worst = |policy: Contender| {
        let cells: Vec<_> =
            percents.iter().map(|percent| (policy, (trace.num_unique * percent / 100).max(1))).collect();
        let results = run_cells(trace, &cells, &Interrupt::manual(), &ProgressBar::hidden()).unwrap();
        let percents = results.iter().filter_map(|result| Some(result.stranded_worst?.percent()));
        (policy, percents.fold(0.0, f64::max))
    };
    policies.into_iter().map(worst).collect()
}

#[track_caller]
fn check_strand_nothing(trace: &Trace, policies: &str) {
    for (policy, worst) in worst(trace, policies, &[1, 5, 10, 20, 50]) {
        assert!(worst == 0.0, "{policy} strands {worst} % on {}", trace.name);
    }
}

#[track_caller]
fn check_strand(trace: &Trace, policies: &str, percent_min: f64) {
    for (policy, worst) in worst(trace, policies, &[1, 5, 10, 20, 50]) {
        assert!(worst >= percent_min, "{policy} strands no more than {worst} % on {}", trace.name);
    }
}

const STRAND_NOTHING: &str = "lru,slru,slru:protected=50,aslru,ylru,s3fifo,s3fifo:small=10,threshold=2,opt";

#[test]
fn the_policies_in_lru_order_and_leaf_only_s3_fifo_strand_nothing() {
    check_strand_nothing(&kvo_synth(4000, 42), STRAND_NOTHING);
    for seed in 0..5 {
        check_strand_nothing(&kvo_synth(400, seed), STRAND_NOTHING);
    }
    if let Some(traces) = common::shared_traces() {
        let read = |file| read_trace(&traces.join(file), ReadOptions::default()).unwrap();
        check_strand_nothing(&read("synthetic_trace.jsonl"), STRAND_NOTHING);
        check_strand_nothing(&read("weka512.jsonl.gz"), STRAND_NOTHING);
    }
}

#[test]
fn arc_fifo_and_plain_s3_fifo_strand_some() {
    check_strand(
        &kvo_synth(4000, 42),
        "arc,arc:ghost-hits=t2,arc:canonical,s3fifo:leaf-only=false,fifo",
        1.0,
    );
}

#[test]
fn arc_as_in_the_reference_and_fifo_strand_a_quarter_on_sessions_of_agents() {
    let Some(traces) = common::shared_traces() else { return };
    let trace = read_trace(&traces.join("weka512.jsonl.gz"), ReadOptions::default()).unwrap();
    check_strand(&trace, "arc,fifo", 25.0);
}
