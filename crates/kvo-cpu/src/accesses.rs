//! What one request has met, recorded while it runs and committed once.

use hashbrown::{HashMap, HashSet};
use kvo_core::{KeyPositions, OffloadKey};
use kvo_policies::{AccessKind, KeyAccess, RequestRecency};

/// The state that a manager keeps in a request's context.
#[derive(Debug, Default)]
pub(crate) struct RequestAccesses {
    /// The reset generation that everything but `finished` belongs to.
    generation: u64,
    pub(crate) finished: bool,
    pub(crate) recency: RequestRecency,
    /// Each key once, in the order in which the request met them.
    recorded: Vec<(OffloadKey, Met)>,
    index: HashMap<OffloadKey, usize>,
    /// Keys that were missing when the request offered them or had them promoted.
    missed: HashSet<OffloadKey>,
}

/// How a request has met a key so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Met {
    /// It offered the key, which was missing, and did not get to store it.
    Missing,
    /// It met the key ready before it stored it, if it ever did.
    Ready,
    /// It stored the key before it met it ready.
    Stored,
}

impl RequestAccesses {
    /// Drops what an older generation recorded.
    pub(crate) fn enter_generation(&mut self, generation: u64) {
        if self.generation != generation {
            *self = Self { generation, finished: self.finished, ..Self::default() };
        }
    }

    /// The request meets `key`, missing or ready; says whether for the first time.
    pub(crate) fn record(&mut self, key: &OffloadKey, met: Met) -> bool {
        let next = self.recorded.len();
        let index = *self.index.entry(*key).or_insert(next);
        if index == next {
            self.recorded.push((*key, met));
        } else if self.recorded[index].1 == Met::Missing {
            self.recorded[index].1 = met;
        }
        index == next
    }

    /// Whether this is the first time that the request misses `key`.
    pub(crate) fn first_miss(&mut self, key: &OffloadKey) -> bool {
        self.missed.insert(*key)
    }

    /// Takes what was recorded, listed head to tail into `keys`: by position, then group, if every key has a
    /// position; else by group, then in the order of recording.
    pub(crate) fn take_into(&mut self, positions: &KeyPositions, keys: &mut Vec<KeyAccess>) {
        keys.clear();
        keys.extend(self.recorded.drain(..).map(|(key, met)| KeyAccess {
            key,
            end_token: positions.end_token(&key),
            kind: if met == Met::Ready { AccessKind::Reused } else { AccessKind::Inserted },
        }));
        self.index.clear();
        self.missed.clear();
        if keys.iter().all(|access| access.end_token.is_some()) {
            keys.sort_by_key(|access| (access.end_token, access.key.group()));
        } else {
            keys.sort_by_key(|access| access.key.group());
        }
    }
}
