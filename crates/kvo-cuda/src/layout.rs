//! Where the pages of the GPU's blocks are.

use kvo_core::{BlockId, ChunkLayout};

use crate::GeometryError;

/// Where each block's pages are in the device's KV memory.
///
/// A block has one page for each plane of each layer. The page of block `b` in a plane starts at that plane's base
/// plus `b * block_stride` bytes, so one list of bases and one stride describe every usual arrangement:
///
/// | constructor | memory, row-major | copies of a chunk of neighbouring blocks |
/// |---|---|---|
/// | [`layer_first`](Self::layer_first) | `[layer][plane][block][page]` | one a plane |
/// | [`layer_first_interleaved`](Self::layer_first_interleaved) | `[layer][block][plane][page]` | one a page; one a layer if a chunk is one block |
/// | [`block_first`](Self::block_first) | `[block][layer][plane][page]` | one a page; one in all if a chunk is one block |
/// | [`with_page_bases`](Self::with_page_bases) | anything else: padding, tensors far apart | |
///
/// A layout that exists is sound: every page of every block lies inside `device_bytes`, and no two pages share a
/// byte. It says where bytes are and owns none of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockLayout {
    chunk: ChunkLayout,
    num_blocks: u32,
    block_stride: u64,
    page_bases: Box<[u64]>,
    device_bytes: u64,
}

impl BlockLayout {
    /// Each plane of each layer is a tensor of its own, one after the other: `[layer][plane][block][page]`.
    ///
    /// Layers, planes and page size are those of `chunk`; the first tensor starts at byte 0 of the device's KV
    /// memory, which is `device_bytes` long.
    ///
    /// # Errors
    /// As [`with_page_bases`](Self::with_page_bases).
    pub fn layer_first(
        chunk: &ChunkLayout,
        num_blocks: u32,
        device_bytes: u64,
    ) -> Result<Self, GeometryError> {
        let page_bytes = chunk.page_bytes();
        let plane_bytes = u64::from(num_blocks).checked_mul(page_bytes);
        let bases = bases(chunk, |layer, plane| plane_bytes?.checked_mul(plane_index(chunk, layer, plane)?))?;
        Self::with_page_bases(chunk, num_blocks, page_bytes, bases, device_bytes)
    }

    /// Each layer is a tensor of its own in which a block's K and V pages are neighbours:
    /// `[layer][block][plane][page]`. Otherwise as [`layer_first`](Self::layer_first).
    ///
    /// # Errors
    /// As [`with_page_bases`](Self::with_page_bases).
    pub fn layer_first_interleaved(
        chunk: &ChunkLayout,
        num_blocks: u32,
        device_bytes: u64,
    ) -> Result<Self, GeometryError> {
        let page_bytes = chunk.page_bytes();
        let stride = stride(chunk, u64::from(chunk.planes()))?;
        let bases = bases(chunk, |layer, plane| {
            let layer_base = u64::from(layer).checked_mul(stride)?.checked_mul(u64::from(num_blocks))?;
            layer_base.checked_add(u64::from(plane).checked_mul(page_bytes)?)
        })?;
        Self::with_page_bases(chunk, num_blocks, stride, bases, device_bytes)
    }

    /// One tensor holds all layers, a block's pages side by side: `[block][layer][plane][page]`. Otherwise as
    /// [`layer_first`](Self::layer_first).
    ///
    /// # Errors
    /// As [`with_page_bases`](Self::with_page_bases).
    pub fn block_first(
        chunk: &ChunkLayout,
        num_blocks: u32,
        device_bytes: u64,
    ) -> Result<Self, GeometryError> {
        let page_bytes = chunk.page_bytes();
        let bases = bases(chunk, |layer, plane| plane_index(chunk, layer, plane)?.checked_mul(page_bytes))?;
        Self::with_page_bases(chunk, num_blocks, chunk.block_bytes(), bases, device_bytes)
    }

