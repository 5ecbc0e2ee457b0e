//! The replay on a GPU, by the driver for tests: as many hits, and every byte, as in host memory. Its own binary: a
//! process has one driver or none.

use std::{
    fs,
    path::Path,
    process::{Command, Output},
    time::{Duration, Instant},
};

use kvo_bench::{GpuFailed, ReplayDevice, ReplayEngine, ReplayOptions, ReplayStats, kvo_synth};
use kvo_fakecuda::{Exclusive, FakeDriver};
use kvo_policies::PolicyKind;
use serde_json::Value;

const CUDA: ReplayDevice = ReplayDevice::Cuda { ordinal: 0 };

fn fake() -> Exclusive {
    FakeDriver::load().expect("cargo builds the library for this test").exclusive()
}

fn options(device: ReplayDevice, block_bytes: u32) -> ReplayOptions {
    ReplayOptions {
        device,
        gpu_blocks: 64,
        cpu_chunks: 128,
        nvme_chunks: 1024,
        block_bytes,
        block_tokens: 16,
        policy: PolicyKind::Lru,
        flip_bit_in_block: None,
    }
}

/// What a trace of 150 requests comes to.
fn replay(options: ReplayOptions) -> ReplayStats {
    let dir = tempfile::tempdir().unwrap();
    let mut engine = ReplayEngine::new(options, dir.path()).unwrap();
    for (number, request) in (0..).zip(&kvo_synth(150, 3).requests) {
        engine.serve(number, request).unwrap();
    }
    engine.stats()
}

/// All that is counted, and is the same on every run.
fn counts(stats: &ReplayStats) -> Vec<u64> {
    let hits = [stats.gpu, stats.cpu, stats.nvme].map(|hits| hits.blocks);
    let edges = stats.edges.iter().map(|edge| edge.bytes);
    hits.into_iter().chain([stats.blocks_compared, stats.mismatches]).chain(edges).collect()
}

/// On a GPU it comes to what it comes to in host memory.
#[track_caller]
fn check(fake: FakeDriver, block_bytes: u32) {
    let on_host = replay(options(ReplayDevice::Host, block_bytes));
    assert_eq!(fake.counts().bytes_to_device, 0);
    let on_gpu = replay(options(CUDA, block_bytes));
    assert_eq!(counts(&on_gpu), counts(&on_host), "{on_gpu:?} and {on_host:?}");
    assert_eq!(on_gpu.mismatches, 0);
    assert!([on_gpu.gpu, on_gpu.cpu, on_gpu.nvme].iter().all(|hits| hits.blocks > 0), "{on_gpu:?}");
    let edges: Vec<_> = on_gpu.edges.iter().map(|edge| (edge.edge, edge.jobs_failed)).collect();
    assert_eq!(edges[..2], [("simulated GPU to CPU", 0), ("CPU to simulated GPU", 0)], "it is a model");
    // What was computed, loaded and compared went over the driver.
    assert!(fake.counts().bytes_to_device >= on_gpu.edges[1].bytes, "{:?}", fake.counts());
    assert!(fake.counts().bytes_to_host >= on_gpu.edges[0].bytes, "{:?}", fake.counts());
    assert_eq!(fake.violations(), []);
}

#[test]
fn a_gpu_hits_and_compares_what_host_memory_does() {
    check(*fake(), 4096);
}

#[test]
fn blocks_of_one_odd_plane_are_compared_on_a_gpu_too() {
    check(*fake(), 1001);
}

#[test]
fn on_a_slow_link_no_store_overtakes_what_it_stores() {
    let fake = fake();
    fake.set_engine_rate(100 << 20);
    let stats = replay(options(CUDA, 4096));
    assert!(stats.mismatches == 0 && stats.cpu.blocks > 0, "{stats:?}");
    assert_eq!(fake.violations(), []);
}

#[test]
fn one_bit_that_differs_on_a_gpu_is_found() {
    let _fake = fake();
    let flipped =
        |device| replay(ReplayOptions { flip_bit_in_block: Some(17), ..options(device, 4096) }).mismatches;
    assert!(flipped(CUDA) > 0);
    assert_eq!(flipped(CUDA), flipped(ReplayDevice::Host));
}

