//! The two blocks at the start of the index file, written in turns.

use super::{
    BLOCK_BYTES, Damage, EPOCH_MAX, FORMAT_VERSION, SEQUENCE_MAX, StoreId, Writer, open_block, seal,
};
use crate::{ChecksumKind, options::Geometry};

const MAGIC: [u8; 8] = *b"KVOINDEX";

/// What a store is, and how it was left.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Superblock {
    pub(crate) id: StoreId,
    /// One more at each write of a superblock; the valid one with the higher number counts.
    pub(crate) sequence: u64,
    /// One more at each opening, from 1; the upper part of the generations written since. [`WIPED_EPOCH`](super::WIPED_EPOCH)
    /// while a wipe empties the records.
    pub(crate) epoch: u64,
    pub(crate) chunk_bytes: u64,
    /// From one slot of a data file to the next.
    pub(crate) stride_bytes: u64,
    pub(crate) num_slots: u32,
    /// Slots that were asked for when it was made; more than there are if there was too little room.
    pub(crate) asked_slots: u32,
    pub(crate) num_devices: u32,
    /// As [`number_of`] numbers them.
    pub(crate) checksum_kind: u32,
    pub(crate) state: StoreState,
    /// What the chunks' bytes mean, as the one who made the store has said it.
    pub(crate) fingerprint: [u8; 32],
    /// Since the epoch of Unix, when the store was made.
    pub(crate) created_s: u64,
    /// Payload bytes written in the store's life, up to this superblock.
    pub(crate) written_bytes: u64,
    /// Of the eviction order that a clean close has left behind the records: slots in it, and its XXH3-64.
    pub(crate) order_slots: u32,
    pub(crate) order_sum: u64,
}

/// How a store was left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreState {
    /// Being made: there is nothing in it yet.
    Creating,
    /// Opened, and not closed since.
    Open,
    /// Closed: every record is there, and so is the eviction order.
    Clean,
}

impl Superblock {
    pub(crate) fn encode(&self) -> [u8; BLOCK_BYTES] {
        let mut bytes = [0; BLOCK_BYTES];
        let mut writer = Writer::new(&mut bytes);
        writer.put(&MAGIC);
        writer.put(&FORMAT_VERSION.to_le_bytes());
        let state: u32 = match self.state {
            StoreState::Creating => 0,
            StoreState::Open => 1,
            StoreState::Clean => 2,
        };
        writer.put(&state.to_le_bytes());
        writer.put(&self.id.0);
        writer.put(&self.sequence.to_le_bytes());
        writer.put(&self.epoch.to_le_bytes());
        writer.put(&self.chunk_bytes.to_le_bytes());
        writer.put(&self.stride_bytes.to_le_bytes());
        writer.put(&self.num_slots.to_le_bytes());
        writer.put(&self.num_devices.to_le_bytes());
        writer.put(&self.checksum_kind.to_le_bytes());
        writer.put(&self.order_slots.to_le_bytes());
        writer.put(&self.fingerprint);
        writer.put(&self.created_s.to_le_bytes());
        writer.put(&self.written_bytes.to_le_bytes());
        writer.put(&self.order_sum.to_le_bytes());
        writer.put(&self.asked_slots.to_le_bytes());
        seal(&mut bytes, 0);
        bytes
    }

    pub(crate) fn decode(bytes: &[u8; BLOCK_BYTES]) -> Result<Self, Damage> {
        let mut reader = open_block(bytes, MAGIC)?;
        let state = match reader.u32() {
            0 => StoreState::Creating,
            1 => StoreState::Open,
            2 => StoreState::Clean,
            _ => return Err(Damage::Field("state")),
        };
        let superblock = Self {
            state,
            id: StoreId(reader.take()),
            sequence: reader.u64(),
            epoch: reader.u64(),
            chunk_bytes: reader.u64(),
            stride_bytes: reader.u64(),
            num_slots: reader.u32(),
            num_devices: reader.u32(),
            checksum_kind: reader.u32(),
            order_slots: reader.u32(),
            fingerprint: reader.take(),
            created_s: reader.u64(),
            written_bytes: reader.u64(),
            order_sum: reader.u64(),
            asked_slots: reader.u32(),
        };
        if !reader.rest_is_zero() {
            return Err(Damage::Field("the reserved part"));
        }
        superblock.check().map_err(Damage::Field)?;
        Ok(superblock)
    }

    /// The first field with a value that no code of ours gives it.
    fn check(&self) -> Result<(), &'static str> {
        let geometry = self.geometry().ok_or("chunk_bytes")?;
        let fields = [
            ("sequence", self.sequence <= SEQUENCE_MAX),
            ("epoch", self.epoch <= EPOCH_MAX),
            ("chunk_bytes", self.chunk_bytes > 0),
            ("stride_bytes", self.stride_bytes == geometry.stride_bytes),
            ("num_devices", self.num_devices > 0),
            ("num_slots", self.num_slots >= self.num_devices),
            ("asked_slots", self.asked_slots >= self.num_slots),
            ("order_slots", self.order_slots <= self.num_slots),
        ];
        match fields.iter().find(|(_, is_good)| !is_good) {
            Some((field, _)) => Err(field),
            None => Ok(()),
        }
    }

    /// Where the slots lie; none if there is no file that could hold them.
    pub(crate) fn geometry(&self) -> Option<Geometry> {
        Geometry::new(self.num_slots, self.num_devices, self.chunk_bytes)
    }

    /// The superblock to be written after this one, in this state, without an eviction order.
    pub(crate) fn next(&self, state: StoreState) -> Self {
        Self { sequence: self.sequence + 1, state, order_slots: 0, order_sum: 0, ..self.clone() }
    }
}

/// The number of a kind in superblocks.
pub(crate) fn number_of(kind: ChecksumKind) -> u32 {
    match kind {
        #[cfg(feature = "testing")]
        ChecksumKind::Off => 0,
        ChecksumKind::Xxh3 => 1,
    }
}

/// The one of the two superblocks that counts, and where it is; or what is wrong with each.
pub(crate) fn newest(blocks: [Result<Superblock, Damage>; 2]) -> Result<(Superblock, usize), [Damage; 2]> {
    match blocks {
        [Ok(a), Ok(b)] if b.sequence > a.sequence => Ok((b, 1)),
        [Ok(a), _] => Ok((a, 0)),
        [Err(_), Ok(b)] => Ok((b, 1)),
        [Err(a), Err(b)] => Err([a, b]),
    }
}
