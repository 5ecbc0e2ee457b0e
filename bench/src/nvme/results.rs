//! What a run leaves behind.

use comfy_table::Table;
use serde::Serialize;

use super::{
    AtRest, Bound, MixedResult, NvmeCaseResult, NvmePlan, Point, Range, Ratio, Surroundings, Work,
    points_table,
};
use crate::{micro::Preset, new_table, number_cell};

/// The results of `nvme`, and of the same beside other projects.
#[derive(Clone, Debug, Serialize)]
pub struct NvmeRunResults {
    /// How long it measured.
    pub preset: Preset,
    /// What was the case.
    pub surroundings: Surroundings,
    /// The subject over which the ratios of the others are.
    pub denominator: String,
    /// What the subjects are, and what was left out and why, for whoever reads the figures.
    pub notes: Vec<String>,
    /// Threads of the floor.
    pub floor_threads: u16,
    /// Bytes that each subject moved one way in a round, at most.
    pub bytes_per_round: u64,
    /// Bytes that were compared after reads, and were right.
    pub verified_bytes: u64,
    /// Chunks that were read and not right.
    pub mismatches: u64,
    /// By chunk size, direction and subject.
    pub cases: Vec<NvmeCaseResult>,
    /// Of the rounds of two subjects.
    pub ratios: Vec<Ratio>,
    /// Reads and stores at once, by chunk size.
    pub mixed: Vec<MixedResult>,
    /// A store beside its transfers.
    pub at_rest: Option<AtRest>,
    /// What is asked of the figures.
    pub points: Vec<Point>,
}

impl NvmeRunResults {
    /// Those of a run that is over, without ratios and points.
    pub fn new(
        plan: &NvmePlan,
        surroundings: Surroundings,
        denominator: &str,
        notes: Vec<String>,
        cases: Vec<NvmeCaseResult>,
    ) -> Self {
        let sum = |count: fn(&NvmeCaseResult) -> u64| cases.iter().map(count).sum();
        Self {
            preset: plan.preset,
            surroundings,
            denominator: denominator.to_owned(),
            notes,
            floor_threads: plan.floor_threads,
            bytes_per_round: plan.works.iter().map(Work::round_bytes).max().unwrap_or_default(),
            verified_bytes: sum(|case| case.verified_bytes),
            mismatches: sum(|case| case.mismatches),
            cases,
            ratios: Vec::new(),
            mixed: Vec::new(),
            at_rest: None,
            points: Vec::new(),
        }
    }

    /// Every case beside the denominator of the same rounds.
    pub fn table(&self) -> Table {
        let over = format!("over {}", self.denominator);
        let header =
            ["chunk KiB", "", "", "MB/s min/med/max", &over, "CPU s/GB min/med/max", "by the device %"];
        let mut table = new_table(header);
        for case in &self.cases {
            let is_its = |ratio: &&Ratio| {
                ratio.subject == case.subject
                    && ratio.over == self.denominator
                    && (ratio.direction, ratio.chunk_bytes) == (case.direction, case.chunk_bytes)
            };
            let ratio = self.ratios.iter().find(is_its).map(|ratio| ratio.rate);
            table.add_row([
                number_cell(case.chunk_bytes >> 10),
                case.direction.to_string().into(),
                case.subject.as_str().into(),
                number_cell(shown(Range::of(&case.mb_per_s), 0)),
                number_cell(shown(ratio, 2)),
                number_cell(shown(Range::of(&case.cpu_s_per_gb), 3)),
                number_cell(
                    case.device_percent().map_or_else(String::new, |percent| format!("{percent:.1}")),
                ),
            ]);
        }
        table
    }

    /// Takes in reads and stores at once, and what is asked of them.
    pub fn add_mixed(&mut self, mixed: MixedResult) {
        self.verified_bytes += mixed.verified_bytes;
        self.mismatches += mixed.mismatches;
        if let Some(kept) = mixed.kept() {
            let kib = mixed.chunk_bytes >> 10;
            let point =
                |what: &str, kept: Range, bound| Point::new(format!("{what}, {kib} KiB"), kept.median, bound);
            self.points.extend([
                point("reads under stores over reads alone", kept.reads, Bound::AtLeast(0.8)),
                point("their p99 over that of reads alone", kept.reads_p99, Bound::AtMost(1.5)),
                point("stores under reads over stores alone", kept.stores, Bound::AtLeast(0.05)),
            ]);
            self.mixed.push(mixed);
        }
    }

    /// Reads and stores at once.
    pub fn mixed_table(&self) -> Table {
        let header = ["chunk KiB", "", "alone min/med/max", "both min/med/max", "kept min/med/max"];
        let mut table = new_table(header);
        for mixed in &self.mixed {
            let Some(kept) = mixed.kept() else { continue };
            let rows = [
                ("reads, MB/s", &mixed.reads_alone_mb_per_s, &mixed.reads_mb_per_s, kept.reads),
                ("reads, p99 us", &mixed.reads_alone_p99_us, &mixed.reads_p99_us, kept.reads_p99),
                ("stores, MB/s", &mixed.stores_alone_mb_per_s, &mixed.stores_mb_per_s, kept.stores),
            ];
            for (what, alone, both, kept) in rows {
                table.add_row([
                    number_cell(mixed.chunk_bytes >> 10),
                    what.into(),
                    number_cell(shown(Range::of(alone), 0)),
                    number_cell(shown(Range::of(both), 0)),
                    number_cell(kept.shown(2)),
                ]);
            }
        }
        table
    }

    /// Every ratio of two subjects.
    pub fn ratios_table(&self) -> Table {
        let mut table = new_table(["chunk KiB", "", "", "over", "rate min/med/max", "CPU min/med/max"]);
        for Ratio { subject, over, direction, chunk_bytes, rate, cpu } in &self.ratios {
            table.add_row([
                number_cell(chunk_bytes >> 10),
                direction.to_string().into(),
                subject.as_str().into(),
                over.as_str().into(),
                number_cell(rate.shown(2)),
                number_cell(shown(*cpu, 2)),
            ]);
        }
        table
    }

    /// What is asked, and whether it holds; nothing of a smoke run.
    pub fn points_table(&self) -> Table {
        points_table(&self.points)
    }
}

fn shown(range: Option<Range>, decimals: usize) -> String {
    range.map_or_else(String::new, |range| range.shown(decimals))
}

impl NvmeCaseResult {
    /// Of the bytes that it moved, those that the kernel counted as moved by a device, in percent.
    pub fn device_percent(&self) -> Option<f64> {
        let moved = (self.moved_bytes > 0).then_some(self.moved_bytes)?;
        Some(100.0 * self.device_bytes? as f64 / moved as f64)
    }
}
