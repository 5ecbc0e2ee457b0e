//! kvo beside other projects: one process, one workload, interleaved rounds.

#![forbid(unsafe_code)]

mod file_per_chunk;
mod foyer_cache;
mod kvbm;
mod micro;
mod nvme;

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use kvo_bench::INTERRUPTED_STATUS;

/// Measures kvo's metadata path beside that of kvbm-logical 1.6 with its LRU backend; with `nvme`, its store beside
/// others.
///
/// The flags and jobs are those of `kvo-bench micro`. The figures go to target/bench/compare.json too, or to the
/// directory that the environment variable `KVO_BENCH_OUT` names.
#[derive(Debug, Parser)]
#[command(name = "kvo-bench-compare", version, args_conflicts_with_subcommands = true)]
struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    micro: micro::MicroArgs,
}

#[derive(Debug, Subcommand)]
enum Command {
    Nvme(nvme::NvmeArgs),
}

/// How a comparison ended that could be run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    /// All is well.
    Passed,
    /// Bytes came back that are not those that were written.
    Failed,
    /// The user stopped it.
    Interrupted,
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let outcome = match &cli.command {
        None => micro::run(&cli.micro),
        Some(Command::Nvme(args)) => nvme::run(args),
    };
    match outcome {
        Ok(Outcome::Passed) => ExitCode::SUCCESS,
        Ok(Outcome::Failed) => ExitCode::FAILURE,
        Ok(Outcome::Interrupted) => ExitCode::from(INTERRUPTED_STATUS),
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::from(2)
        }
    }
}
