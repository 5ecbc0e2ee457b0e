use std::collections::HashMap;

use kvo_core::{ChunkLayout, RegionId};

use super::*;
use crate::{
    ByteRun, CanonicalPage, ChunkPlace, GroupSpec, LayerTensor, PageRef,
    testing::{Case, Random, with_seeds},
};

fn identity(num_groups: usize) -> ChunkIdentity {
    ChunkIdentity {
        model: "model".to_owned(),
        dtype: "bfloat16".to_owned(),
        tokens_per_block: vec![16; num_groups],
        parallelism: Parallelism::SINGLE,
    }
}

fn shared() -> Parallelism {
    Parallelism::Shared { order: "token head dim".to_owned() }
}

fn of_spec(spec: GroupSpec, identity: &ChunkIdentity) -> Fingerprint {
    let layout = BlockLayout::new(&[(RegionId(0), 1 << 40)], &[spec]).unwrap();
    layout.fingerprint(identity).unwrap()
}

/// K and V of two layers, 4 blocks a chunk, one page padded and one spread over a canonical page.
fn spec() -> GroupSpec {
    let padded = PageRef::new(0, RegionId(0), 0, 48).with_planes(2, 1 << 20).with_block_stride(64);
    let canonical = CanonicalPage::of_parts(4, 3, 1, 1, 12);
    let spread = PageRef::new(1, RegionId(0), 1 << 30, 48).with_canonical(canonical);
    GroupSpec::new(100, 4, vec![padded, spread])
}

/// Stored data lives by these values: another one here means that every store in the field is another one. They were
/// worked out from the description of the encoding by another program.
#[test]
fn the_encoding_does_not_change_unnoticed() {
    let check = |identity: &ChunkIdentity, expected: &str| {
        assert_eq!(of_spec(spec(), identity).to_string(), expected);
    };
    check(&identity(1), "6b9871f8e313d2a3b2a9e6a91715d3b53bfb04f25c32c500bb1d7332eb583a16");
    let shared = ChunkIdentity { parallelism: shared(), ..identity(1) };
    check(&shared, "a8517a2c4688e8c3623cdbc06b29c2280388ae3408fd46c75b5fb682623e6c98");
}

#[test]
fn every_field_of_the_identity_counts() {
    let changes: [fn(&mut ChunkIdentity); 12] = [
        |_| {},
        |identity| identity.model.push('2'),
        |identity| identity.dtype = "float16".to_owned(),
        // The same letters, told apart by where one field ends.
        |identity| (identity.model, identity.dtype) = ("modelb".to_owned(), "float16".to_owned()),
        |identity| identity.tokens_per_block[0] = 32,
        |identity| identity.parallelism = with(|tensor, _, _| tensor.of = 2),
        |identity| identity.parallelism = with(|tensor, _, _| (tensor.rank, tensor.of) = (1, 2)),
        |identity| identity.parallelism = with(|_, pipeline, _| pipeline.of = 2),
        |identity| identity.parallelism = with(|_, pipeline, _| (pipeline.rank, pipeline.of) = (1, 2)),
        |identity| identity.parallelism = with(|_, _, context| context.of = 2),
        |identity| identity.parallelism = shared(),
        |identity| identity.parallelism = Parallelism::Shared { order: "head token dim".to_owned() },
    ];
    let fingerprints = changes.map(|change| {
        let mut identity = identity(1);
        change(&mut identity);
        of_spec(spec(), &identity)
    });
    assert_all_differ(&fingerprints);
}

fn with(change: impl FnOnce(&mut RankOf, &mut RankOf, &mut RankOf)) -> Parallelism {
    let (mut tensor, mut pipeline, mut context) = (RankOf::SINGLE, RankOf::SINGLE, RankOf::SINGLE);
    change(&mut tensor, &mut pipeline, &mut context);
    Parallelism::Rank { tensor, pipeline, context }
}

#[track_caller]
fn assert_all_differ(fingerprints: &[Fingerprint]) {
    for (nth, fingerprint) in fingerprints.iter().enumerate() {
        let same = fingerprints[..nth].iter().position(|other| other == fingerprint);
        assert_eq!(same, None, "the same as number {nth}");
    }
}

/// Changes the bytes of a chunk, each in another way.
const CHUNK_CHANGES: [fn(&mut GroupSpec); 9] = [
    |_| {},
    |spec| spec.blocks_per_chunk += 1,
    |spec| spec.chunk_bytes = Some(1 << 20),
    |spec| spec.pages[0].layer += 5,
    |spec| spec.pages[0].planes += 1,
    |spec| {
        spec.pages.pop();
    },
    |spec| {
        let canonical = spec.pages[1].canonical.as_mut().unwrap();
        canonical.page_bytes += 1;
    },
    |spec| {
        let place = ChunkPlace { offset: 4000, plane_stride: 4 * 144, block_stride: 144 };
        spec.pages[1].place = Some(place);
    },
    |spec| {
        let place = ChunkPlace { offset: 2 * 4 * 48, plane_stride: 4 * 145, block_stride: 145 };
        spec.pages[1].place = Some(place);
    },
];

