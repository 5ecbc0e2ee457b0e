//! A step of the engine, with the connector's plan around it.

use std::{
    collections::BTreeMap,
    sync::{Arc, atomic::AtomicU64},
    time::Duration,
};

use kvo_connector::{
    CopyFailure, CopyId, CopyOutcome, CopyResult, Finish, PrefixMatch, Scheduled, StepInput, StepPlan,
    WorkerReport,
};
use kvo_core::{ComputePoint, RequestId, SlotAccessError, TransferFailure};

use super::Engine;
use crate::{
    caches::LAYERS,
    canary::Plant,
    random::{Random, mix},
    rank::Rank,
    setup::Trouble,
    tier::lock,
    violation::{Rule, check},
};

fn copy_of(report: &WorkerReport) -> CopyId {
    match report {
        WorkerReport::Ended { copy, .. } | WorkerReport::Released { copy } => *copy,
    }
}

impl Engine {
    pub(super) fn step(&mut self, random: &mut Random) {
        self.tally.steps += 1;
        self.collect(random);
        self.go_on_with_wipe(random);
        self.start_some(random);
        self.ask_further(random);
        self.compute_some(random);
        self.finish_some(random);
        if self.standstill > 0 {
            self.standstill -= 1;
        } else {
            self.pass(Duration::from_millis(1));
        }
    }

    /// Takes what has become of copies.
    pub(super) fn collect(&mut self, random: &mut Random) {
        for rank in &mut self.ranks {
            rank.worker.poll(&mut rank.reports);
        }
        let mut late = Vec::new();
        self.connector.take_late(&mut late);
        for outcome in late {
            self.copy_ended(outcome);
        }
        for worker in 0..self.ranks.len() {
            self.collect_of(worker, random);
        }
        let mut settled = Vec::new();
        self.connector.take_settled(&mut settled);
        for id in settled {
            let blocks = self.kept.remove(&id.0).unwrap_or_default();
            self.give_back(blocks);
            self.settled.push_back(id.0);
        }
    }

    /// Tells what a worker has reported.
    fn collect_of(&mut self, worker: usize, random: &mut Random) {
        let number = u32::try_from(worker).expect("workers are few");
        if self.ranks[worker].is_silent {
            return;
        }
        let mut kept = Vec::new();
        for report in std::mem::take(&mut self.ranks[worker].reports) {
            // Some take their time, and one copy's come in order.
            let is_slow = self.setup.rates.strikes(Trouble::ReportSlow, random);
            if is_slow || kept.iter().any(|kept| copy_of(kept) == copy_of(&report)) {
                self.count(Trouble::ReportSlow);
                kept.push(report);
                continue;
            }
            if self.plant == Some(Plant::WorkerReportLost) && random.one_in(8) {
                continue;
            }
            self.note(|| format!("worker {worker}: {report:?}"));
            match report {
                WorkerReport::Ended { copy, result, failure } => {
                    self.check_failure(copy, failure.as_ref());
                    self.report(copy, number, result);
                    if self.plant == Some(Plant::WorkerReportForAnother) && self.setup.num_workers > 1 {
                        self.report(copy, (number + 1) % self.setup.num_workers, result);
                    }
                }
                WorkerReport::Released { copy } => {
                    let released = self.connector.copy_released(copy, number);
                    check(released.is_ok() || self.plant.is_some(), Rule::OneResult, || {
                        format!("worker {worker} has released {copy:?}: {released:?}")
                    });
                }
            }
        }
        self.ranks[worker].reports = kept;
    }

    fn report(&mut self, copy: CopyId, worker: u32, result: CopyResult) {
        match self.connector.copy_reported(copy, worker, result) {
            Ok(outcome) => {
                self.last_ended = Some((copy, worker));
                self.copy_ended(outcome);
                self.forget_behind(copy, outcome);
            }
            Err(error) => check(self.plant.is_some(), Rule::OneResult, || error.to_string()),
        }
    }

    /// Nobody but those who are meant to has a slot that a copy needs.
    fn check_failure(&self, copy: CopyId, failure: Option<&CopyFailure>) {
        if let Some(CopyFailure::Transfer(TransferFailure::Slot(SlotAccessError::Busy { slot }))) = failure {
            check(self.spoilt.contains(slot), Rule::InUse, || {
                format!("{copy:?} needs slot {slot}, which is in use")
            });
        }
    }

    /// Compute behind the layers of a load counts if that went well.
    fn forget_behind(&mut self, copy: CopyId, outcome: CopyOutcome) {
        if outcome == CopyOutcome::Open {
            return;
        }
        let wrong = self.behind.remove(&copy);
        if matches!(outcome, CopyOutcome::Loaded { .. }) {
            self.succeeded.extend(wrong);
        }
    }

