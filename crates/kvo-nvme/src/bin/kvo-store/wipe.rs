//! `wipe`: a store that holds nothing, in its records and in its bytes.

use std::io::{self, Write};

use serde::Serialize;

use crate::{
    args::WipeArgs,
    output::{Outcome, Report, byte_bar, counted, show},
    pace::Interrupt,
    store::{look, read_records},
    units::human,
};

/// What is to be wiped, or has been.
#[derive(Debug, Serialize)]
struct WipeReport {
    /// Whether all of it was done, or only said.
    done: bool,
    /// Chunks that there were.
    num_chunks: usize,
    /// Bytes of slots, all of which are overwritten.
    bytes: u64,
}

pub(crate) fn run(args: &WipeArgs, json: bool) -> anyhow::Result<Outcome> {
    let interrupt = Interrupt::on_ctrl_c()?;
    let mut inspection = look(&args.dirs.dirs)?;
    let num_chunks = read_records(&inspection)?.chunks.len();
    let info = inspection.info();
    let bytes = u64::from(info.capacity_chunks) * info.stride_bytes;
    let mut done = false;
    if args.yes && !interrupt.is_set() {
        let bar = byte_bar(bytes, "overwrites every slot");
        done = inspection.wipe(&mut |bytes| {
            bar.inc(bytes);
            !interrupt.is_set()
        })?;
        bar.finish_and_clear();
    }
    show(&WipeReport { done, num_chunks, bytes }, json)?;
    Ok(if interrupt.is_set() { Outcome::Interrupted } else { Outcome::Good })
}

impl Report for WipeReport {
    fn write_human(&self, out: &mut dyn Write) -> io::Result<()> {
        let Self { done, num_chunks, bytes } = self;
        let chunks = counted(*num_chunks as u64, "chunk");
        if *done {
            return writeln!(out, "dropped {chunks}, and overwrote {}", human(*bytes));
        }
        writeln!(out, "would be done: {chunks} dropped, {} overwritten", human(*bytes))?;
        writeln!(out, "not done; --yes does it")
    }
}
