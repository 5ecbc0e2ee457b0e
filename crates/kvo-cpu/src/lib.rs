//! kvo-cpu.
#![deny(unsafe_code)]

mod accesses;
mod error;
mod hold;
mod manager;
mod options;
mod tracker;

pub use crate::{
    error::{ConfigError, RegionError},
    hold::{HoldKind, Released, TierHold},
    manager::CpuManager,
    options::{CpuOptions, CpuStats},
};
