//! The vocabulary of kvo: what a chunk of KV cache is called, what happens to it, and the traits at the seams.
//!
//! Every other kvo crate speaks in these types. This crate does no I/O, starts no thread, reads no clock and
//! draws no random number; it can be used from an engine without pulling in anything that does. Beside the words it has
//! what all tables of the other crates are made with: [`reserve_table`], on huge pages, and [`prefetch`].
//!
//! ```text
//!   engine ──keys, contexts──▶ OffloadManager ──TierJob──▶ SecondaryTier   (NVMe, object store, yours)
//!      │                           │   ▲                        │
//!      │                       slots   └──── TierCompletion ────┘
//!      ▼                           ▼
//!   DeviceBackend ◀──Transfer── HostMemory  (slots, one chunk each)
//! ```
//!
//! - An engine names each chunk by an [`OffloadKey`]: the hash of its prefix and the index of its KV group.
//! - A [`RequestContext`] travels with a request through every call. It holds what the scheduler knows (the
//!   position of each key, which tiers may serve it) and what each manager records for it.
//! - An [`OffloadManager`] says where chunks are and reserves room. Its jobs end by a [`JobToken`], used up by
//!   value, so a job cannot end twice.
//! - A [`SecondaryTier`] keeps chunks below the primary; a [`DeviceBackend`] copies between GPU blocks and slots.
//!
//! # Example
//!
//! ```
//! use kvo_core::{BlockHash, GroupIdx, OffloadKey, RequestContext, RequestId};
//!
//! # fn main() -> Result<(), kvo_core::LayoutError> {
//! let head = OffloadKey::new(BlockHash([1; 32]), GroupIdx(0));
//! let tail = OffloadKey::new(BlockHash([2; 32]), GroupIdx(0));
//!
//! // The scheduler says at which token each chunk ends; recency follows these positions.
//! let mut request = RequestContext::new(RequestId(7));
//! request.set_positions([(head, 16), (tail, 32)]);
//! assert_eq!(request.positions().end_token(&tail), Some(32));
//!
//! // 32 layers, K and V, 64 KiB a page, 4 blocks a chunk: 16 MiB a chunk, checked in 64 bits.
//! let layout = kvo_core::ChunkLayout::new(32, 2, 64 << 10, 4)?;
//! assert_eq!(layout.chunk_bytes(), 16 << 20);
//! # Ok(())
//! # }
//! ```
//!
//! # Features
//!
//! None.
//!
//! # Sources
//!
//! The semantics of lookups, pins and request-scoped recency follow vLLM 0.33's `v1/kv_offload`, whose recorded
//! behaviour the managers reproduce; job tokens, typed outcomes and fences are kvo's own.

#![deny(unsafe_code)]

#[expect(unsafe_code, reason = "claims give out addresses of memory that others promise to keep")]
mod claims;
mod clock;
#[expect(unsafe_code, reason = "addresses and handles are an engine's word, which only the engine can give")]
mod device;
mod error;
mod event;
mod ids;
mod job;
mod key;
mod layout;
mod manager;
mod memory;
mod outcome;
mod request;
mod stats;
#[expect(unsafe_code, reason = "it gives two hints, to the processor and to the kernel, that change nothing")]
mod tables;
mod tier;

pub use crate::{
    claims::{ReadClaim, StableMemory, WriteClaim},
    clock::{Clock, ManualClock},
    device::{
        AttachError, ComputePoint, CopyOp, DeviceBackend, DeviceHealth, DeviceInfo, DeviceSpan, Direction,
        DrainError, EventHandle, Fence, FenceError, MarkOrder, StreamHandle, SubmitError, SubmitErrorReason,
        Ticket, Transfer, TransferClass, TransferCompletion, TransferFailure, WrapsDevice,
    },
    error::{CompleteError, CompleteErrorReason, LayoutError, LoadError, RequestError, StoreError},
    event::{EventKind, OffloadEvent},
    ids::{BlockId, JobId, OwnerId, RegionId, RequestId, SlotId},
    job::{JobKind, JobToken, LoadJob, StoreJob},
    key::{BlockHash, GroupIdx, OffloadKey},
    layout::ChunkLayout,
    manager::OffloadManager,
    memory::{HostMemory, SlotAccessError},
    outcome::{LookupResult, OffloadPolicy, PrefixLookup, Refusal, StoreOutcome, TierLookup, TransferResult},
    request::{KeyPositions, Locality, Medium, Position, RequestContext, TierFilter},
    stats::{ChunkCounts, EdgeStats},
    tables::{prefetch, reserve_table},
    tier::{
        JobRejected, RejectReason, ReleasedSlot, SecondaryTier, ShutDown, TierChunk, TierCompletion,
        TierDirection, TierJob, TierOutcome,
    },
};
