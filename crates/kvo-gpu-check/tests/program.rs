//! The program `kvo-gpu-check`, on the driver for tests and without any.

use std::{
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::{Command, Output},
};

use serde_json::{Map, Value};
use tempfile::TempDir;

type Row = Map<String, Value>;

const SECTIONS: [&str; 10] = [
    "machine",
    "identity",
    "conformance",
    "limit",
    "matrix",
    "calibration",
    "overlap",
    "head-of-line",
    "sticky",
    "batches",
];

/// A directory for the driver, under the names that the loader looks for, and for results.
struct Place(TempDir);

impl Place {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let program = std::env::current_exe().unwrap();
        let library = program.parent().unwrap().join("libkvo_fakecuda.so");
        assert!(library.is_file(), "cargo builds the library for this test");
        for name in ["libcuda.so", "libcuda.so.1"] {
            symlink(&library, dir.path().join(name)).unwrap();
        }
        Self(dir)
    }

    fn out(&self) -> PathBuf {
        self.0.path().join("results")
    }

    /// The program, with the driver of this place alone.
    fn program(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_kvo-gpu-check"));
        command.args(arguments).env("LD_LIBRARY_PATH", self.0.path()).env_remove("KVO_CUDA");
        command
    }

    #[track_caller]
    fn run(&self, arguments: &[&str], status: i32) -> (String, Vec<Row>) {
        let mut command = self.program(arguments);
        let output = command.arg("--quick").arg("--out").arg(self.out()).output().unwrap();
        let text = said(&output, status);
        (text, rows(&self.out().join("rows.jsonl")))
    }
}

/// The standard output of a program that ended with that status.
#[track_caller]
fn said(output: &Output, status: i32) -> String {
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(status), "{text}\n{errors}");
    text
}

