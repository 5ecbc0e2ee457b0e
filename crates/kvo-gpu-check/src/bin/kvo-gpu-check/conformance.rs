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
    /// Whether its copies go in batches, which break some drivers: it runs in that section.
    needs_batches: bool,
    run: Run,
}

// ---- The one place where the suite comes in: those of its cases that run on a GPU, in its order. ----
fn cases(beds: &CudaBeds) -> Vec<Case> {
    let cases = kvo_gpu_check::cases().into_iter().filter(|case| case.runs_on(beds));
    let case = |case: kvo_gpu_check::Case| Case {
        name: case.name,
        kills: case.kills,
        needs_batches: case.needs_batches,
        run: Box::new(move |maker| case.run(maker).map_err(|failure| failure.to_string())),
    };
    cases.map(case).collect()
}
// -----------------------------------------------------------------------------------------------------

pub(crate) fn run(ground: &mut Ground) -> anyhow::Result<Outcome> {
    let cases = cases(&ground.beds());
    if cases.is_empty() {
        return Ok(Outcome::Skipped("this program was built without a suite".to_owned()));
    }
    let beds = ground.beds();
    for case in cases.iter().filter(|case| !case.needs_batches) {
        if !ground.has_time() {
            continue;
        }
        // A process that hangs, or is killed, has said where.
        eprintln!("case {}", case.name);
        let ran = if case.kills { by_helper(ground, case) } else { caught(case, &beds) };
        tell(ground, case, ran)?;
    }
    Ok(Outcome::Done)
}

/// Those cases that need batches, each in a process of its own. For the section of that name.
pub(crate) fn with_batches(ground: &mut Ground) -> anyhow::Result<()> {
    for case in cases(&ground.beds()).iter().filter(|case| case.needs_batches) {
        if ground.has_time() {
            let ran = by_helper(ground, case);
            tell(ground, case, ran)?;
        }
    }
    Ok(())
}

fn tell(ground: &mut Ground, case: &Case, ran: Result<(), String>) -> anyhow::Result<()> {
    let mut told = row(json!({"case": case.name}));
    if let Err(failure) = ran {
        told.insert("failure".to_owned(), json!(failure));
    }
    ground.tell(&told)
}

fn by_helper(ground: &Ground, case: &Case) -> Result<(), String> {
    helper::ask(What::Case, ground.ordinal, Some(case.name), TIMEOUT).map(|_| ())
}

/// A case in the process of a helper.
pub(crate) fn case(ordinal: u32, name: &str) -> anyhow::Result<Value> {
    let beds = CudaBeds::new("a helper's", ordinal, machine::is_model().0);
    let case = cases(&beds).into_iter().find(|case| case.name == name);
    let case = case.with_context(|| format!("there is no case {name}"))?;
    match caught(&case, &beds) {
        Ok(()) => Ok(json!({})),
        Err(failure) => bail!(failure),
    }
}

fn caught(case: &Case, beds: &CudaBeds) -> Result<(), String> {
    let ran = catch_unwind(AssertUnwindSafe(|| (case.run)(beds)));
    ran.unwrap_or_else(|panic| Err(words_of(&*panic)))
}
