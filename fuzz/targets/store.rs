//! See `kvo_nvme::fuzzing::store`.

#![no_main]

use std::sync::LazyLock;

use tempfile::TempDir;

/// Left behind: `cargo xtask fuzz` says where temporary files go, and removes them.
static DIR: LazyLock<TempDir> = LazyLock::new(|| tempfile::tempdir().expect("there is room for a directory"));

libfuzzer_sys::fuzz_target!(|data: &[u8]| kvo_nvme::fuzzing::store(DIR.path(), data));
