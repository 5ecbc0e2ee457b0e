//! What goes wrong, as an operation of its own.

use std::time::Duration;

use kvo_connector::{Connector, CopyId, CopyResult, Flush, Scheduled, StepInput, StepPlan, VoidLoad};
use kvo_core::{HostMemory, RequestId, SlotId};
use kvo_nvme::testing::{End, Kind};

use super::{Engine, life::PRIMARY};
use crate::{
    canary::Plant,
    random::Random,
    rank::Rank,
    setup::Trouble,
    tier::lock,
    violation::{Rule, check},
    watch::Watch,
};

/// How a process can end.
pub(super) const ENDS: [End; 3] = [End::Closed, End::Killed, End::PowerLost];

impl Engine {
    pub(super) fn trouble(&mut self, trouble: Trouble, random: &mut Random) {
        self.count(trouble);
        match trouble {
            Trouble::Abort => {
                if let Some(id) = self.some_request(random) {
                    self.finish(id, random);
                }
            }
            Trouble::Preempt => {
                let id = self.some_request(random).filter(|id| self.requests[id].is_running);
                self.to_preempt.extend(id);
            }
            Trouble::Reset => {
                let flush = self.reset(Connector::reset);
                check(flush.outdated.is_empty(), Rule::Bytes, || format!("no other weights, but {flush:?}"));
            }
            Trouble::Weights => self.reset_to_others(random),
            Trouble::Wipe => self.begin_wipe(random),
            Trouble::ShutDown => self.shut_down(random),
            Trouble::Crash => {
                let end = random.pick(&ENDS);
                self.note(|| format!("{end:?}"));
                self.begin_anew(end);
                if random.one_in(2) {
                    // What the first process had only told the system, the second one answers for.
                    let end = random.pick(&[End::Closed, End::Killed, End::PowerLost, End::PowerLost]);
                    self.note(|| format!("and at once {end:?}"));
                    self.begin_anew(end);
                }
            }
            Trouble::DeviceDies => {
                let worker = random.index(self.ranks.len());
                if random.one_in(2) {
                    self.dies_in_step = Some(worker);
                } else {
                    self.ranks[worker].fail();
                    self.replace(worker);
                }
            }
            Trouble::SlotSpoilt => {
                let slot = SlotId(random.small(self.setup.num_slots));
                self.spoil(slot, random);
            }
            Trouble::WorkerSilent => {
                let worker = random.index(self.ranks.len());
                let is_silent = &mut self.ranks[worker].is_silent;
                *is_silent = !*is_silent;
            }
            Trouble::Jump => {
                let most = random.pick(&[20, 2_000, 120_000, 100_000_000]);
                self.pass(Duration::from_millis(random.below(most)));
            }
            Trouble::Standstill => self.standstill = 1 + random.below(30),
            Trouble::Misuse => self.misuse(random),
            Trouble::TierDead => {
                if let Some((name, tier)) = self.some_tier(random) {
                    let mut tier = lock(&tier);
                    tier.is_dead = !tier.is_dead;
                    drop(tier);
                    self.note(|| format!("{name} dies, or comes back"));
                }
            }
            Trouble::TierLost => {
                if let Some((_, tier)) = self.some_tier(random) {
                    lock(&tier).lose_worker();
                }
            }
            Trouble::Disk => self.decay(random),
            // These happen where a tier or a worker says something.
            _ => {}
        }
    }

    fn some_request(&self, random: &mut Random) -> Option<u64> {
        let ids: Vec<u64> = self.requests.keys().copied().collect();
        (!ids.is_empty()).then(|| random.pick(&ids))
    }

    fn some_tier(&self, random: &mut Random) -> Option<(&'static str, crate::tier::SharedTier)> {
        (!self.tiers.is_empty()).then(|| self.tiers[random.index(self.tiers.len())].clone())
    }

    /// Other weights compute from now on. Requests that have data of the former ones go on, or begin anew.
    fn reset_to_others(&mut self, random: &mut Random) {
        let untold = self.plant == Some(Plant::WeightsUntold);
        self.change_weights();
        let epoch = self.setup.epoch;
        let has_block_events = self.setup.events.is_some() && !untold;
        if has_block_events {
            self.take_events();
            self.ledger.weights_change();
        }
        let flush = self.reset(|connector| {
            if untold { connector.reset() } else { connector.reset_to(epoch).expect("it is another epoch") }
        });
        if has_block_events {
            let named = self.requests.values().flat_map(|request| self.names(request)).collect();
            self.ledger.weights_have_changed(named);
        }
        self.tally.outdated += flush.outdated.len() as u64;
        self.to_preempt.extend(flush.outdated.iter().map(|id| id.0).filter(|_| random.one_in(2)));
    }

    /// Those of one of three epochs, but not of this one.
    pub(super) fn change_weights(&mut self) {
        let epoch = (self.setup.epoch + 1 + self.random.below(2)) % 3;
        self.setup.epoch = epoch;
        self.note(|| format!("the weights are those of epoch {epoch}"));
    }

