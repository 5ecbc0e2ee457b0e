//! Costs of a CPU tier's metadata, call by call: what `kvo-bench micro` measures.
//!
//! Every subject serves the same workload: requests of [`CHAIN`] keys, well-mixed digests, slots in shuffled order, a
//! tier that is full and has turned over once. Rounds of all subjects are interleaved, each after an untimed one, so
//! that what else the machine does hits them alike; a figure is the median of its rounds.
//!
//! ```text
//!   scatter ─▶ fill ─▶ turn over ─▶ cycles ─▶ lookups ─▶ loads ─▶ cold calls
//!   the slots  store    as many       these evict     these find what the cycles left
//!              chains   again
//! ```
//!
//! Warm jobs are timed by this thread's CPU time. Cold ones are timed by the wall clock, each call by itself after a
//! [`Sweep`] has put everything out of the caches: they are nearest to a scheduler that calls once a step.

mod clock;
mod error;
mod floor;
mod job;
mod keys;
mod kvo;
mod memory;
mod options;
mod suite;
mod untimed;

pub(crate) use self::keys::mix;
pub use self::{
    clock::{Sweep, ThreadTime},
    error::MicroError,
    floor::Floor,
    job::{Job, Unit},
    keys::{CHAIN, chains, fold_victim, shuffle},
    kvo::{Kvo, kvo_subject},
    memory::{fill_once, resident_bytes},
    options::{MicroOptions, Preset, Size},
    suite::{Figure, Sample, Subject, SubjectResult, Suite, SuiteResults, print_figures},
    untimed::{Untimed, UntimedOptions, print_chunks},
};
