//! What all sections are made of.

use std::path::Path;

use maud::{Markup, html};

use crate::{Figures, Stored, baseline::own_arguments};

/// A cell of a table.
#[derive(Clone, Debug)]
pub(super) enum Cell {
    /// Flush left.
    Text(String),
    /// Flush right.
    Number(String),
}

impl Cell {
    pub(super) fn text(text: impl Into<String>) -> Self {
        Self::Text(text.into())
    }

    pub(super) fn count(count: u64) -> Self {
        Self::Number(count.to_string())
    }

    /// With as many decimals.
    pub(super) fn decimal(number: f64, decimals: usize) -> Self {
        Self::Number(format!("{number:.decimals$}"))
    }

    /// Empty where there is none.
    pub(super) fn maybe(number: Option<f64>, decimals: usize) -> Self {
        number.map_or_else(|| Self::Number(String::new()), |number| Self::decimal(number, decimals))
    }
}

/// The section of a report: where it comes from, then `body`.
pub(super) fn section<T: Figures>(report: &Stored<T>, file: &Path, body: &Markup) -> Markup {
    let unknown = || "unknown".to_owned();
    let machine = &report.machine;
    let is_smoke = report.arguments.iter().any(|argument| argument == "--smoke");
    html! {
        section id=(report.command) {
            h2 { (report.command) }
            @if is_smoke {
                p class="note" { "A smoke run: it shows that the bench works, and its figures mean nothing." }
            }
            @if report.profile != "release" {
                p class="note" { "Of a " (report.profile) " build: its times mean nothing." }
            }
            @if !report.complete {
                p class="note" { "The run was stopped: these are the figures of its first part." }
            }
            dl class="facts" {
                dt { "run again" } dd { code { (run_again(report)) } }
                dt { "ended" } dd { (report.when()) }
                dt { "commit" } dd { (report.commit) }
                dt { "machine" }
                dd {
                    (machine.cpu.clone().unwrap_or_else(unknown)) ", "
                    (machine.threads.map_or_else(unknown, |threads| threads.to_string())) " threads, "
                    (machine.memory_bytes.map_or_else(unknown, |bytes| format!("{:.1} GiB", gib(bytes)))) ", "
                    (machine.platform)
                }
                dt { "kernel" } dd { (machine.kernel.clone().unwrap_or_else(unknown)) }
                dt { "hash of counts" } dd { code { (report.results.counts_hash()) } }
                dt { "data" } dd { code { (file.file_name().unwrap_or_default().to_string_lossy()) } }
            }
            (body)
        }
    }
}

fn gib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 30)
}

/// The command line that makes the figures anew, for a shell.
fn run_again<T>(report: &Stored<T>) -> String {
    let own = own_arguments(&report.arguments);
    let quoted: Vec<_> = own.iter().map(|argument| quoted(argument)).collect();
    // That program is all of its command.
    let command = if report.command.starts_with("compare") { "compare " } else { "" };
    format!("cargo xtask bench {command}{}", quoted.join(" ")).trim_end().to_owned()
}

/// An argument as a shell takes it.
fn quoted(argument: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./:,=%+@".contains(c);
    if !argument.is_empty() && argument.chars().all(is_plain) {
        return argument.to_owned();
    }
    format!("'{}'", argument.replace('\'', r"'\''"))
}

/// A table that is folded unless `is_open`. The first row says how the columns are set.
pub(super) fn table(caption: &str, is_open: bool, header: &[&str], rows: &[Vec<Cell>]) -> Markup {
    let is_number =
        |column: usize| rows.first().is_some_and(|row| matches!(row.get(column), Some(Cell::Number(_))));
    html! {
        details open[is_open] {
            summary { "Table: " (caption) }
            div class="scroll" {
                table aria-label=(caption) {
                    thead {
                        tr {
                            @for (column, name) in header.iter().enumerate() {
                                th scope="col" class=[is_number(column).then_some("number")] { (name) }
                            }
                        }
                    }
                    tbody {
                        @for row in rows {
                            tr {
                                @for cell in row {
                                    @match cell {
                                        Cell::Text(text) => td { (text) },
                                        Cell::Number(number) => td class="number" { (number) },
                                    }
                                }
                            }
                        }
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_quoted_for_a_shell() {
        assert_eq!(quoted("--policy=lru,arc:ghost-hits=t2"), "--policy=lru,arc:ghost-hits=t2");
        assert_eq!(quoted("a b"), "'a b'");
        assert_eq!(quoted("it's"), r"'it'\''s'");
        assert_eq!(quoted(""), "''");
        assert_eq!(quoted("$(x)"), "'$(x)'");
    }
}
