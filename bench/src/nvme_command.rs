//! `kvo-bench nvme`: the store beside plain I/O.

use std::{
    io::{Write, stdout},
    path::Path,
};

use anyhow::Context;
use clap::Args;
use comfy_table::Table;
use kvo_bench::{
    Interrupt, Report, Spread,
    micro::Preset,
    new_table, number_cell,
    nvme::{NvmeBenchOptions, NvmeCaseResult, NvmePlan, allows_direct_io, file_system_of, run_nvme_case},
    progress_bar,
};
use serde::Serialize;

use crate::Outcome;

/// Writes and reads chunks through the NVMe store, every byte compared, beside plain I/O of as many threads.
///
/// Ratios count: both run in the same rounds on the same file system. The store goes through the page cache, so a write
/// counts until fdatasync returns, and the cached pages of its file are dropped before each read; the plain I/O goes
/// around it where the file system allows that. On a virtual machine the host may have a cache of its own.
#[derive(Debug, Args)]
pub(crate) struct NvmeArgs {
    #[command(flatten)]
    options: NvmeBenchOptions,
}

#[derive(Debug, Serialize)]
struct Results<'a> {
    preset: Preset,
    /// The type of the file system.
    file_system: Option<String>,
    /// Whether the plain I/O went around the page cache.
    limit_is_direct: bool,
    bytes_per_round: u64,
    verified_bytes: u64,
    mismatches: u64,
    cases: &'a [NvmeCaseResult],
}

impl NvmeArgs {
    /// What its file of results is called.
    pub(crate) fn report_name(&self) -> &'static str {
        if self.options.smoke { "nvme-smoke" } else { "nvme" }
    }
}

pub(crate) fn run(args: &NvmeArgs, interrupt: &Interrupt) -> anyhow::Result<Outcome> {
    let mut out = stdout();
    let plan = args.options.plan();
    let dir = match &args.options.dir {
        Some(parent) => tempfile::tempdir_in(parent).with_context(|| {
            format!("cannot make a directory for the files in {} (--dir)", parent.display())
        }),
        None => tempfile::tempdir().context("cannot make a temporary directory for the files"),
    }?;
    let file_system = file_system_of(dir.path());
    let limit_is_direct = allows_direct_io(dir.path())
        .with_context(|| format!("cannot make a file in {}", dir.path().display()))?;
    announce(&mut out, file_system.as_deref(), limit_is_direct)?;
    let cases = run_cases(dir.path(), &plan, limit_is_direct, interrupt)?;

    let sum = |count: fn(&NvmeCaseResult) -> u64| cases.iter().map(count).sum::<u64>();
    let (verified_bytes, mismatches) = (sum(|case| case.verified_bytes), sum(|case| case.mismatches));
    writeln!(out, "{}", table(&cases))?;
    writeln!(
        out,
        "{} MiB that were read compared byte by byte, {mismatches} chunks differ",
        verified_bytes >> 20
    )?;
    let results = Results {
        preset: plan.preset,
        file_system,
        limit_is_direct,
        bytes_per_round: plan.round_bytes,
        verified_bytes,
        mismatches,
        cases: &cases,
    };
    let complete = !interrupt.is_set();
    let file = Report::new(results, complete).write(args.report_name())?;
    writeln!(out, "as JSON: {}", file.display())?;
    if mismatches > 0 {
        writeln!(out, "FAILED: {mismatches} chunks came back with other bytes")?;
        return Ok(Outcome::Failed);
    }
    Ok(if complete { Outcome::Passed } else { Outcome::Interrupted })
}

/// What is measured, and on what.
fn announce(out: &mut impl Write, file_system: Option<&str>, limit_is_direct: bool) -> anyhow::Result<()> {
    let plain = if limit_is_direct {
        "goes around it (O_DIRECT)"
    } else {
        "does the same, for the file system has no O_DIRECT"
    };
    writeln!(
        out,
        "on {}; the store goes through the page cache, which is synced after each write and dropped before each read; \
         the plain I/O beside it {plain}",
        file_system.unwrap_or("an unknown file system"),
    )?;
    if file_system == Some("tmpfs") {
        writeln!(out, "WARNING: tmpfs is memory: these are no figures of a device; name another with --dir")?;
    }
    Ok(())
}

/// Every case, or those of which a round was run before it was interrupted.
fn run_cases(
    dir: &Path,
    plan: &NvmePlan,
    limit_is_direct: bool,
    interrupt: &Interrupt,
) -> anyhow::Result<Vec<NvmeCaseResult>> {
    let rounds = plan.cases.len() as u64 * (u64::from(plan.rounds) + 1);
    let progress = progress_bar(rounds, "rounds");
    let mut cases = Vec::new();
    for &case in plan.cases.iter().take_while(|_| !interrupt.is_set()) {
        let both = run_nvme_case(dir, plan, case, limit_is_direct, interrupt, || progress.inc(1))
            .with_context(|| format!("chunks of {} bytes at depth {}", case.0, case.1))?;
        cases.extend(both.into_iter().filter(|result| !result.store_mb_per_s.is_empty()));
    }
    progress.finish_and_clear();
    Ok(cases)
}

fn table(cases: &[NvmeCaseResult]) -> Table {
    let mut table = new_table([
        "",
        "chunk KiB",
        "depth",
        "store MB/s",
        "plain I/O MB/s",
        "store over plain",
        "quartiles",
        "by the device %",
    ]);
    for case in cases {
        let median = |rounds: &[f64]| Spread::of(rounds).map_or(0.0, |spread| spread.median);
        let ratio = Spread::of(&case.ratios());
        table.add_row([
            case.direction.to_string().into(),
            number_cell(case.chunk_bytes >> 10),
            number_cell(case.depth),
            number_cell(format!("{:.0}", median(&case.store_mb_per_s))),
            number_cell(format!("{:.0}", median(&case.limit_mb_per_s))),
            number_cell(ratio.map_or_else(String::new, |ratio| format!("{:.2}", ratio.median))),
            number_cell(
                ratio.map_or_else(String::new, |ratio| format!("{:.2}-{:.2}", ratio.first, ratio.third)),
            ),
            number_cell(
                case.device_percent.map_or_else(|| "unknown".to_owned(), |percent| format!("{percent:.0}")),
            ),
        ]);
    }
    table
}
