//! Eviction policies for KV-cache chunks: which chunk goes first when a tier is full.
//!
//! A policy sees keys, never bytes or slots, and owns no pin. It does no I/O and has no thread, clock or random
//! source, so equal calls give equal victims. Tiers are generic over [`CachePolicy`], which is open to policies of
//! your own; [`PolicyKind`] names those that are here.
//!
//! What makes a KV cache different from other caches is that a chunk is of use only if the whole prefix before it is
//! there too, and that one request meets the same chunks at every step of its decode. Both policies here therefore
//! count one access per *request*, committed when it finishes and applied tail first:
//!
//! ```text
//!   request finishes with keys     h1 h2 h3 h4          (head .. tail)
//!   applied                        h4, h3, h2, h1
//!   eviction order afterwards      ... h4 h3 h2 h1      h1 is the last to go
//! ```
//!
//! | policy | evicts | after |
//! |---|---|---|
//! | [`Lru`] | the evictable chunk of lowest rank, ties by key bytes | vLLM 0.33 |
//! | [`Arc`] | from the list of chunks met once or from that of chunks met again, balanced by ghost hits | Megiddo and Modha, FAST 2003 |
//!
//! # Example
//!
//! ```
//! use kvo_core::{BlockHash, GroupIdx, OffloadKey};
//! use kvo_policies::{AccessKind, CachePolicy, KeyAccess, Lru, RequestRecency};
//!
//! let key = |n| OffloadKey::new(BlockHash::from_u64(n), GroupIdx(0));
//! let mut policy = Lru::new();
//! let mut request = RequestRecency::default();
//! for (n, end_token) in [(1, 16), (2, 32), (3, 48)] {
//!     policy.insert(&mut request, key(n), Some(end_token));
//!     policy.on_ready(&key(n));
//! }
//! policy.on_request_finished(&[1, 2, 3].map(|n| KeyAccess {
//!     key: key(n),
//!     end_token: Some(16 * n as u32),
//!     kind: AccessKind::Inserted,
//! }));
//!
//! let mut victims = Vec::new();
//! assert!(policy.evict(2, &mut |_| true, &mut victims));
//! assert_eq!(victims, [key(3), key(2)], "the tail goes before the head");
//! assert!(!policy.evict(2, &mut |_| true, &mut victims), "only one is left, so nothing is evicted");
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

#![forbid(unsafe_code)]

mod accesses;
mod policy;

mod arc;
mod kind;
mod lru;

pub use crate::{
    accesses::{Met, RequestAccesses},
    arc::{Arc, GhostHits},
    kind::{PolicyKind, UnknownPolicy},
    lru::Lru,
    policy::{AccessKind, CachePolicy, KeyAccess, RequestRecency},
};
