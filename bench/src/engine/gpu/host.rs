//! A GPU whose memory is host memory.

use std::sync::Arc;

use anyhow::Context;
use kvo_core::{BlockId, DeviceBackend, Fence, OffloadKey};
use kvo_cpu::HostRegion;
use kvo_cuda::{BlockLayout, DeviceStats, HostDevice, HostDeviceOptions};

use super::{Gpu, GpuFailed};
use crate::engine::pattern::Pattern;

/// A host device, whose first stream computes.
#[derive(Debug)]
pub(super) struct HostGpu {
    device: HostDevice,
    pattern: Arc<Pattern>,
}

impl HostGpu {
    pub(super) fn new(
        layout: &BlockLayout,
        memory_bytes: u64,
        slots: Arc<HostRegion>,
    ) -> anyhow::Result<Self> {
        let mut device = HostDevice::new(HostDeviceOptions::default(), slots)?;
        let span = device.alloc(memory_bytes).context("its memory (--gpu-blocks, --block-bytes)")?;
        device.attach(span).context("its memory")?;
        Ok(Self { device, pattern: Arc::new(Pattern::new(layout.clone(), span.address())) })
    }
}

impl Gpu for HostGpu {
    fn device(&mut self) -> &mut dyn DeviceBackend {
        &mut self.device
    }

    fn compute(&mut self, blocks: Vec<(OffloadKey, BlockId)>) -> anyhow::Result<()> {
        let pattern = self.pattern.clone();
        let kernel = move |memory: &kvo_cuda::DeviceMemory| {
            pattern
                .write_blocks(&blocks, |address, page| memory.write(address, page))
                .expect("the layout keeps pages within the device's memory");
        };
        self.device.compute().launch(kernel).context(GpuFailed)
    }

    fn fence(&mut self) -> anyhow::Result<Fence> {
        let behind = self.device.compute().point();
        self.device.record_fence(behind).context(GpuFailed)
    }

    /// Without waiting: no block is read that anything is on its way to.
    fn read_block(&mut self, id: BlockId, bytes: &mut [u8]) -> anyhow::Result<()> {
        let memory = self.device.memory();
        self.pattern.read_block(id, bytes, |address, page| memory.read(address, page)).context(GpuFailed)
    }

    fn flip_bit(&mut self, id: BlockId) -> anyhow::Result<()> {
        let memory = self.device.memory();
        let mut byte = [0];
        let address = self.pattern.last_page(id);
        memory.read(address, &mut byte).context(GpuFailed)?;
        memory.write(address, &[byte[0] ^ 0x10]).context(GpuFailed)
    }

    fn break_down(&mut self) -> anyhow::Result<()> {
        self.device.fail(HostDevice::KERNEL_PANICKED);
        Ok(())
    }

    fn stats(&self) -> DeviceStats {
        self.device.stats()
    }

    fn is_simulated(&self) -> bool {
        true
    }
}
