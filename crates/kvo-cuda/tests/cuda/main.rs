//! `CudaDevice` on the fake driver: its ways of copies, its calls of the driver, and what is left after errors. What every
//! device must do is the suite of `kvo-gpu-check`.
//!
//! A process has one driver, so tests of another driver, or of none, run in a process of their own.
#![cfg(feature = "cuda")]

mod captures;
mod driver;
mod errors;
mod fences;
mod guards;
mod held;
mod host;
mod locks;
mod paths;
mod rest;
#[expect(unsafe_code, reason = "an engine allocates memory and lends handles")]
mod rig;
