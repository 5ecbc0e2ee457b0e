//! What one request meets, recorded while it runs and committed once.

use std::ops::Range;

use hashbrown::HashMap;
use kvo_core::{GroupIdx, KeyPositions, OffloadKey, Position, SlotId};

use crate::{AccessKind, KeyAccess, RequestRecency, RunSummary};

/// The accesses of one request at one tier: each key once, however often the request meets it.
///
/// Every tier keeps one for each request that runs, hands `recency` to its policy, and gives what
/// [`take_into`](Self::take_into) lists to [`CachePolicy::on_request_finished`](crate::CachePolicy::on_request_finished)
/// when the request finishes.
///
/// A request meets its keys in order, again and again from the head. As long as it does so in the order of its
/// [`KeyPositions`], a key's place there is its place here, and no key is kept or compared. From the first key on that
/// is out of turn or has no position, the keys are kept; they are then expected where the last one left off, and one
/// beyond all positions met so far is new without a search.
#[derive(Debug, Default)]
pub struct RequestAccesses {
    /// What the policy remembers of the request.
    pub recency: RequestRecency,
    recorded: Vec<Recorded>,
    /// How many of them are reuses.
    num_reused: usize,
    keys: Keys,
}

#[derive(Clone, Copy, Debug)]
struct Recorded {
    slot: Option<SlotId>,
    named: u32,
    met: Met,
    missed: bool,
}

/// The keys of what is recorded.
#[derive(Debug)]
enum Keys {
    /// Those of the request's positions, from this place on.
    InOrder {
        first_place: usize,
    },
    Kept(KeptKeys),
}

#[derive(Debug, Default)]
struct KeptKeys {
    keys: Vec<(OffloadKey, Option<u32>)>,
    /// Where the next key probably is.
    next: usize,
    /// The largest position and group so far, unless a key had no position.
    highest: Option<(u32, GroupIdx)>,
    /// The place of each key, once a key had to be searched for.
    places: Option<HashMap<OffloadKey, usize>>,
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
    place: u32,
    is_first: bool,
}

impl Meeting {
    /// The meeting of the key that was recorded so many keys later.
    #[inline]
    #[must_use]
    pub fn later(self, num_keys: u32) -> Self {
        Self { place: self.place + num_keys, ..self }
    }

    /// Whether the request had not met the key before.
    #[inline]
    pub fn is_first(self) -> bool {
        self.is_first
    }
}

impl Default for Keys {
    fn default() -> Self {
        Self::InOrder { first_place: 0 }
    }
}

impl RequestAccesses {
    /// The request meets `key`, at `end_token` if that is known, in `slot` if it is resident; returns the access with
    /// it if it is the first. For tiers to whom a request is only what they are told of its keys.
    ///
    /// Once met ready, a key stays a reuse, also if it is evicted and the request stores it again; once stored, it
    /// stays an insertion, also if the request reads it again. A position that was missing is filled in.
    pub fn record(
        &mut self,
        key: &OffloadKey,
        slot: Option<SlotId>,
        end_token: Option<u32>,
        met: Met,
    ) -> Option<KeyAccess> {
        let kept = self.keep(None);
        // Nobody says here whether a key has got another position, so none is new for its position alone.
        kept.highest = None;
        let meeting = kept.meet(key, end_token);
        self.note(meeting, slot, met);
        let kind = self.recorded[meeting.place as usize].kind();
        meeting.is_first.then_some(KeyAccess { key: *key, slot, end_token, kind })
    }

    /// As [`record`](Self::record), of a request whose positions are known; `at` is what they say of the key.
    #[inline]
    pub fn meet(
        &mut self,
        key: &OffloadKey,
        at: Option<Position>,
        positions: &KeyPositions,
        slot: Option<SlotId>,
        met: Met,
    ) -> Meeting {
        let meeting = self.place(key, at, positions);
        self.note(meeting, slot, met);
        meeting
    }

    /// Keys may have other positions than when they were met: from now on, no key is new for its position alone.
    pub fn on_positions_replaced(&mut self) {
        if let Keys::Kept(keys) = &mut self.keys {
            keys.highest = None;
        }
    }

