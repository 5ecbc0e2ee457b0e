//! `kvo-bench`: replays traces through kvo, compares eviction policies on them, and times the calls of a
//! manager and the store's I/O.

#![forbid(unsafe_code)]

mod after;
mod all;
mod args;
mod connector_command;
mod device_command;
mod micro_command;
mod nvme_command;
mod overhead_command;
mod policies;
mod replay;
mod soak_command;
mod soak_engine_command;

use std::{
    io::{self, Write},
    process::ExitCode,
};

use anyhow::bail;
use clap::{Parser, Subcommand};
use kvo_bench::{INTERRUPTED_STATUS, Interrupt, Report};
use serde::Serialize;

use after::AfterArgs;

/// Measurements of kvo. Each command prints a table and leaves the same figures in target/bench/COMMAND.json, or in
/// the directory that the environment variable `KVO_BENCH_OUT` names.
///
/// Exit status: 0 if all is well, 1 if a check failed, something got slower than the baseline, or a file of results
/// cannot be shown in the report, 2 if the command could not be run as asked, 130 if it was stopped by Ctrl-C, after
/// printing what it had.
#[derive(Debug, Parser)]
#[command(name = "kvo-bench", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
    #[command(flatten)]
    after: AfterArgs,
}

#[derive(Debug, Subcommand)]
enum Command {
    Replay(replay::ReplayArgs),
    Policies(policies::PoliciesArgs),
    Micro(micro_command::MicroArgs),
    Connector(connector_command::ConnectorArgs),
    Overhead(overhead_command::OverheadArgs),
    Device(device_command::DeviceArgs),
    Nvme(nvme_command::NvmeArgs),
    SoakNvme(soak_command::SoakArgs),
    SoakEngine(soak_engine_command::SoakEngineArgs),
    All(all::AllArgs),
    /// Only writes the page of `--report`, of the results that there are
    Report,
}

/// How a command ended that could be run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    /// All is well.
    Passed,
    /// A check failed; the command has said which.
    Failed,
    /// The user stopped it.
    Interrupted,
}

/// Leaves what was measured as JSON, and says where.
fn write_report(
    out: &mut impl Write,
    results: impl Serialize,
    name: &str,
    complete: bool,
) -> anyhow::Result<()> {
    let file = Report::new(results, complete).write(name)?;
    Ok(writeln!(out, "as JSON: {}", file.display())?)
}

/// The end of a command that can fail no check.
fn finish(
    out: &mut impl Write,
    results: impl Serialize,
    name: &str,
    interrupt: &Interrupt,
) -> anyhow::Result<Outcome> {
    let complete = !interrupt.is_set();
    write_report(out, results, name, complete)?;
    Ok(if complete { Outcome::Passed } else { Outcome::Interrupted })
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    match run(&cli) {
        Ok(Outcome::Passed) => ExitCode::SUCCESS,
        Ok(Outcome::Failed) => ExitCode::FAILURE,
        Ok(Outcome::Interrupted) => ExitCode::from(INTERRUPTED_STATUS),
        // Whoever read the output has seen enough of it, as in `kvo-bench policies | head`.
        Err(error) if is_closed_output(&error) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::from(2)
        }
    }
}

fn is_closed_output(error: &anyhow::Error) -> bool {
    error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}

fn run(cli: &Cli) -> anyhow::Result<Outcome> {
    let interrupt = Interrupt::on_ctrl_c()?;
    // A baseline that cannot be read is told before the run, and read before the run may replace it.
    let before = match &cli.command {
        Command::All(_) => None,
        Command::Report if cli.after.baseline.is_some() => {
            bail!("--baseline: report runs nothing to compare")
        }
        Command::Report => return after::write_report(),
        other => cli.after.read_baseline(other.report_name())?,
    };
    let mut outcome = match &cli.command {
        Command::Replay(args) => replay::run(args, &interrupt),
        Command::Policies(args) => policies::run(args, &interrupt),
        Command::Micro(args) => micro_command::run(args, &interrupt),
        Command::Connector(args) => connector_command::run(args, &interrupt),
        Command::Overhead(args) => overhead_command::run(args, &interrupt),
        Command::Device(args) => device_command::run(args, &interrupt),
        Command::Nvme(args) => nvme_command::run(args, &interrupt),
        Command::SoakNvme(args) => soak_command::run(args, &interrupt),
        Command::SoakEngine(args) => soak_engine_command::run(args, &interrupt),
        Command::All(args) => all::run(args, &cli.after, &interrupt),
        Command::Report => Ok(Outcome::Passed),
    }?;
    if outcome == Outcome::Passed
        && let Some(before) = before
        && before.compare(cli.command.report_name())?
    {
        outcome = Outcome::Failed;
    }
    if cli.after.report && outcome != Outcome::Interrupted && after::write_report()? == Outcome::Failed {
        outcome = Outcome::Failed;
    }
    Ok(outcome)
}

impl Command {
    /// What its file of results is called.
    fn report_name(&self) -> &'static str {
        match self {
            Self::Replay(args) => args.report_name(),
            Self::Policies(args) => args.report_name(),
            Self::Micro(args) => args.report_name(),
            Self::Connector(args) => args.report_name(),
            Self::Overhead(args) => args.report_name(),
            Self::Device(args) => args.report_name(),
            Self::Nvme(args) => args.report_name(),
            Self::SoakNvme(_) => "soak-nvme",
            Self::SoakEngine(_) => "soak-engine",
            Self::All(_) => "all",
            Self::Report => "report",
        }
    }
}
