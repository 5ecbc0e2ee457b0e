//! `kvo-store`: makes stores of kvo-nvme, looks into them, checks and mends them.

#![forbid(unsafe_code)]

mod args;
mod bench;
mod create;
mod diagnosis;
mod ls;
mod output;
mod pace;
mod repair;
mod stat;
mod store;
mod units;
mod verify;
mod wipe;

use std::{io, process::ExitCode};

use clap::Parser;

use crate::{
    args::{Cli, Command},
    diagnosis::{DAMAGED, Diagnosis, INTERRUPTED},
    output::Outcome,
};

fn main() -> ExitCode {
    let cli = Cli::parse();
    match run(&cli) {
        Ok(Outcome::Good) => ExitCode::SUCCESS,
        Ok(Outcome::Damaged) => ExitCode::from(DAMAGED),
        Ok(Outcome::Interrupted) => ExitCode::from(INTERRUPTED),
        // Whoever read the output has seen enough of it, as in `kvo-store ls DIR | head`.
        Err(error) if is_closed_output(&error) => ExitCode::SUCCESS,
        Err(error) => {
            let diagnosis = Diagnosis::of(&error);
            // With nobody to tell it to, the status says it.
            let _ = diagnosis.show(cli.json);
            ExitCode::from(diagnosis.status)
        }
    }
}

fn run(cli: &Cli) -> anyhow::Result<Outcome> {
    match &cli.command {
        Command::Create(args) => create::run(args, cli.json),
        Command::Stat(args) => stat::run(args, cli.json),
        Command::Ls(args) => ls::run(args, cli.json),
        Command::Verify(args) => verify::run(args, cli.json),
        Command::Repair(args) => repair::run(args, cli.json),
        Command::Wipe(args) => wipe::run(args, cli.json),
        Command::Bench(args) => bench::run(args, cli.json),
    }
}

fn is_closed_output(error: &anyhow::Error) -> bool {
    error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}
