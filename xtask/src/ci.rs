//! `cargo xtask ci`: exactly what CI runs.

use std::{
    path::PathBuf,
    process::{Command, ExitCode},
    time::{Duration, Instant},
};

use crate::{
    bench, conformance, counts, cuda_features, fuzz, gpu_check, loom,
    process::{cargo, workspace},
    ptx, sanitize, sim, tidy,
};

/// Hits, evictions and their order of each policy are published for this traffic.
const SMALL_CHECK: [&str; 8] = [
    "policies",
    "--trace",
    "synth:400:7",
    "--capacity",
    "32,64,128,256,512",
    "--policy",
    "lru,arc,arc:ghost-hits=t2",
    "--check",
];
const DEFAULT_CHECK: [&str; 4] = ["policies", "--policy", "lru,arc,arc:ghost-hits=t2", "--check"];

/// Construction, fill, turnover and steady cycle of eight million chunks.
const LARGE_CHECK: [&str; 7] = [
    "micro",
    "--untimed",
    "--check",
    "--sizes=8M",
    "--policy=lru,aslru",
    "--jobs=cycle32,lookup",
    "--rounds=2",
];

/// What is built besides the default: the program `kvo-store`. The benches build without it.
const FEATURES: &str = "--features=kvo-nvme/cli";

/// The same seeds every time.
const SIM: [&str; 2] = ["--seeds", "2000"];
/// Some that were never run.
const SIM_FRESH: [&str; 5] = ["--fresh", "--seeds", "1000", "--minutes", "1"];

/// Of each target.
const FUZZ_SECONDS: u32 = 4;

/// How a step ended.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Outcome {
    Passed,
    Failed(String),
    /// Not run, for want of something that is no part of the project.
    Skipped(String),
}

type Step = fn() -> Outcome;

struct Done {
    name: &'static str,
    outcome: Outcome,
    took: Duration,
}

pub(crate) fn run() -> ExitCode {
    let steps: [(&str, Step); 24] = [
        ("format", || run_command(cargo(["fmt", "--all", "--check"]))),
        ("tidy", || if tidy::run() == ExitCode::SUCCESS { Outcome::Passed } else { failed("see above") }),
        ("ptx", compiled),
        ("lints", lints),
        ("docs", docs),
        ("tests", || run_command(cargo(["test", "--workspace", FEATURES, "--locked", "--no-fail-fast"]))),
        ("features of cudarc", || {
            if cuda_features::run(false) == ExitCode::SUCCESS { Outcome::Passed } else { failed("see above") }
        }),
        ("interleavings", interleavings),
        ("addresses", || sanitized(sanitize::check_small())),
        ("values", || sanitized(sanitize::check_values())),
        ("conformance", recorded),
        ("policies, small", || run_bench(&SMALL_CHECK)),
        ("policies, default", || run_bench(&DEFAULT_CHECK)),
        ("benches, smoke", || run_bench(&["all", "--smoke", "--report"])),
        ("benches, again", again),
        ("soak, seconds", || run_bench(&["soak-nvme", "--minutes", "0.05", "--capacity-chunks", "128"])),
        ("soak of an engine", || run_bench(&["soak-engine", "--minutes", "0.1"])),
        ("fuzz", fuzzed),
        ("sim", || run_command(sim::command(SIM.map(Into::into)))),
        ("sim, fresh", || run_command(sim::command(SIM_FRESH.map(Into::into)))),
        ("sim, canary", || run_command(sim::command(["--canary".into()]))),
        ("gpu-check", checked),
        ("micro, 8M", || run_bench(&LARGE_CHECK)),
        ("counts", counted),
    ];
    // A step that fails does not keep the others from telling what they know.
    let done: Vec<Done> = steps.into_iter().map(|(name, step)| timed(name, step)).collect();
    println!("\n{}", summary(&done));
    if done.iter().any(|step| matches!(step.outcome, Outcome::Failed(_))) {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    }
}

fn timed(name: &'static str, step: Step) -> Done {
    println!("\n==== {name}");
    let started = Instant::now();
    let outcome = step();
    let done = Done { name, outcome, took: started.elapsed() };
    println!("==== {}", line(&done));
    done
}

fn lints() -> Outcome {
    run_command(cargo([
        "clippy",
        "--workspace",
        FEATURES,
        "--all-targets",
        "--locked",
        "--",
        "-D",
        "warnings",
    ]))
}

fn docs() -> Outcome {
    let mut command = cargo(["doc", "--workspace", FEATURES, "--no-deps", "--locked"]);
    command.env("RUSTDOCFLAGS", "-D warnings");
    run_command(command)
}

/// Every order in which the atomics of a handshake can meet, by loom.
fn interleavings() -> Outcome {
    loom::check().map_or_else(Outcome::Failed, |()| Outcome::Passed)
}

fn sanitized(checked: Result<(), sanitize::Failure>) -> Outcome {
    match checked {
        Ok(()) => Outcome::Passed,
        Err(failure @ sanitize::Failure::NoValgrind) => Outcome::Skipped(failure.to_string()),
        Err(failure) => Outcome::Failed(failure.to_string()),
    }
}

