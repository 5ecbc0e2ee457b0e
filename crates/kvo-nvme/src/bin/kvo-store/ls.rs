//! `ls`: the chunks of a store, by its records.

use std::{
    cmp::Reverse,
    io::{self, Write},
};

use serde::Serialize;

use crate::{
    args::{LsArgs, Order},
    output::{Outcome, Report, counted, number, show, table},
    store::{ChunkRow, look, read_records},
};

/// The chunks that are shown.
#[derive(Debug, Serialize)]
struct LsReport {
    /// All that there are.
    num_chunks: usize,
    chunks: Vec<ChunkRow>,
}

pub(crate) fn run(args: &LsArgs, json: bool) -> anyhow::Result<Outcome> {
    let inspection = look(&args.dirs.dirs)?;
    let mut chunks = read_records(&inspection)?.chunks;
    match args.order {
        Order::Eviction => {}
        Order::Newest => chunks.sort_unstable_by_key(|chunk| Reverse(chunk.generation)),
        Order::Slot => chunks.sort_unstable_by_key(|chunk| chunk.slot),
    }
    let num_chunks = chunks.len();
    let shown = chunks.iter().take(args.limit.unwrap_or(usize::MAX));
    show(&LsReport { num_chunks, chunks: shown.map(ChunkRow::of).collect() }, json)?;
    Ok(Outcome::Good)
}

impl Report for LsReport {
    fn write_human(&self, out: &mut dyn Write) -> io::Result<()> {
        let mut table = table(["key", "group", "length", "generation", "end token", "slot"]);
        for chunk in &self.chunks {
            table.add_row([
                chunk.key.as_str().into(),
                number(chunk.group),
                number(chunk.length),
                number(chunk.generation),
                number(chunk.end_token.map_or_else(String::new, |end| end.to_string())),
                number(chunk.slot),
            ]);
        }
        writeln!(out, "{table}")?;
        let left = self.num_chunks - self.chunks.len();
        if left > 0 { writeln!(out, "{} more", counted(left as u64, "chunk")) } else { Ok(()) }
    }
}
