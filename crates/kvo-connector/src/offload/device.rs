//! A device of either kind.

use kvo_core::{DeviceBackend, WrapsDevice};
use kvo_cuda::{CudaDevice, HostDevice};

/// A device of whichever kind a configuration names.
#[derive(Debug)]
pub enum AnyDevice {
    /// In host memory, which it allocates itself.
    Host(HostDevice),
    /// A GPU, whose memory is the engine's.
    Cuda(CudaDevice),
}

impl WrapsDevice for AnyDevice {
    fn wrapped(&self) -> &dyn DeviceBackend {
        match self {
            Self::Host(device) => device,
            Self::Cuda(device) => device,
        }
    }

    fn wrapped_mut(&mut self) -> &mut dyn DeviceBackend {
        match self {
            Self::Host(device) => device,
            Self::Cuda(device) => device,
        }
    }
}
