//! What routers are told of blocks, with what they cannot know themselves.

use std::sync::Arc;

use hashbrown::{HashMap, HashSet};
use kvo_core::{BlockHash, EventKind, GroupIdx, Medium, OffloadEvent, OffloadKey};

/// What a [`BlockEvent`] has beside names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EventDetail {
    /// The chunk before it.
    Parents,
    /// That, and the ids of its tokens.
    Tokens,
}

/// Something that happened to a chunk in one tier. Events come once, in order, and each can be understood by itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockEvent {
    /// The tier's name.
    pub tier: Arc<str>,
    /// What the tier keeps its chunks on.
    pub medium: Medium,
    /// What happened.
    pub kind: EventKind,
    /// The chunk's group.
    pub group: GroupIdx,
    /// The chunk's name. [`ChunkNames`](crate::ChunkNames) makes it of the engine's hash of its last block.
    pub block: BlockHash,
    /// What is known of it. Nothing is, of a chunk that no request of this process has named; and when those that have named
    /// it are over, of one of which no event has said that a tier has it: a store may, since a process before this one.
    pub detail: Option<Arc<BlockDetail>>,
}

/// What is known of a chunk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockDetail {
    /// The engine's own hash of its last block. Chunks of several adapters or salts may have the same.
    pub hash: BlockHash,
    /// The adapter of the requests that share it.
    pub adapter: Option<[u8; 32]>,
    /// Whether only requests with its salt share it.
    pub is_salted: bool,
    /// The name of the chunk before it in its group; nothing for the first one.
    pub parent: Option<BlockHash>,
    /// Its tokens.
    pub num_tokens: u32,
    /// Their ids, if they are asked for and were given in time.
    pub tokens: Vec<u32>,
}

/// The chunks that requests name or tiers have, with what is known of each.
#[derive(Debug)]
pub(crate) struct Directory {
    /// The name of the primary tier.
    primary: Arc<str>,
    known: HashMap<OffloadKey, Known>,
    /// By number.
    tiers: Vec<(Arc<str>, Medium)>,
    events: Vec<BlockEvent>,
    /// Chunks that nobody needed when something happened to them.
    unneeded: Vec<OffloadKey>,
    /// Chunks that are leaving.
    leaving: Vec<OffloadKey>,
    /// As they come from the manager.
    raw: Vec<OffloadEvent>,
}

#[derive(Debug, Default)]
struct Known {
    /// None of a chunk that no request has named.
    detail: Option<Arc<BlockDetail>>,
    /// Requests that name it, until their last copy is over.
    requests: u32,
    /// It was on its way to the primary tier when the last of them forgot it: an event will tell what has become of it.
    is_awaited: bool,
    /// A bit for each tier that has it.
    tiers: u128,
    /// It was on its way to a lower tier when the primary was emptied: it may still arrive.
    is_leaving: bool,
    /// It is of weights that are no more: it was said to be gone, and nothing is said of it any more.
    is_retired: bool,
}

impl Known {
    fn is_needed(&self) -> bool {
        self.requests > 0 || self.tiers != 0 || self.is_awaited || self.is_leaving
    }
}

impl Directory {
    pub(crate) fn new(primary: &str) -> Self {
        Self {
            primary: primary.into(),
            known: HashMap::new(),
            tiers: Vec::new(),
            events: Vec::new(),
            unneeded: Vec::new(),
            leaving: Vec::new(),
            raw: Vec::new(),
        }
    }

    /// A request names a chunk.
    pub(crate) fn name(&mut self, key: OffloadKey, detail: impl FnOnce() -> BlockDetail) {
        let known = self.known.entry(key).or_default();
        let detail = Arc::clone(known.detail.get_or_insert_with(|| Arc::new(detail())));
        known.requests += 1;
        if std::mem::take(&mut known.is_retired) {
            // The weights are those of before again.
            let tiers = known.tiers;
            self.tell_each_tier(&key, tiers, EventKind::Stored, Some(&detail));
        }
    }

