//! The bench suite as a user meets it: every bench, one after the other, and against an earlier run.

use std::{
    fs,
    io::{BufRead, BufReader, Read},
    path::Path,
    process::{Command, Output, Stdio},
};

use serde_json::{Value, json};

/// The program, with its results in `dir`.
fn run(dir: &Path, arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_kvo-bench")).args(arguments).env("KVO_BENCH_OUT", dir).output().unwrap()
}

/// Ends with `status`; returns what it printed.
#[track_caller]
fn check(dir: &Path, arguments: &[&str], status: i32) -> String {
    let output = run(dir, arguments);
    let text =
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(status), "{arguments:?}: {text}");
    text
}

#[track_caller]
fn check_parts(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "{part:?} is not in {text}");
    }
}

fn read(dir: &Path, name: &str) -> Value {
    serde_json::from_slice(&fs::read(dir.join(name)).unwrap()).unwrap()
}

fn write(dir: &Path, name: &str, value: &Value) {
    fs::write(dir.join(name), value.to_string()).unwrap();
}

const FILES: [&str; 4] = ["policies-smoke.json", "replay-smoke.json", "nvme-smoke.json", "micro-smoke.json"];

#[test]
fn all_leaves_every_file_and_agrees_with_itself() {
    let dir = tempfile::tempdir().unwrap();
    let text = check(dir.path(), &["all", "--smoke", "--report"], 0);
    check_parts(&text, &["report of micro, policies, replay, nvme: "]);
    for bench in ["policies", "replay", "nvme", "micro"] {
        check_parts(&text, &[&format!("==== kvo-bench {bench} --smoke")]);
    }
    let hashes = || FILES.map(|file| read(dir.path(), file)["counts_hash"].clone());
    let first = hashes();
    assert!(first.iter().all(Value::is_string), "{first:?}");
    let counts = |text: &str| text.matches("0 that should be and are not").count();
    let text = check(dir.path(), &["all", "--smoke", "--baseline", dir.path().to_str().unwrap()], 0);
    assert_eq!(counts(&text), 4, "{text}");
    assert_eq!(hashes(), first, "the same work counts the same");
    fs::remove_file(dir.path().join(FILES[2])).unwrap();
    let text = check(dir.path(), &["all", "--smoke", "--baseline", dir.path().to_str().unwrap()], 0);
    assert_eq!(counts(&text), 3, "{text}");
    check_parts(&text, &["NOT COMPARED: ", "nvme-smoke.json does not exist"]);
}

#[test]
fn all_ends_with_the_status_of_the_worst_bench() {
    let dir = tempfile::tempdir().unwrap();
    check(dir.path(), &["policies", "--smoke"], 0);
    let mut other = read(dir.path(), FILES[0]);
    let cell = &mut other["results"]["traces"][0]["cells"][0];
    let differs = format!("lru at {}, hits, 1 before, {} now", cell["capacity"], cell["hits"]);
    cell["hits"] = json!(1);
    write(dir.path(), FILES[0], &other);
    let baseline = dir.path().to_str().unwrap();
    let text = check(dir.path(), &["all", "--smoke", "--baseline", baseline], 1);
    check_parts(&text, &["DIFFERS: synth:400:7, ", &differs, "==== kvo-bench micro"]);
    // The policies have left their file anew; a broken one is an error, and the others run all the same.
    fs::write(dir.path().join(FILES[1]), "{").unwrap();
    let text = check(dir.path(), &["all", "--smoke", "--baseline", baseline], 2);
    check_parts(&text, &["replay-smoke.json is no JSON", "could not be run: replay", "==== kvo-bench micro"]);
    let text = check(dir.path(), &["all", "--smoke", "--dir", "no/such"], 2);
    check_parts(&text, &["could not be run: replay, nvme"]);
}

