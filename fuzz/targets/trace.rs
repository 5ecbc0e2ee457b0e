//! See `kvo_bench::fuzzing::trace`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| kvo_bench::fuzzing::trace(data));
