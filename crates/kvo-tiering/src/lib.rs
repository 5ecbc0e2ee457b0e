//! kvo-tiering.
#![forbid(unsafe_code)]

mod error;
mod manager;
mod memory_tier;
mod request;
mod stats;
mod tiers;

pub use crate::{
    error::TieringConfigError,
    manager::{ResetReport, TieringManager},
    memory_tier::{MemoryTier, MemoryTierWorker},
    stats::{TierStats, TieringOptions, TieringStats},
};
