//! `kvo-test-batches [ORDINAL]`: whether batches of copies work on a GPU, by ending with status 0.
//!
//! A driver with broken batches may crash or hang, so whoever runs this waits for a while and then kills it.

#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    let ordinal = match std::env::args().nth(1).map(|ordinal| ordinal.parse()) {
        None => 0,
        Some(Ok(ordinal)) => ordinal,
        Some(Err(error)) => {
            eprintln!("error: the ordinal of a device is a number: {error}");
            return ExitCode::from(2);
        }
    };
    match kvo_cuda::test_batches(ordinal) {
        Ok(()) => {
            println!("batches work on device {ordinal}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}