#[track_caller]
fn rows(path: &Path) -> Vec<Row> {
    fs::read_to_string(path).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn of<'a>(rows: &'a [Row], section: &'a str) -> impl Iterator<Item = &'a Row> {
    rows.iter().filter(move |row| row["section"] == section)
}

fn outcome<'a>(rows: &'a [Row], section: &'a str) -> Option<&'a Value> {
    of(rows, section).find_map(|row| row.get("outcome"))
}

#[test]
fn a_run_has_every_section_and_says_that_it_is_a_model() {
    let place = Place::new();
    let (text, rows) = place.run(&[], 0);
    for section in SECTIONS {
        let outcome = outcome(&rows, section).unwrap_or_else(|| panic!("no end of {section}"));
        assert_eq!(outcome, "passed", "{section}");
        assert!(of(&rows, section).count() > 1, "{section} has no row");
    }
    let is_labelled = |row: &Row| {
        row["is_model"] == true
            && row["driver"] == "model"
            && row["device"].as_str().unwrap().contains("model")
    };
    assert!(rows.iter().all(is_labelled));
    let ends = text.lines().filter(|line| SECTIONS.iter().any(|section| line.starts_with(section)));
    assert!(ends.count() >= SECTIONS.len(), "{text}");
    for line in text.lines().filter(|line| SECTIONS.iter().any(|section| line.starts_with(section))) {
        assert!(line.contains("(model)"), "{line}");
    }
    // The tables are there a second time, and are made from the rows again.
    let table = fs::read_to_string(place.out().join("table.txt")).unwrap();
    let file = place.out().join("rows.jsonl");
    let shown = place.program(&["show", file.to_str().unwrap()]).output().unwrap();
    assert_eq!(said(&shown, 0).trim_end(), table.trim_end());
}

#[test]
fn rates_are_parts_of_the_limit_and_every_byte_was_compared() {
    let place = Place::new();
    let (_, rows) = place.run(&["--only", "identity,limit,matrix"], 0);
    let identity: Vec<&Row> = of(&rows, "identity").filter(|row| row.contains_key("path")).collect();
    assert!(identity.iter().all(|row| row["wrong_bytes"] == 0));
    assert!(["memcpy", "rows", "kernel"].iter().all(|path| identity.iter().any(|row| row["path"] == *path)));
    let limit =
        |direction| of(&rows, "limit").find(|row| row.get("direction") == Some(&Value::from(direction)));
    let rate = |row: &Row| row["bytes_per_s"].as_f64().unwrap();
    let points: Vec<&Row> = of(&rows, "matrix").filter(|row| row.contains_key("fragment_bytes")).collect();
    assert!(points.len() > 10);
    for point in points {
        let limit = rate(limit(point["direction"].as_str().unwrap()).unwrap());
        assert!((point["of_limit"].as_f64().unwrap() - rate(point) / limit).abs() < 1e-9, "{point:?}");
    }
    assert_eq!(outcome(&rows, "sticky"), None, "only what was named");
}

#[track_caller]
fn check_broken(how: &str, budget: &str, words: &str, next: &str) {
    let place = Place::new();
    let inject = format!("limit={how}");
    let (text, rows) = place.run(&["--only", "limit,sticky", "--inject", &inject, "--budget", budget], 1);
    let failure = of(&rows, "limit").find_map(|row| row.get("failure")).expect("a row says it");
    assert!(failure.as_str().unwrap().contains(words), "{failure}");
    assert_eq!(outcome(&rows, "limit").unwrap(), "failed");
    assert!(text.contains("FAILED limit"), "{text}");
    assert_eq!(outcome(&rows, "sticky").unwrap(), next, "the rest still runs");
}

#[test]
fn what_goes_wrong_in_a_section_is_a_row_and_the_rest_still_runs() {
    check_broken("row", "60", "injected: a byte is wrong", "passed");
    check_broken("panic", "60", "injected: a panic", "passed");
    check_broken("abort", "60", "its process ended with signal: 6", "passed");
}

#[test]
fn a_section_that_hangs_is_killed() {
    // It takes all of the second, and five more.
    check_broken("hang", "1", "was killed", "skipped");
}

#[test]
fn what_there_is_no_time_for_is_said() {
    let place = Place::new();
    let (_, rows) = place.run(&["--budget", "1"], 0);
    let late = rows.iter().filter(|row| {
        row.contains_key("left_out_for_want_of_time")
            || row.get("reason") == Some(&Value::from("there was no time left"))
    });
    assert!(late.count() > 0, "{rows:?}");
    assert!(SECTIONS.iter().all(|section| outcome(&rows, section).is_some()));
}

#[test]
fn without_a_device_it_says_why() {
    let place = Place::new();
    let out = place.out();
    let output = place.program(&["--quick"]).arg("--out").arg(&out).env("KVO_CUDA", "off").output().unwrap();
    assert_eq!(said(&output, 3), "");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(errors.contains("there is no device to check: GPUs are turned off by KVO_CUDA"), "{errors}");
    let output = place.program(&["--quick", "--device", "7"]).arg("--out").arg(&out).output().unwrap();
    assert_eq!(said(&output, 3), "");
    assert!(String::from_utf8_lossy(&output.stderr).contains("there is no device 7"));
    assert!(!out.exists());
}

#[test]
fn a_program_that_would_not_run_elsewhere_is_told_by_its_symbols() {
    let program = env!("CARGO_BIN_EXE_kvo-gpu-check");
    let needs = |glibc| Command::new(program).args(["needs", program, "--glibc", glibc]).output().unwrap();
    said(&needs("99.0"), 0);
    let output = needs("2.3");
    said(&output, 1);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(
        errors.contains("it needs __libc_start_main of GLIBC_2.") && errors.contains("glibc 2.3 lacks"),
        "{errors}"
    );
}

#[test]
fn arguments_that_mean_nothing_are_refused() {
    let place = Place::new();
    for arguments in [["--only", "everything"], ["--budget", "0"], ["--inject", "limit"]] {
        said(&place.program(&arguments).output().unwrap(), 2);
    }
}
