//! A device of either kind.

use std::time::Duration;

use kvo_core::{
    AttachError, ComputePoint, DeviceBackend, DeviceHealth, DeviceInfo, DeviceSpan, DrainError, Fence,
    FenceError, MarkOrder, RegionId, StreamHandle, SubmitError, Ticket, Transfer, TransferCompletion,
};
use kvo_cuda::{CudaDevice, HostDevice};

/// A device of whichever kind a configuration names.
#[derive(Debug)]
pub enum AnyDevice {
    /// In host memory, which it allocates itself.
    Host(HostDevice),
    /// A GPU, whose memory is the engine's.
    Cuda(CudaDevice),
}

impl AnyDevice {
    fn device(&self) -> &dyn DeviceBackend {
        match self {
            Self::Host(device) => device,
            Self::Cuda(device) => device,
        }
    }

    fn device_mut(&mut self) -> &mut dyn DeviceBackend {
        match self {
            Self::Host(device) => device,
            Self::Cuda(device) => device,
        }
    }
}

impl DeviceBackend for AnyDevice {
    fn info(&self) -> &DeviceInfo {
        self.device().info()
    }

    fn attach(&mut self, span: DeviceSpan) -> Result<RegionId, AttachError> {
        self.device_mut().attach(span)
    }

    fn detach(&mut self, region: RegionId) -> Result<(), AttachError> {
        self.device_mut().detach(region)
    }

    fn record_fence(&mut self, point: ComputePoint) -> Result<Fence, FenceError> {
        self.device_mut().record_fence(point)
    }

    fn submit(&mut self, transfer: Transfer) -> Result<Ticket, SubmitError> {
        self.device_mut().submit(transfer)
    }

    fn order_after(
        &mut self,
        ticket: Ticket,
        mark: u32,
        stream: StreamHandle,
    ) -> Result<MarkOrder, FenceError> {
        self.device_mut().order_after(ticket, mark, stream)
    }

    fn poll(&mut self, done: &mut Vec<TransferCompletion>) {
        self.device_mut().poll(done);
    }

    fn wait(&mut self, timeout: Duration, done: &mut Vec<TransferCompletion>) {
        self.device_mut().wait(timeout, done);
    }

    fn take_released(&mut self, released: &mut Vec<Ticket>) {
        self.device_mut().take_released(released);
    }

    fn health(&self) -> DeviceHealth {
        self.device().health()
    }

    fn drain(&mut self, timeout: Duration) -> Result<(), DrainError> {
        self.device_mut().drain(timeout)
    }
}
