//! `kvo-bench soak-engine`: minutes of an engine at capacity while everything fails that can.

use std::{
    io::{Write, stdout},
    time::Duration,
};

use clap::Args;
use kvo_bench::{
    Interrupt, new_table, number_cell, progress_bar,
    soak::{
        EngineCounts, EngineSample, EngineSoakOptions, EngineSoakResult, LeftOver, growth_percent,
        memory_problems, run_engine_soak,
    },
};
use serde::Serialize;

use crate::{
    Outcome,
    soak_command::{AnySoakArgs, outcome, print_problems, some_of},
    write_report,
};

/// Keeps the mini-engine at capacity on a real store and a host device for minutes, while slots are in use, jobs of the
/// store fail and are late, its file is overwritten, and requests are aborted, preempted and reset.
///
/// It fails if a logit of an answer is not what it is without all that, if memory grows by more than 2 % after the
/// warm-up, or if at the end a request, a pin, a block, a thread or a descriptor is left over.
#[derive(Debug, Args)]
pub(crate) struct SoakEngineArgs {
    #[command(flatten)]
    of_any: AnySoakArgs,
    /// Slots of the primary tier
    #[arg(long, value_name = "N", default_value = "96", value_parser = clap::value_parser!(u32).range(32..))]
    cpu_chunks: u32,
    /// Chunks that the store holds
    #[arg(long, value_name = "N", default_value = "512", value_parser = clap::value_parser!(u32).range(64..))]
    nvme_chunks: u32,
}

#[derive(Debug, Serialize)]
struct Results<'a> {
    file_system: Option<String>,
    minutes: f64,
    cpu_chunks: u32,
    nvme_chunks: u32,
    policy: String,
    seed: u64,
    growth_percent: Option<f64>,
    counts: &'a EngineCounts,
    problems: &'a [String],
    samples: &'a [EngineSample],
}

pub(crate) fn run(args: &SoakEngineArgs, interrupt: &Interrupt) -> anyhow::Result<Outcome> {
    let mut out = stdout();
    let AnySoakArgs { minutes, policy, seed, .. } = args.of_any;
    let place = args.of_any.place(&mut out)?;
    let duration = args.of_any.duration();
    let options = EngineSoakOptions {
        duration,
        cpu_chunks: args.cpu_chunks,
        nvme_chunks: args.nvme_chunks,
        policy,
        seed,
    };
    writeln!(
        out,
        "{minutes:.2} minutes, {} slots, {} chunks in the store, {policy}, seed {seed}",
        args.cpu_chunks, args.nvme_chunks
    )?;
    let dir = place.below("store")?;
    let before = LeftOver::now()?;
    let progress = progress_bar(duration.as_secs(), "seconds");
    let mut result = run_engine_soak(dir.path(), &options, interrupt, |sample| {
        progress.set_position(Duration::from_secs_f64(sample.seconds).as_secs());
    })?;
    progress.finish_and_clear();
    drop(progress);
    result.problems.extend(before.problems()?);
    result.problems.extend(memory_problems(&result.samples));
    print(&mut out, &result)?;

    let EngineSoakResult { samples, counts, problems } = &result;
    let results = Results {
        file_system: place.surroundings.file_system.clone(),
        minutes,
        cpu_chunks: args.cpu_chunks,
        nvme_chunks: args.nvme_chunks,
        policy: policy.to_string(),
        seed,
        growth_percent: growth_percent(samples),
        counts,
        problems,
        samples,
    };
    write_report(&mut out, results, "soak-engine", !interrupt.is_set())?;
    Ok(outcome(problems, interrupt))
}

fn print(out: &mut impl Write, result: &EngineSoakResult) -> anyhow::Result<()> {
    let mut table = new_table(["seconds", "answers", "RSS MiB"]);
    for sample in some_of(&result.samples) {
        table.add_row([
            number_cell(format!("{:.1}", sample.seconds)),
            number_cell(sample.answers),
            number_cell(format!("{:.2}", sample.resident_bytes as f64 / f64::from(1 << 20))),
        ]);
    }
    writeln!(out, "{table}")?;
    let counts = &result.counts;
    writeln!(
        out,
        "{} answers, {} logits compared to the bit, {} answers differ",
        counts.answers, counts.logits, counts.wrong_answers
    )?;
    let faults = [
        ("aborted", counts.aborted),
        ("preemptions", counts.preemptions),
        ("resets", counts.resets),
        ("tokens loaded", counts.loaded_tokens),
        ("tokens whose load failed", counts.failed_tokens),
        ("chunks promoted", counts.promoted),
        ("chunks evicted", counts.evicted),
        ("store jobs refused", counts.faults.jobs_refused),
        ("store jobs failed", counts.faults.jobs_failed),
        ("store jobs late", counts.faults.jobs_late),
        ("slots in use", counts.busy_slots),
        ("places of the file overwritten", counts.spoiled),
        ("wrong checksums", counts.checksum_failures),
    ];
    let faults: Vec<_> = faults.into_iter().map(|(what, count)| format!("{what} {count}")).collect();
    writeln!(out, "{}", faults.join(", "))?;
    match growth_percent(&result.samples) {
        Some(percent) => writeln!(out, "memory changed by {percent:+.2} % after the warm-up")?,
        None => writeln!(out, "too short to tell whether memory grows")?,
    }
    print_problems(out, &result.problems)
}
