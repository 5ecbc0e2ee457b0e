//! Every input of the corpus, once.

use std::{fs, path::PathBuf};

fn corpus(target: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus").join(target)
}

/// Runs every file of a target's corpus, and an input without a byte.
#[track_caller]
fn check(target: &str, run: impl Fn(&[u8])) {
    run(&[]);
    let mut num_inputs = 0;
    for entry in fs::read_dir(corpus(target)).unwrap() {
        let path = entry.unwrap().path();
        // Shown only if the test fails, with the last one being the reason.
        println!("{}", path.display());
        run(&fs::read(path).unwrap());
        num_inputs += 1;
    }
    assert!(num_inputs > 0, "there is no input for {target}");
}

#[test]
fn superblocks_of_the_corpus_hold() {
    check("superblock", super::superblock);
}

#[test]
fn headers_of_the_corpus_hold() {
    check("header", super::header);
}

#[test]
fn orders_of_the_corpus_hold() {
    check("order", super::order);
}

#[test]
fn records_of_the_corpus_hold() {
    check("record", super::record);
}

#[test]
fn tables_of_the_corpus_are_recovered() {
    check("recovery", super::recovery);
}

#[test]
fn damaged_stores_of_the_corpus_give_written_bytes_or_misses() {
    let dir = tempfile::tempdir().unwrap();
    check("store", |data| super::store(dir.path(), data));
}
