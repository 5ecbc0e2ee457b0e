//! The trait that every eviction policy implements.

use kvo_core::OffloadKey;

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
    /// The key; it need not be resident any more.
    pub key: OffloadKey,
    /// Its position in the request, if the scheduler gave one.
    pub end_token: Option<u32>,
    /// How the request met it.
    pub kind: AccessKind,
}

/// What a policy remembers of a request while it runs. Whoever owns the policy keeps one per request, fresh for each
/// reset generation, and gives it back at every call of that request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RequestRecency {
    /// The rank that the request's chunks share until it finishes, once one was drawn. Policies without ranks leave
    /// it alone.
    pub provisional_rank: Option<u64>,
}

/// Decides which chunks go first. It sees keys only: no bytes, no slots; and it owns no pin.
///
/// The owner of a tier calls it, from one thread, and tells it of every change to the tier: a key is `insert`ed when
/// its slot is reserved, `on_ready` when its bytes have arrived, `on_pin`ned and `on_unpin`ned at the first pin and
/// after the last, and `remove`d when its store failed; `evict`ed keys leave without further notice. Keys in an
/// argument are without repeats. A key that is not resident is skipped wherever the doc does not say otherwise.
///
/// Six methods have a body, so the least policy is five: `insert`, `remove`, `evict`, `touch` and `clear`.
/// [`on_store_miss`](Self::on_store_miss) and [`on_request_finished`](Self::on_request_finished) then fall back to
/// [`touch`](Self::touch), and pins are known from what `evict` is told.
pub trait CachePolicy: Send {
    /// A slot was reserved for `key`, for a request whose chunk ends at `end_token`. The key is pending: it is not
    /// evictable before [`on_ready`](Self::on_ready). A ghost of it is forgotten.
    fn insert(&mut self, req: &mut RequestRecency, key: OffloadKey, end_token: Option<u32>);

    /// The bytes of `key` have arrived.
    fn on_ready(&mut self, key: &OffloadKey) {
        let _ = key;
    }

    /// `key`, ready and unpinned so far, got its first pin.
    fn on_pin(&mut self, key: &OffloadKey) {
        let _ = key;
    }

    /// `key` lost its last pin.
    fn on_unpin(&mut self, key: &OffloadKey) {
        let _ = key;
    }

    /// `key` is gone without having been evicted: its store failed. It leaves no ghost.
    fn remove(&mut self, key: &OffloadKey);

    /// Appends exactly `count` victims to `victims`, in the order of eviction, and removes them; or changes nothing
    /// and returns `false` if fewer can be had.
    ///
    /// Only keys for which `may_evict` answers `true` may go: it answers `false` for whatever is pending, pinned or
    /// spared for this call. A policy that follows the notices above needs to ask only about keys that it holds
    /// for ready and unpinned.
    fn evict(
        &mut self,
        count: usize,
        may_evict: &mut dyn FnMut(&OffloadKey) -> bool,
        victims: &mut Vec<OffloadKey>,
    ) -> bool;

    /// Marks the resident ones of `keys`, listed head to tail, as recently used, the last first: the head ends most
    /// recent.
    fn touch(&mut self, keys: &[OffloadKey]);

    /// A request offers `keys`, none of them resident, for the first time; they may have ghosts. Called before
    /// eviction, also when the offer is then refused.
    fn on_store_miss(&mut self, keys: &[OffloadKey]) {
        self.touch(keys);
    }

    /// A request meets `keys` for the first time, by a load or an offer. Not all of them are resident.
    fn on_request_access(&mut self, req: &mut RequestRecency, keys: &[KeyAccess]) {
        let _ = (req, keys);
    }

    /// A request ends; `keys`, listed head to tail, are what it loaded or offered, each once: one access, however
    /// long the request ran. To be applied tail first.
    fn on_request_finished(&mut self, keys: &[KeyAccess]) {
        let keys: Vec<OffloadKey> = keys.iter().map(|access| access.key).collect();
        self.touch(&keys);
    }

    /// Forgets every key, ghosts included.
    fn clear(&mut self);
}

impl<P: CachePolicy + ?Sized> CachePolicy for Box<P> {
    fn insert(&mut self, req: &mut RequestRecency, key: OffloadKey, end_token: Option<u32>) {
        (**self).insert(req, key, end_token);
    }

    fn on_ready(&mut self, key: &OffloadKey) {
        (**self).on_ready(key);
    }

    fn on_pin(&mut self, key: &OffloadKey) {
        (**self).on_pin(key);
    }

    fn on_unpin(&mut self, key: &OffloadKey) {
        (**self).on_unpin(key);
    }

    fn remove(&mut self, key: &OffloadKey) {
        (**self).remove(key);
    }

    fn evict(
        &mut self,
        count: usize,
        may_evict: &mut dyn FnMut(&OffloadKey) -> bool,
        victims: &mut Vec<OffloadKey>,
    ) -> bool {
        (**self).evict(count, may_evict, victims)
    }

    fn touch(&mut self, keys: &[OffloadKey]) {
        (**self).touch(keys);
    }

    fn on_store_miss(&mut self, keys: &[OffloadKey]) {
        (**self).on_store_miss(keys);
    }

    fn on_request_access(&mut self, req: &mut RequestRecency, keys: &[KeyAccess]) {
        (**self).on_request_access(req, keys);
    }

    fn on_request_finished(&mut self, keys: &[KeyAccess]) {
        (**self).on_request_finished(keys);
    }

    fn clear(&mut self) {
        (**self).clear();
    }
}
