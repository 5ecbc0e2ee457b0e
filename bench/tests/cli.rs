//! The program as a user meets it.

use std::{
    fs,
    io::{BufRead, BufReader, Read},
    process::{Command, Output, Stdio},
};

/// The program, with its results going where they replace nobody's.
fn program(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kvo-bench"));
    command.args(arguments).env("KVO_BENCH_OUT", env!("CARGO_TARGET_TMPDIR"));
    command
}

fn kvo_bench(arguments: &[&str]) -> Output {
    program(arguments).output().unwrap()
}

/// The command ends with status 2 and an error that has every part.
#[track_caller]
fn check_refused(arguments: &[&str], parts: &[&str]) {
    let output = kvo_bench(arguments);
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{stderr}");
    assert!(stderr.starts_with("error: "), "{stderr}");
    for part in parts {
        assert!(stderr.contains(part), "{part:?} is not in {stderr}");
    }
}

#[test]
fn policies_print_a_table_and_agree_with_the_published_figures() {
    let output = kvo_bench(&["policies", "--trace", "synth:400:7", "--capacity", "32,10%", "--check"]);
    let stdout = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(0), "{stdout}");
    assert!(
        stdout.starts_with("synth:400:7: 400 requests, 7954 blocks of 512 tokens, 3540 different"),
        "{stdout}"
    );
    for part in ["6367", "2e1922ff75209036", "6386", "6f441d77daa5cffc", "354", "2 cells agree, 0 differ"] {
        assert!(stdout.contains(part), "{part:?} is not in {stdout}");
    }
    assert!(output.stderr.is_empty(), "no progress bar where there is no terminal");
}

