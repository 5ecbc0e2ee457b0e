//! The bytes of blocks on the simulated GPU.

use kvo_core::{BlockId, OffloadKey};
use kvo_cuda::{BlockLayout, DeviceAccessError, DeviceMemory};

use crate::bytes;

/// Writes and reads blocks where a layout puts their pages, which hold [`bytes`](crate::bytes) in the order of planes.
#[derive(Debug)]
pub(super) struct Pattern {
    layout: BlockLayout,
    /// Where the memory that the layout is of starts on the device.
    base: u64,
}

impl Pattern {
    pub(super) fn new(layout: BlockLayout, base: u64) -> Self {
        Self { layout, base }
    }

    /// Writes what each block must hold: the kernel that computes them.
    pub(super) fn write_blocks(&self, blocks: &[(OffloadKey, BlockId)], memory: &DeviceMemory) {
        let block_bytes = usize::try_from(self.layout.chunk().block_bytes()).expect("a block fits memory");
        let mut filled = vec![0; block_bytes];
        for (key, id) in blocks {
            bytes::fill(key, &mut filled);
            for (page, address) in filled.chunks_exact(self.page_bytes()).zip(self.pages(*id)) {
                memory.write(address, page).expect("the layout keeps pages within the device's memory");
            }
        }
    }

    /// Reads a block's pages, in the order of planes, into `bytes`.
    pub(super) fn read_block(
        &self,
        id: BlockId,
        memory: &DeviceMemory,
        bytes: &mut [u8],
    ) -> Result<(), DeviceAccessError> {
        for (page, address) in bytes.chunks_exact_mut(self.page_bytes()).zip(self.pages(id)) {
            memory.read(address, page)?;
        }
        Ok(())
    }

    /// Damages a block by one bit.
    pub(super) fn flip_bit(&self, id: BlockId, memory: &DeviceMemory) -> Result<(), DeviceAccessError> {
        let Some(address) = self.pages(id).last() else { return Ok(()) };
        let mut byte = [0];
        memory.read(address, &mut byte)?;
        memory.write(address, &[byte[0] ^ 0x10])
    }

    fn page_bytes(&self) -> usize {
        usize::try_from(self.layout.chunk().page_bytes()).expect("a page fits memory")
    }

    fn pages(&self, id: BlockId) -> impl Iterator<Item = u64> {
        let offset = move |plane| Some(self.base + self.layout.page_offset(plane, id)?);
        (0..self.layout.page_bases().len()).filter_map(offset)
    }
}
