//! `kvo-bench`: replays traces through kvo, compares eviction policies on them, and times the calls of a manager.

#![forbid(unsafe_code)]

mod args;
mod micro_command;
mod policies;
mod replay;

use std::{io, process::ExitCode};

use clap::{Parser, Subcommand};
use kvo_bench::{INTERRUPTED_STATUS, Interrupt};

/// Measurements of kvo. Each command prints a table and leaves the same figures in target/bench/COMMAND.json, or in
/// the directory that the environment variable `KVO_BENCH_OUT` names.
///
/// Exit status: 0 if all is well, 1 if a check failed, 2 if the command could not be run as asked, 130 if it was
/// stopped by Ctrl-C, after printing what it had.
#[derive(Debug, Parser)]
#[command(name = "kvo-bench", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Replay(replay::ReplayArgs),
    Micro(micro_command::MicroArgs),
    Policies(policies::PoliciesArgs),
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

fn main() -> ExitCode {
    let cli = Cli::parse();
    match run(&cli.command) {
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

fn run(command: &Command) -> anyhow::Result<Outcome> {
    let interrupt = Interrupt::on_ctrl_c()?;
    match command {
        Command::Replay(args) => replay::run(args, &interrupt),
        Command::Micro(args) => micro_command::run(args, &interrupt),
        Command::Policies(args) => policies::run(args, &interrupt),
    }
}
