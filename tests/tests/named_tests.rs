//! The tests that documents name as what shows a sentence are there.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

const DOCUMENTS: [&str; 3] = ["SECURITY.md", "docs/SHUTDOWN.md", "docs/RELIABILITY.md"];
const FOLDERS: [&str; 4] = ["crates", "tests/tests", "examples", "bench"];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

/// All functions of the crates, by name.
fn functions(dir: &Path, found: &mut BTreeSet<String>) {
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            functions(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = fs::read_to_string(&path).unwrap();
            let name =
                |line: &str| Some(line.trim_start().split_once("fn ")?.1.split_once('(')?.0.to_owned());
            found.extend(text.lines().filter_map(name));
        }
    }
}

/// The names in a document that look like those of tests.
fn named(text: &str) -> impl Iterator<Item = &str> {
    let code = text.split('`').skip(1).step_by(2);
    code.map(|code| code.rsplit("::").next().unwrap_or(code)).filter(|code| {
        let is_name = code.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_');
        is_name && code.matches('_').count() >= 3
    })
}

#[test]
fn every_test_that_a_document_names_is_there() {
    let mut found = BTreeSet::new();
    for folder in FOLDERS {
        functions(&root().join(folder), &mut found);
    }
    for document in DOCUMENTS {
        let text = fs::read_to_string(root().join(document)).unwrap();
        let names: Vec<_> = named(&text).collect();
        assert!(names.len() > 20, "{document}: {names:?}");
        let missing: Vec<_> = names.iter().filter(|name| !found.contains(**name)).collect();
        assert!(missing.is_empty(), "{document} names tests that are not there: {missing:?}");
    }
}
