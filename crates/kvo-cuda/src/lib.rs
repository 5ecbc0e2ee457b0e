//! Copies between an engine's GPU blocks and the slots of kvo's host memory.
//!
//! This crate knows where bytes are and moves them. It does not know which chunks are worth keeping, owns no slot
//! and evicts nothing: the primary tier reserves and pins slots before a transfer is submitted, and learns of its end
//! afterwards. Nothing here needs a driver or a GPU to be built, and nothing but a [`CudaDevice`] needs one to run.
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
//!     BlockLayout            CopyPlanner: CopyOps       BlockLayout
//! ```
//!
//! - A [`BlockLayout`] says where the engine keeps its blocks and how they stand in a chunk, for all its KV cache groups.
//!   It is made of [`GroupSpec`]s, which have a constructor for each usual arrangement, and checks all of it once.
//! - A [`CopyPlanner`] turns chunks and blocks into the fewest copies, for whole chunks (stores) and for chunks of
//!   which the GPU has, or needs, only a part (loads), chunk by chunk or [layer by layer](CopyPlanner::plan_load_by_layer).
//! - A [`Fingerprint`] names what the chunks of a layout are, so that a store that outlives the engine gives them to no
//!   other. Ranks of different parallelism that share chunks have one, by [canonical pages](CanonicalPage).
//! - A [`HostDevice`] is a [`DeviceBackend`](kvo_core::DeviceBackend) whose memory is host memory: asynchronous
//!   lanes for stores and loads, compute streams and fences between them. A whole system can be built, tested and
//!   replayed on it.
//! - A [`SteppedDevice`] is the same in one thread and in virtual time, in an order that follows from a seed.
//! - A [`CudaDevice`] is one that is a GPU: one stream a direction, as many bytes on it as a window has, and the way for
//!   each copy that was measured to be the fastest. [`probe`] says which there are, and never panics.
//! - A [`Race`] is what the detector in the host devices finds: two jobs that touch the same bytes and that nothing orders.
//!
//! # Example
//!
//! A block is written by compute, stored behind a fence, and loaded back into another block.
//!
//! ```
//! use std::{sync::Arc, time::Duration};
//!
//! use kvo_core::{
//!     BlockId, ChunkLayout, DeviceBackend, GroupIdx, SlotId, Transfer, TransferClass,
//! };
//! use kvo_cuda::{BlockLayout, ChunkBlocks, CopyPlanner, HostDevice, HostDeviceOptions};
//! # use std::sync::RwLock;
//! # use kvo_core::{HostMemory, SlotAccessError};
//! # struct Slots(Vec<RwLock<Vec<u8>>>);
//! # impl HostMemory for Slots {
//! #     fn num_slots(&self) -> u32 { self.0.len() as u32 }
//! #     fn slot_bytes(&self) -> usize { 256 }
//! #     fn with_read(&self, slot: SlotId, read: &mut dyn FnMut(&[u8])) -> Result<(), SlotAccessError> {
//! #         let lock = self.0[slot.0 as usize].try_read();
//! #         lock.map(|bytes| read(&bytes)).map_err(|_| SlotAccessError::Busy { slot })
//! #     }
//! #     fn with_write(&self, slot: SlotId, write: &mut dyn FnMut(&mut [u8])) -> Result<(), SlotAccessError> {
//! #         let lock = self.0[slot.0 as usize].try_write();
//! #         lock.map(|mut bytes| write(&mut bytes)).map_err(|_| SlotAccessError::Busy { slot })
//! #     }
//! # }
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! // 2 layers of K and V, 64 bytes a page, one block a chunk; 8 blocks on the device.
//! let chunk = ChunkLayout::new(2, 2, 64, 1)?;
//! let layout = BlockLayout::block_first(&chunk, 8, 8 * chunk.block_bytes())?;
//! let mut planner = CopyPlanner::new(layout, 4, chunk.chunk_bytes())?;
//!
//! // The host memory is the primary tier's; here it is four slots of 256 bytes.
//! # let slots = Arc::new(Slots((0..4).map(|_| RwLock::new(vec![0; 256])).collect()));
//! let mut device = HostDevice::new(HostDeviceOptions::default(), slots)?;
//! let blocks = device.alloc(8 * 256)?;
//! device.attach(blocks)?; // the first region, which the planner names
//!
//! // The engine computes block 3, some time after this call.
//! device.compute().launch_write(blocks.address() + 3 * 256, vec![42; 256])?;
//! let after = device.record_fence(device.compute().point())?;
//!
//! let mut ops = Vec::new();
//! planner.plan_store(&[ChunkBlocks { group: GroupIdx(0), slot: SlotId(0), skip: 0, blocks: &[BlockId(3)] }], &mut ops)?;
//! assert_eq!(ops.len(), 1); // the block is one run on both sides
//! device.submit(Transfer::new(TransferClass::Store, ops, after))?;
//! let mut done = Vec::new();
//! device.wait(Duration::from_secs(10), &mut done);
//! assert_eq!(done[0].result, Ok(256));
//!
//! // Only now may block 3 be reused. Later, the chunk is loaded into block 6.
//! let (mut ops, after) = (Vec::new(), device.record_fence(device.compute().point())?);
//! planner.plan_load(&[ChunkBlocks { group: GroupIdx(0), slot: SlotId(0), skip: 0, blocks: &[BlockId(6)] }], &mut ops)?;
//! device.submit(Transfer::new(TransferClass::Demand, ops, after))?;
//! device.drain(Duration::from_secs(10))?;
//! let mut block = [0; 256];
//! device.memory().read(blocks.address() + 6 * 256, &mut block)?;
//! assert_eq!(block, [42; 256]);
//! # Ok(())
//! # }
//! ```
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
//! issue 28950; that both sides of a copy may descend, PR 56110. Codes of dead devices are those of the CUDA driver API.
//! That batches are tested, cut and given up at the first refusal answers vLLM issue 49276 and `PegaFlow` PR 278.

