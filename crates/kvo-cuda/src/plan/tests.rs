use kvo_core::ChunkLayout;
use proptest::prelude::*;

use super::*;

/// Bytes in front of the first page and behind the last one, which belong to no block.
const GUARD_BYTES: u64 = 5;

/// A memory arrangement, with the address of a page worked out independently of [`BlockLayout`].
#[derive(Clone, Copy, Debug)]
enum Kind {
    LayerFirst,
    Interleaved,
    BlockFirst,
}

const KINDS: [Kind; 3] = [Kind::LayerFirst, Kind::Interleaved, Kind::BlockFirst];

#[derive(Clone, Copy, Debug)]
struct Case {
    kind: Kind,
    layers: u32,
    planes: u32,
    page_bytes: u64,
    /// Unused bytes behind every page.
    padding: u64,
    num_blocks: u32,
    blocks_per_chunk: u32,
}

impl Case {
    fn chunk(&self) -> ChunkLayout {
        ChunkLayout::new(self.layers, self.planes, self.page_bytes, self.blocks_per_chunk).unwrap()
    }

    fn device_bytes(&self) -> u64 {
        let pages = u64::from(self.layers * self.planes * self.num_blocks);
        pages * (self.page_bytes + self.padding) + 2 * GUARD_BYTES
    }

    fn page(&self, layer: u32, plane: u32, block: u32) -> u64 {
        let nth = match self.kind {
            Kind::LayerFirst => (layer * self.planes + plane) * self.num_blocks + block,
            Kind::Interleaved => (layer * self.num_blocks + block) * self.planes + plane,
            Kind::BlockFirst => (block * self.layers + layer) * self.planes + plane,
        };
        GUARD_BYTES + u64::from(nth) * (self.page_bytes + self.padding)
    }

    fn layout(&self) -> BlockLayout {
        let stride_pages = match self.kind {
            Kind::LayerFirst => 1,
            Kind::Interleaved => self.planes,
            Kind::BlockFirst => self.layers * self.planes,
        };
        let stride = u64::from(stride_pages) * (self.page_bytes + self.padding);
        let names = (0..self.layers).flat_map(|layer| (0..self.planes).map(move |plane| (layer, plane)));
        let bases = names.map(|(layer, plane)| self.page(layer, plane, 0)).collect();
        BlockLayout::with_page_bases(&self.chunk(), self.num_blocks, stride, bases, self.device_bytes())
            .unwrap()
    }

