//! Where the pages of the GPU's blocks are, and where they go in a chunk.

use kvo_core::{BlockId, ChunkLayout, GroupIdx, RegionId};

use crate::GeometryError;

mod check;
mod describe;
mod group;
mod overlap;
pub(crate) mod strips;
#[cfg(test)]
pub(crate) mod tests;

pub use self::{
    describe::{ByteRun, CanonicalPage, ChunkPlace, GroupSpec, LayerTensor, PageRef},
    group::{GroupLayout, PagePlane},
};

/// Where each block's pages are in the device's memory and in the chunks, for all groups of an engine's KV caches.
///
/// A layout that exists is sound, checked once in 64 bits: every page of every block lies inside its region, every page
/// of a chunk inside the chunk, and no two share a byte on either side, but for what groups of one
/// [pool](GroupSpec::pool) may share. It says where bytes are and owns none of them.
///
/// Attached regions give the [`RegionId`]s; an engine that has one allocation for everything can use the constructors
/// that put one group in `RegionId(0)`.
///
/// ```
/// use kvo_core::{BlockId, ChunkLayout, GroupIdx, RegionId};
/// use kvo_cuda::{BlockLayout, GroupSpec, LayerTensor, PageRef};
///
/// # fn main() -> Result<(), kvo_cuda::GeometryError> {
/// // Layers 0 and 2 attend to everything, each in a tensor `[K or V][block][page]` of its own; 8 blocks a chunk.
/// let chunk = ChunkLayout::new(2, 2, 4096, 8).expect("the sizes fit");
/// let tensors = [(0, 0), (2, 1)].map(|(layer, region)| LayerTensor { layer, region: RegionId(region), offset: 0 });
/// let full = GroupSpec::layer_first(&chunk, 100, &tensors);
/// // Layer 1 has a state instead: one page of 5000 bytes a block, padded to 8192; one block a chunk.
/// let state = PageRef::new(1, RegionId(2), 0, 5000).with_block_stride(8192);
/// let states = GroupSpec::new(50, 1, vec![state]);
///
/// let regions = [(RegionId(0), 100 * 8192), (RegionId(1), 100 * 8192), (RegionId(2), 50 * 8192)];
/// let layout = BlockLayout::new(&regions, &[full, states])?;
/// let states = layout.group(GroupIdx(1)).expect("it has two groups");
/// assert_eq!(states.chunk_bytes(), 5000);
/// assert_eq!(states.page_offset(0, BlockId(3)), Some(3 * 8192));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockLayout {
    /// The regions in the order of their ids, with their lengths.
    regions: Box<[(RegionId, u64)]>,
    groups: Box<[GroupLayout]>,
}

impl BlockLayout {
    /// Checks a description: the regions that pages may be in, each with its bytes, and the groups in the order of their
    /// indices.
    ///
    /// # Errors
    /// [`GeometryError`] names the group, the page reference and the field that is not sound.
    pub fn new(regions: &[(RegionId, u64)], groups: &[GroupSpec]) -> Result<Self, GeometryError> {
        let mut regions: Box<[_]> = regions.into();
        regions.sort_unstable();
        if let Some(pair) = regions.windows(2).find(|pair| pair[0].0 == pair[1].0) {
            return Err(GeometryError::RepeatedRegion { region: pair[0].0 });
        }
        let groups = check::groups(&regions, groups)?;
        Ok(Self { regions, groups })
    }

