use serde_json::json;

use super::*;
use crate::{MicroFigure, MicroResults, MicroSize, MicroSubject, ReplayResults};

fn rounds(median: f64) -> Vec<f64> {
    [0.98, 0.99, 1.0, 1.01, 1.02, 1.0, 1.0].map(|factor| factor * median).to_vec()
}

fn time(rounds: Vec<f64>) -> Value {
    Value::Rounds { rounds, better: Better::Less }
}

fn rate(rounds: Vec<f64>) -> Value {
    Value::Rounds { rounds, better: Better::More }
}

fn exact(value: &str, work: &str) -> Value {
    Value::Exact { value: value.to_owned(), work: work.to_owned() }
}

#[track_caller]
fn check(before: &Value, after: &Value, expected: Verdict) {
    assert_eq!(Verdict::of(before, after, 1.0), expected, "{before} and {after}");
}

#[test]
fn a_figure_is_slower_only_beyond_its_noise_and_the_factor() {
    check(&time(rounds(100.0)), &time(rounds(120.0)), Verdict::Slower);
    check(&time(rounds(120.0)), &time(rounds(100.0)), Verdict::Faster);
    check(&time(rounds(100.0)), &time(rounds(100.5)), Verdict::WithinNoise);
    // Apart beyond their quartiles, but by less than a tenth.
    check(&time(rounds(100.0)), &time(rounds(108.0)), Verdict::WithinNoise);
    // A fifth apart, but with quartiles that meet.
    let wide = vec![60.0, 90.0, 120.0, 150.0, 180.0];
    check(&time(rounds(100.0)), &time(wide), Verdict::WithinNoise);
}

#[test]
fn a_figure_whose_best_round_is_as_good_was_disturbed() {
    let disturbed = [vec![99.0], vec![150.0; 6]].concat();
    check(&time(rounds(100.0)), &time(disturbed.clone()), Verdict::WithinNoise);
    check(&time(disturbed), &time(rounds(100.0)), Verdict::WithinNoise);
    let disturbed = [vec![101.0], vec![70.0; 6]].concat();
    check(&rate(rounds(100.0)), &rate(disturbed), Verdict::WithinNoise);
}

#[test]
fn what_moved_as_the_machine_did_is_within_the_noise() {
    // The floor moved by a factor of 1.2, so that 1.32 is needed.
    for (floor, kvo, verdict) in
        [(60.0, 130.0, Verdict::WithinNoise), (60.0, 135.0, Verdict::Slower), (50.0, 130.0, Verdict::Slower)]
    {
        let comparison = compare(&micro(100.0, 50.0, "ff"), &micro(kvo, floor, "ff"));
        let row = comparison.rows.iter().find(|row| row.name == "10k, kvo lru, load").unwrap();
        assert_eq!(row.verdict, verdict, "floor {floor}, kvo {kvo}");
    }
}

#[test]
fn of_a_rate_more_is_better() {
    check(&rate(rounds(100.0)), &rate(rounds(80.0)), Verdict::Slower);
    check(&rate(rounds(100.0)), &rate(rounds(130.0)), Verdict::Faster);
}

#[test]
fn nothing_is_said_without_rounds_or_of_the_machine() {
    check(&time(vec![1.0; 4]), &time(rounds(9.0)), Verdict::NotJudged("too few rounds"));
    check(&Value::Once(1.0), &Value::Once(9.0), Verdict::NotJudged("taken once"));
    check(&Value::Machine(rounds(1.0)), &Value::Machine(rounds(9.0)), Verdict::OfTheMachine);
    check(&time(rounds(1.0)), &Value::Once(1.0), Verdict::NotJudged("not of one kind"));
    // Medians of zero are neither slower nor faster.
    check(&time(vec![0.0; 5]), &time(vec![0.0; 5]), Verdict::WithinNoise);
}

#[test]
fn counts_are_equal_where_the_work_is_the_same() {
    check(&exact("7", "a"), &exact("7", "a"), Verdict::Equal);
    check(&exact("7", "a"), &exact("8", "a"), Verdict::Differs);
    check(&exact("7", "a"), &exact("8", "b"), Verdict::NotJudged("not the same work"));
}

/// A micro run of a kvo subject and the floor.
fn micro(kvo: f64, floor: f64, victims: &str) -> Stored<MicroResults> {
    let figure = |subject: &str, median| MicroFigure {
        job: "load".to_owned(),
        subject: subject.to_owned(),
        unit: "chunk".to_owned(),
        target_ns: None,
        rounds_ns: rounds(median),
    };
    let subject = MicroSubject {
        name: "kvo lru".to_owned(),
        victims: Some(victims.to_owned()),
        bytes_per_chunk: Some(90.0),
    };
    Stored {
        command: "micro".to_owned(),
        arguments: vec!["micro".to_owned(), "--quick".to_owned()],
        profile: "release".to_owned(),
        commit: Commit { hash: Some("abc".to_owned()), modified: Some(true) },
        machine: Machine {
            cpu: Some("a processor".to_owned()),
            threads: Some(2),
            memory_bytes: Some(1 << 30),
            platform: "linux x86_64".to_owned(),
            kernel: Some("6.1".to_owned()),
        },
        unix_seconds: 0,
        complete: true,
        results: MicroResults {
            preset: "quick".to_owned(),
            differences: None,
            sizes: vec![MicroSize {
                size: 10_000,
                subjects: vec![subject],
                figures: vec![figure("floor", floor), figure("kvo lru", kvo)],
            }],
        },
    }
}

