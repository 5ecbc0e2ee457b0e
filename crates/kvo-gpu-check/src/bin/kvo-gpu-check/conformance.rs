//! `conformance`: what every device must do, case by case. A case that breaks its device has a process of its own.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    time::Duration,
};

use anyhow::{Context, bail};
use kvo_gpu_check::{BedMaker, CudaBeds};
use serde_json::{Value, json};

use crate::{
    ground::{Ground, Outcome},
    helper::{self, What},
    machine,
    rows::row,
    section::words_of,
};

const TIMEOUT: Duration = Duration::from_secs(30);

/// What a case does; `Err` says what is not as it must be.
type Run = Box<dyn Fn(&dyn BedMaker) -> Result<(), String>>;

/// A case as it is run here.
struct Case {
    name: &'static str,
    /// Whether the device is broken afterwards, and the process with it.
    kills: bool,
    needs_batches: bool,
    run: Run,
}

// ---- The one place where the suite comes in: its cases, in its order. ----
fn cases() -> Vec<Case> {
    Vec::new()
}
// --------------------------------------------------------------------------

pub(crate) fn run(ground: &mut Ground) -> anyhow::Result<Outcome> {
    let cases = cases();
    if cases.is_empty() {
        return Ok(Outcome::Skipped("this program was built without a suite".to_owned()));
    }
    let beds = ground.beds();
    for case in cases {
        if !ground.has_time() {
            continue;
        }
        // A process that hangs, or is killed, has said where.
        eprintln!("case {}", case.name);
        let outcome = if case.needs_batches {
            ground.tell(&row(json!({"case": case.name, "skipped": "it needs batches"})))?;
            continue;
        } else if case.kills {
            helper::ask(What::Case, ground.ordinal, Some(case.name), TIMEOUT).map(|_| ())
        } else {
            caught(&case, &beds)
        };
        let mut told = row(json!({"case": case.name}));
        if let Err(failure) = outcome {
            told.insert("failure".to_owned(), json!(failure));
        }
        ground.tell(&told)?;
    }
    Ok(Outcome::Done)
}

/// A case in the process of a helper.
pub(crate) fn case(ordinal: u32, name: &str) -> anyhow::Result<Value> {
    let case = cases().into_iter().find(|case| case.name == name);
    let case = case.with_context(|| format!("there is no case {name}"))?;
    let beds = CudaBeds::new("a helper's", ordinal, machine::is_model().0);
    match caught(&case, &beds) {
        Ok(()) => Ok(json!({})),
        Err(failure) => bail!(failure),
    }
}

fn caught(case: &Case, beds: &CudaBeds) -> Result<(), String> {
    let ran = catch_unwind(AssertUnwindSafe(|| (case.run)(beds)));
    ran.unwrap_or_else(|panic| Err(words_of(&*panic)))
}
