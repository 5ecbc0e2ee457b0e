//! What every device of kvo must do, and a small engine to try it with.
//!
//! A [`TestBed`] is a device under test with what an engine has beside it: memory, streams, events, and compute that
//! writes and checks patterns, and that can be held up. There is one for [`HostDevice`](kvo_cuda::HostDevice) and one for
//! [`CudaDevice`](kvo_cuda::CudaDevice), which are told apart by nothing but their names; whoever writes a
//! [`DeviceBackend`](kvo_core::DeviceBackend) of their own writes a third.
//!
//! ```text
//!   the suite ─▶ TestBed ─┬─▶ DeviceBackend: transfers, fences, marks
//!                         └─▶ the engine: allocate, fill, check, hold, record
//! ```
//!
//! A [`CudaEngine`] is that engine on a GPU, with a share of the device's primary context. Its kernels are
//! `kernels/engine.cu`. A [`CudaWorker`] is both sides without a bed: its calls give errors, and programs go on with it.
//!
//! This crate is for checks and benches: its beds panic where a call fails, which ends a case.

// `cuda/raw.rs` has the calls of the driver, `handles.rs` the names of what an engine lends.
#![deny(unsafe_code)]

mod bed;
mod cuda;
#[expect(unsafe_code, reason = "names of memory, streams and events that a bed owns")]
mod handles;
mod host;
mod pattern;

pub use crate::{
    bed::{BedMaker, BedOptions, Hold, TestBed},
    cuda::{
        CudaBed, CudaBeds, CudaEngine, CudaWorker, EngineError, EventId, StreamId, WorkerError, is_model,
    },
    host::{HostBed, HostBeds},
    pattern::{byte, pattern},
};