#[test]
fn a_run_beside_itself_is_equal_and_warns_of_nothing() {
    let run = micro(100.0, 50.0, "ff");
    let comparison = compare(&run, &run);
    assert_eq!(comparison.failures().count(), 0);
    assert!(comparison.warnings.is_empty(), "{:?}", comparison.warnings);
    assert!(comparison.rows.iter().all(|row| row.ratio.is_none_or(|ratio| (ratio - 1.0).abs() < 1e-9)));
    assert_eq!(comparison.rows.len(), 4);
}

#[test]
fn the_hash_of_counts_depends_on_counts_alone() {
    let hash = |kvo, victims| micro(kvo, 50.0, victims).results.counts_hash();
    assert_eq!(hash(100.0, "ff"), hash(200.0, "ff"));
    assert_ne!(hash(100.0, "ff"), hash(100.0, "fe"));
}

#[test]
fn what_got_slower_and_what_evicts_otherwise_is_named() {
    let comparison = compare(&micro(100.0, 50.0, "ff"), &micro(130.0, 50.0, "ee"));
    let failures: Vec<_> = comparison.failures().map(|row| (row.name.as_str(), row.verdict)).collect();
    let expected =
        [("10k, kvo lru, load", Verdict::Slower), ("10k, kvo lru, hash of the victims", Verdict::Differs)];
    assert_eq!(failures, expected);
    let text = comparison.to_string();
    assert!(text.contains("SLOWER: 10k, kvo lru, load, 100.00 (99.00-101.00) before, 130.00"), "{text}");
    assert!(text.contains("4 figures: 1 slower than the noise, 0 faster, 0 within it"), "{text}");
}

#[test]
fn another_machine_or_command_line_is_warned_of() {
    let before = micro(100.0, 50.0, "ff");
    let mut after = micro(100.0, 60.0, "ff");
    after.machine.kernel = None;
    after.profile = "dev".to_owned();
    after.arguments = ["micro", "--full", "--baseline", "x.json", "--report"].map(str::to_owned).to_vec();
    let warnings = compare(&before, &after).warnings;
    let expected = [
        "the kernel differs: 6.1 before, unknown now",
        "the profile differs: release before, dev now",
        "the command line differs: micro --quick before, micro --full now",
        "this is no release build",
        "moved by a factor of 1.20",
    ];
    assert_eq!(warnings.len(), expected.len(), "{warnings:?}");
    for (warning, part) in warnings.iter().zip(expected) {
        assert!(warning.contains(part), "{part:?} is not in {warning}");
    }
}

#[test]
fn figures_of_one_run_alone_are_counted_and_not_compared() {
    let before = micro(100.0, 50.0, "ff");
    let mut after = before.clone();
    after.results.sizes[0].size = 100_000;
    let comparison = compare(&before, &after);
    assert!(comparison.rows.is_empty());
    assert_eq!((comparison.only_before.len(), comparison.only_after.len()), (4, 4));
    assert!(
        comparison.to_string().contains("only now, so not compared: 4 figures, such as 100k, floor, load")
    );
}

/// A replay as older programs reported it: nothing is said of a device.
fn replay() -> Stored<ReplayResults> {
    let edge = |edge: &str| json!({ "edge": edge, "jobs": 1, "bytes": 5, "seconds": 1.0, "mb_per_s": 5.0 });
    let hits = json!({ "blocks": 3, "tokens": 3 });
    let results = json!({
        "trace": { "name": "t", "block_tokens": 1, "requests": 1, "accesses": 9, "unique_blocks": 5, "fingerprint": "f" },
        "gpu_blocks": 1, "cpu_chunks": 1, "nvme_chunks": 1, "block_bytes": 1, "policy": "lru", "seconds": 1.0,
        "requests": 1, "blocks": 9, "gpu": hits, "cpu": hits, "nvme": hits, "blocks_compared": 9, "mismatches": 0,
        "edges": [edge("simulated GPU to CPU"), edge("CPU to simulated GPU"), edge("CPU to NVMe")],
        "steps": { "steps": 1, "p50_us": 1.0, "p99_us": 1.0 },
    });
    let Stored { arguments, profile, commit, machine, unix_seconds, complete, .. } = micro(1.0, 1.0, "ff");
    let results = serde_json::from_value(results).unwrap();
    let command = "replay".to_owned();
    Stored { command, arguments, profile, commit, machine, unix_seconds, complete, results }
}

/// The same on a GPU.
fn replay_on_gpu() -> Stored<ReplayResults> {
    let mut report = replay();
    report.results.device = "NVIDIA H200 (cuda:0)".to_owned();
    report.results.gpu_is_simulated = false;
    report.results.edges[0].edge = "GPU to CPU".to_owned();
    report.results.edges[1].edge = "CPU to GPU".to_owned();
    report
}

#[test]
fn a_replay_on_another_device_is_warned_of_and_its_edges_are_not_compared() {
    let comparison = compare(&replay(), &replay_on_gpu());
    assert_eq!(comparison.warnings, ["the device differs: host memory before, NVIDIA H200 (cuda:0) now"]);
    let names = |kind: &str| ["simulated ", ""].map(|simulated| format!("{simulated}GPU to CPU, {kind}"));
    for kind in ["moved", "rate"] {
        let [before, now] = names(kind);
        assert!(comparison.only_before.contains(&before) && comparison.only_after.contains(&now));
    }
    assert_eq!(comparison.failures().count(), 0);
    assert_eq!(compare(&replay(), &replay()).warnings, <[String; 0]>::default());
}

#[test]
fn the_hash_of_a_replays_counts_is_the_same_on_every_device() {
    let hash = |report: &Stored<ReplayResults>| report.results.counts_hash();
    assert_eq!(hash(&replay()), hash(&replay_on_gpu()));
    let mut moved = replay_on_gpu();
    moved.results.edges[0].bytes += 1;
    assert_ne!(hash(&replay()), hash(&moved));
}
