//! What tells chunks of one kind from those of another.

use std::fmt;

use sha2::{Digest, Sha256};

use crate::{BlockLayout, GeometryError, GroupLayout, PagePlane};

#[cfg(test)]
mod tests;

/// The version of the encoding that is hashed: other versions give other fingerprints.
const ENCODING_VERSION: u32 = 1;
/// What the encoding begins with.
const DOMAIN: &[u8] = b"kvo chunk layout";

/// What chunks mean, beside where their bytes are: the engine's word.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChunkIdentity {
    /// The model with everything that its KV data depends on: name, revision, quantisation, adapters.
    pub model: String,
    /// The type of a KV number, with its scale or packing where it has one.
    pub dtype: String,
    /// Tokens a block, for each group.
    pub tokens_per_block: Vec<u32>,
    /// What a chunk is a part of.
    pub parallelism: Parallelism,
}

/// Which part of the model's KV data a chunk holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Parallelism {
    /// The part of one rank. Another rank's chunks, and those of other numbers of ranks, are other data.
    Rank {
        /// Ranks that split the heads.
        tensor: RankOf,
        /// Ranks that split the layers.
        pipeline: RankOf,
        /// Ranks that split the tokens.
        context: RankOf,
    },
    /// The whole, in the form that all ranks write and read parts of: [canonical pages](crate::CanonicalPage), or what
    /// every rank has in full, as with MLA. Then it does not matter which bytes of it this rank has.
    Shared {
        /// A name for the order of the bytes in a canonical page, such as `token head dim`. Engines that share chunks
        /// mean the same by it.
        order: String,
    },
}

impl Parallelism {
    /// The one rank of an engine that splits nothing.
    pub const SINGLE: Self =
        Self::Rank { tensor: RankOf::SINGLE, pipeline: RankOf::SINGLE, context: RankOf::SINGLE };
}

/// One rank of several.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RankOf {
    /// The rank, from 0 on.
    pub rank: u32,
    /// The number of ranks.
    pub of: u32,
}

impl RankOf {
    /// The only one.
    pub const SINGLE: Self = Self { rank: 0, of: 1 };
}

/// A name of 32 bytes for what chunks are: chunks of equal fingerprints can be loaded in place of one another, chunks of
/// different ones are other data. It belongs into the identity of every store that outlives the process.
///
/// It is SHA-256 over the [identity](ChunkIdentity) and what the [layout](BlockLayout) says of chunks: blocks a chunk,
/// bytes, layers, planes, places and page sizes, and for a rank's own chunks which bytes of a page go where. Where blocks
/// are on the device is not part of it: regions, offsets, strides, numbers of blocks and pools may differ from run to
/// run. Nor is how the bytes are described: the order of page references that have places of their own, or runs of a
/// page that say the same in another way.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Fingerprint(pub [u8; 32]);

impl fmt::Display for Fingerprint {
    /// 64 hexadecimal digits.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl BlockLayout {
    /// The fingerprint of the chunks of this layout.
    ///
    /// ```
    /// use kvo_core::ChunkLayout;
    /// use kvo_cuda::{BlockLayout, ChunkIdentity, Parallelism};
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let identity = |dtype: &str| ChunkIdentity {
    ///     model: "example-8b@4f2c".to_owned(),
    ///     dtype: dtype.to_owned(),
    ///     tokens_per_block: vec![16],
    ///     parallelism: Parallelism::SINGLE,
    /// };
    /// let chunk = ChunkLayout::new(2, 2, 4096, 4)?;
    /// let layout = BlockLayout::layer_first(&chunk, 100, 100 * chunk.block_bytes())?;
    /// let other_device = BlockLayout::layer_first_interleaved(&chunk, 50, 1 << 30)?;
    /// let fingerprint = layout.fingerprint(&identity("bfloat16"))?;
    /// assert_eq!(fingerprint, other_device.fingerprint(&identity("bfloat16"))?);
    /// assert_ne!(fingerprint, layout.fingerprint(&identity("float16"))?);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`GeometryError::TokensPerBlock`] unless there is one number of tokens for each group.
    pub fn fingerprint(&self, identity: &ChunkIdentity) -> Result<Fingerprint, GeometryError> {
        let (given, num_groups) = (identity.tokens_per_block.len(), self.groups().len());
        if given != num_groups {
            return Err(GeometryError::TokensPerBlock { given, num_groups });
        }
        let mut encoder = Encoder(Sha256::new());
        encoder.bytes(DOMAIN);
        encoder.u32(ENCODING_VERSION);
        encoder.bytes(identity.model.as_bytes());
        encoder.bytes(identity.dtype.as_bytes());
        encoder.parallelism(&identity.parallelism);
        encoder.len(num_groups);
        let is_shared = matches!(identity.parallelism, Parallelism::Shared { .. });
        for (group, &tokens_per_block) in self.groups().iter().zip(&identity.tokens_per_block) {
            encoder.u32(tokens_per_block);
            encoder.group(group, is_shared);
        }
        Ok(Fingerprint(encoder.0.finalize().into()))
    }
}

/// Numbers are little-endian; what has no fixed length comes behind its length, as 64 bits; so no two things to encode
/// have one encoding.
struct Encoder(Sha256);

impl Encoder {
    fn u32(&mut self, number: u32) {
        self.0.update(number.to_le_bytes());
    }

    fn u64(&mut self, number: u64) {
        self.0.update(number.to_le_bytes());
    }

    fn len(&mut self, len: usize) {
        self.u64(len as u64);
    }

    fn bytes(&mut self, bytes: &[u8]) {
        self.len(bytes.len());
        self.0.update(bytes);
    }

    fn parallelism(&mut self, parallelism: &Parallelism) {
        match parallelism {
            Parallelism::Rank { tensor, pipeline, context } => {
                self.u32(0);
                for split in [tensor, pipeline, context] {
                    self.u32(split.rank);
                    self.u32(split.of);
                }
            }
            Parallelism::Shared { order } => {
                self.u32(1);
                self.bytes(order.as_bytes());
            }
        }
    }

    fn group(&mut self, group: &GroupLayout, is_shared: bool) {
        self.u32(group.blocks_per_chunk());
        self.u64(group.chunk_bytes());
        let mut planes: Vec<_> = group.planes().iter().collect();
        planes.sort_by_key(|plane| plane.chunk_offset);
        self.len(planes.len());
        for plane in planes {
            self.plane(group, plane, is_shared);
        }
    }

    fn plane(&mut self, group: &GroupLayout, plane: &PagePlane, is_shared: bool) {
        self.u32(plane.layer);
        self.u32(plane.plane);
        self.u64(plane.chunk_offset);
        // Chunks of one block have no second one for which the stride could matter.
        self.u64(if group.blocks_per_chunk() == 1 { 0 } else { plane.chunk_block_stride });
        self.u64(plane.chunk_page_bytes);
        if is_shared {
            return;
        }
        self.u64(plane.page_bytes);
        let pieces = group.pieces(plane);
        self.len(pieces.len());
        for piece in pieces {
            self.u64(piece.local);
            self.u64(piece.chunk);
            self.u64(piece.bytes);
        }
    }
}