/// Changes which bytes of a page a rank puts where, and not the chunk.
const RANK_CHANGES: [fn(&mut GroupSpec); 4] = [
    |spec| spec.pages[1].canonical = Some(CanonicalPage::of_parts(4, 3, 2, 1, 12)),
    |spec| run(spec).count = 3,
    |spec| run(spec).bytes = 11,
    // More of the device's page, of which the chunk has the same.
    |spec| (spec.pages[1].page_bytes, spec.pages[1].block_stride) = (50, 50),
];

fn run(spec: &mut GroupSpec) -> &mut ByteRun {
    &mut spec.pages[1].canonical.as_mut().unwrap().runs[0]
}

fn changed(change: fn(&mut GroupSpec)) -> GroupSpec {
    let mut spec = spec();
    change(&mut spec);
    spec
}

#[test]
fn every_field_that_changes_the_bytes_of_a_chunk_counts() {
    let of_rank: Vec<_> = CHUNK_CHANGES
        .iter()
        .chain(&RANK_CHANGES)
        .map(|&change| of_spec(changed(change), &identity(1)))
        .collect();
    assert_all_differ(&of_rank);
    let identity = ChunkIdentity { parallelism: shared(), ..identity(1) };
    assert_all_differ(&CHUNK_CHANGES.map(|change| of_spec(changed(change), &identity)));
}

#[test]
fn groups_count_with_their_order_and_number() {
    let tensor = |layer: u32| LayerTensor { layer, region: RegionId(0), offset: u64::from(layer) << 20 };
    let group = |layer, block_bytes| GroupSpec::cross_layer(block_bytes, 10, 2, tensor(layer));
    let of_groups = |groups: &[GroupSpec]| {
        let layout = BlockLayout::new(&[(RegionId(0), 1 << 30)], groups).unwrap();
        layout.fingerprint(&identity(groups.len())).unwrap()
    };
    assert_all_differ(&[
        of_groups(&[group(0, 64)]),
        of_groups(&[group(0, 64), group(1, 32)]),
        of_groups(&[group(1, 32), group(0, 64)]),
        of_groups(&[group(0, 64), group(1, 32), group(2, 32)]),
    ]);
    let layout = BlockLayout::new(&[(RegionId(0), 1 << 30)], &[group(0, 64)]).unwrap();
    let error = layout.fingerprint(&identity(2)).unwrap_err();
    assert_eq!(error, GeometryError::TokensPerBlock { given: 2, num_groups: 1 });
}

#[test]
fn where_blocks_are_on_the_device_does_not_count() {
    let chunk = ChunkLayout::new(3, 2, 48, 4).unwrap();
    let row = [0, 1, 2].map(|layer| LayerTensor { layer, region: RegionId(layer), offset: 0 });
    let of = |groups: GroupSpec| {
        let regions = [0, 1, 2].map(|region| (RegionId(region), 1 << 30));
        BlockLayout::new(&regions, &[groups]).unwrap().fingerprint(&identity(1)).unwrap()
    };
    let usual = of(GroupSpec::layer_first(&chunk, 10, &row));
    assert_eq!(of(GroupSpec::layer_first(&chunk, 20, &row)), usual);
    assert_eq!(of(GroupSpec::interleaved(&chunk, 10, &row)), usual);
    assert_eq!(of(GroupSpec::block_first(&chunk, 10, row[0])), usual);
    assert_eq!(
        of(GroupSpec::layer_first(&chunk, 10, &row.map(|tensor| LayerTensor { offset: 7, ..tensor }))),
        usual
    );
    assert_eq!(of(GroupSpec::layer_first(&chunk, 10, &row).with_pool(3)), usual);
    // A chunk that keeps blocks together is another one.
    assert_ne!(of(GroupSpec::cross_layer(chunk.block_bytes(), 10, 4, row[0])), usual);
}

#[test]
fn how_the_same_bytes_are_described_does_not_count() {
    let usual = of_spec(spec(), &identity(1));
    let mut by_hand = spec();
    by_hand.chunk_bytes = Some(2 * 4 * 48 + 4 * 144);
    by_hand.pages[0].place = Some(ChunkPlace { offset: 0, plane_stride: 4 * 48, block_stride: 48 });
    by_hand.pages[1].place = Some(ChunkPlace { offset: 2 * 4 * 48, plane_stride: 0, block_stride: 144 });
    let canonical = by_hand.pages[1].canonical.as_mut().unwrap();
    let run = canonical.runs[0];
    let stretch = |nth: u64, from: u64, to: u64| ByteRun {
        local_offset: nth * run.local_stride + from,
        chunk_offset: run.chunk_offset + nth * run.chunk_stride + from,
        bytes: to - from,
        count: 1,
        local_stride: 9,
        chunk_stride: 9,
    };
    canonical.runs = (0..4).rev().flat_map(|nth| [stretch(nth, 5, 12), stretch(nth, 0, 5)]).collect();
    by_hand.pages.reverse();
    assert_eq!(of_spec(by_hand, &identity(1)), usual);
}

