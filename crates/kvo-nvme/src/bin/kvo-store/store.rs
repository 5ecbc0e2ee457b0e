//! What the commands share: a store that is looked into, and what is found wrong with it.

use std::path::PathBuf;

use anyhow::Context;
use kvo_nvme::{ChunkInfo, Contents, FileDamage, INDEX_FILE_NAME, Inspection, OpenError};
use serde::Serialize;

/// Looks into a store.
///
/// # Errors
/// If it is in use, or nothing can be said of what is in it: it is another one, its files are of several stores, or its
/// index is gone or cut.
pub(crate) fn look(dirs: &[PathBuf]) -> anyhow::Result<Inspection> {
    let inspection = Inspection::open(dirs)?;
    if !inspection.problems().iter().any(is_fatal) {
        return Ok(inspection);
    }
    let fatal = inspection.into_problems().into_iter().find(is_fatal);
    Err(fatal.context("the store cannot be read")?.into())
}

fn is_fatal(problem: &OpenError) -> bool {
    match problem {
        OpenError::Damaged { path, .. } => path.ends_with(INDEX_FILE_NAME),
        _ => true,
    }
}

/// Reads the records of a store.
pub(crate) fn read_records(inspection: &Inspection) -> anyhow::Result<Contents> {
    inspection.read_records().context("cannot read the index")
}

/// Something that is wrong with a store.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Damage {
    /// `superblock`, `order`, `records` or `file`.
    what: &'static str,
    message: String,
}

/// What is wrong with a store, without reading its chunks.
pub(crate) fn damage_of(inspection: &Inspection, contents: &Contents) -> Vec<Damage> {
    let mut found = Vec::new();
    let mut push = |what, message| found.push(Damage { what, message });
    if contents.report.superblock_damaged {
        for (block, name) in inspection.superblocks().iter().zip(["first", "second"]) {
            if let Err(damage) = block {
                push("superblock", format!("the {name} superblock: {damage}"));
            }
        }
    }
    if contents.report.order_damaged {
        push("order", "the eviction order: wrong checksum".to_owned());
    }
    match contents.damaged.len() {
        0 => {}
        1 => push("records", format!("the record of slot {}", contents.damaged[0])),
        count => push("records", format!("{count} records, the first of slot {}", contents.damaged[0])),
    }
    for problem in inspection.problems() {
        push("file", problem.to_string());
    }
    found
}

impl Damage {
    pub(crate) fn message(&self) -> &str {
        &self.message
    }
}

/// Whether a problem can be mended by writing something again.
pub(crate) fn is_mendable(inspection: &Inspection, problem: &OpenError) -> bool {
    match problem {
        OpenError::Damaged { path, damage: FileDamage::Header(_) } => {
            inspection.damaged_headers().contains(path)
        }
        _ => false,
    }
}

/// A chunk as it is shown.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct ChunkRow {
    pub(crate) slot: u32,
    /// The prefix hash, 64 hexadecimal digits.
    pub(crate) key: String,
    pub(crate) group: u32,
    pub(crate) length: u32,
    pub(crate) generation: u64,
    pub(crate) end_token: Option<u32>,
}

impl ChunkRow {
    pub(crate) fn of(chunk: &ChunkInfo) -> Self {
        Self {
            slot: chunk.slot,
            key: chunk.key.hash().to_string(),
            group: chunk.key.group().0,
            length: chunk.length,
            generation: chunk.generation,
            end_token: chunk.end_token,
        }
    }
}
