//! Tasks and help.

use std::{ffi::OsString, str::FromStr};

use crate::{bench::Soak, counts::Mode, fuzz, gpu_check, ptx, sanitize::Sanitizer};

/// What `cargo xtask` prints without arguments.
pub(crate) const HELP: &str = "\
cargo xtask TASK

  bench [replay|policies|micro|nvme|device|all] [--smoke|--quick|--full] [--baseline FILE] [--report] [MORE]
                     Runs kvo-bench, built for release. Without a command: replay of synth:4000:42.
                     `cargo xtask bench help` lists the commands, `... replay --help` a command's flags.
                     `--baseline FILE` compares with the JSON of an earlier run, and fails if it was faster.
                     `--report` writes one HTML page of all results; `cargo xtask bench report` does only that.
                     `cargo xtask bench compare` runs micro beside kvbm-logical, `cargo xtask bench compare nvme` the
                     store beside foyer and a file per chunk; it fetches them.
  soak nvme [--minutes M] [MORE]
                     Keeps a full store busy, by default for ten minutes; fails on a wrong byte, on counts that do not
                     agree, and on growth.
  soak engine [--minutes M] [MORE]
                     Keeps the mini-engine at capacity on a real store and a host device, by default for ten minutes, while
                     everything fails that can; fails on a logit that differs, on growth, and on what is left over.
  counts [--check]   Instructions and cache misses a chunk, by valgrind, beside their targets; with --check fails where
                     they are worse than bench/counts.txt has them. `counts --bless` writes that file anew.
  fuzz [--target T] [--seconds N] [--executions N] [FILE...]
                     Fuzzes what kvo reads and its state machines, by default every target for a minute, and at most with
                     so many inputs: superblock, header, order, record, recovery, store (what the NVMe store reads from
                     disk); trace, stored, config, gguf, ptx, layout (other texts, files and descriptions); policies,
                     policy-models, cpu, tiering, sim (by operations). Needs a C++ compiler. With files it runs these
                     once, of one target.
  loom               Every order in which the atomics of our own handshakes can meet.
  miri [MORE]        The tests of the crates that Miri can run; MORE is for `cargo miri test` instead. Needs a nightly
                     toolchain with Miri, and says that it skips where there is none.
  sanitize [address|thread|memcheck]
                     Tests of the crates with unsafe code or threads, under AddressSanitizer, under ThreadSanitizer, or
                     under valgrind, which sees a branch on bytes that nobody has written.
  gpu-check [--out DIR] [--run|--model [MORE]]
                     Builds a folder, target/gpu-check, that checks kvo on a machine with a GPU and no toolchain. With
                     --run it is run here, on the driver that there is, or else on the one for tests, a model; with
                     --model on that one. `cargo xtask gpu-check --run --help` lists the program's own flags.
  ptx [--check]      Compiles the kernels to the PTX that is checked in, by NVRTC 12.1, which pip can install; with
                     --check says whether that PTX is of its source. KVO_PYTHON names the Python that has NVRTC.
  sim [--seeds N] [--minutes M] [--seed S] [--canary]
                     Runs all of kvo in simulation, with everything that can go wrong, from 2,000 seeds; fails with what
                     it has found, made smaller. `--seed S` replays one; `--canary` puts defects in, and fails unless
                     each is found; `--fresh` begins with a seed that nobody has chosen.
  ci                 What CI runs: format, tidy, PTX, lints, docs, tests, conformance, interleavings, addresses,
                     values, short benches, fuzzers, the simulation, the GPU check on a model, counts.
  conformance DIR    Replays every scenario file in DIR against the managers.
  cuda-features [--all]
                     Compiles kvo-cuda beside engines that chose other features of cudarc; with --all every version.
  tidy               Checks of the sources that no compiler makes.
";

/// Exit status of a command that was not understood.
pub(crate) const MISUSE_STATUS: u8 = 2;

/// How long a target is fuzzed, unless it is said.
const FUZZ_SECONDS: u32 = 60;

