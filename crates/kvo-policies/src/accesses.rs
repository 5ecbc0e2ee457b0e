//! What one request meets, recorded while it runs and committed once.

use hashbrown::HashMap;
use kvo_core::{GroupIdx, OffloadKey, SlotId};

use crate::{AccessKind, KeyAccess, RequestRecency};

/// The accesses of one request at one tier: each key once, however often the request meets it.
///
/// Every tier keeps one for each request that runs, hands `recency` to its policy, and gives what
/// [`take_into`](Self::take_into) lists to [`CachePolicy::on_request_finished`](crate::CachePolicy::on_request_finished)
/// when the request finishes.
///
/// A request meets its keys in order, again and again from the head. Keys are therefore expected where the last one
/// left off, and a key beyond all positions met so far is new without a search.
#[derive(Debug, Default)]
pub struct RequestAccesses {
    /// What the policy remembers of the request.
    pub recency: RequestRecency,
    recorded: Vec<Recorded>,
    /// Where the next key probably is in `recorded`.
    next: usize,
    /// The largest position and group so far, unless a key had no position.
    highest: Option<(u32, GroupIdx)>,
    /// The place of each key in `recorded`, once a key had to be searched for.
    places: Option<HashMap<OffloadKey, usize>>,
}

#[derive(Clone, Copy, Debug)]
struct Recorded {
    key: OffloadKey,
    slot: Option<SlotId>,
    end_token: Option<u32>,
    met: Met,
    missed: bool,
    named: u32,
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

/// A key that a request has met: its place among those recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Meeting {
    place: usize,
}

impl RequestAccesses {
    /// The request meets `key`, at `end_token` if that is known, in `slot` if it is resident; returns the access with
    /// it if it is the first.
    ///
    /// Once met ready, a key stays a reuse, also if it is evicted and the request stores it again; once stored, it
    /// stays an insertion, also if the request reads it again. A position that was missing is filled in.
    pub fn meet(
        &mut self,
        key: &OffloadKey,
        slot: Option<SlotId>,
        end_token: Option<u32>,
        met: Met,
    ) -> (Meeting, Option<KeyAccess>) {
        if let Some(place) = self.find(key, end_token) {
            self.next = place + 1;
            let recorded = &mut self.recorded[place];
            recorded.slot = slot.or(recorded.slot);
            recorded.end_token = recorded.end_token.or(end_token);
            if recorded.met == Met::Missing {
                recorded.met = met;
            }
            return (Meeting { place }, None);
        }
        let place = self.recorded.len();
        let position = end_token.map(|end_token| (end_token, key.group()));
        self.highest = if place == 0 { position } else { self.highest.zip(position).map(|(a, b)| a.max(b)) };
        if let Some(places) = &mut self.places {
            places.insert(*key, place);
        }
        let recorded = Recorded { key: *key, slot, end_token, met, missed: false, named: 0 };
        self.recorded.push(recorded);
        self.next = place + 1;
        (Meeting { place }, Some(recorded.access(slot)))
    }

    /// Keys may have other positions than when they were met: from now on, no key is new for its position alone.
    pub fn on_positions_replaced(&mut self) {
        self.highest = None;
    }

    /// As [`meet`](Self::meet), for whom the first access is enough.
    pub fn record(
        &mut self,
        key: &OffloadKey,
        slot: Option<SlotId>,
        end_token: Option<u32>,
        met: Met,
    ) -> Option<KeyAccess> {
        self.meet(key, slot, end_token, met).1
    }

    /// Whether this is the first time that the request misses a key that it has met: the moment at which a policy
    /// learns from its ghosts.
    pub fn miss(&mut self, meeting: Meeting) -> bool {
        !std::mem::replace(&mut self.recorded[meeting.place].missed, true)
    }

    /// As [`miss`](Self::miss), by key; a key that was never met is not missed.
    pub fn first_miss(&mut self, key: &OffloadKey) -> bool {
        let Some(place) = self.find(key, None) else { return false };
        self.miss(Meeting { place })
    }

    /// The request stores a key that it has met, into `slot`.
    pub fn store(&mut self, meeting: Meeting, slot: SlotId) {
        let recorded = &mut self.recorded[meeting.place];
        recorded.slot = Some(slot);
        if recorded.met == Met::Missing {
            recorded.met = Met::Stored;
        }
    }

    /// Marks a key that was met as named in the offer of this number, which is not 0; says whether it was already.
    pub fn name(&mut self, meeting: Meeting, offer: u32) -> bool {
        std::mem::replace(&mut self.recorded[meeting.place].named, offer) == offer
    }

