//! `matrix`: how fast fragments of each length are, on each way, scattered and not, to and from the device.

use kvo_core::Direction;
use kvo_cuda::CopyPath;
use kvo_gpu_check::BedOptions;
use serde_json::json;

use crate::{
    copies::{Rig, Scatter},
    ground::{Ground, Outcome},
    rows::{Rounds, direction_name, path_name, row},
};

/// Bytes of a slot, which no copy crosses.
const SLOT_BYTES: u64 = 4 << 20;
/// Copies that are worth a launch of the kernel, and bytes that one has at most here.
const KERNEL_COPIES: u64 = 16;
const LAUNCH_BYTES: u64 = 32 << 20;

/// One place of the matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Point {
    path: CopyPath,
    scatter: Scatter,
    bytes: u64,
    direction: Direction,
}

pub(crate) fn run(ground: &mut Ground) -> anyhow::Result<Outcome> {
    for path in [CopyPath::Memcpy, CopyPath::Rows, CopyPath::Kernel] {
        measure(ground, path)?;
    }
    Ok(Outcome::Done)
}

/// All points of a way; a row each.
pub(crate) fn measure(ground: &mut Ground, path: CopyPath) -> anyhow::Result<()> {
    let total = total(ground, path);
    let options = BedOptions { path: Some(path), ..BedOptions::default() };
    // The kernel is taken for sixteen copies that are put on the queue at once, whatever their length.
    let mut rig = if path == CopyPath::Kernel {
        let options = BedOptions { quantum_bytes: LAUNCH_BYTES, window_bytes: 2 * LAUNCH_BYTES, ..options };
        Rig::new(ground, total, SLOT_BYTES.min(total), options)?.with_transfers(LAUNCH_BYTES.min(total))
    } else {
        Rig::new(ground, total, SLOT_BYTES.min(total), options)?
    };
    if let Some(why) = rig.why_not(path) {
        return ground.tell(&row(json!({"path": path_name(path), "skipped": why})));
    }
    for bytes in lengths(ground) {
        for scatter in Scatter::ALL.into_iter().filter(|scatter| is_taken(path, *scatter, bytes, total)) {
            for direction in [Direction::Store, Direction::Load] {
                if ground.has_time() {
                    point(ground, &mut rig, Point { path, scatter, bytes, direction })?;
                }
            }
        }
    }
    Ok(())
}

/// Bytes that a point copies. A model interprets the kernel, byte by byte.
fn total(ground: &Ground, path: CopyPath) -> u64 {
    ground.pick(256 << 20, 64 << 20, if path == CopyPath::Kernel { 256 << 10 } else { 8 << 20 })
}

fn lengths(ground: &Ground) -> Vec<u64> {
    let step = ground.pick(1, 2, 4);
    (12..=21).step_by(step).map(|power| 1 << power).collect()
}

/// Whether the device takes this way for such fragments.
fn is_taken(path: CopyPath, scatter: Scatter, bytes: u64, total: u64) -> bool {
    match path {
        CopyPath::Memcpy | CopyPath::Batch => bytes * 4 <= total,
        CopyPath::Rows => scatter == Scatter::Steps && bytes * 4 <= total,
        CopyPath::Kernel if scatter == Scatter::Coalesced => {
            (16 * bytes).min(SLOT_BYTES) * KERNEL_COPIES <= total.min(LAUNCH_BYTES)
        }
        CopyPath::Kernel => bytes * KERNEL_COPIES <= total.min(LAUNCH_BYTES),
    }
}

fn point(ground: &mut Ground, rig: &mut Rig, point: Point) -> anyhow::Result<()> {
    let Point { path, scatter, bytes, direction } = point;
    let ops = rig.ops(scatter, bytes);
    let num_rounds = ground.pick(5, 3, 1);
    let total: u64 = ops.iter().map(|op| op.bytes).sum();
    let mut rounds = Rounds::default();
    let before = rig.count(path);
    for round in 0..=num_rounds {
        let took = rig.copy(direction, &ops)?;
        // The first one brings pages and lists that the others find.
        if round > 0 {
            rounds.add(total as f64 / took.as_secs_f64());
        }
    }
    let after = rig.count(path);
    let mut told = row(json!({
        "path": path_name(path),
        "scatter": scatter.name(),
        "fragment_bytes": bytes,
        "copy_bytes": ops[0].bytes,
        "copies": ops.len(),
        "direction": direction_name(direction),
        "calls": (after.calls - before.calls) / (num_rounds + 1),
    }));
    rounds.put(&mut told, "bytes_per_s");
    if after.copies == before.copies {
        told.insert("failure".to_owned(), json!("no copy went this way"));
    }
    ground.tell(&told)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_way_is_measured_where_the_device_takes_it() {
        let total = 256 << 20;
        assert!(is_taken(CopyPath::Memcpy, Scatter::Coalesced, 2 << 20, total));
        assert!(is_taken(CopyPath::Kernel, Scatter::Scattered, 2 << 20, total));
        assert!(!is_taken(CopyPath::Kernel, Scatter::Coalesced, 2 << 20, total), "eight to a launch");
        assert!(!is_taken(CopyPath::Kernel, Scatter::Scattered, 64 << 10, 256 << 10));
        assert!(is_taken(CopyPath::Rows, Scatter::Steps, 4 << 10, total));
        assert!(!is_taken(CopyPath::Rows, Scatter::Scattered, 4 << 10, total));
    }
}