#[test]
fn several_traces_run_at_once_and_are_summarised() {
    let dir = tempfile::tempdir().unwrap();
    let output = program(&["policies", "--trace", "synth:400:7,synth:300:1", "--trace", "synth:200:2"])
        .args(["--capacity", "64,10%", "--policy", "lru,fifo,opt"])
        .env("KVO_BENCH_OUT", dir.path())
        .output()
        .unwrap();
    let stdout = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(0), "{stdout}");
    let json = fs::read(dir.path().join("policies.json")).unwrap();
    let results = &serde_json::from_slice::<serde_json::Value>(&json).unwrap()["results"];
    let traces = results["traces"].as_array().unwrap();
    let names: Vec<_> = traces.iter().map(|trace| trace["trace"]["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["synth:400:7", "synth:300:1", "synth:200:2"]);
    assert!(names.iter().all(|name| stdout.matches(name).count() >= 2), "{stdout}");

    let (mut product, mut worst) = (1.0, f64::MAX);
    for trace in traces {
        let cells = trace["cells"].as_array().unwrap();
        assert_eq!(cells.len(), 6);
        for cells in cells.chunks(3) {
            let hits = |at: usize| cells[at]["hits"].as_f64().unwrap();
            product *= hits(1) / hits(0);
            worst = f64::min(worst, hits(1) / hits(0));
            // Generated traffic has no partial blocks: tokens are hit as blocks are.
            assert_eq!(cells[0]["hit_percent"], cells[0]["token_hit_percent"]);
        }
    }
    let fifo = &results["summary"][1];
    assert_eq!(fifo["policy"], "fifo");
    assert_eq!(fifo["cells"], 6);
    let close = |value: &serde_json::Value, expected: f64| {
        let value = value.as_f64().unwrap();
        assert!((value - expected).abs() < 1e-9, "{value} is not {expected}");
    };
    close(&fifo["hits_over_lru_geometric_mean"], product.powf(1.0 / 6.0));
    close(&fifo["worst"]["hits_over_lru"], worst);
}

#[test]
fn a_policies_smoke_run_has_every_mode_and_gives_the_same_every_time() {
    let dir = tempfile::tempdir().unwrap();
    let run = || {
        let output = program(&["policies", "--smoke"]).env("KVO_BENCH_OUT", dir.path()).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert_eq!(output.status.code(), Some(0), "{text}{}", String::from_utf8_lossy(&output.stderr));
        for part in ["chunks refused", "inclusive-all", "lru, exact", "aslru, sampled", "largest error"] {
            assert!(text.contains(part), "{part:?} is not in {text}");
        }
        let json = fs::read(dir.path().join("policies-smoke.json")).unwrap();
        let mut report: serde_json::Value = serde_json::from_slice(&json).unwrap();
        assert_eq!(report["complete"], true);
        // Times are of this run alone.
        for trace in report["results"]["traces"].as_array_mut().unwrap() {
            for cell in trace["cells"].as_array_mut().unwrap() {
                cell["calls_cpu_ns"].take();
                cell["ns_per_access"].take();
            }
        }
        report["results"].take()
    };
    let results = run();
    assert_eq!(results, run());
    let traces = results["traces"].as_array().unwrap();
    assert_eq!(traces.len(), 2);
    for trace in traces {
        let len = |part: &str| trace[part].as_array().unwrap().len();
        // 4 policies at 2 capacities; opt cannot overlap; 3 policies filled in 3 ways; 4 sampled curves and LRU's exact one.
        assert_eq!(["cells", "overlap", "two_tiers", "curves"].map(len), [8, 6, 9, 5]);
        let hit_percent = |part: &str, at: usize| trace[part][at]["hit_percent"].as_f64().unwrap();
        let exact = &trace["curves"][0];
        assert_eq!((&exact["policy"], &exact["method"]), (&"lru".into(), &"exact".into()));
        let point = exact["points"].as_array().unwrap().iter().find(|point| point["capacity"] == 64).unwrap();
        assert_eq!(point["hit_percent"], trace["cells"][0]["hit_percent"]);
        assert!(trace["curves"][2]["error"]["mean_abs"].as_f64().unwrap() > 0.0);
        assert!(hit_percent("two_tiers", 1) >= trace["two_tiers"][1]["gpu_hit_percent"].as_f64().unwrap());
        assert!(trace["overlap"][0]["in_flight_peak"].as_u64().unwrap() > 1);
        assert_eq!(trace["overlap"][0]["service"]["base_us"], 800_000);
    }
    assert_eq!(results["overlap_summary"].as_array().unwrap().len(), 3);
    assert_eq!(results["overlap_summary"][0]["hits_over_lru_geometric_mean"], 1.0);
}

#[test]
fn what_a_mode_cannot_do_is_named() {
    check_refused(
        &["policies", "--overlap", "--policy", "opt"],
        &["--overlap", "need a --policy beside opt"],
    );
    check_refused(&["policies", "--two-tiers", "5%"], &["--two-tiers", "\"5%\" names no two tiers", "1%+5%"]);
    check_refused(
        &["policies", "--trace", "synth:1:1", "--capacity", "8", "--two-tiers", "1%+5"],
        &["synth:1:1", "less than one chunk"],
    );
    check_refused(&["policies", "--curve", "--sample-rate", "2"], &["--sample-rate", "\"2\" is no share"]);
    check_refused(&["policies", "--curve", "--samples", "1"], &["--samples", "2..=1000"]);
    check_refused(&["policies", "--samples", "8"], &["--curve"]);
    check_refused(&["policies", "--overlap-base-ms", "5"], &["--overlap"]);
    check_refused(
        &["policies", "--overlap", "--overlap-output-token-ms", "-1"],
        &["--overlap-output-token-ms", "milliseconds"],
    );
    check_refused(&["policies", "--overlap", "--overlap-refused", "wait"], &["drop", "shorten"]);
    check_refused(&["policies", "--smoke", "--capacity", "8"], &["--smoke", "--capacity"]);
    check_refused(&["policies", "--overlap", "--full"], &["--overlap", "--full"]);
    check_refused(&["policies", "--quick", "--full"], &["--quick", "--full"]);
}

#[test]
fn a_check_covers_every_trace() {
    check_refused(
        &["policies", "--trace", "synth:400:7,synth:10:1", "--capacity", "32", "--policy", "lru", "--check"],
        &["--check: nothing is published", "synth:10:1"],
    );
    let arguments = ["policies", "--trace", "synth:400:7,synth:4000:42", "--capacity", "32,207", "--check"];
    let stdout = String::from_utf8(kvo_bench(&arguments).stdout).unwrap();
    assert!(stdout.contains("published figures: 4 cells agree, 0 differ"), "{stdout}");
}

#[test]
fn a_check_without_published_figures_is_refused() {
    check_refused(
        &["policies", "--trace", "synth:10:1", "--capacity", "8", "--check"],
        &["--check: nothing is published"],
    );
}

#[test]
fn wrong_flags_are_named() {
    check_refused(&["policies", "--trace", "synth:many:1"], &["--trace", "many", "synth:4000:42"]);
    check_refused(&["policies", "--policy", "lru,mru"], &["--policy", "unknown policy \"mru\"", "use lru"]);
    check_refused(&["policies", "--capacity", "5%,0"], &["--capacity", "\"0\" is no capacity"]);
    check_refused(
        &["policies", "--trace", "synth:1:1", "--capacity", "1%"],
        &["synth:1:1", "less than one chunk"],
    );
    check_refused(&["policies", "--trace", "synth:9:1,synth:9:1"], &["--trace names synth:9:1 twice"]);
    check_refused(&["policies", "--trace", "synth:9:1,no/such.jsonl"], &["cannot open trace no/such.jsonl"]);
    check_refused(&["policies", "--block-tokens", "0"], &["--block-tokens", "zero"]);
    check_refused(&["policies", "--time-unit", "us"], &["--time-unit", "[possible values: ms, s]"]);
    check_refused(&["policies", "--block-tokens", "16"], &["--block-tokens", "is generated"]);
}

#[test]
fn a_broken_trace_is_named_by_file_line_and_field() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("broken.jsonl");
    let good = r#"{"timestamp":0,"input_length":512,"output_length":1,"hash_ids":[1]}"#;
    fs::write(&path, format!("{good}\n{}\n", good.replace("512", "\"long\""))).unwrap();
    let path = path.to_str().unwrap();
    check_refused(&["policies", "--trace", path], &[path, "line 2", "input_length", "the string \"long\""]);
    check_refused(
        &["policies", "--trace", "no/such.jsonl"],
        &["cannot open trace no/such.jsonl", "No such file"],
    );
}

