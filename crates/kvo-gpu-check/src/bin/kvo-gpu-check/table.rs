//! What a run says to whoever reads it: a line a section, and short tables. What is a model's says so, each time.

use std::{collections::BTreeMap, fmt::Write, path::Path, process::ExitCode};

use comfy_table::{Cell, CellAlignment, LineStyle, Table, TableStyle};

use crate::rows::{self, Row, is_true, number, text};

/// `kvo-gpu-check show`: the tables of a run, from its rows.
pub(crate) fn show(file: &Path) -> anyhow::Result<ExitCode> {
    println!("{}", tables(&rows::read(file)?));
    Ok(ExitCode::SUCCESS)
}

/// The device in a line.
pub(crate) fn machine(row: &Row) -> String {
    let field = |name: &str| text(row, name).unwrap_or("unknown").to_owned();
    let link = text(row, "link").map_or_else(String::new, |link| format!(", link {link}"));
    format!(
        "{}, driver {} ({}), {} multiprocessors, {} copy engines{link}; kvo {} {}{}",
        field("device"),
        field("driver"),
        field("driver_version"),
        number(row, "multiprocessors").unwrap_or(0.0),
        number(row, "copy_engines").unwrap_or(0.0),
        field("kvo_version"),
        text(row, "kvo_commit").unwrap_or("of no known commit"),
        model(row)
    )
}

/// The end of a section in a line.
pub(crate) fn outcome(row: &Row) -> String {
    let section = text(row, "section").unwrap_or_default();
    let outcome = text(row, "outcome").unwrap_or_default();
    let outcome = if outcome == "passed" { outcome.to_owned() } else { outcome.to_uppercase() };
    let reason = text(row, "reason").map_or_else(String::new, |reason| format!("  {reason}"));
    let left_out = number(row, "left_out_for_want_of_time");
    let left_out = left_out
        .map_or_else(String::new, |left_out| format!("  {left_out} points left out for want of time"));
    let took = number(row, "took_s").unwrap_or(0.0);
    format!("{section:<14}{outcome:<8}{took:>7.1} s{reason}{left_out}{}", model(row))
}

fn model(row: &Row) -> &'static str {
    if is_true(row, "is_model") { "  (model)" } else { "" }
}

/// All that a run found, short.
pub(crate) fn tables(rows: &[Row]) -> String {
    let mut page = Page { rows, model: rows.first().map_or("", model), text: String::new() };
    if let Some(row) = rows.first() {
        page.line(&machine(row));
    }
    if !page.model.is_empty() {
        page.line("All figures are of a model: they say nothing of any hardware.");
    }
    for row in rows.iter().filter(|row| row.contains_key("outcome")) {
        page.line(&outcome(row));
    }
    page.failures();
    page.limit();
    page.matrix();
    page.calibration();
    page.overlap();
    page.head_of_line();
    page.text
}

struct Page<'a> {
    rows: &'a [Row],
    model: &'static str,
    text: String,
}

impl<'a> Page<'a> {
    fn line(&mut self, line: &str) {
        // A string takes whatever it is given.
        let _ = writeln!(self.text, "{line}");
    }

    fn table(&mut self, title: &str, table: &Table) {
        let model = self.model;
        self.line(&format!("\n{title}{model}\n{table}"));
    }

