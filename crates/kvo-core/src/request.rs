//! What travels with a request: key positions, tier filter, and what each manager records for it.

use std::{any::Any, fmt};

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

/// The end-token position of each key of a request: the number of prompt and output tokens up to and including
/// the chunk. A key nearer the head has a smaller one.
#[derive(Clone, Debug, Default)]
pub struct KeyPositions {
    end_tokens: HashMap<OffloadKey, u32>,
}

impl KeyPositions {
    /// The position of `key`, if the scheduler gave one.
    pub fn end_token(&self, key: &OffloadKey) -> Option<u32> {
        self.end_tokens.get(key).copied()
    }

    /// How many keys have a position.
    pub fn len(&self) -> usize {
        self.end_tokens.len()
    }

    /// Whether no key has a position.
    pub fn is_empty(&self) -> bool {
        self.end_tokens.is_empty()
    }
}

/// One request, as its engine, its managers and its tiers see it. The engine owns it and hands it to every call.
///
/// Managers keep what they record for the request in here, each under its own [`OwnerId`], so two managers can
/// serve one request and dropping the context leaves nothing behind.
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

    /// Gives the end-token position of each key, and replaces the position of a key that had one. Call it again as
    /// the request grows.
    pub fn set_positions(&mut self, positions: impl IntoIterator<Item = (OffloadKey, u32)>) {
        self.positions.end_tokens.extend(positions);
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
