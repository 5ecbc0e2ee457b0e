//! The block at the start of each data file: which store it belongs to.

use super::{BLOCK_BYTES, Damage, FORMAT_VERSION, StoreId, Writer, open_block, seal};

const MAGIC: [u8; 8] = *b"KVODATA\0";

/// Whose slots are in a data file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DataHeader {
    pub(crate) id: StoreId,
    /// Which of the store's devices it is, from 0.
    pub(crate) device: u32,
    pub(crate) num_devices: u32,
    pub(crate) stride_bytes: u64,
    /// Slots in this file.
    pub(crate) num_slots: u32,
}

impl DataHeader {
    pub(crate) fn encode(&self) -> [u8; BLOCK_BYTES] {
        let mut bytes = [0; BLOCK_BYTES];
        let mut writer = Writer::new(&mut bytes);
        writer.put(&MAGIC);
        writer.put(&FORMAT_VERSION.to_le_bytes());
        writer.put(&self.device.to_le_bytes());
        writer.put(&self.id.0);
        writer.put(&self.stride_bytes.to_le_bytes());
        writer.put(&self.num_devices.to_le_bytes());
        writer.put(&self.num_slots.to_le_bytes());
        seal(&mut bytes, 0);
        bytes
    }

    pub(crate) fn decode(bytes: &[u8; BLOCK_BYTES]) -> Result<Self, Damage> {
        let mut reader = open_block(bytes, MAGIC)?;
        let device = reader.u32();
        let header = Self {
            device,
            id: StoreId(reader.take()),
            stride_bytes: reader.u64(),
            num_devices: reader.u32(),
            num_slots: reader.u32(),
        };
        if header.device >= header.num_devices {
            return Err(Damage::Field("device"));
        }
        if reader.rest_is_zero() { Ok(header) } else { Err(Damage::Field("the reserved part")) }
    }
}