    /// A request names these chunks no more. Some may still be on their way.
    pub(crate) fn forget<'a>(
        &mut self,
        keys: impl IntoIterator<Item = &'a OffloadKey>,
        is_pending: impl Fn(&OffloadKey) -> bool,
    ) {
        for key in keys {
            if let Some(known) = self.known.get_mut(key) {
                known.requests = known.requests.saturating_sub(1);
                known.is_awaited |= is_pending(key);
                if !known.is_needed() {
                    self.known.remove(key);
                }
            }
        }
    }

    /// What a manager has recorded since: first of the primary, then of each tier below, so that a chunk may be said to have
    /// left the one before it is said to have come to the other.
    pub(crate) fn take_in(&mut self, fill: impl FnOnce(&mut Vec<OffloadEvent>)) {
        let mut raw = std::mem::take(&mut self.raw);
        fill(&mut raw);
        for OffloadEvent { tier, medium, kind, keys } in raw.drain(..) {
            let bit = self.bit(&tier, medium);
            for key in keys {
                self.happened(key, kind, &tier, medium, bit);
            }
        }
        self.raw = raw;
        self.drop_unneeded();
    }

    /// Forgets the chunks that nobody has needed, and that nobody needs again.
    fn drop_unneeded(&mut self) {
        for key in self.unneeded.drain(..) {
            if self.known.get(&key).is_some_and(|known| !known.is_needed()) {
                self.known.remove(&key);
            }
        }
    }

    /// Takes note of what has happened to a chunk, and says it, with what is known of it.
    fn happened(&mut self, key: OffloadKey, kind: EventKind, tier: &Arc<str>, medium: Medium, bit: u128) {
        if kind == EventKind::Stored {
            // Also of one that nobody has named: when the tier is emptied it is to be told of.
            self.known.entry(key).or_default();
        }
        let mut detail = None;
        if let Some(known) = self.known.get_mut(&key) {
            // What lower tiers do meanwhile says nothing of the primary.
            known.is_awaited &= *tier != self.primary;
            match kind {
                EventKind::Stored => known.tiers |= bit,
                _ => known.tiers &= !bit,
            }
            let is_retired = known.is_retired;
            detail.clone_from(&known.detail);
            if !known.is_needed() {
                self.unneeded.push(key);
            }
            if is_retired {
                return;
            }
        }
        let (group, block, tier) = (key.group(), key.hash(), Arc::clone(tier));
        self.events.push(BlockEvent { tier, medium, kind, group, block, detail });
    }

    /// These are on their way to lower tiers, and are to be known there, whatever becomes of the primary and of requests.
    pub(crate) fn are_leaving(&mut self, keys: impl IntoIterator<Item = OffloadKey>) {
        for key in keys {
            if let Some(known) = self.known.get_mut(&key)
                && !std::mem::replace(&mut known.is_leaving, true)
            {
                self.leaving.push(key);
            }
        }
    }

    /// Of the chunks that were leaving only those of `still` do so now; it is asked if there are any.
    pub(crate) fn have_left(&mut self, still: impl FnOnce() -> Vec<OffloadKey>) {
        if self.leaving.is_empty() {
            return;
        }
        let still: HashSet<OffloadKey> = still().into_iter().collect();
        let Self { leaving, known: all, .. } = self;
        for key in leaving.extract_if(.., |key| !still.contains(key)) {
            if let Some(known) = all.get_mut(&key) {
                known.is_leaving = false;
                if !known.is_needed() {
                    all.remove(&key);
                }
            }
        }
    }

    /// The primary tier was emptied without a word for each chunk: says it of each that it had. What was on its way to it
    /// does not arrive.
    pub(crate) fn emptied(&mut self, tier: &str, medium: Medium) {
        let tier: Arc<str> = tier.into();
        let bit = self.bit(&tier, medium);
        self.known.retain(|_, known| {
            known.is_awaited = false;
            known.is_needed()
        });
        let mut keys: Vec<OffloadKey> =
            self.known.iter().filter(|(_, known)| known.tiers & bit != 0).map(|(key, _)| *key).collect();
        keys.sort_unstable();
        for key in keys {
            self.happened(key, EventKind::Removed, &tier, medium, bit);
        }
        self.drop_unneeded();
    }

    /// The chunks that are known are of weights that are no more: says of each that the tiers that have it have it no
    /// longer, as nobody finds it there.
    pub(crate) fn retire(&mut self) {
        let mut gone = Vec::new();
        for (key, known) in self.known.iter_mut().filter(|(_, known)| !known.is_retired) {
            known.is_retired = true;
            gone.push((*key, known.tiers, known.detail.clone()));
        }
        gone.sort_unstable_by_key(|(key, ..)| *key);
        for (key, tiers, detail) in gone {
            self.tell_each_tier(&key, tiers, EventKind::Removed, detail.as_ref());
        }
    }

    /// Says the same of a chunk in several tiers.
    fn tell_each_tier(
        &mut self,
        key: &OffloadKey,
        tiers: u128,
        kind: EventKind,
        detail: Option<&Arc<BlockDetail>>,
    ) {
        for (nth, (tier, medium)) in self.tiers.iter().enumerate() {
            if tiers & 1 << nth != 0 {
                self.events.push(BlockEvent {
                    tier: Arc::clone(tier),
                    medium: *medium,
                    kind,
                    group: key.group(),
                    block: key.hash(),
                    detail: detail.cloned(),
                });
            }
        }
    }

    pub(crate) fn take(&mut self, events: &mut Vec<BlockEvent>) {
        events.append(&mut self.events);
    }

    pub(crate) fn len(&self) -> usize {
        self.known.len()
    }

    /// The bit of a tier. There are fewer tiers than bits.
    fn bit(&mut self, tier: &Arc<str>, medium: Medium) -> u128 {
        let number = self.tiers.iter().position(|(known, _)| known == tier).unwrap_or_else(|| {
            self.tiers.push((Arc::clone(tier), medium));
            self.tiers.len() - 1
        });
        1 << (number % 128)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(n: u64) -> OffloadKey {
        OffloadKey::new(BlockHash::from_u64(n), GroupIdx(0))
    }

    fn detail() -> BlockDetail {
        let hash = BlockHash::from_u64(9);
        let (adapter, is_salted) = (None, false);
        BlockDetail { hash, adapter, is_salted, parent: None, num_tokens: 4, tokens: vec![1, 2, 3, 4] }
    }

    fn event(tier: &str, kind: EventKind, keys: &[u64]) -> OffloadEvent {
        let keys = keys.iter().map(|n| key(*n)).collect();
        OffloadEvent { tier: tier.into(), medium: Medium::Memory, kind, keys }
    }

    #[track_caller]
    fn take(directory: &mut Directory) -> Vec<(String, EventKind, bool)> {
        let mut events = Vec::new();
        directory.take(&mut events);
        events.iter().map(|event| (event.tier.to_string(), event.kind, event.detail.is_some())).collect()
    }

    /// B58: what is known of a chunk was dropped at its first removal, and the next event had nothing to say.
    #[test]
    fn a_chunk_that_goes_and_comes_in_one_batch_is_known_throughout() {
        let mut directory = Directory::new("cpu");
        directory.name(key(1), detail);
        directory.take_in(|raw| raw.push(event("cpu", EventKind::Stored, &[1])));
        directory.forget([&key(1)], |_| false);
        directory.take_in(|raw| {
            raw.push(event("nvme", EventKind::Stored, &[1]));
            raw.push(event("cpu", EventKind::Removed, &[1]));
            raw.push(event("cpu", EventKind::Stored, &[1]));
        });
        let cpu = |kind| ("cpu".to_owned(), kind, true);
        let nvme = |kind| ("nvme".to_owned(), kind, true);
        let expected = [
            cpu(EventKind::Stored),
            nvme(EventKind::Stored),
            cpu(EventKind::Removed),
            cpu(EventKind::Stored),
        ];
        assert_eq!(take(&mut directory), expected);
        assert_eq!(take(&mut directory), []);
        directory.take_in(|raw| {
            raw.push(event("cpu", EventKind::Removed, &[1]));
            raw.push(event("nvme", EventKind::Removed, &[1, 2]));
        });
        let unknown = ("nvme".to_owned(), EventKind::Removed, false);
        assert_eq!(take(&mut directory), [cpu(EventKind::Removed), nvme(EventKind::Removed), unknown]);
        assert_eq!(directory.len(), 0, "no tier and no request has it");
    }

    /// B58: the same of a chunk that has gone down, as the primary's events are told first.
    #[test]
    fn a_chunk_that_leaves_a_tier_in_the_batch_in_which_it_comes_to_a_lower_one_is_known_there() {
        let mut directory = Directory::new("cpu");
        directory.name(key(1), detail);
        directory.take_in(|raw| raw.push(event("cpu", EventKind::Stored, &[1])));
        directory.forget([&key(1)], |_| false);
        directory.take_in(|raw| {
            raw.push(event("cpu", EventKind::Removed, &[1]));
            raw.push(event("nvme", EventKind::Stored, &[1]));
        });
        let known = |tier: &str, kind| (tier.to_owned(), kind, true);
        let expected = [
            known("cpu", EventKind::Stored),
            known("cpu", EventKind::Removed),
            known("nvme", EventKind::Stored),
        ];
        assert_eq!(take(&mut directory), expected);
        directory.take_in(|raw| raw.push(event("nvme", EventKind::Removed, &[1])));
        assert_eq!(directory.len(), 0);
    }

    /// B58: the same of a chunk that is on its way up when the lower tier lets it go.
    #[test]
    fn a_chunk_that_a_lower_tier_drops_on_its_way_up_is_known_when_it_is_here() {
        let mut directory = Directory::new("cpu");
        directory.name(key(1), detail);
        directory.take_in(|raw| raw.push(event("nvme", EventKind::Stored, &[1])));
        directory.forget([&key(1)], |_| true);
        take(&mut directory);
        directory.take_in(|raw| raw.push(event("nvme", EventKind::Removed, &[1])));
        directory.take_in(|raw| raw.push(event("cpu", EventKind::Stored, &[1])));
        let known = |tier: &str, kind| (tier.to_owned(), kind, true);
        let expected = [known("nvme", EventKind::Removed), known("cpu", EventKind::Stored)];
        assert_eq!(take(&mut directory), expected);
        directory.take_in(|raw| raw.push(event("cpu", EventKind::Removed, &[1])));
        assert_eq!(directory.len(), 0);
    }

    #[test]
    fn a_tier_that_is_emptied_says_so_of_a_chunk_that_nobody_has_named() {
        let mut directory = Directory::new("cpu");
        directory.take_in(|raw| raw.push(event("cpu", EventKind::Stored, &[1])));
        directory.emptied("cpu", Medium::Memory);
        let cpu = |kind| ("cpu".to_owned(), kind, false);
        assert_eq!(take(&mut directory), [cpu(EventKind::Stored), cpu(EventKind::Removed)]);
        assert_eq!(directory.len(), 0);
    }

    #[test]
    fn a_tier_that_is_emptied_says_so_of_each_chunk() {
        let mut directory = Directory::new("cpu");
        for n in [3, 1, 2] {
            directory.name(key(n), detail);
        }
        directory.take_in(|raw| {
            raw.push(event("cpu", EventKind::Stored, &[1, 2]));
            raw.push(event("nvme", EventKind::Stored, &[2]));
        });
        take(&mut directory);
        directory.emptied("cpu", Medium::Memory);
        assert_eq!(take(&mut directory), vec![("cpu".to_owned(), EventKind::Removed, true); 2]);
        directory.forget([&key(1), &key(2), &key(3)], |_| false);
        assert_eq!(directory.len(), 1, "the one that the other tier has");
    }

    #[test]
    fn a_chunk_of_former_weights_is_said_to_be_gone_once_and_then_nothing() {
        let mut directory = Directory::new("cpu");
        for n in [1, 2, 3] {
            directory.name(key(n), detail);
        }
        directory.take_in(|raw| {
            raw.push(event("cpu", EventKind::Stored, &[1]));
            raw.push(event("nvme", EventKind::Stored, &[1, 2]));
        });
        take(&mut directory);
        directory.retire();
        directory.retire();
        let gone = |tier: &str| (tier.to_owned(), EventKind::Removed, true);
        assert_eq!(take(&mut directory), [gone("cpu"), gone("nvme"), gone("nvme")]);
        // The weights of before are back for a while.
        directory.name(key(2), detail);
        assert_eq!(take(&mut directory), [("nvme".to_owned(), EventKind::Stored, true)]);
        directory.retire();
        assert_eq!(take(&mut directory), [gone("nvme")]);
        directory.forget([&key(1), &key(2), &key(2)], |_| false);
        directory.take_in(|raw| {
            raw.push(event("cpu", EventKind::Removed, &[1]));
            raw.push(event("nvme", EventKind::Removed, &[1, 2]));
        });
        assert_eq!(take(&mut directory), []);
        directory.forget([&key(3)], |_| false);
        assert_eq!(directory.len(), 0);
    }

    #[test]
    fn a_chunk_that_reaches_a_tier_after_the_primary_was_emptied_is_known_there() {
        let mut directory = Directory::new("cpu");
        directory.name(key(1), detail);
        directory.name(key(2), detail);
        directory.take_in(|raw| raw.push(event("cpu", EventKind::Stored, &[1, 2])));
        directory.are_leaving([key(1), key(2), key(1)]);
        directory.emptied("cpu", Medium::Memory);
        directory.forget([&key(1), &key(2)], |_| false);
        take(&mut directory);
        directory.have_left(|| vec![key(1), key(2)]);
        assert_eq!(directory.len(), 2);
        directory.take_in(|raw| raw.push(event("nvme", EventKind::Stored, &[1])));
        directory.have_left(Vec::new);
        assert_eq!(take(&mut directory), [("nvme".to_owned(), EventKind::Stored, true)]);
        assert_eq!(directory.len(), 1, "the one that has not arrived is forgotten");
        directory.have_left(|| unreachable!("none is leaving"));
    }

    #[test]
    fn of_a_chunk_of_former_weights_that_reaches_a_tier_nothing_is_said() {
        let mut directory = Directory::new("cpu");
        directory.name(key(1), detail);
        directory.take_in(|raw| raw.push(event("cpu", EventKind::Stored, &[1])));
        directory.are_leaving([key(1)]);
        directory.emptied("cpu", Medium::Memory);
        directory.retire();
        directory.forget([&key(1)], |_| false);
        take(&mut directory);
        directory.take_in(|raw| raw.push(event("nvme", EventKind::Stored, &[1])));
        directory.have_left(Vec::new);
        assert_eq!(take(&mut directory), []);
        directory.take_in(|raw| raw.push(event("nvme", EventKind::Removed, &[1])));
        assert_eq!(take(&mut directory), []);
        assert_eq!(directory.len(), 0);
    }
}
