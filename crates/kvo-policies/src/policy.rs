//! The trait that every eviction policy implements.

use kvo_core::{OffloadKey, SlotId};

/// How a request met a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AccessKind {
    /// The request stored it; reading its own store again is no reuse.
    Inserted,
    /// The key was ready when the request loaded or offered it.
    Reused,
}

/// One key of a request's access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyAccess {
    /// The key.
    pub key: OffloadKey,
    /// Its slot, if it is resident now.
    pub slot: Option<SlotId>,
    /// Its position in the request, if the scheduler gave one.
    pub end_token: Option<u32>,
    /// How the request met it.
    pub kind: AccessKind,
}

/// What a policy remembers of a request while it runs. Whoever owns the policy keeps one per request, fresh for each
/// reset generation, and gives it back at every call of that request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RequestRecency {
    /// The policy's own number for the request, once it has one. Policies that remember nothing leave it alone.
    pub run: Option<u32>,
}

/// What a request that met its keys in the order of their positions has to commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunSummary {
    /// How many keys it met.
    pub num_keys: usize,
    /// How many of them were ready when it met them; it stored the others, or asked for them in vain.
    pub num_reused: usize,
}

/// What the owner of a tier tells a policy about resident chunks.
pub trait Residents {
    /// The key in a slot that holds a chunk.
    fn key(&self, slot: SlotId) -> OffloadKey;

    /// Whether the chunk in `slot` may go now: it is ready, unpinned, and not spared for this call.
    fn may_evict(&self, slot: SlotId) -> Eviction;

    /// As [`may_evict`](Self::may_evict) of each of `slots`; one answer a slot, written to `answers`. For a table that
    /// can look at many at once: their states are likely to be far apart in memory.
    fn may_evict_each(&self, slots: &[SlotId], answers: &mut [Eviction]) {
        for (slot, answer) in slots.iter().zip(answers) {
            *answer = self.may_evict(*slot);
        }
    }
}

/// Whether a chunk may be evicted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Eviction {
    /// It may.
    Allowed,
    /// Not in this call; it is named in the offer that needs the room.
    Spared,
    /// Not before the next [`on_ready`](CachePolicy::on_ready) or [`on_unpin`](CachePolicy::on_unpin) of it: it is
    /// pending or pinned.
    Held,
}

/// Decides which chunks go first. It owns no byte and no pin: it knows chunks by the slot they are in, from 0 up to
/// the capacity it was built for, and their keys where it asks for them.
///
/// The owner of a tier calls it, from one thread, and tells it of every change to the tier: a chunk is `insert`ed when
/// its slot is reserved, `on_ready` when its bytes have arrived, `on_unpin`ned when its last pin is gone, and
/// `remove`d when its store failed; `evict`ed chunks leave without further notice. Keys and slots in an argument are
/// without repeats.
///
/// Eight methods have a body, so the least policy is five: `insert`, `remove`, `evict`, `touch` and `clear`.
/// [`on_store_miss`](Self::on_store_miss) and [`on_request_finished`](Self::on_request_finished) then fall back to
/// [`touch`](Self::touch).
pub trait CachePolicy: Send {
    /// How many slots it can tell apart. A tier that has more refuses it.
    fn num_slots_max(&self) -> u32 {
        u32::MAX
    }

    /// `slot` was reserved for `key`, for a request whose chunk ends at `end_token`. The chunk is pending: it is held
    /// until [`on_ready`](Self::on_ready). A ghost of the key is forgotten.
    fn insert(
        &mut self,
        req: &mut RequestRecency,
        slot: SlotId,
        key: &OffloadKey,
        end_token: Option<u32>,
        tier: &dyn Residents,
    );

    /// As [`insert`](Self::insert) of each of `chunks`, all of which have a slot, in their order.
    fn insert_all(&mut self, req: &mut RequestRecency, chunks: &[KeyAccess], tier: &dyn Residents) {
        insert_each(self, req, chunks, tier);
    }

    /// The bytes of the chunk in `slot` have arrived; it is no longer held.
    fn on_ready(&mut self, slot: SlotId) {
        let _ = slot;
    }

    /// The chunk in `slot` lost its last pin; it is no longer held.
    fn on_unpin(&mut self, slot: SlotId) {
        let _ = slot;
    }

    /// The chunk in `slot` is gone without having been evicted: its store failed. It leaves no ghost.
    fn remove(&mut self, slot: SlotId);

