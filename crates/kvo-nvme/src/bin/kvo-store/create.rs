//! `create`: a new store, with all of its room.

use std::io::{self, Write};

use kvo_nvme::{IfNoRoom, IfOther, NvmeOptions, create_store};
use serde::Serialize;

use crate::{
    args::{Capacity, CreateArgs},
    diagnosis::UsageError,
    output::{Outcome, Report, byte_bar, show},
    pace::Interrupt,
    stat::StatReport,
    store::read_records,
    units::{Size, human},
};

/// What every data file begins with, and what the index has besides records.
const HEADER_BYTES: u64 = 2 << 20;
const INDEX_BYTES: u64 = 4 * 4096;
/// What a slot has in the index: a record, and a place in the eviction order.
const INDEX_BYTES_A_SLOT: u64 = 128 + 4;
/// Slots are a multiple of this.
const ALIGN_BYTES: u64 = 4096;

/// The store that was made.
#[derive(Debug, Serialize)]
struct CreateReport {
    #[serde(flatten)]
    store: StatReport,
    /// Whether every block was written once.
    preinit: bool,
}

pub(crate) fn run(args: &CreateArgs, json: bool) -> anyhow::Result<Outcome> {
    let interrupt = Interrupt::on_ctrl_c()?;
    let dirs = &args.dirs.dirs;
    let capacity_chunks = args.capacity.chunks(args.chunk_bytes, dirs.len())?;
    let options = NvmeOptions {
        dirs: dirs.clone(),
        fingerprint: args.fingerprint.0,
        if_other: if args.empty { IfOther::Empty } else { IfOther::Refuse },
        if_no_room: if args.shrink { IfNoRoom::Shrink } else { IfNoRoom::Refuse },
        ..NvmeOptions::new("", capacity_chunks, args.chunk_bytes.0)
    };
    let mut inspection = create_store(&options)?;
    if args.preinit {
        let info = inspection.info();
        let bar = byte_bar(u64::from(info.capacity_chunks) * info.stride_bytes, "writes every block");
        inspection.fill(&mut |bytes| {
            bar.inc(bytes);
            !interrupt.is_set()
        })?;
        bar.finish_and_clear();
    }
    let contents = read_records(&inspection)?;
    let preinit = args.preinit && !interrupt.is_set();
    show(&CreateReport { store: StatReport::of(&inspection, &contents), preinit }, json)?;
    Ok(if interrupt.is_set() { Outcome::Interrupted } else { Outcome::Good })
}

impl Capacity {
    /// How many chunks that is; of a size, what is left after headers and the index.
    fn chunks(&self, chunk_bytes: Size, num_dirs: usize) -> Result<u32, UsageError> {
        let bytes = match (self.capacity_chunks, self.capacity_bytes) {
            (Some(chunks), _) => return Ok(chunks),
            (None, Some(Size(bytes))) => bytes,
            (None, None) => return Err(UsageError("a store has a capacity".to_owned())),
        };
        let fixed = INDEX_BYTES.saturating_add(HEADER_BYTES.saturating_mul(num_dirs as u64));
        let a_slot = chunk_bytes.0.checked_next_multiple_of(ALIGN_BYTES).unwrap_or(u64::MAX);
        let chunks = bytes.saturating_sub(fixed) / a_slot.saturating_add(INDEX_BYTES_A_SLOT);
        match u32::try_from(chunks) {
            Ok(0) => Err(UsageError(format!(
                "no chunk of {} fits {}: every directory needs {} beside them",
                human(chunk_bytes.0),
                human(bytes),
                human(HEADER_BYTES),
            ))),
            Ok(chunks) => Ok(chunks),
            Err(_) => Err(UsageError(format!("{chunks} chunks are more than a store has"))),
        }
    }
}

impl Report for CreateReport {
    fn write_human(&self, out: &mut dyn Write) -> io::Result<()> {
        writeln!(out, "made a store{}", if self.preinit { ", and wrote every block once" } else { "" })?;
        self.store.write_human(out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(bytes: u64, chunk_bytes: u64, num_dirs: usize, chunks: Option<u32>) {
        let capacity = Capacity { capacity_chunks: None, capacity_bytes: Some(Size(bytes)) };
        assert_eq!(capacity.chunks(Size(chunk_bytes), num_dirs).ok(), chunks);
    }

    #[test]
    fn a_size_has_room_for_headers_and_index_too() {
        check((2 << 20) + 16384 + 4096 + 131, 4096, 1, None);
        check((2 << 20) + 16384 + 4096 + 132, 4096, 1, Some(1));
        check((4 << 20) + 16384 + 8 * (8192 + 132), 4097, 2, Some(8));
        check(u64::MAX - 1, 1, 1, None);
        check(u64::MAX - 1, u64::MAX, usize::MAX, None);
    }
}
