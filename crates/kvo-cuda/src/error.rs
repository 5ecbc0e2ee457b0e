//! Errors of layouts and plans. None of them leaves anything changed.

use kvo_core::{BlockId, SlotId};

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
    /// Two neighbouring blocks of a plane would overlap.
    #[error("a block stride of {block_stride} bytes is less than a page of {page_bytes} bytes")]
    StrideTooSmall {
        /// Bytes from one block's page to the next one's.
        block_stride: u64,
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
    /// A page ends beyond 64 bits.
    #[error("the pages of layer {layer}, plane {plane} end beyond 64 bits")]
    Overflow {
        /// The layer.
        layer: u32,
        /// The plane.
        plane: u32,
    },
    /// A page ends beyond the device's memory.
    #[error(
        "the pages of layer {layer}, plane {plane} end at byte {end}, the device has {device_bytes} bytes"
    )]
    BeyondDevice {
        /// The layer.
        layer: u32,
        /// The plane.
        plane: u32,
        /// Where the last block's page ends, in bytes.
        end: u64,
        /// Bytes of the device's KV memory.
        device_bytes: u64,
    },
    /// Two planes share bytes. Each is named by its place in `[layer][plane]` order.
    #[error("the pages of planes {first} and {second}, counted [layer][plane], overlap")]
    PagesOverlap {
        /// One of them.
        first: usize,
        /// The other.
        second: usize,
    },
    /// A slot does not hold a chunk.
    #[error("a slot of {slot_bytes} bytes does not hold a chunk of {chunk_bytes} bytes")]
    SlotTooSmall {
        /// Bytes of a slot.
        slot_bytes: u64,
        /// Bytes of a chunk.
        chunk_bytes: u64,
    },
}

/// Chunks and blocks from which no copies can be planned. `chunk` is the place in the list that was given.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PlanError {
    /// The device has no such block.
    #[error("chunk {chunk} names block {}, there are {num_blocks} blocks", block.0)]
    UnknownBlock {
        /// The chunk.
        chunk: usize,
        /// The block.
        block: BlockId,
        /// Blocks there are.
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
    /// Two sub-blocks would be loaded into one block.
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
