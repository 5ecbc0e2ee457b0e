//! What a consumer of events knows of the tiers.

use std::collections::{BTreeMap, BTreeSet};

use kvo_core::{EventKind, OffloadEvent, OffloadKey};

/// The chunks of each tier, as the events tell it.
#[derive(Debug, Default)]
pub struct Ledger {
    tiers: BTreeMap<String, BTreeSet<OffloadKey>>,
    pub stored: usize,
    pub removed: usize,
}

impl Ledger {
    /// Follows events. A chunk is stored only where it is not, and removed only where it is.
    #[track_caller]
    pub fn follow(&mut self, events: &[OffloadEvent]) {
        for event in events {
            assert!(!event.keys.is_empty(), "an event names at least one key: {event:?}");
            let keys = self.tiers.entry(event.tier.to_string()).or_default();
            for key in &event.keys {
                match event.kind {
                    EventKind::Stored => {
                        assert!(keys.insert(*key), "{} stored {key:?}, which it had", event.tier);
                        self.stored += 1;
                    }
                    EventKind::Removed => {
                        assert!(keys.remove(key), "{} removed {key:?}, which it had not", event.tier);
                        self.removed += 1;
                    }
                    _ => {}
                }
            }
        }
    }

    /// A reset has dropped all chunks of a tier, which no event tells.
    pub fn forget(&mut self, tier: &str) {
        self.tiers.remove(tier);
    }

    /// The chunks that a tier must have.
    pub fn chunks(&self, tier: &str) -> BTreeSet<OffloadKey> {
        self.tiers.get(tier).cloned().unwrap_or_default()
    }
}
