//! `converge` beside an oracle that tries every boundary and looks at every token.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::*;
use crate::Namespace;

const NAMESPACE: Namespace = Namespace { fingerprint: kvo_cuda::Fingerprint([0; 32]), epoch: 0 };

#[derive(Clone, Debug)]
struct Tiers {
    /// By group and chunk; what is not here is absent.
    chunks: BTreeMap<(usize, usize), Found>,
    asked: BTreeSet<(usize, usize)>,
}

impl Finder for Tiers {
    fn find(&mut self, group: usize, chunk: usize) -> Found {
        self.asked.insert((group, chunk));
        self.chunks.get(&(group, chunk)).copied().unwrap_or(Found::Absent)
    }
}

/// The tokens that a group needs in its chunks for a boundary, one by one; nothing if the boundary cannot be.
fn tokens_needed(group: &GroupOptions, wish: &Wish, end: u32) -> Option<Vec<u32>> {
    let last = wish.recompute_last && end == wish.num_tokens;
    // The token that is computed next.
    let next = if last { end - 1 } else { end };
    let all = (wish.computed..end).filter(|token| match group.kind {
        GroupKind::Full => true,
        GroupKind::Window { tokens } => *token + tokens > next,
        GroupKind::State => token + 1 == end,
    });
    let is_state = group.kind == GroupKind::State;
    let leaves_a_state = end.is_multiple_of(group.block_tokens * group.blocks_per_chunk) && !last;
    (!is_state || leaves_a_state).then(|| all.collect())
}

fn oracle(groups: &[GroupOptions], wish: &Wish, tiers: &Tiers) -> Option<Boundary> {
    let mut ends: Vec<u32> =
        (0..=wish.limit.min(wish.num_tokens)).filter(|end| end.is_multiple_of(wish.step)).collect();
    ends.reverse();
    ends.into_iter().find_map(|end| {
        let last = wish.recompute_last && end == wish.num_tokens && end > 0;
        let usable = if last { end - 1 } else { end };
        if usable <= wish.computed {
            return None;
        }
        let mut later = None;
        for (nth, group) in groups.iter().enumerate() {
            for token in tokens_needed(group, wish, end)? {
                let chunk = (token / (group.block_tokens * group.blocks_per_chunk)) as usize;
                match tiers.chunks.get(&(nth, chunk)) {
                    Some(Found::Ready) => {}
                    Some(Found::Later) => later = later.or(Some((nth, chunk))),
                    _ => return None,
                }
            }
        }
        Some(Boundary { end, usable, later })
    })
}

fn group() -> impl Strategy<Value = GroupOptions> {
    let kind = prop_oneof![
        3 => Just(GroupKind::Full),
        3 => (1..20_u32).prop_map(|tokens| GroupKind::Window { tokens }),
        1 => Just(GroupKind::State),
    ];
    (kind, prop_oneof![Just(1_u32), Just(2), Just(4), Just(3)], 1..4_u32).prop_map(
        |(kind, block_tokens, blocks_per_chunk)| GroupOptions {
            kind,
            block_tokens,
            blocks_per_chunk,
            pool: 0,
        },
    )
}

#[derive(Clone, Debug)]
struct Case {
    groups: Vec<GroupOptions>,
    wish: Wish,
    tiers: Tiers,
}

