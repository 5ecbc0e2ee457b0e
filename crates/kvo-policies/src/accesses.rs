//! What one request meets, recorded while it runs and committed once.

use hashbrown::{HashMap, HashSet};
use kvo_core::OffloadKey;

use crate::{AccessKind, KeyAccess, RequestRecency};

/// The accesses of one request at one tier: each key once, however often the request meets it.
///
/// Every tier keeps one for each request that runs, hands `recency` to its policy, and gives what
/// [`take_into`](Self::take_into) lists to [`CachePolicy::on_request_finished`](crate::CachePolicy::on_request_finished)
/// when the request finishes.
#[derive(Debug, Default)]
pub struct RequestAccesses {
    /// What the policy remembers of the request.
    pub recency: RequestRecency,
    recorded: Vec<Recorded>,
    index: HashMap<OffloadKey, usize>,
    missed: HashSet<OffloadKey>,
}

#[derive(Clone, Copy, Debug)]
struct Recorded {
    key: OffloadKey,
    end_token: Option<u32>,
    met: Met,
}

/// How a request has met a key so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Met {
    /// It asked for the key, which was missing, and has not come to store it.
    Missing,
    /// The key was ready when the request first met it or, if it was missing then, before the request stored it.
    Ready,
    /// The request stored the key before it met it ready.
    Stored,
}

impl RequestAccesses {
    /// The request meets `key`, at `end_token` if that is known; returns the access if it is the first.
    ///
    /// Once met ready, a key stays a reuse, also if it is evicted and the request stores it again; once stored, it
    /// stays an insertion, also if the request reads it again. A position that was missing is filled in.
    pub fn record(&mut self, key: &OffloadKey, end_token: Option<u32>, met: Met) -> Option<KeyAccess> {
        let next = self.recorded.len();
        let index = *self.index.entry(*key).or_insert(next);
        if index == next {
            let recorded = Recorded { key: *key, end_token, met };
            self.recorded.push(recorded);
            return Some(recorded.access());
        }
        let recorded = &mut self.recorded[index];
        recorded.end_token = recorded.end_token.or(end_token);
        if recorded.met == Met::Missing {
            recorded.met = met;
        }
        None
    }

    /// Whether this is the first time that the request misses `key`: the moment at which a policy learns from its
    /// ghosts.
    pub fn first_miss(&mut self, key: &OffloadKey) -> bool {
        self.missed.insert(*key)
    }

    /// Moves what was recorded into `keys`, listed head to tail: by position, then group, if every key has a
    /// position; else group by group, each in the order of recording. `end_token` knows positions that were given
    /// since a key was recorded; they replace older ones.
    pub fn take_into(&mut self, end_token: impl Fn(&OffloadKey) -> Option<u32>, keys: &mut Vec<KeyAccess>) {
        keys.clear();
        keys.extend(self.recorded.drain(..).map(|recorded| {
            let access = recorded.access();
            KeyAccess { end_token: end_token(&access.key).or(access.end_token), ..access }
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

impl Recorded {
    fn access(self) -> KeyAccess {
        let kind = match self.met {
            Met::Ready => AccessKind::Reused,
            Met::Missing | Met::Stored => AccessKind::Inserted,
        };
        KeyAccess { key: self.key, end_token: self.end_token, kind }
    }
}

#[cfg(test)]
mod tests {
    use kvo_core::{BlockHash, GroupIdx};

    use super::*;

    fn key(n: u64, group: u32) -> OffloadKey {
        OffloadKey::new(BlockHash::from_u64(n), GroupIdx(group))
    }

    #[track_caller]
    fn check_order(recorded: &[(OffloadKey, Option<u32>)], expected: &[OffloadKey]) {
        let mut accesses = RequestAccesses::default();
        for (key, end_token) in recorded {
            accesses.record(key, *end_token, Met::Ready);
        }
        let mut keys = Vec::new();
        accesses.take_into(|_| None, &mut keys);
        assert_eq!(keys.iter().map(|access| access.key).collect::<Vec<_>>(), expected);
        accesses.take_into(|_| None, &mut keys);
        assert!(keys.is_empty(), "an access is committed once");
    }

    #[test]
    fn positions_order_the_keys_of_all_groups_if_every_key_has_one() {
        let (a, b, c) = (key(1, 1), key(2, 0), key(3, 0));
        check_order(&[(a, Some(16)), (c, Some(32)), (b, Some(16))], &[b, a, c]);
        check_order(&[(a, Some(16)), (c, None), (b, Some(16))], &[c, b, a]);
        check_order(&[(c, None), (b, Some(16)), (c, Some(32))], &[b, c]);
    }

    #[track_caller]
    fn check_kind(met: &[Met], expected: AccessKind) {
        let mut accesses = RequestAccesses::default();
        for (index, met) in met.iter().enumerate() {
            assert_eq!(accesses.record(&key(1, 0), None, *met).is_some(), index == 0);
        }
        let mut keys = Vec::new();
        accesses.take_into(|_| None, &mut keys);
        assert_eq!(keys, [KeyAccess { key: key(1, 0), end_token: None, kind: expected }]);
    }

    #[test]
    fn the_first_meeting_decides_between_insertion_and_reuse() {
        check_kind(&[Met::Missing], AccessKind::Inserted);
        check_kind(&[Met::Missing, Met::Stored, Met::Ready], AccessKind::Inserted);
        check_kind(&[Met::Missing, Met::Ready], AccessKind::Reused);
        check_kind(&[Met::Ready, Met::Missing, Met::Stored], AccessKind::Reused);
    }

    #[test]
    fn a_key_is_missed_for_the_first_time_once() {
        let mut accesses = RequestAccesses::default();
        accesses.record(&key(1, 0), None, Met::Ready);
        assert!(accesses.first_miss(&key(1, 0)), "meeting it ready is no miss");
        assert!(!accesses.first_miss(&key(1, 0)));
    }

    #[test]
    fn a_position_that_is_given_later_replaces_the_one_recorded() {
        let mut accesses = RequestAccesses::default();
        for n in 1..=3u32 {
            accesses.record(&key(n.into(), 0), Some(16 * n), Met::Stored);
        }
        let mut keys = Vec::new();
        accesses.take_into(|key| (*key == self::key(1, 0)).then_some(64), &mut keys);
        let order: Vec<_> = keys.iter().map(|access| (access.key, access.end_token)).collect();
        assert_eq!(order, [(key(2, 0), Some(32)), (key(3, 0), Some(48)), (key(1, 0), Some(64))]);
    }
}
