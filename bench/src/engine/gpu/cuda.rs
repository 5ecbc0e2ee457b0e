//! A GPU by the CUDA driver.

use std::sync::Arc;

use anyhow::Context;
use kvo_core::{BlockId, ComputePoint, DeviceBackend, Fence, OffloadKey, StreamHandle};
use kvo_cpu::HostRegion;
use kvo_cuda::{BlockLayout, CudaOptions, DeviceStats};
use kvo_gpu_check::{CudaWorker, is_model};

use super::{Gpu, GpuFailed};
use crate::engine::pattern::Pattern;

/// A CUDA device, and the memory and the stream of an engine beside it. What compute writes is made on the host, and
/// comes by copies that take their turn on the stream.
#[derive(Debug)]
pub(super) struct CudaGpu {
    worker: CudaWorker,
    stream: StreamHandle,
    pattern: Pattern,
}

impl CudaGpu {
    pub(super) fn new(
        ordinal: u32,
        layout: &BlockLayout,
        memory_bytes: u64,
        slots: Arc<HostRegion>,
    ) -> anyhow::Result<Self> {
        let mut worker = CudaWorker::new(CudaOptions::new(ordinal), slots)?;
        let span = worker.allocate(memory_bytes).context("its memory (--gpu-blocks, --block-bytes)")?;
        let stream = worker.create_stream()?;
        worker.device().attach(span).context("its memory")?;
        Ok(Self { worker, stream, pattern: Pattern::new(layout.clone(), span.address()) })
    }
}

impl Gpu for CudaGpu {
    fn device(&mut self) -> &mut dyn DeviceBackend {
        self.worker.device()
    }

    fn compute(&mut self, blocks: Vec<(OffloadKey, BlockId)>) -> anyhow::Result<()> {
        let Self { worker, stream, pattern } = self;
        pattern
            .write_blocks(&blocks, |address, page| worker.upload_on(*stream, address, page))
            .context(GpuFailed)
    }

    fn fence(&mut self) -> anyhow::Result<Fence> {
        let behind = ComputePoint::Stream(self.stream);
        self.worker.device().record_fence(behind).context(GpuFailed)
    }

    fn read_block(&mut self, id: BlockId, bytes: &mut [u8]) -> anyhow::Result<()> {
        let Self { worker, stream, pattern } = self;
        worker.synchronize(*stream).context(GpuFailed)?;
        pattern.read_block(id, bytes, |address, page| worker.download(address, page)).context(GpuFailed)
    }

    fn flip_bit(&mut self, id: BlockId) -> anyhow::Result<()> {
        self.worker.synchronize(self.stream).context(GpuFailed)?;
        let mut byte = [0];
        let address = self.pattern.last_page(id);
        self.worker.download(address, &mut byte).context(GpuFailed)?;
        self.worker.upload(address, &[byte[0] ^ 0x10]).context(GpuFailed)
    }

    fn break_down(&mut self) -> anyhow::Result<()> {
        self.worker.fault(self.stream).context(GpuFailed)
    }

    fn stats(&self) -> DeviceStats {
        self.worker.stats().transfers
    }

    fn is_simulated(&self) -> bool {
        is_model(self.worker.facts())
    }
}
