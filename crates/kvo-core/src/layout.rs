//! Sizes of chunks.

use crate::LayoutError;

/// What a chunk is made of: `[layer][plane][block][page]`, row-major, without padding.
///
/// A plane is K or V (or the one latent of MLA); a page is one block's bytes in one plane of one layer. The pages of
/// a chunk's blocks stand side by side within a plane, so that blocks which are neighbours on the GPU copy in one
/// run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ChunkLayout {
    layers: u32,
    planes: u32,
    page_bytes: u64,
    blocks_per_chunk: u32,
    chunk_bytes: u64,
}

impl ChunkLayout {
    /// Checks the dimensions and multiplies them out.
    ///
    /// # Errors
    /// [`LayoutError::Zero`] names a dimension that is zero, [`LayoutError::Overflow`] shows dimensions whose
    /// product does not fit 64 bits.
    pub fn new(
        layers: u32,
        planes: u32,
        page_bytes: u64,
        blocks_per_chunk: u32,
    ) -> Result<Self, LayoutError> {
        for (field, zero) in [
            ("layers", layers == 0),
            ("planes", planes == 0),
            ("page_bytes", page_bytes == 0),
            ("blocks_per_chunk", blocks_per_chunk == 0),
        ] {
            if zero {
                return Err(LayoutError::Zero { field });
            }
        }
        let chunk_bytes = u64::from(layers)
            .checked_mul(u64::from(planes))
            .and_then(|pages| pages.checked_mul(page_bytes))
            .and_then(|bytes| bytes.checked_mul(u64::from(blocks_per_chunk)))
            .ok_or(LayoutError::Overflow { layers, planes, page_bytes, blocks_per_chunk })?;
        Ok(Self { layers, planes, page_bytes, blocks_per_chunk, chunk_bytes })
    }

    /// Layers.
    pub fn layers(&self) -> u32 {
        self.layers
    }

    /// Planes a layer: 2 for K and V, 1 for MLA.
    pub fn planes(&self) -> u32 {
        self.planes
    }

    /// Bytes of one block in one plane of one layer.
    pub fn page_bytes(&self) -> u64 {
        self.page_bytes
    }

    /// Blocks a chunk.
    pub fn blocks_per_chunk(&self) -> u32 {
        self.blocks_per_chunk
    }

    /// Bytes of a chunk: what a slot must hold.
    pub fn chunk_bytes(&self) -> u64 {
        self.chunk_bytes
    }

    /// Bytes of one block over all layers and planes.
    pub fn block_bytes(&self) -> u64 {
        self.chunk_bytes / u64::from(self.blocks_per_chunk)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_zero_dimension_is_named() {
        assert_eq!(ChunkLayout::new(1, 2, 0, 1), Err(LayoutError::Zero { field: "page_bytes" }));
        assert_eq!(ChunkLayout::new(0, 2, 1, 1), Err(LayoutError::Zero { field: "layers" }));
        assert_eq!(ChunkLayout::new(1, 0, 1, 1), Err(LayoutError::Zero { field: "planes" }));
        assert_eq!(ChunkLayout::new(1, 1, 1, 0), Err(LayoutError::Zero { field: "blocks_per_chunk" }));
    }

    #[test]
    fn an_overflow_shows_its_dimensions() {
        let error = ChunkLayout::new(u32::MAX, 2, u64::from(u32::MAX), 2).unwrap_err();
        assert!(matches!(error, LayoutError::Overflow { layers: u32::MAX, planes: 2, .. }), "{error}");
    }
}
