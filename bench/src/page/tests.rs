use serde_json::{Value, json};

use super::*;
use crate::REPORT_FORMAT;

/// A text that would be markup if it were not escaped.
const HOSTILE: &str = "<script>alert('&\"')</script>";

fn report(command: &str, results: &Value) -> Value {
    json!({
        "format": REPORT_FORMAT, "command": command, "arguments": [command, "--dir", HOSTILE], "profile": "release",
        "commit": { "hash": HOSTILE, "modified": true },
        "machine": { "cpu": HOSTILE, "threads": 2, "memory_bytes": 1 << 30, "platform": HOSTILE, "kernel": HOSTILE },
        "unix_seconds": 0, "complete": true, "results": results,
    })
}

fn micro() -> Value {
    let figure = |subject: &str, job: &str, ns: f64| {
        json!({ "job": job, "subject": subject, "unit": HOSTILE, "target_ns": 12.0,
                "rounds_ns": [ns, ns * 1.1, ns * 0.9] })
    };
    json!({ "preset": "quick", "differences": HOSTILE, "sizes": [{
        "size": 10_000,
        "subjects": [{ "name": HOSTILE, "victims": HOSTILE, "bytes_per_chunk": 100.0 }],
        "figures": [figure("floor", "lookup", 5.0), figure(HOSTILE, "lookup", 7.0), figure(HOSTILE, HOSTILE, 70.0)],
    }] })
}

fn trace() -> Value {
    json!({ "name": HOSTILE, "block_tokens": 16, "requests": 10, "accesses": 1000, "unique_blocks": 500,
            "fingerprint": HOSTILE })
}

fn policies() -> Value {
    let cell = |policy: &str, capacity: u32, hits: u32| {
        json!({ "policy": policy, "capacity": capacity, "requests": 10, "accesses": 1000, "hits": hits,
                "inserts": 20, "evictions": 10, "eviction_order": "x", "stranded_worst": null,
                "token_hit_percent": 12.5 })
    };
    let cells = [cell("lru", 100, 300), cell("opt", 100, 600), cell("lru", 10, 100), cell("opt", 10, 200)];
    let overlap = json!({ "policy": "lru", "capacity": 10, "requests": 10, "accesses": 1000, "hits": 11,
                          "refused": HOSTILE,
                          "inserts": 1, "evictions": 1, "offers_refused": 77, "in_flight_peak": 5 });
    let two_tiers = json!({ "policy": HOSTILE, "fill": "victim", "gpu_capacity": 5, "cpu_capacity": 10,
                            "requests": 10, "accesses": 1000, "gpu_hits": 250, "cpu_hits": 111, "cpu_inserts": 1,
                            "cpu_evictions": 1 });
    let curve = json!({ "policy": "lru", "method": "exact", "points": [
        { "capacity": 10, "hit_percent": 10.0 }, { "capacity": 400, "hit_percent": 40.0, "standard_error": 1.5 },
    ] });
    let summary = json!([{ "policy": HOSTILE, "cells": 4, "hits_over_lru_geometric_mean": 1.234, "cells_better": 3,
        "cells_worse": 1, "hits_over_opt_mean": null,
        "worst": { "trace": HOSTILE, "capacity": 10, "hits_over_lru": 0.987 } }]);
    json!({ "summary": summary, "overlap_summary": summary, "traces": [{
        "trace": trace(), "cells": cells, "overlap": [overlap], "two_tiers": [two_tiers], "curves": [curve],
    }] })
}

fn replay() -> Value {
    json!({
        "trace": trace(), "gpu_blocks": 1, "cpu_chunks": 1, "nvme_chunks": 1, "block_bytes": 1, "policy": HOSTILE,
        "seconds": 1.0, "requests": 10, "blocks": 1000, "gpu": { "blocks": 4, "tokens": 4 },
        "cpu": { "blocks": 4, "tokens": 4 }, "nvme": { "blocks": 2, "tokens": 2 }, "blocks_compared": 10,
        "mismatches": 3, "edges": [{ "edge": HOSTILE, "jobs": 1, "bytes": 5, "seconds": 1.0, "mb_per_s": 5.0 }],
        "steps": { "steps": 1, "p50_us": 1.0, "p99_us": 1.0 },
    })
}

