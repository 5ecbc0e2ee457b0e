//! What is joined, and what cannot be.

use super::*;

/// How many copies a load of `chunks` is, each a slot, a skip and its blocks.
fn num_ops(layout: &BlockLayout, chunks: &[(u32, u32, &[u32])]) -> usize {
    let blocks: Vec<Vec<_>> =
        chunks.iter().map(|(.., blocks)| blocks.iter().copied().map(BlockId).collect()).collect();
    let chunks: Vec<_> = chunks
        .iter()
        .zip(&blocks)
        .map(|(&(slot, skip, _), blocks)| ChunkBlocks {
            group: GroupIdx(0),
            slot: SlotId(slot),
            skip,
            blocks,
        })
        .collect();
    let slot_bytes = layout.groups()[0].chunk_bytes();
    let mut planner = CopyPlanner::new(layout.clone(), 16, slot_bytes).unwrap();
    let mut ops = Vec::new();
    planner.plan_load(&chunks, &mut ops).unwrap();
    ops.len()
}

#[test]
fn neighbouring_blocks_are_one_copy_a_plane_and_descending_ones_are_not() {
    let chunk = ChunkLayout::new(3, 2, 16, 4).unwrap();
    let layout = BlockLayout::layer_first(&chunk, 12, 12 * 96).unwrap();
    assert_eq!(num_ops(&layout, &[(0, 0, &[2, 3, 4, 5])]), 6);
    assert_eq!(num_ops(&layout, &[(0, 0, &[2, 3, 6, 7])]), 12);
    assert_eq!(num_ops(&layout, &[(0, 0, &[5, 4, 3, 2])]), 24);
}

#[test]
fn parts_of_a_chunk_join_in_whatever_order_they_come() {
    let chunk = ChunkLayout::new(3, 2, 16, 4).unwrap();
    let layout = BlockLayout::layer_first(&chunk, 12, 12 * 96).unwrap();
    let parts: [(u32, u32, &[u32]); 4] = [(0, 0, &[4]), (0, 1, &[5]), (0, 2, &[6]), (0, 3, &[7])];
    for order in [[0, 1, 2, 3], [3, 2, 1, 0], [2, 0, 3, 1]] {
        assert_eq!(num_ops(&layout, &order.map(|nth| parts[nth])), 6, "{order:?}");
    }
    // Both sides descend by more than one block at a time.
    assert_eq!(num_ops(&layout, &[(0, 2, &[6, 7]), (0, 0, &[4, 5])]), 6);
    // Twice the same sub-blocks, into two runs of blocks.
    assert_eq!(num_ops(&layout, &[(0, 0, &[4]), (0, 0, &[8]), (0, 1, &[9]), (0, 1, &[5])]), 12);
    // Another slot stands between.
    assert_eq!(num_ops(&layout, &[(0, 2, &[6, 7]), (1, 0, &[2]), (0, 0, &[4, 5])]), 18);
}

#[test]
fn chunks_that_descend_by_slot_and_block_are_as_many_copies_as_ascending_ones() {
    let tensor = LayerTensor { layer: 0, region: RegionId(0), offset: 0 };
    let cross_layer = GroupSpec::cross_layer(64, 8, 1, tensor);
    let layout = BlockLayout::new(&[(RegionId(0), 512)], &[cross_layer]).unwrap();
    assert_eq!(num_ops(&layout, &[(2, 0, &[4]), (3, 0, &[5]), (4, 0, &[6])]), 3);
    assert_eq!(num_ops(&layout, &[(4, 0, &[6]), (3, 0, &[5]), (2, 0, &[4])]), 3);
}

#[test]
fn a_whole_block_is_one_copy_if_both_sides_keep_it_together() {
    let chunk = ChunkLayout::new(3, 2, 16, 1).unwrap();
    let layout = BlockLayout::block_first(&chunk, 8, 8 * 96).unwrap();
    let mut planner = CopyPlanner::new(layout, 2, 96).unwrap();
    let mut ops = Vec::new();
    let blocks = [BlockId(5)];
    let chunks = [ChunkBlocks { group: GroupIdx(0), slot: SlotId(1), skip: 0, blocks: &blocks }];
    planner.plan_store(&chunks, &mut ops).unwrap();
    let whole =
        CopyOp { region: RegionId(0), device_offset: 5 * 96, slot: SlotId(1), slot_offset: 0, bytes: 96 };
    assert_eq!(ops, [whole]);
}

#[test]
fn neighbouring_blocks_are_one_copy_in_all_if_the_chunk_keeps_blocks_together() {
    let tensor = LayerTensor { layer: 0, region: RegionId(0), offset: 0 };
    let cross_layer = GroupSpec::cross_layer(96, 8, 4, tensor);
    let layout = BlockLayout::new(&[(RegionId(0), 8 * 96)], &[cross_layer]).unwrap();
    assert_eq!(num_ops(&layout, &[(0, 0, &[2, 3, 4, 5])]), 1);
    assert_eq!(num_ops(&layout, &[(0, 0, &[2, 3, 6, 7])]), 2);
    assert_eq!(num_ops(&layout, &[(0, 1, &[6, 7, 3])]), 2);
}

