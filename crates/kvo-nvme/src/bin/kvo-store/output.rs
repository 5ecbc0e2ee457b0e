//! How results are shown: for people or as JSON.

use std::io::{self, IsTerminal, Write, stderr, stdout};

use comfy_table::{Cell, CellAlignment, LineStyle, Table, TableStyle};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde::Serialize;

/// What a command has found.
pub(crate) trait Report: Serialize {
    /// Writes it for people.
    fn write_human(&self, out: &mut dyn Write) -> io::Result<()>;
}

/// How a command ended that could be run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Good,
    Damaged,
    Interrupted,
}

/// Writes a report to standard output.
pub(crate) fn show(report: &impl Report, json: bool) -> io::Result<()> {
    let mut out = io::BufWriter::new(stdout().lock());
    if json {
        serde_json::to_writer_pretty(&mut out, report)?;
        writeln!(out)?;
    } else {
        report.write_human(&mut out)?;
    }
    out.flush()
}

/// A table with a line below its header.
pub(crate) fn table<const N: usize>(header: [&str; N]) -> Table {
    let mut table = Table::new();
    table.load_style(TableStyle::new().header_separator(LineStyle::new('─', '─', '─', '─')));
    table.set_header(header);
    table
}

/// Names and values, a line each.
pub(crate) fn write_pairs(out: &mut dyn Write, pairs: &[(&str, String)]) -> io::Result<()> {
    let width = pairs.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    pairs.iter().try_for_each(|(name, value)| writeln!(out, "{name:<width$}  {value}"))
}

/// A number for a table, flush right.
pub(crate) fn number(number: impl Into<Cell>) -> Cell {
    number.into().set_alignment(CellAlignment::Right)
}

/// A bar for so many bytes on standard error; nothing where that is no terminal.
pub(crate) fn byte_bar(bytes: u64, what: &'static str) -> ProgressBar {
    let target =
        if stderr().is_terminal() { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
    let template =
        "{msg} {wide_bar} {binary_bytes}/{binary_total_bytes}, {decimal_bytes_per_sec}, {eta} left";
    let style = ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
    ProgressBar::with_draw_target(Some(bytes), target).with_style(style).with_message(what)
}

/// `1 chunk`, `2 chunks`.
pub(crate) fn counted(count: u64, one: &str) -> String {
    if count == 1 { format!("1 {one}") } else { format!("{count} {one}s") }
}
