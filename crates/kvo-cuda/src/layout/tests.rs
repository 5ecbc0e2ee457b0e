use std::collections::HashMap;

use kvo_core::{BlockId, ChunkLayout};

use super::*;
use crate::{
    PageName,
    testing::{Case, Random, with_seeds},
};

const REGION: RegionId = RegionId(4);

fn chunk() -> ChunkLayout {
    ChunkLayout::new(2, 2, 8, 2).unwrap()
}

fn name(group: u32, page: usize) -> PageName {
    PageName { group: GroupIdx(group), page }
}

/// Two pages of 8 bytes at 0 and 100 of a region of 200 bytes, 4 blocks, 2 a chunk.
fn spec() -> GroupSpec {
    GroupSpec::new(4, 2, vec![PageRef::new(0, REGION, 0, 8), PageRef::new(1, REGION, 100, 8)])
}

#[track_caller]
fn check(change: impl FnOnce(&mut GroupSpec), expected: GeometryError) {
    let mut spec = spec();
    change(&mut spec);
    assert_eq!(BlockLayout::new(&[(REGION, 200)], &[spec]), Err(expected));
}

#[test]
fn each_usual_layout_puts_a_page_where_its_picture_says() {
    let chunk = chunk();
    let group = GroupIdx(0);
    // Page of block 1 in layer 1, plane 0 among 3 blocks: plane 2 of the group.
    let layer_first = BlockLayout::layer_first(&chunk, 3, 96).unwrap();
    assert_eq!(layer_first.page_offset(group, 2, BlockId(1)), Some((2 * 3 + 1) * 8));
    let interleaved = BlockLayout::layer_first_interleaved(&chunk, 3, 96).unwrap();
    assert_eq!(interleaved.page_offset(group, 2, BlockId(1)), Some((3 + 1) * 2 * 8));
    let block_first = BlockLayout::block_first(&chunk, 3, 96).unwrap();
    assert_eq!(block_first.page_offset(group, 2, BlockId(1)), Some((4 + 2) * 8));
    assert_eq!(block_first.page_offset(group, 2, BlockId(3)), None);
    assert_eq!(block_first.page_offset(group, 4, BlockId(0)), None);
    assert_eq!(block_first.page_offset(GroupIdx(1), 0, BlockId(0)), None);
    let bases = [0, 24, 48, 72];
    assert_eq!(
        BlockLayout::with_page_bases(&chunk, 3, 8, &bases, 96).unwrap().groups()[0].strips,
        layer_first.groups()[0].strips
    );
}

#[test]
fn a_layout_that_ends_with_the_device_fits_and_one_byte_less_does_not() {
    let chunk = chunk();
    for make in [BlockLayout::layer_first, BlockLayout::layer_first_interleaved, BlockLayout::block_first] {
        let layout = make(&chunk, 3, 96).unwrap();
        let group = &layout.groups()[0];
        assert_eq!((group.chunk_bytes(), group.block_bytes()), (chunk.chunk_bytes(), chunk.block_bytes()));
        let error = make(&chunk, 3, 95).unwrap_err();
        assert!(matches!(error, GeometryError::BeyondRegion { end: 96, region_bytes: 95, .. }), "{error}");
        let zero = GeometryError::ZeroInGroup { group: GroupIdx(0), field: "num_blocks" };
        assert_eq!(make(&chunk, 0, 96), Err(zero));
    }
}

/// B38: no sum of sizes wraps.
#[test]
fn sizes_beyond_63_bits_are_errors() {
    let chunk = ChunkLayout::new(2, 2, 1 << 61, 1).unwrap();
    for make in [BlockLayout::layer_first, BlockLayout::layer_first_interleaved, BlockLayout::block_first] {
        let error = make(&chunk, u32::MAX, u64::MAX).unwrap_err();
        assert!(matches!(error, GeometryError::Overflow { .. }), "{error}");
    }
    let beyond = |page, field| GeometryError::Overflow { page: name(0, page), field };
    check(|spec| spec.pages[1].base_offset = u64::MAX - 7, beyond(1, "base_offset"));
    check(|spec| spec.pages[1].base_offset = (1 << 63) - 8, beyond(1, "base_offset"));
    check(|spec| spec.pages[1].block_stride = 1 << 62, beyond(1, "base_offset"));
    check(|spec| (spec.pages[0].planes, spec.pages[0].plane_stride) = (3, 1 << 62), beyond(0, "base_offset"));
    let place = |offset, block_stride| ChunkPlace { offset, plane_stride: 0, block_stride };
    check(|spec| spec.pages[0].place = Some(place((1 << 63) - 15, 8)), beyond(0, "place"));
    check(|spec| spec.pages[0].place = Some(place(0, u64::MAX)), beyond(0, "place"));
    check(|spec| spec.chunk_bytes = Some(1 << 63), beyond(0, "chunk_bytes"));
    let canonical = CanonicalPage { page_bytes: 1 << 62, ..CanonicalPage::of_parts(1, 1, 0, 1, 8) };
    check(|spec| spec.pages[1].canonical = Some(canonical), beyond(1, "place"));
}

