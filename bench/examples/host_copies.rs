//! How fast a host device copies, beside plain copies of the same bytes, turn by turn in one run. Model figures: they say
//! what the device adds to a copy, and nothing of any link.
//!
//! ```text
//! cargo run --release -p kvo-bench --example host_copies
//! ```

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context, ensure};
use kvo_core::{CopyOp, DeviceBackend, HostMemory, SlotId, Transfer, TransferClass};
use kvo_cpu::{HostRegion, RegionOptions};
use kvo_cuda::{HostDevice, HostDeviceOptions};

const TOTAL_BYTES: usize = 256 << 20;
const ROUNDS: usize = 21;

fn main() -> anyhow::Result<()> {
    println!("model: a device in host memory; GB/s are the best of {ROUNDS} rounds");
    println!("{:>10} {:>7} {:>10} {:>10} {:>6}", "chunk", "class", "plain", "device", "ratio");
    for chunk_bytes in [64 << 10, 256 << 10, 1 << 20, 4 << 20] {
        for class in [TransferClass::Store, TransferClass::Demand] {
            let [plain, device] = compare(chunk_bytes, class)?;
            let name = if class == TransferClass::Store { "store" } else { "load" };
            println!(
                "{:>6} KiB {name:>7} {plain:>10.2} {device:>10.2} {:>6.2}",
                chunk_bytes >> 10,
                device / plain
            );
        }
    }
    let per_copy = per_copy()?;
    println!("a copy of 64 bytes costs {:.0} ns, owner and lane together", per_copy.as_secs_f64() * 1e9);
    Ok(())
}

/// GB/s of plain copies and of a device, for whole slots of `chunk_bytes`.
fn compare(chunk_bytes: usize, class: TransferClass) -> anyhow::Result<[f64; 2]> {
    let num_slots = u32::try_from(TOTAL_BYTES / chunk_bytes)?;
    let region = HostRegion::anonymous(&RegionOptions::new(num_slots, chunk_bytes))?;
    let region: Arc<dyn HostMemory> = Arc::new(region);
    let mut device = HostDevice::new(HostDeviceOptions::default(), Arc::clone(&region))?;
    let span = device.alloc(TOTAL_BYTES as u64)?;
    let attached = device.attach(span)?;
    let ops: Vec<CopyOp> = (0..num_slots)
        .map(|slot| CopyOp {
            region: attached,
            device_offset: u64::from(slot) * chunk_bytes as u64,
            // Neither side in order.
            slot: SlotId(slot * 7919 % num_slots),
            slot_offset: 0,
            bytes: chunk_bytes as u64,
        })
        .collect();
    let mut plain = vec![1_u8; TOTAL_BYTES];
    // What was never written is one page of zeros, which is faster to read than any memory.
    device.memory().write(span.address(), &plain)?;
    let mut best = [Duration::MAX; 2];
    for _ in 0..=ROUNDS {
        let started = Instant::now();
        copy_plainly(&*region, &mut plain, &ops, class)?;
        best[0] = best[0].min(started.elapsed());
        let started = Instant::now();
        let after = device.record_fence(device.compute().point())?;
        for ops in ops.chunks(ops.len().div_ceil(4)) {
            device.submit(Transfer::new(class, ops.to_vec(), after)).map_err(|error| error.reason)?;
        }
        device.drain(Duration::from_mins(1))?;
        best[1] = best[1].min(started.elapsed());
        let mut done = Vec::new();
        device.poll(&mut done);
        ensure!(done.iter().all(|completion| completion.result.is_ok()), "a copy failed");
    }
    Ok(best.map(|time| TOTAL_BYTES as f64 / 1e9 / time.as_secs_f64()))
}

fn copy_plainly(
    region: &dyn HostMemory,
    plain: &mut [u8],
    ops: &[CopyOp],
    class: TransferClass,
) -> anyhow::Result<()> {
    for op in ops {
        let start = usize::try_from(op.device_offset)?;
        let bytes = &mut plain[start..start + usize::try_from(op.bytes)?];
        match class {
            TransferClass::Store => region.with_write(op.slot, &mut |slot| slot.copy_from_slice(bytes))?,
            _ => region.with_read(op.slot, &mut |slot| bytes.copy_from_slice(slot))?,
        }
    }
    Ok(())
}

/// Time from submission to the end of very small copies, each.
fn per_copy() -> anyhow::Result<Duration> {
    let region: Arc<dyn HostMemory> = Arc::new(HostRegion::anonymous(&RegionOptions::new(16, 1 << 20))?);
    let mut device = HostDevice::new(HostDeviceOptions::default(), region)?;
    let span = device.alloc(1 << 20)?;
    let attached = device.attach(span)?;
    let op = |nth: u32| CopyOp {
        region: attached,
        device_offset: u64::from(nth % 8192 * 128),
        slot: SlotId(nth / 8192 % 16),
        slot_offset: u64::from(nth % 8192 * 128),
        bytes: 64,
    };
    let ops: Vec<CopyOp> = (0..65_536).map(op).collect();
    let mut best = Duration::MAX;
    for _ in 0..ROUNDS {
        let after = device.record_fence(device.compute().point())?;
        let transfer = Transfer::new(TransferClass::Store, ops.clone(), after);
        let started = Instant::now();
        device.submit(transfer).map_err(|error| error.reason)?;
        device.drain(Duration::from_mins(1))?;
        best = best.min(started.elapsed());
        let mut done = Vec::new();
        device.poll(&mut done);
        done.pop().context("no completion")?.result?;
    }
    Ok(best / 65_536)
}
