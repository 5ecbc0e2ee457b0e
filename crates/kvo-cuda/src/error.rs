//! Errors of layouts and plans. None of them leaves anything changed.

use std::fmt;

use kvo_core::{BlockId, GroupIdx, RegionId, SlotId};

/// A [page reference](crate::PageRef) by its place in the description: which group, and which of its pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PageName {
    /// The group.
    pub group: GroupIdx,
    /// The place in [`GroupSpec::pages`](crate::GroupSpec::pages).
    pub page: usize,
}

impl fmt::Display for PageName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "page reference {} of group {}", self.page, self.group.0)
    }
}

/// Blocks, chunks and memories whose sizes do not fit together.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum GeometryError {
    /// A count that must be at least one is zero.
    #[error("{field} must be at least 1")]
    Zero {
        /// The field.
        field: &'static str,
    },
    /// A count of a group that must be at least one is zero.
    #[error("{field} of group {} must be at least 1", group.0)]
    ZeroInGroup {
        /// The group.
        group: GroupIdx,
        /// The field.
        field: &'static str,
    },
    /// A count or a size of a page reference that must be at least one is zero.
    #[error("{field} of {page} must be at least 1")]
    ZeroInPage {
        /// The page reference.
        page: PageName,
        /// The field.
        field: &'static str,
    },
    /// A group has more planes, or more stretches of its pages, than a planner takes.
    #[error("{field} of group {} are more than {max}", group.0)]
    TooMany {
        /// The group.
        group: GroupIdx,
        /// What there are too many of.
        field: &'static str,
        /// How many there may be.
        max: usize,
    },
    /// A region is given twice.
    #[error("region {} is given twice", region.0)]
    RepeatedRegion {
        /// The region.
        region: RegionId,
    },
    /// The pages are in a region that was not given.
    #[error("{page} is in region {}, which was not given", region.0)]
    UnknownRegion {
        /// The page reference.
        page: PageName,
        /// The region.
        region: RegionId,
    },
    /// Neighbours would overlap.
    #[error("{field} of {page} is {stride} bytes, less than a page of {page_bytes} bytes")]
    StrideTooSmall {
        /// The page reference.
        page: PageName,
        /// The stride.
        field: &'static str,
        /// Bytes from one page to the next one.
        stride: u64,
        /// Bytes of a page.
        page_bytes: u64,
    },
    /// There must be one base for each plane of each layer.
    #[error("{given} page bases were given for {layers} layers x {planes} planes")]
    PageBases {
        /// Bases given.
        given: usize,
        /// Layers.
        layers: u32,
        /// Planes a layer.
        planes: u32,
    },
    /// The pages would end beyond 63 bits.
    #[error("the {field} of {page} puts a page beyond 63 bits")]
    Overflow {
        /// The page reference.
        page: PageName,
        /// What leads there: the base offset or the place in the chunk.
        field: &'static str,
    },
    /// A page ends beyond its region.
    #[error("{page} ends at byte {end} of region {}, which has {region_bytes} bytes", region.0)]
    BeyondRegion {
        /// The page reference.
        page: PageName,
        /// The region.
        region: RegionId,
        /// Where the last block's page ends, in bytes.
        end: u64,
        /// Bytes of the region.
        region_bytes: u64,
    },
    /// A page ends beyond the chunk.
    #[error("{page} ends at byte {end} of a chunk of {chunk_bytes} bytes")]
    BeyondChunk {
        /// The page reference.
        page: PageName,
        /// Where the last page ends, in bytes.
        end: u64,
        /// Bytes of a chunk.
        chunk_bytes: u64,
    },
    /// A canonical page's run ends beyond the page.
    #[error("run {run} of {page} ends beyond the {page_bytes} bytes of its {side} page")]
    BeyondPage {
        /// The page reference.
        page: PageName,
        /// The run.
        run: usize,
        /// Which of the two pages: the device's or the canonical one.
        side: &'static str,
        /// Bytes of that page.
        page_bytes: u64,
    },
    /// Runs of a canonical page share bytes.
    #[error("runs of {page} share bytes of its {side} page")]
    RunsOverlap {
        /// The page reference.
        page: PageName,
        /// Which of the two pages: the device's or the canonical one.
        side: &'static str,
    },
    /// Pages share bytes of a region. Both may be planes of one page reference.
    #[error("{first} and {second} share bytes of region {}", region.0)]
    PagesOverlap {
        /// One of them.
        first: PageName,
        /// The other.
        second: PageName,
        /// The region.
        region: RegionId,
    },
    /// Pages share bytes of the chunk. Both may be sub-blocks or planes of one page reference.
    #[error("{first} and {second} share bytes of a chunk")]
    ChunkOverlap {
        /// One of them.
        first: PageName,
        /// The other.
        second: PageName,
    },
    /// A slot does not hold a chunk.
    #[error("a slot of {slot_bytes} bytes does not hold a chunk of group {} of {chunk_bytes} bytes", group.0)]
    SlotTooSmall {
        /// Bytes of a slot.
        slot_bytes: u64,
        /// The group.
        group: GroupIdx,
        /// Bytes of a chunk.
        chunk_bytes: u64,
    },
    /// The slots would end beyond 63 bits.
    #[error("{num_slots} slots of {slot_bytes} bytes end beyond 63 bits")]
    HostTooLarge {
        /// Slots.
        num_slots: u32,
        /// Bytes of a slot.
        slot_bytes: u64,
    },
    /// Borders of the host memory do not ascend.
    #[error("border {border} of the host memory is not behind the one before")]
    Borders {
        /// The border's place in the list.
        border: usize,
    },
    /// There must be one number of tokens a block for each group.
    #[error("{given} numbers of tokens a block were given for {num_groups} groups")]
    TokensPerBlock {
        /// Numbers given.
        given: usize,
        /// Groups.
        num_groups: usize,
    },
}

