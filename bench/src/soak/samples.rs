//! Memory and counts as time goes on.

use std::{fs, time::Duration};

use kvo_nvme::StoreStats;
use serde::Serialize;

use super::Ledger;
use crate::{micro::resident_bytes, nvme::open_files};

/// Growth of the memory that is no growth: pages that the allocator keeps, statistics of the kernel.
const GROWTH_BYTES_MAX: u64 = 8 << 20;

/// Samples from which on growth can be told.
const SAMPLES_MIN: usize = 8;

/// What is the case at one time.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SoakSample {
    /// Since the store was full.
    pub seconds: f64,
    /// Chunks that were loaded so far.
    pub chunks_loaded: u64,
    /// Chunks that were offered so far.
    pub chunks_offered: u64,
    /// Chunks that were evicted so far.
    pub chunks_evicted: u64,
    /// Memory of the process.
    pub resident_bytes: u64,
    /// Open files of the process.
    pub open_files: Option<usize>,
    /// Its threads.
    pub threads: Option<u64>,
    /// Whether the slots of the store add up.
    pub counts_add_up: bool,
}

impl SoakSample {
    pub(super) fn take(elapsed: Duration, stats: &StoreStats, ledger: &Ledger) -> anyhow::Result<Self> {
        Ok(Self {
            seconds: elapsed.as_secs_f64(),
            chunks_loaded: ledger.chunks_loaded,
            chunks_offered: ledger.chunks_offered,
            chunks_evicted: stats.chunks_evicted,
            resident_bytes: resident_bytes()?,
            open_files: open_files(),
            threads: threads(),
            counts_add_up: stats.counts.add_up(),
        })
    }
}

fn threads() -> Option<u64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    status.lines().find_map(|line| line.strip_prefix("Threads:")?.trim().parse().ok())
}

/// What the memory grew by in the second half of a run: from the middle of its first part to that of its last. None if
/// there are too few samples to tell.
pub fn resident_growth(samples: &[SoakSample]) -> Option<i64> {
    if samples.len() < SAMPLES_MIN {
        return None;
    }
    let (third, fourth) = samples[samples.len() / 2..].split_at(samples.len() / 4);
    let median = |part: &[SoakSample]| {
        let mut bytes: Vec<_> = part.iter().map(|sample| sample.resident_bytes).collect();
        bytes.sort_unstable();
        i64::try_from(bytes[bytes.len() / 2]).unwrap_or(i64::MAX)
    };
    Some(median(fourth) - median(third))
}

/// What is not as it should be over time.
pub(super) fn problems(samples: &[SoakSample]) -> Vec<String> {
    let mut problems = Vec::new();
    if let Some(sample) = samples.iter().find(|sample| !sample.counts_add_up) {
        problems.push(format!("the slots did not add up after {:.1} s", sample.seconds));
    }
    if let Some(growth) = resident_growth(samples).and_then(|growth| u64::try_from(growth).ok())
        && growth > GROWTH_BYTES_MAX
    {
        problems.push(format!("the memory grew by {growth} bytes in the second half"));
    }
    for (what, count) in [
        ("open files", (|sample| sample.open_files.map(|files| files as u64)) as fn(&SoakSample) -> _),
        ("threads", |sample| sample.threads),
    ] {
        let (first, last) = (samples.first().and_then(count), samples.last().and_then(count));
        if let (Some(first), Some(last)) = (first, last)
            && last > first
        {
            problems.push(format!("{what}: {first} became {last}"));
        }
    }
    problems
}