    fn copy_ended(&mut self, outcome: CopyOutcome) {
        let (id, computed) = match outcome {
            CopyOutcome::Loaded { request, computed } => {
                let before = self.requests[&request.0].computed;
                self.tally.loaded_tokens += u64::from(computed.saturating_sub(before));
                (request.0, computed.max(before))
            }
            CopyOutcome::LoadFailed { request, computed }
                if self.plant == Some(Plant::FailedLoadTakenForDone) =>
            {
                // Said as it is, it would be refused.
                let request_of = self.requests.get_mut(&request.0).expect("it loads");
                request_of.said = Some(computed);
                (request.0, request_of.load_end)
            }
            CopyOutcome::LoadFailed { request, computed } => {
                self.tally.failed_partly += u64::from(computed > self.requests[&request.0].computed);
                (request.0, computed)
            }
            _ => return,
        };
        let request = self.requests.get_mut(&id).expect("its copies are void once it has ended");
        let was_loading = request.loading.take().is_some();
        check(was_loading, Rule::OneResult, || format!("{outcome:?} of a request that does not load"));
        request.computed = computed;
        request.behind_layers = None;
        // Of a window there may be only the blocks that were to be loaded: it begins anew.
        let has_failed = !matches!(outcome, CopyOutcome::Loaded { .. });
        check(computed == 0 || request.has_attended(&self.setup.groups, computed), Rule::Bytes, || {
            format!("request {id} is to go on behind {computed} tokens, and has not what they attend to")
        });
        if has_failed && !request.can_go_on(&self.setup.groups, computed) {
            self.to_preempt.push(id);
        }
    }

    fn finish_some(&mut self, random: &mut Random) {
        let is_done = |request: &super::Request| {
            request.is_running && request.loading.is_none() && request.tokens.len() >= request.prompt.wanted
        };
        let done: Vec<u64> = self.requests.iter().filter(|(_, of)| is_done(of)).map(|(id, _)| *id).collect();
        for id in done {
            let request = &self.requests[&id];
            // The last token that was put out need not be computed; a prompt is.
            if request.computed + 1 >= request.num_tokens() {
                self.tally.answered += 1;
                self.finish(id, random);
            }
        }
    }

    pub(super) fn finish(&mut self, id: u64, random: &mut Random) {
        let request = self.requests.remove(&id).expect("it runs");
        self.waiting.retain(|waiting| *waiting != id);
        let finish = self.connector.request_finished(RequestId(id)).expect("it runs");
        let blocks = request.all_blocks(&self.setup.groups);
        if finish == Finish::Settled {
            self.settled.push_back(id);
        }
        // Either is allowed: the plan says what to wait for.
        if finish == Finish::Settled || random.one_in(2) {
            self.give_back(blocks);
        } else {
            if self.plant == Some(Plant::BlocksFreedTwice) {
                self.give_back(blocks.clone());
            }
            self.kept.insert(id, blocks);
        }
    }

    /// Requests that wait are matched; what is found is loaded, and the rest computed.
    fn start_some(&mut self, random: &mut Random) {
        for _ in 0..self.waiting.len().min(2) {
            let Some(id) = self.waiting.pop_front() else { return };
            if !self.start(id, random) {
                self.waiting.push_back(id);
            }
        }
    }

    fn start(&mut self, id: u64, random: &mut Random) -> bool {
        let is_idle = self.is_idle();
        let found = match self.match_prefix(id, 0) {
            PrefixMatch::AskAgain => {
                self.must_not_wait_for_ever(id, is_idle);
                return false;
            }
            PrefixMatch::Loadable(tokens) => tokens,
        };
        let request = self.requests.get_mut(&id).expect("it runs");
        (request.asks_since, request.idle_asks) = (None, 0);
        // An engine may have other ideas.
        if found > 0 && !random.one_in(10) {
            if !self.load(id, found, random) {
                return false;
            }
            // Only the layers of one copy are waited for.
            let is_one_copy = self.setup.load_chunks_max == usize::MAX;
            let request = self.requests.get_mut(&id).expect("it runs");
            request.behind_layers = (is_one_copy && random.one_in(2)).then_some(found);
        }
        self.requests.get_mut(&id).expect("it runs").is_running = true;
        true
    }

