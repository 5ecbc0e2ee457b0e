mod host;
mod lists;
mod ptx;

use super::*;
use lists::Random;

fn cut_all(fragments: &[Slice], grid: Grid) -> (Vec<Slice>, Vec<Launch>) {
    let (mut slices, mut launches) = (Vec::new(), Vec::new());
    cut(fragments, grid, &mut slices, &mut launches);
    (slices, launches)
}

fn fragment(source: u64, destination: u64, bytes: u64) -> Slice {
    Slice { source, destination, bytes }
}

/// The slices of each fragment follow each other without a gap, launches have all slices in order, and no launch is
/// larger than one may be.
#[track_caller]
fn check_cut(fragments: &[Slice], grid: Grid) {
    let (slices, launches) = cut_all(fragments, grid);
    let mut rest = slices.iter();
    for fragment in fragments {
        let mut at = 0;
        while at < fragment.bytes {
            let slice = rest.next().expect("a slice for each part of a fragment");
            assert_eq!((slice.source, slice.destination), (fragment.source + at, fragment.destination + at));
            assert!((1..=SLICE_BYTES_MAX).contains(&slice.bytes), "{slice:?}");
            at += slice.bytes;
            assert!(at == fragment.bytes || at % CUT_BYTES == 0, "{slice:?} of {fragment:?}");
        }
        assert_eq!(at, fragment.bytes);
    }
    assert_eq!(rest.next(), None);
    let mut next = 0;
    for launch in &launches {
        let own = &slices[launch.slices.clone()];
        assert_eq!(launch.slices.start, next);
        next = launch.slices.end;
        assert!((1..=LAUNCH_SLICES_MAX).contains(&own.len()), "{launch:?}");
        assert_eq!(launch.bytes, own.iter().map(|slice| slice.bytes).sum::<u64>());
        assert!(launch.bytes <= LAUNCH_BYTES_MAX, "{launch:?}");
        assert!(Grid::new(launch.ctas, launch.threads).is_some(), "{launch:?}");
        assert!(launch.ctas <= grid.ctas && launch.threads <= grid.threads, "{launch:?}");
        let words = own.iter().flat_map(|slice| [slice.source, slice.destination, slice.bytes]);
        let is_aligned = words.into_iter().all(|word| word % 16 == 0);
        assert_eq!(launch.entry == Entry::Aligned, is_aligned, "{launch:?}");
    }
    assert_eq!(next, slices.len());
}

#[test]
fn slices_and_launches_are_the_fragments_again() {
    let seeds = Random::seeds(400);
    for seed in seeds {
        eprintln!("KVO_TEST_SEED={seed}");
        let mut random = Random::new(seed);
        let unit = [1, 8, 16, 512][random.below(4)];
        let longest = [40, 5000, 70_000, 3 << 20, 200 << 20][random.below(5)];
        let fragments: Vec<_> = (0..random.below(40))
            .map(|_| {
                let mut word = |below| random.below(below) as u64 / unit * unit;
                fragment(word(1 << 40), word(1 << 40), word(longest))
            })
            .collect();
        let (ctas, warps) = (1 + random.below(9), 1 + random.below(16));
        let grid = Grid::new(u32::try_from(ctas).unwrap(), u32::try_from(32 * warps).unwrap()).unwrap();
        check_cut(&fragments, grid);
    }
}

#[test]
fn nothing_to_copy_is_no_launch() {
    assert_eq!(cut_all(&[], Grid::default()), (vec![], vec![]));
    assert_eq!(cut_all(&[fragment(1, 2, 0)], Grid::default()), (vec![], vec![]));
}

#[test]
fn cutting_adds_to_the_lists() {
    let (mut slices, mut launches) = cut_all(&[fragment(0, 4096, 64)], Grid::default());
    cut(&[fragment(16, 8192, 128)], Grid::default(), &mut slices, &mut launches);
    assert_eq!(slices, [fragment(0, 4096, 64), fragment(16, 8192, 128)]);
    assert_eq!((launches[1].slices.clone(), launches[1].bytes), (1..2, 128));
}

