use serde_json::json;

use super::*;

/// A report of `micro` with one figure.
fn report() -> Value {
    json!({
        "format": REPORT_FORMAT, "command": "micro", "arguments": ["micro"], "profile": "release",
        "commit": { "hash": "0123456789abcdef", "modified": false },
        "machine": { "cpu": "c", "threads": 2, "memory_bytes": 1, "platform": "linux x", "kernel": "6" },
        "unix_seconds": 86_400, "complete": true,
        "results": { "preset": "quick", "sizes": [{
            "size": 10_000,
            "subjects": [{ "name": "kvo lru", "victims": "ff", "bytes_per_chunk": 96.5 }],
            "figures": [{ "job": "load", "subject": "kvo lru", "unit": "chunk", "rounds_ns": [1.0, 2.0] }],
        }] },
    })
}

fn parse(value: &Value) -> Result<Stored<MicroResults>, StoredError> {
    Stored::parse(Path::new("dir/micro.json"), &value.to_string())
}

/// With `value` at `pointer` the report is refused, with an error that names the file and has every part.
#[track_caller]
fn check(pointer: &str, value: Value, parts: &[&str]) {
    let mut report = report();
    *report.pointer_mut(pointer).unwrap() = value;
    let error = parse(&report).unwrap_err().to_string();
    for part in ["dir/micro.json"].iter().chain(parts) {
        assert!(error.contains(part), "{part:?} is not in {error}");
    }
}

#[test]
fn a_report_is_read_back() {
    let stored = parse(&report()).unwrap();
    assert_eq!(stored.when(), "1970-01-02T00:00:00Z");
    assert_eq!(stored.results.sizes[0].figures[0].rounds_ns, [1.0, 2.0]);
    assert_eq!(stored.commit.to_string(), "0123456789ab");
}

#[test]
fn a_wrong_field_is_named_by_its_path() {
    check(
        "/results/sizes/0/figures/0/rounds_ns/1",
        json!("two"),
        &["results.sizes[0].figures[0].rounds_ns[1]", "\"two\""],
    );
    check("/results/sizes/0/figures/0/rounds_ns", json!([]), &["figures[0].rounds_ns", "has no round"]);
    check("/results/sizes/0/figures/0/rounds_ns", json!([1.0, -1.0]), &["rounds_ns[1]", "cannot be"]);
    check("/results/sizes/0/subjects/0/bytes_per_chunk", json!(1e300), &["subjects[0].bytes_per_chunk"]);
    check("/results/sizes/0", json!({ "size": 1 }), &["results.sizes[0]", "missing field `subjects`"]);
    check("/machine", json!(7), &["\"machine\""]);
}

#[test]
fn another_form_or_command_is_told_apart() {
    check("/format", json!(99), &["\"format\" is 99", "reads 1"]);
    check("/command", json!("replay"), &["\"command\" is \"replay\"", "micro or compare is wanted"]);
    let mut old = report();
    old.as_object_mut().unwrap().remove("format");
    let error = parse(&old).unwrap_err().to_string();
    assert!(error.contains("no field \"format\"") && error.contains("run its command again"), "{error}");
}

#[test]
fn what_is_no_json_or_no_file_is_named() {
    let error = Stored::<MicroResults>::parse(Path::new("x.json"), "{ \"a\": ").unwrap_err().to_string();
    assert!(error.contains("x.json is no JSON") && error.contains("line 1"), "{error}");
    let error = Stored::<MicroResults>::parse(Path::new("x.json"), "[]").unwrap_err().to_string();
    assert!(error.contains("no field \"format\""), "{error}");
    let error = Stored::<MicroResults>::read(Path::new("no/such.json")).unwrap_err().to_string();
    assert!(error.contains("cannot read no/such.json"), "{error}");
}

#[test]
fn a_run_that_was_stopped_is_no_baseline() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("micro.json");
    let mut stopped = report();
    stopped["complete"] = json!(false);
    fs::write(&path, stopped.to_string()).unwrap();
    assert!(Stored::<MicroResults>::read(&path).is_ok());
    let error = Stored::<MicroResults>::read_complete(&path).unwrap_err().to_string();
    assert!(error.contains("micro.json") && error.contains("\"complete\" is false"), "{error}");
}

#[test]
fn counts_that_contradict_each_other_are_refused() {
    let trace = StoredTrace {
        name: "t".to_owned(),
        block_tokens: 1,
        requests: 1,
        accesses: 4,
        unique_blocks: 5,
        fingerprint: String::new(),
    };
    assert_eq!(trace.check("trace"), Err("trace.unique_blocks: more than the trace has accesses".to_owned()));
    let replay = json!({
        "trace": { "name": "t", "block_tokens": 1, "requests": 1, "accesses": 9, "unique_blocks": 5, "fingerprint": "" },
        "gpu_blocks": 1, "cpu_chunks": 1, "nvme_chunks": 1, "block_bytes": 1, "policy": "lru", "seconds": 1.0,
        "requests": 1, "blocks": 9, "gpu": { "blocks": 4, "tokens": 4 }, "cpu": { "blocks": 4, "tokens": 4 },
        "nvme": { "blocks": 2, "tokens": 2 }, "blocks_compared": 9, "mismatches": 0, "edges": [],
        "steps": { "steps": 1, "p50_us": 1.0, "p99_us": 1.0 },
    });
    let replay: ReplayResults = serde_json::from_value(replay).unwrap();
    assert!(replay.check().unwrap_err().starts_with("blocks: 9 are less"));
    let cell = json!({
        "policy": "lru", "capacity": 1, "requests": 1, "accesses": 2, "hits": 3, "inserts": 0, "evictions": 0,
        "eviction_order": "", "stranded_worst": null,
    });
    let on_trace = PoliciesTrace {
        trace: StoredTrace { unique_blocks: 1, ..trace },
        cells: vec![serde_json::from_value(cell).unwrap()],
        overlap: Vec::new(),
        two_tiers: Vec::new(),
        curves: Vec::new(),
    };
    let two_tiers = json!({ "policy": "lru", "fill": "victim", "gpu_capacity": 1, "cpu_capacity": 1, "requests": 1,
        "accesses": u64::MAX, "gpu_hits": u64::MAX, "cpu_hits": 1, "cpu_inserts": 0, "cpu_evictions": 0 });
    let below = PoliciesTrace {
        cells: Vec::new(),
        two_tiers: vec![serde_json::from_value(two_tiers).unwrap()],
        ..on_trace.clone()
    };
    let results = |on_trace| PoliciesResults {
        traces: vec![on_trace],
        summary: Vec::new(),
        overlap_summary: Vec::new(),
    };
    let error = results(below).check().unwrap_err();
    assert_eq!(error, "traces[0].two_tiers[0].cpu_hits: 1 of 0 accesses");
    let error = results(on_trace).check().unwrap_err();
    assert_eq!(error, "traces[0].cells[0].hits: 3 of 2 accesses");
}
