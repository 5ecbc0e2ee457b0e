//! Least recently used, request by request.

use std::collections::BTreeSet;

use hashbrown::HashMap;
use kvo_core::OffloadKey;

use crate::{CachePolicy, KeyAccess, RequestRecency};

/// Least recently used, where one request is one access.
///
/// Each chunk has a rank, and the victim is the evictable chunk of lowest rank; equal ranks go by key bytes, the
/// smaller first.
///
/// - While a request runs, the chunks it inserts and the chunks it meets share one *provisional* rank, drawn when
///   first needed, ordered within by position: the tail is lowest. So batches that arrive in any order already evict
///   tail first. A chunk that was there before is only ever raised, and only if its position is known.
/// - When the request finishes, each of its keys gets a rank of its own, the tail first.
///
/// A key without a position gets a rank of its own at its insertion, and so counts as newer than what its request has
/// stored before.
///
/// Follows vLLM 0.33. On prefix chains it evicts exactly as leaf-first LRU on a radix tree does. Memory is
/// proportional to the resident keys; each operation is logarithmic in their number and does not depend on how many
/// of them are pinned.
#[derive(Debug, Default)]
pub struct Lru {
    entries: HashMap<OffloadKey, Entry>,
    /// The ready and unpinned ones of `entries`, lowest rank first.
    evictable: BTreeSet<(Rank, OffloadKey)>,
    next_sequence: u64,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    rank: Rank,
    evictable: bool,
}

/// Lower is evicted earlier.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Rank {
    sequence: u64,
    /// How near the head of the request that shares the sequence number.
    headness: u32,
}

impl Rank {
    fn new(sequence: u64, end_token: Option<u32>) -> Self {
        Self { sequence, headness: u32::MAX - end_token.unwrap_or(0) }
    }
}

impl Lru {
    /// An empty policy.
    pub fn new() -> Self {
        Self::default()
    }

    fn draw(&mut self) -> u64 {
        self.next_sequence += 1;
        self.next_sequence
    }

    fn provisional(&mut self, req: &mut RequestRecency) -> u64 {
        *req.provisional_rank.get_or_insert_with(|| self.draw())
    }

    fn set_rank(&mut self, key: &OffloadKey, rank: Rank) {
        let Some(entry) = self.entries.get_mut(key) else { return };
        let old = std::mem::replace(&mut entry.rank, rank);
        if entry.evictable {
            self.evictable.remove(&(old, *key));
            self.evictable.insert((rank, *key));
        }
    }

    fn set_evictable(&mut self, key: &OffloadKey, evictable: bool) {
        let Some(entry) = self.entries.get_mut(key) else { return };
        entry.evictable = evictable;
        if evictable {
            self.evictable.insert((entry.rank, *key));
        } else {
            self.evictable.remove(&(entry.rank, *key));
        }
    }
}

impl CachePolicy for Lru {
    fn insert(&mut self, req: &mut RequestRecency, key: OffloadKey, end_token: Option<u32>) {
        let sequence = if end_token.is_some() { self.provisional(req) } else { self.draw() };
        let rank = Rank::new(sequence, end_token);
        self.remove(&key);
        self.entries.insert(key, Entry { rank, evictable: false });
    }

    fn on_ready(&mut self, key: &OffloadKey) {
        self.set_evictable(key, true);
    }

    fn on_pin(&mut self, key: &OffloadKey) {
        self.set_evictable(key, false);
    }

    fn on_unpin(&mut self, key: &OffloadKey) {
        self.set_evictable(key, true);
    }

    fn remove(&mut self, key: &OffloadKey) {
        if let Some(entry) = self.entries.remove(key) {
            self.evictable.remove(&(entry.rank, *key));
        }
    }

    fn evict(
        &mut self,
        count: usize,
        may_evict: &mut dyn FnMut(&OffloadKey) -> bool,
        victims: &mut Vec<OffloadKey>,
    ) -> bool {
        let before = victims.len();
        if count > self.evictable.len() {
            return false;
        }
        victims.extend(self.evictable.iter().map(|(_, key)| *key).filter(|key| may_evict(key)).take(count));
        if victims.len() - before < count {
            victims.truncate(before);
            return false;
        }
        for key in &victims[before..] {
            self.remove(key);
        }
        true
    }

    fn touch(&mut self, keys: &[OffloadKey]) {
        for key in keys.iter().rev() {
            if self.entries.contains_key(key) {
                let sequence = self.draw();
                self.set_rank(key, Rank::new(sequence, None));
            }
        }
    }

    fn on_store_miss(&mut self, _keys: &[OffloadKey]) {}

    fn on_request_access(&mut self, req: &mut RequestRecency, keys: &[KeyAccess]) {
        for access in keys {
            let Some(end_token) = access.end_token else { continue };
            let Some(entry) = self.entries.get(&access.key) else { continue };
            let old = entry.rank;
            let rank = Rank::new(self.provisional(req), Some(end_token));
            if rank > old {
                self.set_rank(&access.key, rank);
            }
        }
    }

    fn on_request_finished(&mut self, keys: &[KeyAccess]) {
        for access in keys.iter().rev() {
            if self.entries.contains_key(&access.key) {
                let sequence = self.draw();
                self.set_rank(&access.key, Rank::new(sequence, None));
            }
        }
    }

    fn clear(&mut self) {
        self.entries.clear();
        self.evictable.clear();
    }
}
