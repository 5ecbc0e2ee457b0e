//! Errors as one or two sentences, with what to do.

use std::{
    io::{self, Write, stderr, stdout},
    path::Path,
};

use kvo_nvme::{Damage, FileDamage, INDEX_FILE_NAME, OpenError};
use serde::Serialize;

/// Damage was found.
pub(crate) const DAMAGED: u8 = 1;
/// The command cannot be run as asked.
pub(crate) const USAGE: u8 = 2;
/// The store cannot be opened, or the system fails.
pub(crate) const FAILED: u8 = 3;
/// The store is in use.
pub(crate) const IN_USE: u8 = 4;
/// The user stopped it.
pub(crate) const INTERRUPTED: u8 = 130;

/// Arguments that do not fit together.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct UsageError(pub(crate) String);

/// What went wrong, and what to do about it.
#[derive(Debug, Serialize)]
pub(crate) struct Diagnosis {
    /// One of the words below.
    kind: &'static str,
    message: String,
    advice: Option<&'static str>,
    /// What the program ends with.
    pub(crate) status: u8,
}

#[derive(Serialize)]
struct ErrorReport<'a> {
    error: &'a Diagnosis,
}

impl Diagnosis {
    pub(crate) fn of(error: &anyhow::Error) -> Self {
        let mut message = format!("{error:#}");
        let (kind, status, advice) = if let Some(error) = error.downcast_ref::<OpenError>() {
            if let Some(path) = no_store(error) {
                message = format!("there is no store: {} is missing", path.display());
            }
            of_open(error)
        } else if error.is::<UsageError>() {
            ("usage", USAGE, None)
        } else {
            ("io", FAILED, None)
        };
        Self { kind, message, advice, status }
    }

    /// Shows it: JSON where results would be, else on standard error.
    pub(crate) fn show(&self, json: bool) -> io::Result<()> {
        if json {
            let mut out = stdout().lock();
            serde_json::to_writer_pretty(&mut out, &ErrorReport { error: self })?;
            return writeln!(out);
        }
        let mut out = stderr().lock();
        writeln!(out, "error: {}", self.message)?;
        self.advice.map_or(Ok(()), |advice| writeln!(out, "{advice}"))
    }
}

/// The index that is not there.
fn no_store(error: &OpenError) -> Option<&Path> {
    match error {
        OpenError::Damaged { path, damage: FileDamage::Missing } if path.ends_with(INDEX_FILE_NAME) => {
            Some(path)
        }
        _ => None,
    }
}

type Told = (&'static str, u8, Option<&'static str>);

/// The kind of an error, the status that the program ends with, and what to do.
fn of_open(error: &OpenError) -> Told {
    let failed = |kind, advice| (kind, FAILED, Some(advice));
    if no_store(error).is_some() {
        return failed(
            "no_store",
            "Name the directories of a store, the one with the index first; `kvo-store create` makes one.",
        );
    }
    match error {
        OpenError::Zero { .. }
        | OpenError::TooLarge { .. }
        | OpenError::TooFew { .. }
        | OpenError::ChunkBytes { .. }
        | OpenError::Overflow { .. } => ("usage", USAGE, None),
        OpenError::SameDirectory { .. } => ("usage", USAGE, Some("Name one directory for each device.")),
        OpenError::DirectoryMissing { .. } => failed(
            "missing",
            "No directories are made, so that a disk that is not mounted is noticed: mount it.",
        ),
        OpenError::NotADirectory { .. } => {
            failed("missing", "Name the directory that the store's files are in.")
        }
        OpenError::NotWritable { .. } | OpenError::OtherUser { .. } => failed(
            "not_writable",
            "Run this as the owner of the store's files, and look whether the file system became read-only.",
        ),
        OpenError::NotAFile { .. } => {
            failed("not_a_file", "Something else has the name of a file of a store: move it away.")
        }
        OpenError::Linked { .. } => {
            failed("not_a_file", "Give each file of the store one name: remove the others, or copy the file.")
        }
        OpenError::InUse { .. } => {
            ("in_use", IN_USE, Some("Stop the process that has it open, or look again later."))
        }
        OpenError::Exists { .. } => {
            failed("exists", "It is left as it is; --empty makes a new one in its place.")
        }
        OpenError::Other { field, .. } => failed("other_store", other_advice(field)),
        OpenError::Damaged { damage, .. } => failed("damaged", damage_advice(damage)),
        OpenError::NoRoom { .. } => {
            failed("no_room", "Ask for fewer chunks, make room, or give --shrink to take what there is.")
        }
        OpenError::NotWiped { .. } => failed(
            "not_wiped",
            "All others are, and no chunk is found any more; bytes of chunks may be left in these, so destroy the device \
             or erase it by its own means.",
        ),
        _ => ("io", FAILED, None),
    }
}

fn other_advice(field: &str) -> &'static str {
    match field {
        "format version" => {
            "Another version of kvo made it: use that one, or empty the store with `kvo-store create --empty`."
        }
        "dirs" | "device" | "index file" => {
            "Name all directories of the store, in the order in which it was made; the first has the index."
        }
        "store" => "Files of two stores are mixed here: put the right disks together again.",
        _ => {
            "Open it as what it is (`kvo-store stat` says that), or empty it with `kvo-store create --empty`."
        }
    }
}

fn damage_advice(damage: &FileDamage) -> &'static str {
    match damage {
        FileDamage::Superblocks(Damage::Magic, Damage::Magic) => {
            "It is no file of a store: if it is of no use to anybody, `kvo-store create --empty` puts a store in its \
             place."
        }
        FileDamage::Superblocks(..) => {
            "Nothing is left that says what is where, so its chunks are lost: `kvo-store create --empty` makes a new \
             store in its place."
        }
        FileDamage::Missing => {
            "Is every disk mounted? If the file is gone, so are its chunks: make a new store."
        }
        FileDamage::Length { .. } => {
            "Somebody has cut the file or added to it; if it is a copy, copy it again, else make a new store with \
             `kvo-store create --empty`."
        }
        _ => "`kvo-store create --empty` makes a new store in its place; its chunks are lost.",
    }
}
