//! See `fuzzed` in `crates/kvo-connector/tests/simulated/fuzzed.rs`.

#![no_main]

#[path = "../../crates/kvo-connector/tests/simulated/engine.rs"]
#[allow(dead_code, reason = "some of it is of the tests alone")]
mod engine;
#[path = "../../crates/kvo-connector/tests/simulated/fuzzed.rs"]
#[allow(dead_code, reason = "some of it is of the tests alone")]
mod fuzzed;
#[path = "../../crates/kvo-connector/tests/simulated/memory.rs"]
#[allow(dead_code, reason = "some of it is of the tests alone")]
mod memory;
#[path = "../../crates/kvo-connector/tests/simulated/random.rs"]
#[allow(dead_code, reason = "some of it is of the tests alone")]
mod random;
#[path = "../../crates/kvo-connector/tests/simulated/rank.rs"]
#[allow(dead_code, reason = "some of it is of the tests alone")]
mod rank;
#[path = "../../crates/kvo-connector/tests/simulated/request.rs"]
#[allow(dead_code, reason = "some of it is of the tests alone")]
mod request;

libfuzzer_sys::fuzz_target!(|data: &[u8]| fuzzed::fuzzed(data));
