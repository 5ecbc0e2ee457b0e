//! `kvo-bench all`: every bench, one after the other.

use std::{
    env,
    io::{Write, stdout},
    path::{Path, PathBuf},
    process::Command,
    time::{Duration, Instant},
};

use anyhow::{Context, bail};
use clap::Args;
use kvo_bench::{INTERRUPTED_STATUS, Interrupt, new_table, number_cell};

use crate::{Outcome, after::AfterArgs};

/// The benches, in the order in which they run: the longest last.
const BENCHES: [&str; 7] = ["connector", "overhead", "device", "policies", "replay", "nvme", "micro"];
/// Those whose figures are not compared with an earlier run: each has its own comparison in it.
const NOT_COMPARED: [&str; 3] = ["connector", "overhead", "device"];

/// Runs every bench, each in a process of its own, so that none finds the memory of another.
///
/// A bench that fails does not keep the others from running. The exit status is the worst: 2 if one could not be run,
/// else 1 if one failed. Ctrl-C stops the one that runs, and no other is begun.
#[derive(Debug, Args)]
pub(crate) struct AllArgs {
    /// Very short runs against rot; the figures mean nothing
    #[arg(long, group = "preset")]
    smoke: bool,
    /// Some minutes; this is the default
    #[arg(long, group = "preset")]
    quick: bool,
    /// For figures to quote
    #[arg(long, group = "preset")]
    full: bool,
    /// Where replay and nvme make their temporary files [default: that of the system]
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
}

/// How a bench ended.
struct Done {
    bench: &'static str,
    /// None if a signal ended it.
    status: Option<i32>,
    took: Duration,
}

pub(crate) fn run(args: &AllArgs, after: &AfterArgs, interrupt: &Interrupt) -> anyhow::Result<Outcome> {
    let mut out = stdout();
    let program = env::current_exe().context("cannot find this program to run its benches")?;
    if let Some(dir) = &after.baseline {
        check_baseline(dir, args)?;
    }
    let mut done = Vec::new();
    for bench in BENCHES {
        if interrupt.is_set() {
            break;
        }
        let arguments = args.arguments(bench, after);
        writeln!(out, "\n==== kvo-bench {}", arguments.join(" "))?;
        out.flush()?;
        let started = Instant::now();
        let status = Command::new(&program)
            .args(&arguments)
            .status()
            .with_context(|| format!("cannot run {} for {bench}", program.display()))?;
        done.push(Done { bench, status: status.code(), took: started.elapsed() });
    }
    print_summary(&mut out, &done)?;
    worst(&done, interrupt.is_set())
}

impl AllArgs {
    fn preset(&self) -> &'static str {
        match (self.smoke, self.full) {
            (true, _) => "--smoke",
            (_, true) => "--full",
            _ => "--quick",
        }
    }

    /// The command line of a bench.
    fn arguments(&self, bench: &str, after: &AfterArgs) -> Vec<String> {
        let mut arguments = vec![bench.to_owned(), self.preset().to_owned()];
        let flag = match bench {
            "replay" => Some("--nvme-dir"),
            "nvme" => Some("--dir"),
            _ => None,
        };
        if let (Some(flag), Some(dir)) = (flag, &self.dir) {
            arguments.extend([flag.to_owned(), dir.display().to_string()]);
        }
        if let Some(file) = after.baseline.as_ref().map(|dir| self.baseline_of(bench, dir))
            && file.exists()
            && !NOT_COMPARED.contains(&bench)
        {
            arguments.extend(["--baseline".to_owned(), file.display().to_string()]);
        }
        arguments
    }

    fn baseline_of(&self, bench: &str, dir: &Path) -> PathBuf {
        dir.join(format!("{bench}{}.json", if self.smoke { "-smoke" } else { "" }))
    }
}

fn compared() -> impl Iterator<Item = &'static str> {
    BENCHES.into_iter().filter(|bench| !NOT_COMPARED.contains(bench))
}

/// The baseline of all is a directory in which at least one bench has left its file.
fn check_baseline(dir: &Path, args: &AllArgs) -> anyhow::Result<()> {
    if !dir.is_dir() {
        bail!("--baseline: {} is no directory; `all` takes that of an earlier run's files", dir.display());
    }
    let missing: Vec<_> =
        compared().map(|bench| args.baseline_of(bench, dir)).filter(|file| !file.exists()).collect();
    if missing.len() == compared().count() {
        bail!("--baseline: {} has no file such as {}", dir.display(), missing[0].display());
    }
    for file in missing {
        writeln!(stdout(), "NOT COMPARED: {} does not exist", file.display())?;
    }
    Ok(())
}

fn print_summary(out: &mut impl Write, done: &[Done]) -> anyhow::Result<()> {
    let mut table = new_table(["bench", "seconds", ""]);
    for bench in BENCHES {
        let (took, how) = match done.iter().find(|done| done.bench == bench) {
            None => (String::new(), "not begun".to_owned()),
            Some(done) => (format!("{:.1}", done.took.as_secs_f64()), how(done.status)),
        };
        table.add_row([bench.into(), number_cell(took), how.into()]);
    }
    writeln!(out, "\n{table}")?;
    Ok(())
}

fn how(status: Option<i32>) -> String {
    match status {
        Some(0) => "passed".to_owned(),
        Some(1) => "FAILED".to_owned(),
        Some(2) => "COULD NOT BE RUN".to_owned(),
        Some(status) if status == i32::from(INTERRUPTED_STATUS) => "stopped".to_owned(),
        Some(status) => format!("FAILED with status {status}"),
        None => "FAILED: ended by a signal".to_owned(),
    }
}

fn worst(done: &[Done], is_interrupted: bool) -> anyhow::Result<Outcome> {
    let stopped = Some(i32::from(INTERRUPTED_STATUS));
    if is_interrupted || done.iter().any(|done| done.status == stopped) {
        return Ok(Outcome::Interrupted);
    }
    let broken: Vec<_> =
        done.iter().filter(|done| !matches!(done.status, Some(0 | 1))).map(|done| done.bench).collect();
    if !broken.is_empty() {
        bail!("could not be run: {}", broken.join(", "));
    }
    Ok(if done.iter().all(|done| done.status == Some(0)) { Outcome::Passed } else { Outcome::Failed })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(statuses: &[Option<i32>], expected: Option<Outcome>) {
        let done = statuses.iter().map(|&status| Done { bench: "micro", status, took: Duration::ZERO });
        assert_eq!(worst(&done.collect::<Vec<_>>(), false).ok(), expected);
    }

    #[test]
    fn the_worst_bench_decides() {
        check(&[Some(0), Some(0)], Some(Outcome::Passed));
        check(&[Some(0), Some(1)], Some(Outcome::Failed));
        check(&[Some(1), Some(2)], None);
        check(&[Some(1), None], None);
        check(&[Some(1), Some(101)], None);
        check(&[Some(2), Some(130)], Some(Outcome::Interrupted));
    }
}
