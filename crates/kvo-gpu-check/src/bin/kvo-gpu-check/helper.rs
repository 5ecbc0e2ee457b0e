//! Processes that break something, or may, so that no other has to.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    process::ExitCode,
    time::Duration,
};

use clap::{Args, ValueEnum};
use serde_json::{Value, json};

use crate::{
    conformance,
    program::{self, FAILED},
    section::words_of,
    sticky,
};

/// What a helper is told.
#[derive(Clone, Debug, Args)]
pub(crate) struct HelperArgs {
    pub(crate) what: What,
    /// The case, of `case`
    #[arg(long)]
    pub(crate) name: Option<String>,
    /// The device; last, as whoever tests batches has it
    #[arg(default_value_t = 0)]
    pub(crate) device: u32,
}

/// What a helper does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum What {
    /// A case of the suite.
    Case,
    /// Breaks the context, and says what became of its transfers.
    Fault,
    /// Copies there and back.
    Copies,
    /// Whether batches work.
    TestBatches,
}

/// The process. What it found is its last line, as JSON: an object, with `failure` if it is one.
pub(crate) fn run(args: &HelperArgs) -> ExitCode {
    let done = catch_unwind(AssertUnwindSafe(|| match args.what {
        What::Case => conformance::case(args.device, args.name.as_deref().unwrap_or_default()),
        What::Fault => sticky::fault(args.device),
        What::Copies => sticky::copies(args.device),
        What::TestBatches => Ok(kvo_cuda::test_batches(args.device).map(|()| json!({}))?),
    }));
    let failure = match done {
        Ok(Ok(found)) => {
            println!("{found}");
            return ExitCode::SUCCESS;
        }
        Ok(Err(error)) => format!("{error:#}"),
        Err(panic) => words_of(&*panic),
    };
    println!("{}", json!({"failure": failure}));
    ExitCode::from(FAILED)
}

/// Starts a helper and waits for it, so long at most. `Err` says what went wrong.
pub(crate) fn ask(what: What, device: u32, name: Option<&str>, timeout: Duration) -> Result<Value, String> {
    let asked = || -> anyhow::Result<(Option<Value>, program::End)> {
        let mut command = program::again()?;
        command
            .arg("helper")
            .arg(what.to_possible_value().map_or_else(String::new, |name| name.get_name().to_owned()));
        command.args(name.map(|name| format!("--name={name}"))).arg(device.to_string());
        let mut last = None;
        let end = program::run(command, timeout, |line| {
            last = serde_json::from_str(line).ok();
            Ok(())
        })?;
        Ok((last, end))
    };
    match asked() {
        Ok((Some(found), end)) if end.is_success() => Ok(found),
        Ok((Some(found), _)) if found["failure"].is_string() => {
            Err(found["failure"].as_str().unwrap_or_default().to_owned())
        }
        Ok((_, end)) => Err(end.to_string()),
        Err(error) => Err(format!("{error:#}")),
    }
}
