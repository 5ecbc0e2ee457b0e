//! Devices that are GPUs, by the CUDA driver.

mod codes;
#[expect(dead_code, reason = "for the device")]
#[expect(unsafe_code, reason = "calls of the driver, which know nothing of references")]
mod driver;
mod probe;

pub use self::{
    codes::{DriverCode, ErrorClass},
    probe::{DeviceFacts, DriverFacts, Probe, probe},
};
