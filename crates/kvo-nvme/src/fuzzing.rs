//! What the fuzzers of `fuzz/` run: a function for each part of the format, from any bytes to a panic if something does
//! not hold.
//!
//! The bytes of an input are read as a list of steps: which valid thing to begin with, what to change of it, and whether
//! to seal it again afterwards. So the fuzzer gets past the checksums, and most inputs are nearly right. An input that is
//! too short goes on with zeros, which change nothing. The same input does the same every time.
//!
//! It is there for tests and for builds with `--cfg kvo_fuzzing` only. `cargo xtask fuzz` runs the fuzzers; the tests
//! here run the inputs of `fuzz/corpus/` once.

mod blocks;
mod damage;
mod image;
mod input;
mod records;
mod store;
mod table;

use std::path::Path;

/// The superblock: any bytes of it, alone and beside another one.
pub fn superblock(data: &[u8]) {
    blocks::superblock(data);
}

/// The header of a data file.
pub fn header(data: &[u8]) {
    blocks::header(data);
}

/// The eviction order that a clean close leaves.
pub fn order(data: &[u8]) {
    blocks::order(data);
}

/// The record of a slot.
pub fn record(data: &[u8]) {
    records::record(data);
}

/// The table of records and the eviction order, as opening a store reads them.
pub fn recovery(data: &[u8]) {
    table::recovery(data);
}

/// A store whose files are damaged: looked into, mended, opened, written, closed and opened again. `dir` is a directory
/// of the caller's for its files, best in memory.
pub fn store(dir: &Path, data: &[u8]) {
    store::store(dir, data);
}

#[cfg(test)]
mod tests;