    /// One group in region 0: each plane of each layer is a tensor, one after the other from byte 0 on,
    /// `[layer][plane][block][page]`. Layers, planes and page size are those of `chunk`.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn layer_first(
        chunk: &ChunkLayout,
        num_blocks: u32,
        device_bytes: u64,
    ) -> Result<Self, GeometryError> {
        Self::of_one(device_bytes, GroupSpec::layer_first(chunk, num_blocks, &in_a_row(chunk, num_blocks)))
    }

    /// One group in region 0: each layer is a tensor in which a block's K and V pages are neighbours,
    /// `[layer][block][plane][page]`. Otherwise as [`layer_first`](Self::layer_first).
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn layer_first_interleaved(
        chunk: &ChunkLayout,
        num_blocks: u32,
        device_bytes: u64,
    ) -> Result<Self, GeometryError> {
        Self::of_one(device_bytes, GroupSpec::interleaved(chunk, num_blocks, &in_a_row(chunk, num_blocks)))
    }

    /// One group in region 0: one tensor holds all layers, a block's pages side by side,
    /// `[block][layer][plane][page]`. Otherwise as [`layer_first`](Self::layer_first).
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn block_first(
        chunk: &ChunkLayout,
        num_blocks: u32,
        device_bytes: u64,
    ) -> Result<Self, GeometryError> {
        Self::of_one(device_bytes, GroupSpec::block_first(chunk, num_blocks, tensor(0, 0)))
    }

    /// One group in region 0 with one stride: `page_bases` are the byte offsets of block 0's pages in `[layer][plane]`
    /// order, and `block_stride` is the number of bytes from a block's page to the next block's in the same plane.
    ///
    /// # Errors
    /// [`GeometryError::PageBases`] unless there is one base for each plane of each layer, else as [`new`](Self::new).
    pub fn with_page_bases(
        chunk: &ChunkLayout,
        num_blocks: u32,
        block_stride: u64,
        page_bases: &[u64],
        device_bytes: u64,
    ) -> Result<Self, GeometryError> {
        let (layers, planes) = (chunk.layers(), chunk.planes());
        if page_bases.len() as u64 != u64::from(layers) * u64::from(planes) {
            return Err(GeometryError::PageBases { given: page_bases.len(), layers, planes });
        }
        let layers = (0..layers).flat_map(|layer| (0..planes).map(move |_| layer));
        let pages = layers.zip(page_bases).map(|(layer, &base)| {
            PageRef::new(layer, RegionId(0), base, chunk.page_bytes()).with_block_stride(block_stride)
        });
        Self::of_one(device_bytes, GroupSpec::new(num_blocks, chunk.blocks_per_chunk(), pages.collect()))
    }

    fn of_one(device_bytes: u64, group: GroupSpec) -> Result<Self, GeometryError> {
        Self::new(&[(RegionId(0), device_bytes)], &[group])
    }

    /// The groups, in the order of their indices.
    pub fn groups(&self) -> &[GroupLayout] {
        &self.groups
    }

    /// A group, if there is one of that index.
    pub fn group(&self, group: GroupIdx) -> Option<&GroupLayout> {
        self.groups.get(usize::try_from(group.0).ok()?)
    }

    /// The regions in the order of their ids, each with its bytes.
    pub fn regions(&self) -> &[(RegionId, u64)] {
        &self.regions
    }

    /// Bytes of a region, if it is one of the layout's.
    pub fn region_bytes(&self, region: RegionId) -> Option<u64> {
        region_bytes(&self.regions, region)
    }

    /// Where the page of `block` starts in a plane of a group: planes are counted over the group's page references in
    /// their order. `None` if there is no such group, plane or block.
    pub fn page_offset(&self, group: GroupIdx, plane: usize, block: BlockId) -> Option<u64> {
        self.group(group)?.page_offset(plane, block)
    }
}

/// Bytes of a region. The regions are in the order of their ids.
fn region_bytes(regions: &[(RegionId, u64)], region: RegionId) -> Option<u64> {
    let nth = regions.binary_search_by_key(&region, |&(region, _)| region).ok()?;
    Some(regions[nth].1)
}

/// The layers of `chunk`, one after the other from byte 0 of region 0 on.
fn in_a_row(chunk: &ChunkLayout, num_blocks: u32) -> Vec<LayerTensor> {
    let block_bytes = chunk.page_bytes().saturating_mul(u64::from(chunk.planes()));
    let layer_bytes = block_bytes.saturating_mul(u64::from(num_blocks));
    (0..chunk.layers()).map(|layer| tensor(layer, layer_bytes.saturating_mul(u64::from(layer)))).collect()
}

fn tensor(layer: u32, offset: u64) -> LayerTensor {
    LayerTensor { layer, region: RegionId(0), offset }
}