/// Chunks and blocks from which no copies can be planned. `chunk` is the place in the list that was given.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PlanError {
    /// The layout has no such group.
    #[error("chunk {chunk} is of group {}, there are {num_groups} groups", group.0)]
    UnknownGroup {
        /// The chunk.
        chunk: usize,
        /// The group.
        group: GroupIdx,
        /// Groups there are.
        num_groups: usize,
    },
    /// The group has no such block.
    #[error("chunk {chunk} names block {}, its group has {num_blocks} blocks", block.0)]
    UnknownBlock {
        /// The chunk.
        chunk: usize,
        /// The block.
        block: BlockId,
        /// Blocks the group has.
        num_blocks: u32,
    },
    /// The host memory has no such slot.
    #[error("chunk {chunk} names slot {slot}, there are {num_slots} slots")]
    UnknownSlot {
        /// The chunk.
        chunk: usize,
        /// The slot.
        slot: SlotId,
        /// Slots there are.
        num_slots: u32,
    },
    /// A store must fill its slot: a chunk is stored whole or not at all.
    #[error(
        "chunk {chunk} stores {num_blocks} blocks from sub-block {skip} on, not {blocks_per_chunk} from 0 on"
    )]
    NotWhole {
        /// The chunk.
        chunk: usize,
        /// Sub-blocks left out before the first.
        skip: u32,
        /// Blocks named.
        num_blocks: usize,
        /// Blocks a chunk.
        blocks_per_chunk: u32,
    },
    /// A load reaches beyond the chunk's last sub-block.
    #[error(
        "chunk {chunk} loads {num_blocks} blocks from sub-block {skip} on, a chunk has {blocks_per_chunk}"
    )]
    BeyondChunk {
        /// The chunk.
        chunk: usize,
        /// Sub-blocks left out before the first.
        skip: u32,
        /// Blocks named.
        num_blocks: usize,
        /// Blocks a chunk.
        blocks_per_chunk: u32,
    },
    /// A chunk names no block.
    #[error("chunk {chunk} names no block")]
    NoBlocks {
        /// The chunk.
        chunk: usize,
    },
    /// Two sub-blocks would be loaded into one block, be it of one group or of two in a pool.
    #[error("chunk {chunk} loads into block {} a second time", block.0)]
    RepeatedBlock {
        /// The chunk that names it again.
        chunk: usize,
        /// The block.
        block: BlockId,
    },
    /// Two chunks would be stored into one slot.
    #[error("chunk {chunk} stores into slot {slot} a second time")]
    RepeatedSlot {
        /// The chunk that names it again.
        chunk: usize,
        /// The slot.
        slot: SlotId,
    },
    /// A run of blocks does not cover the slots it was given: every slot needs at least one block.
    #[error(
        "{num_blocks} blocks after {skip} skipped ones do not spread over {num_slots} slots of {blocks_per_chunk}"
    )]
    WrongNumberOfBlocks {
        /// Blocks named.
        num_blocks: usize,
        /// Sub-blocks left out of the first chunk.
        skip: u32,
        /// Slots named.
        num_slots: usize,
        /// Blocks a chunk.
        blocks_per_chunk: u32,
    },
}
