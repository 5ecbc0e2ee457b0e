//! A policy written outside the crates.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use kvo_core::OffloadKey;
use kvo_policies::{CachePolicy, RequestRecency};

/// First in, first out: the five methods that a policy must have. A clone looks at the same queue.
#[derive(Clone, Default)]
pub struct Fifo(Arc<Mutex<VecDeque<OffloadKey>>>);

impl Fifo {
    pub fn queue(&self) -> MutexGuard<'_, VecDeque<OffloadKey>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl CachePolicy for Fifo {
    fn insert(&mut self, _: &mut RequestRecency, key: OffloadKey, _: Option<u32>) {
        self.queue().push_back(key);
    }

    fn remove(&mut self, key: &OffloadKey) {
        self.queue().retain(|other| other != key);
    }

    fn evict(
        &mut self,
        count: usize,
        may_evict: &mut dyn FnMut(&OffloadKey) -> bool,
        victims: &mut Vec<OffloadKey>,
    ) -> bool {
        let mut queue = self.queue();
        let chosen: Vec<OffloadKey> =
            queue.iter().filter(|key| may_evict(key)).take(count).copied().collect();
        if chosen.len() < count {
            return false;
        }
        queue.retain(|key| !chosen.contains(key));
        victims.extend(chosen);
        true
    }

    fn touch(&mut self, _: &[OffloadKey]) {}

    fn clear(&mut self) {
        self.queue().clear();
    }
}