    /// What was found up to token `end` is loaded, if there is room.
    fn load(&mut self, id: u64, end: u32, random: &mut Random) -> bool {
        let request = self.requests.get_mut(&id).expect("it runs");
        // The last token is computed anew, into a block that is loaded.
        let to = if end + 1 == request.num_tokens() { end + 1 } else { end };
        if !request.allocate(&self.setup.groups, &mut self.free, (end, to), random) {
            return false;
        }
        let tables: Vec<_> = request.tables.iter().map(Vec::as_slice).collect();
        let copy = self.connector.blocks_allocated(RequestId(id), &tables);
        let copy = copy.expect("it was matched just now, and has the blocks");
        request.told = request.tables.iter().map(Vec::len).collect();
        (request.loading, request.load_end) = (Some(copy), end);
        request.compute(request.computed..end, self.setup.epoch);
        true
    }

    /// A request that has begun to compute asks whether more has come meanwhile.
    fn ask_further(&mut self, random: &mut Random) {
        let may_ask = |request: &super::Request| {
            let has_more = request.computed + 1 < request.num_tokens() && request.said.is_none();
            request.is_running && request.loading.is_none() && has_more
        };
        let ids: Vec<u64> = self.requests.iter().filter(|(_, of)| may_ask(of)).map(|(id, _)| *id).collect();
        if ids.is_empty() || !random.one_in(6) {
            return;
        }
        let id = random.pick(&ids);
        let computed = self.requests[&id].computed;
        match self.match_prefix(id, computed) {
            PrefixMatch::Loadable(found) if found > 0 && !self.to_preempt.contains(&id) => {
                self.tally.further += u64::from(self.load(id, computed + found, random));
            }
            _ => {}
        }
    }

    /// Whether nothing is under way that a lookup could wait for.
    fn is_idle(&self) -> bool {
        let manager = &self.connector.manager().inner;
        !manager.has_pending_work()
            && self.connector.stats().open_copies == 0
            && !self.tiers.iter().any(|(_, tier)| lock(tier).is_looking())
    }

    fn must_not_wait_for_ever(&mut self, id: u64, is_idle: bool) {
        let (now, patience) = (self.now(), self.setup.lookup_patience);
        let may_ask_anew = self.setup.retry_failed_jobs;
        let request = self.requests.get_mut(&id).expect("it runs");
        let since = *request.asks_since.get_or_insert(now);
        check(now.saturating_sub(since) < patience, Rule::Progress, || {
            format!("request {id} is told to ask again since {since:?}, and it is {now:?}")
        });
        request.idle_asks += usize::from(is_idle);
        let max = 8 + 3 * request.tokens.len();
        check(may_ask_anew || request.idle_asks <= max, Rule::Progress, || {
            format!("request {id} is told to ask again, and nothing is under way")
        });
    }

    /// One step's compute.
    fn compute_some(&mut self, random: &mut Random) {
        let (mut preempted, mut pieces) = (Vec::new(), Vec::new());
        for id in std::mem::take(&mut self.to_preempt) {
            if !preempted.contains(&RequestId(id)) {
                self.preempt(id, &mut preempted);
            }
        }
        let ids: Vec<u64> = self.requests.iter().filter(|(_, of)| of.is_running).map(|(id, _)| *id).collect();
        for id in ids {
            let request = self.requests.get_mut(&id).expect("it runs");
            match request.behind_layers {
                _ if !request.is_running => continue,
                Some(end) if request.computed < end => request.computed = end,
                _ if request.loading.is_some() || random.one_in(4) => continue,
                _ => {}
            }
            let left = request.num_tokens() - request.computed;
            if left == 0 {
                continue;
            }
            let count = 1 + random.small(left.min(16));
            request.leave_behind(&self.setup.groups, &mut self.free);
            if self.setup.drafts && random.one_in(3) {
                request.take_back(&self.setup.groups, &mut self.free);
            }
            if self.find_room(id, count, &mut preempted, random) {
                pieces.push((id, count));
            }
        }
        self.run_pieces(&preempted, &pieces, random);
    }

    /// Gives a request blocks for its next tokens, if need be those of requests that came later; or takes its own, which
    /// may not be enough.
    fn find_room(
        &mut self,
        id: u64,
        count: u32,
        preempted: &mut Vec<RequestId>,
        random: &mut Random,
    ) -> bool {
        loop {
            let request = self.requests.get_mut(&id).expect("it runs");
            let range = (request.computed, request.computed + count);
            if request.allocate(&self.setup.groups, &mut self.free, range, random) {
                return true;
            }
            let last = self.requests.iter().rev().find(|(_, request)| request.has_blocks());
            let last = last.map_or(id, |(last, _)| *last).max(id);
            self.preempt(last, preempted);
            if last == id {
                return false;
            }
        }
    }

    fn preempt(&mut self, id: u64, preempted: &mut Vec<RequestId>) {
        if self.take_blocks(id) {
            preempted.push(RequestId(id));
            self.waiting.push_back(id);
        }
    }

