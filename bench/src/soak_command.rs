//! `kvo-bench soak-nvme`: minutes of churn.

use std::{
    io::{Write, stdout},
    path::PathBuf,
    time::Duration,
};

use clap::Args;
use kvo_bench::{
    Interrupt, new_table, number_cell,
    nvme::Place,
    progress_bar,
    soak::{Ledger, SoakOptions, SoakResult, SoakSample, growth_problems, resident_growth, run_soak},
};
use kvo_policies::PolicyKind;
use serde::Serialize;

use crate::{Outcome, write_report};

/// Keeps a full store busy for minutes, 70 % loads and 30 % stores, and compares every byte that comes back.
///
/// It fails if a byte is wrong, if the store's counts do not agree with what was asked of it, or if memory, files or
/// threads grow in the second half.
#[derive(Debug, Args)]
pub(crate) struct SoakArgs {
    #[command(flatten)]
    of_any: AnySoakArgs,
    /// Bytes a chunk
    #[arg(long, value_name = "N", default_value = "1048576", value_parser = clap::value_parser!(u32).range(4096..=1 << 28))]
    chunk_bytes: u32,
    /// Chunks that the store holds
    #[arg(long, value_name = "N", default_value = "512", value_parser = clap::value_parser!(u32).range(64..))]
    capacity_chunks: u32,
}

/// What every soak is told.
#[derive(Debug, Args)]
pub(crate) struct AnySoakArgs {
    /// For how long
    #[arg(long, value_name = "M", default_value = "10", value_parser = minutes)]
    pub(crate) minutes: f64,
    /// Where to make the temporary directory of the store [default: that of the system]
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Which chunk goes first
    #[arg(long, value_name = "NAME", default_value = "lru")]
    pub(crate) policy: PolicyKind,
    /// Of the random choices
    #[arg(long, value_name = "N", default_value = "1")]
    pub(crate) seed: u64,
}

impl AnySoakArgs {
    /// Where its store will be, which is said.
    pub(crate) fn place(&self, out: &mut impl Write) -> anyhow::Result<Place> {
        let place = Place::new(self.dir.as_deref())?;
        place.announce(out)?;
        Ok(place)
    }

    pub(crate) fn duration(&self) -> Duration {
        Duration::from_secs_f64(self.minutes * 60.0)
    }
}

/// The last sample, and not too many before it.
pub(crate) fn some_of<T>(samples: &[T]) -> impl Iterator<Item = &T> {
    const ROWS: usize = 10;
    let step = samples.len().div_ceil(ROWS).max(1);
    let first = samples.len().saturating_sub(1) % step;
    samples.iter().skip(first).step_by(step)
}

pub(crate) fn print_problems(out: &mut impl Write, problems: &[String]) -> anyhow::Result<()> {
    for problem in problems {
        writeln!(out, "FAILED: {problem}")?;
    }
    Ok(())
}

pub(crate) fn outcome(problems: &[String], interrupt: &Interrupt) -> Outcome {
    match (problems.is_empty(), interrupt.is_set()) {
        (false, _) => Outcome::Failed,
        (true, true) => Outcome::Interrupted,
        (true, false) => Outcome::Passed,
    }
}

#[derive(Debug, Serialize)]
struct Results<'a> {
    file_system: Option<String>,
    minutes: f64,
    chunk_bytes: u32,
    capacity_chunks: u32,
    policy: String,
    seed: u64,
    compared_bytes: u64,
    wrong_chunks: u64,
    growth_bytes: Option<i64>,
    ledger: Ledger,
    problems: &'a [String],
    samples: &'a [SoakSample],
}

pub(crate) fn run(args: &SoakArgs, interrupt: &Interrupt) -> anyhow::Result<Outcome> {
    let mut out = stdout();
    let AnySoakArgs { minutes, policy, seed, .. } = args.of_any;
    let place = args.of_any.place(&mut out)?;
    let duration = args.of_any.duration();
    let options = SoakOptions {
        duration,
        chunk_bytes: args.chunk_bytes,
        capacity_chunks: args.capacity_chunks,
        policy,
        seed,
    };
    writeln!(
        out,
        "{minutes:.2} minutes over {} chunks of {} KiB, {policy}, seed {seed}",
        args.capacity_chunks,
        args.chunk_bytes >> 10,
    )?;
    let dir = place.below("store")?;
    let progress = progress_bar(duration.as_secs(), "seconds");
    let mut result = run_soak(dir.path(), &options, interrupt, |sample| {
        progress.set_position(Duration::from_secs_f64(sample.seconds).as_secs());
    })?;
    progress.finish_and_clear();
    result.problems.extend(growth_problems(&result.samples));
    print(&mut out, args, &result)?;

    let SoakResult { samples, ledger, problems, .. } = &result;
    let results = Results {
        file_system: place.surroundings.file_system.clone(),
        minutes,
        chunk_bytes: args.chunk_bytes,
        capacity_chunks: args.capacity_chunks,
        policy: policy.to_string(),
        seed,
        compared_bytes: ledger.compared.right_bytes,
        wrong_chunks: ledger.compared.wrong_chunks,
        growth_bytes: resident_growth(samples),
        ledger: *ledger,
        problems,
        samples,
    };
    write_report(&mut out, results, "soak-nvme", !interrupt.is_set())?;
    Ok(outcome(problems, interrupt))
}

fn print(out: &mut impl Write, args: &SoakArgs, result: &SoakResult) -> anyhow::Result<()> {
    let mib = |chunks: u64| (chunks * u64::from(args.chunk_bytes)) >> 20;
    let mut table =
        new_table(["seconds", "loaded MiB", "offered MiB", "evicted", "RSS MiB", "files", "threads"]);
    for sample in some_of(&result.samples) {
        let or_unknown = |count: Option<u64>| count.map_or_else(|| "unknown".to_owned(), |n| n.to_string());
        table.add_row([
            number_cell(format!("{:.1}", sample.seconds)),
            number_cell(mib(sample.chunks_loaded)),
            number_cell(mib(sample.chunks_offered)),
            number_cell(sample.chunks_evicted),
            number_cell(format!("{:.1}", sample.resident_bytes as f64 / f64::from(1 << 20))),
            number_cell(or_unknown(sample.open_files.map(|files| files as u64))),
            number_cell(or_unknown(sample.threads)),
        ]);
    }
    writeln!(out, "{table}")?;
    let compared = result.ledger.compared;
    writeln!(
        out,
        "{} jobs, {} MiB that were loaded compared byte by byte, {} chunks differ",
        result.ledger.jobs,
        compared.right_bytes >> 20,
        compared.wrong_chunks
    )?;
    match resident_growth(&result.samples) {
        Some(growth) => writeln!(out, "memory grew by {} KiB in the second half", growth / 1024)?,
        None => writeln!(out, "too short to tell whether memory grows")?,
    }
    print_problems(out, &result.problems)
}

fn minutes(text: &str) -> Result<f64, String> {
    const MAX: f64 = 7.0 * 24.0 * 60.0;
    match text.parse::<f64>() {
        Ok(minutes) if minutes > 0.0 && minutes <= MAX => Ok(minutes),
        _ => Err(format!("{text:?} is no time: use minutes up to {MAX}, such as 10 or 0.05")),
    }
}
