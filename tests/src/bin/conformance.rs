//! Replays every scenario of a directory; ends with `N passed, N failed`.

#![forbid(unsafe_code)]

use std::{path::PathBuf, process::ExitCode};

use anyhow::Context;

fn main() -> anyhow::Result<ExitCode> {
    let mut args = std::env::args_os().skip(1);
    let dir: PathBuf = args.next().context("usage: cargo xtask conformance DIR")?.into();
    let (mut passed, mut failed, mut compared) = (0, 0, 0);
    for file in kvo_tests::conformance::scenario_files(&dir)? {
        match kvo_tests::conformance::replay(&file) {
            Ok(Ok(answers)) => {
                passed += 1;
                compared += answers;
            }
            Ok(Err(mismatch)) => {
                failed += 1;
                println!("FAILED {mismatch}\n");
            }
            Err(error) => {
                failed += 1;
                println!("FAILED {error:#}\n");
            }
        }
    }
    println!("{compared} answers compared");
    println!("{passed} passed, {failed} failed");
    Ok(if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