    fn of(&self, section: &'static str) -> Vec<&'a Row> {
        rows::of(self.rows, section).filter(|row| !row.contains_key("outcome")).collect()
    }

    fn failures(&mut self) {
        for row in self.rows {
            if let Some(failure) = text(row, "failure") {
                let section = text(row, "section").unwrap_or_default();
                let of = ["case", "what", "path"].into_iter().find_map(|field| text(row, field));
                let of = of.map_or_else(String::new, |of| format!(", {of}"));
                self.line(&format!("FAILED {section}{of}: {failure}{}", self.model));
            }
        }
    }

    fn limit(&mut self) {
        let measured = self.of("limit");
        let mut table = new_table(["one huge copy", "GB/s", "least", "most"]);
        for row in measured.iter().filter(|row| row.contains_key("bytes_per_s")) {
            let rate =
                |field| number(row, field).map_or_else(String::new, |rate| format!("{:.2}", rate / 1e9));
            table.add_row([
                cell(text(row, "direction").unwrap_or_default()),
                cell(rate("bytes_per_s")),
                cell(rate("bytes_per_s_min")),
                cell(rate("bytes_per_s_max")),
            ]);
        }
        if !measured.is_empty() {
            self.table("the link's limit, by plain calls of the driver", &table);
        }
    }

    /// A table a direction: fragments down, ways across.
    fn matrix(&mut self) {
        let measured = [self.of("matrix"), self.of("batches")].concat();
        for direction in ["store", "load"] {
            let of_direction = measured.iter().filter(|row| {
                text(row, "direction") == Some(direction) && row.contains_key("fragment_bytes")
            });
            let mut ways: Vec<String> = Vec::new();
            let mut lines: BTreeMap<u64, BTreeMap<usize, String>> = BTreeMap::new();
            for row in of_direction {
                let way = format!(
                    "{}\n{}",
                    text(row, "path").unwrap_or_default(),
                    text(row, "scatter").unwrap_or_default()
                );
                let column = ways.iter().position(|known| *known == way).unwrap_or_else(|| {
                    ways.push(way);
                    ways.len() - 1
                });
                let bytes = row["fragment_bytes"].as_u64().unwrap_or(0);
                lines.entry(bytes).or_default().insert(column, share(row));
            }
            if lines.is_empty() {
                continue;
            }
            let mut table = Table::new();
            table.load_style(style());
            table.set_header([cell("KiB")].into_iter().chain(ways.iter().map(cell)));
            for (bytes, line) in &lines {
                let shares = (0..ways.len()).map(|column| cell(line.get(&column).map_or("", String::as_str)));
                table.add_row([cell(bytes >> 10)].into_iter().chain(shares));
            }
            let of = match rows::limit(self.rows, direction) {
                Some(limit) => format!("per cent of the limit, {:.2} GB/s", limit / 1e9),
                None => "GB/s, as no limit was measured".to_owned(),
            };
            self.table(&format!("{direction}s of fragments, {of}"), &table);
        }
    }

    fn calibration(&mut self) {
        let judged = self.of("calibration");
        let judged: Vec<&&Row> = judged.iter().filter(|row| row.contains_key("loss")).collect();
        let off: Vec<_> = judged.iter().filter(|row| is_true(row, "is_off")).collect();
        if judged.is_empty() {
            return;
        }
        self.line(&format!(
            "\nthe measured table chooses well at {} of {} places, and loses more than 10 % at {}{}",
            judged.len() - off.len(),
            judged.len(),
            off.len(),
            self.model
        ));
        let mut table = new_table(["KiB", "", "", "chosen", "fastest", "lost"]);
        for row in &off {
            table.add_row([
                cell(row["fragment_bytes"].as_u64().unwrap_or(0) >> 10),
                cell(text(row, "direction").unwrap_or_default()),
                cell(text(row, "scatter").unwrap_or_default()),
                cell(text(row, "chosen").unwrap_or_default()),
                cell(text(row, "fastest").unwrap_or_default()),
                cell(percent(number(row, "loss"))),
            ]);
        }
        if !off.is_empty() {
            self.table("where the table is off", &table);
        }
    }

    fn overlap(&mut self) {
        let measured = self.of("overlap");
        let mut table = new_table(["copies", "", "beside", "compute slower by", "copies slower by"]);
        for row in measured.iter().filter(|row| row.contains_key("compute")) {
            table.add_row([
                cell(text(row, "path").unwrap_or_default()),
                cell(text(row, "direction").unwrap_or_default()),
                cell(text(row, "compute").unwrap_or_default()),
                cell(percent(number(row, "compute_slowdown"))),
                cell(percent(number(row, "copies_slowdown"))),
            ]);
        }
        if !measured.is_empty() {
            self.table("copies and compute at once, against each alone", &table);
        }
    }

    fn head_of_line(&mut self) {
        let measured = self.of("head-of-line");
        let mut table = new_table(["a load of 256 KiB", "window MiB", "us", "most", "at the limit"]);
        for row in measured.iter().filter(|row| row.contains_key("latency_s")) {
            let micros =
                |field| number(row, field).map_or_else(String::new, |time| format!("{:.0}", time * 1e6));
            table.add_row([
                cell(text(row, "what").unwrap_or_default()),
                cell(
                    number(row, "window_bytes")
                        .map_or_else(String::new, |bytes| format!("{:.0}", bytes / 1_048_576.0)),
                ),
                cell(micros("latency_s")),
                cell(micros("latency_s_max")),
                cell(micros("at_limit_s")),
            ]);
        }
        if !measured.is_empty() {
            self.table("how long a load waits that a request waits for", &table);
        }
    }
}

/// Per cent of the limit, or else GB/s.
fn share(row: &Row) -> String {
    let rate = number(row, "bytes_per_s").unwrap_or(0.0) / 1e9;
    number(row, "of_limit")
        .map_or_else(|| format!("{rate:.2}"), |of_limit| format!("{:.0} %", 100.0 * of_limit))
}

fn percent(part: Option<f64>) -> String {
    part.map_or_else(String::new, |part| format!("{:.1} %", 100.0 * part))
}

fn new_table<const N: usize>(header: [&str; N]) -> Table {
    let mut table = Table::new();
    table.load_style(style());
    table.set_header(header);
    table
}

fn style() -> TableStyle {
    TableStyle::new().header_separator(LineStyle::new('─', '─', '─', '─'))
}

fn cell(content: impl ToString) -> Cell {
    Cell::new(content).set_alignment(CellAlignment::Right)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::rows::row;

    fn run(is_model: bool) -> Vec<Row> {
        let rows: [Value; 8] = [
            json!({"section": "machine", "driver_version": "CUDA 13.0"}),
            json!({"section": "limit", "direction": "load", "bytes_per_s": 50e9}),
            json!({"section": "matrix", "direction": "load", "path": "kernel", "scatter": "scattered",
                   "fragment_bytes": 4096, "bytes_per_s": 30e9, "of_limit": 0.6}),
            json!({"section": "calibration", "loss": 0.25, "is_off": true, "chosen": "rows", "fastest": "kernel",
                   "fragment_bytes": 4096, "direction": "load", "scatter": "steps"}),
            json!({"section": "overlap", "compute": "memory", "compute_slowdown": 0.031, "copies_slowdown": null}),
            json!({"section": "head-of-line", "what": "alone", "latency_s": 12e-6, "latency_s_max": 40e-6}),
            json!({"section": "sticky", "what": "the next process", "failure": "no device"}),
            json!({"section": "sticky", "outcome": "failed", "reason": "1 row says what is wrong", "took_s": 2.5}),
        ];
        let rows = rows.map(|mut fields| {
            fields["is_model"] = json!(is_model);
            fields["device"] = json!("GPU X");
            row(fields)
        });
        rows.to_vec()
    }

    #[test]
    fn tables_have_what_was_found() {
        let page = tables(&run(false));
        for part in
            ["GPU X", "50.00", "60 %", "25.0 %", "3.1 %", "FAILED sticky, the next process: no device"]
        {
            assert!(page.contains(part), "no {part} in\n{page}");
        }
        assert!(page.contains("sticky        FAILED      2.5 s  1 row says what is wrong"), "{page}");
        assert!(!page.contains("model"), "{page}");
    }

    #[test]
    fn every_title_of_a_model_says_so() {
        let page = tables(&run(true));
        // A title is the line above a table's header, which is above its line.
        let lines: Vec<&str> = page.lines().collect();
        let titles = lines.windows(2).filter(|pair| pair[0].is_empty()).map(|pair| pair[1]);
        let titles: Vec<&str> = titles.collect();
        assert_eq!(titles.len(), 6, "{page}");
        assert!(titles.iter().all(|title| title.contains("model")), "{titles:?}");
    }
}
