//! Rows: one JSON object each, one line each.

use std::{fs::File, io::Write, path::Path};

use anyhow::Context;
use kvo_core::Direction;
use kvo_cuda::CopyPath;
use serde_json::{Map, Value, json};

/// What was measured, or how a section ended.
pub(crate) type Row = Map<String, Value>;

/// A row of these fields.
pub(crate) fn row(fields: Value) -> Row {
    match fields {
        Value::Object(row) => row,
        other => [("value".to_owned(), other)].into_iter().collect(),
    }
}

/// The rows of a file. A last line that was cut off is left out.
pub(crate) fn read(path: &Path) -> anyhow::Result<Vec<Row>> {
    let text = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
    let lines: Vec<&str> = text.lines().filter(|line| !line.is_empty()).collect();
    let mut rows = Vec::with_capacity(lines.len());
    for (nth, line) in lines.iter().enumerate() {
        match serde_json::from_str(line) {
            Ok(row) => rows.push(row),
            Err(_) if nth + 1 == lines.len() => {}
            Err(error) => return Err(error).with_context(|| format!("{}: line {}", path.display(), nth + 1)),
        }
    }
    Ok(rows)
}

/// The file of a run: what is added is on its way to the disk before the next row is measured.
pub(crate) struct RowFile {
    file: File,
    pub(crate) rows: Vec<Row>,
}

impl RowFile {
    pub(crate) fn create(path: &Path) -> anyhow::Result<Self> {
        let file = File::create(path).with_context(|| path.display().to_string())?;
        Ok(Self { file, rows: Vec::new() })
    }

    pub(crate) fn add(&mut self, row: Row) -> anyhow::Result<()> {
        let mut line = serde_json::to_string(&row)?;
        line.push('\n');
        self.file.write_all(line.as_bytes()).context("the file of the rows")?;
        self.rows.push(row);
        Ok(())
    }
}

pub(crate) fn text<'a>(row: &'a Row, field: &str) -> Option<&'a str> {
    row.get(field).and_then(Value::as_str)
}

pub(crate) fn number(row: &Row, field: &str) -> Option<f64> {
    row.get(field).and_then(Value::as_f64)
}

pub(crate) fn is_true(row: &Row, field: &str) -> bool {
    row.get(field).and_then(Value::as_bool) == Some(true)
}

/// The rows of a section.
pub(crate) fn of<'a>(rows: &'a [Row], section: &'a str) -> impl Iterator<Item = &'a Row> {
    rows.iter().filter(move |row| text(row, "section") == Some(section))
}

/// Bytes a second of one direction alone, of the section `limit`.
pub(crate) fn limit(rows: &[Row], direction: &str) -> Option<f64> {
    let found = of(rows, "limit").find(|row| text(row, "direction") == Some(direction));
    found.and_then(|row| number(row, "bytes_per_s"))
}

pub(crate) fn direction_name(direction: Direction) -> &'static str {
    match direction {
        Direction::Store => "store",
        Direction::Load => "load",
    }
}

pub(crate) fn path_name(path: CopyPath) -> &'static str {
    match path {
        CopyPath::Memcpy => "memcpy",
        CopyPath::Rows => "rows",
        CopyPath::Batch => "batch",
        CopyPath::Kernel => "kernel",
    }
}

/// Rounds of one figure.
#[derive(Clone, Debug, Default)]
pub(crate) struct Rounds(Vec<f64>);

impl Rounds {
    pub(crate) fn add(&mut self, value: f64) {
        self.0.push(value);
        self.0.sort_by(f64::total_cmp);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The middle one; 0 of none.
    pub(crate) fn median(&self) -> f64 {
        self.0.get(self.0.len() / 2).copied().unwrap_or(0.0)
    }

    /// The median under `name`, and the least and the most of the rounds.
    pub(crate) fn put(&self, row: &mut Row, name: &str) {
        let [least, most] = [self.0.first(), self.0.last()].map(|value| value.copied().unwrap_or(0.0));
        row.insert(name.to_owned(), json!(self.median()));
        row.insert(format!("{name}_min"), json!(least));
        row.insert(format!("{name}_max"), json!(most));
        row.insert("rounds".to_owned(), json!(self.0.len()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_that_was_cut_off_loses_no_other() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("rows.jsonl");
        let mut file = RowFile::create(&path).unwrap();
        file.add(row(json!({"section": "limit", "direction": "load", "bytes_per_s": 5.0}))).unwrap();
        file.file.write_all(b"{\"section\":\"mat").unwrap();
        let rows = read(&path).unwrap();
        assert_eq!(rows, file.rows);
        assert_eq!(limit(&rows, "load"), Some(5.0));
        assert_eq!(limit(&rows, "store"), None);
        std::fs::write(&path, "{}\nno JSON\n{}\n").unwrap();
        assert!(format!("{:#}", read(&path).unwrap_err()).contains("line 2"));
    }

    #[test]
    fn the_middle_round_counts() {
        let mut rounds = Rounds::default();
        for value in [5.0, 1.0, 3.0] {
            rounds.add(value);
        }
        let mut row = Row::new();
        rounds.put(&mut row, "seconds");
        assert_eq!(
            Value::Object(row),
            json!({"seconds": 3.0, "seconds_min": 1.0, "seconds_max": 5.0, "rounds": 3})
        );
    }
}
