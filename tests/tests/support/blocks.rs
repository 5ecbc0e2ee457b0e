//! The GPU's blocks: who uses them, and what must be in them.

use kvo_core::{BlockId, OffloadKey};
use kvo_cuda::{BlockLayout, HostDevice};

use super::content::{Rng, canary_key, chunk_content};

/// What is in a block: a sub-block of a chunk.
pub type Content = (OffloadKey, u32);

/// Every block of the device, with its users and what must be in it.
pub struct Blocks {
    layout: BlockLayout,
    /// Where the memory that the layout is of starts on the device.
    base: u64,
    users: Vec<u32>,
    free: Vec<BlockId>,
    /// `None` while a load is in flight, and after one that failed.
    content: Vec<Option<Content>>,
    next_canary: u64,
    rng: Rng,
}

impl Blocks {
    /// Puts a canary into every block of a new device.
    pub fn new(layout: BlockLayout, base: u64, device: &HostDevice, seed: u64) -> Self {
        let num_blocks = layout.num_blocks();
        let mut blocks = Self {
            layout,
            base,
            users: vec![0; num_blocks as usize],
            free: (0..num_blocks).map(BlockId).collect(),
            content: vec![None; num_blocks as usize],
            next_canary: 0,
            rng: Rng::new(seed),
        };
        for block in (0..num_blocks).map(BlockId) {
            blocks.write_canary(device, block);
        }
        blocks
    }

    /// Gives out a free block, any of them.
    #[track_caller]
    pub fn allocate(&mut self) -> BlockId {
        let block = self.rng.take(&mut self.free).expect("the device has blocks enough for the test");
        self.users[block.0 as usize] = 1;
        block
    }

    /// One more user of blocks.
    pub fn hold(&mut self, blocks: &[BlockId]) {
        for block in blocks {
            self.users[block.0 as usize] += 1;
        }
    }

    /// One user less; the last one frees them. What is in them stays, as a canary for others.
    pub fn release(&mut self, blocks: impl IntoIterator<Item = BlockId>) {
        for block in blocks {
            let users = &mut self.users[block.0 as usize];
            *users -= 1;
            if *users == 0 {
                self.free.push(block);
            }
        }
    }

    pub fn num_free(&self) -> usize {
        self.free.len()
    }

    /// The block's pages: where each starts on the device, and its bytes if the content is `content`.
    fn pages(
        &self,
        block: BlockId,
        (key, sub_block): Content,
    ) -> impl Iterator<Item = (u64, Vec<u8>)> + use<> {
        let chunk = self.layout.chunk();
        let whole = chunk_content(&key, usize::try_from(chunk.chunk_bytes()).unwrap());
        let page_bytes = usize::try_from(chunk.page_bytes()).unwrap();
        let (per_chunk, sub_block) = (chunk.blocks_per_chunk() as usize, sub_block as usize);
        let (layout, base) = (self.layout.clone(), self.base);
        (0..layout.page_bases().len()).map(move |plane| {
            let start = (plane * per_chunk + sub_block) * page_bytes;
            let offset = layout.page_offset(plane, block).expect("the block exists");
            (base + offset, whole[start..start + page_bytes].to_vec())
        })
    }

    /// Puts the compute of a block on the stream. A dead device computes nothing.
    pub fn write(&mut self, device: &HostDevice, block: BlockId, content: Content) {
        let pages = self.pages(block, content);
        let launched = pages.map(|(address, bytes)| device.compute().launch_write(address, bytes));
        let launched: Result<(), _> = launched.collect();
        self.content[block.0 as usize] = launched.is_ok().then_some(content);
    }

    /// Puts the compute of a block on the stream that leaves what no chunk has.
    pub fn write_canary(&mut self, device: &HostDevice, block: BlockId) {
        self.next_canary += 1;
        self.write(device, block, (canary_key(self.next_canary), 0));
    }

    /// A load into the block begins: until it ends, anything may be in it.
    pub fn forget(&mut self, block: BlockId) {
        self.content[block.0 as usize] = None;
    }

    /// A load into the block has ended: checks every byte, and notes what is in it.
    #[track_caller]
    pub fn arrived(&mut self, device: &HostDevice, block: BlockId, content: Content) {
        self.content[block.0 as usize] = Some(content);
        self.check(device, block);
    }

    #[track_caller]
    fn check(&self, device: &HostDevice, block: BlockId) {
        let Some(content) = self.content[block.0 as usize] else { return };
        for (plane, (address, expected)) in self.pages(block, content).enumerate() {
            let mut bytes = vec![0; expected.len()];
            device.memory().read(address, &mut bytes).expect("a page lies in the device's memory");
            assert!(bytes == expected, "block {}, plane {plane}: not the bytes of {content:?}", block.0);
        }
    }

    /// Checks every byte of every block whose content is known: of those in use, and of all the canaries.
    #[track_caller]
    pub fn check_all(&self, device: &HostDevice) {
        for block in (0..self.layout.num_blocks()).map(BlockId) {
            self.check(device, block);
        }
    }
}
