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
//! - An [`Offload`] is where offloading goes in. [`NoOffload`] keeps nothing.
//!
//! # Example
//!
//! ```
//! use std::sync::Arc;
//!
//! use kvo_mini_engine::{Engine, EngineOptions, Model, ModelConfig, NewRequest, NoOffload, NoSlots};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let model = Arc::new(Model::seeded(ModelConfig::tiny(), 1)?);
//! let mut engine = Engine::new(model, EngineOptions::default(), Arc::new(NoSlots), NoOffload)?;
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
//! # Features
//!
//! None.
//!
//! # Sources
//!
//! Paged attention and its block tables are those of vLLM (Kwon et al., SOSP 2023); so is the order in which a step
//! takes requests. The transformer is that of Llama 2 (Touvron et al., 2023), the file format GGUF version 3.

#![forbid(unsafe_code)]

mod engine;
mod kv;
mod model;
mod random;

pub use crate::{
    engine::{
        BlockTable, BlocksAfter, CopyFailure, CopyJob, Engine, EngineError, EngineOptions, FinishReason,
        Hits, LoadStart, NewRequest, NoOffload, NoSlots, Offload, OffloadEvents, Output, PrefixMatch,
        RequestRefused, RequestView, Sampling, ScheduledTokens, StepInput, StepPlan, StepReport,
        UnknownRequest,
    },
    kv::{KvCaches, KvLayout},
    model::{GgufError, LayerGroup, Model, ModelConfig, ModelError, Vocabulary},
    random::SplitMix64,
};
