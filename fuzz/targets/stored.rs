//! See `kvo_bench::fuzzing::stored`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| kvo_bench::fuzzing::stored(data));