#[test]
fn what_must_not_be_zero_is_named() {
    let group = |field| GeometryError::ZeroInGroup { group: GroupIdx(0), field };
    check(|spec| spec.num_blocks = 0, group("num_blocks"));
    check(|spec| spec.blocks_per_chunk = 0, group("blocks_per_chunk"));
    check(|spec| spec.pages.clear(), group("pages"));
    let page = |field| GeometryError::ZeroInPage { page: name(0, 1), field };
    check(|spec| spec.pages[1].planes = 0, page("planes"));
    check(|spec| spec.pages[1].page_bytes = 0, page("page_bytes"));
    let canonical = |change: fn(&mut CanonicalPage)| {
        move |spec: &mut GroupSpec| {
            let mut page = CanonicalPage::of_parts(1, 2, 0, 1, 8);
            change(&mut page);
            spec.pages[1].canonical = Some(page);
        }
    };
    check(canonical(|page| page.page_bytes = 0), page("canonical page_bytes"));
    check(canonical(|page| page.runs.clear()), page("runs"));
    check(canonical(|page| page.runs[0].bytes = 0), page("bytes of a run"));
    check(canonical(|page| page.runs[0].count = 0), page("count of a run"));
    let none = BlockLayout::new(&[(REGION, 200)], &[]);
    assert_eq!(none, Err(GeometryError::Zero { field: "groups" }));
}

#[test]
fn what_does_not_fit_is_named() {
    let region = RegionId(5);
    check(|spec| spec.pages[1].region = region, GeometryError::UnknownRegion { page: name(0, 1), region });
    let twice = BlockLayout::new(&[(REGION, 200), (region, 8), (REGION, 200)], &[spec()]);
    assert_eq!(twice, Err(GeometryError::RepeatedRegion { region: REGION }));
    check(
        |spec| spec.pages[1].block_stride = 7,
        GeometryError::StrideTooSmall { page: name(0, 1), field: "block_stride", stride: 7, page_bytes: 8 },
    );
    check(
        |spec| spec.pages[1].base_offset = 169,
        GeometryError::BeyondRegion { page: name(0, 1), region: REGION, end: 201, region_bytes: 200 },
    );
    check(
        |spec| spec.chunk_bytes = Some(31),
        GeometryError::BeyondChunk { page: name(0, 1), end: 32, chunk_bytes: 31 },
    );
    let overlap = GeometryError::PagesOverlap { first: name(0, 0), second: name(0, 1), region: REGION };
    check(|spec| spec.pages[1].base_offset = 31, overlap);
    let place = ChunkPlace { offset: 15, plane_stride: 0, block_stride: 8 };
    let overlap = GeometryError::ChunkOverlap { first: name(0, 0), second: name(0, 1) };
    check(|spec| spec.pages[1].place = Some(place), overlap);
    let place = ChunkPlace { offset: 40, plane_stride: 0, block_stride: 7 };
    let overlap = GeometryError::ChunkOverlap { first: name(0, 1), second: name(0, 1) };
    check(|spec| spec.pages[1].place = Some(place), overlap);
    let bases = BlockLayout::with_page_bases(&chunk(), 1, 8, &[0, 8, 16], 96);
    assert_eq!(bases, Err(GeometryError::PageBases { given: 3, layers: 2, planes: 2 }));
}

