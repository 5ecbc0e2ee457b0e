//! `verify`: every chunk read, and its checksum compared.

use std::{
    io::{self, Write},
    time::Instant,
};

use anyhow::bail;
use kvo_nvme::{ChunkInfo, Contents, Inspection};
use serde::Serialize;

use crate::{
    args::VerifyArgs,
    output::{Outcome, Report, byte_bar, counted, number, show, table},
    pace::{Interrupt, Pace},
    store::{ChunkRow, Damage, damage_of, look, read_records},
    units::{Size, human, human_rate},
};

/// A chunk that is not what was written.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct BadChunk {
    #[serde(flatten)]
    pub(crate) chunk: ChunkRow,
    /// What is wrong with it.
    pub(crate) damage: String,
}

/// What reading all chunks has shown.
#[derive(Debug, Serialize)]
struct VerifyReport {
    num_chunks: usize,
    /// Fewer only if it was interrupted.
    checked_chunks: usize,
    bad_chunks: Vec<BadChunk>,
    read_bytes: u64,
    seconds: f64,
    /// What is wrong besides.
    damage: Vec<Damage>,
}

pub(crate) fn run(args: &VerifyArgs, json: bool) -> anyhow::Result<Outcome> {
    let interrupt = Interrupt::on_ctrl_c()?;
    let mut inspection = look(&args.dirs.dirs)?;
    let contents = read_records(&inspection)?;
    let started = Instant::now();
    let checked = check(&mut inspection, &contents, args.rate, &interrupt)?;
    let report = VerifyReport {
        num_chunks: contents.chunks.len(),
        checked_chunks: checked.num_chunks,
        bad_chunks: checked.bad.iter().map(|(_, bad)| bad.clone()).collect(),
        read_bytes: checked.bytes,
        seconds: started.elapsed().as_secs_f64(),
        damage: damage_of(&inspection, &contents),
    };
    show(&report, json)?;
    Ok(match (interrupt.is_set(), report.bad_chunks.is_empty() && report.damage.is_empty()) {
        (true, _) => Outcome::Interrupted,
        (false, true) => Outcome::Good,
        (false, false) => Outcome::Damaged,
    })
}

/// What was read and compared.
pub(crate) struct Checked {
    pub(crate) num_chunks: usize,
    pub(crate) bytes: u64,
    pub(crate) bad: Vec<(ChunkInfo, BadChunk)>,
}

/// Reads the chunks in the order in which they lie, until all are read or the user has enough.
pub(crate) fn check(
    inspection: &mut Inspection,
    contents: &Contents,
    rate: Option<Size>,
    interrupt: &Interrupt,
) -> anyhow::Result<Checked> {
    if inspection.info().checksum.is_none() {
        bail!("the store keeps no checksums that this program knows, so its chunks cannot be checked");
    }
    let mut chunks = contents.chunks.clone();
    chunks.sort_unstable_by_key(|chunk| chunk.slot);
    let bar = byte_bar(chunks.iter().map(|chunk| u64::from(chunk.length)).sum(), "reads");
    let mut pace = Pace::new(rate.map(|Size(rate)| rate));
    let mut checked = Checked { num_chunks: 0, bytes: 0, bad: Vec::new() };
    for chunk in chunks {
        pace.wait_for(chunk.length.into(), interrupt);
        if interrupt.is_set() {
            break;
        }
        if let Err(damage) = inspection.read_chunk(&chunk) {
            checked.bad.push((chunk, BadChunk { chunk: ChunkRow::of(&chunk), damage: damage.to_string() }));
        }
        checked.num_chunks += 1;
        checked.bytes += u64::from(chunk.length);
        bar.inc(chunk.length.into());
    }
    bar.finish_and_clear();
    Ok(checked)
}

/// Writes bad chunks as a table.
pub(crate) fn write_bad(out: &mut dyn Write, bad: &[BadChunk]) -> io::Result<()> {
    if bad.is_empty() {
        return Ok(());
    }
    let mut table = table(["bad key", "group", "slot", "damage"]);
    for BadChunk { chunk, damage } in bad {
        let row =
            [chunk.key.as_str().into(), number(chunk.group), number(chunk.slot), damage.as_str().into()];
        table.add_row(row);
    }
    writeln!(out, "{table}")
}

impl Report for VerifyReport {
    fn write_human(&self, out: &mut dyn Write) -> io::Result<()> {
        write_bad(out, &self.bad_chunks)?;
        for damage in &self.damage {
            writeln!(out, "damage: {}", damage.message())?;
        }
        let rate = human_rate(self.read_bytes as f64 / self.seconds.max(1e-9));
        writeln!(
            out,
            "{} of {} checked, {} bad; {} at {rate}",
            self.checked_chunks,
            counted(self.num_chunks as u64, "chunk"),
            self.bad_chunks.len(),
            human(self.read_bytes),
        )?;
        if self.bad_chunks.is_empty() {
            return Ok(());
        }
        writeln!(
            out,
            "As a tier the store drops them when they are read; `kvo-store repair --verify` does so now."
        )
    }
}
