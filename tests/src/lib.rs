//! Tests of kvo as a whole, through its public API only, and the runner of recorded behaviour.
//!
//! `cargo xtask conformance DIR` replays recordings of the reference system: see [`conformance`]. The tests under
//! `tests/tests/` move real bytes through every tier.

#![forbid(unsafe_code)]

pub mod conformance;

/// The README's example is compiled and run with the doctests.
#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
struct Readme;
