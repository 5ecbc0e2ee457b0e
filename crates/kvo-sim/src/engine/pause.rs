//! Requests without caches: while all slots are wiped, and behind a shut-down.

use std::{sync::Arc, time::Duration};

use kvo_connector::{Connector, PrefixMatch, StepPlan};
use kvo_core::{RequestId, ShutDown, SlotId, WriteClaim};

use super::{Engine, trouble::ENDS};
use crate::{
    canary::Plant,
    random::Random,
    tier::lock,
    violation::{Rule, check, violated},
};

/// Who wipes all slots.
#[derive(Debug)]
pub(super) enum Wipe {
    /// He waits until nobody uses one.
    Waits,
    /// He is at it for so many steps more, in which each slot is his.
    Runs { _claims: Vec<WriteClaim>, steps: u64 },
}

impl Engine {
    /// All slots are to be wiped, and nobody is to use one meanwhile.
    pub(super) fn begin_wipe(&mut self, random: &mut Random) {
        if self.wipe.is_some() {
            return;
        }
        let holds_first = random.one_in(2);
        if holds_first {
            self.connector.hold();
        }
        let flush = self.reset(Connector::reset);
        check(flush.outdated.is_empty(), Rule::Bytes, || format!("no other weights, but {flush:?}"));
        if !holds_first {
            self.connector.hold();
        }
        self.wipe = Some(Wipe::Waits);
    }

    /// A step's worth of it.
    pub(super) fn go_on_with_wipe(&mut self, random: &mut Random) {
        match &mut self.wipe {
            Some(Wipe::Waits) if self.connector.is_drained() || self.plant == Some(Plant::WipedInUse) => {
                let regions = self.host.regions().iter();
                let slots = regions
                    .flat_map(|region| (0..self.setup.num_slots).map(move |slot| (region, SlotId(slot))));
                let claims =
                    slots.map(|(region, slot)| match WriteClaim::new(Arc::clone(region) as _, slot) {
                        Ok(claim) => claim,
                        Err(error) => violated(Rule::InUse, format!("nobody uses a slot, but {error}")),
                    });
                self.wipe = Some(Wipe::Runs { _claims: claims.collect(), steps: random.below(6) });
            }
            Some(Wipe::Runs { steps: 0, .. }) => {
                self.wipe = None;
                for region in self.host.regions() {
                    let left = region.wipe();
                    check(left.is_empty(), Rule::InUse, || {
                        format!("nobody uses a slot, but {left:?} are left")
                    });
                }
                self.connector.go_on();
                self.tally.wiped += 1;
            }
            Some(Wipe::Runs { steps, .. }) => *steps -= 1,
            _ => {}
        }
    }

    /// The engine shuts down, or tries again, and its requests go on for some operations more.
    pub(super) fn shut_down(&mut self, random: &mut Random) {
        let operations = random.below(24);
        self.shut_down_left.get_or_insert(operations);
        if self.plant == Some(Plant::ShutDownUntold) {
            self.reset(Connector::reset);
            return;
        }
        let mut left = ShutDown::default();
        self.reset(|connector| {
            let (flush, of_tiers) = connector.shut_down(Duration::ZERO);
            left = of_tiers;
            flush
        });
        let failed: Vec<&str> = left.tiers_failed.iter().map(|(name, _)| name.as_str()).collect();
        let (mut dead, mut jobs, mut slots) = (Vec::new(), 0, 0);
        for (name, tier) in &self.tiers {
            let tier = lock(tier);
            dead.extend(tier.is_dead.then_some(*name));
            (jobs, slots) = (jobs + tier.open.len(), slots + tier.held.len());
        }
        let is_so = failed == dead && (left.jobs_open, left.slots_held) == (jobs, slots);
        check(is_so, Rule::OneResult, || {
            format!("{left:?} is left, and {dead:?} are dead with {jobs} jobs and {slots} slots")
        });
    }

    /// An operation later.
    pub(super) fn go_on_behind_shut_down(&mut self, random: &mut Random) {
        match &mut self.shut_down_left {
            Some(0) => self.begin_anew(random.pick(&ENDS)),
            Some(left) => *left -= 1,
            None => {}
        }
    }

    fn is_held_off(&self) -> bool {
        self.wipe.is_some() || self.shut_down_left.is_some()
    }

    /// What a request may load.
    pub(super) fn match_prefix(&mut self, id: u64, computed: u32) -> PrefixMatch {
        let found = self.connector.match_prefix(RequestId(id), computed);
        let found = found.expect("it runs, and does not load");
        check(!self.is_held_off() || found == PrefixMatch::Loadable(0), Rule::Refusal, || {
            format!("request {id} is held off, and finds {found:?}")
        });
        found
    }

    pub(super) fn check_held_off(&self, plan: &StepPlan) {
        let is_empty = plan.loads.is_empty() && plan.stores.is_empty();
        check(!self.is_held_off() || is_empty, Rule::Refusal, || {
            format!("requests are held off, and there is {plan:?}")
        });
    }
}
