//! A CUDA driver for tests: the driver's own functions over plain memory, asynchronous and unfriendly.
//!
//! It has no device, no speed and no link. Every number that is measured on it is a model, and it says so in the names
//! of its devices. What it is good for is the order of things, and every byte.
//!
//! ```text
//!   test ── FakeDriver ── kvofake_controls ──┐          holds, steps, faults, counts, what went wrong
//!                                            ▼
//!   cudarc, kvo-cuda ── cu* by dlopen ──▶ libkvo_fakecuda.so, whose SONAME is libcuda.so
//!                                            │
//!        a thread a stream ── two engines a device, first come first served ──▶ memory
//! ```
//!
//! The crate is built twice from the same source: as a library that a test links, and as one that the loader brings in.
//! A package that has this one among its dev-dependencies needs nothing else: Cargo puts the second beside its tests,
//! [`FakeDriver::load`] finds it there, and whoever opens `libcuda.so` after that gets it, because the loader goes by
//! the SONAME. The file is not named so: Cargo has `target` in the loader's path, and then every test and every program
//! would find it. The driver is one a process, so tests of one binary take turns, by [`FakeDriver::exclusive`].
//!
//! # Example
//!
//! ```no_run
//! use kvo_fakecuda::{FakeDriver, Hold};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! // Before anybody looks for a driver.
//! let fake = FakeDriver::load()?.exclusive();
//! fake.set_device_count(2);
//! fake.hold(Hold::All);
//! // ... submit copies: none of them starts, and the events behind them are not ready ...
//! fake.release(Hold::All);
//! // ... wait for them ...
//! assert_eq!(fake.violations(), []);
//! # Ok(())
//! # }
//! ```
//!
//! # What it does to you
//!
//! - Device addresses have no access: a touch by the host is a segmentation fault. Fresh memory is full of 0xA5, freed
//!   addresses come back late, and there is a red zone on each side of an allocation.
//! - A copy arrives last bytes first. A batch runs from its last member to its first, and sources that need not be read in
//!   stream order are read during the call. When a member is refused, those behind it have been queued all the same.
//! - Each engine takes copies as they come, whatever the priority of their streams.
//! - An event has the record of the moment, and so has a wait: recording the event once more changes neither.
//! - Memory that is not registered is staged: a source is read during the call, and a copy into such memory is over when
//!   the call returns. A kernel that touches it kills the device. A copy that leaves a registration or an
//!   allocation is refused, also if only what is between its rows does.
//! - A kernel is the PTX that was loaded, run by [`kvo_ptx`], with every parameter that it declares, given or not. An
//!   access in a red zone goes through and is written down; anywhere else it kills the device.
//! - A call that waits spoils a capture, unless its thread's mode allows it; so does a question about what is captured, and
//!   the end of a stream that an event has pulled in.
//! - A call on a thread without a context, or from a host function, is refused. A dead device refuses everything with the
//!   code that it died of, and stays dead until [`FakeDriver::reset`].
//! - What a driver would not notice is written down: [`Violation`], [`Mismatch`], [`Leak`].
//!
//! # What it does not have
//!
//! Peer copies, pools, managed memory, contexts other than primary ones, the per-thread stream, graphs: a capture of
//! streams ends with none. A symbol that is
//! missing is missing: `dlsym` does not find it. Real codes were taken from documents, not from a device: where a real
//! device answers otherwise, the fake is what has to change.
//!
//! # Release builds
//!
//! Under a profile that inherits from `release` the build script leaves the driver out: the library then is empty, has no
//! SONAME, and [`FakeDriver::load`] gives [`LoadError::NotArmed`]. With `KVO_FAKECUDA=model` in the environment of the
//! build it is there all the same, for runs of `cargo xtask gpu-check` on a model. No library crate of kvo depends on
//! this one but for its tests; `cargo xtask tidy` checks that.
//!
//! # Unsafe code
//!
//! `exports` has C's functions, `pointers` what their arguments point to, `memory` the mappings, `client::library` the
//! loader. The rest is safe.

#![deny(unsafe_code)]
#![cfg_attr(not(kvo_fakecuda_armed), allow(dead_code, reason = "words of a driver that is not there"))]

mod abi;
mod client;
mod symbols;
mod tally_kinds;
mod wire;

#[cfg(kvo_fakecuda_armed)]
mod capture;
#[cfg(kvo_fakecuda_armed)]
mod context;
#[cfg(kvo_fakecuda_armed)]
mod control;
#[cfg(kvo_fakecuda_armed)]
mod copy;
#[cfg(kvo_fakecuda_armed)]
mod device;
#[cfg(kvo_fakecuda_armed)]
#[expect(unsafe_code, reason = "functions that C calls, by the names that it calls them by")]
mod exports;
#[cfg(kvo_fakecuda_armed)]
mod faults;
#[cfg(kvo_fakecuda_armed)]
mod host;
#[cfg(kvo_fakecuda_armed)]
mod kernel;
#[cfg(kvo_fakecuda_armed)]
#[expect(unsafe_code, reason = "mappings, and the bytes in them")]
mod memory;
#[cfg(kvo_fakecuda_armed)]
#[expect(unsafe_code, reason = "what the arguments of C's functions point to")]
mod pointers;
#[cfg(kvo_fakecuda_armed)]
mod state;
#[cfg(kvo_fakecuda_armed)]
mod streams;
#[cfg(kvo_fakecuda_armed)]
mod tally;
#[cfg(kvo_fakecuda_armed)]
mod work;

pub use crate::{
    abi::Code,
    client::{
        Compute, Counts, Exclusive, FakeDriver, Hold, Leak, LoadError, Mismatch, Ran, RanKind, Step,
        Violation,
    },
};