fn nvme() -> Value {
    let case = |subject: &str, direction: &str| {
        json!({ "subject": subject, "direction": direction, "chunk_bytes": 4096, "mb_per_s": [1.0, 2.0],
                "cpu_s_per_gb": [0.0, 1.0], "device_bytes": null, "moved_bytes": 8192 })
    };
    let range = json!({ "min": 0.5, "median": 0.75, "max": 1.0 });
    json!({
        "preset": "quick", "denominator": "floor", "notes": [HOSTILE], "bytes_per_round": 1, "verified_bytes": 1,
        "mismatches": 0,
        "surroundings": { "file_system": HOSTILE, "is_direct": false, "huge_pages": HOSTILE, "huge_percent": 99.5,
                          "load_average": [0.5, null] },
        "cases": [case("floor", "read"), case(HOSTILE, "read"), case(HOSTILE, HOSTILE)],
        "ratios": [{ "subject": HOSTILE, "over": HOSTILE, "direction": "read", "chunk_bytes": 4096, "rate": range,
                     "cpu": null }],
        "mixed": [{ "chunk_bytes": 4096, "reads_alone_mb_per_s": [100.0], "reads_mb_per_s": [80.0],
                    "reads_alone_p99_us": [10.0], "reads_p99_us": [12.0], "stores_alone_mb_per_s": [200.0],
                    "stores_mb_per_s": [14.0], "verified_bytes": 1, "mismatches": 0 }],
        "at_rest": { "idle_cpu_percent": 0.25, "open_files": 4, "capacity_bytes": 1, "file_bytes": 1, "grown_bytes": 0,
                     "disk_bytes": 1, "write_amplification": null, "copied_bytes": 0, "skipped": [HOSTILE],
                     "many": { "slots": 1000, "chunks": 999, "make_seconds": 0.5, "open_seconds": 0.25, "hit_ns": [99.0],
                               "miss_ns": [] } },
        "points": [{ "what": HOSTILE, "value": 0.75, "bound": { "at-least": 0.5 }, "met": true },
                   { "what": "other", "value": 0.75, "bound": { "at-most": 0.5 }, "met": false }],
    })
}

fn write(dir: &Path, name: &str, text: &str) {
    fs::write(dir.join(name), text).unwrap();
}

/// A directory with a report of every command.
fn full() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let all = [
        ("micro", micro()),
        ("compare", micro()),
        ("policies", policies()),
        ("replay", replay()),
        ("nvme", nvme()),
        ("compare-nvme", nvme()),
    ];
    for (command, results) in all {
        write(dir.path(), &format!("{command}.json"), &report(command, &results).to_string());
    }
    dir
}

#[test]
fn every_report_has_its_section_with_plots_and_tables() {
    let dir = full();
    let page = write_page(dir.path()).unwrap();
    assert_eq!(page.sections, ["micro", "compare", "policies", "replay", "nvme", "compare-nvme"]);
    assert!(page.problems.is_empty(), "{:?}", page.problems);
    let html = fs::read_to_string(&page.path).unwrap();
    for command in &page.sections {
        assert!(html.contains(&format!("<section id=\"{command}\">")), "{command}");
    }
    // Two jobs each of micro and compare; blocks, tokens, share of the optimum's, overlap, curve and two tiers of the
    // policies; two of replay; ratios, CPU time and rates of the store, twice.
    assert_eq!(html.matches("<figure>").count(), 2 + 2 + 6 + 2 + 3 + 3);
    for part in [
        "Simulated: ",
        "The GPU is simulated: ",
        "50.0</td>",
        "77</td>",
        "36.10</td>",
        "0.987 (",
        "3 blocks came back",
        "0.50/0.75/1.00</td>",
        "at most 0.5</td>",
        "0.07/0.07/0.07</td>",
        "99/99/99 ns</td>",
    ] {
        assert!(html.contains(part), "{part:?} is not in {html}");
    }
    assert!(html.contains("cargo xtask bench nvme --dir '&lt;script&gt;alert"), "{html}");
}

#[test]
fn no_text_of_a_report_becomes_markup() {
    let dir = full();
    let page = write_page(dir.path()).unwrap();
    let html = fs::read_to_string(page.path).unwrap();
    assert!(!html.contains("<script") && html.contains("&lt;script&gt;"), "{html}");
    // Nothing is loaded: the only address is the name of SVG's namespace.
    assert_eq!(
        html.matches("http").count(),
        html.matches("xmlns=\"http://www.w3.org/2000/svg\"").count() + 1
    );
    assert_eq!(html.matches("http-equiv=\"Content-Security-Policy\"").count(), 1);
    assert!(!html.contains("src=") && !html.contains("url("), "{html}");
}

#[test]
fn every_plot_has_a_title_and_is_drawn_within_its_frame() {
    let dir = full();
    let html = fs::read_to_string(write_page(dir.path()).unwrap().path).unwrap();
    let plots = || html.split("<figure>").skip(1).map(|rest| rest.split("</figure>").next().unwrap());
    for plot in plots() {
        let title = plot.split("<title>").nth(1).and_then(|rest| rest.split("</title>").next());
        assert!(title.is_some_and(|title| title.len() > 10), "{plot}");
        assert!(plot.contains("<svg role=\"img\" width="), "{plot}");
        // Half the height of a letter upwards is how text stands on its place.
        let places = plot.replace("dy=\"-0.5ex\"", "");
        assert!(!places.contains("NaN") && !places.contains("=\"-"), "a negative place: {plot}");
    }
}

/// The page of a replay with these fields besides.
#[track_caller]
fn check_replay(fields: &[(&str, Value)], parts: &[&str]) {
    let dir = tempfile::tempdir().unwrap();
    let mut results = replay();
    for (field, value) in fields {
        results[*field] = value.clone();
    }
    write(dir.path(), "replay.json", &report("replay", &results).to_string());
    let html = fs::read_to_string(write_page(dir.path()).unwrap().path).unwrap();
    for part in parts {
        assert!(html.contains(part), "{part:?} is not in {html}");
    }
    assert!(!html.contains("<script") && parts.iter().any(|part| part.contains("GPU")), "{html}");
}

