//! What an engine says of its KV caches. Nothing is checked before a [`BlockLayout`](crate::BlockLayout) is made of it.

use kvo_core::{ChunkLayout, RegionId};

/// A KV cache group, as the engine describes it: layers that share one block table.
///
/// The constructors are the usual arrangements, without padding; [`new`](Self::new) takes any list of pages. MLA is
/// any of them with one plane.
///
/// | constructor | device memory, row-major | chunk | copies of a chunk of neighbouring blocks |
/// |---|---|---|---|
/// | [`layer_first`](Self::layer_first) | `[plane][block][page]`, a tensor a layer | `[layer][plane][sub-block][page]` | one a plane |
/// | [`interleaved`](Self::interleaved) | `[block][plane][page]`, a tensor a layer | `[layer][plane][sub-block][page]` | one a page; one a layer if a chunk is one block |
/// | [`block_first`](Self::block_first) | `[block][layer][plane][page]` | `[layer][plane][sub-block][page]` | one a page; one in all if a chunk is one block |
/// | [`cross_layer`](Self::cross_layer) | `[block][layer][plane][page]` | `[sub-block][layer][plane][page]` | one in all |
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupSpec {
    /// Blocks the group has on the device.
    pub num_blocks: u32,
    /// Blocks a chunk of it.
    pub blocks_per_chunk: u32,
    /// Which set of block numbers its blocks are of; `None` for one of its own. Of the groups of one pool a block is
    /// one group's at a time, so there the pages of the *same* block may share bytes, as where an engine lays groups
    /// over the same tensors. Pages of different blocks, and of groups of different pools, never do.
    pub pool: Option<u32>,
    /// Bytes of a chunk; `None` for the end of the last page in it. Ranks that share chunks all say the whole.
    pub chunk_bytes: Option<u64>,
    /// What a block consists of.
    pub pages: Vec<PageRef>,
}

impl GroupSpec {
    /// Any arrangement.
    pub fn new(num_blocks: u32, blocks_per_chunk: u32, pages: Vec<PageRef>) -> Self {
        Self { num_blocks, blocks_per_chunk, pool: None, chunk_bytes: None, pages }
    }

    /// Each layer is a tensor `[plane][block][page]`: K of all blocks, then V of all blocks.
    ///
    /// Planes, page size and blocks a chunk are those of `chunk`; the layers are those of `tensors`.
    pub fn layer_first(chunk: &ChunkLayout, num_blocks: u32, tensors: &[LayerTensor]) -> Self {
        let page_bytes = chunk.page_bytes();
        let plane_stride = page_bytes.saturating_mul(u64::from(num_blocks));
        let page = |tensor: &LayerTensor| tensor.page(page_bytes).with_planes(chunk.planes(), plane_stride);
        Self::new(num_blocks, chunk.blocks_per_chunk(), tensors.iter().map(page).collect())
    }

    /// Each layer is a tensor `[block][plane][page]`: a block's K and V pages are neighbours. Otherwise as
    /// [`layer_first`](Self::layer_first).
    pub fn interleaved(chunk: &ChunkLayout, num_blocks: u32, tensors: &[LayerTensor]) -> Self {
        let page_bytes = chunk.page_bytes();
        let block_stride = page_bytes.saturating_mul(u64::from(chunk.planes()));
        let page = |tensor: &LayerTensor| {
            tensor.page(page_bytes).with_planes(chunk.planes(), page_bytes).with_block_stride(block_stride)
        };
        Self::new(num_blocks, chunk.blocks_per_chunk(), tensors.iter().map(page).collect())
    }

    /// One tensor `[block][layer][plane][page]` holds all layers of `chunk`, of which `first` is the first one.
    pub fn block_first(chunk: &ChunkLayout, num_blocks: u32, first: LayerTensor) -> Self {
        let page_bytes = chunk.page_bytes();
        let layer_bytes = page_bytes.saturating_mul(u64::from(chunk.planes()));
        let page = |nth: u32| {
            let offset = first.offset.saturating_add(layer_bytes.saturating_mul(u64::from(nth)));
            LayerTensor { layer: first.layer.saturating_add(nth), offset, ..first }
                .page(page_bytes)
                .with_planes(chunk.planes(), page_bytes)
                .with_block_stride(chunk.block_bytes())
        };
        Self::new(num_blocks, chunk.blocks_per_chunk(), (0..chunk.layers()).map(page).collect())
    }

    /// One tensor `[block][bytes of the block]`: the fewest and largest copies. A block is one page of `block_bytes`
    /// bytes that counts as layer `tensor.layer`; give the first layer, which waits for all of it.
    pub fn cross_layer(
        block_bytes: u64,
        num_blocks: u32,
        blocks_per_chunk: u32,
        tensor: LayerTensor,
    ) -> Self {
        Self::new(num_blocks, blocks_per_chunk, vec![tensor.page(block_bytes)])
    }

    /// The same group with the blocks of pool `pool`.
    #[must_use]
    pub fn with_pool(self, pool: u32) -> Self {
        Self { pool: Some(pool), ..self }
    }

    /// The same group with chunks of `chunk_bytes` bytes.
    #[must_use]
    pub fn with_chunk_bytes(self, chunk_bytes: u64) -> Self {
        Self { chunk_bytes: Some(chunk_bytes), ..self }
    }
}

