//! Arguments.

use std::{path::PathBuf, str::FromStr};

use clap::{Args, Parser, Subcommand};

use crate::{helper::HelperArgs, section::Section};

/// Whether kvo works on a GPU, to the byte, and how fast it is there: in five minutes, without a toolchain.
///
/// Each section is a process of its own, and each of its rows a line of JSON in `rows.jsonl` below the directory of the
/// results. Exit status: 0 if all is well, 1 if a section failed, 2 for arguments, 3 without a device.
#[derive(Debug, Parser)]
#[command(version, args_conflicts_with_subcommands = true)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Option<Command>,
    #[command(flatten)]
    pub(crate) run: RunArgs,
}

/// What is run.
#[derive(Clone, Debug, Args)]
pub(crate) struct RunArgs {
    /// The device, as the driver counts
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) device: u32,
    /// These sections alone
    #[arg(long, value_name = "SECTION", value_delimiter = ',')]
    pub(crate) only: Vec<Section>,
    /// Make each section small: against rot, the figures mean little
    #[arg(long)]
    pub(crate) quick: bool,
    /// Seconds for all of it; what there is no time for is left out, and said
    #[arg(long, value_name = "SECONDS", default_value_t = 300, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) budget: u32,
    /// Where results go [default: results-DEVICE-DATE here]
    #[arg(long, value_name = "DIR")]
    pub(crate) out: Option<PathBuf>,
    /// For tests: breaks a section
    #[arg(long, hide = true, value_name = "SECTION=HOW")]
    pub(crate) inject: Option<Injection>,
}

/// Besides runs.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Prints the tables of a run
    Show {
        /// Its rows.jsonl
        file: PathBuf,
    },
    /// Says what a program needs of the machine it runs on, and fails if that is more than GLIBC and its own libraries
    Needs {
        /// The program
        file: PathBuf,
        /// The newest version of glibc that may be asked for
        #[arg(long, value_name = "VERSION", default_value = "2.34")]
        glibc: Glibc,
    },
    /// One section, whose rows go to the standard output
    #[command(hide = true)]
    Section(SectionArgs),
    /// What a section breaks on purpose
    #[command(hide = true)]
    Helper(HelperArgs),
}

/// What a section is told.
#[derive(Clone, Debug, Args)]
pub(crate) struct SectionArgs {
    pub(crate) section: Section,
    #[arg(long, default_value_t = 0)]
    pub(crate) device: u32,
    #[arg(long)]
    pub(crate) quick: bool,
    /// After that, nothing new is begun
    #[arg(long, default_value_t = 60.0)]
    pub(crate) seconds: f64,
    /// The rows so far
    #[arg(long)]
    pub(crate) rows: Option<PathBuf>,
    /// How this section breaks
    #[arg(long)]
    pub(crate) inject: Option<How>,
}

/// A section that is to break.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Injection {
    pub(crate) section: Section,
    pub(crate) how: How,
}

/// How a section breaks.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
pub(crate) enum How {
    /// A byte is wrong.
    Row,
    /// It panics.
    Panic,
    /// Its process ends by a signal.
    Abort,
    /// It never ends.
    Hang,
}

impl FromStr for Injection {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (section, how) = text.split_once('=').ok_or("it is SECTION=HOW")?;
        let (section, how) =
            (clap::ValueEnum::from_str(section, false)?, clap::ValueEnum::from_str(how, false)?);
        Ok(Self { section, how })
    }
}

/// A version of glibc.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Glibc(pub(crate) u32, pub(crate) u32);

impl FromStr for Glibc {
    type Err = String;

    /// `2.34`, or `2.2.5`, of which the third number is of no account.
    fn from_str(text: &str) -> Result<Self, String> {
        let mut numbers = text.split('.').map(str::parse);
        match (numbers.next(), numbers.next()) {
            (Some(Ok(major)), Some(Ok(minor))) => Ok(Self(major, minor)),
            _ => Err(format!("\"{text}\" is no version such as 2.34")),
        }
    }
}
