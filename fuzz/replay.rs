//! The corpus of a fuzzer, replayed by the tests of the crate that it is of, which include this file.

use std::{fs, path::Path};

/// Runs an input without a byte, and every file of the corpus of `target`.
#[track_caller]
pub(crate) fn replay(target: &str, run: impl Fn(&[u8])) {
    let above = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors();
    let corpus = above.map(|dir| dir.join("fuzz/corpus")).find(|dir| dir.is_dir());
    let dir = corpus.expect("the corpus is in the workspace").join(target);
    run(&[]);
    let mut num_inputs = 0;
    for entry in fs::read_dir(&dir).unwrap_or_else(|error| panic!("{}: {error}", dir.display())) {
        let path = entry.unwrap().path();
        // Shown only if the test fails, with the last one being the reason.
        println!("{}", path.display());
        run(&fs::read(path).unwrap());
        num_inputs += 1;
    }
    assert!(num_inputs > 0, "there is no input for {target}");
}
