//! Copies through a device in host memory, beside plain copies of the same bytes.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context, ensure};
use kvo_core::{CopyOp, DeviceBackend, HostMemory, SlotId, Transfer, TransferClass};
use kvo_cpu::{HostRegion, RegionOptions};
use kvo_cuda::{HostDevice, HostDeviceOptions};
use serde::Serialize;

use super::DevicePlan;
use crate::{Spread, nvme::process_time};

/// How long copies may take before the run gives up.
const PATIENCE: Duration = Duration::from_mins(1);

/// Copies of one size and direction.
#[derive(Clone, Debug, Serialize)]
pub struct CopiesResult {
    /// Bytes of a copy.
    pub chunk_bytes: u64,
    /// `store` or `load`.
    pub class: &'static str,
    /// GB/s of plain copies, median.
    pub plain_gbps: f64,
    /// GB/s through the device, median; a model.
    pub device_gbps: f64,
    /// The second over the first, of the same round; median.
    pub ratio: f64,
}

/// Copies whole slots of `chunk_bytes`, plainly and through a device, turn by turn.
///
/// # Errors
/// If there is no memory, or a copy fails.
pub fn compare_copies(plan: &DevicePlan, chunk_bytes: u64, is_store: bool) -> anyhow::Result<CopiesResult> {
    let num_slots = u32::try_from(plan.round_bytes / chunk_bytes)?;
    let slot_bytes = usize::try_from(chunk_bytes)?;
    let region: Arc<dyn HostMemory> =
        Arc::new(HostRegion::anonymous(&RegionOptions::new(num_slots, slot_bytes))?);
    let mut device = HostDevice::new(HostDeviceOptions::default(), Arc::clone(&region))?;
    let span = device.alloc(plan.round_bytes)?;
    let attached = device.attach(span)?;
    let ops: Vec<CopyOp> = (0..num_slots)
        .map(|nth| CopyOp {
            region: attached,
            device_offset: u64::from(nth) * chunk_bytes,
            // Neither side in order.
            slot: SlotId(nth * 797 % num_slots),
            slot_offset: 0,
            bytes: chunk_bytes,
        })
        .collect();
    let mut plain = vec![1_u8; usize::try_from(plan.round_bytes)?];
    // What was never written is one page of zeros, which is faster to read than any memory.
    device.memory().write(span.address(), &plain)?;
    let class = if is_store { TransferClass::Store } else { TransferClass::Demand };
    let (mut plain_times, mut device_times, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..=plan.rounds {
        let started = Instant::now();
        copy_plainly(&*region, &mut plain, &ops, is_store)?;
        let plain_time = started.elapsed().as_secs_f64();
        let started = Instant::now();
        let after = device.record_fence(device.compute().point())?;
        for ops in ops.chunks(ops.len().div_ceil(4)) {
            device.submit(Transfer::new(class, ops.to_vec(), after)).map_err(|error| error.reason)?;
        }
        device.drain(PATIENCE)?;
        let device_time = started.elapsed().as_secs_f64();
        take_all(&mut device)?;
        if round > 0 {
            plain_times.push(plan.round_bytes as f64 / 1e9 / plain_time);
            device_times.push(plan.round_bytes as f64 / 1e9 / device_time);
            ratios.push(plain_time / device_time);
        }
    }
    let median = |rounds: &[f64]| Spread::of(rounds).map(|spread| spread.median).context("there is a round");
    Ok(CopiesResult {
        chunk_bytes,
        class: if is_store { "store" } else { "load" },
        plain_gbps: median(&plain_times)?,
        device_gbps: median(&device_times)?,
        ratio: median(&ratios)?,
    })
}

fn copy_plainly(
    region: &dyn HostMemory,
    plain: &mut [u8],
    ops: &[CopyOp],
    is_store: bool,
) -> anyhow::Result<()> {
    for (op, bytes) in ops.iter().zip(plain.chunks_exact_mut(region.slot_bytes())) {
        if is_store {
            region.with_write(op.slot, &mut |slot| slot.copy_from_slice(bytes))?;
        } else {
            region.with_read(op.slot, &mut |slot| bytes.copy_from_slice(slot))?;
        }
    }
    Ok(())
}

/// CPU time of the process for a copy of 64 bytes, from submission to the end, in nanoseconds: of all threads.
///
/// # Errors
/// As [`compare_copies`].
pub fn cpu_per_copy(rounds: u16) -> anyhow::Result<f64> {
    const NUM_COPIES: u32 = 65_536;
    let region: Arc<dyn HostMemory> = Arc::new(HostRegion::anonymous(&RegionOptions::new(16, 1 << 20))?);
    let mut device = HostDevice::new(HostDeviceOptions::default(), region)?;
    let attached = {
        let span = device.alloc(1 << 20)?;
        device.attach(span)?
    };
    let op = |nth: u32| {
        let offset = u64::from(nth % 8192 * 128);
        let slot = SlotId(nth / 8192);
        CopyOp { region: attached, device_offset: offset, slot, slot_offset: offset, bytes: 64 }
    };
    let ops: Vec<CopyOp> = (0..NUM_COPIES).map(op).collect();
    let mut times = Vec::new();
    for _ in 0..rounds {
        let after = device.record_fence(device.compute().point())?;
        let transfer = Transfer::new(TransferClass::Store, ops.clone(), after);
        let before = process_time();
        device.submit(transfer).map_err(|error| error.reason)?;
        device.drain(PATIENCE)?;
        times.push(process_time().saturating_sub(before).as_secs_f64() * 1e9 / f64::from(NUM_COPIES));
        take_all(&mut device)?;
    }
    Ok(Spread::of(&times).context("there is a round")?.median)
}

/// Takes the completions; all are good.
fn take_all(device: &mut HostDevice) -> anyhow::Result<()> {
    let mut done = Vec::new();
    device.poll(&mut done);
    ensure!(!done.is_empty(), "nothing has ended");
    done.into_iter().try_for_each(|completion| completion.result.map(|_| ())).context("a copy failed")
}
