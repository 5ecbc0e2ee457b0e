//! `identity`: bytes there and back, of every kind of length, on every way.

use anyhow::Context;
use kvo_core::{ComputePoint, CopyOp, Direction, HostMemory, RegionId, SlotId, Transfer};
use kvo_cuda::CopyPath;
use kvo_gpu_check::{BedOptions, CudaBed, CudaEngine, TestBed, pattern};
use serde_json::json;

use crate::{
    copies::{PATIENCE, class_of},
    ground::{Ground, Outcome},
    rows::{path_name, row},
};

/// Around each width that a kernel or an engine may work with: a byte, a word, a vector, a warp, a page, and more than
/// the device puts on its queue at once.
const LENGTHS: [u64; 16] =
    [1, 2, 3, 7, 8, 15, 16, 17, 63, 255, 512, 4095, 4096, 4097, 65_536, QUANTUM_BYTES + 4099];
/// At which alignments, on both sides.
const OFFSETS: [u64; 3] = [0, 3, 8];
const QUANTUM_BYTES: u64 = 256 << 10;
/// Enough for each way to be taken.
const NUM_COPIES: u64 = 24;

/// What copies of one length came to.
struct Tried {
    wrong_bytes: u64,
    /// Copies that went the way.
    copies: u64,
}

pub(crate) fn run(ground: &mut Ground) -> anyhow::Result<Outcome> {
    // Keeps the context from one bed to the next.
    let _engine = CudaEngine::new(ground.ordinal)?;
    for path in [CopyPath::Memcpy, CopyPath::Rows, CopyPath::Kernel] {
        try_path(ground, path)?;
    }
    Ok(Outcome::Done)
}

/// All lengths on a way; a row each.
pub(crate) fn try_path(ground: &mut Ground, path: CopyPath) -> anyhow::Result<()> {
    let longest = ground.pick(LENGTHS.len(), LENGTHS.len(), LENGTHS.len() - 2);
    for (nth, bytes) in LENGTHS.into_iter().enumerate().take(longest) {
        if !ground.has_time() {
            continue;
        }
        let offset = OFFSETS[nth % OFFSETS.len()];
        let tried = there_and_back(ground, path, bytes, offset, nth as u64 + 1)?;
        let mut told = row(json!({
            "path": path_name(path),
            "length_bytes": bytes,
            "offset_bytes": offset,
            "copies": NUM_COPIES,
            "wrong_bytes": tried.wrong_bytes,
        }));
        if tried.wrong_bytes > 0 {
            let failure = format!("{} bytes are not what they were", tried.wrong_bytes);
            told.insert("failure".to_owned(), json!(failure));
        } else if tried.copies == 0 && bytes <= QUANTUM_BYTES {
            told.insert("failure".to_owned(), json!("no copy went this way"));
        }
        ground.tell(&told)?;
    }
    Ok(())
}

/// Copies of `bytes` bytes, one a slot: made by a kernel, stored, looked at in the slots, loaded to other places, looked
/// at by a kernel, and byte by byte with all that lies between.
fn there_and_back(
    ground: &Ground,
    path: CopyPath,
    bytes: u64,
    offset: u64,
    seed: u64,
) -> anyhow::Result<Tried> {
    let stride = (bytes + offset + 64).next_multiple_of(64);
    let mut bed = ground.beds().make_cuda(&BedOptions {
        num_slots: u32::try_from(NUM_COPIES)?,
        slot_bytes: usize::try_from(stride)?,
        // Only what is longer is cut: else all copies would not be on the queue at once, and no kernel worth it.
        quantum_bytes: if bytes > QUANTUM_BYTES { QUANTUM_BYTES } else { NUM_COPIES * QUANTUM_BYTES },
        path: Some(path),
        ..BedOptions::default()
    });
    let (from, to) = (bed.allocate(stride * NUM_COPIES), bed.allocate(stride * NUM_COPIES));
    let stream = bed.create_stream();
    let [from_region, to_region] = [bed.device().attach(from)?, bed.device().attach(to)?];
    let place = |nth: u64| nth * stride + offset;
    for nth in 0..NUM_COPIES {
        bed.fill(stream, from.address() + place(nth), bytes, seed + nth);
    }
    copy(&mut bed, stream, Direction::Store, &ops(from_region, place, offset, bytes))?;
    let mut wrong_bytes = 0;
    let (start, length) = (usize::try_from(offset)?, usize::try_from(bytes)?);
    for nth in 0..NUM_COPIES {
        let expected = pattern(seed + nth, length);
        bed.host().with_read(SlotId(u32::try_from(nth)?), &mut |slot| {
            wrong_bytes += wrong(slot, start, &expected);
        })?;
    }
    copy(&mut bed, stream, Direction::Load, &ops(to_region, place, offset, bytes))?;
    for nth in 0..NUM_COPIES {
        bed.check(stream, to.address() + place(nth), bytes, seed + nth);
    }
    wrong_bytes += bed.synchronize(stream);
    let mut found = vec![0; usize::try_from(to.bytes())?];
    bed.read(to.address(), &mut found);
    for (nth, found) in found.chunks(usize::try_from(stride)?).enumerate() {
        wrong_bytes += wrong(found, start, &pattern(seed + nth as u64, length));
    }
    let paths = bed.cuda().stats().paths;
    let count = match path {
        CopyPath::Memcpy => paths.memcpy,
        CopyPath::Rows => paths.rows,
        CopyPath::Batch => paths.batch,
        CopyPath::Kernel => paths.kernel,
    };
    Ok(Tried { wrong_bytes, copies: count.copies })
}

fn ops(region: RegionId, place: impl Fn(u64) -> u64, slot_offset: u64, bytes: u64) -> Vec<CopyOp> {
    let slot = |nth| SlotId(u32::try_from(nth).expect("copies are few"));
    (0..NUM_COPIES)
        .map(|nth| CopyOp { region, device_offset: place(nth), slot: slot(nth), slot_offset, bytes })
        .collect()
}

fn copy(
    bed: &mut CudaBed,
    stream: kvo_core::StreamHandle,
    direction: Direction,
    ops: &[CopyOp],
) -> anyhow::Result<()> {
    let after = bed.device().record_fence(ComputePoint::Stream(stream))?;
    let transfer = Transfer::new(class_of(direction), ops.to_vec(), after);
    bed.device().submit(transfer).map_err(|error| error.reason)?;
    bed.device().drain(PATIENCE)?;
    let mut done = Vec::new();
    bed.device().poll(&mut done);
    done.pop().context("a transfer has ended")?.result?;
    Ok(())
}

/// Bytes that are not as they are to be: the pattern from `start` on, and poison around it.
fn wrong(found: &[u8], start: usize, expected: &[u8]) -> u64 {
    let is_right = |(nth, byte): (usize, &u8)| {
        let wanted = nth.checked_sub(start).and_then(|nth| expected.get(nth));
        *wanted.unwrap_or(&0xa5) == *byte
    };
    found.iter().enumerate().filter(|place| !is_right(*place)).count() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_byte_that_is_wrong_counts_wherever_it_is() {
        let mut slot = vec![0xa5; 64];
        slot[3..8].copy_from_slice(&[1, 2, 3, 4, 5]);
        assert_eq!(wrong(&slot, 3, &[1, 2, 3, 4, 5]), 0);
        assert_eq!(wrong(&slot, 3, &[1, 2, 3, 4, 6]), 1);
        assert_eq!(wrong(&slot, 3, &[1, 2, 3, 4]), 1);
        assert_eq!(wrong(&slot, 4, &[1, 2, 3, 4, 5]), 6);
    }
}
