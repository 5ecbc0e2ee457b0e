//! Slots held for transfers between the primary and other tiers.

use kvo_core::{EventKind, OffloadKey, OwnerId, RequestContext, SlotId, TransferResult};
use kvo_policies::{AccessKind, CachePolicy, KeyAccess, Met};

use crate::{CpuManager, accesses::RequestState, slots::Pin};

/// One slot held for a tier's transfer: a pin on a ready chunk that a tier reads (a cascade), or a reserved slot that
/// a tier writes (a promotion).
///
/// It cannot be copied, and [`CpuManager::release`] takes it by value. Its slot is not used for anything else until
/// then, even across a reset.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "a hold that is never released keeps its slot for ever"]
pub struct TierHold {
    owner: OwnerId,
    generation: u64,
    key: OffloadKey,
    slot: SlotId,
    kind: HoldKind,
    is_given_up: bool,
}

/// What a hold is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum HoldKind {
    /// A tier reads the chunk.
    Cascade,
    /// A tier writes the chunk.
    Promotion,
}

impl TierHold {
    /// The chunk.
    pub fn key(&self) -> OffloadKey {
        self.key
    }

    /// Its slot.
    pub fn slot(&self) -> SlotId {
        self.slot
    }

    /// What the hold is for.
    pub fn kind(&self) -> HoldKind {
        self.kind
    }

    /// Whether its promotion was [given up](CpuManager::give_up).
    pub fn is_given_up(&self) -> bool {
        self.is_given_up
    }
}

/// What became of a hold's chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Released {
    /// It is ready and keeps its slot.
    Ready,
    /// Its promotion failed, now or when it was given up; the slot is free.
    Freed,
    /// The manager was reset since the hold began, and the chunk with it. The slot is free once the last hold of that
    /// time ends.
    Stale,
}

impl<P: CachePolicy> CpuManager<P> {
    /// Pins a ready chunk for a tier that reads it. It is no access of any request.
    ///
    /// Returns nothing, and changes nothing, if the chunk is not ready.
    pub fn hold_for_cascade(&mut self, key: &OffloadKey) -> Option<TierHold> {
        let slot = self.slots.ready(key)?;
        self.slots.pin(slot, Pin::Hold);
        Some(self.hold(*key, slot, HoldKind::Cascade))
    }

    /// Reserves a slot for a chunk that a tier is to write, evicting one if need be. The store threshold does not
    /// apply. As an access it counts like a store by `req`: when the request then loads the chunk, that is no reuse.
    ///
    /// Returns nothing if the chunk is there already or the request is finished, and then changes nothing; or if there
    /// is no room, and then changes nothing but the access records, as a refused offer does.
    pub fn hold_for_promotion(&mut self, req: &mut RequestContext, key: &OffloadKey) -> Option<TierHold> {
        self.evicted.clear();
        let hash = self.slots.hash(key);
        if self.slots.find_hashed(key, hash).is_some() || self.check_running(req).is_err() {
            return None;
        }
        let (state, positions) = req.state_mut::<RequestState>(self.id);
        let accesses = state.accesses(self.generation, positions);
        let position = positions.find(key);
        let end_token = position.map(|position| position.end_token);
        let missing = KeyAccess { key: *key, slot: None, end_token, kind: AccessKind::Inserted };
        let meeting = accesses.meet(key, position, positions, None, Met::Missing);
        if accesses.miss(meeting) {
            self.policy.on_store_miss(&[missing], &self.slots);
        }
        self.slots.begin_offer();
        if self.slots.num_free() == 0 && !self.evict(1, 0) {
            return None;
        }
        let slot = self.slots.occupy_for_tier(key, hash);
        self.policy.insert(&mut accesses.recency, slot, key, end_token, &self.slots);
        accesses.store(meeting, slot);
        Some(self.hold(*key, slot, HoldKind::Promotion))
    }

    /// What the last [`hold_for_promotion`](Self::hold_for_promotion) has evicted, if nothing was called since.
    pub fn evicted_for_promotion(&self) -> &[OffloadKey] {
        &self.evicted
    }

    /// Gives up a promotion whose slot the tier may still write. The chunk is absent from now on and counts as failed;
    /// the slot is parked, counted as pending, until the hold is released, also across resets.
    ///
    /// Says whether that dropped a chunk. If not, nothing has changed: the hold is of a cascade, and goes on as the pin
    /// that it is; or it was given up before; or the manager was reset since, so that the slot is parked anyway; or
    /// another manager made it.
    pub fn give_up(&mut self, hold: &mut TierHold) -> bool {
        let is_current = hold.owner == self.id && hold.generation == self.generation;
        if !is_current || hold.kind == HoldKind::Cascade || hold.is_given_up {
            return false;
        }
        hold.is_given_up = true;
        self.slots.park(hold.slot);
        self.policy.remove(hold.slot);
        self.stats.chunks_failed += 1;
        true
    }

    /// Ends a hold. `result` matters for a promotion only: a failed one frees its slot, as does one that was given up.
    ///
    /// # Errors
    /// Hands the hold back if another manager made it; nothing has changed.
    pub fn release(&mut self, hold: TierHold, result: TransferResult) -> Result<Released, TierHold> {
        if hold.owner != self.id {
            return Err(hold);
        }
        if hold.is_given_up {
            self.slots.unpark(hold.slot);
            return Ok(Released::Freed);
        }
        if hold.generation != self.generation {
            self.slots.unpark(hold.slot);
            return Ok(Released::Stale);
        }
        Ok(match (hold.kind, result) {
            (HoldKind::Cascade, _) => {
                self.unpin(hold.slot, Pin::Hold);
                Released::Ready
            }
            (HoldKind::Promotion, TransferResult::Done) => {
                self.make_ready(hold.slot);
                self.stats.chunks_promoted += 1;
                Released::Ready
            }
            (HoldKind::Promotion, TransferResult::Failed) => {
                self.fail(hold.slot);
                Released::Freed
            }
        })
    }

    /// Records the chunks of a promotion job that have arrived and those that have not, as one event each. Releasing
    /// a hold records none, so that a job of many chunks is not as many events.
    pub fn record_promotions(&mut self, stored: &[OffloadKey], failed: &[OffloadKey]) {
        self.record(EventKind::Stored, stored);
        self.record(EventKind::Discarded, failed);
    }

    fn hold(&self, key: OffloadKey, slot: SlotId, kind: HoldKind) -> TierHold {
        TierHold { owner: self.id, generation: self.generation, key, slot, kind, is_given_up: false }
    }
}
