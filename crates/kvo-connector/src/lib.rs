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
//! requests that run, which of their chunks the tiers have, and which blocks copies use. It moves no bytes.
//!
//! # Features
//!
//! None.
//!
//! # Sources
//!
//! The order of an engine's calls is that of vLLM 0.33's KV connectors; that plans name the copies which a reused block has
//! to wait for answers vLLM PR 29870, that a match is pinned until its step ends, vLLM issue 39702.

#![forbid(unsafe_code)]

mod connector;
mod copies;
mod error;
mod hasher;
mod matching;
mod options;
mod params;
mod plan;
mod request;
mod stats;
mod worker;

pub use crate::{
    connector::{Connector, CopyOutcome, Finish, Flush, PrefixMatch, Scheduled, StepInput},
    copies::CopyResult,
    error::{ConnectorError, OptionsError, WorkerError},
    hasher::BlockHasher,
    options::{ConnectorOptions, GroupKind, GroupOptions},
    params::RequestParams,
    plan::{CopyId, CopyPlan, StepPlan},
    stats::ConnectorStats,
    worker::{CopyFailure, LayerOrder, Worker, WorkerOptions, WorkerReport},
};
