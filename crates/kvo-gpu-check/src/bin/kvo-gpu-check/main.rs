//! `kvo-gpu-check`: what a GPU does with kvo, to the byte, and how fast, in five minutes and without a toolchain.
//!
//! ```text
//!   run ─┬─▶ section machine   ─┐
//!        ├─▶ section identity   ├─ a process each; its rows come back as lines of JSON
//!        ├─▶ ...                │
//!        └─▶ section batches   ─┘──▶ helpers, where a section breaks something on purpose
//! ```
//!
//! The first process never calls the driver, so nothing that a driver does to a process loses a row.

#![forbid(unsafe_code)]

mod args;
mod batches;
mod calibration;
mod conformance;
mod copies;
mod elf;
mod ground;
mod head_of_line;
mod helper;
mod identity;
mod limit;
mod machine;
mod matrix;
mod overlap;
mod portable;
mod program;
mod rows;
mod run;
mod section;
mod sticky;
mod table;

use std::process::ExitCode;

use clap::Parser;

use crate::args::{Cli, Command};

fn main() -> ExitCode {
    let cli = Cli::parse();
    let done = match &cli.command {
        None => run::run(&cli.run),
        Some(Command::Show { file }) => table::show(file),
        Some(Command::Needs { file, glibc }) => portable::run(file, *glibc),
        Some(Command::Section(args)) => Ok(section::run(args)),
        Some(Command::Helper(args)) => Ok(helper::run(args)),
    };
    done.unwrap_or_else(|error| {
        eprintln!("error: {error:#}");
        ExitCode::from(program::BROKEN)
    })
}
