//! `batches`: copies in batches, which have crashed and hung drivers. Last, in a process of its own, behind a test in
//! another.

use std::time::Duration;

use kvo_cuda::{BatchTestError, BatchUse, CopyPath, CudaDevice, CudaOptions};
use kvo_gpu_check::{BedMaker, BedOptions};
use serde_json::json;

use crate::{
    conformance,
    ground::{Ground, Outcome},
    helper::{self, What},
    identity, matrix, program,
    rows::row,
};

const TIMEOUT: Duration = Duration::from_secs(30);

pub(crate) fn run(ground: &mut Ground) -> anyhow::Result<Outcome> {
    let tested = helper::ask(What::TestBatches, ground.ordinal, None, TIMEOUT);
    let missing = BatchTestError::Missing.to_string();
    if tested.as_ref() == Err(&missing) {
        return Ok(Outcome::Skipped(missing));
    }
    let mut told = row(json!({"what": "the test in another process", "batch_use": asked(ground)?}));
    let is_good = tested.is_ok();
    if let Err(failure) = tested {
        told.insert("failure".to_owned(), json!(failure));
    }
    ground.tell(&told)?;
    if is_good {
        identity::try_path(ground, CopyPath::Batch)?;
        conformance::with_batches(ground)?;
        matrix::measure(ground, CopyPath::Batch)?;
    }
    Ok(Outcome::Done)
}

/// What a device makes of batches that it is to test by this program.
fn asked(ground: &Ground) -> anyhow::Result<String> {
    let program = program::again()?.get_program().into();
    let batches = BatchUse::Tested { program, arguments: vec!["helper".into(), "test-batches".into()] };
    let options = CudaOptions { batches, ..ground.beds().device_options(&BedOptions::default()) };
    let host = ground.beds().make(&BedOptions::default()).host();
    Ok(format!("{:?}", CudaDevice::new(options, host)?.stats().paths.batch_use))
}
