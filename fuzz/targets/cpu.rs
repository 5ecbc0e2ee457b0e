//! See `fuzzed` in `crates/kvo-cpu/tests/model.rs`.

#![no_main]

#[path = "../../crates/kvo-cpu/tests/model.rs"]
#[allow(dead_code, unreachable_pub, unused_imports, reason = "most of it is of the tests")]
mod model;

libfuzzer_sys::fuzz_target!(|data: &[u8]| model::fuzzed(data));
