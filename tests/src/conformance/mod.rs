//! Replays recorded behaviour of the reference system, line by line, and compares every answer.
//!
//! A scenario is a file of JSON lines: the first says which manager to build, each further one is an operation with
//! what the reference answered. An unknown field or operation fails the scenario: nothing is skipped.

mod cpu;
mod scenario;
mod scripted_tier;
mod tiering;

use std::{
    fmt,
    path::{Path, PathBuf},
};

use anyhow::{Context, bail};
use serde_json::Value;

/// A scenario that did not go as recorded.
#[derive(Debug)]
pub struct Mismatch {
    /// The scenario's file.
    pub file: PathBuf,
    /// The line, counted from 1.
    pub line: usize,
    /// The operation, as it stands in the file, shortened.
    pub operation: String,
    /// What the recording says.
    pub expected: String,
    /// What came.
    pub actual: String,
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}:{}", self.file.display(), self.line)?;
        writeln!(f, "  operation  {}", self.operation)?;
        writeln!(f, "  expected   {}", self.expected)?;
        write!(f, "  came       {}", self.actual)
    }
}

/// The scenario files of a directory, by name.
///
/// # Errors
/// If the directory cannot be read or holds no `.jsonl` file.
pub fn scenario_files(dir: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let entries =
        std::fs::read_dir(dir).with_context(|| format!("cannot read the directory {}", dir.display()))?;
    let mut files = Vec::new();
    for entry in entries {
        let path = entry.with_context(|| format!("cannot read the directory {}", dir.display()))?.path();
        if path.extension().is_some_and(|extension| extension == "jsonl") {
            files.push(path);
        }
    }
    files.sort();
    if files.is_empty() {
        bail!("{} holds no scenario: a scenario is a .jsonl file", dir.display());
    }
    Ok(files)
}

/// Replays one scenario and returns how many operations were compared, or where it first differed.
///
/// # Errors
/// If the file cannot be read or is no scenario: file and line are named.
pub fn replay(file: &Path) -> anyhow::Result<Result<usize, Mismatch>> {
    let text = std::fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
    let mut lines = text.lines().enumerate().map(|(index, line)| (index + 1, line));
    let (_, header) = lines.next().with_context(|| format!("{} is empty", file.display()))?;
    let header: scenario::Header = serde_json::from_str(header)
        .with_context(|| format!("{}:1 is not a scenario's first line", file.display()))?;
    let mut driver = header.driver().with_context(|| format!("{}:1", file.display()))?;

    let mut compared = 0;
    for (line, text) in lines {
        let at = || format!("{}:{line}", file.display());
        let step: scenario::Step = serde_json::from_str(text).with_context(at)?;
        let actual = driver.run(&step.op).with_context(at)?;
        let (expected, actual) = (normalised(step.expect), normalised(actual));
        if expected != actual {
            return Ok(Err(Mismatch {
                file: file.to_owned(),
                line,
                operation: shortened(text),
                expected: expected.to_string(),
                actual: actual.to_string(),
            }));
        }
        compared += usize::from(!expected.is_null());
    }
    Ok(Ok(compared))
}

/// Something that runs the operations of a scenario.
trait Driver {
    /// Runs one operation and returns what it answered, in the form of the recording.
    fn run(&mut self, op: &scenario::Op) -> anyhow::Result<Value>;
}

/// The keys of a `metadata_only` event compare as a set.
fn normalised(mut value: Value) -> Value {
    for event in value.as_array_mut().into_iter().flatten() {
        if event["metadata_only"] == Value::Bool(true)
            && let Some(keys) = event["keys"].as_array_mut()
        {
            keys.sort_by_key(ToString::to_string);
        }
    }
    value
}

fn shortened(text: &str) -> String {
    match text.char_indices().nth(300) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text.to_owned(),
    }
}
