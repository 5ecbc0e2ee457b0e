//! What an engine calls: which tokens can be loaded, which blocks are to be stored, when a block may be reused.
//!
//! ```text
//!   engine's scheduler                                        engine's worker
//!        │ new_request, match_prefix,                               ▲ StepPlan: wait for, loads, stores
//!        ▼ blocks_allocated, build_step ───────────────────────────┘
//!    Connector<M> ── OffloadManager M: CPU tier, lower tiers
//!        ▲ copy_reported, copy_released
//! ```
//!
//! A [`Connector`] sits between an engine's scheduler and an [`OffloadManager`](kvo_core::OffloadManager). It knows the
//! requests that run, which of their chunks the tiers have, and which blocks copies use. It moves no bytes, has no thread,
//! and never waits. A [`Worker`] runs its plans on a [`DeviceBackend`](kvo_core::DeviceBackend), in the engine's process or
//! in several others. What goes between them is plain data: [`StepPlan`]s one way, [`WorkerReport`]s the other.
//!
//! | what an engine knows | where it goes |
//! |---|---|
//! | a request comes | [`new_request`](Connector::new_request), with [`RequestParams`] |
//! | its blocks' hashes, as they become known | [`add_hashes`](Connector::add_hashes); a [`BlockHasher`] makes them |
//! | it could start | [`match_prefix`](Connector::match_prefix) |
//! | blocks were allocated for what was found | [`blocks_allocated`](Connector::blocks_allocated) |
//! | a step is scheduled, requests are preempted | [`build_step`](Connector::build_step) |
//! | a copy has ended at a worker | [`copy_reported`](Connector::copy_reported), [`copy_released`](Connector::copy_released) |
//! | time passes | [`take_late`](Connector::take_late), for workers that have died |
//! | a request is finished or aborted | [`request_finished`](Connector::request_finished) |
//! | its blocks are free | [`take_settled`](Connector::take_settled), or at once: plans say what to wait for |
//! | a router wants to know | [`take_events`](Connector::take_events), or [`take_block_events`](Connector::take_block_events) with parents and tokens |
//! | the weights have changed | [`reset_to`](Connector::reset_to) another epoch |
//! | the slots' memory is wanted for something else | [`reset`](Connector::reset) |
//! | nobody is to touch the slots for a while | [`hold`](Connector::hold), [`is_drained`](Connector::is_drained), [`go_on`](Connector::go_on) |
//! | it ends | [`Worker::shut_down`], its last reports, [`shut_down`](Connector::shut_down) |
//!
//! What comes back of a report is a [`CopyOutcome`]: a load says from which token on its request computes, which after a
//! failure may be less than before it. A reset says the same of the loads that it has met, by [`Flush::loads_void`].
//!
//! # Example
//!
//! An engine that computes one request after the other, in blocks of 4 tokens. Its compute writes a token's number; a
//! request that comes again finds its tokens in the CPU tier.
//!
//! ```
//! use std::{sync::Arc, time::{Duration, Instant}};
//!
//! use kvo_connector::{
//!     BlockHasher, Connector, ConnectorOptions, CopyOutcome, GroupOptions, Namespace, PrefixMatch, RequestParams,
//!     Scheduled, StepInput, Worker, WorkerOptions, WorkerReport,
//! };
//! use kvo_core::{BlockId, ChunkLayout, RequestId};
//! use kvo_cpu::{CpuManager, CpuOptions, HostRegion, RegionOptions};
//! use kvo_cuda::{BlockLayout, ChunkIdentity, HostDevice, HostDeviceOptions, Parallelism};
//! use kvo_policies::Lru;
//!
//! const BLOCK_TOKENS: u32 = 4;
//!
//! fn main() -> Result<(), Box<dyn std::error::Error>> {
//!     // One layer of one plane, a byte a token; 8 blocks on the device, 16 slots on the host.
//!     let chunk = ChunkLayout::new(1, 1, u64::from(BLOCK_TOKENS), 1)?;
//!     let region = Arc::new(HostRegion::anonymous(&RegionOptions::new(16, chunk.chunk_bytes() as usize))?);
//!     let device = HostDevice::new(HostDeviceOptions::default(), region)?;
//!     let cache = device.alloc(8 * chunk.block_bytes())?;
//!     let layout = BlockLayout::layer_first(&chunk, 8, cache.bytes())?;
//!     let identity = ChunkIdentity {
//!         model: "example-8b@4f2c".to_owned(),
//!         dtype: "a byte".to_owned(),
//!         tokens_per_block: vec![BLOCK_TOKENS],
//!         parallelism: Parallelism::SINGLE,
//!     };
//!     let namespace = Namespace::new(layout.fingerprint(&identity)?, 1);
//!     let slots = (16, chunk.chunk_bytes());
//!     let mut worker = Worker::new(device, &[cache], layout, slots, WorkerOptions::default())?;
//!     let manager = CpuManager::new(CpuOptions::new(16), Lru::new(16))?;
//!     let start = Instant::now();
//!     let options = ConnectorOptions::new(namespace, vec![GroupOptions::full(BLOCK_TOKENS)], BLOCK_TOKENS);
//!     let mut connector = Connector::new(options, manager, Box::new(move || start.elapsed()))?;
//!     let hasher = BlockHasher::new(b"");
//!
//!     let mut loaded = Vec::new();
//!     for (id, tokens) in [(1, [1_u32, 2, 3, 4, 5, 6, 7, 8, 9]), (2, [1, 2, 3, 4, 5, 6, 7, 8, 10])] {
//!         let id = RequestId(id);
//!         connector.new_request(id, tokens.len() as u32, RequestParams::default())?;
//!         connector.add_hashes(id, tokens.len() as u32, &hasher.blocks(BLOCK_TOKENS as usize, &tokens))?;
//!         let blocks = [0, 1, 2].map(|block| Some(BlockId(block))); // whichever are free
//!         let mut computed = 0;
//!         let mut is_allocated = false;
//!         while (computed as usize) < tokens.len() {
//!             let found = match connector.match_prefix(id, computed)? {
//!                 PrefixMatch::AskAgain => {
//!                     connector.build_step(&StepInput::default())?;
//!                     continue;
//!                 }
//!                 PrefixMatch::Loadable(tokens) => tokens,
//!             };
//!             let mut step = StepInput::default();
//!             let new_blocks = [if is_allocated { &blocks[..0] } else { &blocks[..] }];
//!             let compute = [Scheduled { request: id, kept_blocks: &[], new_blocks: &new_blocks, computed, settled: tokens.len() as u32 }];
//!             if found > 0 {
//!                 connector.blocks_allocated(id, &[&blocks])?;
//!                 is_allocated = true;
//!             } else {
//!                 step.scheduled = &compute;
//!             }
//!             let plan = connector.build_step(&step)?;
//!             let stream = worker.device().compute().clone();
//!             let mut reports = Vec::new();
//!             while !worker.order_behind(&plan.wait_for, stream.handle())?.is_empty() {
//!                 worker.wait(Duration::from_secs(1), &mut reports);
//!             }
//!             worker.start_loads(&plan, stream.point());
//!             if found == 0 {
//!                 let bytes = tokens[computed as usize..].iter().map(|token| *token as u8).collect();
//!                 stream.launch_write(cache.address() + u64::from(computed), bytes)?;
//!                 computed = tokens.len() as u32;
//!             }
//!             worker.start_stores(&plan, stream.point());
//!             worker.drain(Duration::from_secs(10))?;
//!             worker.poll(&mut reports);
//!             for report in reports {
//!                 let outcome = match report {
//!                     WorkerReport::Ended { copy, result, .. } => connector.copy_reported(copy, 0, result)?,
//!                     WorkerReport::Released { copy } => {
//!                         connector.copy_released(copy, 0)?;
//!                         continue;
//!                     }
//!                 };
//!                 match outcome {
//!                     CopyOutcome::Loaded { computed: now, .. } => {
//!                         computed = now;
//!                         loaded.push(now);
//!                     }
//!                     CopyOutcome::LoadFailed { computed: good, .. } => computed = good, // may be less than before
//!                     _ => {}
//!                 }
//!             }
//!         }
//!         let _ = connector.request_finished(id)?;
//!     }
//!     assert_eq!(loaded, [8]); // the second request computed one token
//!     Ok(())
//! }
//! ```
//!
//! # Features
//!
//! - `offload`, on by default: [`Offload`], which makes the tiers, a device and a connector from one configuration.
//!
//! # Sources
//!
//! The order of an engine's calls is that of vLLM 0.33's KV connectors; that plans name the copies which a reused block has
//! to wait for answers vLLM PR 29870, that a match is pinned until its step ends, vLLM issue 39702.