    /// Moves what was recorded into `keys`, listed head to tail: by position, then group, if every key has a
    /// position; else group by group, each in the order of recording.
    ///
    /// `locate` knows where a key is now, and is told where it was last met. `end_token` knows positions that were
    /// given since a key was recorded; they replace older ones.
    pub fn take_into(
        &mut self,
        locate: impl Fn(&OffloadKey, Option<SlotId>) -> Option<SlotId>,
        end_token: impl Fn(&OffloadKey) -> Option<u32>,
        keys: &mut Vec<KeyAccess>,
    ) {
        keys.clear();
        keys.extend(self.recorded.drain(..).map(|recorded| {
            let access = recorded.access(locate(&recorded.key, recorded.slot));
            KeyAccess { end_token: end_token(&access.key).or(access.end_token), ..access }
        }));
        (self.next, self.highest, self.places) = (0, None, None);
        let position = |access: &KeyAccess| (access.end_token, access.key.group());
        if keys.iter().any(|access| access.end_token.is_none()) {
            keys.sort_by_key(|access| access.key.group());
        } else if !keys.is_sorted_by_key(position) {
            keys.sort_by_key(position);
        }
    }

    /// The place of a key, if it was recorded.
    fn find(&mut self, key: &OffloadKey, end_token: Option<u32>) -> Option<usize> {
        let is_at = |place: usize| self.recorded.get(place).is_some_and(|recorded| recorded.key == *key);
        if is_at(self.next) {
            return Some(self.next);
        }
        let position = end_token.map(|end_token| (end_token, key.group()));
        let is_beyond = self.recorded.is_empty() || (self.highest.is_some() && position > self.highest);
        if self.places.is_none() && is_beyond {
            return None;
        }
        if is_at(0) {
            return Some(0);
        }
        let recorded = &self.recorded;
        let places = || recorded.iter().enumerate().map(|(place, recorded)| (recorded.key, place)).collect();
        self.places.get_or_insert_with(places).get(key).copied()
    }
}

impl Recorded {
    fn access(self, slot: Option<SlotId>) -> KeyAccess {
        let kind = match self.met {
            Met::Ready => AccessKind::Reused,
            Met::Missing | Met::Stored => AccessKind::Inserted,
        };
        KeyAccess { key: self.key, slot, end_token: self.end_token, kind }
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
            accesses.record(key, None, *end_token, Met::Ready);
        }
        let mut keys = Vec::new();
        accesses.take_into(|_, _| None, |_| None, &mut keys);
        assert_eq!(keys.iter().map(|access| access.key).collect::<Vec<_>>(), expected);
        accesses.take_into(|_, _| None, |_| None, &mut keys);
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
            assert_eq!(accesses.record(&key(1, 0), None, None, *met).is_some(), index == 0);
        }
        let mut keys = Vec::new();
        accesses.take_into(|_, _| None, |_| None, &mut keys);
        assert_eq!(keys, [KeyAccess { key: key(1, 0), slot: None, end_token: None, kind: expected }]);
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
        accesses.record(&key(1, 0), None, None, Met::Ready);
        assert!(accesses.first_miss(&key(1, 0)), "meeting it ready is no miss");
        assert!(!accesses.first_miss(&key(1, 0)));
    }

    #[test]
    fn a_position_that_is_given_later_replaces_the_one_recorded() {
        let mut accesses = RequestAccesses::default();
        for n in 1..=3u32 {
            accesses.record(&key(n.into(), 0), None, Some(16 * n), Met::Stored);
        }
        let mut keys = Vec::new();
        accesses.take_into(|_, _| None, |key| (*key == self::key(1, 0)).then_some(64), &mut keys);
        let order: Vec<_> = keys.iter().map(|access| (access.key, access.end_token)).collect();
        assert_eq!(order, [(key(2, 0), Some(32)), (key(3, 0), Some(48)), (key(1, 0), Some(64))]);
    }

    #[test]
    fn a_key_that_was_given_another_position_is_not_met_anew() {
        let mut accesses = RequestAccesses::default();
        for n in 1..=3u32 {
            accesses.record(&key(n.into(), 0), None, Some(16 * n), Met::Ready);
        }
        accesses.on_positions_replaced();
        assert_eq!(accesses.record(&key(2, 0), None, Some(64), Met::Missing), None);
        assert!(accesses.record(&key(4, 0), None, Some(80), Met::Missing).is_some());
        let mut keys = Vec::new();
        accesses.take_into(|_, _| None, |_| None, &mut keys);
        assert_eq!(keys.len(), 4);
    }
}
