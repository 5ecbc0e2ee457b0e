//! `head-of-line`: how long a small load that a request waits for takes, while a long queue of prefetches is under way.

use std::time::Instant;

use kvo_core::{CopyOp, Direction, SlotId, TransferClass};
use kvo_cuda::CopyPath;
use kvo_gpu_check::{BedOptions, TestBed};
use serde_json::json;

use crate::{
    copies::{Rig, Scatter},
    ground::{Ground, Outcome},
    rows::{self, Rounds, path_name, row},
};

/// Bytes of a copy, and of the small load, which is one.
const DEMAND_BYTES: u64 = 256 << 10;
const WINDOWS: [u64; 3] = [8 << 20, 32 << 20, 128 << 20];
/// Transfers in which the prefetches are.
const NUM_PREFETCHES: u64 = 64;

pub(crate) fn run(ground: &mut Ground) -> anyhow::Result<Outcome> {
    let queue_bytes: u64 = ground.pick(1 << 30, 256 << 20, 16 << 20);
    let limit = rows::limit(&ground.earlier, "load");
    let engines = WINDOWS.map(|window_bytes| (CopyPath::Memcpy, window_bytes));
    // A model interprets the kernel, byte by byte.
    let kernel = (!ground.is_model).then_some((CopyPath::Kernel, WINDOWS[1]));
    for (path, window_bytes) in engines.into_iter().chain(kernel) {
        if !ground.has_time() {
            continue;
        }
        let options =
            BedOptions { window_bytes, path: Some(path), inflight_max: 256, ..BedOptions::default() };
        let mut rig = Rig::new(ground, queue_bytes, 4 << 20, options)?;
        if window_bytes == WINDOWS[0] {
            let alone = alone(ground, &mut rig)?;
            tell(ground, "alone", None, &alone, None)?;
        }
        let behind = behind(ground, &mut rig, queue_bytes)?;
        let bound = limit.map(|limit| window_bytes.min(queue_bytes) as f64 / limit);
        let what = format!("behind prefetches, {}", path_name(path));
        tell(ground, &what, Some(window_bytes), &behind, bound)?;
    }
    let options = BedOptions::default();
    let mut rig = Rig::new(ground, queue_bytes, queue_bytes, options)?;
    let fifo = fifo(ground, &mut rig, queue_bytes)?;
    let bound = limit.map(|limit| queue_bytes as f64 / limit);
    tell(ground, "one stream, first come first served", None, &fifo, bound)?;
    Ok(Outcome::Done)
}

/// `at_limit_s`: how long what is in front of the load takes at the link's limit.
fn tell(
    ground: &mut Ground,
    what: &str,
    window_bytes: Option<u64>,
    latency: &Rounds,
    at_limit_s: Option<f64>,
) -> anyhow::Result<()> {
    let mut told = row(json!({
        "what": what,
        "window_bytes": window_bytes,
        "demand_bytes": DEMAND_BYTES,
        "at_limit_s": at_limit_s,
    }));
    if latency.is_empty() {
        told.insert("skipped".to_owned(), json!("the prefetches were over before a load was"));
    } else {
        latency.put(&mut told, "latency_s");
    }
    ground.tell(&told)
}

/// The small load, and what is prefetched, of a rig's memory: no byte in both.
fn parts(rig: &Rig) -> (Vec<CopyOp>, Vec<CopyOp>) {
    let mut demand = rig.ops(Scatter::Scattered, DEMAND_BYTES);
    let prefetches = demand.split_off(1);
    (demand, prefetches)
}

fn alone(ground: &Ground, rig: &mut Rig) -> anyhow::Result<Rounds> {
    let (demand, _) = parts(rig);
    let mut latency = Rounds::default();
    for round in 0..=ground.pick(30, 10, 5) {
        let start = Instant::now();
        let ticket = rig.submit(TransferClass::Demand, demand.clone())?;
        rig.wait_for(ticket)?;
        if round > 0 {
            latency.add(start.elapsed().as_secs_f64());
        }
    }
    Ok(latency)
}

/// The small load, again and again while most of the queue is still in front of the device.
fn behind(ground: &Ground, rig: &mut Rig, queue_bytes: u64) -> anyhow::Result<Rounds> {
    let (demand, prefetches) = parts(rig);
    let per_transfer = usize::try_from(queue_bytes / NUM_PREFETCHES / DEMAND_BYTES)?.max(1);
    let transfers: Vec<&[CopyOp]> = prefetches.chunks(per_transfer).collect();
    let mut latency = Rounds::default();
    for _ in 0..ground.pick(5, 3, 2) {
        for ops in &transfers {
            rig.submit(TransferClass::Prefetch, ops.to_vec())?;
        }
        let mut num_open = transfers.len();
        while num_open > transfers.len() / 4 {
            let start = Instant::now();
            let ticket = rig.submit(TransferClass::Demand, demand.clone())?;
            num_open -= rig.wait_for(ticket)?;
            // With nothing left behind it, it was not in front of anything.
            if num_open > 0 {
                latency.add(start.elapsed().as_secs_f64());
            }
        }
        rig.bed.device().drain(crate::copies::PATIENCE)?;
        rig.take_all()?;
    }
    Ok(latency)
}

/// The small load as one more copy behind the same bytes on one stream: what there is without classes.
fn fifo(ground: &Ground, rig: &mut Rig, queue_bytes: u64) -> anyhow::Result<Rounds> {
    let (memory, address) = (rig.bed.host(), rig.address);
    let engine = rig.bed.engine();
    let [many, few] = [engine.lend(memory.clone(), SlotId(0))?, engine.lend(memory, SlotId(1))?];
    let stream = engine.create_stream()?;
    let part = queue_bytes / NUM_PREFETCHES;
    let mut latency = Rounds::default();
    for round in 0..=ground.pick(5, 3, 2) {
        for nth in 0..NUM_PREFETCHES {
            engine.copy(stream, Direction::Load, address + nth * part, (many, nth * part), part)?;
        }
        let start = Instant::now();
        engine.copy(stream, Direction::Load, address, (few, 0), DEMAND_BYTES)?;
        engine.synchronize(stream)?;
        if round > 0 {
            latency.add(start.elapsed().as_secs_f64());
        }
    }
    engine.give_back()?;
    Ok(latency)
}
