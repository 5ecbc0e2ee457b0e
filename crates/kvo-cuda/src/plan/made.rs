//! Plans for random chunks, and what must hold of them: for tests and for the fuzzer.

use kvo_core::{BlockId, CopyOp, GroupIdx, SlotId};

use super::{ChunkBlocks, CopyPlanner, HostPieces, PlanOptions};
use crate::{
    GroupLayout,
    testing::{Case, Chunk, Random},
};

pub(crate) const NUM_SLOTS: u32 = 12;

/// Some blocks of each group in some order: ascending, descending, in runs or scattered. Blocks of a pool come once.
fn blocks_of_groups(case: &Case, random: &mut Random) -> Vec<Vec<BlockId>> {
    let groups = &case.groups;
    let mut given: Vec<Vec<BlockId>> = Vec::new();
    for (nth, group) in groups.iter().enumerate() {
        let mut blocks: Vec<_> = (0..group.num_blocks).map(BlockId).collect();
        match random.below(4) {
            0 => {}
            1 => blocks.reverse(),
            2 => blocks.rotate_left(usize::try_from(random.below(u64::from(group.num_blocks))).unwrap()),
            _ => random.shuffle(&mut blocks),
        }
        for (other, taken) in groups.iter().zip(&given).take(nth) {
            if group.pool.is_some() && other.pool == group.pool {
                blocks.retain(|block| !taken.contains(block));
            }
        }
        // The other group of a pool needs some too.
        let kept = if group.pool.is_some() { blocks.len().div_ceil(2) } else { blocks.len() };
        given.push(blocks[..kept].to_vec());
    }
    given
}

/// Parts of chunks of all groups that a plan may load, every block once: any skip, any tail, some in pieces that stand
/// side by side in some order.
pub(crate) fn loads(case: &Case, random: &mut Random) -> Vec<Chunk> {
    let mut chunks = Vec::new();
    for (nth, blocks) in blocks_of_groups(case, random).into_iter().enumerate() {
        let (group, per_chunk) = (GroupIdx(u32::try_from(nth).unwrap()), case.groups[nth].blocks_per_chunk);
        let mut blocks = &blocks[..];
        while !blocks.is_empty() {
            let skip = random.between(0, per_chunk - 1);
            let slot = SlotId(random.between(0, NUM_SLOTS - 1));
            let num = random.between(1, per_chunk - skip) as usize;
            let (of_chunk, rest) = blocks.split_at(num.min(blocks.len()));
            blocks = rest;
            let cut = usize::try_from(random.below(of_chunk.len() as u64)).unwrap();
            let behind = skip + u32::try_from(cut).unwrap();
            let parts = [(skip, &of_chunk[..cut]), (behind, &of_chunk[cut..])];
            let mut parts = parts.map(|(skip, blocks)| Chunk { group, slot, skip, blocks: blocks.to_vec() });
            random.shuffle(&mut parts);
            chunks.extend(parts.into_iter().filter(|part| !part.blocks.is_empty()));
        }
    }
    chunks
}

/// Whole chunks of all groups that a plan may store, every slot once; blocks repeat now and then.
pub(crate) fn stores(case: &Case, random: &mut Random) -> Vec<Chunk> {
    let mut slots: Vec<_> = (0..NUM_SLOTS).map(SlotId).collect();
    random.shuffle(&mut slots);
    let mut chunks = Vec::new();
    for (nth, mut blocks) in blocks_of_groups(case, random).into_iter().enumerate() {
        let (group, per_chunk) = (GroupIdx(u32::try_from(nth).unwrap()), case.groups[nth].blocks_per_chunk);
        if random.one_in(4) {
            blocks.extend_from_within(..);
        }
        let whole = blocks.chunks_exact(per_chunk as usize).zip(std::iter::from_fn(|| slots.pop()));
        chunks.extend(whole.map(|(blocks, slot)| Chunk { group, slot, skip: 0, blocks: blocks.to_vec() }));
    }
    chunks
}

pub(crate) fn random_options(random: &mut Random) -> PlanOptions {
    if random.one_in(2) {
        return PlanOptions { mark_bytes_min: random.below(200), ..PlanOptions::default() };
    }
    let host_pieces = match random.below(3) {
        0 => HostPieces::Whole,
        1 => HostPieces::Each { bytes: 1 + random.below(150) },
        _ => {
            let mut borders: Vec<_> = (0..random.below(20)).map(|_| random.below(1500)).collect();
            borders.sort_unstable();
            borders.dedup();
            HostPieces::Borders(borders)
        }
    };
    PlanOptions {
        piece_bytes_max: random.one_in(3).then(|| 1 + random.below(20)),
        host_pieces,
        mark_bytes_min: random.below(200),
    }
}

pub(crate) fn slot_bytes(case: &Case, random: &mut Random) -> u64 {
    let largest = case.layout().groups().iter().map(GroupLayout::chunk_bytes).max().unwrap();
    largest + random.below(3)
}

/// Every byte of the map is copied once, from and to where it says, and no other.
#[track_caller]
pub(crate) fn assert_copies(case: &Case, chunks: &[ChunkBlocks<'_>], ops: &[CopyOp]) {
    let mut copied = Vec::new();
    for op in ops {
        copied.extend(
            (0..op.bytes)
                .map(|byte| ((op.region.0, op.device_offset + byte), (op.slot.0, op.slot_offset + byte))),
        );
    }
    // Sorted lists, not sets: a byte that was copied twice would be there twice.
    copied.sort_unstable();
    let mut expected = case.byte_map(chunks);
    expected.sort_unstable();
    assert!(copied == expected, "{case:?}, {chunks:?}: {ops:?}");
}

#[track_caller]
pub(crate) fn assert_in_bounds(planner: &CopyPlanner, options: &PlanOptions, ops: &[CopyOp]) {
    let borders = match &options.host_pieces {
        HostPieces::Whole => Vec::new(),
        HostPieces::Each { bytes } => (1..3000).map(|nth| nth * bytes).collect(),
        HostPieces::Borders(borders) => borders.clone(),
    };
    for op in ops {
        let region = planner.layout().regions().iter().find(|(region, _)| *region == op.region);
        let (_, region_bytes) = region.expect("the region is one that was given");
        assert!(op.bytes > 0 && op.device_offset + op.bytes <= *region_bytes, "{op:?}");
        assert!(op.slot.0 < NUM_SLOTS && op.slot_offset + op.bytes <= planner.slot_bytes, "{op:?}");
        assert!(options.piece_bytes_max.is_none_or(|max| op.bytes <= max), "{op:?}");
        let start = u64::from(op.slot.0) * planner.slot_bytes + op.slot_offset;
        assert!(!borders.iter().any(|&border| start < border && border < start + op.bytes), "{op:?}");
        assert!(planner.covers(op), "{op:?}");
    }
}
