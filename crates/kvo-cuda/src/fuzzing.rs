//! What the fuzzer `layout` runs: from any bytes to a panic if something does not hold. The tests here run its corpus.

#[cfg(test)]
#[path = "../../../fuzz/replay.rs"]
mod replay;

use kvo_core::BlockId;

use crate::{
    BlockLayout, ChunkPlace, CopyPlanner, GroupSpec,
    plan::made::{NUM_SLOTS, assert_copies, assert_in_bounds, loads, random_options, slot_bytes, stores},
    testing::{Case, Chunk, Random},
};

/// A region, and a place in it.
type DeviceByte = (u32, u64);

/// Bytes over all blocks of a layout whose map is made.
const MAPPED_BYTES_MAX: u64 = 4_000;

/// A description that is sound but for what is changed of it: it is refused, or its layout is sound. Plans of a layout
/// copy each byte of the map once, from and to where it says, and no other.
pub fn layout(input: &[u8]) {
    let random = &mut Random::of_input(input);
    let mut case = Case::random(random);
    let num_changes = random.below(4);
    for _ in 0..num_changes {
        change(&mut case, random);
    }
    let Ok(layout) = BlockLayout::new(&case.regions, &case.groups) else {
        assert!(num_changes > 0, "a sound description is refused: {case:?}");
        return;
    };
    if mapped_bytes(&case).is_none_or(|bytes| bytes > MAPPED_BYTES_MAX) {
        return;
    }
    pages_are_apart(&case);
    let options = random_options(random);
    let slot_bytes = slot_bytes(&case, random);
    let mut planner = match CopyPlanner::with_options(layout, NUM_SLOTS, slot_bytes, options.clone()) {
        Ok(planner) => planner,
        // A chunk may be so long that there are no slots of it.
        Err(error) => {
            let is_too_long = i64::try_from(u128::from(slot_bytes) * u128::from(NUM_SLOTS)).is_err();
            assert!(is_too_long, "{error}: {case:?}, {options:?}");
            return;
        }
    };
    for is_store in [true, false] {
        let chunks = if is_store { stores(&case, random) } else { loads(&case, random) };
        let chunks: Vec<_> = chunks.iter().map(Chunk::as_blocks).collect();
        let mut ops = Vec::new();
        if is_store { planner.plan_store(&chunks, &mut ops) } else { planner.plan_load(&chunks, &mut ops) }
            .unwrap_or_else(|error| panic!("{error}: {case:?}, {chunks:?}"));
        assert_copies(&case, &chunks, &ops);
        assert_in_bounds(&planner, &options, &ops);
    }
}

/// A number near another one, or at an end of the range.
fn other(number: u64, random: &mut Random) -> u64 {
    match random.below(8) {
        0 => 0,
        1 => u64::MAX - random.below(4),
        2 => 1 << random.below(64),
        3..6 => number.wrapping_add(1 + random.below(16)),
        _ => number.wrapping_sub(1 + random.below(16)),
    }
}

fn other_u32(number: u32, random: &mut Random) -> u32 {
    u32::try_from(other(number.into(), random)).unwrap_or(u32::MAX)
}

