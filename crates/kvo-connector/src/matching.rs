//! How far a request's tokens can be loaded, over all groups.
//!
//! A boundary is a number of tokens, from the first on, that compute need not do again. Every group says up to where it
//! could go, and lowers the boundary until all agree:
//!
//! - full attention needs every token in front of the boundary;
//! - a sliding window of `w` tokens needs the `w - 1` in front of it, which the next token attends to beside itself;
//! - a state needs the one that was left behind exactly there.
//!
//! What is in front of `computed` is on the GPU already, in every group as far as the group needs it.

use std::ops::Range;

use crate::options::{GroupKind, GroupOptions};

/// What is known of a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Found {
    /// It can be loaded now.
    Ready,
    /// It may be there in a later step: it is on its way, or a tier is still looking.
    Later,
    /// It is nowhere, or its hash is not known.
    Absent,
}

/// Where chunks are looked for. Asking may bring a chunk up from a lower tier, so nothing is asked that is not needed.
pub(crate) trait Finder {
    /// What is known of chunk `chunk` of a group; for a chunk beyond the hashes that are known, [`Found::Absent`].
    fn find(&mut self, group: usize, chunk: usize) -> Found;
}

/// What is to be matched.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wish {
    /// Tokens that are on the GPU.
    pub(crate) computed: u32,
    /// Tokens beyond which nothing is loaded.
    pub(crate) limit: u32,
    /// Tokens of the request.
    pub(crate) num_tokens: u32,
    /// Whether the last token is computed in any case, to have its logits.
    pub(crate) recompute_last: bool,
    /// Boundaries are multiples of it: whole blocks in every group.
    pub(crate) step: u32,
}

/// A boundary on which all groups agree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Boundary {
    /// Tokens up to the end of the last block that is loaded.
    pub(crate) end: u32,
    /// Tokens that compute need not do.
    pub(crate) usable: u32,
    /// A chunk of it that will only be there later, if there is one: its group and number.
    pub(crate) later: Option<(usize, usize)>,
}

impl Wish {
    /// Tokens that compute need not do, if everything up to `end` is loaded.
    fn usable(&self, end: u32) -> u32 {
        if self.recompute_last && end >= self.num_tokens { self.num_tokens.saturating_sub(1) } else { end }
    }

    /// No boundary is further than this one.
    pub(crate) fn end_max(&self) -> u32 {
        self.floor(self.limit.min(self.num_tokens))
    }

    fn floor(&self, tokens: u32) -> u32 {
        tokens / self.step * self.step
    }
}

/// The first token that a group needs of a boundary at `end`; `end` or more if it needs none.
fn first_needed(group: &GroupOptions, wish: &Wish, end: u32) -> u32 {
    let first = match group.kind {
        GroupKind::Full => 0,
        GroupKind::Window { tokens } => wish.usable(end).saturating_add(1).saturating_sub(tokens),
        // The state at the end, and nothing in front of it.
        GroupKind::State => end.saturating_sub(1),
    };
    first.max(wish.computed)
}

/// The chunks of a group, head to tail, that a boundary at `end` needs.
pub(crate) fn needed(group: &GroupOptions, wish: &Wish, end: u32) -> Range<usize> {
    pieces(first_needed(group, wish, end), end, group.chunk_tokens())
}

/// The blocks of a group, as places in its table, that a load up to `end` fills.
pub(crate) fn blocks_needed(group: &GroupOptions, wish: &Wish, end: u32) -> Range<usize> {
    pieces(first_needed(group, wish, end), end, group.block_tokens)
}

/// The pieces of `tokens` tokens that have some of those from `first` to `end`.
fn pieces(first: u32, end: u32, tokens: u32) -> Range<usize> {
    if first >= end { 0..0 } else { (first / tokens) as usize..end.div_ceil(tokens) as usize }
}

/// The furthest boundary beyond `computed` on which all groups agree, or none.
pub(crate) fn converge(groups: &[GroupOptions], wish: &Wish, finder: &mut impl Finder) -> Option<Boundary> {
    let mut end = wish.end_max();
    // Full attention first: it needs the most, and asks from the head on, so that what it asks for is of use.
    let full = |(_, group): &(usize, &GroupOptions)| group.kind == GroupKind::Full;
    for (nth, group) in groups.iter().enumerate().filter(full) {
        end = longest_prefix(nth, group, wish, end, finder);
    }
    loop {
        let before = end;
        for (nth, group) in groups.iter().enumerate().filter(|of| !full(of)) {
            end = rightmost(nth, group, wish, end, finder);
        }
        if wish.usable(end) <= wish.computed {
            return None;
        }
        if end == before {
            break;
        }
    }
    let mut of_all = groups
        .iter()
        .enumerate()
        .flat_map(|(nth, group)| needed(group, wish, end).map(move |chunk| (nth, chunk)));
    let later = of_all.find(|(group, chunk)| finder.find(*group, *chunk) == Found::Later);
    Some(Boundary { end, usable: wish.usable(end), later })
}

/// The furthest boundary up to `end` in front of which a group has every chunk.
fn longest_prefix(nth: usize, group: &GroupOptions, wish: &Wish, end: u32, finder: &mut impl Finder) -> u32 {
    let missing = needed(group, wish, end).find(|chunk| finder.find(nth, *chunk) == Found::Absent);
    missing.map_or(end, |chunk| wish.floor(start_of(group, chunk)))
}

/// The furthest boundary up to `end` in front of which a group has the window or the state that the boundary needs.
fn rightmost(nth: usize, group: &GroupOptions, wish: &Wish, mut end: u32, finder: &mut impl Finder) -> u32 {
    while end > wish.computed {
        if group.kind == GroupKind::State
            && (!end.is_multiple_of(group.chunk_tokens()) || wish.usable(end) < end)
        {
            end = wish.floor(end - 1);
            continue;
        }
        let missing = needed(group, wish, end).rev().find(|chunk| finder.find(nth, *chunk) == Found::Absent);
        let Some(missing) = missing else { return end };
        // Every boundary behind the start of that chunk needs it too, but where a token sees only itself.
        let sees_others = group.kind != GroupKind::Window { tokens: 1 };
        let next = if sees_others { start_of(group, missing).min(end - 1) } else { end - 1 };
        end = wish.floor(next);
    }
    end
}

fn start_of(group: &GroupOptions, chunk: usize) -> u32 {
    u32::try_from(chunk).map_or(u32::MAX, |chunk| chunk.saturating_mul(group.chunk_tokens()))
}

#[cfg(test)]
mod tests;