/// Where the KV memory of a layer begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LayerTensor {
    /// The layer.
    pub layer: u32,
    /// The region it is in.
    pub region: RegionId,
    /// Where it begins in the region, in bytes.
    pub offset: u64,
}

impl LayerTensor {
    /// A page at the start of the tensor.
    fn page(&self, page_bytes: u64) -> PageRef {
        PageRef::new(self.layer, self.region, self.offset, page_bytes)
    }
}

/// The pages that each block has in one layer: one a plane, all of the same size.
///
/// The page of block `b` in plane `p` begins at `base_offset + b * block_stride + p * plane_stride` of its region.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PageRef {
    /// The layer it belongs to. In a plan by layer it comes with this layer.
    pub layer: u32,
    /// The region the pages are in.
    pub region: RegionId,
    /// Where block 0's page of plane 0 begins, in bytes.
    pub base_offset: u64,
    /// Bytes from a block's page to the next block's; more than `page_bytes` where pages are padded or stand between
    /// others.
    pub block_stride: u64,
    /// Planes: 2 for K and V, 1 for MLA.
    pub planes: u32,
    /// Bytes from a plane's page to the next plane's of the same block. Without a meaning for one plane.
    pub plane_stride: u64,
    /// Bytes of a page that are KV data.
    pub page_bytes: u64,
    /// Where the pages are in a chunk; `None` for `[page reference][plane][sub-block][page]`, behind the page
    /// references before it that have no place either.
    pub place: Option<ChunkPlace>,
    /// What a page becomes in a chunk; `None` for the page as it is.
    pub canonical: Option<CanonicalPage>,
}

impl PageRef {
    /// Pages of one plane, side by side, with a place in the chunk that is computed.
    pub fn new(layer: u32, region: RegionId, base_offset: u64, page_bytes: u64) -> Self {
        Self {
            layer,
            region,
            base_offset,
            block_stride: page_bytes,
            planes: 1,
            plane_stride: 0,
            page_bytes,
            place: None,
            canonical: None,
        }
    }

    /// The same pages in several planes.
    #[must_use]
    pub fn with_planes(self, planes: u32, plane_stride: u64) -> Self {
        Self { planes, plane_stride, ..self }
    }

    /// The same pages, padded or with others between them.
    #[must_use]
    pub fn with_block_stride(self, block_stride: u64) -> Self {
        Self { block_stride, ..self }
    }

    /// The same pages at a given place in the chunk.
    #[must_use]
    pub fn with_place(self, place: ChunkPlace) -> Self {
        Self { place: Some(place), ..self }
    }

    /// The same pages, spread over canonical ones.
    #[must_use]
    pub fn with_canonical(self, canonical: CanonicalPage) -> Self {
        Self { canonical: Some(canonical), ..self }
    }
}

/// Where the pages of a [`PageRef`] are in a chunk: sub-block `s` of plane `p` begins at
/// `offset + p * plane_stride + s * block_stride`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChunkPlace {
    /// Where plane 0 of sub-block 0 begins, in bytes.
    pub offset: u64,
    /// Bytes from a plane to the next one. Without a meaning for one plane.
    pub plane_stride: u64,
    /// Bytes from a sub-block to the next one. Without a meaning for chunks of one block.
    pub block_stride: u64,
}

/// A page in the form that chunks have it in, whichever rank it is from: the rank's bytes and those of others.
///
/// With canonical pages ranks of different tensor parallelism write and read the same chunks. Each has a part of the
/// heads; its `runs` say where the bytes of that part are in the page of all heads. Bytes that no run names are other
/// ranks': they are not touched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CanonicalPage {
    /// Bytes of the whole page in a chunk.
    pub page_bytes: u64,
    /// Where this rank's bytes go. No byte of either side is in two runs.
    pub runs: Vec<ByteRun>,
}

impl CanonicalPage {
    /// Pages `[row][part][part_bytes]` of which a rank has parts `first..first + parts` as `[row][part][part_bytes]`:
    /// rows are tokens and parts heads, or the one row is the page and the parts are heads with all their tokens.
    pub fn of_parts(rows: u32, all_parts: u32, first: u32, parts: u32, part_bytes: u64) -> Self {
        let local = part_bytes.saturating_mul(u64::from(parts));
        let whole = part_bytes.saturating_mul(u64::from(all_parts));
        let run = ByteRun {
            local_offset: 0,
            chunk_offset: part_bytes.saturating_mul(u64::from(first)),
            bytes: local,
            count: rows,
            local_stride: local,
            chunk_stride: whole,
        };
        Self { page_bytes: whole.saturating_mul(u64::from(rows)), runs: vec![run] }
    }
}

/// Stretches of a page, evenly spaced on both sides: stretch `n` is `bytes` bytes from `local_offset + n * local_stride`
/// of the device's page, and from `chunk_offset + n * chunk_stride` of the canonical one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ByteRun {
    /// Where the first stretch begins in the device's page.
    pub local_offset: u64,
    /// Where the first stretch begins in the canonical page.
    pub chunk_offset: u64,
    /// Bytes of a stretch.
    pub bytes: u64,
    /// Stretches.
    pub count: u32,
    /// Bytes from a stretch to the next one in the device's page. Without a meaning for one stretch.
    pub local_stride: u64,
    /// Bytes from a stretch to the next one in the canonical page. Without a meaning for one stretch.
    pub chunk_stride: u64,
}
