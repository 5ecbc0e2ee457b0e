//! `docs/RELIABILITY.md` against the list of what broke elsewhere, and against the tests that it names.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

const PAGE: &str = "docs/RELIABILITY.md";
const SECTION: &str = "## What broke elsewhere, and the tests that hold it here";

/// A test function: the crate it is of, the program, the modules in it, its name; and the comment above it.
#[derive(Debug)]
struct Found {
    crate_name: String,
    program: String,
    modules: Vec<String>,
    name: String,
    doc: String,
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// The folder of tests that came with the sources, if it is there; says so if not.
fn scenarios() -> Option<String> {
    let shared = std::env::var_os("KVO_SHARED").map_or_else(
        || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared"),
        |dir| Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(dir),
    );
    let page = shared.join("reliability/scenarios.md");
    let text = fs::read_to_string(&page);
    if let Err(error) = &text {
        eprintln!("SKIPPED: {}: {error}; KVO_SHARED names the directory above it", page.display());
    }
    text.ok()
}

/// The ids that a page defines: each begins a line, in bold.
fn ids(page: &str) -> Vec<&str> {
    let id =
        |line: &str| line.strip_prefix("**").and_then(|rest| rest.split_once("**")).map(|(id, _)| id.len());
    page.lines().filter_map(|line| id(line).map(|len| &line[2..2 + len])).filter(|id| is_id(id)).collect()
}

fn is_id(text: &str) -> bool {
    text.strip_prefix('B').is_some_and(|number| number.len() == 2 && number.parse::<u8>().is_ok())
}

/// The rows of the table by id: what there is to say, and the tests that are named.
fn rows(page: &str) -> BTreeMap<String, (String, Vec<String>)> {
    let section = page.split_once(SECTION).expect("the page has the section").1;
    let section = section.split("\n## ").next().unwrap_or(section);
    let mut rows = BTreeMap::new();
    for line in section.lines().filter(|line| line.starts_with("| B")) {
        let cells: Vec<&str> = line.trim_matches('|').splitn(3, '|').map(str::trim).collect();
        let [id, kind, held] = cells[..] else { panic!("{line:?} has three cells") };
        assert!(is_id(id) && !kind.is_empty() && !held.is_empty(), "{line:?}");
        let tests = held.split('`').skip(1).step_by(2).filter(|name| name.contains("::")).map(str::to_owned);
        let row = (held.to_owned(), tests.collect());
        assert!(rows.insert(id.to_owned(), row).is_none(), "{id} has two rows");
    }
    rows
}

fn files_below(dir: &Path, files: &mut Vec<PathBuf>) {
    let Ok(entries) = fs::read_dir(dir) else { return };
    for path in entries.map(|entry| entry.unwrap().path()) {
        if path.is_dir() {
            files_below(&path, files);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
}

/// Every test function of the workspace, and every case that a macro makes tests of.
fn tests() -> Vec<Found> {
    let mut found = Vec::new();
    let crates = fs::read_dir(root().join("crates")).unwrap().map(|entry| entry.unwrap().path());
    let others = ["tests", "examples/mini-engine"].map(|dir| root().join(dir));
    for dir in crates.chain(others) {
        let crate_name = match dir.file_name().and_then(|name| name.to_str()) {
            Some("mini-engine") => "kvo-mini-engine",
            Some("tests") => "kvo-tests",
            name => name.unwrap(),
        };
        for kind in ["src", "tests"] {
            let mut files = Vec::new();
            files_below(&dir.join(kind), &mut files);
            for file in files {
                let mut path: Vec<String> = file
                    .strip_prefix(dir.join(kind))
                    .unwrap()
                    .with_extension("")
                    .iter()
                    .map(|part| part.to_str().unwrap().to_owned())
                    .collect();
                let program = if kind == "src" { "lib".to_owned() } else { path.remove(0) };
                path.retain(|part| !["lib", "main", "mod"].contains(&part.as_str()));
                let is_case = crate_name == "kvo-gpu-check" && path.first().is_some_and(|at| at == "suite");
                functions(&fs::read_to_string(&file).unwrap(), is_case, |name, doc| {
                    let programs: &[&str] = if is_case { &["host", "fake"] } else { &[&program] };
                    for program in programs {
                        let modules = path[usize::from(is_case)..].to_vec();
                        found.push(Found {
                            crate_name: crate_name.to_owned(),
                            program: (*program).to_owned(),
                            modules,
                            name: name.to_owned(),
                            doc: doc.to_owned(),
                        });
                    }
                });
            }
        }
    }
    found
}

/// The test functions of a file, each with the comment above it. Of the files of cases all that others may run.
fn functions(source: &str, is_case: bool, mut each: impl FnMut(&str, &str)) {
    let lines: Vec<&str> = source.lines().map(str::trim).collect();
    for (at, line) in lines.iter().enumerate() {
        let is_shown = line.starts_with("pub(super) fn ");
        let Some((_, rest)) = line.trim_start_matches("pub(super) ").split_once("fn ") else { continue };
        let Some((name, _)) = rest.split_once('(') else { continue };
        let above = lines[..at].iter().rev();
        let above: Vec<&str> =
            above.take_while(|line| line.starts_with("///") || line.starts_with("#[")).copied().collect();
        if above.contains(&"#[test]") || is_case && is_shown {
            let doc: Vec<&str> = above.into_iter().rev().filter(|line| line.starts_with("///")).collect();
            each(name, &doc.join(" "));
        }
    }
}

/// The tests that a name of the page can mean: `crate::program::modules::test`, `lib` being the crate itself. `modules`
/// may end with the `tests` that stand in a file of sources.
fn meant<'a>(all: &'a [Found], name: &str) -> Vec<&'a Found> {
    let parts: Vec<&str> = name.split("::").collect();
    let [crate_name, program, modules @ .., test] = &parts[..] else { return Vec::new() };
    let is_meant = |found: &&Found| {
        let of_file = modules.strip_suffix(&["tests"]).unwrap_or(modules);
        let is_module = found.modules == modules || program == &"lib" && found.modules == of_file;
        found.crate_name == *crate_name && found.program == *program && is_module && found.name == *test
    };
    all.iter().filter(is_meant).collect()
}

#[test]
fn every_scenario_has_a_row() {
    let rows = rows(&fs::read_to_string(root().join(PAGE)).unwrap());
    let Some(scenarios) = scenarios() else { return };
    let ids = ids(&scenarios);
    assert!(ids.len() > 40, "{ids:?}");
    let missing: Vec<_> = ids.iter().filter(|id| !rows.contains_key(**id)).collect();
    assert!(missing.is_empty(), "{PAGE} has no row for {missing:?}");
}

#[test]
fn every_test_that_a_row_names_is_there_and_names_the_row() {
    let rows = rows(&fs::read_to_string(root().join(PAGE)).unwrap());
    let all = tests();
    assert!(all.len() > 500 && rows.len() > 40, "{} tests, {} rows", all.len(), rows.len());
    let mut wrong = Vec::new();
    for (id, (held, tests)) in &rows {
        if tests.is_empty() && held.len() < 40 {
            wrong.push(format!("{id} names no test, and says not why"));
        }
        for name in tests {
            match meant(&all, name)[..] {
                [] => wrong.push(format!("{id}: there is no {name}")),
                [found] if !found.doc.contains(id.as_str()) => {
                    wrong.push(format!("{id}: the comment of {name} does not name it"));
                }
                [_] => {}
                _ => wrong.push(format!("{id}: {name} is more than one test")),
            }
        }
    }
    assert!(wrong.is_empty(), "{PAGE}:\n{}", wrong.join("\n"));
}

/// What carries an id is in the table, so that whoever reads that finds it.
#[test]
fn every_test_that_names_a_row_is_in_it() {
    let rows = rows(&fs::read_to_string(root().join(PAGE)).unwrap());
    let all = tests();
    let mut listed = BTreeSet::new();
    for (id, (_, tests)) in &rows {
        for found in tests.iter().flat_map(|name| meant(&all, name)) {
            listed.insert((id.clone(), found.modules.clone(), found.name.clone()));
        }
    }
    let mut left_out = Vec::new();
    for found in &all {
        let words = found.doc.split(|char: char| !char.is_ascii_alphanumeric()).filter(|word| is_id(word));
        for id in words.map(str::to_owned) {
            if !listed.contains(&(id.clone(), found.modules.clone(), found.name.clone())) {
                left_out.push(format!("{id}: {}::{}::{}", found.crate_name, found.program, found.name));
            }
        }
    }
    assert!(left_out.is_empty(), "{PAGE} leaves out:\n{}", left_out.join("\n"));
}

#[test]
fn a_name_is_found_by_its_program_and_modules() {
    let all = tests();
    let check = |name: &str, expected: usize| assert_eq!(meant(&all, name).len(), expected, "{name}");
    check("kvo-tests::reliability::every_scenario_has_a_row", 1);
    check("kvo-tests::scenarios::every_scenario_has_a_row", 0);
    check("kvo-nvme::lib::progress::tests::a_whole_count_is_all_there_is", 1);
    check("kvo-nvme::lib::tests::jobs::a_chunk_comes_back_as_it_was_written", 1);
    check("kvo-nvme::lib::jobs::a_chunk_comes_back_as_it_was_written", 0);
    check("kvo-connector::facts::loads::a_load_that_fails_is_not_tried_again", 1);
    check("kvo-gpu-check::fake::order::a_fence_does_not_move_with_its_event", 1);
    check("kvo-gpu-check::beds::order::a_fence_does_not_move_with_its_event", 0);
    check("kvo-tests::reliability::tests", 0);
    assert_eq!(ids("**B01** [a]\n**C02**\n - **B03**\n**B4**\n**B05** b"), ["B01", "B05"]);
}