/// Changes one number of a description.
fn change(case: &mut Case, random: &mut Random) {
    let nth = |len: usize, random: &mut Random| usize::try_from(random.below(len as u64)).unwrap();
    let field = random.below(16);
    if field == 0 {
        let region = nth(case.regions.len(), random);
        case.regions[region].1 = other(case.regions[region].1, random);
        return;
    }
    let group = nth(case.groups.len(), random);
    let GroupSpec { num_blocks, blocks_per_chunk, pool, chunk_bytes, pages } = &mut case.groups[group];
    let page = nth(pages.len(), random);
    let page = &mut pages[page];
    match field {
        1 => *num_blocks = other_u32(*num_blocks, random),
        2 => *blocks_per_chunk = other_u32(*blocks_per_chunk, random),
        3 => *pool = random.one_in(2).then_some(7),
        4 => *chunk_bytes = random.one_in(4).then_some(other(chunk_bytes.unwrap_or(64), random)),
        5 => page.base_offset = other(page.base_offset, random),
        6 => page.block_stride = other(page.block_stride, random),
        7 => page.plane_stride = other(page.plane_stride, random),
        8 => page.planes = other_u32(page.planes, random),
        9 => page.page_bytes = other(page.page_bytes, random),
        10 => page.layer = other_u32(page.layer, random),
        11 => page.region.0 = other_u32(page.region.0, random),
        12 | 13 => {
            let mut place = page.place.unwrap_or(ChunkPlace { offset: 0, plane_stride: 8, block_stride: 8 });
            let of = [&mut place.offset, &mut place.plane_stride, &mut place.block_stride];
            let number = &mut *of.into_iter().nth(nth(3, random)).expect("there are three");
            *number = other(*number, random);
            page.place = Some(place);
        }
        _ => {
            let Some(canonical) = &mut page.canonical else { return };
            if random.one_in(3) || canonical.runs.is_empty() {
                canonical.page_bytes = other(canonical.page_bytes, random);
                return;
            }
            let run = nth(canonical.runs.len(), random);
            let run = &mut canonical.runs[run];
            match random.below(6) {
                0 => run.count = other_u32(run.count, random),
                1 => run.bytes = other(run.bytes, random),
                2 => run.local_offset = other(run.local_offset, random),
                3 => run.chunk_offset = other(run.chunk_offset, random),
                4 => run.local_stride = other(run.local_stride, random),
                _ => run.chunk_stride = other(run.chunk_stride, random),
            }
        }
    }
}

/// Bytes over all blocks and over all sub-blocks of a chunk, if they are not out of reach.
fn mapped_bytes(case: &Case) -> Option<u64> {
    let mut sum = 0_u64;
    for group in &case.groups {
        for page in &group.pages {
            let blocks = u64::from(group.num_blocks).checked_mul(u64::from(group.blocks_per_chunk))?;
            let of_page = blocks.checked_mul(u64::from(page.planes))?.checked_mul(page.page_bytes)?;
            sum = sum.checked_add(of_page)?;
        }
    }
    Some(sum)
}

/// No byte of the device is in two pages but those of two groups of one pool, none of a chunk is written twice, and all
/// are inside.
fn pages_are_apart(case: &Case) {
    let layout = case.layout();
    let mut of_pools: Vec<(Option<u32>, Vec<DeviceByte>)> = Vec::new();
    for (nth, group) in case.groups.iter().enumerate() {
        let mut on_device: Vec<DeviceByte> = Vec::new();
        for block in 0..group.num_blocks {
            on_device.extend(case.block_map(nth, block, 0).into_iter().map(|(device, _)| device));
            assert!(layout.groups()[nth].page_offset(0, BlockId(block)).is_some(), "{case:?}");
        }
        assert!(are_apart(&mut on_device), "a byte of the device is in two blocks: {case:?}");
        for (region, byte) in &on_device {
            let bytes = case.regions.iter().find(|(id, _)| id.0 == *region).map(|(_, bytes)| *bytes);
            assert!(bytes.is_some_and(|bytes| *byte < bytes), "a page is outside of its region: {case:?}");
        }
        let subs = 0..group.blocks_per_chunk;
        let in_chunk = subs.flat_map(|sub| case.block_map(nth, 0, sub)).map(|(_, byte)| byte);
        let mut in_chunk: Vec<_> = in_chunk.collect();
        assert!(are_apart(&mut in_chunk), "a byte of a chunk is in two blocks: {case:?}");
        let chunk_bytes = layout.groups()[nth].chunk_bytes();
        assert!(in_chunk.iter().all(|byte| *byte < chunk_bytes), "a page is outside of its chunk: {case:?}");
        for (pool, others) in &of_pools {
            let may_share = pool.is_some() && *pool == group.pool;
            let shares = on_device.iter().any(|byte| others.binary_search(byte).is_ok());
            assert!(!shares || may_share, "two groups share bytes: {case:?}");
        }
        of_pools.push((group.pool, on_device));
    }
}

fn are_apart<T: Ord>(bytes: &mut [T]) -> bool {
    bytes.sort_unstable();
    bytes.is_sorted_by(|one, next| one < next)
}

#[test]
fn layouts_of_the_corpus_are_refused_or_sound() {
    replay::replay("layout", layout);
}
