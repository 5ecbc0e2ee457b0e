use kvo_core::{BlockId, ChunkLayout, CopyOp, GroupIdx, RegionId, SlotId};

use super::{made::*, *};
use crate::{
    GroupSpec, LayerTensor,
    testing::{Case, Chunk, with_seeds},
};

mod joins;
mod refusals;

/// Two copies of which one goes on where the other ends.
fn joinable(ops: &[CopyOp]) -> Option<(&CopyOp, &CopyOp)> {
    let goes_on = |op: &CopyOp, next: &CopyOp| {
        next.slot == op.slot
            && next.region == op.region
            && next.slot_offset == op.slot_offset + op.bytes
            && next.device_offset == op.device_offset + op.bytes
    };
    ops.iter().find_map(|op| Some((op, ops.iter().find(|next| goes_on(op, next))?)))
}

/// Whether the parts of each slot stand side by side in the list: only those are joined.
fn each_slot_is_in_one_place(chunks: &[ChunkBlocks<'_>]) -> bool {
    let mut slots: Vec<_> = chunks.iter().map(|chunk| (chunk.group, chunk.slot)).collect();
    slots.dedup();
    let num = slots.len();
    slots.sort_unstable_by_key(|(_, slot)| *slot);
    slots.dedup_by_key(|(_, slot)| *slot);
    slots.len() == num
}

/// B41: beside a map of single bytes, whatever the groups and the blocks are.
#[test]
fn every_byte_is_copied_once_over_random_layouts() {
    let (mut num_ops, mut num_usual) = (0, 0);
    with_seeds(3_000, |random| {
        let case = Case::random(random);
        let options = random_options(random);
        let slot_bytes = slot_bytes(&case, random);
        let mut planner =
            CopyPlanner::with_options(case.layout(), NUM_SLOTS, slot_bytes, options.clone()).unwrap();
        for stored in [true, false] {
            let chunks = if stored { stores(&case, random) } else { loads(&case, random) };
            let chunks: Vec<_> = chunks.iter().map(Chunk::as_blocks).collect();
            let mut ops = Vec::new();
            if stored { planner.plan_store(&chunks, &mut ops) } else { planner.plan_load(&chunks, &mut ops) }
                .unwrap();
            assert_copies(&case, &chunks, &ops);
            assert_in_bounds(&planner, &options, &ops);
            let uncut = options.piece_bytes_max.is_none() && options.host_pieces == HostPieces::Whole;
            if case.usual && uncut && each_slot_is_in_one_place(&chunks) {
                assert_eq!(joinable(&ops), None, "{case:?}, {chunks:?}: {ops:?}");
                num_usual += 1;
            }
            num_ops += ops.len();
        }
    });
    eprintln!("{num_ops} copies; {num_usual} plans were searched for copies to join");
}

#[test]
fn a_plan_by_layer_copies_the_same_bytes_and_each_part_only_its_layers() {
    with_seeds(3_000, |random| {
        let case = Case::random(random);
        let options = random_options(random);
        let slot_bytes = slot_bytes(&case, random);
        let mut planner =
            CopyPlanner::with_options(case.layout(), NUM_SLOTS, slot_bytes, options.clone()).unwrap();
        let chunks = loads(&case, random);
        let chunks: Vec<_> = chunks.iter().map(Chunk::as_blocks).collect();
        let (mut ops, mut marks) = (Vec::new(), LayerMarks::default());
        planner.plan_load_by_layer(&chunks, &mut ops, &mut marks).unwrap();
        assert_copies(&case, &chunks, &ops);
        assert_in_bounds(&planner, &options, &ops);
        assert_marks(&case, &chunks, &ops, &marks, options.mark_bytes_min);
    });
}

/// The marks ascend, end with the plan, and each part has all bytes of its layers, no others, and enough.
#[track_caller]
fn assert_marks(case: &Case, chunks: &[ChunkBlocks<'_>], ops: &[CopyOp], marks: &LayerMarks, bytes_min: u64) {
    assert_eq!(marks.ends.len(), marks.last_layers.len());
    assert_eq!(marks.ends.last().copied().unwrap_or(0) as usize, ops.len());
    assert!(marks.last_layers.is_sorted_by(|one, next| one < next), "{marks:?}");
    let (mut start, mut first_layer) = (0, 0);
    for (&end, &last_layer) in marks.ends.iter().zip(&marks.last_layers) {
        let part = &ops[start..end as usize];
        let bytes: u64 = part.iter().map(|op| op.bytes).sum();
        assert!(bytes >= bytes_min || marks.ends.len() == 1, "{bytes} of {bytes_min}: {marks:?}");
        assert!(bytes > 0, "{marks:?}");
        // The same groups without the pages of other layers, at the places that the pages have.
        let mut only = case.clone();
        let layout = case.layout();
        for (nth, group) in only.groups.iter_mut().enumerate() {
            let of_group = layout.groups()[nth].planes();
            for (page_nth, page) in group.pages.iter_mut().enumerate() {
                let planes: Vec<_> = of_group.iter().filter(|plane| plane.page == page_nth).collect();
                page.place = Some(crate::ChunkPlace {
                    offset: planes[0].chunk_offset,
                    plane_stride: planes
                        .get(1)
                        .map_or(0, |plane| plane.chunk_offset - planes[0].chunk_offset),
                    block_stride: planes[0].chunk_block_stride,
                });
            }
            group.pages.retain(|page| (first_layer..=last_layer).contains(&page.layer));
        }
        assert_copies(&only, chunks, part);
        (start, first_layer) = (end as usize, last_layer + 1);
    }
}

#[test]
fn parts_have_whole_layers_of_all_groups_and_what_is_left_goes_with_the_last() {
    // Layers 0 to 4 of 100 bytes a block in group 0, layers 1 and 6 of 30 in group 1.
    let tensor = |layer: u32| LayerTensor { layer, region: RegionId(layer), offset: 0 };
    let chunk = ChunkLayout::new(5, 1, 100, 1).unwrap();
    let full = GroupSpec::layer_first(&chunk, 4, &[0, 1, 2, 3, 4].map(tensor));
    let chunk = ChunkLayout::new(2, 1, 30, 1).unwrap();
    let other = |layer| LayerTensor { offset: 400, ..tensor(layer) };
    let window = GroupSpec::layer_first(&chunk, 4, &[1, 6].map(other));
    let regions: Vec<_> = (0..7).map(|region| (RegionId(region), 600)).collect();
    let layout = BlockLayout::new(&regions, &[full, window]).unwrap();

    let blocks = [BlockId(2)];
    let chunk = |group| ChunkBlocks { group: GroupIdx(group), slot: SlotId(group), skip: 0, blocks: &blocks };
    let check = |bytes_min, groups: &[u32], ends: &[u32], last_layers: &[u32]| {
        let options = PlanOptions { mark_bytes_min: bytes_min, ..PlanOptions::default() };
        let mut planner = CopyPlanner::with_options(layout.clone(), 2, 500, options).unwrap();
        let chunks: Vec<_> = groups.iter().map(|&group| chunk(group)).collect();
        let (mut ops, mut marks) = (Vec::new(), LayerMarks::default());
        planner.plan_load_by_layer(&chunks, &mut ops, &mut marks).unwrap();
        assert_eq!((&marks.ends[..], &marks.last_layers[..]), (ends, last_layers), "{ops:?}");
    };
    check(0, &[0, 1], &[1, 3, 4, 5, 6, 7], &[0, 1, 2, 3, 4, 6]);
    check(100, &[0, 1], &[1, 3, 4, 5, 7], &[0, 1, 2, 3, 6]);
    check(101, &[0, 1], &[3, 5, 7], &[1, 3, 6]);
    check(331, &[0, 1], &[7], &[6]);
    check(30, &[1], &[1, 2], &[1, 6]);
    check(31, &[1], &[2], &[6]);
    check(0, &[], &[], &[]);
}

#[test]
fn a_layer_waits_for_the_mark_of_its_part() {
    let marks = LayerMarks { ends: vec![4, 8, 9], last_layers: vec![1, 2, 6] };
    let of_layers: Vec<_> = (0..8).map(|layer| marks.mark_of(layer)).collect();
    assert_eq!(of_layers, [Some(0), Some(0), Some(1), Some(2), Some(2), Some(2), Some(2), None]);
}

#[test]
fn a_run_spreads_only_over_the_slots_it_needs() {
    let chunk = ChunkLayout::new(1, 1, 8, 4).unwrap();
    let layout = BlockLayout::layer_first(&chunk, 16, 128).unwrap();
    let planner = CopyPlanner::new(layout, 4, 32).unwrap();
    let slots = [0, 1, 2, 3].map(SlotId);
    let blocks: Vec<_> = (0..16).map(BlockId).collect();
    for skip in 0..6 {
        for num_slots in 0..5 {
            for num_blocks in 0..=16 {
                let spread = planner.spread(GroupIdx(0), skip, &slots[..num_slots], &blocks[..num_blocks]);
                let all = skip as usize + num_blocks;
                let fits = match num_slots {
                    0 => skip == 0 && num_blocks == 0,
                    _ => skip < 4 && num_blocks > 0 && all > 4 * (num_slots - 1) && all <= 4 * num_slots,
                };
                match spread {
                    Ok(chunks) => {
                        assert!(fits, "skip {skip}, {num_slots} slots, {num_blocks} blocks");
                        let chunks: Vec<_> = chunks.collect();
                        assert!(chunks.iter().all(|chunk| !chunk.blocks.is_empty()));
                        let joined: Vec<_> = chunks.iter().flat_map(|chunk| chunk.blocks).copied().collect();
                        assert_eq!(joined, blocks[..num_blocks]);
                    }
                    Err(error) => {
                        assert!(!fits, "skip {skip}, {num_slots} slots, {num_blocks} blocks: {error}");
                    }
                }
            }
        }
    }
}

#[test]
fn the_alignment_is_of_all_three_numbers() {
    let chunk = ChunkLayout::new(1, 1, 48, 2).unwrap();
    let layout = BlockLayout::layer_first(&chunk, 4, 192).unwrap();
    let op = CopyOp { region: RegionId(0), device_offset: 48, slot: SlotId(1), slot_offset: 48, bytes: 48 };
    let check = |slot_bytes, op: CopyOp, alignment| {
        let planner = CopyPlanner::new(layout.clone(), 4, slot_bytes).unwrap();
        let other = CopyOp { slot: SlotId(2), ..op };
        assert_eq!(planner.alignment(&[other, op]), alignment, "{op:?}");
    };
    check(96, op, Alignment::Sixteen);
    check(104, op, Alignment::Eight);
    check(97, op, Alignment::One);
    check(96, CopyOp { device_offset: 8, ..op }, Alignment::Eight);
    check(96, CopyOp { slot_offset: 40, ..op }, Alignment::Eight);
    check(96, CopyOp { bytes: 24, ..op }, Alignment::Eight);
    check(96, CopyOp { bytes: 20, ..op }, Alignment::One);
    check(96, CopyOp { slot: SlotId(u32::MAX), slot_offset: u64::MAX - 7, ..op }, Alignment::Eight);
    assert_eq!([Alignment::One, Alignment::Eight, Alignment::Sixteen].map(Alignment::bytes), [1, 8, 16]);
}
