//! Reports of `nvme`, and of the same beside other projects.

use serde::Deserialize;

use super::{StoredResults, check_amount, check_rounds};
use crate::nvme::{AtRest, MixedResult, Range, quotients};

/// The store beside plain I/O, or beside other projects.
#[derive(Clone, Debug, Deserialize)]
pub struct NvmeResults {
    /// How long it measured.
    pub preset: String,
    /// What was the case.
    pub surroundings: NvmeSurroundings,
    /// The subject over which the ratios of the others are.
    pub denominator: String,
    /// What the subjects are, and what was left out.
    pub notes: Vec<String>,
    /// Bytes that each subject moved one way in a round.
    pub bytes_per_round: u64,
    /// Bytes that were compared after reads, and were right.
    pub verified_bytes: u64,
    /// Chunks that were read and not right.
    pub mismatches: u64,
    /// By chunk size, direction and subject.
    pub cases: Vec<NvmeCase>,
    /// Of the rounds of two subjects.
    pub ratios: Vec<NvmeRatio>,
    /// Reads and stores at once, by chunk size.
    pub mixed: Vec<MixedResult>,
    /// A store beside its transfers.
    pub at_rest: Option<AtRest>,
    /// What is asked of the figures.
    pub points: Vec<NvmePoint>,
}

/// What was the case around the figures.
#[derive(Clone, Debug, Deserialize)]
pub struct NvmeSurroundings {
    /// The type of the file system.
    pub file_system: Option<String>,
    /// Whether files there can be read and written around the page cache.
    pub is_direct: bool,
    /// The kernel's setting for transparent huge pages.
    pub huge_pages: Option<String>,
    /// Of the host memory, what was on huge pages, in percent.
    pub huge_percent: Option<f64>,
    /// Runnable processes, at the start and at the end.
    pub load_average: [Option<f64>; 2],
}

/// One subject one way at one chunk size.
#[derive(Clone, Debug, Deserialize)]
pub struct NvmeCase {
    /// Whose it is.
    pub subject: String,
    /// `write` or `read`.
    pub direction: String,
    /// Bytes a chunk.
    pub chunk_bytes: u64,
    /// Megabytes a second, round by round.
    pub mb_per_s: Vec<f64>,
    /// Seconds of a core a gigabyte, in the same rounds.
    pub cpu_s_per_gb: Vec<f64>,
    /// Bytes that the kernel counted as moved by devices; unknown on some systems.
    pub device_bytes: Option<u64>,
    /// Bytes of chunks that were moved.
    pub moved_bytes: u64,
}

/// One subject over another, round by round, one way at one chunk size.
#[derive(Clone, Debug, Deserialize)]
pub struct NvmeRatio {
    /// Whose figures,
    pub subject: String,
    /// and over whose.
    pub over: String,
    /// `write` or `read`.
    pub direction: String,
    /// Bytes a chunk.
    pub chunk_bytes: u64,
    /// Of the rates.
    pub rate: Range,
    /// Of the CPU time a byte.
    pub cpu: Option<Range>,
}

/// A figure with its bound.
#[derive(Clone, Debug, Deserialize)]
pub struct NvmePoint {
    /// What it is of.
    pub what: String,
    /// The figure.
    pub value: f64,
    /// The bound.
    pub bound: NvmeBound,
    /// Whether it keeps to the bound.
    pub met: bool,
}

/// A bound of a figure.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum NvmeBound {
    /// The figure is to be at least this.
    AtLeast(f64),
    /// The figure is to be at most this.
    AtMost(f64),
}

impl NvmeResults {
    /// The rates of a case over those of the denominator, round by round.
    pub fn over_denominator(&self, case: &NvmeCase) -> Vec<f64> {
        let is_floor = |other: &&NvmeCase| {
            other.subject == self.denominator
                && other.direction == case.direction
                && other.chunk_bytes == case.chunk_bytes
        };
        self.cases
            .iter()
            .find(is_floor)
            .map_or_else(Vec::new, |floor| quotients(&case.mb_per_s, &floor.mb_per_s))
    }
}

impl NvmeCase {
    /// Of the bytes that it moved, those that the kernel counted as moved by a device, in percent.
    pub fn device_percent(&self) -> Option<f64> {
        let moved = (self.moved_bytes > 0).then_some(self.moved_bytes)?;
        Some(100.0 * self.device_bytes? as f64 / moved as f64)
    }
}

impl StoredResults for NvmeResults {
    const COMMANDS: &'static [&'static str] = &["nvme", "compare-nvme"];

    fn check(&self) -> Result<(), String> {
        let loads = self.surroundings.load_average.iter().flatten();
        for amount in loads.chain(&self.surroundings.huge_percent) {
            check_amount("surroundings", *amount)?;
        }
        for (at, case) in self.cases.iter().enumerate() {
            let field = format!("cases[{at}]");
            check_rounds(&format!("{field}.mb_per_s"), &case.mb_per_s)?;
            check_rounds(&format!("{field}.cpu_s_per_gb"), &case.cpu_s_per_gb)?;
            if case.cpu_s_per_gb.len() != case.mb_per_s.len() {
                return Err(format!("{field}.cpu_s_per_gb: has not as many rounds as mb_per_s"));
            }
            let of_one = |other: &&NvmeCase| {
                (&other.direction, other.chunk_bytes) == (&case.direction, case.chunk_bytes)
            };
            if self.cases.iter().filter(of_one).any(|other| other.mb_per_s.len() != case.mb_per_s.len()) {
                return Err(format!("{field}.mb_per_s: has not as many rounds as other subjects"));
            }
            if case.subject == self.denominator && case.mb_per_s.contains(&0.0) {
                return Err(format!("{field}.mb_per_s: a round of 0 cannot be"));
            }
        }
        for (at, ratio) in self.ratios.iter().enumerate() {
            for range in [Some(ratio.rate), ratio.cpu].into_iter().flatten() {
                check_rounds(&format!("ratios[{at}]"), &[range.min, range.median, range.max])?;
            }
        }
        for (at, mixed) in self.mixed.iter().enumerate() {
            let rounds = mixed.rounds();
            for (name, of_name) in rounds {
                check_rounds(&format!("mixed[{at}].{name}"), of_name)?;
                if of_name.len() != rounds[0].1.len() {
                    return Err(format!("mixed[{at}].{name}: has not as many rounds as the others"));
                }
            }
        }
        if let Some(many) = self.at_rest.as_ref().and_then(|at_rest| at_rest.many.as_ref()) {
            for amount in
                many.hit_ns.iter().chain(&many.miss_ns).chain([&many.make_seconds, &many.open_seconds])
            {
                check_amount("at_rest.many", *amount)?;
            }
        }
        for (at, point) in self.points.iter().enumerate() {
            check_amount(&format!("points[{at}].value"), point.value)?;
        }
        Ok(())
    }
}
