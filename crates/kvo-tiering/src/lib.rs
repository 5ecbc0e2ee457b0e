//! The tiering manager of kvo: a primary tier with secondary tiers below it.
//!
//! [`TieringManager`] is what an engine's scheduler talks to. It answers lookups over all tiers, brings chunks up
//! (promotions), copies stored chunks down (cascades), and keeps track of each request until the last of its
//! transfers is on its way. It moves no bytes: a [`SecondaryTier`] is given jobs and polled for their results.
//!
//! ```text
//!   scheduler ──lookup─────▶ TieringManager ──lookup──────▶ SecondaryTier 0, 1, ..
//!             ──prepare_*──▶   CpuManager   ──TierJob─────▶   writes a chunk from its slot (cascade),
//!             ──complete_*─▶   holds slots  ◀─completion──    reads one into a slot (promotion)
//!             ──schedule_end                                  on threads of its own
//! ```
//!
//! What happens in a step:
//! 1. The first lookup collects what the tiers have done since. A key that only a lower tier has gets a slot at once
//!    and is queued; until its bytes are there, lookups answer
//!    [`HitPending`](kvo_core::LookupResult::HitPending).
//! 2. [`prepare_store`](kvo_core::OffloadManager::prepare_store) and
//!    [`prepare_load`](kvo_core::OffloadManager::prepare_load) reserve and pin; the engine copies, and completes the
//!    jobs in this step or a later one. A completed store cascades to every tier.
//! 3. [`on_schedule_end`](kvo_core::OffloadManager::on_schedule_end) submits the queued promotions, one job per tier
//!    and request.
//!
//! A tier is told that a request is finished exactly once, when no further write of it can come: after the finish,
//! after its last store at the primary, and after every chunk that was pending when it was offered is decided.
//!
//! # Under pressure
//!
//! [`PressureOptions`] say what tiers and waiting requests may take from running ones. Promotions that nobody has loaded
//! yet have a share of the primary, given to the oldest request first, so that stores of running requests find room and
//! no chunk is brought up only to be evicted; lookups of the others answer
//! [`Retry`](kvo_core::LookupResult::Retry) until it is their turn. A tier that is slow gets fewer cascades and
//! promotions; one that fails, or does not report a job in time, is fenced off and tried again after a pause. A job that
//! is overdue is waited for by nobody, and its slots come back when the tier reports it.
//!
//! # Example
//!
//! A chunk cascades to a second tier and comes back after the primary has been reset. The tier's worker is run by
//! hand here; an engine gives it a thread.
//!
//! ```
//! use std::{sync::Arc, time::Instant};
//!
//! use kvo_core::{
//!     BlockHash, GroupIdx, HostMemory, LookupResult, OffloadKey, OffloadManager, RequestContext, RequestId,
//!     StoreOutcome, TransferResult,
//! };
//! use kvo_cpu::{CpuManager, CpuOptions, HostRegion, RegionOptions};
//! use kvo_policies::Lru;
//! use kvo_tiering::{MemoryTier, TieringManager, TieringOptions};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let region = Arc::new(HostRegion::anonymous(&RegionOptions::new(4, 4096))?);
//! let (tier, mut worker) = MemoryTier::new("far memory", 100, Lru::new(100), region.clone())?;
//! let start = Instant::now();
//! let mut manager = TieringManager::new(
//!     CpuManager::new(CpuOptions::new(4), Lru::new(4))?,
//!     vec![Box::new(tier)],
//!     TieringOptions::new(4096),
//!     Box::new(move || start.elapsed()),
//! )?;
//!
//! let key = OffloadKey::new(BlockHash([1; 32]), GroupIdx(0));
//! let mut request = RequestContext::new(RequestId(1));
//! manager.new_request(&mut request)?;
//! let StoreOutcome::Prepared(job) = manager.prepare_store(&mut request, &[key])? else { panic!("there is room") };
//! region.with_write(job.slots[0], &mut |bytes| bytes.fill(42))?; // a device copies from the GPU
//! manager.complete_store(job.token, TransferResult::Done)?; // and the chunk cascades
//! manager.on_request_finished(&mut request)?;
//! worker.run_queued();
//! manager.on_schedule_end();
//! manager.reset_cache();
//! manager.on_reset_flushed();
//!
//! let mut next = RequestContext::new(RequestId(2));
//! manager.new_request(&mut next)?;
//! assert_eq!(manager.lookup(&mut next, &key), LookupResult::HitPending);
//! manager.on_schedule_end(); // submits the promotion
//! worker.run_queued();
//! assert_eq!(manager.lookup(&mut next, &key), LookupResult::Hit);
//! let load = manager.prepare_load(&mut next, &[key])?;
//! region.with_read(load.slots[0], &mut |bytes| assert_eq!(bytes[0], 42))?;
//! manager.complete_load(load.token)?;
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
//! The semantics are those of vLLM 0.33's `v1/kv_offload` tiering manager, reproduced from recordings. kvo departs
//! from it where the reference waits or asserts: a reset parks the slots of tier jobs that are still running instead
//! of waiting for them, and a report that makes no sense is counted and ignored. It also bounds what tiers and waiting
//! requests may take, which the reference does for cascades alone; [`PressureOptions::NONE`] has no bound at all.
//!
//! [`SecondaryTier`]: kvo_core::SecondaryTier

#![forbid(unsafe_code)]

mod manager;

mod error;
mod memory_tier;
mod pressure;
mod request;
mod stats;
mod tiers;

pub use crate::{
    error::TieringConfigError,
    manager::{ResetReport, TieringManager},
    memory_tier::{MemoryTier, MemoryTierWorker},
    pressure::{PressureOptions, Watermarks},
    stats::{TierStats, TieringOptions, TieringStats},
};
