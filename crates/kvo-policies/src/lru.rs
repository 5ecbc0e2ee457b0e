//! Least recently used, request by request.

use std::collections::TryReserveError;

use kvo_core::{OffloadKey, SlotId};

use crate::{
    CachePolicy, KeyAccess, RequestRecency, Residents, RunSummary,
    order::Orders,
    policy::{MEMORY, insert_each},
};

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
/// Follows vLLM 0.33. On prefix chains it evicts exactly as leaf-first LRU on a radix tree does. Nothing is stranded: a
/// parent is never less recent than its child. Each operation is constant per chunk, amortised, whatever is pinned;
/// nothing is allocated once as many chunks and requests were there at a time as ever are.
#[derive(Debug)]
pub struct Lru {
    order: Orders<1>,
}

impl Lru {
    /// An empty policy for a tier of `capacity` chunks.
    ///
    /// # Panics
    /// If there is no memory for its tables.
    pub fn new(capacity: u32) -> Self {
        Self::try_new(capacity).expect(MEMORY)
    }

    pub(crate) fn try_new(capacity: u32) -> Result<Self, TryReserveError> {
        Ok(Self { order: Orders::new(capacity)? })
    }

    /// Chunks that searches for victims have looked at so far.
    pub fn visits(&self) -> u64 {
        self.order.visits()
    }

    fn run(&mut self, req: &mut RequestRecency) -> u32 {
        *req.run.get_or_insert_with(|| self.order.begin_run(0))
    }
}

impl CachePolicy for Lru {
    fn num_slots_max(&self) -> u32 {
        self.order.capacity()
    }

    #[inline]
    fn insert(
        &mut self,
        req: &mut RequestRecency,
        slot: SlotId,
        _key: &OffloadKey,
        end_token: Option<u32>,
        tier: &dyn Residents,
    ) {
        match end_token {
            Some(end_token) => {
                let run = self.run(req);
                self.order.push_to_run(run, slot, end_token, tier);
            }
            None => self.order.push(0, slot),
        }
    }

    fn insert_all(&mut self, req: &mut RequestRecency, chunks: &[KeyAccess], tier: &dyn Residents) {
        if chunks.iter().all(|chunk| chunk.end_token.is_some()) {
            let run = self.run(req);
            self.order.push_all_to_run(run, chunks, tier);
        } else {
            insert_each(self, req, chunks, tier);
        }
    }

    #[inline]
    fn on_ready(&mut self, slot: SlotId) {
        self.order.wake(slot);
    }

    #[inline]
    fn on_unpin(&mut self, slot: SlotId) {
        self.order.wake(slot);
    }

    #[inline]
    fn remove(&mut self, slot: SlotId) {
        self.order.remove(slot);
    }

    fn evict(&mut self, count: usize, tier: &dyn Residents, victims: &mut Vec<SlotId>) -> bool {
        self.order.evict(0, count, tier, victims)
    }

    fn touch(&mut self, keys: &[KeyAccess], _tier: &dyn Residents) {
        for slot in keys.iter().rev().filter_map(|access| access.slot) {
            self.order.push(0, slot);
        }
    }

    fn on_store_miss(&mut self, _keys: &[KeyAccess], _tier: &dyn Residents) {}

    fn on_request_access(&mut self, req: &mut RequestRecency, keys: &[KeyAccess], tier: &dyn Residents) {
        if keys.iter().any(|access| access.slot.is_some() && access.end_token.is_some()) {
            let run = self.run(req);
            self.order.raise_all_to_run(run, keys, tier);
        }
    }

    fn on_request_finished(&mut self, req: &mut RequestRecency, keys: &[KeyAccess], tier: &dyn Residents) {
        let run = req.run.take();
        let slots = || keys.iter().rev().filter_map(|access| access.slot);
        if run.is_some_and(|run| self.order.promote_run(run, slots())) {
            return;
        }
        self.touch(keys, tier);
        if let Some(run) = run {
            self.order.end_run(run, tier);
        }
    }

    /// A request's run holds nothing but keys that it met, so it holds them all if it has as many.
    fn commit_run(&mut self, req: &mut RequestRecency, summary: RunSummary) -> bool {
        let is_promoted = req.run.is_some_and(|run| self.order.promote_run_of(run, summary.num_keys));
        if is_promoted {
            req.run = None;
        }
        is_promoted
    }

    fn clear(&mut self) {
        self.order.clear();
    }
}
