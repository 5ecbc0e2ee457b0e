//! A policy around another one that insists on what the trait promises to policies, and counts calls.

use std::collections::{BTreeMap, BTreeSet};

use kvo_core::OffloadKey;
use kvo_policies::{CachePolicy, KeyAccess, RequestRecency};

use super::policies::naive::State;

/// Panics when its owner breaks the contract of [`CachePolicy`].
#[derive(Debug)]
pub struct Strict<P> {
    inner: P,
    resident: BTreeMap<OffloadKey, State>,
    /// Keys that evictions asked about, all together.
    pub asked: usize,
    /// Keys given to `on_request_access`, all together.
    pub met: usize,
    /// Keys given to `on_store_miss`, all together.
    pub missed: usize,
    /// Keys of the last finish.
    pub committed: Vec<KeyAccess>,
}

impl<P> Strict<P> {
    pub fn new(inner: P) -> Self {
        Self { inner, resident: BTreeMap::new(), asked: 0, met: 0, missed: 0, committed: Vec::new() }
    }

    #[track_caller]
    fn change(&mut self, key: &OffloadKey, from: State, to: State) {
        let before = self.resident.insert(*key, to);
        assert_eq!(before, Some(from), "{key} must be {from:?} to become {to:?}");
    }
}

#[track_caller]
fn check_distinct<'a>(keys: impl IntoIterator<Item = &'a OffloadKey>) {
    let mut seen = BTreeSet::new();
    assert!(keys.into_iter().all(|key| seen.insert(*key)), "keys are without repeats");
}

impl<P: CachePolicy> CachePolicy for Strict<P> {
    fn insert(&mut self, req: &mut RequestRecency, key: OffloadKey, end_token: Option<u32>) {
        assert_eq!(self.resident.insert(key, State::Pending), None, "{key} must be absent to be inserted");
        self.inner.insert(req, key, end_token);
    }

    fn on_ready(&mut self, key: &OffloadKey) {
        self.change(key, State::Pending, State::Free);
        self.inner.on_ready(key);
    }

    fn on_pin(&mut self, key: &OffloadKey) {
        self.change(key, State::Free, State::Pinned);
        self.inner.on_pin(key);
    }

    fn on_unpin(&mut self, key: &OffloadKey) {
        self.change(key, State::Pinned, State::Free);
        self.inner.on_unpin(key);
    }

    fn remove(&mut self, key: &OffloadKey) {
        assert_eq!(self.resident.remove(key), Some(State::Pending), "{key}: only a failed store is removed");
        self.inner.remove(key);
    }

    fn evict(
        &mut self,
        count: usize,
        may_evict: &mut dyn FnMut(&OffloadKey) -> bool,
        victims: &mut Vec<OffloadKey>,
    ) -> bool {
        assert!(count > 0, "nothing is to be evicted");
        for (key, state) in &self.resident {
            assert!(*state == State::Free || !may_evict(key), "{key} may go and is {state:?}");
        }
        let before = victims.len();
        let asked = &mut self.asked;
        let mut may_evict = |key: &OffloadKey| {
            *asked += 1;
            may_evict(key)
        };
        let done = self.inner.evict(count, &mut may_evict, victims);
        for key in &victims[before..] {
            assert_eq!(self.resident.remove(key), Some(State::Free), "{key} is evicted");
        }
        done
    }

    fn touch(&mut self, keys: &[OffloadKey]) {
        self.inner.touch(keys);
    }

    fn on_store_miss(&mut self, keys: &[OffloadKey]) {
        check_distinct(keys);
        assert!(!keys.iter().any(|key| self.resident.contains_key(key)), "missing keys are not resident");
        self.missed += keys.len();
        self.inner.on_store_miss(keys);
    }

    fn on_request_access(&mut self, req: &mut RequestRecency, keys: &[KeyAccess]) {
        check_distinct(keys.iter().map(|access| &access.key));
        self.met += keys.len();
        self.inner.on_request_access(req, keys);
    }

    fn on_request_finished(&mut self, keys: &[KeyAccess]) {
        check_distinct(keys.iter().map(|access| &access.key));
        self.committed = keys.to_vec();
        self.inner.on_request_finished(keys);
    }

    fn clear(&mut self) {
        self.resident.clear();
        self.inner.clear();
    }
}
