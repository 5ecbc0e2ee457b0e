//! A simulation of all of kvo in one thread, from one seed, in virtual time, with everything that can go wrong.
//!
//! ```text
//!   operations, drawn by the seed: a request comes, a step, copies go on, a tier goes on, time passes, trouble
//!        │
//!        ▼
//!   random engine ── Connector ── watch ── TieringManager ── CpuManager ── policy ◀── all that ships
//!        │  tokens      │ plans     │          │ jobs
//!        │              ▼           │          ▼
//!        │           Workers        │      scripted tiers: late, twice, in part, never ──▶ MemoryTier
//!        │              │           │                                                  └─▶ NvmeStore
//!        ▼              ▼           │                                                         │
//!      caches ◀── stepped HostDevices ──▶ HostRegions ◀───────────────────────────── simulated disk
//!        │                          │                                                         │
//!        └── bytes, races           └── counts, refusals, events                               └── survives the process
//! ```
//!
//! Policies, CPU tier, tiering manager, NVMe store with its recovery, connector, workers and host devices are the code that
//! ships. Around them: an engine that computes no model, but compares every byte that a model would read; a
//! [disk](kvo_nvme::testing) in memory; tiers that pass everything on, but not always when and how they should; and between
//! connector and manager a watch that looks at what each call has changed. The engine has prompts that share documents,
//! computes in pieces, with drafts, in one group of layers or several, with windows, with up to three workers; it preempts,
//! aborts, resets, asks again, and ends.
//!
//! A seed draws sizes, policies and options, and of all [`Trouble`] a few kinds, each as often as it likes: an even mix of
//! everything would not get far into any of it.
//!
//! # What goes wrong
//!
//! - Completions are late, reordered, partial, failed, doubled, of no job, or never come; a tier gives a job up while its
//!   transfers go on. A tier is slow, full, still looking, dead and back, refuses what it has room for, or loses all that it
//!   has.
//! - The disk fails, is full, read-only, short, torn, stale, lies, decays, or hangs. The process is killed, loses its power,
//!   or closes its store, at any point: each sector is then old or new. Whoever had asked asks again, and what he is given of
//!   before is compared as everything is.
//! - A slot is in somebody else's hands while a copy needs it; copies exceed their deadlines; a worker's report is late, or
//!   nothing is heard of a worker any more; a device dies, between steps or amid one.
//! - Requests are aborted and preempted, caches reset, weights changed and changed back, at every point of a transfer's life,
//!   the latter also between two processes. All slots are wiped, and the engine shuts down, once or twice, and goes on for a
//!   while. The clock jumps, or stands still. Calls are made that must be refused.
//!
//! # What holds
//!
//! After every operation, each a [`Rule`]:
//!
//! 1. the parts of each tier add up, what is pinned and what is pending are the slots of open jobs, to the slot, and each
//!    block of the engine is in one place;
//! 2. each job has one result, the manager has the jobs and slots that the tiers have, and has counted what made no sense;
//! 3. no slot or block that a copy may touch is used for anything else: slots are held while transfers of tiers use them, and
//!    the devices look for races;
//! 4. compute reads the bytes of its own tokens and its own worker, as computed by the weights that were there, or a failure
//!    was reported;
//! 5. a lookup is decided: by the connector's patience at the latest, and soon where nothing is under way;
//! 6. what is refused changes nothing; who is held off, by a wipe or a shut-down, finds nothing and is given no copy;
//! 7. the events tell what is there, in every tier, and those of blocks with all that is known, and nothing of other weights;
//! 8. the store has what is on its disk, also after a restart, and what was called safe.
//!
//! At the end nothing goes wrong any more. Then everybody is answered, within a bound; nobody is left with a pin, a slot, a
//! block, a job or a request; and everybody asks again, before and after a last restart.
//!
//! # To replay a failure
//!
//! `cargo xtask sim` runs many seeds. One that fails is printed with the rule, its setup, and the command that runs it alone,
//! `cargo xtask sim --seed S`; then the run is [made smaller](shrink), without kinds of trouble and operations that it does
//! not need, and what is left is printed with what each operation has done. Operations are drawn before a run begins and
//! bring their own random numbers, so a run with some of them left out is a run.
//!
//! `cargo xtask sim --canary` puts defects in, one a [`Plant`], and fails unless each is found.
//!
//! # Example
//!
//! ```
//! use kvo_sim::{Plant, Run};
//!
//! let run = Run::new(1, None);
//! let tally = run.run().expect("nothing is wrong");
//! assert!(tally.answered > 0);
//!
//! let failure = Run::new(1, Some(Plant::StoreWithoutFence)).run().unwrap_err();
//! assert!(failure.to_string().contains("MissingFence"));
//! ```
//!
//! # Sources
//!
//! Swarm testing: A. Groce et al., ISSTA 2012. Shrinking by halves: A. Zeller and R. Hildebrandt, TSE 2002. A whole system in
//! one thread, in virtual time, is how `FoundationDB` is tested.

#![forbid(unsafe_code)]

mod caches;
mod canary;
mod engine;
mod host;
mod ledger;
mod ops;
mod random;
mod rank;
mod run;
mod setup;
mod shrink;
mod tier;
mod violation;
mod watch;

pub use crate::{
    canary::Plant,
    run::{Failure, Run, Tally, fuzzed},
    setup::Trouble,
    shrink::shrink,
    violation::{Rule, Violation},
};
