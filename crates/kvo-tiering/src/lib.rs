//! kvo-tiering.
#![forbid(unsafe_code)]

mod error;
mod manager;
mod request;
mod stats;
mod tiers;

pub use crate::{
    error::TieringConfigError,
    manager::{ResetReport, TieringManager},
    stats::{TierStats, TieringOptions, TieringStats},
};
