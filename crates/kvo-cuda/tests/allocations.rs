//! Planning allocates nothing once a planner and its lists have had as large a request, counted by an allocator.

use std::{
    alloc::{GlobalAlloc, Layout, System},
    cell::Cell,
    hint::black_box,
};

use kvo_core::{BlockId, ChunkLayout, GroupIdx, RegionId, SlotId};
use kvo_cuda::{
    BlockLayout, CanonicalPage, ChunkBlocks, CopyPlanner, GroupSpec, HostPieces, LayerMarks, LayerTensor,
    PageRef, PlanOptions,
};

thread_local! {
    static ALLOCATIONS: Cell<usize> = const { Cell::new(0) };
}

struct Counting;

// SAFETY: each method hands its arguments on to the system's allocator as they are.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: the caller's promises are those that the system's allocator asks for.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Allocations that this thread makes in `call`.
fn allocations(call: impl FnOnce()) -> usize {
    let before = ALLOCATIONS.get();
    call();
    ALLOCATIONS.get() - before
}

#[test]
fn the_allocator_counts() {
    assert_eq!(allocations(|| drop(black_box(Box::new(1)))), 1);
    assert_eq!(allocations(|| drop(Vec::<u8>::new())), 0);
}

/// Two groups: K and V of 8 layers, and 4 layers with canonical pages; 4 blocks a chunk.
fn layout() -> BlockLayout {
    let chunk = ChunkLayout::new(8, 2, 4096, 4).unwrap();
    let tensor = |layer: u32| LayerTensor { layer, region: RegionId(0), offset: u64::from(layer) << 20 };
    let full = GroupSpec::layer_first(&chunk, 100, &[0, 1, 2, 3, 4, 5, 6, 7].map(tensor));
    let part = |layer: u32| {
        PageRef::new(8 - 2 * layer, RegionId(1), u64::from(layer) << 20, 512)
            .with_canonical(CanonicalPage::of_parts(16, 4, 1, 2, 16))
    };
    let parts = GroupSpec::new(100, 4, (0..4).map(part).collect());
    BlockLayout::new(&[(RegionId(0), 8 << 20), (RegionId(1), 4 << 20)], &[full, parts]).unwrap()
}

#[track_caller]
fn check(options: PlanOptions) {
    let mut planner = CopyPlanner::with_options(layout(), 40, 1 << 20, options).unwrap();
    let blocks: Vec<_> = (0..100).rev().map(BlockId).collect();
    let slots: Vec<_> = (0..40).map(SlotId).collect();
    let mut chunks: Vec<ChunkBlocks<'_>> = Vec::with_capacity(30);
    let (mut ops, mut marks) = (Vec::new(), LayerMarks::default());
    let mut plan_all = |num_chunks: usize| {
        for group in [GroupIdx(0), GroupIdx(1)] {
            let of_group = &slots[usize::try_from(group.0).unwrap() * 20..][..num_chunks];
            chunks.extend(planner.spread(group, 0, of_group, &blocks[..num_chunks * 4]).unwrap());
        }
        // Refusals leave nothing to be cleaned up by an allocation either.
        let refused = [chunks[0], chunks[0]];
        for _ in 0..3 {
            ops.clear();
            planner.plan_store(&chunks, &mut ops).unwrap();
            planner.plan_load(&chunks, &mut ops).unwrap();
            planner.plan_load_by_layer(&chunks, &mut ops, &mut marks).unwrap();
            assert!(planner.plan_store(&refused, &mut ops).is_err());
            assert!(planner.plan_load(&refused, &mut ops).is_err());
            black_box((planner.alignment(&ops), &marks));
        }
        chunks.clear();
    };
    assert!(allocations(|| plan_all(15)) > 0);
    assert_eq!(allocations(|| (0..100).for_each(|nth| plan_all(1 + nth % 15))), 0);
}

#[test]
fn plans_allocate_nothing_in_steady_state() {
    check(PlanOptions { mark_bytes_min: 1, ..PlanOptions::default() });
    check(PlanOptions::default());
}

#[test]
fn plans_that_are_cut_allocate_nothing_in_steady_state() {
    let host_pieces = HostPieces::Each { bytes: 1000 };
    check(PlanOptions { piece_bytes_max: Some(600), host_pieces, ..PlanOptions::default() });
    let host_pieces = HostPieces::Borders((1..100).map(|nth| nth * 77_777).collect());
    check(PlanOptions { host_pieces, ..PlanOptions::default() });
}
