//! What travels with a request: key positions, tier filter, and what each manager records for it.

use std::{
    any::Any,
    cell::{Cell, OnceCell},
    fmt,
};

use hashbrown::HashMap;

use crate::{OffloadKey, OwnerId, RequestId};

/// What a tier keeps its chunks on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Medium {
    /// CPU memory.
    Memory,
    /// A local solid-state disk.
    Ssd,
    /// A file system that may be shared or remote.
    FileSystem,
    /// An object store.
    Object,
    /// Another node's memory.
    Peer,
}

/// How far a tier is from this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Locality {
    /// On this node.
    Local,
    /// Across a network.
    Remote,
}

/// Which secondary tiers may serve a request's lookups. The default allows all of them.
///
/// It filters promotions only: a request's chunks cascade to every tier all the same.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TierFilter {
    media: Option<Vec<Medium>>,
    localities: Option<Vec<Locality>>,
}

impl TierFilter {
    /// Allows every tier.
    pub fn all() -> Self {
        Self::default()
    }

    /// Allows only tiers on one of `media`; an empty list allows none.
    #[must_use]
    pub fn only_media(mut self, media: impl IntoIterator<Item = Medium>) -> Self {
        self.media = Some(media.into_iter().collect());
        self
    }

    /// Allows only tiers at one of `localities`; an empty list allows none.
    #[must_use]
    pub fn only_localities(mut self, localities: impl IntoIterator<Item = Locality>) -> Self {
        self.localities = Some(localities.into_iter().collect());
        self
    }

    /// Whether a tier of this medium and locality may be asked.
    pub fn allows(&self, medium: Medium, locality: Locality) -> bool {
        self.media.as_ref().is_none_or(|media| media.contains(&medium))
            && self.localities.as_ref().is_none_or(|localities| localities.contains(&locality))
    }
}

/// Where a key of a request is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Position {
    /// Its place among the request's keys with a position, in the order in which they were given.
    pub place: usize,
    /// The number of prompt and output tokens up to and including the chunk.
    pub end_token: u32,
}

/// The end-token position of each key of a request: the number of prompt and output tokens up to and including
/// the chunk. A key nearer the head has a smaller one.
///
/// Looking keys up in the order in which they were given costs a comparison each.
#[derive(Clone, Debug, Default)]
pub struct KeyPositions {
    /// In the order in which they were given.
    entries: Vec<(OffloadKey, u32)>,
    /// Where the next key to be looked up probably is.
    next: Cell<usize>,
    /// The place of each key in `entries`, once a key had to be searched for.
    places: OnceCell<HashMap<OffloadKey, usize>>,
    replaced: bool,
}

impl KeyPositions {
    /// The end token of `key`, if the scheduler gave one.
    pub fn end_token(&self, key: &OffloadKey) -> Option<u32> {
        self.find(key).map(|position| position.end_token)
    }

    /// The position of `key`, if the scheduler gave one.
    #[inline]
    pub fn find(&self, key: &OffloadKey) -> Option<Position> {
        let place = self.next.get();
        match self.entries.get(place) {
            Some((at, end_token)) if at == key => {
                self.next.set(place + 1);
                Some(Position { place, end_token: *end_token })
            }
            _ => self.search(key),
        }
    }

    /// The position of a key that is not the next one.
    fn search(&self, key: &OffloadKey) -> Option<Position> {
        // Not before there are any: the table is made once.
        let (first, _) = self.entries.first()?;
        let place = if first == key { 0 } else { *self.places().get(key)? };
        self.next.set(place + 1);
        Some(Position { place, end_token: self.entries[place].1 })
    }

    /// The place after that of the key that was found last: where a key is expected.
    #[inline]
    pub fn next_place(&self) -> usize {
        self.next.get()
    }

    /// How many of `keys`, from the first on, are in order from the [next place](Self::next_place) on. They are found,
    /// as by [`find`](Self::find) of each.
    #[inline]
    pub fn find_next(&self, keys: &[OffloadKey]) -> usize {
        let place = self.next.get();
        let entries = self.entries.get(place..).unwrap_or_default();
        let len = keys.iter().zip(entries).take_while(|(key, (at, _))| at == *key).count();
        self.next.set(place + len);
        len
    }

    /// The keys with their end tokens, in the order in which they were given.
    #[inline]
    pub fn entries(&self) -> &[(OffloadKey, u32)] {
        &self.entries
    }

