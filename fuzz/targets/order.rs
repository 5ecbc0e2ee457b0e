//! See `kvo_nvme::fuzzing::order`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| kvo_nvme::fuzzing::order(data));