#[test]
fn canonical_runs_stay_in_both_pages_and_apart() {
    let canonical = |runs: &[(u64, u64, u64, u32)]| {
        let run = |&(local_offset, chunk_offset, bytes, count)| ByteRun {
            local_offset,
            chunk_offset,
            bytes,
            count,
            local_stride: 3,
            chunk_stride: 4,
        };
        CanonicalPage { page_bytes: 12, runs: runs.iter().map(run).collect() }
    };
    let check = |runs: &[(u64, u64, u64, u32)], expected| {
        check(|spec| spec.pages[1].canonical = Some(canonical(runs)), expected);
    };
    let beyond =
        |run, side, page_bytes| GeometryError::BeyondPage { page: name(0, 1), run, side, page_bytes };
    check(&[(0, 0, 2, 2), (6, 8, 3, 1)], beyond(1, "device", 8));
    check(&[(0, 0, 2, 4)], beyond(0, "device", 8));
    check(&[(0, 10, 3, 1)], beyond(0, "chunk", 12));
    check(&[(u64::MAX, 0, 2, 2)], beyond(0, "device", 8));
    let overlap = |side| GeometryError::RunsOverlap { page: name(0, 1), side };
    check(&[(0, 0, 2, 2), (4, 8, 2, 1)], overlap("device"));
    check(&[(0, 0, 2, 2), (5, 5, 2, 1)], overlap("chunk"));
    let mut fits = spec();
    fits.pages[1].canonical = Some(canonical(&[(0, 0, 2, 2), (5, 6, 2, 1)]));
    let layout = BlockLayout::new(&[(REGION, 200)], &[fits]).unwrap();
    // The second stretch of the first run and the second run are joined.
    let lengths: Vec<_> = layout.groups()[0].strips.iter().map(|strip| strip.bytes).collect();
    assert_eq!(lengths, [8, 2, 4]);
}

#[test]
fn descriptions_that_would_take_the_memory_are_refused() {
    let too_many = |field, max| GeometryError::TooMany { group: GroupIdx(0), field, max };
    check(|spec| spec.pages[0].planes = u32::MAX, too_many("planes", 1 << 14));
    let run = |spec: &mut GroupSpec| {
        let canonical = CanonicalPage::of_parts(u32::MAX, 1, 0, 1, 1);
        spec.pages[0].canonical = Some(canonical);
    };
    check(run, too_many("stretches", 1 << 22));
    let place = Some(ChunkPlace { offset: 0, plane_stride: 0, block_stride: 9 });
    check(
        |spec| (spec.blocks_per_chunk, spec.pages[0].place) = (1 << 23, place),
        too_many("stretches", 1 << 22),
    );
    // Side by side, sub-blocks take none.
    let mut spec = spec();
    spec.blocks_per_chunk = u32::MAX;
    assert!(BlockLayout::new(&[(REGION, 200)], &[spec]).is_ok());
}

#[test]
fn one_stretch_is_what_both_sides_keep_together() {
    let num_strips = |layout: BlockLayout| {
        let mut table = strips::Table::default();
        let group = &layout.groups()[0];
        table.fill(group.strips(), group.blocks_per_chunk());
        table.strips.len()
    };
    let of_one = ChunkLayout::new(2, 2, 8, 1).unwrap();
    assert_eq!(num_strips(BlockLayout::block_first(&of_one, 3, 96).unwrap()), 1);
    assert_eq!(num_strips(BlockLayout::layer_first_interleaved(&of_one, 3, 96).unwrap()), 2);
    assert_eq!(num_strips(BlockLayout::layer_first(&of_one, 3, 96).unwrap()), 4);
    assert_eq!(num_strips(BlockLayout::block_first(&chunk(), 3, 96).unwrap()), 4);

    // Neighbours on the device, and in sub-block 0; in sub-block 1 only with equal strides.
    let page = |nth: u64, block_stride| {
        let place = ChunkPlace { offset: nth * 8, plane_stride: 0, block_stride };
        PageRef::new(0, REGION, nth * 8, 8).with_block_stride(16).with_place(place)
    };
    for (block_stride, num) in [(20, 1), (28, 2)] {
        let group = GroupSpec::new(4, 2, vec![page(0, 20), page(1, block_stride)]);
        assert_eq!(num_strips(BlockLayout::new(&[(REGION, 64)], &[group]).unwrap()), num);
    }
}

/// Changes a number of a sound description a little, or much.
fn disturb(case: &mut Case, random: &mut Random) {
    let pick = |random: &mut Random, len: usize| usize::try_from(random.below(len as u64)).unwrap();
    let group = pick(random, case.groups.len());
    let group = &mut case.groups[group];
    let page = pick(random, group.pages.len());
    let page = &mut group.pages[page];
    let by = 1 + random.below(5);
    let number = match random.below(8) {
        0 => &mut page.base_offset,
        1 => &mut page.block_stride,
        2 => &mut page.plane_stride,
        3 => &mut page.page_bytes,
        4 => match &mut page.place {
            Some(place) => &mut place.offset,
            None => &mut page.base_offset,
        },
        5 => match &mut page.canonical {
            Some(canonical) => &mut canonical.runs[0].chunk_offset,
            None => &mut page.plane_stride,
        },
        6 => return group.pool = None,
        _ => match &mut page.place {
            Some(place) => &mut place.block_stride,
            None => &mut page.block_stride,
        },
    };
    *number = if random.one_in(2) { number.saturating_sub(by) } else { *number + by };
}

