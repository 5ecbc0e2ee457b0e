//! Reports of `nvme`.

use serde::Deserialize;

use super::{StoredResults, check_amount, check_rounds};

/// The store beside plain I/O.
#[derive(Clone, Debug, Deserialize)]
pub struct NvmeResults {
    /// How long it measured.
    pub preset: String,
    /// The file system of the directory.
    pub file_system: Option<String>,
    /// Whether the plain I/O beside it went around the page cache.
    pub limit_is_direct: bool,
    /// Bytes that a round moves each way.
    pub bytes_per_round: u64,
    /// Bytes that were compared after reads, and were right.
    pub verified_bytes: u64,
    /// Chunks that were read and not right.
    pub mismatches: u64,
    /// By chunk size, depth and direction.
    pub cases: Vec<NvmeCase>,
}

/// One way at one chunk size and depth.
#[derive(Clone, Debug, Deserialize)]
pub struct NvmeCase {
    /// `write` or `read`.
    pub direction: String,
    /// Bytes a chunk.
    pub chunk_bytes: u64,
    /// Chunks under way at a time.
    pub depth: u64,
    /// The store, round by round, in megabytes a second.
    pub store_mb_per_s: Vec<f64>,
    /// Plain I/O in the same rounds.
    pub limit_mb_per_s: Vec<f64>,
    /// Of the bytes that the store moved, those that the device moved, in percent; unknown on some systems.
    pub device_percent: Option<f64>,
}

impl NvmeCase {
    /// The store over the limit, round by round.
    pub fn ratios(&self) -> Vec<f64> {
        let pairs = self.store_mb_per_s.iter().zip(&self.limit_mb_per_s);
        pairs.filter(|(_, limit)| **limit > 0.0).map(|(store, limit)| store / limit).collect()
    }
}

impl StoredResults for NvmeResults {
    const COMMANDS: &'static [&'static str] = &["nvme"];

    fn check(&self) -> Result<(), String> {
        for (at, case) in self.cases.iter().enumerate() {
            let field = format!("cases[{at}]");
            check_rounds(&format!("{field}.store_mb_per_s"), &case.store_mb_per_s)?;
            check_rounds(&format!("{field}.limit_mb_per_s"), &case.limit_mb_per_s)?;
            check_amount(&format!("{field}.device_percent"), case.device_percent.unwrap_or_default())?;
            if case.store_mb_per_s.len() != case.limit_mb_per_s.len() {
                return Err(format!("{field}.limit_mb_per_s: has not as many rounds as the store"));
            }
            if case.limit_mb_per_s.contains(&0.0) {
                return Err(format!("{field}.limit_mb_per_s: a round of 0 cannot be"));
            }
        }
        Ok(())
    }
}