    /// The request asks for an absent key in the offer of this number, which is not 0: as [`meet`](Self::meet),
    /// [`name`](Self::name) and [`miss`](Self::miss) together. Returns the meeting and whether the key is missed for the
    /// first time; nothing if the offer has named it already.
    #[inline]
    pub fn ask(
        &mut self,
        key: &OffloadKey,
        at: Option<Position>,
        positions: &KeyPositions,
        offer: u32,
    ) -> Option<(Meeting, bool)> {
        let meeting = self.place(key, at, positions);
        if meeting.is_first {
            self.recorded.push(Recorded { slot: None, named: offer, met: Met::Missing, missed: true });
            return Some((meeting, true));
        }
        (!self.name(meeting, offer)).then(|| (meeting, self.miss(meeting)))
    }

    /// As [`ask`](Self::ask) of the first of `keys`, as many as are the next in order: none of them was met before, so
    /// each is missed for the first time. Returns the places of the keys among the positions.
    pub fn ask_next(
        &mut self,
        keys: &[OffloadKey],
        positions: &KeyPositions,
        offer: u32,
    ) -> (Range<usize>, Meeting) {
        let recorded = Recorded { slot: None, named: offer, met: Met::Missing, missed: true };
        let (places, first) = self.take_next(keys, positions);
        self.recorded.resize(first.place as usize + places.len(), recorded);
        (places, first)
    }

    /// As [`meet`](Self::meet) of the first of `keys`, which are ready in `slots`, as many as are the next in order:
    /// none of them was met before. Returns their places among the positions.
    pub fn meet_next(
        &mut self,
        keys: &[OffloadKey],
        slots: &[SlotId],
        positions: &KeyPositions,
    ) -> Range<usize> {
        let (places, _) = self.take_next(keys, positions);
        let recorded =
            |slot: &SlotId| Recorded { slot: Some(*slot), named: 0, met: Met::Ready, missed: false };
        self.recorded.extend(slots.iter().take(places.len()).map(recorded));
        self.num_reused += places.len();
        places
    }

    /// The places of the first of `keys` among the positions, as many as are the next in order here and there, and the
    /// place of the first among what is recorded.
    fn take_next(&mut self, keys: &[OffloadKey], positions: &KeyPositions) -> (Range<usize>, Meeting) {
        let len = self.recorded.len();
        let first = Meeting { place: count(len), is_first: true };
        let Keys::InOrder { first_place } = &mut self.keys else { return (0..0, first) };
        let next = positions.next_place();
        if len > 0 && next != *first_place + len {
            return (0..0, first);
        }
        let num_keys = positions.find_next(keys);
        if len == 0 {
            *first_place = next;
        }
        (next..next + num_keys, first)
    }

    /// Whether this is the first time that the request misses a key that it has met: the moment at which a policy
    /// learns from its ghosts.
    #[inline]
    pub fn miss(&mut self, meeting: Meeting) -> bool {
        !std::mem::replace(&mut self.recorded[meeting.place as usize].missed, true)
    }

    /// As [`miss`](Self::miss), by key; a key that was never met is not missed.
    pub fn first_miss(&mut self, key: &OffloadKey) -> bool {
        let Some(place) = self.keep(None).find(key, None) else { return false };
        self.miss(Meeting { place: count(place), is_first: false })
    }

    /// The request stores a key that it has met, into `slot`.
    #[inline]
    pub fn store(&mut self, meeting: Meeting, slot: SlotId) {
        let recorded = &mut self.recorded[meeting.place as usize];
        recorded.slot = Some(slot);
        if recorded.met == Met::Missing {
            recorded.met = Met::Stored;
        }
    }

    /// Marks a key that was met as named in the offer of this number, which is not 0; says whether it was already.
    #[inline]
    pub fn name(&mut self, meeting: Meeting, offer: u32) -> bool {
        std::mem::replace(&mut self.recorded[meeting.place as usize].named, offer) == offer
    }

    /// What there is to commit, if all of it was met in the order of the request's positions, and none of these was
    /// ever replaced.
    pub fn in_order(&self, positions: &KeyPositions) -> Option<RunSummary> {
        let is_in_order = matches!(self.keys, Keys::InOrder { .. }) && !positions.were_replaced();
        (is_in_order && !self.recorded.is_empty())
            .then_some(RunSummary { num_keys: self.recorded.len(), num_reused: self.num_reused })
    }