    /// Appends exactly `count` victims to `victims`, in the order of eviction, and removes them; or changes nothing
    /// and returns `false` if fewer can be had.
    ///
    /// A chunk may go only if `tier` says that it is [`Eviction::Allowed`]. One that is [`Eviction::Held`] need not be
    /// asked about again until a notice of it comes: so that a policy need not visit pinned chunks again and again.
    fn evict(&mut self, count: usize, tier: &dyn Residents, victims: &mut Vec<SlotId>) -> bool;

    /// Marks the resident ones of `keys`, listed head to tail, as recently used, the last first: the head ends most
    /// recent. A key that is not resident may have a ghost. How the keys were met, and where, does not matter.
    fn touch(&mut self, keys: &[KeyAccess], tier: &dyn Residents);

    /// A request offers `keys`, none of them resident, for the first time; they may have ghosts. Called before
    /// eviction, also when the offer is then refused.
    fn on_store_miss(&mut self, keys: &[KeyAccess], tier: &dyn Residents) {
        self.touch(keys, tier);
    }

    /// A request meets `keys` for the first time, by a load or an offer. Those that are not resident may be left out.
    fn on_request_access(&mut self, req: &mut RequestRecency, keys: &[KeyAccess], tier: &dyn Residents) {
        let _ = (req, keys, tier);
    }

    /// A request ends; `keys`, listed head to tail, are what it loaded or offered, each once: one access, however
    /// long the request ran. To be applied tail first. The policy's number for the request is free again.
    fn on_request_finished(&mut self, req: &mut RequestRecency, keys: &[KeyAccess], tier: &dyn Residents) {
        let _ = req;
        self.touch(keys, tier);
    }

    /// As [`on_request_finished`](Self::on_request_finished), if the policy can do without the list of keys; else
    /// changes nothing and returns `false`, and is given the list.
    ///
    /// The request met each of its keys, which all have a position, in the order of the positions; they were never
    /// replaced. Where a policy knows by itself which chunks these were, a finish need not look at every one.
    fn commit_run(&mut self, req: &mut RequestRecency, summary: RunSummary) -> bool {
        let _ = (req, summary);
        false
    }

    /// Forgets every chunk, and ghosts.
    fn clear(&mut self);
}

/// What is said where a constructor that returns no error finds no memory.
pub(crate) const MEMORY: &str = "there must be memory for a policy's tables";

/// Inserts chunks one by one.
pub(crate) fn insert_each(
    policy: &mut (impl CachePolicy + ?Sized),
    req: &mut RequestRecency,
    chunks: &[KeyAccess],
    tier: &dyn Residents,
) {
    for KeyAccess { key, slot, end_token, .. } in chunks {
        let slot = slot.expect("a chunk that is inserted has a slot");
        policy.insert(req, slot, key, *end_token, tier);
    }
}

impl<P: CachePolicy + ?Sized> CachePolicy for Box<P> {
    fn num_slots_max(&self) -> u32 {
        (**self).num_slots_max()
    }

    fn insert(
        &mut self,
        req: &mut RequestRecency,
        slot: SlotId,
        key: &OffloadKey,
        end_token: Option<u32>,
        tier: &dyn Residents,
    ) {
        (**self).insert(req, slot, key, end_token, tier);
    }

    fn on_ready(&mut self, slot: SlotId) {
        (**self).on_ready(slot);
    }

    fn on_unpin(&mut self, slot: SlotId) {
        (**self).on_unpin(slot);
    }

    fn remove(&mut self, slot: SlotId) {
        (**self).remove(slot);
    }

    fn evict(&mut self, count: usize, tier: &dyn Residents, victims: &mut Vec<SlotId>) -> bool {
        (**self).evict(count, tier, victims)
    }

    fn touch(&mut self, keys: &[KeyAccess], tier: &dyn Residents) {
        (**self).touch(keys, tier);
    }

    fn on_store_miss(&mut self, keys: &[KeyAccess], tier: &dyn Residents) {
        (**self).on_store_miss(keys, tier);
    }

    fn on_request_access(&mut self, req: &mut RequestRecency, keys: &[KeyAccess], tier: &dyn Residents) {
        (**self).on_request_access(req, keys, tier);
    }

    fn on_request_finished(&mut self, req: &mut RequestRecency, keys: &[KeyAccess], tier: &dyn Residents) {
        (**self).on_request_finished(req, keys, tier);
    }

    fn insert_all(&mut self, req: &mut RequestRecency, chunks: &[KeyAccess], tier: &dyn Residents) {
        (**self).insert_all(req, chunks, tier);
    }

    fn commit_run(&mut self, req: &mut RequestRecency, summary: RunSummary) -> bool {
        (**self).commit_run(req, summary)
    }

    fn clear(&mut self) {
        (**self).clear();
    }
}
