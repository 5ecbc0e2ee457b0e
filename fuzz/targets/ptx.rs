//! See `fuzzed` in `crates/kvo-ptx/tests/fuzzed.rs`.

#![no_main]

#[path = "../../crates/kvo-ptx/tests/fuzzed.rs"]
#[allow(dead_code, unreachable_pub, unused_imports, reason = "most of it is of the tests")]
mod fuzzed;

libfuzzer_sys::fuzz_target!(|data: &[u8]| fuzzed::fuzzed(data));