    /// Moves what was recorded into `keys`, listed head to tail: by position, then group, if every key has a
    /// position; else group by group, each in the order of recording.
    ///
    /// `locate` knows where a key is now, and is told where it was last met. `positions` are the request's own, if it
    /// has any; those given since a key was recorded replace older ones.
    pub fn take_into(
        &mut self,
        positions: &KeyPositions,
        locate: impl Fn(&OffloadKey, Option<SlotId>) -> Option<SlotId>,
        keys: &mut Vec<KeyAccess>,
    ) {
        keys.clear();
        let access = |recorded: &Recorded, key: &OffloadKey, end_token| KeyAccess {
            key: *key,
            slot: locate(key, recorded.slot),
            end_token,
            kind: recorded.kind(),
        };
        match &self.keys {
            Keys::InOrder { first_place } => {
                let entries = &positions.entries()[*first_place..];
                keys.extend(
                    self.recorded
                        .iter()
                        .zip(entries)
                        .map(|(recorded, (key, end_token))| access(recorded, key, Some(*end_token))),
                );
            }
            Keys::Kept(kept) => {
                keys.extend(self.recorded.iter().zip(&kept.keys).map(|(recorded, (key, end_token))| {
                    access(recorded, key, positions.end_token(key).or(*end_token))
                }));
            }
        }
        self.clear_keys();
        let position = |access: &KeyAccess| (access.end_token, access.key.group());
        if keys.iter().any(|access| access.end_token.is_none()) {
            keys.sort_by_key(|access| access.key.group());
        } else if !keys.is_sorted_by_key(position) {
            keys.sort_by_key(position);
        }
    }

    /// For how many keys it has room.
    pub fn capacity(&self) -> usize {
        self.recorded.capacity()
    }

    /// Forgets everything, but keeps its room for the next request.
    pub fn clear(&mut self) {
        self.recency = RequestRecency::default();
        self.clear_keys();
    }

    fn clear_keys(&mut self) {
        self.recorded.clear();
        self.num_reused = 0;
        self.keys = Keys::default();
    }

    /// Where a key was recorded, or is to be now.
    #[inline]
    fn place(&mut self, key: &OffloadKey, at: Option<Position>, positions: &KeyPositions) -> Meeting {
        match self.meet_in_order(at) {
            Some(meeting) => meeting,
            None => self.keep(Some(positions)).meet(key, at.map(|position| position.end_token)),
        }
    }

    /// Meets a key whose place among the positions says where it was recorded, or is the next.
    #[inline]
    fn meet_in_order(&mut self, at: Option<Position>) -> Option<Meeting> {
        let Keys::InOrder { first_place } = &mut self.keys else { return None };
        let Position { place, .. } = at?;
        let len = self.recorded.len();
        if len == 0 {
            *first_place = place;
        }
        let place = place.checked_sub(*first_place)?;
        (place <= len).then_some(Meeting { place: count(place), is_first: place == len })
    }

    #[inline]
    fn note(&mut self, meeting: Meeting, slot: Option<SlotId>, met: Met) {
        if meeting.is_first {
            self.num_reused += usize::from(met == Met::Ready);
            self.recorded.push(Recorded { slot, named: 0, met, missed: false });
            return;
        }
        let recorded = &mut self.recorded[meeting.place as usize];
        recorded.slot = slot.or(recorded.slot);
        if recorded.met == Met::Missing {
            recorded.met = met;
            self.num_reused += usize::from(met == Met::Ready);
        }
    }

    /// Keeps the keys from now on.
    fn keep(&mut self, positions: Option<&KeyPositions>) -> &mut KeptKeys {
        if let Keys::InOrder { first_place } = self.keys {
            let mut kept = KeptKeys::default();
            let entries = positions.map_or(&[][..], KeyPositions::entries);
            for (key, end_token) in entries.iter().skip(first_place).take(self.recorded.len()) {
                kept.add(key, Some(*end_token));
            }
            assert_eq!(
                kept.keys.len(),
                self.recorded.len(),
                "keys met by position must have their positions"
            );
            if positions.is_some_and(KeyPositions::were_replaced) {
                kept.highest = None;
            }
            self.keys = Keys::Kept(kept);
        }
        match &mut self.keys {
            Keys::Kept(kept) => kept,
            Keys::InOrder { .. } => unreachable!("they have just been kept"),
        }
    }
}

