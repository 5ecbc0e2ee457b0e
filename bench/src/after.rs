//! What can be done with the results once a command has run.

use std::{
    io::{Write, stdout},
    path::{Path, PathBuf},
};

use anyhow::{Context, bail};
use clap::Args;
use kvo_bench::{
    Comparison, Figures, MicroResults, NvmeResults, PoliciesResults, ReplayResults, Stored, StoredResults,
    compare, results_dir, write_page,
};

use crate::Outcome;

/// Flags of every command.
#[derive(Clone, Debug, Args)]
pub(crate) struct AfterArgs {
    /// Compare with the JSON of an earlier run of the same command, and fail if something got slower than the noise or
    /// a count differs; for `all`, the directory of an earlier run's files
    #[arg(long, value_name = "FILE", global = true)]
    pub(crate) baseline: Option<PathBuf>,
    /// Write one HTML page, report.html, of the results of all commands that have left some
    #[arg(long, global = true)]
    pub(crate) report: bool,
}

/// An earlier run of a command.
#[derive(Debug)]
pub(crate) enum Baseline {
    Replay(Stored<ReplayResults>),
    Policies(Stored<PoliciesResults>),
    Micro(Stored<MicroResults>),
    Nvme(Stored<NvmeResults>),
}

impl AfterArgs {
    /// The earlier run that was named, if one was. `report_name` is what the command calls its own file.
    pub(crate) fn read_baseline(&self, report_name: &str) -> anyhow::Result<Option<Baseline>> {
        let Some(path) = &self.baseline else { return Ok(None) };
        Baseline::read(path, report_name).context("--baseline").map(Some)
    }
}

impl Baseline {
    fn read(path: &Path, report_name: &str) -> anyhow::Result<Self> {
        if path.is_dir() {
            bail!(
                "{} is a directory: name the file of the command, such as {report_name}.json",
                path.display()
            );
        }
        Ok(match report_name.trim_end_matches("-smoke") {
            "replay" => Self::Replay(read_of("replay", path)?),
            "policies" => Self::Policies(read_of("policies", path)?),
            "micro" => Self::Micro(read_of("micro", path)?),
            "nvme" => Self::Nvme(read_of("nvme", path)?),
            other => bail!("{other} has no figures to compare"),
        })
    }

    /// Prints this run beside the one that the command has just left, and whether that is worse.
    pub(crate) fn compare(&self, report_name: &str) -> anyhow::Result<bool> {
        let after = results_dir().join(format!("{report_name}.json"));
        match self {
            Self::Replay(before) => compare_with(before, &after),
            Self::Policies(before) => compare_with(before, &after),
            Self::Micro(before) => compare_with(before, &after),
            Self::Nvme(before) => compare_with(before, &after),
        }
    }
}

/// Writes the page, and says where it is and what could not be shown.
pub(crate) fn write_report() -> anyhow::Result<Outcome> {
    let page = write_page(&results_dir())?;
    let shown = if page.sections.is_empty() { "nothing".to_owned() } else { page.sections.join(", ") };
    writeln!(stdout(), "report of {shown}: {}", page.path.display())?;
    for problem in &page.problems {
        eprintln!("error: not in the report: {problem}");
    }
    Ok(if page.problems.is_empty() { Outcome::Passed } else { Outcome::Failed })
}

fn read_of<T: StoredResults>(command: &str, path: &Path) -> anyhow::Result<Stored<T>> {
    let report = Stored::<T>::read_complete(path)?;
    // Two commands may have results of one form.
    if report.command != command {
        bail!("{}: the field \"command\" is {:?}, not {command:?}", path.display(), report.command);
    }
    Ok(report)
}

fn compare_with<T: StoredResults + Figures>(before: &Stored<T>, after: &Path) -> anyhow::Result<bool> {
    let after = Stored::<T>::read(after)?;
    let comparison: Comparison = compare(before, &after);
    let mut out = stdout();
    writeln!(
        out,
        "\nbefore: commit {}, {}; now: commit {}, {}",
        before.commit,
        before.when(),
        after.commit,
        after.when()
    )?;
    write!(out, "{comparison}")?;
    if comparison.rows.is_empty() {
        bail!("--baseline: the two runs have no figure in common");
    }
    Ok(comparison.failures().next().is_some())
}