    /// Whether a key was ever given another position than it had.
    #[inline]
    pub fn were_replaced(&self) -> bool {
        self.replaced
    }

    /// How many keys have a position.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether no key has a position.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    fn places(&self) -> &HashMap<OffloadKey, usize> {
        let places = || self.entries.iter().enumerate().map(|(place, (key, _))| (*key, place)).collect();
        self.places.get_or_init(places)
    }

    fn push(&mut self, positions: impl IntoIterator<Item = (OffloadKey, u32)>) {
        let before = self.entries.len();
        self.entries.extend(positions);
        if let Some(places) = self.places.get_mut() {
            let new = self.entries[before..].iter().zip(before..);
            for ((key, _), place) in new {
                places.entry(*key).or_insert(place);
            }
        }
    }

    fn set(&mut self, positions: impl IntoIterator<Item = (OffloadKey, u32)>) {
        if self.entries.is_empty() {
            self.entries.extend(positions);
            return;
        }
        self.places();
        let places = self.places.get_mut().expect("it has just been made");
        for (key, end_token) in positions {
            let place = *places.entry(key).or_insert(self.entries.len());
            match self.entries.get_mut(place) {
                Some(entry) => self.replaced |= std::mem::replace(&mut entry.1, end_token) != end_token,
                None => self.entries.push((key, end_token)),
            }
        }
    }
}

/// One request, as its engine, its managers and its tiers see it. The engine owns it and hands it to every call.
///
/// Managers keep what they record for the request in here, each under its own [`OwnerId`], so two managers can
/// serve one request. A request that was announced is to be finished: if its context is only dropped, a policy keeps its
/// place in the order, some hundred bytes, until the next reset.
pub struct RequestContext {
    id: RequestId,
    positions: KeyPositions,
    tier_filter: TierFilter,
    states: Vec<(OwnerId, Box<dyn Any + Send>)>,
}

impl RequestContext {
    /// A request without positions that every tier may serve.
    pub fn new(id: RequestId) -> Self {
        Self { id, positions: KeyPositions::default(), tier_filter: TierFilter::all(), states: Vec::new() }
    }

    /// Restricts the tiers that may serve the request's lookups.
    #[must_use]
    pub fn with_tier_filter(mut self, filter: TierFilter) -> Self {
        self.tier_filter = filter;
        self
    }

    /// The engine's number for the request.
    pub fn id(&self) -> RequestId {
        self.id
    }

    /// Which tiers may serve the request's lookups.
    pub fn tier_filter(&self) -> &TierFilter {
        &self.tier_filter
    }

    /// Gives the end-token position of each key, and replaces the position of a key that had one in an earlier call.
    /// The keys of one call are without repeats, head to tail at best. Call it again as the request grows.
    pub fn set_positions(&mut self, positions: impl IntoIterator<Item = (OffloadKey, u32)>) {
        self.positions.set(positions);
    }

    /// As [`set_positions`](Self::set_positions), for keys that have none yet, behind all that have: nothing is looked
    /// for, so that a request which grows costs what it grows by. A key that has one already has two then, and which of them
    /// is found depends on the keys that were asked for before.
    pub fn push_positions(&mut self, positions: impl IntoIterator<Item = (OffloadKey, u32)>) {
        self.positions.push(positions);
    }

    /// The positions given so far.
    pub fn positions(&self) -> &KeyPositions {
        &self.positions
    }

    /// The state that `owner` keeps for this request, if it has any of type `T`.
    pub fn state<T: Any + Send>(&self, owner: OwnerId) -> Option<&T> {
        self.states.iter().find(|(of, _)| *of == owner).and_then(|(_, state)| state.downcast_ref())
    }

    /// The state that `owner` keeps for this request, made by default at first use, beside the positions that the
    /// owner usually needs at the same time.
    ///
    /// An owner keeps one type: a state of another type under the same owner is replaced.
    #[inline]
    pub fn state_mut<T: Any + Send + Default>(&mut self, owner: OwnerId) -> (&mut T, &KeyPositions) {
        let index =
            self.states.iter().position(|(of, state)| *of == owner && state.is::<T>()).unwrap_or_else(|| {
                self.states.retain(|(of, _)| *of != owner);
                self.states.push((owner, Box::new(T::default())));
                self.states.len() - 1
            });
        let state = self.states[index].1.downcast_mut().expect("the type was checked or just made");
        (state, &self.positions)
    }
}