#[test]
fn a_gpu_that_breaks_ends_the_replay_with_an_error() {
    let _fake = fake();
    for device in [ReplayDevice::Host, CUDA] {
        let dir = tempfile::tempdir().unwrap();
        let mut engine = ReplayEngine::new(options(device, 4096), dir.path()).unwrap();
        let trace = kvo_synth(150, 3);
        let started = Instant::now();
        let error = (0..).zip(&trace.requests).find_map(|(number, request)| {
            if number == 40 {
                engine.break_gpu().unwrap();
            }
            engine.serve(number, request).err()
        });
        let error = error.expect("no request ends well on a GPU that does not work");
        assert!(error.is::<GpuFailed>(), "{error:#}");
        assert!(format!("{error:#}").contains("the GPU failed: "), "{error:#}");
        assert!((40..60).contains(&engine.served()), "{}", engine.served());
        assert_eq!(engine.stats().mismatches, 0);
        drop(engine);
        assert!(started.elapsed() < Duration::from_secs(30), "{:?}", started.elapsed());
    }
}

/// The program on a machine with a GPU: the loader finds the driver for tests.
fn kvo_bench(out: &Path, arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_kvo-bench"))
        .args(["replay", "--trace", "synth:150:3", "--cpu-chunks", "128", "--block-bytes", "4096"])
        .args(arguments)
        .env("KVO_BENCH_OUT", out)
        .env("LD_PRELOAD", FakeDriver::library_path().unwrap())
        .env_remove("KVO_CUDA")
        .output()
        .unwrap()
}

/// It ends with `status`, and what it prints has every part.
#[track_caller]
fn check_program(out: &Path, arguments: &[&str], status: i32, parts: &[&str]) {
    let output = kvo_bench(out, arguments);
    let text =
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(status), "{arguments:?}: {text}");
    for part in parts {
        assert!(text.contains(part), "{part:?} is not in {text}");
    }
}

fn report(out: &Path) -> Value {
    serde_json::from_slice(&fs::read(out.join("replay.json")).unwrap()).unwrap()
}

#[test]
fn auto_takes_the_gpu_says_so_and_counts_what_host_memory_does() {
    let out = tempfile::tempdir().unwrap();
    let host = "device: host memory, because --device host asks for it";
    check_program(out.path(), &["--device", "host"], 0, &[host, "256 GPU blocks (simulated in host memory)"]);
    let on_host = report(out.path());
    let before = out.path().join("host.json");
    fs::rename(out.path().join("replay.json"), &before).unwrap();
    let arguments = ["--baseline", before.to_str().unwrap(), "--report"];
    let parts = [
        "device: kvo fake device 0 (model) (cuda:0, driver ",
        "), because the probe found it",
        "256 GPU blocks (simulated by a driver for tests)",
        "copies of a driver for tests, a model",
        "0 mismatches",
        "WARNING: the device differs: host memory before, kvo fake device 0 (model) (cuda:0",
        "0 that should be and are not",
    ];
    check_program(out.path(), &arguments, 0, &parts);
    let on_gpu = report(out.path());
    let results = &on_gpu["results"];
    assert!(results["device"].as_str().unwrap().starts_with("kvo fake device 0 (model)"), "{results}");
    assert_eq!(
        (&results["device_reason"], &results["gpu_is_simulated"]),
        (&"the probe found it".into(), &true.into())
    );
    assert_eq!(on_gpu["counts_hash"], on_host["counts_hash"]);
    let page = fs::read_to_string(out.path().join("report.html")).unwrap();
    assert!(page.contains("its driver is one for tests"), "{page}");
}

#[test]
fn a_gpu_that_is_asked_for_is_taken_or_refused_by_its_ordinal() {
    let out = tempfile::tempdir().unwrap();
    check_program(
        out.path(),
        &["--device", "cuda"],
        0,
        &["because --device cuda asks for it", "0 mismatches"],
    );
    check_program(
        out.path(),
        &["--device", "cuda", "--device-ordinal", "7"],
        2,
        &["error: --device-ordinal 7: the CUDA driver sees 1 device(s)"],
    );
    let parts =
        ["error: GPU 0 (--device host does without): its memory (--gpu-blocks, --block-bytes): cuMemAlloc"];
    check_program(out.path(), &["--gpu-blocks", "100000000"], 2, &parts);
}

#[test]
fn a_replay_whose_gpu_breaks_ends_with_status_1_and_what_it_had() {
    let out = tempfile::tempdir().unwrap();
    let started = Instant::now();
    check_program(
        out.path(),
        &["--break-gpu-after", "40"],
        1,
        &[
            "FAILED after 4",
            " of 150 requests: request 4",
            " of synth:150:3: ",
            "the GPU failed: ",
            "0 mismatches",
        ],
    );
    assert!(started.elapsed() < Duration::from_secs(30), "{:?}", started.elapsed());
    assert_eq!(report(out.path())["complete"], false);
}
