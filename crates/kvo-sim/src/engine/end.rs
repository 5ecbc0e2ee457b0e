//! The end of a run: nothing goes wrong any more, everybody is answered, and nothing is left.

use kvo_connector::{ConnectorStats, StepInput};
use kvo_core::{ChunkCounts, OffloadManager};
use kvo_nvme::testing::End;

use super::{Engine, life::PRIMARY};
use crate::{
    random::Random,
    rank::Rank,
    setup::{Rates, Trouble},
    tier::{Inner, lock},
    violation::{Rule, check},
};

/// Steps in which everybody is answered when nothing goes wrong.
const STEPS_MAX: u64 = 3000;

/// Rounds in which all that is under way has ended.
const ROUNDS_MAX: u64 = 200;

impl Engine {
    /// Nothing goes wrong any more: everybody is answered, and asks again for what was asked for last.
    pub(crate) fn end(&mut self, random: &mut Random) {
        self.recover();
        if self.shut_down_left.is_some() {
            self.shut_down(random);
            self.answer(random);
            self.rest(random);
            self.begin_anew(End::Closed);
            self.recover();
        }
        self.answer(random);
        self.rest(random);
        for prompt in std::mem::take(&mut self.prompts) {
            self.ask(prompt);
        }
        self.answer(random);
        self.rest(random);
        if self.disk.is_some() {
            self.begin_anew(End::Closed);
            self.recover();
            self.check(random);
            for prompt in std::mem::take(&mut self.prompts).into_iter().take(4) {
                self.ask(prompt);
            }
            self.answer(random);
            self.rest(random);
        }
        self.sum_up();
        if let Some(disk) = &self.disk {
            self.tally.disk.extend(disk.struck().map(|(kind, count)| (kind as usize, count)));
        }
    }

    fn recover(&mut self) {
        self.setup.rates = Rates::NONE;
        self.standstill = 0;
        self.dies_in_step = None;
        self.ranks.iter_mut().for_each(|rank| rank.is_silent = false);
        if let Some(disk) = &mut self.disk {
            disk.stop_faults();
        }
        for (_, tier) in &self.tiers {
            lock(tier).recover();
        }
    }

    fn answer(&mut self, random: &mut Random) {
        let mut steps = 0;
        while !self.requests.is_empty() || self.connector.has_pending_work() || self.wipe.is_some() {
            self.some_time(random);
            for (_, tier) in &self.tiers {
                lock(tier).finish();
            }
            self.step(random);
            if steps % 8 == 0 {
                self.check(random);
            }
            steps += 1;
            check(steps < STEPS_MAX, Rule::Progress, || {
                format!(
                    "nothing goes wrong, and {:?} are not answered: {:?}",
                    self.requests.keys(),
                    self.connector
                )
            });
        }
    }

    /// All that was under way has ended, and nothing is left.
    fn rest(&mut self, random: &mut Random) {
        for _ in 0..ROUNDS_MAX {
            self.ranks.iter_mut().for_each(Rank::finish);
            for (_, tier) in &self.tiers {
                lock(tier).finish();
            }
            self.collect(random);
            self.connector.build_step(&StepInput::default()).expect("it does nothing");
            let tiers = self.connector.manager().inner.stats().tiers;
            // Nobody waits for those that are overdue, or for slots.
            let are_open = tiers.iter().any(|tier| tier.active_jobs + tier.held_slots > 0);
            if self.connector.stats().open_copies == 0 && !self.connector.has_pending_work() && !are_open {
                break;
            }
        }
        self.check(random);
        let ConnectorStats { open_requests, open_copies, blocks_in_use, .. } = self.connector.stats();
        let manager = self.connector.manager();
        let ChunkCounts { pending, pinned, .. } = manager.counts();
        let stats = manager.inner.stats();
        let jobs: u64 = stats.tiers.iter().map(|tier| tier.active_jobs + tier.held_slots).sum();
        let left = [
            ("requests of the connector", open_requests as u64),
            ("copies", open_copies as u64),
            ("blocks in use", blocks_in_use as u64),
            ("pending slots", u64::from(pending)),
            ("pins", u64::from(pinned)),
            ("requests of the manager", stats.open_requests as u64),
            ("jobs and slots of tiers", jobs),
            ("jobs of the primary", stats.primary.open_jobs as u64),
            ("blocks that are kept", self.kept.values().map(Vec::len).sum::<usize>() as u64),
        ];
        for (what, count) in left {
            check(count == 0, Rule::Quiescence, || format!("{count} {what} are left"));
        }
        self.take_events();
        self.check_events();
        let known = self.connector.stats().chunks_known;
        let there = if self.ledger.epoch.is_some() {
            // Of other weights there may be some of which no event tells.
            let below: usize = self.tiers.iter().map(|(_, tier)| lock(tier).num_chunks()).sum();
            self.ledger.len(PRIMARY) + below
        } else {
            self.ledger.num_chunks()
        };
        check(known <= there, Rule::Quiescence, || {
            format!("something is kept of {known} chunks, and the tiers have {there} at most")
        });
        for (_, tier) in &self.tiers {
            if let Inner::Nvme { store: Some(store), underneath: Some(underneath) } = &lock(tier).inner {
                underneath.check_settled(store);
            }
        }
        // So that nothing else is done to what has come to rest.
        self.setup.switch_off(Trouble::SlotSpoilt);
    }
}
