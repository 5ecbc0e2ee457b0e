//! A bounded, checksummed store of chunks on a local SSD: a secondary tier of kvo, or on its own.
//!
//! A file of fixed slots on each device, all of whose blocks are allocated when the store is made: the quota is hard,
//! and the disk does not become full later. A small index file beside them says which chunk is in which slot; it is read
//! once, at opening, so a lookup answers from memory in the same step. Reads and writes go straight between the files and
//! the slots of the host memory, past the page cache and without a copy: by `io_uring`, or on threads where that does not
//! work.
//!
//! ```text
//!   scheduler's thread                                    threads
//!
//!   submit ──▶ NvmeStore ── slots, pins, eviction ──▶ engine ──▶ HostMemory ◀──bytes──▶ kvo-nvme.data
//!   lookup ──▶   index of full keys                     │                               ┌────┬────┬────┐
//!   poll   ◀──   completions ◀── one result a chunk ◀───┘                               │ 0  │ 1  │ .. │
//!                    │                                                                  └────┴────┴────┘
//!                    └── records, in batches ──▶ journal ─────────────────────────────▶ kvo-nvme.index
//! ```
//!
//! - Every byte is checked. The XXH3-64 of each chunk is seeded with the full key and the number of the write, kept in its
//!   record, and compared at every read: flipped bits, torn and lost writes, and with them the intact bytes of an earlier
//!   tenant of the slot, all fail.
//! - A store that was closed has all its chunks again, in their order of eviction. One that was killed has what it had
//!   recorded: all but the writes of the last tenth of a second, or the last 32, each request's tail first to be evicted.
//!   Whatever is torn, stale or out of order is a miss, so nothing needs to be synced for safety; a store that is
//!   [`durable`](NvmeOptions::durable) syncs, so that what it reports survives a loss of power too.
//! - A failure is one of single keys. A read error or a wrong checksum is a miss for exactly that chunk; the rest of the job
//!   arrives. A write whose slot fails is made once more in another. What each error of the device means, from a miss to a
//!   store that is closed for a while, is a table in the repository's `docs/ERRORS.md`.
//! - As a tier it never blocks: a full queue hands the job back, every job that was taken is reported exactly once, late
//!   ones by a deadline, and a panic in the host memory fails the chunk that it happened to.
//! - Reads go first: while any wait or run, few bytes of writes are with the device.
//!
//! On file systems that copy on write (btrfs, zfs) blocks cannot be reserved for overwriting, so there a write can still
//! meet a full disk; the store then takes no writes for a while. Chunks that are no multiple of 4 KiB go through the page
//! cache. The store has no policy of its own: [`NvmeOptions::policy`] names one of [`kvo_policies`]. What is on disk is in
//! the repository's `docs/FORMAT.md`, byte by byte.
//!
//! # Example
//!
//! ```
//! use kvo_core::{BlockHash, GroupIdx, OffloadKey};
//! use kvo_nvme::{NvmeOptions, NvmeStore};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let dir = tempfile::tempdir()?;
//! // Room for two chunks of 64 KiB. As a tier, open it over the host memory instead.
//! let mut store = NvmeStore::open_without_memory(NvmeOptions::new(dir.path(), 2, 64 << 10))?;
//!
//! let key = |n| OffloadKey::new(BlockHash::from_u64(n), GroupIdx(0));
//! let mut bytes = vec![0; 64 << 10];
//! store.write_chunk(key(1), &vec![1; 64 << 10])?;
//! store.write_chunk(key(2), &vec![2; 64 << 10])?;
//! assert!(store.read_chunk(&key(1), &mut bytes)?, "a hit");
//! assert_eq!(bytes, vec![1; 64 << 10]);
//!
//! // The third chunk takes the place of the one that was used least recently.
//! store.write_chunk(key(3), &vec![3; 64 << 10])?;
//! assert!(!store.read_chunk(&key(2), &mut bytes)?, "a miss is no error");
//! assert_eq!(store.counts().evictable, 2);
//! # Ok(())
//! # }
//! ```
//!
//! # Features
//!
//! - `cli`: the program `kvo-store`, which makes stores, looks into them, checks and mends them.
//! - `testing`: `ChecksumKind::Off`, to measure what checksums cost; the module `testing`, a store on a simulated disk.
//!
//! # Sources
//!
//! - XXH3: Y. Collet, the xxHash specification, by way of the `twox-hash` crate.
//! - The rest is kvo's own.

// Unsafe code is in `engine/uring/ring.rs` alone: it hands addresses to the kernel.
#![deny(unsafe_code)]

mod error;
mod options;
mod stats;
mod store;

mod admission;
mod catalog;
mod slots;

mod checksum;
mod direct;
mod engine;
mod file;
mod files;
mod format;
mod health;
mod journal;
mod progress;
mod recovery;
mod sync;
mod worker;

#[cfg(any(test, kvo_fuzzing))]
#[doc(hidden)]
pub mod fuzzing;
#[cfg(test)]
mod sim;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
#[cfg(test)]
mod tests;

pub use crate::{
    engine::EngineInfo,
    error::{ChunkError, CloseError, FileDamage, OpenError},
    files::{
        ChunkDamage, ChunkInfo, Contents, FILE_NAME, INDEX_FILE_NAME, Inspection, StoreInfo, create_store,
    },
    format::{Damage, StoreId, StoreState},
    journal::RecoveryReport,
    options::{
        Admission, AdmissionRule, BreakerOptions, ChecksumKind, EngineKind, IfNoRoom, IfOther, NvmeOptions,
        Preinit,
    },
    stats::{EngineStats, SlotCounts, StoreStats, TierState, Wear},
    store::NvmeStore,
};
