//! The primary tier of kvo: chunks of KV cache in CPU memory.
//!
//! Two parts that know nothing of each other. [`CpuManager`] is a state machine: which chunk is in which slot, what
//! state it is in, who pins it, what goes next. [`HostRegion`] is memory: slots of equal size that devices and tiers
//! copy from and to. Neither knows of any other tier.
//!
//! ```text
//!                       CpuManager<P>                            HostRegion
//!   lookup ──────▶  key ──▶ slot 4  Ready, 1 pin  ─ ─ ─ ─ ─  [0][1][2][3][4][5]
//!   prepare_load ─▶ token + slots ────────────────────────▶  a device copies slot 4 to the GPU
//!   complete_load ▶ token ends the pin
//! ```
//!
//! - Every slot is free, pending (being written), evictable (ready, unpinned) or pinned; [`counts`] adds up to the
//!   capacity at every moment.
//! - Jobs end by tokens that are used up, so no job ends twice and none after a reset.
//! - What a request loads or offers is recorded in its [`RequestContext`] and committed once, when it finishes.
//! - Transfers of lower tiers hold slots by a [`TierHold`], which is no access.
//!
//! [`counts`]: kvo_core::OffloadManager::counts
//! [`RequestContext`]: kvo_core::RequestContext
//!
//! # Example
//!
//! ```
//! use kvo_core::{
//!     BlockHash, GroupIdx, HostMemory, LookupResult, OffloadKey, OffloadManager, RequestContext, RequestId,
//!     StoreOutcome, TransferResult,
//! };
//! use kvo_cpu::{CpuManager, CpuOptions, HostRegion, RegionOptions};
//! use kvo_policies::Lru;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let region = HostRegion::anonymous(&RegionOptions::new(8, 4096))?;
//! let mut manager = CpuManager::new(CpuOptions::new(8), Lru::new(8))?;
//! let key = OffloadKey::new(BlockHash([1; 32]), GroupIdx(0));
//!
//! let mut request = RequestContext::new(RequestId(1));
//! manager.new_request(&mut request)?;
//! let StoreOutcome::Prepared(job) = manager.prepare_store(&mut request, &[key])? else {
//!     panic!("an empty tier has room");
//! };
//! // A device would copy from the GPU here.
//! region.with_write(job.slots[0], &mut |bytes| bytes.fill(42))?;
//! manager.complete_store(job.token, TransferResult::Done)?;
//! manager.on_request_finished(&mut request)?;
//!
//! let mut next = RequestContext::new(RequestId(2));
//! manager.new_request(&mut next)?;
//! assert_eq!(manager.lookup(&mut next, &key), LookupResult::Hit);
//! let load = manager.prepare_load(&mut next, &[key])?;
//! region.with_read(load.slots[0], &mut |bytes| assert_eq!(bytes[0], 42))?;
//! manager.complete_load(load.token)?;
//! # Ok(())
//! # }
//! ```
//!
//! # Allocations
//!
//! No call allocates for each of its chunks. Counted by `tests/allocations.rs`, for every policy, once the tables have
//! grown to what is there at a time:
//!
//! | call | at most |
//! |---|---|
//! | `new_request` | 2: the request's state and the list that it is in |
//! | `prepare_store` of something new | 3: the job's keys, slots and evicted keys |
//! | `prepare_store` otherwise, refused or with nothing to store | 0 |
//! | `prepare_load` | 1: the job's slots |
//! | `complete_store`, `complete_load`, `lookup`, `lookup_prefix`, `on_request_finished`, `on_schedule_end` | 0 |
//! | a request's record | 0 where a finished request of up to 16,384 keys has left its room, else one for each doubling |
//! | a request that meets its keys out of order | two tables of their positions, the keys, and a buffer |
//! | an event, where they are recorded | its keys |
//!
//! Tables that outlive requests double, ever more seldom. A [`store_threshold`](CpuOptions::store_threshold) above 1
//! keeps an ordered tree of the keys offered, whose nodes are allocated as keys come and go: about one for six keys.
//!
//! # Features
//!
//! - `testing`: `CpuManager::assert_consistent`, a check of all internal links, for tests of crates above.
//!
//! # Sources
//!
//! The semantics are those of vLLM 0.33's `v1/kv_offload`, reproduced from recordings of its behaviour.

// Unsafe code is in `region` alone: it maps memory and lends slices of it.
#![deny(unsafe_code)]

mod manager;

mod accesses;
mod error;
mod hold;
mod options;
mod slots;
mod sync;
mod tracker;

#[expect(unsafe_code, reason = "it maps memory and lends slices of it")]
mod region;

pub use crate::{
    error::{ConfigError, RegionError},
    hold::{HoldKind, Released, TierHold},
    manager::CpuManager,
    options::{CpuOptions, CpuStats},
    region::{HostRegion, RegionOptions},
};
