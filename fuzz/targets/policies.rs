//! See `fuzzed` in `crates/kvo-policies/tests/contract.rs`.

#![no_main]

#[path = "../../crates/kvo-policies/tests/contract.rs"]
#[allow(dead_code, unreachable_pub, unused_imports, reason = "most of it is of the tests")]
mod contract;

libfuzzer_sys::fuzz_target!(|data: &[u8]| contract::fuzzed(data));
