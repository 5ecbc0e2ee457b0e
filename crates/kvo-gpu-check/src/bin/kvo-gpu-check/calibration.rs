//! `calibration`: whether the table that the device measured picks the ways that the matrix found fastest.

use std::sync::Arc;

use kvo_core::{Direction, StableMemory};
use kvo_cpu::{HostRegion, RegionOptions};
use kvo_cuda::{CopyPath, CudaDevice, CudaOptions, PathStats, PathTable, PathUse};
use serde_json::json;

use crate::{
    ground::{Ground, Outcome},
    rows::{self, Row, direction_name, number, path_name, row, text},
};

/// What may be lost before it is said.
const LOSS_MAX: f64 = 0.1;

/// A point of the matrix.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Measured {
    path: CopyPath,
    is_steps: bool,
    bytes: usize,
    direction: Direction,
    bytes_per_s: f64,
}

/// What the table chooses for fragments of one kind, and what the matrix has of it.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Verdict {
    is_steps: bool,
    bytes: usize,
    direction: Direction,
    chosen: CopyPath,
    fastest: CopyPath,
    /// How much slower the chosen way is, as a part of the fastest.
    loss: f64,
}

pub(crate) fn run(ground: &mut Ground) -> anyhow::Result<Outcome> {
    let host: Arc<dyn StableMemory> = Arc::new(HostRegion::anonymous(&RegionOptions::new(2, 1 << 20))?);
    let device = CudaDevice::new(CudaOptions::new(ground.ordinal), host)?;
    let paths = device.stats().paths;
    tell_table(ground, &paths)?;
    let measured: Vec<Measured> = rows::of(&ground.earlier, "matrix").filter_map(measured).collect();
    if measured.is_empty() {
        return Ok(Outcome::Skipped("there is no matrix to compare the table with".to_owned()));
    }
    for verdict in judge(&paths.table, |path| is_used(&paths, path), &measured) {
        ground.tell(&row(json!({
            "scatter": if verdict.is_steps { "steps" } else { "scattered" },
            "fragment_bytes": verdict.bytes,
            "direction": direction_name(verdict.direction),
            "chosen": path_name(verdict.chosen),
            "fastest": path_name(verdict.fastest),
            "loss": verdict.loss,
            "is_off": verdict.loss > LOSS_MAX,
        })))?;
    }
    Ok(Outcome::Done)
}

fn tell_table(ground: &mut Ground, paths: &PathStats) -> anyhow::Result<()> {
    for direction in [Direction::Store, Direction::Load] {
        for path in CopyPath::ALL.into_iter().filter(|path| is_used(paths, *path)) {
            ground.tell(&row(json!({
                "table": format!("{:?}", paths.table.source).to_lowercase(),
                "path": path_name(path),
                "direction": direction_name(direction),
                "lengths_bytes": PathTable::LENGTHS,
                "ns_per_copy": paths.table.nanoseconds[direction as usize][path as usize],
            })))?;
        }
    }
    Ok(())
}

fn is_used(paths: &PathStats, path: CopyPath) -> bool {
    let path_use = match path {
        CopyPath::Memcpy => return true,
        CopyPath::Rows => paths.rows_use,
        CopyPath::Batch => paths.batch_use,
        CopyPath::Kernel => paths.kernel_use,
    };
    path_use == PathUse::On
}

/// A row of the matrix, unless it is of coalesced fragments, which are longer copies and stand there as such.
fn measured(row: &Row) -> Option<Measured> {
    let is_steps = match text(row, "scatter")? {
        "scattered" => false,
        "steps" => true,
        _ => return None,
    };
    let path = CopyPath::ALL.into_iter().find(|path| text(row, "path") == Some(path_name(*path)))?;
    let directions = [Direction::Store, Direction::Load];
    let direction =
        directions.into_iter().find(|one| text(row, "direction") == Some(direction_name(*one)))?;
    let bytes = usize::try_from(row.get("fragment_bytes")?.as_u64()?).ok()?;
    let bytes_per_s = number(row, "bytes_per_s")?;
    Some(Measured { path, is_steps, bytes, direction, bytes_per_s })
}

/// What the table chooses at every place of the matrix, among the ways that are used and were measured there.
fn judge(table: &PathTable, is_used: impl Fn(CopyPath) -> bool, matrix: &[Measured]) -> Vec<Verdict> {
    let mut verdicts: Vec<Verdict> = Vec::new();
    for place in matrix {
        let is_same = |other: &&Measured| {
            (other.is_steps, other.bytes, other.direction) == (place.is_steps, place.bytes, place.direction)
                && is_used(other.path)
        };
        let is_known = |verdict: &Verdict| {
            (verdict.is_steps, verdict.bytes, verdict.direction)
                == (place.is_steps, place.bytes, place.direction)
        };
        let ways = || matrix.iter().filter(is_same);
        let cost = |way: &&Measured| table.cost(way.direction, way.path, way.bytes);
        let chosen = ways().min_by(|one, other| cost(one).total_cmp(&cost(other)));
        let fastest = ways().max_by(|one, other| one.bytes_per_s.total_cmp(&other.bytes_per_s));
        let (Some(chosen), Some(fastest), false) = (chosen, fastest, verdicts.iter().any(is_known)) else {
            continue;
        };
        verdicts.push(Verdict {
            is_steps: place.is_steps,
            bytes: place.bytes,
            direction: place.direction,
            chosen: chosen.path,
            fastest: fastest.path,
            loss: 1.0 - chosen.bytes_per_s / fastest.bytes_per_s,
        });
    }
    verdicts
}

#[cfg(test)]
mod tests {
    use super::*;

    fn point(path: CopyPath, is_steps: bool, bytes_per_s: f64) -> Measured {
        Measured { path, is_steps, bytes: 4096, direction: Direction::Load, bytes_per_s }
    }

    #[test]
    fn what_the_table_loses_against_the_matrix_is_said() {
        // By the published table the kernel is the fastest at 4 KiB, then rows.
        let matrix = [
            point(CopyPath::Memcpy, false, 4.0),
            point(CopyPath::Kernel, false, 3.0),
            point(CopyPath::Rows, true, 8.0),
            point(CopyPath::Kernel, true, 8.0),
        ];
        let verdicts = judge(&PathTable::published(), |_| true, &matrix);
        let [scattered, steps] = verdicts[..] else { panic!("{verdicts:?}") };
        assert_eq!((scattered.chosen, scattered.fastest), (CopyPath::Kernel, CopyPath::Memcpy));
        assert!((scattered.loss - 0.25).abs() < 1e-9);
        assert!(steps.is_steps && steps.loss.abs() < 1e-9);
        // A way that is not used is neither.
        let verdicts = judge(&PathTable::published(), |path| path != CopyPath::Kernel, &matrix);
        assert_eq!(verdicts[0].chosen, CopyPath::Memcpy);
        assert_eq!(verdicts[1].chosen, CopyPath::Rows);
    }

    #[test]
    fn rows_of_the_matrix_are_read_back() {
        let told = row(json!({
            "path": "kernel", "scatter": "scattered", "fragment_bytes": 4096, "direction": "load",
            "bytes_per_s": 3.0,
        }));
        assert_eq!(measured(&told), Some(point(CopyPath::Kernel, false, 3.0)));
        let mut coalesced = told;
        coalesced.insert("scatter".to_owned(), json!("coalesced"));
        assert_eq!(measured(&coalesced), None);
    }
}