/// A rank of `of` ranks of a model of 8 heads: 16 tokens a page, 4 bytes a token and head.
fn rank(rank: u32, of: u32) -> GroupSpec {
    let heads = 8 / of;
    let page_bytes = u64::from(16 * heads * 4);
    let page = |layer: u32| {
        PageRef::new(layer, RegionId(0), u64::from(layer) << 30, page_bytes)
            .with_planes(2, 1 << 20)
            .with_canonical(CanonicalPage::of_parts(16, 8, rank * heads, heads, 4))
    };
    GroupSpec::new(50 * of, 4, (0..3).map(page).collect())
}

#[test]
fn ranks_of_any_parallelism_share_canonical_chunks() {
    let identity = ChunkIdentity { parallelism: shared(), ..identity(1) };
    let whole = of_spec(rank(0, 1), &identity);
    for of in [1, 2, 4, 8] {
        for nth in 0..of {
            assert_eq!(of_spec(rank(nth, of), &identity), whole, "rank {nth} of {of}");
        }
    }
    // A rank that has all heads needs no runs to say so.
    let mut plain = rank(0, 1);
    plain.pages.iter_mut().for_each(|page| page.canonical = None);
    assert_eq!(of_spec(plain, &identity), whole);
    for change in RANK_CHANGES {
        assert_eq!(of_spec(changed(change), &identity), of_spec(spec(), &identity));
    }
}

/// Two random layouts have one fingerprint exactly if they put the same bytes of a page at the same places of a chunk.
#[test]
fn random_layouts_have_one_fingerprint_exactly_if_their_chunks_are_the_same() {
    let mut seen: HashMap<Fingerprint, Vec<Vec<u64>>> = HashMap::new();
    let mut by_chunks: HashMap<Vec<Vec<u64>>, Fingerprint> = HashMap::new();
    let mut again = 0;
    with_seeds(3_000, |random: &mut Random| {
        let case = Case::random(random);
        let layout = case.layout();
        let fingerprint = layout.fingerprint(&identity(case.groups.len())).unwrap();
        let chunks = chunks_of(&case);
        again += usize::from(by_chunks.contains_key(&chunks));
        let same = by_chunks.entry(chunks.clone()).or_insert(fingerprint);
        assert_eq!(*same, fingerprint, "{case:?}");
        let same = seen.entry(fingerprint).or_insert_with(|| chunks.clone());
        assert_eq!(*same, chunks, "{case:?}");
    });
    eprintln!("{} fingerprints, {again} met again", seen.len());
}

/// What the chunks of each group are, written out byte by byte.
fn chunks_of(case: &Case) -> Vec<Vec<u64>> {
    let layout = case.layout();
    let mut groups = Vec::new();
    for (group, spec) in layout.groups().iter().zip(&case.groups) {
        let mut bytes = Vec::new();
        for plane in group.planes() {
            let page = &spec.pages[plane.page];
            let pairs: Vec<(u64, u64)> = match &page.canonical {
                None => (0..page.page_bytes).map(|byte| (byte, byte)).collect(),
                Some(canonical) => canonical.runs.iter().flat_map(bytes_of_run).collect(),
            };
            for sub in 0..u64::from(spec.blocks_per_chunk) {
                for &(local, to) in &pairs {
                    let at = plane.chunk_offset + sub * plane.chunk_block_stride + to;
                    let whose = [u64::from(plane.layer), u64::from(plane.plane), sub, local];
                    bytes.push((at, whose, plane.page_bytes, plane.chunk_page_bytes));
                }
            }
        }
        bytes.sort_unstable();
        let mut written = vec![u64::from(spec.blocks_per_chunk), group.chunk_bytes()];
        for (at, whose, page_bytes, chunk_page_bytes) in bytes {
            written.push(at);
            written.extend(whose);
            written.extend([page_bytes, chunk_page_bytes]);
        }
        groups.push(written);
    }
    groups
}

fn bytes_of_run(run: &ByteRun) -> Vec<(u64, u64)> {
    let stretch = |nth: u64| {
        let (local, chunk) =
            (run.local_offset + nth * run.local_stride, run.chunk_offset + nth * run.chunk_stride);
        (0..run.bytes).map(move |byte| (local + byte, chunk + byte))
    };
    (0..u64::from(run.count)).flat_map(stretch).collect()
}
