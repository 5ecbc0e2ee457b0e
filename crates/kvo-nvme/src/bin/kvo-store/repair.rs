//! `repair`: what can be mended, said or done.

use std::{
    io::{self, Write},
    path::PathBuf,
};

use kvo_nvme::{Contents, Inspection};
use serde::Serialize;

use crate::{
    args::RepairArgs,
    output::{Outcome, Report, counted, show},
    pace::Interrupt,
    store::{is_mendable, look, read_records},
    verify::{BadChunk, check, write_bad},
};

/// What is to be mended, or has been.
#[expect(clippy::struct_excessive_bools, reason = "the fields are those of the JSON")]
#[derive(Debug, Serialize)]
struct RepairReport {
    /// Whether it was done, or only said.
    done: bool,
    /// Whether one of the superblocks is written again from the other one.
    superblock: bool,
    /// Whether a damaged eviction order is forgotten.
    order: bool,
    /// Data files whose headers are written again.
    headers: Vec<PathBuf>,
    /// Slots whose damaged records are emptied.
    damaged_records: Vec<u32>,
    /// Slots that failed and are used again.
    released_slots: Vec<u32>,
    /// Slots that failed and are left as they are.
    quarantined_slots: Vec<u32>,
    /// Chunks that are dropped.
    bad_chunks: Vec<BadChunk>,
    /// Whether every chunk was read.
    verified: bool,
    /// What cannot be mended.
    left: Vec<String>,
}

pub(crate) fn run(args: &RepairArgs, json: bool) -> anyhow::Result<Outcome> {
    let interrupt = Interrupt::on_ctrl_c()?;
    let mut inspection = look(&args.dirs.dirs)?;
    let contents = read_records(&inspection)?;
    let mut report = RepairReport::plan(&inspection, &contents, args.release_quarantined);
    if args.verify {
        let checked = check(&mut inspection, &contents, args.rate, &interrupt)?;
        report.bad_chunks = checked.bad.into_iter().map(|(_, bad)| bad).collect();
        report.verified = checked.num_chunks == contents.chunks.len();
    }
    // Who stops it wants nothing to be done any more.
    if args.yes && !interrupt.is_set() {
        report.carry_out(&mut inspection)?;
        report.done = true;
    }
    show(&report, json)?;
    Ok(match (interrupt.is_set(), report.is_good()) {
        (true, _) => Outcome::Interrupted,
        (false, true) => Outcome::Good,
        (false, false) => Outcome::Damaged,
    })
}

impl RepairReport {
    fn plan(inspection: &Inspection, contents: &Contents, release: bool) -> Self {
        let quarantined = contents.quarantined.clone();
        let (released_slots, quarantined_slots) =
            if release { (quarantined, Vec::new()) } else { (Vec::new(), quarantined) };
        let left = inspection.problems().iter().filter(|problem| !is_mendable(inspection, problem));
        Self {
            done: false,
            superblock: contents.report.superblock_damaged,
            order: contents.report.order_damaged,
            headers: inspection.damaged_headers(),
            damaged_records: contents.damaged.clone(),
            released_slots,
            quarantined_slots,
            bad_chunks: Vec::new(),
            verified: false,
            left: left.map(ToString::to_string).collect(),
        }
    }

    /// Does it, what the rest stands on first.
    fn carry_out(&self, inspection: &mut Inspection) -> anyhow::Result<()> {
        if self.superblock {
            inspection.repair_superblock()?;
        }
        if self.order {
            inspection.forget_order()?;
        }
        if !self.headers.is_empty() {
            inspection.repair_headers()?;
        }
        let bad = self.bad_chunks.iter().map(|bad| bad.chunk.slot);
        let slots = self.damaged_records.iter().chain(&self.released_slots).copied().chain(bad);
        Ok(inspection.clear_records(&slots.collect::<Vec<_>>())?)
    }

    /// Whether no damage was found. A slot that failed is none: the store knows of it.
    fn is_good(&self) -> bool {
        !self.superblock
            && !self.order
            && self.headers.is_empty()
            && self.damaged_records.is_empty()
            && self.bad_chunks.is_empty()
            && self.left.is_empty()
    }

    /// What is done, a line each.
    fn lines(&self) -> Vec<String> {
        let slots = |slots: &[u32], what: &str| {
            (!slots.is_empty()).then(|| format!("{}: {what}", counted(slots.len() as u64, "slot")))
        };
        let headers =
            self.headers.iter().map(|path| format!("{}: the header is written again", path.display()));
        let bad = self.bad_chunks.len();
        [
            self.superblock.then(|| "a superblock is written again from the other one".to_owned()),
            self.order
                .then(|| "the damaged eviction order is forgotten, and made from the records".to_owned()),
            slots(&self.damaged_records, "the damaged records are emptied"),
            slots(&self.released_slots, "they failed, and are used again"),
            (bad > 0).then(|| format!("{} dropped", counted(bad as u64, "bad chunk"))),
        ]
        .into_iter()
        .flatten()
        .chain(headers)
        .collect()
    }
}

impl Report for RepairReport {
    fn write_human(&self, out: &mut dyn Write) -> io::Result<()> {
        write_bad(out, &self.bad_chunks)?;
        let lines = self.lines();
        for line in &lines {
            writeln!(out, "{} {line}", if self.done { "done:" } else { "would be done:" })?;
        }
        for left in &self.left {
            writeln!(out, "cannot be mended: {left}")?;
        }
        if !self.quarantined_slots.is_empty() {
            let slots = counted(self.quarantined_slots.len() as u64, "slot");
            writeln!(out, "{slots} failed and stay unused; --release-quarantined uses them again")?;
        }
        match (lines.is_empty(), self.done) {
            (true, _) => writeln!(out, "there is nothing to be done"),
            (false, true) => Ok(()),
            (false, false) => writeln!(out, "nothing was changed; --yes does it"),
        }
    }
}