    /// Takes the blocks of a request, if it still runs.
    pub(super) fn take_blocks(&mut self, id: u64) -> bool {
        let Some(request) = self.requests.get_mut(&id) else { return false };
        self.tally.preempted += 1;
        let blocks = request.all_blocks(&self.setup.groups);
        request.preempt();
        self.waiting.retain(|waiting| *waiting != id);
        self.give_back(blocks);
        true
    }

    fn run_pieces(&mut self, preempted: &[RequestId], pieces: &[(u64, u32)], random: &mut Random) {
        let mut drafts = BTreeMap::new();
        if self.setup.drafts {
            for (id, count) in pieces {
                // The last ones are only a draft: somebody else's tokens, to be computed once more.
                drafts.insert(*id, random.small(*count));
            }
        }
        let draft = |id: &u64| drafts.get(id).copied().unwrap_or(0);
        let new: Vec<Vec<_>> = pieces.iter().map(|(id, _)| self.requests[id].new_blocks()).collect();
        let scheduled: Vec<_> = pieces
            .iter()
            .zip(&new)
            .map(|((id, count), new_blocks)| Scheduled {
                request: RequestId(*id),
                kept_blocks: &self.requests[id].told,
                new_blocks,
                computed: self.requests[id].said.unwrap_or(self.requests[id].computed),
                settled: self.requests[id].computed + count - draft(id),
            })
            .collect();
        let input = StepInput { preempted, scheduled: &scheduled };
        let plan = self.connector.build_step(&input).expect("all of them run");
        drop(scheduled);
        self.check_held_off(&plan);
        self.note(|| format!("{pieces:?}, preempted {preempted:?}: {plan:?}"));
        if let Some(worker) = self.dies_in_step.take() {
            self.ranks[worker].fail();
        }
        self.wait_and_load(&plan);
        self.spoil_some(&plan, random);
        let points = self.points();
        for (id, count) in pieces {
            let request = self.requests.get_mut(id).expect("it runs");
            request.told = request.tables.iter().map(Vec::len).collect();
            request.said = None;
            request.compute(request.computed..request.computed + count, self.setup.epoch);
            let accesses = request.accesses(&self.setup.groups, *count, draft(id));
            request.computed += count - draft(id);
            let Some(copy) = request.loading else {
                for rank in &self.ranks {
                    rank.compute(accesses.clone(), 0..LAYERS, &self.wrong);
                }
                continue;
            };
            let wrong = Arc::<AtomicU64>::default();
            for rank in &mut self.ranks {
                for layer in 0..LAYERS {
                    if !rank.wait_for_layer(copy, layer) {
                        break;
                    }
                    rank.compute(accesses.clone(), layer..layer + 1, &wrong);
                }
            }
            self.tally.by_layer += 1;
            self.behind.insert(copy, wrong);
        }
        let points = points.unwrap_or_else(|| self.ranks.iter().map(Rank::point).collect());
        for (rank, point) in self.ranks.iter_mut().zip(points) {
            rank.worker.start_stores(&plan, point);
        }
        self.put_out(pieces);
        for worker in 0..self.ranks.len() {
            if self.ranks[worker].is_dead() {
                self.replace(worker);
            }
        }
    }

    /// Compute comes behind the copies that the plan names, and loads begin.
    fn wait_and_load(&mut self, plan: &StepPlan) {
        let ignores_waits = self.plant == Some(Plant::WaitsIgnored);
        for rank in &mut self.ranks {
            let mut wait_for = if ignores_waits { Vec::new() } else { plan.wait_for.clone() };
            while !wait_for.is_empty() && !rank.is_dead() {
                wait_for = rank.worker.order_behind(&wait_for, rank.stream).expect("the device lives");
                if !wait_for.is_empty() {
                    rank.step();
                }
            }
            rank.worker.start_loads(plan, rank.point());
        }
    }

    /// A defect: the points in front of this step's compute.
    fn points(&self) -> Option<Vec<ComputePoint>> {
        let point = |rank: &Rank| {
            let device = rank.worker.device().0.device();
            let event = device.create_event();
            device.compute().record(event).ok().map(|()| ComputePoint::Event(event))
        };
        if self.plant == Some(Plant::StoreWithoutFence) {
            self.ranks.iter().map(point).collect()
        } else {
            None
        }
    }

    /// Whoever has computed all that he has puts out another token.
    fn put_out(&mut self, pieces: &[(u64, u32)]) {
        for (id, _) in pieces {
            let request = self.requests.get_mut(id).expect("it runs");
            let num_tokens = request.tokens.len();
            if request.computed as usize == num_tokens && num_tokens < request.prompt.wanted {
                let token = u32::try_from(mix(*id << 20 | num_tokens as u64) % 5000).expect("it is small");
                request.push(token);
                self.tell_hashes(*id);
            }
        }
    }
}