/// A task with its arguments.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Task {
    Help,
    Bench(Vec<OsString>),
    Ci,
    Conformance(OsString),
    Counts(Mode),
    Fuzz(fuzz::Options),
    GpuCheck(gpu_check::Options),
    Loom,
    /// Arguments for `cargo miri test`.
    Miri(Vec<OsString>),
    Sanitize(Sanitizer),
    /// Whether every version is tried.
    CudaFeatures(bool),
    Ptx(ptx::Mode),
    Sim(Vec<OsString>),
    /// What is kept busy, and its arguments.
    Soak(Soak, Vec<OsString>),
    Tidy,
}

impl Task {
    /// Reads the arguments after the program's name; the error is for the user to read.
    pub(crate) fn parse(arguments: impl IntoIterator<Item = OsString>) -> Result<Self, String> {
        let mut arguments = arguments.into_iter();
        let Some(name) = arguments.next() else { return Ok(Self::Help) };
        let mut rest: Vec<OsString> = arguments.collect();
        match name.to_str() {
            Some("help" | "--help" | "-h") => Ok(Self::Help),
            Some("bench") => Ok(Self::Bench(rest)),
            Some("ci") => none(&name, &rest).map(|()| Self::Ci),
            Some("tidy") => none(&name, &rest).map(|()| Self::Tidy),
            Some("counts") => counts_mode(&rest).map(Self::Counts),
            Some("fuzz") => fuzz_options(rest).map(Self::Fuzz),
            Some("gpu-check") => gpu_check::Options::parse(rest).map(Self::GpuCheck),
            Some("cuda-features") => match rest.as_slice() {
                [] => Ok(Self::CudaFeatures(false)),
                [flag] if flag == "--all" => Ok(Self::CudaFeatures(true)),
                [flag, ..] => Err(format!("cuda-features takes --all, but got \"{}\"", flag.display())),
            },
            Some("ptx") => ptx_mode(&rest).map(Self::Ptx),
            Some("loom") => none(&name, &rest).map(|()| Self::Loom),
            Some("miri") => Ok(Self::Miri(rest)),
            Some("sanitize") => sanitizer(&rest).map(Self::Sanitize),
            Some("sim") => Ok(Self::Sim(rest)),
            Some("soak") => match rest.split_first() {
                Some((first, more)) if first == "nvme" => Ok(Self::Soak(Soak::Nvme, more.to_vec())),
                Some((first, more)) if first == "engine" => Ok(Self::Soak(Soak::Engine, more.to_vec())),
                _ => Err("soak takes what to keep busy, which can be nvme or engine".to_owned()),
            },
            Some("conformance") => match (rest.pop(), rest.is_empty()) {
                (Some(dir), true) => Ok(Self::Conformance(dir)),
                _ => Err("conformance takes one argument, the directory of the scenario files".to_owned()),
            },
            _ => Err(format!("there is no task \"{}\"\n\n{HELP}", name.display())),
        }
    }
}

fn counts_mode(arguments: &[OsString]) -> Result<Mode, String> {
    match arguments {
        [] => Ok(Mode::Show),
        [flag] if flag == "--check" => Ok(Mode::Check),
        [flag] if flag == "--bless" => Ok(Mode::Bless),
        [flag, ..] => Err(format!("counts takes --check or --bless, but got \"{}\"", flag.display())),
    }
}

fn sanitizer(arguments: &[OsString]) -> Result<Sanitizer, String> {
    match arguments {
        [] => Ok(Sanitizer::Address),
        [name] if name == "address" => Ok(Sanitizer::Address),
        [name] if name == "thread" => Ok(Sanitizer::Thread),
        [name] if name == "memcheck" => Ok(Sanitizer::Memcheck),
        [name, ..] => {
            Err(format!("sanitize takes address, thread or memcheck, but got \"{}\"", name.display()))
        }
    }
}

fn fuzz_options(arguments: Vec<OsString>) -> Result<fuzz::Options, String> {
    let mut options =
        fuzz::Options { target: None, seconds: FUZZ_SECONDS, executions: None, inputs: Vec::new() };
    let mut arguments = arguments.into_iter();
    while let Some(argument) = arguments.next() {
        match argument.to_str() {
            Some("--target") => options.target = Some(fuzz_target(arguments.next().as_ref())?),
            Some("--seconds") => options.seconds = at_least_one("--seconds", "seconds", arguments.next())?,
            Some("--executions") => {
                options.executions = Some(at_least_one("--executions", "inputs", arguments.next())?);
            }
            Some(flag) if flag.starts_with('-') => {
                let flags = "--target, --seconds, --executions";
                return Err(format!("fuzz takes {flags} and files, but got \"{flag}\""));
            }
            _ => options.inputs.push(argument),
        }
    }
    if options.target.is_none() && !options.inputs.is_empty() {
        return Err("fuzz runs files of one target: name it, with --target".to_owned());
    }
    Ok(options)
}

