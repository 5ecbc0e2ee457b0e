//! A store on a simulated disk: one thread, one seed, no kernel. For tests of this crate, and of whole systems on top of it.
//!
//! ```text
//!   caller ──▶ NvmeStore ── Op ────▶ transfers ── Worker ──▶ file ────▶ disk ── image: seen │ stable
//!    │          ▲    └───── Entry ──▶ records ──── Writer ──▶ index ──▶  ▲
//!    │          └────────── Event ───────┘   └── host memory             └── Faults, drawn by a seed
//!    └── Underneath: begin, end, record
//! ```
//!
//! The store, its recovery, and the code that hashes, compares, moves and records the chunks are what ships. Nothing below
//! it happens by itself: a caller [begins](Underneath::begin) and [ends](Underneath::end) each transfer, lets the journal
//! [write](Underneath::record) a batch, and [ends](SimDisk::end) the store: closed, killed, or cut off from power. The
//! disk fails in the ways of [`Kind`], as often as its [`Faults`] say.
//!
//! What it checks by itself, and panics about: a slot that a transfer uses is pinned or being written, by that transfer's
//! tenant; no slot of the host memory is anybody else's meanwhile; no generation comes twice; a read that went well has given
//! what was written for its key and generation; a store that is opened has what the records say, of each key the newest, and
//! all that must have survived the end of the one before.

mod disk;
mod faults;
mod image;
pub(crate) mod life;
mod records;
mod rng;
mod store;
mod transfers;

#[cfg(test)]
pub(crate) use self::{
    disk::{Disk, Shared, lock, share},
    faults::{Call, Lie, Plan},
    records::Records,
    rng::Rng,
    transfers::{Hold, Host, TransferTally, Transfers},
};
pub use self::{
    faults::{Faults, Kind},
    life::End,
    store::{HoldableMemory, SimDisk, Underneath},
    transfers::Plant,
};