#[cfg(unix)]
#[test]
fn ctrl_c_prints_what_there_is_and_ends_with_130() {
    let mut child = program(&["policies", "--trace", "synth:200000:1", "--policy", "lru,arc"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdout = BufReader::new(child.stdout.take().unwrap());
    // The trace is announced before the first cell starts, which takes far longer than a signal.
    stdout.read_line(&mut String::new()).unwrap();
    assert!(Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap().success());
    let mut rest = String::new();
    stdout.read_to_string(&mut rest).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(130), "{rest}");
    assert!(rest.contains("eviction order") && rest.contains("stopped: 0 of 10 cells"), "{rest}");
}

const SMALL_REPLAY: [&str; 9] =
    ["replay", "--trace", "synth:60:1", "--gpu-blocks", "128", "--cpu-chunks", "128", "--block-bytes", "256"];

fn replay(more: &[&str]) -> (Option<i32>, String) {
    let dir = tempfile::tempdir().unwrap();
    let output = program(&SMALL_REPLAY).args(more).env("KVO_BENCH_OUT", dir.path()).output().unwrap();
    let text =
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    (output.status.code(), text)
}

#[test]
fn a_replay_compares_every_hit_and_leaves_the_same_figures_as_json() {
    let dir = tempfile::tempdir().unwrap();
    let output = program(&["replay", "--smoke"]).env("KVO_BENCH_OUT", dir.path()).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{text}");
    let json = fs::read(dir.path().join("replay-smoke.json")).unwrap();
    let results = &serde_json::from_slice::<serde_json::Value>(&json).unwrap()["results"];
    let number = |pointer: &str| results.pointer(pointer).and_then(serde_json::Value::as_u64).unwrap();
    let hits = ["/gpu/blocks", "/cpu/blocks", "/nvme/blocks"].map(number);
    assert!(hits.iter().all(|hits| *hits > 0), "every tier serves something: {hits:?}");
    assert_eq!(hits.iter().sum::<u64>(), number("/blocks_compared"));
    assert_eq!((number("/requests"), number("/blocks"), number("/mismatches")), (400, 7954, 0));
    // Inclusive LRU tiers hit as the largest of them alone would: the published figure for 1024 chunks lies above
    // that for 512.
    assert!(hits.iter().sum::<u64>() > 3096, "{hits:?}");
}

/// A replay on a machine whose GPUs are turned off.
fn replay_without_gpus(more: &[&str]) -> (Option<i32>, String) {
    let dir = tempfile::tempdir().unwrap();
    let output = program(&SMALL_REPLAY)
        .args(more)
        .env("KVO_BENCH_OUT", dir.path())
        .env("KVO_CUDA", "off")
        .output()
        .unwrap();
    let text =
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    (output.status.code(), text)
}

#[test]
fn a_replay_takes_host_memory_where_there_is_no_gpu_and_says_why() {
    let (status, text) = replay_without_gpus(&[]);
    assert_eq!(status, Some(0), "{text}");
    assert!(text.contains("device: host memory, because GPUs are turned off by KVO_CUDA\n"), "{text}");
    let (status, text) = replay_without_gpus(&["--device", "host"]);
    assert_eq!(status, Some(0), "{text}");
    assert!(text.contains("device: host memory, because --device host asks for it\n"), "{text}");
}

#[test]
fn a_gpu_that_is_asked_for_and_not_there_is_an_error_that_says_why() {
    let (status, text) = replay_without_gpus(&["--device", "cuda"]);
    assert_eq!(status, Some(2), "{text}");
    assert!(text.contains("error: --device cuda: GPUs are turned off by KVO_CUDA"), "{text}");
    check_refused(&["replay", "--device", "gpu"], &["--device", "[possible values: host, cuda, auto]"]);
    if matches!(kvo_cuda::probe(), kvo_cuda::Probe::NoDriver { .. }) {
        check_refused(
            &["replay", "--device", "cuda"],
            &["--device cuda: there is no CUDA driver: libcuda.so.1: "],
        );
    } else {
        eprintln!("SKIPPED: this machine has a driver: {}", kvo_cuda::probe());
    }
}

#[test]
fn a_micro_smoke_run_measures_every_job_and_evicts_the_same_every_time() {
    let dir = tempfile::tempdir().unwrap();
    let run = || {
        let output = program(&["micro", "--smoke"]).env("KVO_BENCH_OUT", dir.path()).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert_eq!(output.status.code(), Some(0), "{text}{}", String::from_utf8_lossy(&output.stderr));
        for part in ["cycle, 32 a call", "lookup of 256", "load of 256", "cold load of 256", "x floor"] {
            assert!(text.contains(part), "{part:?} is not in {text}");
        }
        let json = fs::read(dir.path().join("micro-smoke.json")).unwrap();
        serde_json::from_slice::<serde_json::Value>(&json).unwrap()
    };
    let (first, second) = (run(), run());
    let kvo = |json: &serde_json::Value| json["results"]["sizes"][0]["subjects"][1].clone();
    assert_eq!(kvo(&first)["name"], "kvo lru");
    assert!(kvo(&first)["bytes_per_chunk"].as_f64().unwrap() > 64.0);
    assert!(kvo(&first)["victims"].is_string());
    assert_eq!(kvo(&first)["victims"], kvo(&second)["victims"]);
    let figures = first["results"]["sizes"][0]["figures"].as_array().unwrap();
    assert!(figures.iter().all(|figure| figure["ns"].as_f64().unwrap() > 0.0), "{figures:?}");
}

#[test]
fn an_untimed_run_is_checked_under_every_policy_and_says_how_many_chunks_it_ran_over() {
    let policies = "lru,arc,arc:canonical,slru,aslru,s3fifo,s3fifo:leaf-only=false,fifo";
    let arguments = ["--smoke", "--jobs", "cycle32,lookup", "--sizes", "4096", "--policy", policies];
    let output = program(&["micro", "--untimed", "--check"]).args(arguments).output().unwrap();
    let stdout = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(0), "{stdout}");
    let expected: Vec<String> = policies
        .split(',')
        .flat_map(|policy| {
            ["cycle, 32 a call", "lookup of 256"].map(|job| format!("4096: {job}: kvo {policy}: 3072 chunks"))
        })
        .collect();
    assert_eq!(stdout.lines().collect::<Vec<_>>(), expected);
}

