//! One HTML page of all results that there are: plots, tables, and how to run each again.
//!
//! ```text
//!   micro.json ───┐
//!   policies.json ├─▶ Stored ─▶ a section each: facts, SVG plots, the same data as tables ─▶ report.html
//!   ...           ┘
//! ```
//!
//! The page is one file that needs no script, no network and no other file, and its header forbids the browser all of
//! them. Every text of a report is escaped; the numbers are checked when the report is read. A report that cannot be
//! read is named on the page, and the others are shown.

pub(crate) mod micro;
pub(crate) mod nvme;
mod parts;
mod plot;
pub(crate) mod policies;
pub(crate) mod replay;

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use anyhow::{Context, bail};
use maud::{DOCTYPE, Markup, PreEscaped, html};

use crate::{Figures, Stored, StoredResults, report::SMOKE_SUFFIX};

/// The name of the page's file.
const FILE_NAME: &str = "report.html";

/// A page that was written.
#[derive(Clone, Debug)]
pub struct Page {
    /// Its file.
    pub path: PathBuf,
    /// The commands that have a section.
    pub sections: Vec<&'static str>,
    /// What could not be shown: each names its file.
    pub problems: Vec<String>,
}

/// The section of a command, and the files that it came from or that could not be read.
#[derive(Default)]
struct Sections {
    shown: Vec<(&'static str, Markup)>,
    problems: Vec<String>,
}

/// Writes `report.html` in `dir`, of the reports that are there.
///
/// Of a command's usual report and that of its smoke run, the later one is shown.
///
/// # Errors
/// If there is no report at all, or the page cannot be written.
pub fn write_page(dir: &Path) -> anyhow::Result<Page> {
    let mut sections = Sections::default();
    sections.add(dir, "micro", micro::section);
    sections.add(dir, "compare", micro::section);
    sections.add(dir, "policies", policies::section);
    sections.add(dir, "replay", replay::section);
    sections.add(dir, "nvme", nvme::section);
    sections.add(dir, "compare-nvme", nvme::section);
    if sections.shown.is_empty() && sections.problems.is_empty() {
        bail!("{} has no report of a bench, such as micro.json: run one first", dir.display());
    }
    let path = dir.join(FILE_NAME);
    fs::write(&path, page(&sections).into_string())
        .with_context(|| format!("cannot write the page to {}", path.display()))?;
    let names = sections.shown.iter().map(|(name, _)| *name).collect();
    Ok(Page { path, sections: names, problems: sections.problems })
}

impl Sections {
    /// Adds the section of `command`, if it has left a report.
    fn add<T: StoredResults + Figures>(
        &mut self,
        dir: &Path,
        command: &'static str,
        body: fn(&Stored<T>) -> anyhow::Result<Markup>,
    ) {
        let Some(file) = latest(dir, command) else { return };
        let section = Stored::<T>::read(&file).map_err(anyhow::Error::from).and_then(|report| {
            if report.command != command {
                bail!("{}: the field \"command\" is {:?}, not {command:?}", file.display(), report.command);
            }
            let body = body(&report).with_context(|| format!("cannot plot {}", file.display()))?;
            Ok(parts::section(&report, &file, &body))
        });
        match section {
            Ok(section) => self.shown.push((command, section)),
            Err(error) => self.problems.push(format!("{error:#}")),
        }
    }
}

/// The later one of a command's report and that of its smoke run. One of which the system does not say when it was
/// written is the earlier.
fn latest(dir: &Path, command: &str) -> Option<PathBuf> {
    let names = [format!("{command}{SMOKE_SUFFIX}.json"), format!("{command}.json")];
    let found = names.into_iter().map(|name| dir.join(name)).filter(|file| file.exists());
    found.max_by_key(|file| modified(file).ok())
}

fn modified(file: &Path) -> io::Result<std::time::SystemTime> {
    fs::metadata(file)?.modified()
}

fn page(sections: &Sections) -> Markup {
    html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'";
                title { "kvo bench report" }
                style { (PreEscaped(include_str!("page/style.css"))) (PreEscaped(plot::dark_style())) }
            }
            body {
                header {
                    h1 { "kvo bench report" }
                    p {
                        "Ratios within one run count, not nanoseconds: the machine is in every number. Every plot has \
                         its data in a table below it. "
                        code { "docs/BENCHMARKS.md" }
                        " says what each figure is."
                    }
                    nav { @for (name, _) in &sections.shown { a href={ "#" (name) } { (name) } " " } }
                }
                main {
                    @if !sections.problems.is_empty() {
                        section id="problems" class="problems" {
                            h2 { "Could not be shown" }
                            ul { @for problem in &sections.problems { li { (problem) } } }
                        }
                    }
                    @for (_, section) in &sections.shown { (section) }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
