//! `CudaDevice` on the fake driver: what comes back to the byte, in which order, and what is left after errors.
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
mod round_trips;
