//! See `kvo_nvme::fuzzing::header`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| kvo_nvme::fuzzing::header(data));
