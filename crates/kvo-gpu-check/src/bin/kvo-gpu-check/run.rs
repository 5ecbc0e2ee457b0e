//! A run: one section after the other, each in a process of its own.

use std::{
    fs::{self, File, OpenOptions},
    io::Write,
    ops::RangeInclusive,
    path::{Path, PathBuf},
    process::ExitCode,
    time::{Duration, Instant, SystemTime},
};

use anyhow::{Context, bail};
use serde_json::json;

use crate::{
    args::RunArgs,
    program::{self, End, FAILED, NO_DEVICE},
    rows::{self, Row, RowFile, number, row, text},
    section::Section,
    table,
};

/// What a section that keeps to its time may need beyond it: as long again, but not less, nor more, than this.
const SLACK: RangeInclusive<Duration> = Duration::from_secs(5)..=Duration::from_secs(20);

pub(crate) fn run(args: &RunArgs) -> anyhow::Result<ExitCode> {
    let start = Instant::now();
    let machine = machine(args)?;
    if let Some(why) = text(&machine, "absent") {
        eprintln!("there is no device to check: {why}");
        return Ok(ExitCode::from(NO_DEVICE));
    }
    let dir = args.out.clone().unwrap_or_else(|| PathBuf::from(dir_name(&machine)));
    fs::create_dir_all(&dir).with_context(|| dir.display().to_string())?;
    let file = RowFile::create(&dir.join("rows.jsonl"))?;
    let log = dir.join("log.txt");
    File::create(&log).with_context(|| log.display().to_string())?;
    let mut run = Run { args, dir, file, machine: machine.clone(), has_failed: false };
    println!("{}", table::machine(&machine));
    run.add(Section::Machine, machine)?;
    run.ended(Section::Machine, row(json!({"outcome": "passed"})), start.elapsed())?;
    let sections = Section::ALL.into_iter().skip(1);
    let sections: Vec<Section> =
        sections.filter(|section| args.only.is_empty() || args.only.contains(section)).collect();
    let budget = Duration::from_secs(args.budget.into());
    for (nth, section) in sections.iter().enumerate() {
        let shares: u32 = sections[nth..].iter().map(|section| section.share()).sum();
        let time =
            budget.saturating_sub(start.elapsed()).mul_f64(f64::from(section.share()) / f64::from(shares));
        run.section(*section, time)?;
    }
    run.finish()
}

struct Run<'a> {
    args: &'a RunArgs,
    dir: PathBuf,
    file: RowFile,
    machine: Row,
    has_failed: bool,
}

impl Run<'_> {
    /// Runs a section in its process.
    fn section(&mut self, section: Section, time: Duration) -> anyhow::Result<()> {
        let start = Instant::now();
        if time < Duration::from_millis(100) {
            let last = row(json!({"outcome": "skipped", "reason": "there was no time left"}));
            return self.ended(section, last, start.elapsed());
        }
        let mut command = program::again()?;
        command.arg("section").arg(section.name()).args(["--device", &self.args.device.to_string()]);
        command
            .arg("--rows")
            .arg(self.dir.join("rows.jsonl"))
            .args(["--seconds", &time.as_secs_f64().to_string()]);
        if self.args.quick {
            command.arg("--quick");
        }
        let inject = self.args.inject.filter(|inject| inject.section == section);
        if let Some(how) = inject.and_then(|inject| clap::ValueEnum::to_possible_value(&inject.how)) {
            command.args(["--inject", how.get_name()]);
        }
        command.stderr(log(&self.dir)?);
        let (mut last, mut log) = (None, log(&self.dir)?);
        let end = program::run(command, time + time.clamp(*SLACK.start(), *SLACK.end()), |line| {
            // A driver may print too.
            let Ok(row) = serde_json::from_str::<Row>(line) else {
                return writeln!(log, "{line}").context("the log");
            };
            if row.contains_key("outcome") {
                last = Some(row);
                return Ok(());
            }
            self.add(section, row)
        })?;
        let last = match (last, end) {
            (Some(last), End::Status(status)) if status.success() => last,
            _ => {
                self.add(section, row(json!({"failure": end.to_string()})))?;
                row(json!({"outcome": "failed", "reason": end.to_string()}))
            }
        };
        self.ended(section, last, start.elapsed())
    }

    /// Adds a row, with what it is of, and what part of the link's limit it is.
    fn add(&mut self, section: Section, mut row: Row) -> anyhow::Result<()> {
        row.insert("section".to_owned(), json!(section.name()));
        for field in ["device", "driver", "is_model"] {
            row.insert(field.to_owned(), self.machine.get(field).cloned().unwrap_or_default());
        }
        row.insert("is_quick".to_owned(), json!(self.args.quick));
        let rate = number(&row, "bytes_per_s").zip(text(&row, "direction"));
        let of_limit =
            rate.and_then(|(rate, direction)| Some(rate / rows::limit(&self.file.rows, direction)?));
        if let Some(of_limit) = of_limit {
            row.insert("of_limit".to_owned(), json!(of_limit));
        }
        self.file.add(row)
    }

    /// Adds the row of a section's end, and says it.
    fn ended(&mut self, section: Section, mut last: Row, took: Duration) -> anyhow::Result<()> {
        last.insert("took_s".to_owned(), json!(took.as_secs_f64()));
        self.has_failed |= text(&last, "outcome") == Some("failed");
        self.add(section, last)?;
        println!("{}", table::outcome(self.file.rows.last().context("it was added")?));
        Ok(())
    }

    fn finish(self) -> anyhow::Result<ExitCode> {
        let tables = table::tables(&self.file.rows);
        fs::write(self.dir.join("table.txt"), &tables).context("the file of the tables")?;
        println!("\n{tables}");
        println!("rows and tables are in {}", self.dir.display());
        Ok(if self.has_failed { ExitCode::from(FAILED) } else { ExitCode::SUCCESS })
    }
}

/// What the process of the first section says, which is what all rows are of.
fn machine(args: &RunArgs) -> anyhow::Result<Row> {
    let mut command = program::again()?;
    command.args(["section", "machine", "--device", &args.device.to_string()]);
    let mut found: Vec<Row> = Vec::new();
    let end = program::run(command, Duration::from_secs(args.budget.into()), |line| {
        found.extend(serde_json::from_str::<Row>(line));
        Ok(())
    })?;
    match found.into_iter().next() {
        Some(row) if end.is_success() && !row.contains_key("failure") => Ok(row),
        Some(row) if row.contains_key("failure") => {
            bail!("the machine: {}", text(&row, "failure").unwrap_or_default())
        }
        _ => bail!("the machine could not be looked at: {end}"),
    }
}

/// `results-DEVICE-DATE`, and the word that it is a model if it is one.
fn dir_name(machine: &Row) -> String {
    let model = if rows::is_true(machine, "is_model") { "model-" } else { "" };
    let device = text(machine, "device").unwrap_or("device").to_lowercase();
    let device: String = device.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect();
    let date = humantime::format_rfc3339_seconds(SystemTime::now()).to_string().replace([':', '-'], "");
    format!("results-{model}{device}-{date}")
}

/// Where what the processes say besides goes.
fn log(dir: &Path) -> anyhow::Result<File> {
    let path = dir.join("log.txt");
    OpenOptions::new().create(true).append(true).open(&path).with_context(|| path.display().to_string())
}
