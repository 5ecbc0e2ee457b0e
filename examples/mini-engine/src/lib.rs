//! A small inference engine on the CPU: a real transformer, a paged KV cache, continuous batching. What kvo is wired
//! into, and proven with.
//!
//! It is no fast engine and no server. Its answers follow from weights, tokens and parameters to the bit, whatever is
//! computed beside them and wherever keys and values lie, so that a damaged block shows.
//!
//! ```text
//!   NewRequest ─▶ Engine ──────────── step ───────────▶ Output (tokens, hits, logits)
//!                   │ schedule: budget, block tables, prefix cache, preemption
//!                   │ Offload: what can be loaded, what is stored, what must be waited for
//!                   │ kernels on a stream, each of which says what it reads and writes
//!                   ▼
//!                 HostDevice: KvCaches, arenas of pages, group by group
//! ```
//!
//! - A [`Model`] is Llama-like, in f32, with seeded weights or those of a GGUF file; some layers may attend to a
//!   window.
//! - [`KvCaches`] are arenas in the memory of a [`HostDevice`](kvo_cuda::HostDevice), attached and described by
//!   [`GroupSpec`](kvo_cuda::GroupSpec)s.
//! - An [`Engine`] runs requests in steps. It never computes what it finds by name on its device.
//! - An [`Offload`] is where offloading goes in: [`Connected`] is that by kvo, [`NoOffload`] keeps nothing.
//!
//! # Where each event goes
//!
//! | what happens in the engine | what is called | of kvo |
//! |---|---|---|
//! | a request comes | `Engine::add` | `Connector::new_request`, `add_hashes` |
//! | a request could begin; blocks of its prefix were found on the device | `admit` in `schedule.rs` | `Connector::match_prefix` |
//! | it has blocks for what else was found | `begin_load` there | `Connector::blocks_allocated` |
//! | the step is scheduled; blocks were taken from requests, or their loads have failed | `begin_copies` in `engine.rs` | `Connector::build_step` |
//! | blocks are written by compute which copies still use | `begin_copies` | `Worker::order_behind`, what the plan says to wait for |
//! | compute is about to be launched | `begin_copies` | `Worker::start_loads` |
//! | a layer is about to be launched, behind a load | `launch` | `Worker::order_layer` |
//! | compute was launched | `step` | `Worker::start_stores` |
//! | a copy may have ended | `Copies::poll` | `Worker::poll`, `Connector::copy_reported`, `copy_released`, `take_late`, `take_settled` |
//! | a load has failed, or was void | `end_load` | its request is among the preempted of the next `build_step` |
//! | a request has its last token or is aborted | `finish` | `Connector::request_finished` |
//! | everything is to be forgotten | `Engine::reset` | `Connector::reset` |
//!
//! # Example
//!
//! ```
//! use std::sync::Arc;
//!
//! use kvo_mini_engine::{Engine, EngineOptions, Model, ModelConfig, NewRequest, NoOffload};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let model = Arc::new(Model::seeded(ModelConfig::tiny(), 1)?);
//! let mut engine = Engine::new(model, EngineOptions::default(), NoOffload)?;
//! let prompt: Vec<u32> = b"Once upon a time there was a block of sixteen tokens".map(u32::from).to_vec();
//!
//! engine.add(NewRequest::new(prompt.clone(), 8))?;
//! let first = engine.run()?;
//! engine.add(NewRequest::new(prompt, 8))?;
//! let again = engine.run()?;
//! assert_eq!(again[0].tokens, first[0].tokens);
//! assert_eq!(again[0].hits.device_tokens, 48); // three whole blocks of 52 tokens
//! # Ok(())
//! # }
//! ```
//!
//! With 64 chunks in host memory, what the device has forgotten is loaded:
//!
//! ```
//! use std::sync::Arc;
//!
//! use kvo_connector::{EngineIdentity, Offload, OffloadConfig, WorkerOptions};
//! use kvo_mini_engine::{Connected, Engine, EngineOptions, KvCaches, Model, ModelConfig, NewRequest};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let model = Arc::new(Model::seeded(ModelConfig::tiny(), 1)?);
//! let options = EngineOptions::default();
//! let caches = KvCaches::plan(model.config(), &options)?;
//! let layout = caches.layout(1)?;
//! let config = OffloadConfig::new(64 * layout.groups()[0].chunk_bytes());
//! let identity = EngineIdentity::new("tiny, seed 1", "f32", 1);
//! let groups = caches.group_options(1);
//! let kvo = Offload::builder(config, identity, layout, groups, options.block_tokens).build()?;
//! let host = kvo.host().clone();
//! let connected = Connected::new(kvo.connector, host, WorkerOptions::default());
//! let mut engine = Engine::new(model, options, connected)?;
//!
//! let prompt: Vec<u32> = (0..200).collect();
//! engine.add(NewRequest::new(prompt.clone(), 8))?;
//! let first = engine.run()?;
//! engine.forget_device();
//! engine.add(NewRequest::new(prompt, 8))?;
//! let again = engine.run()?;
//! assert_eq!(again[0].tokens, first[0].tokens);
//! assert_eq!(again[0].hits.loaded_tokens, 192);
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
//! Paged attention and its block tables are those of vLLM (Kwon et al., SOSP 2023); so is the order in which a step
//! takes requests. The transformer is that of Llama 2 (Touvron et al., 2023), the file format GGUF version 3.

#![forbid(unsafe_code)]

mod connected;
mod engine;
#[cfg(any(test, kvo_fuzzing))]
#[doc(hidden)]
pub mod fuzzing;
mod kv;
mod model;
mod random;

pub use crate::{
    connected::Connected,
    engine::{
        BlockTable, Engine, EngineError, EngineOptions, FinishReason, Hits, LoadEnd, LoadStart, NewRequest,
        NoOffload, Offload, OffloadEvents, Output, RequestRefused, RequestView, Sampling, ScheduledTokens,
        StepInput, StepReport, UnknownRequest,
    },
    kv::{KvCaches, KvLayout},
    model::{GgufError, LayerGroup, Model, ModelConfig, ModelError, Vocabulary},
    random::SplitMix64,
};
