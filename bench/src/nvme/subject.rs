//! What is measured.

use std::fmt;

use serde::Serialize;

use super::{Checked, Cost};

/// Which way the bytes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Direction {
    /// Into the files.
    Write,
    /// Out of them.
    Read,
}

impl Direction {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Write, Self::Read];
}

impl fmt::Display for Direction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Write => "write",
            Self::Read => "read",
        })
    }
}

/// Something that can write and read all chunks of a round.
///
/// A round of it is [`open`](Self::open), then each direction once, then [`close`](Self::close). A direction is three
/// calls: [`prepare`](Self::prepare), [`run`](Self::run), and after a read [`check`](Self::check). Only `run` is timed.
/// Between its rounds others run, which leave other bytes in the host memory, and perhaps in the same [`SlotFile`].
///
/// [`SlotFile`]: super::SlotFile
pub trait Subject {
    /// Its name in tables and reports, the same for every chunk size.
    fn name(&self) -> &str;

    /// A round begins.
    ///
    /// # Errors
    /// If its files cannot be opened.
    fn open(&mut self) -> anyhow::Result<()> {
        Ok(())
    }

    /// Makes ready: for a write, fresh bytes under fresh keys in the host memory; for a read, none of what will be read.
    ///
    /// # Errors
    /// If the host memory or the file system fails.
    fn prepare(&mut self, direction: Direction) -> anyhow::Result<()>;

    /// Moves every chunk once: those that were prepared, or those of the last write. What is written is on its way to the
    /// device when this returns.
    ///
    /// # Errors
    /// If a chunk did not arrive.
    fn run(&mut self, direction: Direction) -> anyhow::Result<Cost>;

    /// Compares what the last read brought; none if this subject's bytes cannot be seen.
    ///
    /// # Errors
    /// If the host memory fails.
    fn check(&mut self) -> anyhow::Result<Option<Checked>>;

    /// The round is over.
    ///
    /// # Errors
    /// If it does not end as it should.
    fn close(&mut self) -> anyhow::Result<()> {
        Ok(())
    }
}