#[track_caller]
fn check_shape(fragments: &[Slice], ctas: u32, threads: u32, num_slices: usize) {
    let (_, launches) = cut_all(fragments, Grid::default());
    let [launch] = &launches[..] else { panic!("{launches:?}") };
    assert_eq!((launch.ctas, launch.threads, launch.slices.len()), (ctas, threads, num_slices));
}

#[test]
fn one_large_fragment_uses_every_warp() {
    check_shape(&[fragment(0, 1 << 30, 5 << 20)], 4, 512, 320);
    check_shape(&[fragment(0, 1 << 30, 256 << 10)], 4, 512, 64);
}

#[test]
fn a_small_plan_takes_no_more_than_it_needs() {
    check_shape(&[fragment(0, 1 << 30, 16)], 1, 32, 1);
    check_shape(&[fragment(0, 1 << 30, 12 << 10)], 3, 32, 3);
    check_shape(&[fragment(0, 1 << 30, 20 << 10)], 4, 64, 5);
    let pages: Vec<_> = (0..1000).map(|n| fragment(n * 8192, 1 << 30, 8192)).collect();
    check_shape(&pages, 4, 512, 1000);
}

#[test]
fn slices_of_a_fragment_are_even() {
    let pages: Vec<_> = (0..1000).map(|n| fragment(n << 20, 1 << 40, 24 << 10)).collect();
    let (slices, _) = cut_all(&pages, Grid::default());
    assert!(slices.iter().all(|slice| slice.bytes == 12 << 10));
}

#[test]
fn a_launch_ends_at_64_mib_or_16384_slices() {
    let (_, launches) = cut_all(&[fragment(0, 1 << 40, (64 << 20) + 16)], Grid::default());
    assert!(launches[0].bytes > (64 << 20) - SLICE_BYTES_MAX);
    assert_eq!(launches.iter().map(|launch| launch.bytes).sum::<u64>(), (64 << 20) + 16);
    assert_eq!(launches.len(), 2);
    let (_, launches) = cut_all(&[fragment(0, 1 << 40, 64 << 20)], Grid::default());
    assert_eq!((launches.len(), launches[0].slices.len()), (1, 4096));
    let small: Vec<_> = (0..16_385).map(|n| fragment(n * 16, 1 << 40, 16)).collect();
    let (_, launches) = cut_all(&small, Grid::default());
    assert_eq!(launches.iter().map(|launch| launch.slices.len()).collect::<Vec<_>>(), [16_384, 1]);
}

#[test]
fn each_launch_has_the_entry_that_its_own_slices_need() {
    let mut fragments = vec![fragment(0, 1 << 40, 64 << 20), fragment(1, 1 << 41, 64 << 20)];
    let entries = |fragments: &[Slice]| -> Vec<_> {
        cut_all(fragments, Grid::default()).1.iter().map(|launch| launch.entry).collect()
    };
    assert_eq!(entries(&fragments), [Entry::Aligned, Entry::Any]);
    fragments[0].bytes -= 8;
    assert_eq!(entries(&fragments[..1]), [Entry::Any]);
    fragments[0].bytes = 32;
    assert_eq!(entries(&fragments[..1]), [Entry::Aligned]);
    fragments[0].destination += 8;
    assert_eq!(entries(&fragments[..1]), [Entry::Any]);
}

#[test]
fn grids_that_the_kernel_cannot_have_are_none() {
    for (ctas, threads) in [(0, 512), (1, 0), (1, 31), (1, 33), (1, 544), (1 << 17, 32)] {
        assert_eq!(Grid::new(ctas, threads), None, "{ctas} x {threads}");
    }
    assert_eq!(Grid::new(4, 512), Some(Grid::default()));
    assert!(Grid::new(1, 32).is_some());
}

#[test]
fn a_slice_is_three_words() {
    let bytes = fragment(1, 2 << 32, 3 << 56).to_bytes();
    assert_eq!(bytes.len(), size_of::<Slice>());
    assert_eq!(bytes[..8], [1, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(bytes[8..16], [0, 0, 0, 0, 2, 0, 0, 0]);
    assert_eq!(bytes[16..], [0, 0, 0, 0, 0, 0, 0, 3]);
}
