//! See `kvo_nvme::fuzzing::recovery`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| kvo_nvme::fuzzing::recovery(data));
