//! See `kvo_cuda::fuzzing::layout`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| kvo_cuda::fuzzing::layout(data));
