//! Stretches of a block that are contiguous on both sides: what copies are made of.

use kvo_core::RegionId;

use super::{PagePlane, overlap::overlap};
use crate::{CanonicalPage, GeometryError, PageName};

/// Bytes of a page that stay together in the chunk's page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    /// Where they begin in the device's page.
    pub(crate) local: u64,
    /// Where they begin in the chunk's page.
    pub(crate) chunk: u64,
    pub(crate) bytes: u64,
}

impl Piece {
    fn goes_on_with(&self, next: &Self) -> bool {
        self.local + self.bytes == next.local && self.chunk + self.bytes == next.chunk
    }
}

/// Where a page's bytes go: what can be joined is, in the order of the chunk's bytes. The runs are known to lie inside
/// both pages.
pub(super) fn pieces(name: PageName, canonical: &CanonicalPage) -> Result<Box<[Piece]>, GeometryError> {
    let mut pieces: Vec<_> = canonical
        .runs
        .iter()
        .flat_map(|run| {
            (0..u64::from(run.count)).map(|nth| Piece {
                local: run.local_offset + nth * run.local_stride,
                chunk: run.chunk_offset + nth * run.chunk_stride,
                bytes: run.bytes,
            })
        })
        .collect();
    for (side, start) in
        [("device", (|piece| piece.local) as fn(&Piece) -> u64), ("chunk", |piece| piece.chunk)]
    {
        let mut stretches: Vec<_> = pieces.iter().map(|piece| (start(piece), piece.bytes, ())).collect();
        if overlap(&mut stretches).is_some() {
            return Err(GeometryError::RunsOverlap { page: name, side });
        }
    }
    pieces.sort_unstable_by_key(|piece| piece.chunk);
    pieces.dedup_by(|next, piece| {
        let joins = piece.goes_on_with(next);
        piece.bytes += if joins { next.bytes } else { 0 };
        joins
    });
    Ok(pieces.into())
}

/// A stretch that every block has: that of block `b` as sub-block `s` is `bytes` bytes from
/// `base + b * block_stride` of the region, and from `slot_offset + s * sub_stride` of the slot. A stride that nothing
/// is multiplied by is 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Strip {
    pub(crate) layer: u32,
    pub(crate) region: RegionId,
    pub(crate) base: u64,
    pub(crate) block_stride: u64,
    pub(crate) bytes: u64,
    pub(crate) slot_offset: u64,
    pub(crate) sub_stride: u64,
}

impl Strip {
    pub(super) fn new(plane: &PagePlane, piece: Piece, num_blocks: u32, blocks_per_chunk: u32) -> Self {
        Self {
            layer: plane.layer,
            region: plane.region,
            base: plane.base_offset + piece.local,
            block_stride: if num_blocks == 1 { 0 } else { plane.block_stride },
            bytes: piece.bytes,
            slot_offset: plane.chunk_offset + piece.chunk,
            sub_stride: if blocks_per_chunk == 1 { 0 } else { plane.chunk_block_stride },
        }
    }

    /// Whether neighbouring blocks in neighbouring sub-blocks are contiguous on both sides.
    pub(crate) fn is_dense(&self) -> bool {
        self.bytes == self.block_stride && self.bytes == self.sub_stride
    }

    /// Whether every block's stretch of `next` goes on where this one's ends, on both sides.
    fn goes_on_with(&self, next: &Self) -> bool {
        self.region == next.region
            && self.block_stride == next.block_stride
            && self.sub_stride == next.sub_stride
            && self.base + self.bytes == next.base
            && self.slot_offset + self.bytes == next.slot_offset
    }
}

/// Stretches that a plan goes through together, joined, with what a planner needs to know of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Table {
    pub(crate) strips: Vec<Strip>,
    /// Whether all of them are dense.
    pub(crate) all_dense: bool,
    /// Bytes of the longest.
    pub(crate) bytes_max: u64,
    /// The last block of a whole chunk less its first one, with which the end of a strip can be the beginning of the
    /// next one: from the least to the greatest. Empty where that never is.
    pub(crate) wraps: Option<(i64, i64)>,
}

impl Table {
    /// An empty one that takes `num_strips` strips without allocating.
    pub(crate) fn with_room(num_strips: usize) -> Self {
        Self { strips: Vec::with_capacity(num_strips), ..Self::default() }
    }

    /// Takes other strips.
    pub(crate) fn fill(&mut self, strips: &[Strip], blocks_per_chunk: u32) {
        self.strips.clear();
        self.strips.extend_from_slice(strips);
        if !self.strips.is_sorted_by_key(|strip| strip.slot_offset) {
            self.strips.sort_unstable_by_key(|strip| strip.slot_offset);
        }
        self.strips.dedup_by(|next, strip| {
            let joins = strip.goes_on_with(next);
            strip.bytes += if joins { next.bytes } else { 0 };
            joins
        });
        self.all_dense = self.strips.iter().all(Strip::is_dense);
        self.bytes_max = self.strips.iter().map(|strip| strip.bytes).max().unwrap_or(0);
        let wraps = self.strips.windows(2).filter_map(|pair| wrap(&pair[0], &pair[1], blocks_per_chunk));
        self.wraps = wraps.reduce(|one, other| (one.0.min(other.0), one.1.max(other.1)));
    }
}

/// How many blocks the last one of a whole chunk must be ahead of the first, so that `next` begins on both sides where
/// `strip` ends: from, to. `None` if it never does.
fn wrap(strip: &Strip, next: &Strip, blocks_per_chunk: u32) -> Option<(i64, i64)> {
    let end = strip.slot_offset + u64::from(blocks_per_chunk - 1) * strip.sub_stride + strip.bytes;
    if strip.region != next.region || end != next.slot_offset {
        return None;
    }
    if strip.block_stride != next.block_stride || strip.block_stride == 0 {
        return Some((i64::MIN, i64::MAX));
    }
    // Both offsets end within 63 bits.
    let gap = next.base.cast_signed() - (strip.base + strip.bytes).cast_signed();
    let (blocks, rest) = (gap / strip.block_stride.cast_signed(), gap % strip.block_stride.cast_signed());
    (rest == 0).then_some((blocks, blocks))
}
