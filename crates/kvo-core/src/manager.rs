//! The manager's side of the seam between an engine and kvo.

use std::time::Duration;

use crate::{
    ChunkCounts, CompleteError, JobToken, LoadError, LoadJob, LookupResult, OffloadEvent, OffloadKey,
    OffloadPolicy, PrefixLookup, RequestContext, RequestError, ShutDown, StoreError, StoreOutcome,
    TransferResult,
};

/// Says where chunks are, reserves room for them and keeps their recency. The engine's scheduler calls it.
///
/// One thread owns a manager; no call blocks, waits or does I/O. A request goes through it in this order:
/// [`new_request`](Self::new_request) once; per step any number of lookups, loads and stores, then
/// [`on_schedule_end`](Self::on_schedule_end); [`on_request_finished`](Self::on_request_finished) once. Jobs complete
/// when their copies have ended, in any order, before or after the finish. An `Err` means that nothing changed.
///
/// It has more methods than a test double wants: doubles are written for the seams below it, the tiers and devices.
pub trait OffloadManager: Send {
    /// Announces a request, and says whether all its chunks are wanted or only newly stored ones.
    fn new_request(&mut self, req: &mut RequestContext) -> Result<OffloadPolicy, RequestError>;

    /// Looks for a chunk. Changes no recency.
    fn lookup(&mut self, req: &mut RequestContext, key: &OffloadKey) -> LookupResult;

    /// Looks for keys listed head to tail, up to the first that is not ready. As [`lookup`](Self::lookup) of each, but
    /// an implementation may look for many at a time.
    fn lookup_prefix(&mut self, req: &mut RequestContext, keys: &[OffloadKey]) -> PrefixLookup {
        for (ready, key) in keys.iter().enumerate() {
            match self.lookup(req, key) {
                LookupResult::Hit => {}
                end => return PrefixLookup { ready, end: Some(end) },
            }
        }
        PrefixLookup { ready: keys.len(), end: None }
    }

    /// Whether the primary tier has a chunk, ready or pending. Asks no other tier, and counts as no lookup.
    fn peek(&self, key: &OffloadKey) -> LookupResult;

    /// Pins the first of `keys`, up to the one that is not ready, until the step [ends](Self::on_schedule_end) or the
    /// cache is reset, so that what a lookup of this step has found can be loaded in it. Returns how many.
    ///
    /// It is no access: no recency changes. For the counters each is a lookup that has found its key. Nobody gives a
    /// reservation back; a key may have several.
    fn reserve(&mut self, keys: &[OffloadKey]) -> usize;

    /// Pins every key, which must all be ready, or none. Records them as accessed by the request.
    fn prepare_load(&mut self, req: &mut RequestContext, keys: &[OffloadKey]) -> Result<LoadJob, LoadError>;

    /// Unpins the chunks of a load, whether its copies succeeded or not.
    fn complete_load(&mut self, token: JobToken) -> Result<(), CompleteError>;

    /// Offers keys, head to tail: reserves a slot for each that is absent and admitted, evicting as needed, all or
    /// nothing. Records the request's accesses, also when it is refused.
    fn prepare_store(
        &mut self,
        req: &mut RequestContext,
        keys: &[OffloadKey],
    ) -> Result<StoreOutcome, StoreError>;

    /// Makes the chunks of a store ready, or frees their slots if the copies failed.
    fn complete_store(&mut self, token: JobToken, result: TransferResult) -> Result<(), CompleteError>;

    /// Marks resident keys, listed head to tail, as recently used, apart from any request.
    fn touch(&mut self, keys: &[OffloadKey]);

    /// Commits the request's accesses as one.
    fn on_request_finished(&mut self, req: &mut RequestContext) -> Result<(), RequestError>;

    /// Ends a scheduler step, and its [reservations](Self::reserve).
    fn on_schedule_end(&mut self);

    /// The primary tier's name, as its events have it.
    fn primary_name(&self) -> &str;

    /// The names of the tiers below it, in the order in which they are asked. A reset leaves their chunks as they are.
    fn secondary_names(&self) -> Vec<&str> {
        Vec::new()
    }

    /// The chunks of writes to lower tiers that are under way, in no order; one may be listed twice. A reset does not end
    /// them.
    fn cascading(&self) -> Vec<OffloadKey> {
        Vec::new()
    }

    /// Moves the events since the last call to the end of `events`.
    fn take_events(&mut self, events: &mut Vec<OffloadEvent>);

    /// Where the primary tier's slots are.
    fn counts(&self) -> ChunkCounts;

    /// Drops every chunk of the primary tier and starts a new generation: tokens and accesses of the old one are
    /// void. No events tell of the chunks that go; those recorded before are still delivered, so whoever follows the
    /// events takes them after the reset and then forgets the tier. The engine sees to it that no copy of its own is still running on a slot when the slot is handed out
    /// anew.
    fn reset_cache(&mut self);

    /// Every copy of the engine's own that was under way at the reset has ended. Until then nothing is brought up from
    /// lower tiers.
    fn on_reset_flushed(&mut self) {}

    /// Whether a later step has something to collect: an engine without requests to run keeps stepping while this
    /// holds.
    fn has_pending_work(&self) -> bool {
        false
    }

    /// Ends all tiers below the primary, one after the other, each also if another fails: not a call of a scheduler that
    /// runs, as it waits up to `timeout`. From then on nothing is found or kept below. It may be called again, and tries
    /// again what has not ended.
    fn shut_down(&mut self, timeout: Duration) -> ShutDown {
        let _ = timeout;
        ShutDown::default()
    }
}