impl fmt::Debug for RequestContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RequestContext")
            .field("id", &self.id)
            .field("num_positions", &self.positions.len())
            .field("tier_filter", &self.tier_filter)
            .field("num_states", &self.states.len())
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_owner_has_a_state_of_its_own() {
        let (a, b) = (OwnerId::unique(), OwnerId::unique());
        let mut request = RequestContext::new(RequestId(1));
        *request.state_mut::<u32>(a).0 = 1;
        *request.state_mut::<u32>(b).0 = 2;
        assert_eq!(request.state::<u32>(a), Some(&1));
        assert_eq!(request.state::<u32>(b), Some(&2));
        assert_eq!(*request.state_mut::<u64>(a).0, 0, "a new type under an owner starts from its default");
        assert_eq!(request.state::<u32>(a), None);
    }

    #[test]
    fn positions_are_found_in_any_order_and_can_be_replaced() {
        let key = |n| OffloadKey::new(crate::BlockHash::from_u64(n), crate::GroupIdx(0));
        let mut request = RequestContext::new(RequestId(1));
        request.set_positions((1..=3u32).map(|n| (key(n.into()), 16 * n)));
        for n in [1, 2, 3, 1, 3, 2, 2] {
            assert_eq!(request.positions().end_token(&key(u64::from(n))), Some(16 * n));
        }
        assert_eq!(request.positions().end_token(&key(4)), None);
        request.set_positions([(key(4), 64), (key(1), 16)]);
        assert!(!request.positions().were_replaced());
        request.set_positions([(key(2), 80)]);
        assert!(request.positions().were_replaced());
        assert_eq!(request.positions().len(), 4);
        let found = [1, 2, 3, 4].map(|n| request.positions().end_token(&key(n)));
        assert_eq!(found, [Some(16), Some(80), Some(48), Some(64)]);
    }

    #[test]
    fn positions_that_come_after_the_first_search_are_found_and_replaced() {
        let key = |n| OffloadKey::new(crate::BlockHash::from_u64(n), crate::GroupIdx(0));
        let mut request = RequestContext::new(RequestId(1));
        assert_eq!(request.positions().end_token(&key(2)), None);
        request.set_positions([(key(1), 16), (key(2), 32)]);
        assert_eq!(request.positions().end_token(&key(2)), Some(32));
        request.set_positions([(key(2), 80)]);
        assert!(request.positions().were_replaced());
        assert_eq!((request.positions().len(), request.positions().end_token(&key(2))), (2, Some(80)));
    }

    #[test]
    fn positions_that_are_pushed_are_found_before_and_after_the_first_search() {
        let key = |n| OffloadKey::new(crate::BlockHash::from_u64(n), crate::GroupIdx(0));
        let mut request = RequestContext::new(RequestId(1));
        request.push_positions([(key(1), 16), (key(2), 32)]);
        assert_eq!(request.positions().end_token(&key(2)), Some(32));
        request.push_positions([(key(3), 48)]);
        for n in [3, 1, 2, 3] {
            assert_eq!(request.positions().end_token(&key(n)), Some(16 * u32::try_from(n).unwrap()));
        }
        assert_eq!(request.positions().len(), 3);
        assert!(!request.positions().were_replaced());
    }

    #[test]
    fn a_key_whose_position_is_pushed_again_has_two() {
        let key = |n| OffloadKey::new(crate::BlockHash::from_u64(n), crate::GroupIdx(0));
        let mut request = RequestContext::new(RequestId(1));
        request.push_positions([(key(1), 16), (key(2), 32)]);
        request.push_positions([(key(1), 48)]);
        let found = [1, 2, 1].map(|n| request.positions().end_token(&key(n)));
        assert_eq!(found, [Some(16), Some(32), Some(48)]);
        assert_eq!((request.positions().len(), request.positions().were_replaced()), (3, false));
    }

    #[test]
    fn a_filter_allows_what_it_lists() {
        let filter = TierFilter::all().only_media([Medium::Ssd]);
        assert!(filter.allows(Medium::Ssd, Locality::Local));
        assert!(filter.allows(Medium::Ssd, Locality::Remote));
        assert!(!filter.allows(Medium::Object, Locality::Local));
        let local = filter.only_localities([Locality::Local]);
        assert!(!local.allows(Medium::Ssd, Locality::Remote));
        assert!(!TierFilter::all().only_media([]).allows(Medium::Ssd, Locality::Local));
    }
}
