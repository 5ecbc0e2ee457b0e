//! `overlap`: what copies cost compute, and compute copies, when both run at once.

use std::time::{Duration, Instant};

use anyhow::ensure;
use kvo_core::{CopyOp, Direction, StreamHandle};
use kvo_cuda::CopyPath;
use kvo_gpu_check::{BedOptions, TestBed};
use serde_json::json;

use crate::{
    copies::{PATIENCE, Rig, Scatter, class_of},
    ground::{Ground, Outcome},
    rows::{direction_name, path_name, row},
};

const TRANSFERS_MAX: usize = 4096;
/// Copies that are worth a launch of the kernel.
const KERNEL_COPIES: u64 = 16;

/// What keeps the device busy.
#[derive(Clone, Copy, Debug)]
enum Compute {
    /// Arithmetic on every multiprocessor, without memory.
    Spin { ctas: u32, rounds: u64 },
    /// Writes to the device's memory, as fast as it goes.
    Fill { address: u64, bytes: u64 },
}

/// So many launches of it.
#[derive(Clone, Copy, Debug)]
struct Load {
    compute: Compute,
    launches: u32,
}

impl Compute {
    fn name(self) -> &'static str {
        match self {
            Self::Spin { .. } => "arithmetic",
            Self::Fill { .. } => "memory",
        }
    }

    fn launch(self, rig: &mut Rig, stream: StreamHandle) -> anyhow::Result<()> {
        match self {
            Self::Spin { ctas, rounds } => {
                let engine = rig.bed.engine();
                engine.spin(engine.stream_of(stream.raw()), ctas, rounds)?;
            }
            Self::Fill { address, bytes } => rig.bed.fill(stream, address, bytes, 1),
        }
        Ok(())
    }
}

pub(crate) fn run(ground: &mut Ground) -> anyhow::Result<Outcome> {
    for path in [CopyPath::Memcpy, CopyPath::Kernel] {
        beside(ground, path)?;
    }
    Ok(Outcome::Done)
}

/// Copies on one way beside each kind of compute, both directions.
fn beside(ground: &mut Ground, path: CopyPath) -> anyhow::Result<()> {
    let bytes = ground.pick(64 << 10, 64 << 10, 4 << 10);
    // Transfers go round: those that the window has at a time are of different slots.
    let transfer: u64 = ground.pick(8 << 20, 4 << 20, KERNEL_COPIES * bytes);
    let (total, window_bytes) = (8 * transfer, 4 * transfer);
    let options =
        BedOptions { inflight_max: TRANSFERS_MAX, window_bytes, path: Some(path), ..BedOptions::default() };
    let mut rig = Rig::new(ground, total, transfer, options)?.with_transfers(transfer);
    if let Some(why) = rig.why_not(path) {
        return ground.tell(&row(json!({"path": path_name(path), "skipped": why})));
    }
    let ctas = ground.pick(1024, 1024, 1);
    let fill_bytes = ground.pick(1 << 30, 256 << 20, 16 << 10);
    let fill = rig.bed.allocate(fill_bytes);
    let spin = Compute::Spin { ctas, rounds: ground.pick(20_000, 20_000, 10) };
    for compute in [spin, Compute::Fill { address: fill.address(), bytes: fill_bytes }] {
        let load = sized(ground, &mut rig, compute)?;
        for direction in [Direction::Store, Direction::Load] {
            if ground.has_time() {
                point(ground, &mut rig, path, load, direction, bytes)?;
            }
        }
    }
    Ok(())
}

/// As many launches as take a while.
fn sized(ground: &Ground, rig: &mut Rig, compute: Compute) -> anyhow::Result<Load> {
    let wanted = ground.pick(Duration::from_millis(200), Duration::from_millis(50), Duration::from_millis(5));
    let mut load = Load { compute, launches: 1 };
    while load.launches < 100_000 {
        let took = alone(rig, load)?;
        if took * 10 >= wanted * 9 {
            break;
        }
        // The first launches take longer than later ones: no more than sixteen times as many at once.
        let factor = times(wanted * 100, took).clamp(110, 1600);
        load.launches = (load.launches * factor).div_ceil(100);
    }
    Ok(load)
}

/// How many of `part` come to `all`.
fn times(all: Duration, part: Duration) -> u32 {
    u32::try_from(all.as_nanos().div_ceil(part.as_nanos().max(1))).unwrap_or(u32::MAX)
}

/// How long the compute takes on its own.
fn alone(rig: &mut Rig, load: Load) -> anyhow::Result<Duration> {
    let (start, stream) = (Instant::now(), rig.stream);
    (0..load.launches).try_for_each(|_| load.compute.launch(rig, stream))?;
    // Not by the bed, which also fetches the counts of its checks.
    let engine = rig.bed.engine();
    engine.synchronize(engine.stream_of(stream.raw()))?;
    Ok(start.elapsed())
}

fn point(
    ground: &mut Ground,
    rig: &mut Rig,
    path: CopyPath,
    load: Load,
    direction: Direction,
    bytes: u64,
) -> anyhow::Result<()> {
    let ops = rig.ops(Scatter::Scattered, bytes);
    let transfers = rig.transfers(&ops)?;
    let transfer: u64 = transfers[0].iter().map(|op| op.bytes).sum();
    rig.copy(direction, &ops)?;
    let compute_alone = alone(rig, load)?.min(alone(rig, load)?);
    // Twice as long as the compute, so that there are copies beside all of it.
    let once = rig.copy(direction, &ops)?.min(rig.copy(direction, &ops)?) / u32::try_from(transfers.len())?;
    let times = times(2 * compute_alone, once).clamp(16, 4000) as usize;
    let copies_alone = {
        let start = Instant::now();
        submit(rig, direction, &transfers, times)?;
        rig.bed.device().drain(PATIENCE)?;
        rig.take_all()?;
        (transfer * times as u64) as f64 / start.elapsed().as_secs_f64()
    };
    submit(rig, direction, &transfers, times)?;
    // What has ended by now was not beside any compute.
    let before = rig.take_all()?.len();
    let start = Instant::now();
    let compute_both = alone(rig, load)?;
    let (beside, took) = (rig.take_all()?.len(), start.elapsed());
    rig.bed.device().drain(PATIENCE)?;
    let after = rig.take_all()?.len();
    ensure!(before + beside + after == times, "{before}, {beside} and {after} of {times} transfers ended");
    let copies_both = (transfer * beside as u64) as f64 / took.as_secs_f64();
    ground.tell(&row(json!({
        "path": path_name(path),
        "compute": load.compute.name(),
        "direction": direction_name(direction),
        "fragment_bytes": bytes,
        "compute_alone_s": compute_alone.as_secs_f64(),
        "compute_beside_copies_s": compute_both.as_secs_f64(),
        "compute_slowdown": compute_both.as_secs_f64() / compute_alone.as_secs_f64() - 1.0,
        "copies_alone_bytes_per_s": copies_alone,
        "copies_beside_compute_bytes_per_s": copies_both,
        // Without copies that ended meanwhile there is no factor.
        "copies_slowdown": (beside > 0).then(|| copies_alone / copies_both - 1.0),
        // All of the compute had copies beside it.
        "is_beside_all": after > 0,
    })))
}

/// So many transfers, round after round.
fn submit(
    rig: &mut Rig,
    direction: Direction,
    transfers: &[Vec<CopyOp>],
    times: usize,
) -> anyhow::Result<()> {
    let after = rig.fence()?;
    let round = transfers.iter().cycle().take(times);
    for ops in round {
        rig.submit_after(class_of(direction), ops.clone(), after)?;
    }
    Ok(())
}
