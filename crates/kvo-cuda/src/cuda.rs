//! Devices that are GPUs, by the CUDA driver.

mod batches;
mod codes;
mod device;
#[expect(unsafe_code, reason = "calls of the driver, which know nothing of references")]
mod driver;
mod fences;
mod host_pool;
#[expect(unsafe_code, reason = "addresses of claimed slots, given to the driver")]
mod issue;
mod numa;
mod paths;
mod probe;
mod regions;
mod state;
mod worker;

pub use self::{
    batches::{BatchTestError, BatchUse, test_batches},
    codes::{DriverCode, ErrorClass},
    device::{CudaDevice, CudaError, CudaOptions, CudaStats},
    host_pool::HostMode,
    paths::{CopyPath, PathCount, PathStats, PathTable, PathUse, TableSource},
    probe::{DeviceFacts, DriverFacts, Probe, probe},
};