    /// The general case. `page_bases` are the byte offsets of block 0's pages in `[layer][plane]` order, and
    /// `block_stride` is the number of bytes from a block's page to the next block's page in the same plane.
    ///
    /// # Errors
    /// [`GeometryError::Zero`] without blocks; [`GeometryError::StrideTooSmall`] if neighbouring blocks would
    /// overlap; [`GeometryError::PageBases`] unless there is one base for each plane of each layer;
    /// [`GeometryError::Overflow`] or [`GeometryError::BeyondDevice`] for a page outside `device_bytes`;
    /// [`GeometryError::PagesOverlap`] if two planes share bytes.
    pub fn with_page_bases(
        chunk: &ChunkLayout,
        num_blocks: u32,
        block_stride: u64,
        page_bases: Vec<u64>,
        device_bytes: u64,
    ) -> Result<Self, GeometryError> {
        let (layers, planes, page_bytes) = (chunk.layers(), chunk.planes(), chunk.page_bytes());
        if num_blocks == 0 {
            return Err(GeometryError::Zero { field: "num_blocks" });
        }
        if block_stride < page_bytes {
            return Err(GeometryError::StrideTooSmall { block_stride, page_bytes });
        }
        if page_bases.len() as u64 != u64::from(layers) * u64::from(planes) {
            return Err(GeometryError::PageBases { given: page_bases.len(), layers, planes });
        }
        let last_block = u64::from(num_blocks - 1).checked_mul(block_stride);
        let names = (0..layers).flat_map(|layer| (0..planes).map(move |plane| (layer, plane)));
        for ((layer, plane), &base) in names.zip(&page_bases) {
            let end = last_block
                .and_then(|offset| offset.checked_add(base)?.checked_add(page_bytes))
                .ok_or(GeometryError::Overflow { layer, plane })?;
            if end > device_bytes {
                return Err(GeometryError::BeyondDevice { layer, plane, end, device_bytes });
            }
        }
        if let Some((first, second)) = overlap(&page_bases, num_blocks, block_stride, page_bytes) {
            return Err(GeometryError::PagesOverlap { first, second });
        }
        let page_bases = page_bases.into_boxed_slice();
        Ok(Self { chunk: *chunk, num_blocks, block_stride, page_bases, device_bytes })
    }

    /// The chunks that blocks of this layout are gathered into.
    pub fn chunk(&self) -> &ChunkLayout {
        &self.chunk
    }

    /// Blocks the device has.
    pub fn num_blocks(&self) -> u32 {
        self.num_blocks
    }

    /// Bytes from a block's page to the next block's page in the same plane.
    pub fn block_stride(&self) -> u64 {
        self.block_stride
    }

    /// Byte offsets of block 0's pages, in `[layer][plane]` order.
    pub fn page_bases(&self) -> &[u64] {
        &self.page_bases
    }

    /// Bytes of the device's KV memory.
    pub fn device_bytes(&self) -> u64 {
        self.device_bytes
    }

    /// Where the page of `block` starts in the plane at `page_bases()[plane_index]`, in bytes, or `None` if there
    /// is no such block or plane.
    pub fn page_offset(&self, plane_index: usize, block: BlockId) -> Option<u64> {
        let base = *self.page_bases.get(plane_index)?;
        (block.0 < self.num_blocks).then(|| base + u64::from(block.0) * self.block_stride)
    }
}

/// The bases of all planes, in `[layer][plane]` order.
fn bases(chunk: &ChunkLayout, base: impl Fn(u32, u32) -> Option<u64>) -> Result<Vec<u64>, GeometryError> {
    (0..chunk.layers())
        .flat_map(|layer| (0..chunk.planes()).map(move |plane| (layer, plane)))
        .map(|(layer, plane)| base(layer, plane).ok_or(GeometryError::Overflow { layer, plane }))
        .collect()
}

/// The place of a plane in `[layer][plane]` order.
fn plane_index(chunk: &ChunkLayout, layer: u32, plane: u32) -> Option<u64> {
    u64::from(layer).checked_mul(u64::from(chunk.planes()))?.checked_add(u64::from(plane))
}

/// The stride of blocks that are `pages` pages long.
fn stride(chunk: &ChunkLayout, pages: u64) -> Result<u64, GeometryError> {
    pages.checked_mul(chunk.page_bytes()).ok_or(GeometryError::Overflow { layer: 0, plane: 0 })
}

