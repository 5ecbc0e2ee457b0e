//! Where keys and values lie: arenas of a device's memory, described as kvo wants them described.

use kvo_connector::{GroupKind, GroupOptions};
use kvo_core::{BlockId, ChunkLayout, DeviceSpan, RegionId};
use kvo_cuda::{BlockLayout, ChunkIdentity, Fingerprint, GroupSpec, HostDevice, LayerTensor, Parallelism};

use crate::{EngineError, EngineOptions, LayerGroup, ModelConfig};

/// Keys, then values.
pub(crate) const PLANES: u32 = 2;
/// Bytes of a number.
pub(crate) const NUMBER_BYTES: usize = size_of::<f32>();

/// How the pages of a block lie on the device. A page is `[token][head][dim]` in little-endian f32.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KvLayout {
    /// An arena a layer, `[K or V][block][page]`.
    LayerFirst,
    /// An arena a group, `[block][layer][K or V][page]`.
    BlockFirst,
}

/// The paged KV caches of an engine: a group for layers that share a block table, each with blocks of its own.
#[derive(Clone, Debug)]
pub struct KvCaches {
    layout: KvLayout,
    groups: Vec<LayerGroup>,
    block_tokens: u32,
    num_blocks: u32,
    /// Bytes of a token in a page.
    token_bytes: u64,
    regions: Vec<(RegionId, u64)>,
    tensors: Vec<Vec<LayerTensor>>,
    /// By layer and plane: the address of block 0's page, and bytes to the next block's.
    pages: Vec<[(u64, u64); PLANES as usize]>,
}

impl KvCaches {
    /// What an engine with these options has for a model: nothing is allocated yet.
    ///
    /// # Errors
    /// [`EngineError::Layout`] or [`EngineError::Geometry`] if a block would be too large.
    pub fn plan(model: &ModelConfig, options: &EngineOptions) -> Result<Self, EngineError> {
        options.check()?;
        let mut caches = Self {
            layout: options.layout,
            groups: model.groups(),
            block_tokens: options.block_tokens,
            num_blocks: options.num_blocks,
            token_bytes: (model.kv_dim() * NUMBER_BYTES) as u64,
            regions: Vec::new(),
            tensors: Vec::new(),
            pages: vec![[(0, 0); PLANES as usize]; model.layers()],
        };
        for group in 0..caches.groups.len() {
            let tensors = caches.plan_group(group)?;
            caches.tensors.push(tensors);
        }
        caches.place(&vec![0; caches.regions.len()])?;
        Ok(caches)
    }

    /// The arenas of a group.
    fn plan_group(&mut self, group: usize) -> Result<Vec<LayerTensor>, EngineError> {
        let layers: Vec<u32> = self.groups[group].layers.iter().map(|&layer| narrow(layer)).collect();
        let layers_an_arena = match self.layout {
            KvLayout::LayerFirst => 1,
            KvLayout::BlockFirst => layers.len(),
        };
        let mut tensors = Vec::new();
        for layers in layers.chunks(layers_an_arena) {
            let chunk = self.chunk(layers.len(), 1)?;
            let bytes = chunk.block_bytes().saturating_mul(u64::from(self.num_blocks));
            let region = RegionId(narrow(self.regions.len()));
            self.regions.push((region, bytes));
            tensors.push(LayerTensor { layer: layers[0], region, offset: 0 });
        }
        Ok(tensors)
    }

    /// Allocates the arenas, and returns them in the order of their regions.
    ///
    /// # Errors
    /// [`EngineError`], where they do not fit; what was allocated lives as long as the device.
    pub(crate) fn allocate(&mut self, device: &HostDevice) -> Result<Vec<DeviceSpan>, EngineError> {
        let spans: Result<Vec<_>, _> = self.regions.iter().map(|(_, bytes)| device.alloc(*bytes)).collect();
        let spans = spans?;
        self.place(&spans.iter().map(DeviceSpan::address).collect::<Vec<_>>())?;
        Ok(spans)
    }

    /// Takes note of where pages are; `addresses` are those of the regions.
    fn place(&mut self, addresses: &[u64]) -> Result<(), EngineError> {
        let described = self.layout(1)?;
        for plane in described.groups().iter().flat_map(kvo_cuda::GroupLayout::planes) {
            let base = addresses[plane.region.0 as usize] + plane.base_offset;
            self.pages[plane.layer as usize][plane.plane as usize] = (base, plane.block_stride);
        }
        Ok(())
    }