#[cfg(unix)]
#[test]
fn after_ctrl_c_all_begins_no_other_bench() {
    use std::os::unix::process::CommandExt;

    let dir = tempfile::tempdir().unwrap();
    let mut child = Command::new(env!("CARGO_BIN_EXE_kvo-bench"))
        .args(["all", "--quick", "--report"])
        .env("KVO_BENCH_OUT", dir.path())
        .stdout(Stdio::piped())
        // As a shell does, so that the signal is for both: a terminal sends it to all that run in it.
        .process_group(0)
        .spawn()
        .unwrap();
    let mut stdout = BufReader::new(child.stdout.take().unwrap());
    // The line that names the first bench follows an empty one.
    for _ in 0..2 {
        stdout.read_line(&mut String::new()).unwrap();
    }
    assert!(
        Command::new("kill").args(["-INT", "--", &format!("-{}", child.id())]).status().unwrap().success()
    );
    let mut rest = String::new();
    stdout.read_to_string(&mut rest).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(130), "{rest}");
    assert!(rest.contains("not begun") && !rest.contains("==== kvo-bench micro"), "{rest}");
    assert!(!dir.path().join("report.html").exists());
}

#[test]
fn a_run_that_is_slower_than_its_baseline_fails() {
    let dir = tempfile::tempdir().unwrap();
    let arguments = ["micro", "--sizes", "4096", "--jobs", "lookup", "--rounds", "5"];
    check(dir.path(), &arguments, 0);
    let mut before = read(dir.path(), "micro.json");
    let figures = before["results"]["sizes"][0]["figures"].as_array_mut().unwrap();
    // The floor stays: it shows that the machine is as it was.
    for figure in figures.iter_mut().filter(|figure| figure["subject"] != "floor") {
        // No machine is a thousand times as fast.
        let faster = |round: &Value| json!(round.as_f64().unwrap() / 1000.0);
        let rounds: Vec<_> = figure["rounds_ns"].as_array().unwrap().iter().map(faster).collect();
        figure["rounds_ns"] = rounds.into();
    }
    before["machine"]["kernel"] = json!("another");
    write(dir.path(), "before.json", &before);
    let before = dir.path().join("before.json");
    let text = check(dir.path(), &[&arguments[..], &["--baseline", before.to_str().unwrap()]].concat(), 1);
    check_parts(&text, &["1 slower than the noise", "SLOWER: 4096, kvo lru, lookup", "the kernel differs"]);
}

#[test]
fn a_baseline_that_is_none_is_refused_before_the_run() {
    let dir = tempfile::tempdir().unwrap();
    check(dir.path(), &["policies", "--smoke"], 0);
    let file = dir.path().join(FILES[0]);
    let file = file.to_str().unwrap();
    let refused = |arguments: &[&str], parts: &[&str]| {
        let text = check(dir.path(), arguments, 2);
        check_parts(&text, parts);
        assert!(!text.contains("as JSON"), "nothing was run: {text}");
    };
    refused(&["micro", "--baseline", file], &["--baseline", file, "\"command\" is \"policies\""]);
    refused(&["micro", "--baseline", "no/such.json"], &["--baseline", "cannot read no/such.json"]);
    refused(&["micro", "--baseline", "."], &["is a directory", "micro.json"]);
    refused(&["all", "--baseline", file], &["is no directory"]);
    refused(&["all", "--baseline", dir.path().to_str().unwrap()], &["has no file such as"]);
    let mut old = read(dir.path(), FILES[0]);
    old.as_object_mut().unwrap().remove("format");
    write(dir.path(), FILES[0], &old);
    refused(&["policies", "--baseline", file], &[file, "no field \"format\"", "older kvo-bench"]);
}