// Names of the host device's own streams and spans are made in `host_device/handles.rs`; a GPU's copies are in
// `cuda/issue.rs` and the calls of its driver in `cuda/driver.rs`. Nothing else is unsafe.
#![deny(unsafe_code)]

#[cfg(feature = "cuda")]
mod copy_kernel;
#[cfg(feature = "cuda")]
mod cuda;
mod error;
mod fingerprint;
#[cfg(any(test, kvo_fuzzing))]
#[doc(hidden)]
pub mod fuzzing;
mod host_device;
mod layout;
mod plan;
mod queue;
#[cfg(any(test, kvo_fuzzing))]
#[cfg_attr(not(test), allow(dead_code, reason = "some of it is of the tests alone"))]
mod testing;

#[cfg(feature = "cuda")]
pub use crate::cuda::{
    BatchTestError, BatchUse, CopyPath, CudaDevice, CudaError, CudaOptions, CudaStats, DeviceFacts,
    DriverCode, DriverFacts, ErrorClass, HostMode, PathCount, PathStats, PathTable, PathUse, Probe,
    TableSource, probe, test_batches,
};
pub use crate::{
    error::{GeometryError, PageName, PlanError},
    fingerprint::{ChunkIdentity, Fingerprint, Parallelism, RankOf},
    host_device::{
        Accesses, ComputeError, ComputeStream, DeviceAccessError, DeviceMemory, HostDevice, HostDeviceError,
        HostDeviceOptions, Job, LinkModel, Place, Race, RaceKind, Step, SteppedDevice,
    },
    layout::{
        BlockLayout, ByteRun, CanonicalPage, ChunkPlace, GroupLayout, GroupSpec, LayerTensor, PagePlane,
        PageRef,
    },
    plan::{Alignment, ChunkBlocks, CopyPlanner, HostPieces, LayerMarks, PlanOptions},
    queue::DeviceStats,
};