impl KeptKeys {
    fn meet(&mut self, key: &OffloadKey, end_token: Option<u32>) -> Meeting {
        let found = self.find(key, end_token);
        let place = found.unwrap_or(self.keys.len());
        match found {
            Some(place) => {
                let (_, known) = &mut self.keys[place];
                *known = known.or(end_token);
            }
            None => self.add(key, end_token),
        }
        self.next = place + 1;
        Meeting { place: count(place), is_first: found.is_none() }
    }

    fn add(&mut self, key: &OffloadKey, end_token: Option<u32>) {
        let place = self.keys.len();
        let position = end_token.map(|end_token| (end_token, key.group()));
        self.highest = if place == 0 { position } else { self.highest.zip(position).map(|(a, b)| a.max(b)) };
        if let Some(places) = &mut self.places {
            places.insert(*key, place);
        }
        self.keys.push((*key, end_token));
    }

    /// The place of a key, if it was recorded.
    fn find(&mut self, key: &OffloadKey, end_token: Option<u32>) -> Option<usize> {
        let is_at = |place: usize| self.keys.get(place).is_some_and(|(at, _)| at == key);
        if is_at(self.next) {
            return Some(self.next);
        }
        let position = end_token.map(|end_token| (end_token, key.group()));
        let is_beyond = self.keys.is_empty() || (self.highest.is_some() && position > self.highest);
        if self.places.is_none() && is_beyond {
            return None;
        }
        if is_at(0) {
            return Some(0);
        }
        let keys = &self.keys;
        let places = || keys.iter().enumerate().map(|(place, (key, _))| (*key, place)).collect();
        self.places.get_or_insert_with(places).get(key).copied()
    }
}

/// A number of keys; a request has less than 2^32.
#[inline]
fn count(keys: usize) -> u32 {
    u32::try_from(keys).expect("a request has less than 2^32 keys")
}

impl Recorded {
    fn kind(&self) -> AccessKind {
        match self.met {
            Met::Ready => AccessKind::Reused,
            Met::Missing | Met::Stored => AccessKind::Inserted,
        }
    }
}

#[cfg(test)]
mod tests {
    use kvo_core::{BlockHash, RequestContext, RequestId};

    use super::*;

    fn key(n: u64, group: u32) -> OffloadKey {
        OffloadKey::new(BlockHash::from_u64(n), GroupIdx(group))
    }

    fn positions(entries: impl IntoIterator<Item = (OffloadKey, u32)>) -> KeyPositions {
        let mut request = RequestContext::new(RequestId(1));
        request.set_positions(entries);
        request.positions().clone()
    }

    #[track_caller]
    fn check_order(recorded: &[(OffloadKey, Option<u32>)], expected: &[OffloadKey]) {
        let mut accesses = RequestAccesses::default();
        for (key, end_token) in recorded {
            accesses.record(key, None, *end_token, Met::Ready);
        }
        let mut keys = Vec::new();
        accesses.take_into(&KeyPositions::default(), |_, _| None, &mut keys);
        assert_eq!(keys.iter().map(|access| access.key).collect::<Vec<_>>(), expected);
        accesses.take_into(&KeyPositions::default(), |_, _| None, &mut keys);
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
        accesses.take_into(&KeyPositions::default(), |_, _| None, &mut keys);
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
        accesses.take_into(&positions([(key(1, 0), 64)]), |_, _| None, &mut keys);
        let order: Vec<_> = keys.iter().map(|access| (access.key, access.end_token)).collect();
        assert_eq!(order, [(key(2, 0), Some(32)), (key(3, 0), Some(48)), (key(1, 0), Some(64))]);
    }

    #[test]
    fn a_tier_that_is_told_another_position_of_a_key_does_not_meet_it_anew() {
        let mut accesses = RequestAccesses::default();
        assert!(accesses.record(&key(1, 0), None, Some(16), Met::Missing).is_some());
        assert!(accesses.record(&key(2, 0), None, Some(32), Met::Missing).is_some());
        assert_eq!(accesses.record(&key(1, 0), None, Some(64), Met::Ready), None);
        assert!(accesses.record(&key(3, 0), None, Some(80), Met::Missing).is_some());
        let mut keys = Vec::new();
        accesses.take_into(&KeyPositions::default(), |_, _| None, &mut keys);
        assert_eq!(keys.iter().map(|access| access.key).collect::<Vec<_>>(), [1, 2, 3].map(|n| key(n, 0)));
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
        accesses.take_into(&KeyPositions::default(), |_, _| None, &mut keys);
        assert_eq!(keys.len(), 4);
    }
}
