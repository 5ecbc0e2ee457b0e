//! See `kvo_mini_engine::fuzzing::gguf`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| kvo_mini_engine::fuzzing::gguf(data));