#[test]
fn a_micro_run_names_the_size_or_job_that_cannot_be() {
    check_refused(&["micro", "--sizes", "10k,1"], &["--sizes", "\"1\" is no size", "10k"]);
    check_refused(&["micro", "--jobs", "sleep"], &["--jobs", "cycle32"]);
    check_refused(&["micro", "--policy", "best"], &["--policy", "best"]);
    check_refused(&["micro", "--smoke", "--full"], &["--smoke", "--full"]);
    check_refused(&["micro", "--rounds", "0"], &["--rounds"]);
    check_refused(&["micro", "--check"], &["--untimed"]);
    check_refused(&["micro", "--subject", "floor"], &["--untimed"]);
}

#[test]
fn one_bit_that_differs_fails_a_replay() {
    let (status, text) = replay(&["--flip-bit-in-block", "17"]);
    assert_eq!(status, Some(1), "{text}");
    // The damaged block stays in GPU memory, so later requests may meet it again.
    assert!(text.contains("FAILED: ") && !text.contains(" 0 mismatches"), "{text}");
    let (status, text) = replay(&[]);
    assert_eq!(status, Some(0), "{text}");
    assert!(text.contains("0 mismatches"), "{text}");
}

#[test]
fn a_replay_runs_with_any_policy_and_without_a_store() {
    for more in [
        ["--policy", "arc"],
        ["--policy", "arc:ghost-hits=t2"],
        ["--nvme-chunks", "0"],
        ["--nvme-chunks", "1"],
    ] {
        let (status, text) = replay(&more);
        assert_eq!(status, Some(0), "{more:?}: {text}");
    }
}

