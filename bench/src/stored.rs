//! Reports of earlier runs, read back and checked: for comparisons and for the HTML page.
//!
//! What a command writes and what is read here are types of their own: a reader names only the fields that it uses,
//! so that a command may add some without making older files unreadable.

mod micro;
mod nvme;
mod policies;
mod replay;

use std::{
    fs, io,
    path::{Path, PathBuf},
    time::{Duration, UNIX_EPOCH},
};

use serde::{Deserialize, de::DeserializeOwned};
use serde_json::Value;

use crate::{Commit, Machine, REPORT_FORMAT};

pub use self::{
    micro::{MicroFigure, MicroResults, MicroSize, MicroSubject},
    nvme::{NvmeBound, NvmeCase, NvmePoint, NvmeRatio, NvmeResults, NvmeSurroundings},
    policies::{
        OverlapCell, PoliciesCell, PoliciesCurve, PoliciesPoint, PoliciesResults, PoliciesTrace, Share,
        SummaryRow, SummaryWorst, TwoTiersCell,
    },
    replay::{ReplayEdge, ReplayHits, ReplayResults, ReplaySteps},
};

/// A report as it was read.
#[derive(Clone, Debug, Deserialize)]
pub struct Stored<T> {
    /// The command that wrote it.
    pub command: String,
    /// The program's arguments.
    pub arguments: Vec<String>,
    /// `release` or `dev`.
    pub profile: String,
    /// What was measured.
    pub commit: Commit,
    /// Where.
    pub machine: Machine,
    /// When it ended, in seconds since 1970.
    pub unix_seconds: u64,
    /// Whether the run ended by itself.
    pub complete: bool,
    /// The figures.
    pub results: T,
}

/// Results that can be told apart from others and checked.
pub trait StoredResults: DeserializeOwned {
    /// The commands that write them.
    const COMMANDS: &'static [&'static str];

    /// Checks what the types do not say.
    ///
    /// # Errors
    /// The path of the field that is wrong, below `results`, and what is wrong with it.
    fn check(&self) -> Result<(), String>;
}

/// The trace of a report.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct StoredTrace {
    /// Its file or formula.
    pub name: String,
    /// Tokens a block.
    pub block_tokens: u32,
    /// Requests.
    pub requests: u64,
    /// Blocks that they name.
    pub accesses: u64,
    /// Different blocks.
    pub unique_blocks: u64,
    /// A hash of all of it.
    pub fingerprint: String,
}

/// A file is no report that can be used. Every message names the file.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoredError {
    /// It cannot be read.
    #[error("cannot read {path}: {source}")]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// It is no JSON at all.
    #[error("{path} is no JSON: {source}")]
    Json {
        /// The file.
        path: PathBuf,
        /// Where it ends to be.
        source: serde_json::Error,
    },
    /// It says nothing of its form.
    #[error(
        "{path} has no field \"format\": it was written by an older kvo-bench, or is no report of it; run its \
         command again to have one that can be read"
    )]
    NoFormat {
        /// The file.
        path: PathBuf,
    },
    /// Its form is not this program's.
    #[error("{path}: the field \"format\" is {found}, but this kvo-bench reads {REPORT_FORMAT}")]
    Format {
        /// The file.
        path: PathBuf,
        /// What it says.
        found: Value,
    },
    /// It is of another command.
    #[error("{path}: the field \"command\" is {found}, but a report of {expected} is wanted")]
    Command {
        /// The file.
        path: PathBuf,
        /// What it says.
        found: Value,
        /// What it should say.
        expected: String,
    },
    /// A field is missing or wrong.
    #[error("{path}: the field \"{field}\" is wrong: {why}")]
    Field {
        /// The file.
        path: PathBuf,
        /// The path of the field.
        field: String,
        /// What is wrong with it.
        why: String,
    },
    /// The results are not those of a whole run.
    #[error("{path}: the field \"complete\" is false: the run was stopped, so that it cannot be compared")]
    Incomplete {
        /// The file.
        path: PathBuf,
    },
}

impl<T: StoredResults> Stored<T> {
    /// Reads a report of one of the commands that write `T`.
    ///
    /// # Errors
    /// If it is none, or one of its figures cannot be.
    pub fn read(path: &Path) -> Result<Self, StoredError> {
        let text =
            fs::read_to_string(path).map_err(|source| StoredError::Read { path: path.to_owned(), source })?;
        Self::parse(path, &text)
    }

    pub(crate) fn parse(path: &Path, text: &str) -> Result<Self, StoredError> {
        let owned = || path.to_owned();
        let value: Value =
            serde_json::from_str(text).map_err(|source| StoredError::Json { path: owned(), source })?;
        match value.get("format") {
            None => return Err(StoredError::NoFormat { path: owned() }),
            Some(format) if *format != REPORT_FORMAT => {
                return Err(StoredError::Format { path: owned(), found: format.clone() });
            }
            Some(_) => {}
        }
        let command = value.get("command").cloned().unwrap_or_default();
        if !T::COMMANDS.iter().any(|expected| command == *expected) {
            let expected = T::COMMANDS.join(" or ");
            return Err(StoredError::Command { path: owned(), found: command, expected });
        }
        let report: Self = serde_path_to_error::deserialize(value).map_err(|error| StoredError::Field {
            path: owned(),
            field: error.path().to_string(),
            why: error.inner().to_string(),
        })?;
        report.results.check().map_err(|wrong| {
            let (field, why) = wrong.split_once(": ").unwrap_or(("", &wrong));
            StoredError::Field { path: owned(), field: format!("results.{field}"), why: why.to_owned() }
        })?;
        Ok(report)
    }

    /// Reads a report of a whole run, as [`read`](Self::read).
    ///
    /// # Errors
    /// As `read`, and [`StoredError::Incomplete`].
    pub fn read_complete(path: &Path) -> Result<Self, StoredError> {
        let report = Self::read(path)?;
        if report.complete { Ok(report) } else { Err(StoredError::Incomplete { path: path.to_owned() }) }
    }
}

impl<T> Stored<T> {
    /// When the run ended, as a date and a time of day.
    pub fn when(&self) -> String {
        // Later than the year 9999 is no date that can be written.
        const MAX: u64 = 253_402_300_799;
        let time = UNIX_EPOCH + Duration::from_secs(self.unix_seconds.min(MAX));
        humantime::format_rfc3339_seconds(time).to_string()
    }
}

impl StoredTrace {
    fn check(&self, field: &str) -> Result<(), String> {
        if self.unique_blocks > self.accesses {
            return Err(format!("{field}.unique_blocks: more than the trace has accesses"));
        }
        Ok(())
    }
}

/// Rounds are numbers of at least zero, and there is one at least.
fn check_rounds(field: &str, rounds: &[f64]) -> Result<(), String> {
    if rounds.is_empty() {
        return Err(format!("{field}: has no round"));
    }
    rounds.iter().enumerate().try_for_each(|(at, round)| check_amount(&format!("{field}[{at}]"), *round))
}

/// A time or a rate: finite, and not below zero.
fn check_amount(field: &str, amount: f64) -> Result<(), String> {
    // Above it, sums and ranges of plots overflow.
    const MAX: f64 = 1e30;
    if (0.0..=MAX).contains(&amount) { Ok(()) } else { Err(format!("{field}: {amount:e} cannot be")) }
}

#[cfg(test)]
mod tests;
