//! The bytes of blocks on the GPU.

use kvo_core::{BlockId, GroupIdx, OffloadKey};
use kvo_cuda::{BlockLayout, GroupLayout};

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

    /// Writes what each block must hold, page by page, to the address of each.
    pub(super) fn write_blocks<E>(
        &self,
        blocks: &[(OffloadKey, BlockId)],
        mut write: impl FnMut(u64, &[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut filled = vec![0; self.block_bytes()];
        for (key, id) in blocks {
            bytes::fill(key, &mut filled);
            for (page, address) in filled.chunks_exact(self.page_bytes()).zip(self.pages(*id)) {
                write(address, page)?;
            }
        }
        Ok(())
    }

    /// Reads a block's pages, in the order of planes, into `bytes`.
    pub(super) fn read_block<E>(
        &self,
        id: BlockId,
        bytes: &mut [u8],
        mut read: impl FnMut(u64, &mut [u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        for (page, address) in bytes.chunks_exact_mut(self.page_bytes()).zip(self.pages(id)) {
            read(address, page)?;
        }
        Ok(())
    }

    /// Where the last page of a block starts.
    pub(super) fn last_page(&self, id: BlockId) -> u64 {
        self.pages(id).last().expect("a block has a page")
    }

    fn block_bytes(&self) -> usize {
        usize::try_from(self.group().block_bytes()).expect("a block fits memory")
    }

    fn page_bytes(&self) -> usize {
        self.block_bytes() / self.group().planes().len()
    }

    /// The one group that a layout of the replay has.
    fn group(&self) -> &GroupLayout {
        self.layout.group(GroupIdx(0)).expect("a layout has a group")
    }

    fn pages(&self, id: BlockId) -> impl Iterator<Item = u64> {
        let offset = move |plane| Some(self.base + self.group().page_offset(plane, id)?);
        (0..self.group().planes().len()).filter_map(offset)
    }
}