#[test]
fn the_page_is_written_of_what_there_is_and_names_what_is_broken() {
    let dir = tempfile::tempdir().unwrap();
    check_parts(&check(dir.path(), &["report"], 2), &["has no report of a bench"]);
    let page = dir.path().join("report.html");
    let text = check(dir.path(), &["policies", "--smoke", "--report"], 0);
    check_parts(&text, &["report of policies: ", page.to_str().unwrap()]);
    fs::write(dir.path().join("micro.json"), "{").unwrap();
    let text = check(dir.path(), &["replay", "--smoke", "--report"], 1);
    check_parts(
        &text,
        &["report of policies, replay: ", "error: not in the report: ", "micro.json is no JSON"],
    );
    assert!(fs::read_to_string(&page).unwrap().contains("micro.json is no JSON"));
    check_parts(&check(dir.path(), &["report", "--baseline", "x"], 2), &["--baseline"]);
}

#[test]
fn the_store_is_measured_beside_plain_io_and_every_byte_compared() {
    let dir = tempfile::tempdir().unwrap();
    let files = tempfile::tempdir().unwrap();
    let more = ["--dir", files.path().to_str().unwrap()];
    let arguments =
        ["nvme", "--chunk-bytes", "4096,8192", "--round-mib", "1", "--rounds", "2", "--places", "2"];
    let text = check(dir.path(), &[&arguments[..], &more, &["--smoke"]].concat(), 0);
    // Four subjects read 1 MiB in each of three rounds, at two sizes in two places; then at one size in each of three
    // rounds twice, alone and under stores.
    let compared = "54 MiB that were read compared byte by byte, 0 chunks differ";
    check_parts(&text, &["over floor", "SKIPPED fio: ", "4 KiB: reads keep ", " of idle, p99 ", compared]);
    let results = &read(dir.path(), "nvme-smoke.json")["results"];
    assert_eq!((&results["verified_bytes"], &results["denominator"]), (&json!(54 << 20), &json!("floor")));
    assert_eq!(results["mixed"].as_array().unwrap().len(), 1);
    let cases = results["cases"].as_array().unwrap();
    let subjects: Vec<_> = cases.iter().map(|case| case["subject"].as_str().unwrap()).collect();
    assert_eq!(subjects, ["floor", "raw", "full", "pool"].repeat(4), "both ways at both sizes");
    for case in cases {
        assert_eq!(case["mb_per_s"].as_array().unwrap().len(), 4);
        assert_eq!(case["moved_bytes"], 4 << 20);
    }
    assert_eq!(results["ratios"].as_array().unwrap().len(), 3 * 4, "each over the floor");
    assert!(results["surroundings"]["is_direct"].is_boolean());
    assert_eq!(fs::read_dir(files.path()).unwrap().count(), 0, "nothing is left behind");
    for (flag, value) in
        [("--dir", "no/such"), ("--chunk-bytes", "1000"), ("--floor-threads", "0"), ("--places", "0")]
    {
        check_parts(&check(dir.path(), &["nvme", "--smoke", flag, value], 2), &[flag, value]);
    }
}

#[test]
fn a_soak_of_a_moment_compares_what_it_loads_and_leaves_nothing_behind() {
    let (dir, files) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let arguments = ["soak-nvme", "--minutes", "0.01", "--chunk-bytes", "16384", "--capacity-chunks", "100"];
    let more = ["--policy", "arc", "--dir", files.path().to_str().unwrap()];
    let text = check(dir.path(), &[&arguments[..], &more].concat(), 0);
    check_parts(&text, &["compared byte by byte, 0 chunks differ", "in the second half", "seed 1"]);
    let results = &read(dir.path(), "soak-nvme.json")["results"];
    assert!(results["compared_bytes"].as_u64().unwrap() > 0 && results["problems"] == json!([]), "{results}");
    assert_eq!(fs::read_dir(files.path()).unwrap().count(), 0);
    for (flag, value) in
        [("--minutes", "0"), ("--dir", "no/such"), ("--capacity-chunks", "1"), ("--policy", "best")]
    {
        check_parts(&check(dir.path(), &["soak-nvme", flag, value], 2), &[flag, value]);
    }
}
