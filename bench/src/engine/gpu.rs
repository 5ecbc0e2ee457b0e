//! The GPU of the small engine: its memory, the stream that computes, and the device that copies.

mod cuda;
mod host;

use std::{fmt, sync::Arc};

use anyhow::Context;
use kvo_core::{BlockId, DeviceBackend, Fence, OffloadKey};
use kvo_cpu::HostRegion;
use kvo_cuda::{BlockLayout, DeviceStats};

use super::choice::ReplayDevice;

/// What an engine has of a GPU. Its blocks are the first region of the device.
///
/// Each call that fails does so with [`GpuFailed`] in its error.
pub(super) trait Gpu: fmt::Debug {
    /// The device between its memory and the slots.
    fn device(&mut self) -> &mut dyn DeviceBackend;

    /// Puts compute on the stream that writes what the blocks must hold. Does not wait for it.
    fn compute(&mut self, blocks: Vec<(OffloadKey, BlockId)>) -> anyhow::Result<()>;

    /// A fence behind all that was computed.
    fn fence(&mut self) -> anyhow::Result<Fence>;

    /// Reads a block, in the order of planes, when all that was computed is there.
    fn read_block(&mut self, id: BlockId, bytes: &mut [u8]) -> anyhow::Result<()>;

    /// Damages a block by one bit, when all that was computed is there.
    fn flip_bit(&mut self, id: BlockId) -> anyhow::Result<()>;

    /// Breaks the GPU for good, at some time after the call.
    fn break_down(&mut self) -> anyhow::Result<()>;

    /// What the device has moved.
    fn stats(&self) -> DeviceStats;

    /// Whether its speed says nothing of any GPU.
    fn is_simulated(&self) -> bool;
}

/// The GPU does not work, or no longer: nothing is said of kvo's other parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the GPU failed")]
pub struct GpuFailed;

/// The engine's GPU of that kind, with memory for the blocks of the layout.
pub(super) fn new(
    device: ReplayDevice,
    layout: &BlockLayout,
    memory_bytes: u64,
    slots: Arc<HostRegion>,
) -> anyhow::Result<Box<dyn Gpu>> {
    Ok(match device {
        ReplayDevice::Host => {
            Box::new(host::HostGpu::new(layout, memory_bytes, slots).context("the simulated GPU")?)
        }
        ReplayDevice::Cuda { ordinal } => Box::new(
            cuda::CudaGpu::new(ordinal, layout, memory_bytes, slots)
                .with_context(|| format!("GPU {ordinal} (--device host does without)"))?,
        ),
    })
}