    fn chunk(&self, layers: usize, blocks_per_chunk: u32) -> Result<ChunkLayout, EngineError> {
        Ok(ChunkLayout::new(narrow(layers), PLANES, self.page_bytes(), blocks_per_chunk)?)
    }

    /// The groups with `blocks_per_chunk` blocks a chunk, in the order of their indices.
    ///
    /// # Errors
    /// [`EngineError::Layout`] if a chunk would be too large.
    pub fn specs(&self, blocks_per_chunk: u32) -> Result<Vec<GroupSpec>, EngineError> {
        let groups = self.groups.iter().zip(&self.tensors);
        groups.map(|(group, tensors)| self.spec(group, tensors, blocks_per_chunk)).collect()
    }

    fn spec(
        &self,
        group: &LayerGroup,
        tensors: &[LayerTensor],
        blocks_per_chunk: u32,
    ) -> Result<GroupSpec, EngineError> {
        let chunk = self.chunk(group.layers.len(), blocks_per_chunk)?;
        Ok(match self.layout {
            KvLayout::LayerFirst => GroupSpec::layer_first(&chunk, self.num_blocks, tensors),
            KvLayout::BlockFirst => {
                let mut spec = GroupSpec::block_first(&chunk, self.num_blocks, tensors[0]);
                // The layers of a group need not be neighbours in the model.
                for (page, &layer) in spec.pages.iter_mut().zip(&group.layers) {
                    page.layer = narrow(layer);
                }
                spec
            }
        })
    }

    /// The layout with `blocks_per_chunk` blocks a chunk: what a [`CopyPlanner`](kvo_cuda::CopyPlanner) is made of.
    ///
    /// # Errors
    /// [`EngineError::Layout`] or [`EngineError::Geometry`] if a chunk would be too large.
    pub fn layout(&self, blocks_per_chunk: u32) -> Result<BlockLayout, EngineError> {
        Ok(BlockLayout::new(&self.regions, &self.specs(blocks_per_chunk)?)?)
    }

    /// The groups as a connector knows them, each with blocks of its own.
    pub fn group_options(&self, blocks_per_chunk: u32) -> Vec<GroupOptions> {
        let of_group = |(group, pool): (&LayerGroup, u32)| {
            let kind = group.window.map_or(GroupKind::Full, |tokens| GroupKind::Window { tokens });
            GroupOptions { kind, block_tokens: self.block_tokens, blocks_per_chunk, pool }
        };
        self.groups.iter().zip(0..).map(of_group).collect()
    }

    /// What tells chunks of these caches from those of others, where they outlive the engine. `model` names the weights.
    ///
    /// # Errors
    /// As [`layout`](Self::layout).
    pub fn fingerprint(&self, model: &str, blocks_per_chunk: u32) -> Result<Fingerprint, EngineError> {
        let identity = ChunkIdentity {
            model: model.to_owned(),
            dtype: "f32".to_owned(),
            tokens_per_block: vec![self.block_tokens; self.groups.len()],
            parallelism: Parallelism::SINGLE,
        };
        Ok(self.layout(blocks_per_chunk)?.fingerprint(&identity)?)
    }

    /// The groups, in the order of their indices.
    pub fn groups(&self) -> &[LayerGroup] {
        &self.groups
    }

    /// Tokens a block.
    pub fn block_tokens(&self) -> u32 {
        self.block_tokens
    }

    /// Blocks of each group.
    pub fn num_blocks(&self) -> u32 {
        self.num_blocks
    }

    /// Bytes of a page: of a block's keys, or values, in one layer.
    pub fn page_bytes(&self) -> u64 {
        self.token_bytes * u64::from(self.block_tokens)
    }

    /// The arenas with their bytes, in the order of their ids.
    pub fn regions(&self) -> &[(RegionId, u64)] {
        &self.regions
    }

    /// The address of a block's keys (plane 0) or values (plane 1) in a layer.
    pub fn page_address(&self, layer: usize, plane: usize, block: BlockId) -> u64 {
        assert!(block.0 < self.num_blocks, "block {} of {}", block.0, self.num_blocks);
        let (base, stride) = self.pages[layer][plane];
        base + u64::from(block.0) * stride
    }

    pub(crate) fn token_bytes(&self) -> u64 {
        self.token_bytes
    }
}

fn narrow(count: usize) -> u32 {
    u32::try_from(count).expect("a model has fewer layers")
}