    /// The bytes that belong together, one pair of addresses a byte: device, then slot.
    fn byte_map(&self, chunks: &[ChunkBlocks<'_>]) -> Vec<(u64, (u32, u64))> {
        let mut map = Vec::new();
        for chunk in chunks {
            for (sub_block, block) in (chunk.skip..).zip(chunk.blocks) {
                for layer in 0..self.layers {
                    for plane in 0..self.planes {
                        let row = (layer * self.planes + plane) * self.blocks_per_chunk + sub_block;
                        for byte in 0..self.page_bytes {
                            let device = self.page(layer, plane, block.0) + byte;
                            map.push((device, (chunk.slot.0, u64::from(row) * self.page_bytes + byte)));
                        }
                    }
                }
            }
        }
        map
    }
}

/// Plans, and compares the copies with the byte map: each byte once, none outside, no copy that could be joined
/// with another.
#[track_caller]
fn check(case: &Case, skip: u32, slots: &[SlotId], blocks: &[BlockId], stored: bool) {
    let num_slots = 1 + slots.iter().map(|slot| slot.0).max().unwrap_or(0);
    let slot_bytes = case.chunk().chunk_bytes() + 3;
    let mut planner = CopyPlanner::new(case.layout(), num_slots, slot_bytes).unwrap();
    let chunks: Vec<_> = planner.spread(skip, slots, blocks).unwrap().collect();
    let mut ops = Vec::new();
    if stored { planner.plan_store(&chunks, &mut ops) } else { planner.plan_load(&chunks, &mut ops) }
        .unwrap();

    let mut copied = Vec::new();
    for op in &ops {
        assert!(op.bytes > 0, "{case:?}: {op:?}");
        assert!(op.device_offset + op.bytes <= case.device_bytes(), "{case:?}: {op:?}");
        assert!(op.slot.0 < num_slots && op.slot_offset + op.bytes <= slot_bytes, "{case:?}: {op:?}");
        copied
            .extend((0..op.bytes).map(|byte| (op.device_offset + byte, (op.slot.0, op.slot_offset + byte))));
        let joins = ops.iter().find(|next| {
            next.slot == op.slot
                && next.slot_offset == op.slot_offset + op.bytes
                && next.device_offset == op.device_offset + op.bytes
        });
        assert_eq!(joins, None, "{case:?}: goes on from {op:?}");
    }
    // Sorted lists, not sets: a byte that was copied twice would be there twice.
    copied.sort_unstable();
    let mut expected = case.byte_map(&chunks);
    expected.sort_unstable();
    assert!(copied == expected, "{case:?}, skip {skip}, slots {slots:?}, blocks {blocks:?}: {ops:?}");
}

/// `count` of the blocks 1 to 14, never the guard blocks 0 and 15.
fn blocks(order: u32, count: u32) -> Vec<BlockId> {
    let block = |nth: u32| match order {
        0 => 1 + nth,
        1 => 14 - nth,
        // Pairs of neighbours, the pairs apart and descending.
        2 => 13 - 3 * (nth / 2) % 14 + nth % 2,
        // 3 generates the numbers modulo 14... less 0: all 14 come, scattered.
        _ => 1 + (nth * 5 + 2) % 14,
    };
    (0..count).map(block).map(BlockId).collect()
}

#[test]
fn every_byte_is_copied_once_over_all_small_shapes() {
    let slots = [SlotId(2), SlotId(0), SlotId(3)];
    for kind in KINDS {
        for (layers, planes, padding, blocks_per_chunk) in shapes([1, 2, 3], [1, 2], [0, 3], [1, 2, 3, 4]) {
            let case =
                Case { kind, layers, planes, page_bytes: 4, padding, num_blocks: 16, blocks_per_chunk };
            for order in 0..4 {
                let count = if order == 2 { 8 } else { 12 }.min(3 * blocks_per_chunk);
                let whole = count / blocks_per_chunk;
                let used = &slots[..whole as usize];
                check(&case, 0, used, &blocks(order, whole * blocks_per_chunk), true);
                for skip in 0..blocks_per_chunk {
                    for tail in 0..blocks_per_chunk {
                        let loaded = whole * blocks_per_chunk;
                        let Some(loaded) = loaded.checked_sub(skip + tail).filter(|&loaded| loaded > 0)
                        else {
                            continue;
                        };
                        check(&case, skip, used, &blocks(order, loaded), false);
                    }
                }
            }
        }
    }
}

/// Every combination.
fn shapes(
    layers: [u32; 3],
    planes: [u32; 2],
    paddings: [u64; 2],
    blocks_per_chunk: [u32; 4],
) -> impl Iterator<Item = (u32, u32, u64, u32)> {
    layers.into_iter().flat_map(move |layers| {
        planes.into_iter().flat_map(move |planes| {
            paddings.into_iter().flat_map(move |padding| {
                blocks_per_chunk.into_iter().map(move |blocks| (layers, planes, padding, blocks))
            })
        })
    })
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_byte_is_copied_once_for_any_shape(
        kind in 0..3_usize,
        (layers, planes, blocks_per_chunk) in (1..5_u32, 1..4_u32, 1..6_u32),
        (page_bytes, padding) in (1..9_u64, 0..4_u64),
        order in Just((0..24).map(BlockId).collect::<Vec<_>>()).prop_shuffle(),
        slots in Just((0..24).map(SlotId).collect::<Vec<_>>()).prop_shuffle(),
        (skip, count) in (0..6_u32, 1..20_usize),
        descending in any::<bool>(),
    ) {
        let case = Case {
            kind: KINDS[kind], layers, planes, page_bytes, padding, num_blocks: 24, blocks_per_chunk,
        };
        let mut blocks = order[..count].to_vec();
        if descending {
            blocks.sort_unstable_by(|one, next| next.cmp(one));
        }
        let skip = skip % blocks_per_chunk;
        let num_slots = (count + skip as usize).div_ceil(blocks_per_chunk as usize);
        check(&case, skip, &slots[..num_slots], &blocks, false);
        let whole = count / blocks_per_chunk as usize;
        check(&case, 0, &slots[..whole], &blocks[..whole * blocks_per_chunk as usize], true);
    }
}

#[test]
fn a_whole_block_is_one_copy_if_both_sides_keep_it_together() {
    let chunk = ChunkLayout::new(3, 2, 16, 1).unwrap();
    let layout = BlockLayout::block_first(&chunk, 8, 8 * 96).unwrap();
    let mut planner = CopyPlanner::new(layout, 2, 96).unwrap();
    let mut ops = Vec::new();
    planner.plan_store(&[ChunkBlocks { slot: SlotId(1), skip: 0, blocks: &[BlockId(5)] }], &mut ops).unwrap();
    assert_eq!(
        ops,
        [CopyOp { region: RegionId(0), device_offset: 5 * 96, slot: SlotId(1), slot_offset: 0, bytes: 96 }]
    );
}

#[test]
fn neighbouring_blocks_are_one_copy_a_plane_and_descending_ones_are_not() {
    let chunk = ChunkLayout::new(3, 2, 16, 4).unwrap();
    let layout = BlockLayout::layer_first(&chunk, 8, 8 * 96).unwrap();
    let mut planner = CopyPlanner::new(layout, 2, 4 * 96).unwrap();
    let mut ops = Vec::new();
    for (blocks, num_ops) in [([2, 3, 4, 5], 6), ([2, 3, 6, 7], 12), ([5, 4, 3, 2], 24)] {
        ops.clear();
        let blocks = blocks.map(BlockId);
        planner.plan_load(&[ChunkBlocks { slot: SlotId(0), skip: 0, blocks: &blocks }], &mut ops).unwrap();
        assert_eq!(ops.len(), num_ops, "{blocks:?}");
    }
}

#[test]
fn a_plan_that_cannot_be_made_names_its_chunk_and_adds_no_copy() {
    let chunk = ChunkLayout::new(1, 1, 8, 2).unwrap();
    let layout = BlockLayout::layer_first(&chunk, 4, 32).unwrap();
    let mut planner = CopyPlanner::new(layout, 3, 16).unwrap();
    let before = CopyOp { region: RegionId(0), device_offset: 0, slot: SlotId(0), slot_offset: 0, bytes: 1 };
    let mut ops = vec![before];
    let [b0, b1, b2, b4] = [0, 1, 2, 4].map(BlockId);
    let good = ChunkBlocks { slot: SlotId(0), skip: 0, blocks: &[b0, b1] };

    let mut check = |stored: bool, slot: u32, skip: u32, blocks: &[BlockId], expected: PlanError| {
        let chunks = [good, ChunkBlocks { slot: SlotId(slot), skip, blocks }];
        let plan =
            if stored { planner.plan_store(&chunks, &mut ops) } else { planner.plan_load(&chunks, &mut ops) };
        assert_eq!(plan, Err(expected));
        assert_eq!(ops, [before]);
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
    let [b0, b1] = [0, 1].map(BlockId);
    let mut ops = Vec::new();
    let to_two_slots =
        [0, 1].map(|slot| ChunkBlocks { slot: SlotId(slot), skip: 0, blocks: std::slice::from_ref(&b0) });
    planner.plan_store(&to_two_slots, &mut ops).unwrap();
    let to_two_blocks =
        [&b0, &b1].map(|block| ChunkBlocks { slot: SlotId(0), skip: 0, blocks: std::slice::from_ref(block) });
    planner.plan_load(&to_two_blocks, &mut ops).unwrap();
    assert_eq!(ops.len(), 4);
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
                let spread = planner.spread(skip, &slots[..num_slots], &blocks[..num_blocks]);
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
fn a_slot_that_does_not_hold_a_chunk_is_refused() {
    let chunk = ChunkLayout::new(1, 2, 8, 2).unwrap();
    let layout = BlockLayout::layer_first(&chunk, 4, 64).unwrap();
    let error = CopyPlanner::new(layout.clone(), 1, 31).unwrap_err();
    assert_eq!(error, GeometryError::SlotTooSmall { slot_bytes: 31, chunk_bytes: 32 });
    assert_eq!(CopyPlanner::new(layout, 0, 32).unwrap_err(), GeometryError::Zero { field: "num_slots" });
}
