//! One group of a layout, checked.

use kvo_core::{BlockId, RegionId};

use super::strips::{Piece, Strip};

/// The pages of all blocks of a group in one plane of one [page reference](crate::PageRef), on both sides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PagePlane {
    /// The layer.
    pub layer: u32,
    /// The plane among those of its page reference.
    pub plane: u32,
    /// The region the pages are in.
    pub region: RegionId,
    /// Where block 0's page begins in the region, in bytes.
    pub base_offset: u64,
    /// Bytes from a block's page to the next block's.
    pub block_stride: u64,
    /// Bytes of a page on the device.
    pub page_bytes: u64,
    /// Where sub-block 0's page begins in a chunk, in bytes.
    pub chunk_offset: u64,
    /// Bytes from a sub-block's page to the next one's in a chunk.
    pub chunk_block_stride: u64,
    /// Bytes of a page in a chunk: those of the canonical page where there is one.
    pub chunk_page_bytes: u64,
    /// Place of the page reference in the description.
    pub(crate) page: usize,
}

/// One group of a [`BlockLayout`](crate::BlockLayout).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupLayout {
    pub(super) num_blocks: u32,
    pub(super) blocks_per_chunk: u32,
    /// The first group of its pool.
    pub(super) pool: usize,
    pub(super) chunk_bytes: u64,
    pub(super) planes: Box<[PagePlane]>,
    /// What of a page goes where in the chunk's page, for each page reference.
    pub(super) pieces: Box<[Box<[Piece]>]>,
    /// All stretches of a block, layer by layer and within one in the order of the chunk's bytes.
    pub(super) strips: Box<[Strip]>,
}

impl GroupLayout {
    /// Blocks the group has on the device.
    pub fn num_blocks(&self) -> u32 {
        self.num_blocks
    }

    /// Blocks a chunk.
    pub fn blocks_per_chunk(&self) -> u32 {
        self.blocks_per_chunk
    }

    /// Bytes of a chunk: what a slot must hold.
    pub fn chunk_bytes(&self) -> u64 {
        self.chunk_bytes
    }

    /// Bytes that are copied for one block.
    pub fn block_bytes(&self) -> u64 {
        self.strips.iter().map(|strip| strip.bytes).sum()
    }

    /// The planes of all page references, in their order.
    pub fn planes(&self) -> &[PagePlane] {
        &self.planes
    }

    /// Where the page of `block` starts in `planes()[plane]`, in bytes, or `None` if there is no such plane or block.
    pub fn page_offset(&self, plane: usize, block: BlockId) -> Option<u64> {
        let plane = self.planes.get(plane)?;
        (block.0 < self.num_blocks).then(|| plane.base_offset + u64::from(block.0) * plane.block_stride)
    }

    /// The first group of the pool its blocks are of.
    pub(crate) fn pool(&self) -> usize {
        self.pool
    }

    /// What of a page of `plane` goes where in the chunk's page, joined and in the order of the chunk's bytes.
    pub(crate) fn pieces(&self, plane: &PagePlane) -> &[Piece] {
        &self.pieces[plane.page]
    }

    /// All stretches of a block, layer by layer and within one in the order of the chunk's bytes.
    pub(crate) fn strips(&self) -> &[Strip] {
        &self.strips
    }
}
