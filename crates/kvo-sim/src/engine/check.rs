//! What holds after every operation.

use std::{collections::BTreeSet, sync::atomic::Ordering};

use kvo_core::{BlockId, ChunkCounts, LookupResult, OffloadManager};

use super::{Engine, life::PRIMARY};
use crate::{
    random::Random,
    tier::lock,
    violation::{Rule, check},
};

impl Engine {
    pub(super) fn check(&mut self, random: &mut Random) {
        self.check_counts();
        self.check_jobs();
        self.check_bytes();
        self.check_races();
        // Events are taken now and then, as routers do.
        if random.one_in(2) {
            self.take_events();
            self.check_events();
        }
        self.ranks.iter_mut().for_each(|rank| rank.worker.poll(&mut rank.reports));
        if self.ranks.iter().all(|rank| rank.worker.num_open() == 0 && rank.reports.is_empty()) {
            self.spoilt.clear();
        }
    }

    fn check_counts(&self) {
        let manager = &self.connector.manager().inner;
        let counts = manager.counts();
        let is_whole = counts.add_up() && counts.capacity == self.setup.num_slots;
        check(is_whole, Rule::Counts, || format!("{counts:?}"));
        manager.primary().assert_consistent();
        self.connector.manager().check_slots();
        for (_, tier) in &self.tiers {
            lock(tier).check_books();
        }
        let mut of_pool: std::collections::BTreeMap<u32, Vec<BlockId>> = self.free.clone();
        let of_requests = self.requests.values().flat_map(|request| request.all_blocks(&self.setup.groups));
        for (pool, block) in of_requests.chain(self.kept.values().flatten().copied()) {
            of_pool.entry(pool).or_default().push(block);
        }
        for (pool, blocks) in of_pool {
            let each: BTreeSet<BlockId> = blocks.iter().copied().collect();
            let is_whole = each.len() == blocks.len() && each.len() == self.setup.num_blocks as usize;
            check(is_whole, Rule::Counts, || format!("pool {pool} of the engine: {blocks:?}"));
        }
    }

    /// The manager has the jobs and slots that the tiers have, and has counted what makes no sense.
    fn check_jobs(&self) {
        let stats = self.connector.manager().inner.stats();
        for (stats, (name, tier)) in stats.tiers.iter().zip(&self.tiers) {
            let tier = lock(tier);
            let known = (stats.active_jobs, stats.held_slots, stats.invalid_reports, stats.invalid_releases);
            let open = (tier.open.len() as u64, tier.held.len() as u64);
            let said = (open.0, open.1, tier.invalid_reports, tier.invalid_releases);
            check(known == said, Rule::OneResult, || {
                format!(
                    "{name}: the manager has (jobs, held, invalid reports, releases) {known:?}, the tier {said:?}"
                )
            });
        }
    }

    fn check_bytes(&self) {
        let wrong = self.succeeded.iter().chain([&self.wrong]).map(|wrong| wrong.load(Ordering::Relaxed));
        let wrong: u64 = wrong.sum();
        check(wrong == 0, Rule::Bytes, || {
            format!("compute has read {wrong} tokens that are none of its own")
        });
    }

    pub(super) fn check_races(&self) {
        for rank in &self.ranks {
            let races = rank.worker.device().0.device().take_races();
            check(races.is_empty(), Rule::InUse, || format!("{:?}", races[0]));
        }
    }

    pub(super) fn take_events(&mut self) {
        if self.setup.events.is_some() {
            let mut events = Vec::new();
            self.connector.take_block_events(&mut events);
            if !events.is_empty() {
                self.note(|| format!("{events:?}"));
            }
            self.ledger.follow_blocks(&events);
            return;
        }
        let mut events = Vec::new();
        self.connector.take_events(&mut events);
        if !events.is_empty() {
            self.note(|| format!("{events:?}"));
        }
        self.ledger.follow(&events);
    }

    /// Who follows the events knows what is there.
    pub(super) fn check_events(&self) {
        let manager = self.connector.manager();
        let ChunkCounts { evictable, pinned, .. } = manager.counts();
        let (known, there) = (self.ledger.len(PRIMARY), (evictable + pinned) as usize);
        check(known == there, Rule::Events, || format!("{PRIMARY}: {known} chunks by events, {there} there"));
        for key in &self.ledger.seen {
            let (known, there) = (self.ledger.has(PRIMARY, key), manager.peek(key) == LookupResult::Hit);
            check(known == there, Rule::Events, || {
                format!("{PRIMARY}: {key:?} by events {known}, there {there}")
            });
        }
        if let Some(epoch) = &self.ledger.epoch {
            for (name, tier) in &self.tiers {
                let keys: BTreeSet<_> = lock(tier).keys_of(&self.ledger.seen).into_iter().collect();
                for key in &self.ledger.seen {
                    let (known, there) = (self.ledger.has(name, key), keys.contains(key));
                    let fits = known == there || there && !epoch.must_know(name, key);
                    check(fits, Rule::Events, || format!("{name}: {key:?} by events {known}, there {there}"));
                }
            }
            return;
        }
        for (name, tier) in &self.tiers {
            let (known, there) = (self.ledger.len(name), lock(tier).num_chunks());
            check(known == there, Rule::Events, || {
                format!("{name}: {known} chunks by events, {there} there")
            });
            let keys = lock(tier).keys_of(&self.ledger.seen);
            let by_events = self.ledger.seen.iter().filter(|key| self.ledger.has(name, key));
            check(by_events.eq(keys.iter()), Rule::Events, || {
                format!("{name}: other chunks by events than there")
            });
        }
    }
}