fn recorded() -> Outcome {
    match conformance::recorded_scenarios() {
        Ok(dir) => run_command(conformance::command(dir.as_os_str())),
        Err(dir) => Outcome::Skipped(format!(
            "there are no recorded scenarios at {}; set KVO_SHARED to the directory above conformance/",
            dir.display()
        )),
    }
}

fn compiled() -> Outcome {
    match ptx::check() {
        Ok(()) => Outcome::Passed,
        Err(failure @ ptx::Failure::NoNvrtc(_)) => Outcome::Skipped(failure.to_string()),
        Err(failure) => Outcome::Failed(failure.to_string()),
    }
}

fn counted() -> Outcome {
    match counts::count(counts::Mode::Check) {
        Ok(()) => Outcome::Passed,
        Err(failure @ counts::Failure::NoValgrind) => Outcome::Skipped(failure.to_string()),
        Err(failure) => Outcome::Failed(failure.to_string()),
    }
}

/// The folder for machines with a GPU, and a short run of it on the driver for tests.
fn checked() -> Outcome {
    let run = gpu_check::Run::Model(vec!["--quick".into()]);
    match gpu_check::gpu_check(&gpu_check::Options { out: None, run }) {
        Ok(0) => Outcome::Passed,
        Ok(status) => Outcome::Failed(format!("it ended with status {status}")),
        Err(failure) => Outcome::Failed(failure.to_string()),
    }
}

/// Every fuzzer for some seconds, from what is known to lead far.
fn fuzzed() -> Outcome {
    let options = fuzz::Options { target: None, seconds: FUZZ_SECONDS, executions: None, inputs: Vec::new() };
    match fuzz::fuzz(&options) {
        Ok(()) => Outcome::Passed,
        Err(failure @ fuzz::Failure::NoCompiler) => Outcome::Skipped(failure.to_string()),
        Err(failure) => Outcome::Failed(failure.to_string()),
    }
}

/// `kvo-bench`, with its results away from those of longer runs.
fn run_bench(arguments: &[&str]) -> Outcome {
    let mut command = bench::command(arguments.iter().map(Into::into));
    command.env("KVO_BENCH_OUT", results());
    run_command(command)
}

/// The benches once more, against what they have just left: whatever is counted is the same every time.
fn again() -> Outcome {
    match results().to_str() {
        Some(results) => run_bench(&["all", "--smoke", "--baseline", results]),
        None => failed("the path of the workspace is no UTF-8"),
    }
}

fn results() -> PathBuf {
    workspace().join("target/bench/ci")
}

fn run_command(mut command: Command) -> Outcome {
    let shown: Vec<_> = command.get_args().map(|argument| argument.to_string_lossy().into_owned()).collect();
    println!("cargo {}", shown.join(" "));
    match command.current_dir(workspace()).status() {
        Ok(status) if status.success() => Outcome::Passed,
        Ok(status) => Outcome::Failed(status.to_string()),
        Err(error) => Outcome::Failed(format!("cannot run it: {error}")),
    }
}

fn failed(why: &str) -> Outcome {
    Outcome::Failed(why.to_owned())
}

fn line(done: &Done) -> String {
    let (word, why) = match &done.outcome {
        Outcome::Passed => ("passed", ""),
        Outcome::Failed(why) => ("FAILED", why.as_str()),
        Outcome::Skipped(why) => ("SKIPPED", why.as_str()),
    };
    let took = done.took.as_secs_f64();
    format!("{:<18} {word:<8} {took:>7.1} s  {why}", done.name).trim_end().to_owned()
}

fn summary(done: &[Done]) -> String {
    let lines: Vec<_> = done.iter().map(line).collect();
    let count = |wanted: fn(&Outcome) -> bool| done.iter().filter(|step| wanted(&step.outcome)).count();
    let took: Duration = done.iter().map(|step| step.took).sum();
    format!(
        "{}\n{} passed, {} failed, {} skipped in {:.1} s",
        lines.join("\n"),
        count(|outcome| matches!(outcome, Outcome::Passed)),
        count(|outcome| matches!(outcome, Outcome::Failed(_))),
        count(|outcome| matches!(outcome, Outcome::Skipped(_))),
        took.as_secs_f64()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_summary_names_every_step_with_its_time() {
        let step = |name, outcome, seconds| Done { name, outcome, took: Duration::from_secs(seconds) };
        let text = summary(&[
            step("format", Outcome::Passed, 1),
            step("lints", failed("exit status: 101"), 20),
            step("conformance", Outcome::Skipped("no files".to_owned()), 0),
        ]);
        assert_eq!(
            text,
            "format             passed       1.0 s\n\
             lints              FAILED      20.0 s  exit status: 101\n\
             conformance        SKIPPED      0.0 s  no files\n\
             1 passed, 1 failed, 1 skipped in 21.0 s"
        );
    }

    #[test]
    fn a_command_that_fails_or_is_not_there_fails_its_step() {
        assert!(matches!(run_command(cargo(["no-such-command-of-cargo"])), Outcome::Failed(_)));
        assert!(matches!(run_command(Command::new("no/such/program")), Outcome::Failed(_)));
        assert_eq!(run_command(cargo(["--version"])), Outcome::Passed);
    }
}
