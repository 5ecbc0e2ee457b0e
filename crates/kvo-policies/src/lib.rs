//! Eviction policies for KV-cache chunks: which chunk goes first when a tier is full.
//!
//! A policy knows chunks by the slots of its tier and asks for their keys; it never sees bytes and owns no pin. It does
//! no I/O and has no thread, clock or random source, so equal calls give equal victims. Tiers are generic over
//! [`CachePolicy`], which is open to policies of your own; [`PolicyKind`] names those that are here.
//!
//! What makes a KV cache different from other caches is that a chunk is of use only if the whole prefix before it is
//! there too, and that one request meets the same chunks at every step of its decode. All policies here therefore
//! count one access per *request*, committed when it finishes and applied tail first:
//!
//! ```text
//!   request finishes with keys     h1 h2 h3 h4          (head .. tail)
//!   applied                        h4, h3, h2, h1
//!   eviction order afterwards      ... h4 h3 h2 h1      h1 is the last to go
//! ```
//!
//! | policy | evicts | after | can strand chunks |
//! |---|---|---|---|
//! | [`Lru`] | the evictable chunk of lowest rank, ties by key bytes | vLLM 0.33 | no |
//! | [`Arc`] | from the list of chunks met once or from that of chunks met again, balanced by ghost hits | Megiddo and Modha, FAST 2003 | yes |
//! | [`Slru`] | chunks met once before those met again, of which a fixed share of the tier is protected | Karedla, Love and Wherry, IEEE Computer 1994 | no |
//! | [`Aslru`] | the same, where ghost hits move the share and only whole prefixes are promoted | new here | no |
//! | [`Ylru`] | what, by how often and how long ago it was met, promises the fewest hits for its room | new here | no |
//! | [`S3Fifo`] | leaves, first in first out, where a reuse earns a second turn | Yang et al., SOSP 2023 | not leaf-only |
//! | [`Fifo`] | what was stored first; a baseline | | yes |
//!
//! A chunk is *stranded* if it is resident but a chunk before it in its prefix is not: it takes room and gives no hit.
//! "No" is for requests one after the other; while requests overlap, SLRU and ASLRU strand some now and then.
//! `docs/POLICIES.md` has the measurements, and says which policy to choose.
//!
//! # Example
//!
//! A tier of four slots, all of which may go.
//!
//! ```
//! use kvo_core::{BlockHash, GroupIdx, OffloadKey, SlotId};
//! use kvo_policies::{AccessKind, CachePolicy, Eviction, KeyAccess, Lru, RequestRecency, Residents};
//!
//! struct Tier(Vec<OffloadKey>);
//!
//! impl Residents for Tier {
//!     fn key(&self, slot: SlotId) -> OffloadKey {
//!         self.0[slot.0 as usize]
//!     }
//!
//!     fn may_evict(&self, _slot: SlotId) -> Eviction {
//!         Eviction::Allowed
//!     }
//! }
//!
//! let tier = Tier((0..4).map(|n| OffloadKey::new(BlockHash::from_u64(n), GroupIdx(0))).collect());
//! let mut policy = Lru::new(4);
//! let mut request = RequestRecency::default();
//! let accesses = [0, 1, 2].map(|n| KeyAccess {
//!     key: tier.key(SlotId(n)),
//!     slot: Some(SlotId(n)),
//!     end_token: Some(16 * (n + 1)),
//!     kind: AccessKind::Inserted,
//! });
//! for access in &accesses {
//!     let slot = access.slot.expect("it has one");
//!     policy.insert(&mut request, slot, &access.key, access.end_token, &tier);
//!     policy.on_ready(slot);
//! }
//! policy.on_request_finished(&mut request, &accesses, &tier);
//!
//! let mut victims = Vec::new();
//! assert!(policy.evict(2, &tier, &mut victims));
//! assert_eq!(victims, [SlotId(2), SlotId(1)], "the tail goes before the head");
//! assert!(!policy.evict(2, &tier, &mut victims), "only one is left, so nothing is evicted");
//! ```
//!
//! # Features
//!
//! None.
//!
//! # Sources
//!
//! - Request-scoped recency and its LRU: the behaviour of vLLM 0.33's `v1/kv_offload`.
//! - ARC: N. Megiddo, D. S. Modha, "ARC: A Self-Tuning, Low Overhead Replacement Cache", FAST 2003; [`Arc`] lists
//!   where it departs.
//! - SLRU: R. Karedla, J. S. Love, B. G. Wherry, "Caching Strategies to Improve Disk System Performance", IEEE
//!   Computer 27(3), 1994.
//! - The index of [`Ylru`]: J. C. Gittins, "Bandit Processes and Dynamic Allocation Indices", J. Royal Statistical Society
//!   B 41(2), 1979.
//! - S3-FIFO: J. Yang, Y. Zhang, Z. Qiu, Y. Yue, R. Vinayak, "FIFO Queues are All You Need for Cache Eviction",
//!   SOSP 2023.

#![forbid(unsafe_code)]

mod accesses;
mod index;
mod policy;

mod ghosts;
mod order;
mod segmented;

mod arc;
mod aslru;
mod fifo;
mod kind;
mod lru;
mod s3fifo;
mod slru;
mod ylru;

#[cfg(test)]
mod testing;

pub use crate::{
    accesses::{Meeting, Met, RequestAccesses},
    arc::{Arc, GhostHits},
    aslru::Aslru,
    fifo::Fifo,
    index::{IndexEntry, SlotIndex},
    kind::{PolicyKind, PolicyNameError},
    lru::Lru,
    policy::{AccessKind, CachePolicy, Eviction, KeyAccess, RequestRecency, Residents, RunSummary},
    s3fifo::{S3Fifo, S3FifoOptions},
    slru::Slru,
    ylru::Ylru,
};