#[test]
fn a_replay_says_on_which_device_it_ran_and_what_its_times_are_worth() {
    let device = |name: &str| ("device", json!(name));
    let reason = ("device_reason", json!(HOSTILE));
    check_replay(&[], &["The GPU is simulated: ", "its memory is host memory", ">simulated GPU</td>"]);
    check_replay(
        &[device("host memory"), reason.clone()],
        &["The GPU is simulated: ", "because &lt;script&gt;", "its memory is host memory"],
    );
    check_replay(
        &[device("fake"), reason.clone(), ("gpu_is_simulated", json!(true))],
        &[
            "The GPU is simulated: </strong>fake, because ",
            "its driver is one for tests",
            ">simulated GPU</td>",
        ],
    );
    check_replay(
        &[device("NVIDIA H200"), reason, ("gpu_is_simulated", json!(false))],
        &["The GPU: </strong>NVIDIA H200, because ", "copies over its link", ">GPU</td>"],
    );
}

#[test]
fn a_broken_report_is_named_and_the_others_are_shown() {
    let dir = full();
    write(dir.path(), "replay.json", "{ broken");
    let mut wrong = report("nvme", &nvme());
    wrong["results"]["cases"][0]["mb_per_s"] = json!([0.0, 1.0]);
    write(dir.path(), "nvme.json", &wrong.to_string());
    write(dir.path(), "compare.json", &report("micro", &micro()).to_string());
    let page = write_page(dir.path()).unwrap();
    assert_eq!(page.sections, ["micro", "policies", "compare-nvme"]);
    let parts = [
        ["compare.json", "\"command\" is \"micro\""],
        ["replay.json", "no JSON"],
        ["nvme.json", "results.cases[0].mb_per_s"],
    ];
    assert_eq!(page.problems.len(), parts.len());
    let html = fs::read_to_string(&page.path).unwrap();
    for (problem, parts) in page.problems.iter().zip(parts) {
        assert!(parts.iter().all(|part| problem.contains(part)), "{problem}");
        assert!(html.contains(parts[0]), "the page names {}", parts[0]);
    }
    assert!(html.contains("<section id=\"problems\""));
}

#[test]
fn the_later_one_of_a_run_and_its_smoke_run_is_shown() {
    let dir = tempfile::tempdir().unwrap();
    let mut smoke = report("micro", &micro());
    smoke["arguments"] = json!(["micro", "--smoke", "--report"]);
    write(dir.path(), "micro-smoke.json", &smoke.to_string());
    write(dir.path(), "micro.json", &report("micro", &micro()).to_string());
    let set_age = |name: &str, seconds: u64| {
        let time = std::time::UNIX_EPOCH + std::time::Duration::from_secs(seconds);
        fs::File::options().write(true).open(dir.path().join(name)).unwrap().set_modified(time).unwrap();
    };
    let shows_smoke = || {
        let html = fs::read_to_string(write_page(dir.path()).unwrap().path).unwrap();
        let is_smoke = html.contains("A smoke run");
        assert_eq!(html.contains("<code>cargo xtask bench micro --smoke</code>"), is_smoke);
        is_smoke
    };
    set_age("micro.json", 200);
    set_age("micro-smoke.json", 100);
    assert!(!shows_smoke());
    set_age("micro-smoke.json", 300);
    assert!(shows_smoke());
}

#[test]
fn no_report_at_all_is_an_error_that_names_the_directory() {
    let dir = tempfile::tempdir().unwrap();
    let error = write_page(dir.path()).unwrap_err().to_string();
    assert!(error.contains(dir.path().to_str().unwrap()) && error.contains("micro.json"), "{error}");
}

#[test]
fn extreme_numbers_are_drawn_within_the_frame_too() {
    let dir = tempfile::tempdir().unwrap();
    let mut results = micro();
    results["sizes"][0]["figures"][0]["rounds_ns"] = json!([1e30]);
    results["sizes"][0]["figures"][1]["rounds_ns"] = json!([0.0]);
    results["sizes"][0]["figures"][2]["rounds_ns"] = json!([1e-300]);
    write(dir.path(), "micro.json", &report("micro", &results).to_string());
    let mut results = policies();
    results["traces"][0]["cells"][0]["capacity"] = json!(u64::MAX);
    results["traces"][0]["cells"][1]["hits"] = json!(0);
    write(dir.path(), "policies.json", &report("policies", &results).to_string());
    let mut results = replay();
    results["edges"] = json!([]);
    write(dir.path(), "replay.json", &report("replay", &results).to_string());
    let mut results = nvme();
    results["cases"] = json!([]);
    write(dir.path(), "nvme.json", &report("nvme", &results).to_string());
    let page = write_page(dir.path()).unwrap();
    assert_eq!((page.sections.len(), page.problems.len()), (4, 0), "{:?}", page.problems);
    let html = fs::read_to_string(page.path).unwrap();
    assert!(!html.contains("NaN") && !html.contains("inf\""), "{html}");
}