fn fuzz_target(value: Option<&OsString>) -> Result<&'static str, String> {
    let found = fuzz::TARGETS.into_iter().find(|target| value.is_some_and(|value| value == target));
    found.ok_or_else(|| format!("--target takes one of {}", fuzz::TARGETS.join(", ")))
}

/// The value of a flag that is a number of something; to libFuzzer, 0 is for ever.
fn at_least_one<T: FromStr + From<u8> + PartialOrd>(
    flag: &str,
    of_what: &str,
    value: Option<OsString>,
) -> Result<T, String> {
    let number = value.and_then(|value| value.to_str()?.parse().ok());
    number
        .filter(|number| *number >= T::from(1))
        .ok_or_else(|| format!("{flag} takes a number of {of_what}, at least 1"))
}

fn ptx_mode(arguments: &[OsString]) -> Result<ptx::Mode, String> {
    match arguments {
        [] => Ok(ptx::Mode::Build),
        [flag] if flag == "--check" => Ok(ptx::Mode::Check),
        [flag, ..] => Err(format!("ptx takes --check, but got \"{}\"", flag.display())),
    }
}

fn none(task: &OsString, arguments: &[OsString]) -> Result<(), String> {
    match arguments {
        [] => Ok(()),
        [first, ..] => Err(format!("{} takes no arguments, but got \"{}\"", task.display(), first.display())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu_check::Run;

    fn parse(arguments: &[&str]) -> Result<Task, String> {
        Task::parse(arguments.iter().map(OsString::from))
    }

    #[test]
    fn tasks_are_read() {
        assert_eq!(parse(&[]), Ok(Task::Help));
        assert_eq!(parse(&["--help"]), Ok(Task::Help));
        assert_eq!(parse(&["ci"]), Ok(Task::Ci));
        assert_eq!(parse(&["tidy"]), Ok(Task::Tidy));
        assert_eq!(parse(&["conformance", "dir"]), Ok(Task::Conformance("dir".into())));
        assert_eq!(parse(&["counts"]), Ok(Task::Counts(Mode::Show)));
        assert_eq!(parse(&["counts", "--check"]), Ok(Task::Counts(Mode::Check)));
        assert_eq!(parse(&["counts", "--bless"]), Ok(Task::Counts(Mode::Bless)));
        assert_eq!(parse(&["cuda-features"]), Ok(Task::CudaFeatures(false)));
        assert_eq!(parse(&["cuda-features", "--all"]), Ok(Task::CudaFeatures(true)));
        assert_eq!(parse(&["ptx"]), Ok(Task::Ptx(ptx::Mode::Build)));
        assert_eq!(parse(&["ptx", "--check"]), Ok(Task::Ptx(ptx::Mode::Check)));
        assert_eq!(parse(&["sim", "--canary"]), Ok(Task::Sim(vec!["--canary".into()])));
        assert_eq!(parse(&["soak", "nvme"]), Ok(Task::Soak(Soak::Nvme, vec![])));
        let minutes = vec!["--minutes".into(), "1".into()];
        assert_eq!(parse(&["soak", "engine", "--minutes", "1"]), Ok(Task::Soak(Soak::Engine, minutes)));
        assert_eq!(parse(&["loom"]), Ok(Task::Loom));
        assert_eq!(parse(&["miri", "--package", "a"]), Ok(Task::Miri(vec!["--package".into(), "a".into()])));
        assert_eq!(parse(&["sanitize"]), Ok(Task::Sanitize(Sanitizer::Address)));
        assert_eq!(parse(&["sanitize", "address"]), Ok(Task::Sanitize(Sanitizer::Address)));
        assert_eq!(parse(&["sanitize", "thread"]), Ok(Task::Sanitize(Sanitizer::Thread)));
        assert_eq!(parse(&["sanitize", "memcheck"]), Ok(Task::Sanitize(Sanitizer::Memcheck)));
        let fuzz = |target, seconds, inputs: &[&str]| {
            let inputs = inputs.iter().map(OsString::from).collect();
            Ok(Task::Fuzz(fuzz::Options { target, seconds, executions: None, inputs }))
        };
        assert_eq!(parse(&["fuzz"]), fuzz(None, 60, &[]));
        assert_eq!(parse(&["fuzz", "--seconds", "10", "--target", "store"]), fuzz(Some("store"), 10, &[]));
        assert_eq!(parse(&["fuzz", "--target", "record", "a", "b"]), fuzz(Some("record"), 60, &["a", "b"]));
        let most =
            fuzz::Options { target: None, seconds: 3600, executions: Some(10_000_000), inputs: vec![] };
        let given = ["fuzz", "--seconds", "3600", "--executions", "10000000"];
        assert_eq!(parse(&given), Ok(Task::Fuzz(most)));
        let gpu_check = |out: Option<&str>, run| {
            Ok(Task::GpuCheck(gpu_check::Options { out: out.map(OsString::from), run }))
        };
        assert_eq!(parse(&["gpu-check"]), gpu_check(None, Run::Not));
        assert_eq!(parse(&["gpu-check", "--out", "d"]), gpu_check(Some("d"), Run::Not));
        let more = vec!["--quick".into(), "--out".into(), "r".into()];
        let given = ["gpu-check", "--out", "d", "--run", "--quick", "--out", "r"];
        assert_eq!(parse(&given), gpu_check(Some("d"), Run::Here(more)));
        assert_eq!(parse(&["gpu-check", "--model"]), gpu_check(None, Run::Model(vec![])));
        assert_eq!(parse(&["bench"]), Ok(Task::Bench(vec![])));
        assert_eq!(parse(&["bench", "replay", "-h"]), Ok(Task::Bench(vec!["replay".into(), "-h".into()])));
    }

    #[track_caller]
    fn check_misuse(arguments: &[&str], part: &str) {
        let error = parse(arguments).unwrap_err();
        assert!(error.contains(part), "{error}");
    }

    #[test]
    fn misuse_is_told_what_would_be_right() {
        check_misuse(&["bnech"], "there is no task \"bnech\"\n\ncargo xtask TASK");
        check_misuse(&["ci", "--fast"], "ci takes no arguments, but got \"--fast\"");
        check_misuse(&["tidy", "now"], "tidy takes no arguments, but got \"now\"");
        check_misuse(&["counts", "--checked"], "counts takes --check or --bless, but got \"--checked\"");
        check_misuse(&["counts", "--check", "--bless"], "counts takes --check or --bless");
        check_misuse(&["fuzz", "--target", "nothing"], "--target takes one of superblock, header");
        check_misuse(&["fuzz", "--target"], "--target takes one of");
        check_misuse(&["fuzz", "--seconds", "0"], "--seconds takes a number of seconds");
        check_misuse(&["fuzz", "--seconds", "-1"], "--seconds takes a number of seconds");
        check_misuse(&["fuzz", "--fast"], "fuzz takes --target, --seconds, --executions and files, but got");
        check_misuse(&["fuzz", "--executions", "0"], "--executions takes a number of inputs, at least 1");
        check_misuse(&["fuzz", "a"], "fuzz runs files of one target: name it");
        check_misuse(&["cuda-features", "--al"], "cuda-features takes --all, but got \"--al\"");
        check_misuse(
            &["gpu-check", "--quick"],
            "gpu-check takes --out, --run and --model, but got \"--quick\"",
        );
        check_misuse(&["gpu-check", "--out"], "--out takes a directory");
        check_misuse(&["ptx", "--bless"], "ptx takes --check, but got \"--bless\"");
        check_misuse(&["soak"], "soak takes what to keep busy, which can be nvme or engine");
        check_misuse(&["loom", "all"], "loom takes no arguments");
        check_misuse(
            &["sanitize", "memory"],
            "sanitize takes address, thread or memcheck, but got \"memory\"",
        );
        check_misuse(&["soak", "--minutes", "1"], "soak takes what to keep busy");
        check_misuse(&["conformance"], "conformance takes one argument");
        check_misuse(&["conformance", "a", "b"], "conformance takes one argument");
    }
}
