//! `conformance`: what every device must do, case by case. A case that breaks its device has a process of its own.

use std::{
    fmt::Display,
    panic::{AssertUnwindSafe, catch_unwind},
    time::Duration,
};

use anyhow::{Context, bail};
use kvo_cuda::CopyPath;
use kvo_gpu_check::{BedMaker, CudaBeds, Traffic};
use serde_json::{Value, json};

use crate::{
    ground::{Ground, Outcome},
    helper::{self, What},
    machine,
    rows::row,
    section::words_of,
};

const TIMEOUT: Duration = Duration::from_secs(30);

/// Random transfers by one way of copies; and on a model, whose compute is interpreted.
const TRANSFERS: (u64, u64) = (20_000, 200);

/// What a case does; `Err` says what is not as it must be.
type Run = Box<dyn Fn(&dyn BedMaker) -> Result<(), String>>;

/// A case as it is run here.
struct Case {
    name: String,
    /// Whether the device is broken afterwards, and the process with it.
    kills: bool,
    /// Whether its copies go in batches, which break some drivers: it runs in that section.
    needs_batches: bool,
    run: Run,
}

/// All that a device is held to: the suite, random traffic by each way of copies, and devices with a defect, on which a case
/// must fail.
fn cases(beds: &CudaBeds) -> Vec<Case> {
    let suite = kvo_gpu_check::cases().into_iter().filter(|case| case.runs_on(beds)).map(|case| Case {
        name: case.name.to_owned(),
        kills: case.kills,
        needs_batches: case.needs_batches,
        run: Box::new(move |maker| case.run(maker).map_err(words)),
    });
    let transfers = if beds.is_model() { TRANSFERS.1 } else { TRANSFERS.0 };
    let traffic = beds.paths().into_iter().map(move |path| Case {
        name: path.map_or_else(
            || format!("{transfers} random transfers"),
            |path| format!("{transfers} random transfers by {path:?}").to_lowercase(),
        ),
        kills: false,
        needs_batches: path == Some(CopyPath::Batch),
        run: Box::new(move |maker| Traffic::new(transfers).run_by(maker, path).map(drop).map_err(words)),
    });
    let controls = kvo_gpu_check::controls().into_iter().map(|control| Case {
        name: format!("control: with {:?}, {} fails", control.defect, control.case),
        kills: control.kills(),
        needs_batches: false,
        run: Box::new(move |maker| control.run(maker).map_err(words)),
    });
    suite.chain(traffic).chain(controls).collect()
}

fn words(failure: impl Display) -> String {
    failure.to_string()
}

pub(crate) fn run(ground: &mut Ground) -> anyhow::Result<Outcome> {
    let cases = cases(&ground.beds());
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
    helper::ask(What::Case, ground.ordinal, Some(&case.name), TIMEOUT).map(|_| ())
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