#[test]
fn the_end_of_a_plane_joins_the_beginning_of_the_next() {
    // Layer-first: all blocks of the device in one chunk are one copy, as are its first and last ones by pairs.
    let chunk = ChunkLayout::new(3, 2, 16, 4).unwrap();
    let layout = BlockLayout::layer_first(&chunk, 4, 4 * 96).unwrap();
    assert_eq!(num_ops(&layout, &[(0, 0, &[0, 1, 2, 3])]), 1);
    let layout = BlockLayout::layer_first(&chunk, 9, 9 * 96).unwrap();
    assert_eq!(num_ops(&layout, &[(0, 0, &[0, 1, 7, 8])]), 7);
    assert_eq!(num_ops(&layout, &[(0, 0, &[1, 2, 7, 8])]), 12);
    // Interleaved: V of a layer's last block is followed by K of the next layer's first.
    let layout = BlockLayout::layer_first_interleaved(&chunk, 9, 9 * 96).unwrap();
    assert_eq!(num_ops(&layout, &[(0, 0, &[0, 5, 3, 8])]), 24 - 2);
}

#[test]
fn regions_do_not_join_however_they_are_numbered() {
    let chunk = ChunkLayout::new(2, 1, 16, 2).unwrap();
    let tensors = [0, 1].map(|layer| LayerTensor { layer, region: RegionId(layer), offset: 0 });
    let group = GroupSpec::layer_first(&chunk, 2, &tensors);
    let layout = BlockLayout::new(&[(RegionId(0), 32), (RegionId(1), 32)], &[group]).unwrap();
    assert_eq!(num_ops(&layout, &[(0, 0, &[0, 1])]), 2);
}

#[test]
fn a_part_of_several_layers_joins_them() {
    let chunk = ChunkLayout::new(4, 2, 16, 1).unwrap();
    let layout = BlockLayout::block_first(&chunk, 8, 8 * 128).unwrap();
    let blocks = [BlockId(5)];
    let chunks = [ChunkBlocks { group: GroupIdx(0), slot: SlotId(1), skip: 0, blocks: &blocks }];
    for (mark_bytes_min, ends) in [(0, vec![1, 2, 3, 4]), (64, vec![1, 2]), (65, vec![1])] {
        let options = PlanOptions { mark_bytes_min, ..PlanOptions::default() };
        let mut planner = CopyPlanner::with_options(layout.clone(), 2, 128, options).unwrap();
        let (mut ops, mut marks) = (Vec::new(), LayerMarks::default());
        planner.plan_load_by_layer(&chunks, &mut ops, &mut marks).unwrap();
        assert_eq!(marks.ends, ends);
    }
}

#[test]
fn copies_are_cut_at_borders_of_the_host_memory_and_above_a_size() {
    let tensor = LayerTensor { layer: 0, region: RegionId(0), offset: 0 };
    let layout =
        BlockLayout::new(&[(RegionId(0), 800)], &[GroupSpec::cross_layer(100, 8, 1, tensor)]).unwrap();
    let check = |host_pieces: HostPieces, piece_bytes_max, bytes: &[u64]| {
        let options = PlanOptions { piece_bytes_max, host_pieces, ..PlanOptions::default() };
        let mut planner = CopyPlanner::with_options(layout.clone(), 4, 128, options).unwrap();
        let mut ops = Vec::new();
        let blocks = [BlockId(5)];
        let chunks = [ChunkBlocks { group: GroupIdx(0), slot: SlotId(2), skip: 0, blocks: &blocks }];
        planner.plan_load(&chunks, &mut ops).unwrap();
        let cut: Vec<_> = ops.iter().map(|op| op.bytes).collect();
        assert_eq!(cut, bytes);
        for pair in ops.windows(2) {
            assert_eq!(pair[1].device_offset, pair[0].device_offset + pair[0].bytes);
            assert_eq!(pair[1].slot_offset, pair[0].slot_offset + pair[0].bytes);
        }
    };
    // The slot is bytes 256 to 384, its chunk ends at 356.
    let at = |borders: &[u64]| HostPieces::Borders(borders.to_vec());
    check(at(&[0, 256, 356, 384]), None, &[100]);
    check(at(&[100, 257, 300, 355]), None, &[1, 43, 55, 1]);
    check(HostPieces::Each { bytes: 128 }, None, &[100]);
    check(HostPieces::Each { bytes: 90 }, None, &[14, 86]);
    check(HostPieces::Whole, Some(100), &[100]);
    check(HostPieces::Whole, Some(48), &[48, 48, 4]);
    check(at(&[300]), Some(48), &[44, 48, 8]);
}
