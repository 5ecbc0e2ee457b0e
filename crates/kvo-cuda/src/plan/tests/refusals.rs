//! Plans and planners that cannot be made.

use super::*;

#[test]
fn a_plan_that_cannot_be_made_names_its_chunk_and_adds_no_copy() {
    let chunk = ChunkLayout::new(1, 1, 8, 2).unwrap();
    let layout = BlockLayout::layer_first(&chunk, 4, 32).unwrap();
    let mut planner = CopyPlanner::new(layout, 3, 16).unwrap();
    let before = CopyOp { region: RegionId(0), device_offset: 0, slot: SlotId(0), slot_offset: 0, bytes: 1 };
    let mut ops = vec![before];
    let [b0, b1, b2, b4] = [0, 1, 2, 4].map(BlockId);
    let good = ChunkBlocks { group: GroupIdx(0), slot: SlotId(0), skip: 0, blocks: &[b0, b1] };

    let mut check_group =
        |stored: bool, group, slot: u32, skip: u32, blocks: &[BlockId], expected: PlanError| {
            let chunks = [good, ChunkBlocks { group: GroupIdx(group), slot: SlotId(slot), skip, blocks }];
            let plan = if stored {
                planner.plan_store(&chunks, &mut ops)
            } else {
                planner.plan_load(&chunks, &mut ops)
            };
            assert_eq!(plan, Err(expected.clone()));
            assert_eq!(ops, [before]);
            let mut marks = LayerMarks { ends: vec![7], last_layers: vec![7] };
            if !stored {
                assert_eq!(planner.plan_load_by_layer(&chunks, &mut ops, &mut marks), Err(expected));
                assert_eq!((ops.len(), marks.ends.len()), (1, 1));
            }
            // What was refused leaves nothing behind: the same slots and blocks can be named again.
            let mut others = Vec::new();
            planner.plan_store(&[good], &mut others).unwrap();
            planner.plan_load(&[good], &mut others).unwrap();
        };
    let num_groups = 1;
    for stored in [true, false] {
        let unknown = PlanError::UnknownGroup { chunk: 1, group: GroupIdx(1), num_groups };
        check_group(stored, 1, 1, 0, &[b2, b1], unknown);
    }
    let mut check = |stored, slot, skip, blocks: &[BlockId], expected| {
        check_group(stored, 0, slot, skip, blocks, expected);
    };
    for stored in [true, false] {
        let unknown = PlanError::UnknownSlot { chunk: 1, slot: SlotId(3), num_slots: 3 };
        check(stored, 3, 0, &[b2, b1], unknown);
        let unknown = PlanError::UnknownBlock { chunk: 1, block: b4, num_blocks: 4 };
        check(stored, 1, 0, &[b2, b4], unknown);
    }
    let not_whole =
        |skip, num_blocks| PlanError::NotWhole { chunk: 1, skip, num_blocks, blocks_per_chunk: 2 };
    check(true, 1, 1, &[b2], not_whole(1, 1));
    check(true, 1, 0, &[b2], not_whole(0, 1));
    check(true, 1, 0, &[b0, b1, b2], not_whole(0, 3));
    check(true, 0, 0, &[b2, b2], PlanError::RepeatedSlot { chunk: 1, slot: SlotId(0) });

    let beyond =
        |skip, num_blocks| PlanError::BeyondChunk { chunk: 1, skip, num_blocks, blocks_per_chunk: 2 };
    check(false, 1, 0, &[], PlanError::NoBlocks { chunk: 1 });
    check(false, 1, 1, &[b2, b1], beyond(1, 2));
    check(false, 1, u32::MAX, &[b2], beyond(u32::MAX, 1));
    check(false, 1, 0, &[b2, b1], PlanError::RepeatedBlock { chunk: 1, block: b1 });
}

#[test]
fn only_sources_may_repeat() {
    let chunk = ChunkLayout::new(1, 1, 8, 1).unwrap();
    let layout = BlockLayout::layer_first(&chunk, 4, 32).unwrap();
    let mut planner = CopyPlanner::new(layout, 3, 8).unwrap();
    let blocks = [0, 1].map(BlockId);
    let chunk = |slot, block: usize| ChunkBlocks {
        group: GroupIdx(0),
        slot: SlotId(slot),
        skip: 0,
        blocks: &blocks[block..=block],
    };
    let mut ops = Vec::new();
    planner.plan_store(&[chunk(0, 0), chunk(1, 0)], &mut ops).unwrap();
    planner.plan_load(&[chunk(0, 0), chunk(0, 1)], &mut ops).unwrap();
    assert_eq!(ops.len(), 4);
}

#[test]
fn a_block_of_a_pool_is_loaded_by_one_group() {
    let tensor = LayerTensor { layer: 0, region: RegionId(0), offset: 0 };
    let group = || GroupSpec::cross_layer(64, 8, 1, tensor);
    let apart = |nth: u64| GroupSpec::cross_layer(64, 8, 1, LayerTensor { offset: nth * 512, ..tensor });
    let regions = [(RegionId(0), 1024)];
    let blocks = [BlockId(3)];
    let chunks = [0, 1].map(|group| ChunkBlocks {
        group: GroupIdx(group),
        slot: SlotId(group),
        skip: 0,
        blocks: &blocks,
    });
    let plan = |groups: [GroupSpec; 2]| {
        let layout = BlockLayout::new(&regions, &groups).unwrap();
        CopyPlanner::new(layout, 2, 64).unwrap().plan_load(&chunks, &mut Vec::new())
    };
    let repeated = Err(PlanError::RepeatedBlock { chunk: 1, block: BlockId(3) });
    assert_eq!(plan([group().with_pool(1), group().with_pool(1)]), repeated);
    assert_eq!(plan([apart(0), apart(1)]), Ok(()));
}

#[test]
fn a_host_memory_that_does_not_fit_the_layout_is_refused() {
    let chunk = ChunkLayout::new(1, 2, 8, 2).unwrap();
    let layout = BlockLayout::layer_first(&chunk, 4, 64).unwrap();
    let error = CopyPlanner::new(layout.clone(), 1, 31).unwrap_err();
    let too_small = GeometryError::SlotTooSmall { slot_bytes: 31, group: GroupIdx(0), chunk_bytes: 32 };
    assert_eq!(error, too_small);
    assert_eq!(
        CopyPlanner::new(layout.clone(), 0, 32).unwrap_err(),
        GeometryError::Zero { field: "num_slots" }
    );
    let error = CopyPlanner::new(layout.clone(), 2, 1 << 62).unwrap_err();
    assert_eq!(error, GeometryError::HostTooLarge { num_slots: 2, slot_bytes: 1 << 62 });
    let check = |options, expected| {
        let error = CopyPlanner::with_options(layout.clone(), 1, 32, options).unwrap_err();
        assert_eq!(error, expected);
    };
    let usual = PlanOptions::default;
    let field = "piece_bytes_max";
    check(PlanOptions { piece_bytes_max: Some(0), ..usual() }, GeometryError::Zero { field });
    let field = "bytes of a host piece";
    check(
        PlanOptions { host_pieces: HostPieces::Each { bytes: 0 }, ..usual() },
        GeometryError::Zero { field },
    );
    let host_pieces = HostPieces::Borders(vec![1, 5, 5]);
    check(PlanOptions { host_pieces, ..usual() }, GeometryError::Borders { border: 2 });
}
