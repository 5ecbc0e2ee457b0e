//! One chunk size at one depth: interleaved rounds of the store and of plain I/O.

use std::{path::Path, time::Duration};

use anyhow::Context;
use serde::Serialize;

use super::{Direction, NvmePlan, device_bytes::device_bytes, limit::Limit, store::StoreRun};
use crate::Interrupt;

/// What was measured one way.
#[derive(Clone, Debug, Serialize)]
pub struct NvmeCaseResult {
    /// Which way.
    pub direction: Direction,
    /// Bytes a chunk.
    pub chunk_bytes: u32,
    /// Threads, each with one chunk under way.
    pub depth: u16,
    /// The store, round by round, in megabytes a second.
    pub store_mb_per_s: Vec<f64>,
    /// Plain I/O in the same rounds.
    pub limit_mb_per_s: Vec<f64>,
    /// Of the bytes that the store moved, those that the kernel counted as moved by a device, in percent.
    pub device_percent: Option<f64>,
    /// Bytes that were compared after reads, and were right.
    pub verified_bytes: u64,
    /// Chunks that were read and not right.
    pub mismatches: u64,
}

/// Runs the rounds of one case in `dir`, and returns what was written and what was read; without a round where it was
/// interrupted before the first. `progress` is called after every round.
///
/// # Errors
/// If the store or the file system fails.
pub fn run_nvme_case(
    dir: &Path,
    plan: &NvmePlan,
    (chunk_bytes, depth): (u32, u16),
    is_direct: bool,
    interrupt: &Interrupt,
    progress: impl Fn(),
) -> anyhow::Result<[NvmeCaseResult; 2]> {
    let num_chunks = plan.chunks(chunk_bytes);
    let chunk_len = chunk_bytes as usize;
    let (store_dir, limit_dir) = (tempfile::tempdir_in(dir)?, tempfile::tempdir_in(dir)?);
    let mut sides = Sides {
        store: StoreRun::new(store_dir.path(), chunk_len, num_chunks, depth)?,
        limit: Limit::new(limit_dir.path(), chunk_len, num_chunks, depth, is_direct)
            .context("cannot make the file of plain I/O")?,
        round_bytes: u64::from(num_chunks) * u64::from(chunk_bytes),
    };
    let mut results = [Direction::Write, Direction::Read]
        .map(|direction| NvmeCaseResult::empty(direction, chunk_bytes, depth));
    // The first round takes the file's blocks into use, and counts for nothing.
    let mut of_first = results.clone();
    for round in 0..=plan.rounds {
        if interrupt.is_set() {
            break;
        }
        let results = if round == 0 { &mut of_first } else { &mut results };
        for result in results {
            sides.round(result, round % 2 == 0)?;
        }
        progress();
    }
    Ok(results)
}

struct Sides {
    store: StoreRun,
    limit: Limit,
    round_bytes: u64,
}

impl Sides {
    /// One round one way, of both sides.
    fn round(&mut self, result: &mut NvmeCaseResult, limit_first: bool) -> anyhow::Result<()> {
        if limit_first {
            self.limit_round(result)?;
        }
        let before = device_bytes();
        let took = match result.direction {
            Direction::Write => self.store.write()?,
            Direction::Read => self.store.read()?,
        };
        result.add_device_bytes(before, self.round_bytes);
        result.store_mb_per_s.push(self.mb_per_s(took));
        if result.direction == Direction::Read {
            let (right, wrong) = self.store.verify()?;
            result.verified_bytes += right;
            result.mismatches += wrong;
        }
        if limit_first { Ok(()) } else { self.limit_round(result) }
    }

    fn limit_round(&mut self, result: &mut NvmeCaseResult) -> anyhow::Result<()> {
        let took = self
            .limit
            .run(result.direction)
            .with_context(|| format!("the plain {} beside the store failed", result.direction))?;
        result.limit_mb_per_s.push(self.mb_per_s(took));
        Ok(())
    }

    fn mb_per_s(&self, took: Duration) -> f64 {
        // A clock that stood still would make an infinity.
        self.round_bytes as f64 / 1e6 / took.as_secs_f64().max(1e-9)
    }
}

impl NvmeCaseResult {
    fn empty(direction: Direction, chunk_bytes: u32, depth: u16) -> Self {
        Self {
            direction,
            chunk_bytes,
            depth,
            store_mb_per_s: Vec::new(),
            limit_mb_per_s: Vec::new(),
            device_percent: None,
            verified_bytes: 0,
            mismatches: 0,
        }
    }

    /// Takes in what the devices moved since `before`, over the bytes that should have moved.
    fn add_device_bytes(&mut self, before: Option<(u64, u64)>, round_bytes: u64) {
        let (Some((reads_before, writes_before)), Some((reads, writes))) = (before, device_bytes()) else {
            return;
        };
        let moved = match self.direction {
            Direction::Write => writes.saturating_sub(writes_before),
            Direction::Read => reads.saturating_sub(reads_before),
        };
        let percent = 100.0 * moved as f64 / round_bytes as f64;
        let rounds = self.store_mb_per_s.len() as f64;
        self.device_percent = Some((self.device_percent.unwrap_or(0.0) * rounds + percent) / (rounds + 1.0));
    }

    /// The store over plain I/O, round by round.
    pub fn ratios(&self) -> Vec<f64> {
        self.store_mb_per_s.iter().zip(&self.limit_mb_per_s).map(|(store, limit)| store / limit).collect()
    }
}