/// Whose a byte of the device is.
#[derive(PartialEq)]
struct Owner {
    pool: usize,
    group: usize,
    block: u32,
}

type Owners = HashMap<(RegionId, u64), Vec<Owner>>;

/// Whether a description is sound, by a map of every byte.
fn is_sound(case: &Case) -> bool {
    let mut owners = Owners::new();
    (0..case.groups.len()).all(|group| {
        let (mut in_chunk, mut computed) = (vec![false; 4000], 0);
        let spec = &case.groups[group];
        spec.pages.iter().all(|page| {
            let whole = page.canonical.as_ref().map_or(page.page_bytes, |page| page.page_bytes);
            page.page_bytes > 0
                && runs_are_sound(page, whole)
                && owns_its_bytes(case, group, page, &mut owners)
                && takes_its_place(spec, page, whole, &mut computed, &mut in_chunk)
        })
    })
}

/// Whether all bytes of a page are in the region and nobody's, or of the same block of another group in the pool.
fn owns_its_bytes(case: &Case, group: usize, page: &PageRef, owners: &mut Owners) -> bool {
    let spec = &case.groups[group];
    let same = |other: &GroupSpec| spec.pool.is_some() && other.pool == spec.pool;
    let pool = case.groups.iter().position(same).unwrap_or(group);
    let region = case.regions.iter().find(|(region, _)| *region == page.region);
    let blocks = (0..spec.num_blocks).flat_map(|block| (0..page.planes).map(move |plane| (block, plane)));
    blocks.into_iter().all(|(block, plane)| {
        let of_block = page.base_offset + u64::from(block) * page.block_stride;
        let start = of_block + u64::from(plane) * page.plane_stride;
        (start..start + page.page_bytes).all(|byte| {
            let owners = owners.entry((page.region, byte)).or_default();
            let may = |other: &Owner| other.pool == pool && other.block == block && other.group != group;
            let is_free = owners.iter().all(may);
            owners.push(Owner { pool, group, block });
            is_free && region.is_some_and(|(_, bytes)| byte < *bytes)
        })
    })
}

/// Whether all bytes of a page in a chunk are in the chunk and nobody's.
fn takes_its_place(
    spec: &GroupSpec,
    page: &PageRef,
    whole: u64,
    computed: &mut u64,
    in_chunk: &mut [bool],
) -> bool {
    let blocks = u64::from(spec.blocks_per_chunk);
    let given = page.place;
    let place =
        given.unwrap_or(ChunkPlace { offset: *computed, plane_stride: whole * blocks, block_stride: whole });
    *computed += if given.is_none() { whole * blocks * u64::from(page.planes) } else { 0 };
    let pages = (0..blocks).flat_map(|sub| (0..page.planes).map(move |plane| (sub, plane)));
    pages.into_iter().all(|(sub, plane)| {
        let start = place.offset + sub * place.block_stride + u64::from(plane) * place.plane_stride;
        (start..start + whole).all(|byte| {
            let taken = std::mem::replace(&mut in_chunk[usize::try_from(byte).unwrap()], true);
            !taken && spec.chunk_bytes.is_none_or(|bytes| byte < bytes)
        })
    })
}

fn runs_are_sound(page: &PageRef, whole: u64) -> bool {
    let (mut local, mut chunk) = (vec![false; 1000], vec![false; 1000]);
    page.canonical.iter().flat_map(|page| &page.runs).all(|run| {
        (0..u64::from(run.count)).all(|nth| {
            (0..run.bytes).all(|byte| {
                let at = run.local_offset + nth * run.local_stride + byte;
                let to = run.chunk_offset + nth * run.chunk_stride + byte;
                let free = !local[usize::try_from(at).unwrap()] && !chunk[usize::try_from(to).unwrap()];
                local[usize::try_from(at).unwrap()] = true;
                chunk[usize::try_from(to).unwrap()] = true;
                free && at < page.page_bytes && to < whole
            })
        })
    })
}

#[test]
fn a_layout_is_made_exactly_if_no_byte_is_outside_or_shared() {
    let (mut made, mut refused) = (0, 0);
    with_seeds(6_000, |random| {
        let mut case = Case::random(random);
        assert!(is_sound(&case), "{case:?}");
        for _ in 0..random.between(0, 2) {
            disturb(&mut case, random);
        }
        let layout = BlockLayout::new(&case.regions, &case.groups);
        assert_eq!(layout.is_ok(), is_sound(&case), "{:?} {case:?}", layout.err());
        *(if layout.is_ok() { &mut made } else { &mut refused }) += 1;
    });
    eprintln!("{made} layouts made, {refused} refused");
}
