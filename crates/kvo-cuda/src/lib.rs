//! Copies between an engine's GPU blocks and the slots of kvo's host memory.
//!
//! This crate knows where bytes are and moves them. It does not know which chunks are worth keeping, owns no slot
//! and evicts nothing: the primary tier reserves and pins slots before a transfer is submitted, and learns of its end
//! afterwards. Nothing here needs a driver or a GPU.
//!
//! ```text
//!    GPU blocks                                        one slot, one chunk
//!    [layer][plane][block][page]                       [layer][plane][sub-block][page]
//!    or [block][layer][plane][page], ...
//!    ┌──┬──┬──┬──┬──┬──┐                               ┌──┬──┬──┬──┐
//!    │  │b1│b2│  │b3│  │ layer 0, K ──store──▶         │b1│b2│b3│..│ layer 0, K
//!    ├──┼──┼──┼──┼──┼──┤            ◀──load───         ├──┼──┼──┼──┤
//!    │  │b1│b2│  │b3│  │ layer 0, V                    │b1│b2│b3│..│ layer 0, V
//!    └──┴──┴──┴──┴──┴──┘                               └──┴──┴──┴──┘
//!     BlockLayout            CopyPlanner: CopyOps       ChunkLayout
//! ```
//!
//! - A [`BlockLayout`] says where the engine keeps its blocks. It checks all of it once.
//! - A [`CopyPlanner`] turns chunks and blocks into the fewest copies, for whole chunks (stores) and for chunks of
//!   which the GPU has, or needs, only a part (loads).
//! - A `HostDevice` is a [`DeviceBackend`](kvo_core::DeviceBackend) whose memory is host memory: asynchronous
//!   lanes for stores and loads, a compute stream and fences between them. A whole system can be built, tested and
//!   replayed on it.
//!
//! # Features
//!
//! - `cuda`, on by default: devices that are GPUs, by the CUDA driver. It needs no CUDA to build, and looks for the
//!   driver when a program asks for it. [`probe`] says what it found.
//!
//! # Sources
//!
//! That loads as well as stores wait for compute answers two corruptions found in vLLM (issue 45704, PR 31341); that
//! every copy is checked against both memories, another (PR 39617). Loads that begin inside a chunk follow vLLM
//! issue 28950. Codes of dead devices are those of the CUDA driver API.

// The calls of the driver are in `cuda::driver`.
#![deny(unsafe_code)]

#[cfg(feature = "cuda")]
mod cuda;
mod error;
mod layout;
mod plan;

#[cfg(feature = "cuda")]
pub use crate::cuda::{DeviceFacts, DriverCode, DriverFacts, ErrorClass, Probe, probe};
pub use crate::{
    error::{ComputeError, DeviceAccessError, GeometryError, HostDeviceError, PlanError},
    layout::BlockLayout,
    plan::{ChunkBlocks, CopyPlanner},
};