#![forbid(unsafe_code)]

mod connector;
mod copies;
mod economy;
mod error;
mod events;
mod hasher;
mod matching;
mod namespace;
#[cfg(feature = "offload")]
mod offload;
mod options;
mod params;
mod plan;
mod request;
mod stats;
mod worker;

#[cfg(feature = "offload")]
pub use crate::offload::{
    BuildError, CpuConfig, DeviceConfig, DeviceError, DeviceKind, EngineIdentity, NvmeConfig, Offload,
    OffloadBuilder, OffloadConfig, PressureConfig, RequestsConfig, device::AnyDevice,
};
pub use crate::{
    connector::{Connector, CopyOutcome, Finish, Flush, PrefixMatch, Scheduled, StepInput, VoidLoad},
    copies::CopyResult,
    economy::Economy,
    error::{ConnectorError, OptionsError, WorkerError},
    events::{BlockDetail, BlockEvent, EventDetail},
    hasher::BlockHasher,
    namespace::{ChunkNames, Namespace},
    options::{ConnectorOptions, GroupKind, GroupOptions},
    params::RequestParams,
    plan::{CopyId, CopyPlan, StepPlan},
    stats::ConnectorStats,
    worker::{CopyFailure, LayerOrder, Worker, WorkerOptions, WorkerReport},
};