#[test]
fn a_replay_names_the_size_that_cannot_be() {
    let (status, text) = replay(&["--nvme-dir", "no/such/directory"]);
    assert_eq!(status, Some(2), "{text}");
    assert!(text.contains("--nvme-dir") && text.contains("no/such/directory"), "{text}");
    check_refused(
        &["replay", "--trace", "synth:9:1", "--cpu-chunks", "4000000000", "--block-bytes", "4000000000"],
        &["--cpu-chunks", "bytes"],
    );
    check_refused(
        &["replay", "--trace", "synth:9:1", "--nvme-chunks", "4000000000", "--block-bytes", "1000000"],
        &["bytes"],
    );
    check_refused(&["replay", "--gpu-blocks", "0"], &["--gpu-blocks"]);
    check_refused(&["replay", "--policy", "best"], &["--policy", "use lru"]);
}

#[cfg(unix)]
#[test]
fn ctrl_c_stops_a_replay_between_requests_with_130() {
    let dir = tempfile::tempdir().unwrap();
    let mut child = program(&["replay", "--trace", "synth:200000:1", "--block-bytes", "64"])
        .env("KVO_BENCH_OUT", dir.path())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdout = BufReader::new(child.stdout.take().unwrap());
    stdout.read_line(&mut String::new()).unwrap();
    assert!(Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap().success());
    let mut rest = String::new();
    stdout.read_to_string(&mut rest).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(130), "{rest}");
    assert!(rest.contains("stopped after") && rest.contains("0 mismatches"), "{rest}");
}
