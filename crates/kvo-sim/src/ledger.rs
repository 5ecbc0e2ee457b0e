//! Who follows the events, and what he would say is there.

use std::collections::{BTreeMap, BTreeSet};

use kvo_connector::BlockEvent;
use kvo_core::{EventKind, OffloadEvent, OffloadKey};

use crate::violation::{Rule, check};

#[derive(Debug, Default)]
pub(crate) struct Ledger {
    tiers: BTreeMap<String, BTreeSet<OffloadKey>>,
    /// Every chunk that an event has named in this process.
    pub(crate) seen: BTreeSet<OffloadKey>,
    /// Chunks that tiers had when the process began, and have still.
    begun: BTreeSet<(String, OffloadKey)>,
    /// Other weights compute than when the process began, and block events tell of chunks of theirs alone.
    pub(crate) epoch: Option<OfEpoch>,
}

/// What may be told, and what is.
#[derive(Debug, Default)]
pub(crate) struct OfEpoch {
    /// Chunks that requests have named since these weights compute; not known while the weights change.
    named: Option<BTreeSet<OffloadKey>>,
    /// Chunks that tiers had when the process began, and that nobody was told of.
    untold: BTreeSet<(String, OffloadKey)>,
}

impl OfEpoch {
    /// Whether a chunk that a tier has was to be told of.
    pub(crate) fn must_know(&self, tier: &str, key: &OffloadKey) -> bool {
        self.may_tell(key) && !self.untold.contains(&(tier.to_owned(), *key))
    }

    fn may_tell(&self, key: &OffloadKey) -> bool {
        self.named.as_ref().is_none_or(|named| named.contains(key))
    }
}

impl Ledger {
    pub(crate) fn follow(&mut self, events: &[OffloadEvent]) {
        for OffloadEvent { tier, kind, keys, .. } in events {
            check(!keys.is_empty(), Rule::Events, || format!("{tier}: {kind:?} of nothing"));
            for key in keys {
                self.take_in(tier, *kind, *key);
            }
        }
    }

    pub(crate) fn follow_blocks(&mut self, events: &[BlockEvent]) {
        for event in events {
            let BlockEvent { tier, kind, group, block, detail, .. } = event;
            let key = OffloadKey::new(*block, *group);
            if *kind == EventKind::Stored {
                check(detail.is_some(), Rule::Events, || format!("nothing is known in {event:?}"));
                let is_named = self.epoch.as_ref().is_none_or(|epoch| epoch.may_tell(&key));
                check(is_named, Rule::Events, || format!("of other weights: {event:?}"));
            }
            if let Some(epoch) = &mut self.epoch
                && epoch.untold.remove(&(tier.to_string(), key))
            {
                continue;
            }
            self.take_in(tier, *kind, key);
        }
    }

    fn take_in(&mut self, tier: &str, kind: EventKind, key: OffloadKey) {
        let there = self.tiers.entry(tier.to_owned()).or_default();
        self.seen.insert(key);
        let fits = match kind {
            EventKind::Stored => there.insert(key),
            EventKind::Removed => {
                self.begun.remove(&(tier.to_owned(), key));
                there.remove(&key)
            }
            _ => true,
        };
        check(fits, Rule::Events, || format!("{tier}: {kind:?} twice: {key:?}"));
    }

    /// A tier begins with these chunks, of which no event tells.
    pub(crate) fn begin(&mut self, tier: &str, keys: impl IntoIterator<Item = OffloadKey>) {
        let keys: BTreeSet<OffloadKey> = keys.into_iter().collect();
        self.seen.extend(&keys);
        self.begun.retain(|(of, _)| of != tier);
        self.begun.extend(keys.iter().map(|key| (tier.to_owned(), *key)));
        self.tiers.insert(tier.to_owned(), keys);
    }

    /// From now on chunks of other weights are told of, and of the former ones that they are gone.
    pub(crate) fn weights_change(&mut self) {
        let begun = std::mem::take(&mut self.begun);
        for (tier, key) in &begun {
            self.tiers.get_mut(tier).expect("it began with it").remove(key);
        }
        let epoch = self.epoch.get_or_insert_default();
        epoch.untold.extend(begun);
        epoch.named = None;
    }

    /// All that was to be told of that was told; requests name these chunks.
    pub(crate) fn weights_have_changed(&mut self, named: BTreeSet<OffloadKey>) {
        for (tier, keys) in &self.tiers {
            let old = keys.iter().find(|key| !named.contains(key));
            check(old.is_none(), Rule::Events, || format!("{tier}: of other weights: {old:?}"));
        }
        self.epoch.get_or_insert_default().named = Some(named);
    }

    /// A request names chunks.
    pub(crate) fn name(&mut self, keys: impl IntoIterator<Item = OffloadKey>) {
        if let Some(OfEpoch { named: Some(named), .. }) = &mut self.epoch {
            named.extend(keys);
        }
    }

    pub(crate) fn has(&self, tier: &str, key: &OffloadKey) -> bool {
        self.tiers.get(tier).is_some_and(|there| there.contains(key))
    }

    /// How many chunks are anywhere.
    pub(crate) fn num_chunks(&self) -> usize {
        self.tiers.values().flatten().collect::<BTreeSet<_>>().len()
    }

    pub(crate) fn len(&self, tier: &str) -> usize {
        self.tiers.get(tier).map_or(0, BTreeSet::len)
    }
}