    pub(super) fn reset(&mut self, how: impl FnOnce(&mut Connector<Watch>) -> Flush) -> Flush {
        self.take_events();
        let flush = how(&mut self.connector);
        self.take_events();
        if self.setup.events.is_none() {
            // No event tells of what has gone.
            self.ledger.begin(PRIMARY, []);
        }
        // What they had asked for is gone, and so is how long they had.
        self.requests.values_mut().for_each(|request| request.asks_since = None);
        let mut void = Vec::new();
        for VoidLoad { request: id, computed } in &flush.loads_void {
            let request = self.requests.get_mut(&id.0).expect("only those that run have loads");
            check(request.loading.take().is_some(), Rule::OneResult, || format!("{id:?} was not loading"));
            (request.computed, request.behind_layers) = (*computed, None);
            check(*computed == 0 || request.has_attended(&self.setup.groups, *computed), Rule::Bytes, || {
                format!("{id:?} is to go on behind {computed} tokens, and has not what they attend to")
            });
            // Its blocks may still be written: it takes others, or waits for that.
            if !request.can_go_on(&self.setup.groups, *computed) || self.random.one_in(2) {
                self.take_blocks(id.0);
                self.waiting.push_back(id.0);
                void.push(*id);
            }
        }
        let input = StepInput { preempted: &void, scheduled: &[] };
        let plan = self.connector.build_step(&input).expect("they run");
        check(plan == StepPlan::default(), Rule::InUse, || format!("behind a reset: {plan:?}"));
        flush
    }

    /// The device of a worker is dead: another takes its place, and every request begins anew, as its blocks are gone.
    pub(super) fn replace(&mut self, worker: usize) {
        let rank = &mut self.ranks[worker];
        rank.finish();
        rank.worker.poll(&mut rank.reports);
        let (num_open, reports) = (rank.worker.num_open(), std::mem::take(&mut rank.reports));
        check(num_open == 0, Rule::OneResult, || {
            format!("{num_open} copies of a dead device are not reported")
        });
        self.check_races();
        let host = std::sync::Arc::clone(&self.ranks[worker].host);
        let now = self.now();
        let number = u32::try_from(worker).expect("workers are few");
        self.ranks[worker] = Rank::new(number, &self.setup, host, self.random.next(), now);
        self.ranks[worker].reports = reports;
        let with_blocks = |(id, request): (&u64, &super::Request)| {
            (request.is_running || request.loading.is_some() || request.has_blocks()).then_some(*id)
        };
        let ids: Vec<u64> = self.requests.iter().filter_map(with_blocks).collect();
        let preempted: Vec<RequestId> = ids.iter().map(|id| RequestId(*id)).collect();
        for id in ids {
            self.take_blocks(id);
            self.waiting.push_back(id);
        }
        let plan = self.connector.build_step(&StepInput { preempted: &preempted, scheduled: &[] });
        let plan = plan.expect("they run");
        check(plan == StepPlan::default(), Rule::InUse, || format!("of a step that does nothing: {plan:?}"));
    }

    /// Has hold of slots that the loads of a plan need.
    pub(super) fn spoil_some(&mut self, plan: &StepPlan, random: &mut Random) {
        if !self.setup.rates.strikes(Trouble::SlotSpoilt, random) {
            return;
        }
        let slots: Vec<SlotId> =
            plan.loads.iter().flat_map(|load| load.chunks().map(|chunk| chunk.slot)).collect();
        if !slots.is_empty() {
            self.spoil(random.pick(&slots), random);
        }
    }

    /// Has hold of a slot while the copies of a worker go on.
    fn spoil(&mut self, slot: SlotId, random: &mut Random) {
        self.spoilt.insert(slot);
        let worker = random.index(self.ranks.len());
        let Rank { worker, host, .. } = &mut self.ranks[worker];
        let device = worker.device_mut();
        // A tier may have it already.
        let _ = host.with_write(slot, &mut |_| {
            for _ in 0..10 + random.below(40) {
                device.0.step();
            }
        });
    }

    fn decay(&mut self, random: &mut Random) {
        let Some(nvme) = &self.setup.nvme else { return };
        if !nvme.faults.has(Kind::Decay) {
            return;
        }
        let of = random.pick(&[Kind::Decay, Kind::Decay, Kind::Decay, Kind::Record, Kind::CutOff]);
        if let Some(disk) = &mut self.disk {
            disk.decay(of, random.next(), random.next());
        }
    }

    /// Calls that fit nothing are refused, and change nothing.
    fn misuse(&mut self, random: &mut Random) {
        let before = (self.connector.stats(), self.connector.counts());
        let nobody = RequestId(u64::MAX);
        let mut refused = vec![
            self.connector.match_prefix(nobody, 0).is_err(),
            self.connector.add_hashes(nobody, 1, &[]).is_err(),
            self.connector.blocks_allocated(nobody, &[]).is_err(),
            self.connector.request_finished(nobody).is_err(),
            self.connector.copy_reported(CopyId(u64::MAX), 0, CopyResult::Done).is_err(),
            self.connector.copy_released(CopyId(u64::MAX), 0).is_err(),
            self.plant == Some(Plant::WeightsUntold) || self.connector.reset_to(self.setup.epoch).is_err(),
            self.connector.build_step(&StepInput { preempted: &[nobody], scheduled: &[] }).is_err(),
        ];
        if let Some((copy, worker)) = self.last_ended {
            refused.push(self.connector.copy_reported(copy, worker, CopyResult::Done).is_err());
        }
        if let Some(id) = self.some_request(random) {
            let request = RequestId(id);
            let params = self.requests[&id].prompt.params.clone();
            refused.push(self.connector.new_request(request, 1, params).is_err());
            refused.push(self.connector.match_prefix(request, u32::MAX).is_err());
            refused.push(self.connector.blocks_allocated(request, &[]).is_err());
            let scheduled = Scheduled {
                request,
                kept_blocks: &[],
                new_blocks: &[],
                computed: u32::MAX,
                settled: u32::MAX,
            };
            let step = StepInput { preempted: &[], scheduled: &[scheduled] };
            refused.push(self.connector.build_step(&step).is_err());
        }
        check(refused.iter().all(|refused| *refused), Rule::Refusal, || format!("{refused:?}"));
        let after = (self.connector.stats(), self.connector.counts());
        check(before == after, Rule::Refusal, || format!("{before:?} has become {after:?}"));
    }
}
