//! See `fuzzed` in `crates/kvo-connector/tests/config.rs`.

#![no_main]

#[path = "../../crates/kvo-connector/tests/config.rs"]
#[allow(dead_code, unreachable_pub, unused_imports, reason = "most of it is of the tests")]
mod config;

use std::sync::LazyLock;

use tempfile::TempDir;

/// Left behind: `cargo xtask fuzz` says where temporary files go, and removes them.
static DIR: LazyLock<TempDir> = LazyLock::new(|| tempfile::tempdir().expect("there is room for a directory"));

libfuzzer_sys::fuzz_target!(|data: &[u8]| config::fuzzed(DIR.path(), data));
