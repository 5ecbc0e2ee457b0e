//! Overlapping requests, two tiers and curves give the published figures on public traces. Skipped where the files are not
//! there.

mod common;

use std::ops::ControlFlow;

use kvo_bench::{
    Capacity, Fill, LruCurve, ReadOptions, Refused, ServiceTime, Trace, VirtualTime, golden, read_trace,
    run_overlap, run_two_tiers,
};
use kvo_policies::PolicyKind;

const GO: fn() -> ControlFlow<()> = || ControlFlow::Continue(());

fn read(file: &str) -> Option<Trace> {
    let traces = common::shared_traces()?;
    Some(read_trace(&traces.join(file), ReadOptions::default()).unwrap())
}

fn percent_of_unique(trace: &Trace, percent: u32) -> u32 {
    Capacity::Percent(percent.into()).chunks(trace.num_unique).unwrap()
}

/// Published figures have one decimal, and one or two were rounded twice.
#[track_caller]
fn check_percent(part: u64, whole: u64, published: f64) {
    let percent = 100.0 * part as f64 / whole as f64;
    assert!((percent - published).abs() < 0.0551, "{published} % are published, {percent} counted");
}

/// Overlapping requests at 1, 5, 10 and 20 %, as far as there are hits.
#[track_caller]
fn check_overlap(trace: &Trace, policy: &str, published: &[f64], in_flight_peak: usize) -> Vec<u64> {
    let service = ServiceTime {
        base: VirtualTime { us: 500_000 },
        uncached_token: VirtualTime { us: 50 },
        output_token: VirtualTime { us: 20_000 },
    };
    let policy: PolicyKind = policy.parse().unwrap();
    let mut refused = Vec::new();
    for (percent, hits) in [1, 5, 10, 20].into_iter().zip(published) {
        let capacity = percent_of_unique(trace, percent);
        let result = run_overlap(trace, policy, capacity, service, Refused::Shorten, GO).unwrap();
        check_percent(result.hits, result.accesses, *hits);
        if percent >= 10 {
            assert_eq!(result.in_flight_peak, in_flight_peak, "{policy} at {percent} %");
        }
        refused.push(result.chunks_refused);
    }
    refused
}

#[test]
fn overlapping_requests_of_conversations_give_the_published_hits() {
    let Some(trace) = read("conversation_trace.jsonl") else { return };
    check_overlap(&trace, "lru", &[5.7, 20.5, 28.2, 34.6], 58);
    check_overlap(&trace, "arc", &[6.6, 19.8, 28.0, 31.7], 58);
    check_overlap(&trace, "aslru", &[8.3, 22.2, 28.9, 34.2], 58);
}

#[test]
fn overlapping_requests_of_agents_give_the_published_hits_and_refusals() {
    let Some(trace) = read("weka512.jsonl.gz") else { return };
    assert_eq!(check_overlap(&trace, "lru", &[33.2, 81.8, 92.3], 13), [169_584, 0, 0]);
    check_overlap(&trace, "slru:protected=50", &[33.9, 81.7, 92.3], 13);
}

#[track_caller]
fn check_two_tiers(trace: &Trace, percents: (u32, u32), fill: Fill, published: [f64; 4]) {
    let capacities = (percent_of_unique(trace, percents.0), percent_of_unique(trace, percents.1));
    let result = run_two_tiers(trace, PolicyKind::Lru, capacities, fill, GO);
    let [gpu, cpu, both, inserts] = published;
    check_percent(result.gpu_hits, result.accesses, gpu);
    check_percent(result.cpu_hits, result.accesses, cpu);
    check_percent(result.gpu_hits + result.cpu_hits, result.accesses, both);
    let per_unique = result.cpu_inserts as f64 / f64::from(trace.num_unique);
    assert!((per_unique - inserts).abs() < 0.005_01, "{inserts} are published, {per_unique} counted");
}

#[test]
fn two_tiers_give_the_published_hits_and_stores() {
    let Some(trace) = read("conversation_trace.jsonl") else { return };
    check_two_tiers(&trace, (1, 5), Fill::Inclusive, [5.3, 14.3, 19.5, 1.27]);
    check_two_tiers(&trace, (1, 5), Fill::InclusiveAll, [5.3, 14.3, 19.6, 1.27]);
    check_two_tiers(&trace, (1, 5), Fill::Victim, [5.3, 16.8, 22.1, 1.49]);
    check_two_tiers(&trace, (2, 10), Fill::Inclusive, [7.9, 19.9, 27.8, 1.14]);
    check_two_tiers(&trace, (2, 10), Fill::InclusiveAll, [7.9, 20.0, 27.9, 1.14]);
    check_two_tiers(&trace, (2, 10), Fill::Victim, [7.9, 21.8, 29.7, 1.43]);
}

#[test]
fn one_pass_gives_the_published_hits_of_lru_at_every_capacity() {
    for (file, capacities) in
        [("conversation_trace.jsonl", 5), ("synthetic_trace.jsonl", 5), ("weka512.jsonl.gz", 4)]
    {
        let Some(trace) = read(file) else { return };
        let longest = trace.requests.iter().map(|request| request.blocks.len()).max().unwrap();
        let curve = LruCurve::of(&trace, GO).unwrap();
        let fingerprint = trace.fingerprint().value();
        let published: Vec<_> = golden::all()
            .filter(|cell| cell.trace == fingerprint && cell.policy.to_string() == "lru")
            .filter(|cell| cell.capacity as usize >= longest)
            .collect();
        assert_eq!(published.len(), capacities, "{file}");
        for cell in published {
            assert_eq!(curve.hits(cell.capacity), cell.hits, "{file} at {}", cell.capacity);
        }
    }
}
