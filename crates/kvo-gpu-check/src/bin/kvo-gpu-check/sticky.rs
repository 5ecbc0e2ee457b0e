//! `sticky`: a kernel that faults in another process. Its device dies once and in words; nobody else notices.

use std::time::Duration;

use anyhow::{Context, ensure};
use kvo_core::{
    ComputePoint, CopyOp, DeviceHealth, Direction, HostMemory, SlotId, Transfer, TransferClass,
    TransferCompletion, TransferFailure,
};
use kvo_gpu_check::{BedOptions, CudaBed, CudaBeds, TestBed, pattern};
use serde_json::{Value, json};

use crate::{
    copies::PATIENCE,
    ground::{Ground, Outcome},
    helper::{self, What},
    machine,
    rows::{Row, row},
};

const NUM_TICKETS: u32 = 4;
const BYTES: u64 = 64 << 10;
const TIMEOUT: Duration = Duration::from_secs(30);

pub(crate) fn run(ground: &mut Ground) -> anyhow::Result<Outcome> {
    // A device of this process, from before the fault till after it.
    let mut bed = ground.beds().make_cuda(&BedOptions::default());
    there_and_back(&mut bed, 1)?;
    let told = |what: &str, found: Result<Value, String>| -> Row {
        let mut told = row(json!({"what": what}));
        match found {
            Ok(found) => told.insert("found".to_owned(), found),
            Err(failure) => told.insert("failure".to_owned(), json!(failure)),
        };
        told
    };
    let fault = helper::ask(What::Fault, ground.ordinal, None, TIMEOUT);
    ground.tell(&told("the process with the fault", fault))?;
    let here = there_and_back(&mut bed, 2).map(|()| json!({})).map_err(|error| format!("{error:#}"));
    ground.tell(&told("a device that another process has", here))?;
    let next = helper::ask(What::Copies, ground.ordinal, None, TIMEOUT);
    ground.tell(&told("the next process", next))?;
    Ok(Outcome::Done)
}

/// The process that breaks its context, with transfers behind the kernel that does.
pub(crate) fn fault(ordinal: u32) -> anyhow::Result<Value> {
    let mut bed = beds(ordinal).make_cuda(&BedOptions::default());
    let (span, stream) = (bed.allocate(BYTES * u64::from(NUM_TICKETS)), bed.create_stream());
    let region = bed.device().attach(span)?;
    let hold = bed.hold(stream);
    bed.fault(stream);
    let after = bed.device().record_fence(ComputePoint::Stream(stream))?;
    let transfer = |nth: u32| {
        let device_offset = u64::from(nth) * BYTES;
        let op = CopyOp { region, device_offset, slot: SlotId(nth), slot_offset: 0, bytes: BYTES };
        Transfer::new(TransferClass::Store, vec![op], after)
    };
    let mut tickets = Vec::new();
    for nth in 0..NUM_TICKETS {
        tickets.push(bed.device().submit(transfer(nth)).map_err(|error| error.reason)?);
    }
    hold.open();
    let mut done: Vec<TransferCompletion> = Vec::new();
    while done.len() < tickets.len() {
        let before = done.len();
        bed.device().wait(PATIENCE, &mut done);
        ensure!(done.len() > before, "{before} of {NUM_TICKETS} tickets ended in {PATIENCE:?}");
    }
    // What came twice would come now.
    bed.device().wait(Duration::from_millis(100), &mut done);
    let mut ended: Vec<_> = done.iter().map(|completion| completion.ticket).collect();
    ended.sort_unstable();
    ensure!(ended == tickets, "tickets {tickets:?} ended as {ended:?}");
    for completion in &done {
        let is_lost = matches!(completion.result, Err(TransferFailure::Device { .. }));
        ensure!(is_lost, "{completion:?} of a device that broke");
    }
    let DeviceHealth::Dead { code } = bed.device().health() else {
        anyhow::bail!("the device is {:?} after a fault", bed.device().health());
    };
    ensure!(bed.device().submit(transfer(0)).is_err(), "a dead device took a transfer");
    // The bed's own drop would call a driver that knows no way on.
    std::mem::forget(bed);
    Ok(json!({"code": code, "tickets": tickets.len(), "held": done.iter().filter(|one| one.held).count()}))
}

/// The process after it.
pub(crate) fn copies(ordinal: u32) -> anyhow::Result<Value> {
    there_and_back(&mut beds(ordinal).make_cuda(&BedOptions::default()), 3)?;
    Ok(json!({}))
}

fn beds(ordinal: u32) -> CudaBeds {
    CudaBeds::new("a helper's", ordinal, machine::is_model().0)
}

/// A kernel writes, the device stores and loads, another kernel looks.
fn there_and_back(bed: &mut CudaBed, seed: u64) -> anyhow::Result<()> {
    let (span, stream) = (bed.allocate(2 * BYTES), bed.create_stream());
    let region = bed.device().attach(span)?;
    bed.fill(stream, span.address(), BYTES, seed);
    for (direction, device_offset) in [(Direction::Store, 0), (Direction::Load, BYTES)] {
        let after = bed.device().record_fence(ComputePoint::Stream(stream))?;
        let op = CopyOp { region, device_offset, slot: SlotId(0), slot_offset: 0, bytes: BYTES };
        let transfer = Transfer::new(crate::copies::class_of(direction), vec![op], after);
        bed.device().submit(transfer).map_err(|error| error.reason)?;
        bed.device().drain(PATIENCE)?;
        let mut done = Vec::new();
        bed.device().poll(&mut done);
        done.pop().context("a transfer has ended")?.result?;
    }
    let mut is_right = false;
    bed.host().with_read(SlotId(0), &mut |slot| {
        is_right = slot == pattern(seed, slot.len());
    })?;
    ensure!(is_right, "wrong bytes in the slot");
    bed.check(stream, span.address() + BYTES, BYTES, seed);
    let wrong = bed.synchronize(stream);
    ensure!(wrong == 0, "{wrong} wrong bytes on the device");
    bed.device().detach(region)?;
    Ok(())
}