/// Two planes that share bytes, if any do. All pages were found to end within 64 bits.
fn overlap(bases: &[u64], num_blocks: u32, block_stride: u64, page_bytes: u64) -> Option<(usize, usize)> {
    let mut sorted: Vec<(u64, usize)> = bases.iter().copied().zip(0..).collect();
    sorted.sort_unstable();
    let span = u64::from(num_blocks - 1) * block_stride + page_bytes;
    for (nth, &(base, first)) in sorted.iter().enumerate() {
        // Only planes that begin before this one's last page ends can share a byte with it.
        for &(other, second) in sorted[nth + 1..].iter().take_while(|&&(other, _)| other - base < span) {
            let distance = other - base;
            // The pages of blocks `b` and `b + k` are `distance - k * block_stride` apart: nearest for these two k.
            let (blocks, behind) = (distance / block_stride, distance % block_stride);
            let near_below = behind < page_bytes && blocks < u64::from(num_blocks);
            let near_above = block_stride - behind < page_bytes && blocks + 1 < u64::from(num_blocks);
            if near_below || near_above {
                return Some((first.min(second), first.max(second)));
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chunk() -> ChunkLayout {
        ChunkLayout::new(2, 2, 8, 2).unwrap()
    }

    #[test]
    fn each_usual_layout_puts_a_page_where_its_picture_says() {
        let chunk = chunk();
        // Page of block 1 in layer 1, plane 0 among 3 blocks: plane index 2.
        let layer_first = BlockLayout::layer_first(&chunk, 3, 96).unwrap();
        assert_eq!(layer_first.page_offset(2, BlockId(1)), Some((2 * 3 + 1) * 8));
        let interleaved = BlockLayout::layer_first_interleaved(&chunk, 3, 96).unwrap();
        assert_eq!(interleaved.page_offset(2, BlockId(1)), Some((3 + 1) * 2 * 8));
        let block_first = BlockLayout::block_first(&chunk, 3, 96).unwrap();
        assert_eq!(block_first.page_offset(2, BlockId(1)), Some((4 + 2) * 8));
        assert_eq!(block_first.page_offset(2, BlockId(3)), None);
        assert_eq!(block_first.page_offset(4, BlockId(0)), None);
    }

    #[test]
    fn a_layout_that_ends_with_the_device_fits_and_one_byte_less_does_not() {
        let chunk = chunk();
        for make in [BlockLayout::layer_first, BlockLayout::layer_first_interleaved, BlockLayout::block_first]
        {
            assert!(make(&chunk, 3, 96).is_ok());
            let error = make(&chunk, 3, 95).unwrap_err();
            assert!(
                matches!(error, GeometryError::BeyondDevice { end: 96, device_bytes: 95, .. }),
                "{error}"
            );
            assert_eq!(make(&chunk, 0, 96), Err(GeometryError::Zero { field: "num_blocks" }));
        }
    }

    #[test]
    fn sizes_beyond_64_bits_are_errors() {
        let chunk = ChunkLayout::new(2, 2, 1 << 61, 1).unwrap();
        for make in [BlockLayout::layer_first, BlockLayout::layer_first_interleaved, BlockLayout::block_first]
        {
            let error = make(&chunk, u32::MAX, u64::MAX).unwrap_err();
            assert!(matches!(error, GeometryError::Overflow { .. }), "{error}");
        }
        let bases = vec![u64::MAX - 4, 0, 1, 2];
        let error = BlockLayout::with_page_bases(&self::chunk(), 1, 8, bases, u64::MAX).unwrap_err();
        assert_eq!(error, GeometryError::Overflow { layer: 0, plane: 0 });
    }

    #[test]
    fn a_wrong_number_of_bases_and_a_short_stride_are_errors() {
        let error = BlockLayout::with_page_bases(&chunk(), 1, 8, vec![0, 8, 16], 96).unwrap_err();
        assert_eq!(error, GeometryError::PageBases { given: 3, layers: 2, planes: 2 });
        let error = BlockLayout::with_page_bases(&chunk(), 1, 7, vec![0, 8, 16, 24], 96).unwrap_err();
        assert_eq!(error, GeometryError::StrideTooSmall { block_stride: 7, page_bytes: 8 });
    }

    /// Compares the overlap check with a map of all bytes, for every pair of bases.
    #[test]
    fn planes_overlap_exactly_if_two_pages_share_a_byte() {
        let chunk = ChunkLayout::new(1, 2, 4, 1).unwrap();
        for (num_blocks, stride) in [(1, 4), (1, 9), (2, 4), (3, 4), (3, 7), (3, 8), (4, 11)] {
            for second in 0..60 {
                for bases in [vec![20, second], vec![second, 20]] {
                    let mut owners = [0; 128];
                    for base in &bases {
                        for block in 0..u64::from(num_blocks) {
                            for byte in 0..4 {
                                owners[usize::try_from(base + block * stride + byte).unwrap()] += 1;
                            }
                        }
                    }
                    let shared = owners.iter().any(|&owners| owners > 1);
                    let made = BlockLayout::with_page_bases(&chunk, num_blocks, stride, bases.clone(), 128);
                    let error = made.err();
                    assert_eq!(
                        error,
                        shared.then_some(GeometryError::PagesOverlap { first: 0, second: 1 }),
                        "{num_blocks} blocks, stride {stride}, bases {bases:?}"
                    );
                }
            }
        }
    }
}
