//! See `kvo_sim::fuzzed`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| kvo_sim::fuzzed(data));
