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
        for BlockEvent { tier, kind, group, block, .. } in events {
            self.take_in(tier, *kind, OffloadKey::new(*block, *group));
        }
    }

    fn take_in(&mut self, tier: &str, kind: EventKind, key: OffloadKey) {
        let there = self.tiers.entry(tier.to_owned()).or_default();
        self.seen.insert(key);
        let fits = match kind {
            EventKind::Stored => there.insert(key),
            EventKind::Removed => there.remove(&key),
            _ => true,
        };
        check(fits, Rule::Events, || format!("{tier}: {kind:?} twice: {key:?}"));
    }

    /// A tier begins with these chunks, of which no event tells.
    pub(crate) fn begin(&mut self, tier: &str, keys: impl IntoIterator<Item = OffloadKey>) {
        let keys: BTreeSet<OffloadKey> = keys.into_iter().collect();
        self.seen.extend(&keys);
        self.tiers.insert(tier.to_owned(), keys);
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