fn case() -> impl Strategy<Value = Case> {
    let groups = prop::collection::vec(group(), 1..4);
    let numbers = (0..60_u32, 0..60_u32, 0..80_u32, any::<bool>());
    // Most chunks are there, or a boundary is hardly ever found.
    let found = prop_oneof![12 => Just(Found::Ready), 1 => Just(Found::Later), 1 => Just(Found::Absent)];
    (groups, numbers, prop::collection::vec(found, 3 * 64)).prop_map(|(groups, numbers, found)| {
        let (num_tokens, computed, limit, recompute_last) = numbers;
        let step = crate::ConnectorOptions::new(NAMESPACE, groups.clone(), 1).step().unwrap();
        let wish = Wish { computed: computed.min(num_tokens), limit, num_tokens, recompute_last, step };
        let mut chunks = BTreeMap::new();
        for (nth, group) in groups.iter().enumerate() {
            // Only whole chunks have names.
            let num_known = num_tokens / group.chunk_tokens();
            for chunk in 0..num_known as usize {
                chunks.insert((nth, chunk), found[nth * 64 + chunk]);
            }
        }
        Case { groups, wish, tiers: Tiers { chunks, asked: BTreeSet::new() } }
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 20_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn groups_agree_on_the_furthest_boundary_that_there_is(mut case in case()) {
        let expected = oracle(&case.groups, &case.wish, &case.tiers);
        let found = converge(&case.groups, &case.wish, &mut case.tiers);
        prop_assert_eq!(found, expected);
    }

    #[test]
    fn chunks_and_blocks_are_those_of_the_tokens(case in case()) {
        let Some(Boundary { end, .. }) = oracle(&case.groups, &case.wish, &case.tiers) else { return Ok(()) };
        for group in &case.groups {
            let tokens = tokens_needed(group, &case.wish, end).unwrap();
            let pieces = |of: u32| tokens.iter().map(|token| (token / of) as usize).collect::<BTreeSet<_>>();
            let chunks: BTreeSet<usize> = needed(group, &case.wish, end).collect();
            let blocks: BTreeSet<usize> = blocks_needed(group, &case.wish, end).collect();
            prop_assert_eq!(chunks, pieces(group.block_tokens * group.blocks_per_chunk));
            prop_assert_eq!(blocks, pieces(group.block_tokens));
        }
    }
}

/// Groups, chunks that are there by group, tokens computed, tokens in all, tokens that can be used.
#[track_caller]
fn check(groups: &[GroupOptions], there: &[&[usize]], computed: u32, num_tokens: u32, usable: Option<u32>) {
    let of_group = |(nth, chunks): (usize, &&[usize])| -> Vec<_> {
        chunks.iter().map(|chunk| ((nth, *chunk), Found::Ready)).collect()
    };
    let chunks = there.iter().enumerate().flat_map(of_group).collect();
    let step = crate::ConnectorOptions::new(NAMESPACE, groups.to_vec(), 1).step().unwrap();
    let wish = Wish { computed, limit: u32::MAX, num_tokens, recompute_last: true, step };
    let found = converge(groups, &wish, &mut Tiers { chunks, asked: BTreeSet::new() });
    assert_eq!(found.map(|boundary| boundary.usable), usable);
}

#[test]
fn full_attention_ends_at_the_first_gap() {
    let full = GroupOptions::full(16);
    check(&[full], &[&[0, 1, 3]], 0, 100, Some(32));
    check(&[full], &[&[1, 2, 3]], 0, 100, None);
    check(&[full], &[&[1, 2, 3]], 16, 100, Some(64));
    check(&[full.with_blocks_per_chunk(4)], &[&[0, 1]], 16, 200, Some(128));
}

#[test]
fn the_last_token_is_left_to_be_computed() {
    check(&[GroupOptions::full(16)], &[&[0, 1]], 0, 32, Some(31));
    check(&[GroupOptions::full(16)], &[&[0, 1]], 0, 33, Some(32));
    check(&[GroupOptions::full(1)], &[&[0]], 0, 1, None);
}

#[test]
fn a_window_needs_only_what_its_next_token_sees() {
    // 17 tokens, with the one that attends: 16 before it, which are one block.
    check(&[GroupOptions::window(16, 17)], &[&[3]], 0, 100, Some(64));
    check(&[GroupOptions::window(16, 18)], &[&[3]], 0, 100, None);
    check(&[GroupOptions::window(16, 18)], &[&[2, 3]], 0, 100, Some(64));
    // At the end of a prompt the token that is recomputed sees one more to the left.
    check(&[GroupOptions::window(16, 17)], &[&[3]], 0, 64, None);
    check(&[GroupOptions::window(16, 17)], &[&[2, 3]], 0, 64, Some(63));
}

#[test]
fn groups_agree_where_all_have_what_they_need() {
    let groups = [GroupOptions::full(16), GroupOptions::window(16, 17)];
    check(&groups, &[&[0, 1, 2, 3], &[1, 3]], 0, 100, Some(64));
    check(&groups, &[&[0, 1, 2], &[1, 3]], 0, 100, Some(32));
    check(&groups, &[&[0, 1, 2, 3], &[]], 0, 100, None);
    let state = GroupOptions { kind: GroupKind::State, ..GroupOptions::full(16) };
    check(&[groups[0], state], &[&[0, 1, 2, 3], &[1]], 0, 100, Some(32));
    check(&[groups[0], state], &[&[0, 1, 2, 3], &[3]], 0, 64, None);
}
