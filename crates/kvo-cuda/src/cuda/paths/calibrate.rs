//! Copies that are made to be measured, or to see whether a way works.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use kvo_core::Direction;

use super::{
    PathUse,
    table::{CopyPath, LENGTHS, PathTable, TableSource},
};
use crate::cuda::{
    driver::{BatchCopy, CallError, Context, Stream},
    issue::{self, KernelLists, Lists, Scratch, ScratchCopy},
};

/// Bytes on each side.
const SCRATCH_BYTES: usize = 16 << 20;
/// What is measured is at most so many copies at a time.
const COPIES_MAX: usize = 128;
/// How long all of it may take; what was not measured by then keeps its published figure.
const BUDGET: Duration = Duration::from_millis(300);
const TIMEOUT: Duration = Duration::from_secs(5);

/// The table of a device with its driver and link, which `key` names: measured by the first device of a process that
/// asks, in at most 0.3 s. The context is current. Without memory for it, the published figures are all there is.
pub(crate) fn calibrate(
    key: &str,
    context: &Arc<Context>,
    stream: &Stream,
    batch_use: PathUse,
    kernel: Option<&mut KernelLists>,
) -> PathTable {
    static MEASURED: Mutex<Option<HashMap<String, PathTable>>> = Mutex::new(None);
    let mut measured = MEASURED.lock().unwrap_or_else(PoisonError::into_inner);
    let measured = measured.get_or_insert_default();
    // What is not used is not measured.
    let key = format!("{key}, batches {}, kernel {}", batch_use == PathUse::On, kernel.is_some());
    if let Some(table) = measured.get(&key) {
        return *table;
    }
    match measure(context, stream, batch_use == PathUse::On, kernel) {
        Ok(table) => {
            tracing::info!(key, ?table, "the ways of copies were measured");
            measured.insert(key, table);
            table
        }
        Err(error) => {
            tracing::warn!(%error, "the ways of copies could not be measured: published figures stand in");
            PathTable::published()
        }
    }
}

fn measure(
    context: &Arc<Context>,
    stream: &Stream,
    with_batches: bool,
    kernel: Option<&mut KernelLists>,
) -> Result<PathTable, CallError> {
    let mut table = PathTable { source: TableSource::Measured, ..PathTable::published() };
    let mut bench = Bench { scratch: Scratch::new(context, SCRATCH_BYTES)?, stream, kernel };
    let start = Instant::now();
    // The first copies of a context take longer than any later ones.
    bench.time(Direction::Load, CopyPath::Memcpy, LENGTHS[0])?;
    for (column, bytes) in LENGTHS.into_iter().enumerate() {
        for path in CopyPath::ALL {
            let is_there = match path {
                CopyPath::Memcpy => true,
                CopyPath::Rows => context.has_rows(),
                CopyPath::Batch => with_batches && context.has_batches(),
                CopyPath::Kernel => bench.kernel.is_some(),
            };
            for direction in [Direction::Store, Direction::Load] {
                if is_there && start.elapsed() < BUDGET {
                    let best = bench.time(direction, path, bytes)?.min(bench.time(direction, path, bytes)?);
                    table.nanoseconds[direction as usize][path as usize][column] = best;
                }
            }
        }
    }
    Ok(table)
}

/// What copies are tried with.
struct Bench<'a> {
    scratch: Scratch,
    stream: &'a Stream,
    kernel: Option<&'a mut KernelLists>,
}

impl Bench<'_> {
    /// Nanoseconds a copy of that length, one of many, takes.
    fn time(&mut self, direction: Direction, path: CopyPath, bytes: usize) -> Result<u32, CallError> {
        // Every second place, on the host only: else rows would be one run.
        let num_copies = (SCRATCH_BYTES / (2 * bytes)).min(COPIES_MAX);
        let copies: Vec<ScratchCopy> = (0..num_copies)
            .map(|nth| ScratchCopy { device: nth * bytes, host: 2 * nth * bytes, bytes })
            .collect();
        let took = self.copy(direction, path, &copies)?;
        Ok(u32::try_from(took.as_nanos() / num_copies as u128).unwrap_or(u32::MAX))
    }

    /// Makes copies on one way, and says how long they took from the first call to the end of the last.
    fn copy(
        &mut self,
        direction: Direction,
        path: CopyPath,
        copies: &[ScratchCopy],
    ) -> Result<Duration, CallError> {
        let Self { scratch, stream, kernel } = self;
        let context = Arc::clone(scratch.context());
        let address = scratch.device_address();
        let mut batch = BatchCopy::default();
        let mut lists = Lists::default();
        let took = scratch.run(copies, stream, TIMEOUT, |copies| match (path, kernel.as_mut()) {
            (CopyPath::Rows, _) => issue::rows(&context, direction, copies, stream),
            (CopyPath::Batch, _) => issue::batch(&context, direction, copies, address, &mut batch, stream),
            (CopyPath::Kernel, Some(kernel)) => {
                let (used, put) = kernel.put(direction, copies, address, stream);
                lists = used.unwrap_or_default();
                put
            }
            (CopyPath::Memcpy | CopyPath::Kernel, _) => {
                issue::one_by_one(&context, direction, copies, stream)
            }
        });
        // Also after a refused launch, if those before it are over.
        if let Some(kernel) = kernel.as_mut().filter(|_| !scratch.is_lost()) {
            kernel.free(lists);
        }
        took
    }
}

/// How many copies of how many bytes a test of batches makes.
const TEST_COPIES: usize = 512;
const TEST_BYTES: usize = 12 << 10;

/// Whether batches work, to the byte: copies of random lengths to the device in one batch, and back in another to
/// other places. `Ok(false)` if a byte is wrong. The context is current.
///
/// A driver that is broken may crash or hang in it, so it is for a process that may.
pub(crate) fn try_batches(context: &Arc<Context>, stream: &Stream, seed: u64) -> Result<bool, CallError> {
    let mut bench = Bench { scratch: Scratch::new(context, SCRATCH_BYTES)?, stream, kernel: None };
    let mut random = Random(seed | 1);
    let half = SCRATCH_BYTES / 2;
    for byte in &mut bench.scratch.host()[..half] {
        *byte = random.below(256).to_le_bytes()[0];
    }
    // Each copy has a place of its own on the device, and on the host one to come from and one to go back to.
    let lengths: Vec<usize> = (0..TEST_COPIES).map(|_| 1 + random.below(TEST_BYTES)).collect();
    let mut places: Vec<usize> = (0..TEST_COPIES).collect();
    for last in (1..TEST_COPIES).rev() {
        places.swap(last, random.below(last + 1));
    }
    let to = |nth: usize, host: usize| ScratchCopy {
        device: places[nth] * TEST_BYTES,
        host: host + nth * TEST_BYTES,
        bytes: lengths[nth],
    };
    let there: Vec<ScratchCopy> = (0..TEST_COPIES).map(|nth| to(nth, 0)).collect();
    let back: Vec<ScratchCopy> = (0..TEST_COPIES).map(|nth| to(nth, half)).collect();
    bench.copy(Direction::Load, CopyPath::Batch, &there)?;
    bench.copy(Direction::Store, CopyPath::Batch, &back)?;
    let host = bench.scratch.host();
    Ok((0..TEST_COPIES).all(|nth| {
        let (from, length) = (nth * TEST_BYTES, lengths[nth]);
        let is_copied = host[from..][..length] == host[half + from..][..length];
        is_copied && host[half + from + length..half + from + TEST_BYTES].iter().all(|byte| *byte == 0)
    }))
}

/// Numbers that look random: xorshift of 64 bits.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 % bound as u64).unwrap_or(0)
    }
}
