//! What a step loads, stores, and waits for.

use std::time::Duration;

use kvo_core::{
    BlockId, ChunkCounts, GroupIdx, LookupResult, OffloadKey, OffloadManager, Refusal, RequestError,
    RequestId, StoreJob, StoreOutcome, TransferClass,
};

use super::{Connector, Pause};
use crate::{
    ConnectorError, CopyId, StepPlan,
    copies::{Copies, OpenCopy},
    options::{ConnectorOptions, GroupKind},
    plan::CopyPlan,
    request::{Data, Request},
};

/// What a step does with a request.
#[derive(Clone, Copy, Debug)]
pub struct Scheduled<'a> {
    /// The request.
    pub request: RequestId,
    /// Of the blocks that the connector knows of, so many are still the request's, by group: fewer than all if the engine has
    /// taken some back, as those that a draft was to fill. Empty for all of them.
    ///
    /// Those in front of the window or the state that the request needs are not asked for any more. Only if it computes
    /// behind a load, and that fails, it may need them again: an engine that has given some back by then says so here.
    pub kept_blocks: &'a [usize],
    /// Blocks behind those, by group in the order of their indices: new ones, and for a request
    /// that starts also those that were found on the GPU. Nothing stands for a block that the engine does not have.
    pub new_blocks: &'a [&'a [Option<BlockId>]],
    /// Tokens whose KV was in blocks before this step, or is brought by a load that its compute is ordered behind. What
    /// this step computes is written behind them.
    pub computed: u32,
    /// Tokens, from the first on, whose KV is final when this step's compute is over: without those that a draft model has
    /// proposed and that may yet be computed again.
    pub settled: u32,
}

/// What a step does.
#[derive(Clone, Copy, Debug, Default)]
pub struct StepInput<'a> {
    /// Requests whose blocks were taken, to begin anew some time.
    pub preempted: &'a [RequestId],
    /// Requests that compute.
    pub scheduled: &'a [Scheduled<'a>],
}

/// Room for what a step has to sort.
#[derive(Debug, Default)]
pub(crate) struct Scratch {
    offered: Vec<Offered>,
    keys: Vec<OffloadKey>,
}

/// A chunk that is offered.
#[derive(Clone, Copy, Debug)]
struct Offered {
    end: u32,
    group: usize,
    chunk: usize,
    key: OffloadKey,
}

impl<M: OffloadManager> Connector<M> {
    /// Ends a step: takes note of what it does, offers the chunks that it completes, and says what the workers do.
    ///
    /// A request that was announced and is not in `scheduled` goes on waiting.
    ///
    /// # Errors
    /// Names the first request that does not fit; then nothing has changed, and the step has not ended:
    /// [`ConnectorError::Request`], [`ConnectorError::ScheduledTwice`], [`ConnectorError::WrongNumberOfTables`],
    /// [`ConnectorError::TooManyKept`], [`ConnectorError::TokensTakenBack`], [`ConnectorError::TooManyTokens`], [`ConnectorError::Spoilt`].
    pub fn build_step(&mut self, input: &StepInput<'_>) -> Result<StepPlan, ConnectorError> {
        self.check(input)?;
        self.num_steps += 1;
        for id in input.preempted {
            self.preempt(*id);
        }
        let mut plan = StepPlan::default();
        for scheduled in input.scheduled {
            self.schedule(scheduled, &mut plan.wait_for);
        }
        let now = self.clock.now();
        if !self.is_flushing && self.pause == Pause::None {
            for scheduled in input.scheduled {
                self.offer(scheduled.request, now, &mut plan.stores);
            }
        }
        plan.loads = std::mem::take(&mut self.loads);
        for load in &plan.loads {
            self.copies.planned(load.copy, now);
        }
        self.stats.waits += plan.wait_for.len() as u64;
        for id in self.matched.drain(..) {
            if let Some(request) = self.requests.get_mut(&id) {
                request.matched = None;
            }
        }
        self.manager.on_schedule_end();
        Ok(plan)
    }

    fn check(&mut self, input: &StepInput<'_>) -> Result<(), ConnectorError> {
        let unknown = |id: &RequestId| RequestError::Unknown { req: *id };
        for id in input.preempted {
            self.requests.get(id).ok_or(unknown(id))?;
        }
        self.num_checks += 1;
        for Scheduled { request: id, kept_blocks, new_blocks, computed, settled } in input.scheduled {
            let request = self.requests.get_mut(id).ok_or(unknown(id))?;
            if std::mem::replace(&mut request.last_check, self.num_checks) == self.num_checks {
                return Err(ConnectorError::ScheduledTwice { req: *id });
            }
            let is_preempted = input.preempted.contains(id);
            let (req, settled) = (*id, *settled);
            let groups = self.options.groups.len();
            if let Some(given) =
                [kept_blocks.len(), new_blocks.len()].into_iter().find(|given| ![0, groups].contains(given))
            {
                return Err(ConnectorError::WrongNumberOfTables { req, given, groups });
            }
            for ((kept, state), group) in kept_blocks.iter().zip(&request.groups).zip(0..) {
                let known = if is_preempted { 0 } else { state.table.len() };
                let (kept, group) = (*kept, GroupIdx(group));
                if kept > known {
                    return Err(ConnectorError::TooManyKept { req, group, kept, known });
                }
            }
            if !is_preempted {
                let before = request.settled;
                if settled < before {
                    return Err(ConnectorError::TokensTakenBack { req, settled, before });
                }
                request.check_good(*computed)?;
            }
            let num_tokens = request.num_tokens;
            if settled.max(*computed) > num_tokens {
                let computed = settled.max(*computed);
                return Err(ConnectorError::TooManyTokens { req, computed, num_tokens });
            }
        }
        Ok(())
    }

    /// A request's blocks are somebody else's from now on.
    fn preempt(&mut self, id: RequestId) {
        self.forget_loads(id);
        let request = self.requests.get_mut(&id).expect("every request was looked for");
        request.give_up_blocks();
        let arrival = request.arrival;
        self.void_copies(arrival);
    }

    fn schedule(&mut self, scheduled: &Scheduled<'_>, wait_for: &mut Vec<CopyId>) {
        let Self { options, requests, copies, .. } = self;
        let request = requests.get_mut(&scheduled.request).expect("every request was looked for");
        for (state, kept) in request.groups.iter_mut().zip(scheduled.kept_blocks) {
            state.keep(*kept);
        }
        for (state, new) in request.groups.iter_mut().zip(scheduled.new_blocks) {
            state.table.extend_from_slice(new);
        }
        let is_loading = !request.loading.is_empty();
        for (group, state) in options.groups.iter().zip(&mut request.groups) {
            // Whatever compute may write. Of the blocks before it only reads.
            let first_written = (scheduled.computed / group.block_tokens) as usize;
            for block in state.table.iter().skip(first_written).flatten() {
                copies.users(group.pool, *block, &request.loading, wait_for);
            }
            // Should its load fail, those in front of it are written too.
            if !is_loading {
                state.leave_behind(scheduled.computed, group);
            }
        }
        if is_loading {
            request.load_from = options.go_back(scheduled.computed, request.load_from);
        }
        request.settled = scheduled.settled;
        request.good = None;
        request.asks_since = None;
        if request.data == Data::None {
            request.data = Data::Current;
        }
    }

    /// Offers the chunks of a request that are complete and were not offered yet.
    fn offer(&mut self, id: RequestId, now: Duration, stores: &mut Vec<CopyPlan>) {
        let Self { options, requests, scratch, manager, copies, stats, .. } = self;
        let request = requests.get_mut(&id).expect("every request was looked for");
        let is_outdated = request.data == Data::Outdated;
        let stores_no_more = is_outdated || request.failed_stores > options.failed_stores_max;
        if stores_no_more || !request.loading.is_empty() {
            return;
        }
        // So that a refusal costs next to nothing, however many are refused in however many steps.
        let ChunkCounts { free, evictable, .. } = manager.counts();
        if free == 0 && evictable == 0 && !request.offers_all {
            return;
        }
        // One chunk is enough to know that it is too early: many may wait for the same ones.
        if let Some(key) = request.stores_behind.take()
            && !copies.is_lost(&key)
            && manager.peek(&key) == LookupResult::HitPending
        {
            request.stores_behind = Some(key);
            return;
        }
        let Scratch { offered, keys } = scratch;
        let mut num_max = options.offer_chunks_max;
        while next_offer(request, options, copies, num_max, offered) {
            keys.clear();
            keys.extend(offered.iter().map(|chunk| chunk.key));
            match manager.prepare_store(&mut request.context, keys) {
                Ok(StoreOutcome::Prepared(job)) => {
                    let are_all = pass(request, offered, &job.keys, manager);
                    stores.push(store(request, options, copies, offered, job, now));
                    if !are_all {
                        return;
                    }
                }
                Ok(StoreOutcome::NothingToStore) => {
                    if !pass(request, offered, &[], manager) {
                        return;
                    }
                }
                Ok(StoreOutcome::Refused(Refusal { free, evictable, .. })) => {
                    stats.offers_refused += 1;
                    // The head of it may fit.
                    let room = free as usize + evictable as usize;
                    if num_max <= room || room == 0 {
                        return;
                    }
                    num_max = room;
                }
                // The request runs, as this connector alone ends it.
                Err(error) => {
                    tracing::error!(request = id.0, %error, "a running request cannot store");
                    return;
                }
            }
        }
    }

    /// Drops the loads of a request that no worker was told of.
    pub(super) fn forget_loads(&mut self, id: RequestId) {
        for at in (0..self.loads.len()).rev() {
            if self.loads[at].request == id {
                let plan = self.loads.remove(at);
                self.end(plan.copy);
            }
        }
    }
}

/// The next chunks that a request offers, in the order of their ends. Says whether there are any.
fn next_offer(
    request: &mut Request,
    options: &ConnectorOptions,
    copies: &Copies,
    num_max: usize,
    offered: &mut Vec<Offered>,
) -> bool {
    offered.clear();
    let storable = request.storable_tokens();
    for (nth, (group, state)) in options.groups.iter().zip(&mut request.groups).enumerate() {
        let complete = ((storable / group.chunk_tokens()) as usize).min(state.keys.len());
        let mut chunk = state.next_store;
        while chunk < complete && offered.len() < num_max.saturating_mul(nth + 1) {
            // One whose slot is held by a failed copy cannot be stored yet.
            let is_lost = copies.is_lost(&state.keys[chunk]);
            if !is_lost && state.blocks_of(chunk, group).is_some() {
                let end = u32::try_from(chunk + 1).unwrap_or(u32::MAX).saturating_mul(group.chunk_tokens());
                offered.push(Offered { end, group: nth, chunk, key: state.keys[chunk] });
            } else if group.kind == GroupKind::Full {
                // A tail without its head is of no use.
                break;
            } else if chunk == state.next_store {
                // Out of the window, or likely to be, before it could be stored.
                state.next_store += 1;
            }
            chunk += 1;
        }
    }
    if options.groups.len() > 1 {
        offered.sort_unstable_by_key(|chunk| (chunk.end, chunk.group));
        offered.truncate(num_max);
    }
    !offered.is_empty()
}

/// Chunks that were offered are not offered again: up to one that is pending for somebody else, who may fail and leave a
/// tail without its head. Says whether they are all of them.
fn pass(
    request: &mut Request,
    offered: &[Offered],
    taken: &[OffloadKey],
    manager: &impl OffloadManager,
) -> bool {
    let mut taken = taken.iter().peekable();
    let mut are_all = true;
    for chunk in offered {
        let is_taken = taken.next_if(|key| **key == chunk.key).is_some();
        if is_taken || manager.peek(&chunk.key) != LookupResult::HitPending {
            // Not past one that was not passed.
            if are_all {
                let next = &mut request.groups[chunk.group].next_store;
                *next = (*next).max(chunk.chunk + 1);
            }
        } else {
            are_all = false;
            request.stores_behind.get_or_insert(chunk.key);
        }
    }
    are_all
}

/// The plan for the chunks that the tier takes.
fn store(
    request: &mut Request,
    options: &ConnectorOptions,
    copies: &mut Copies,
    offered: &[Offered],
    job: StoreJob,
    now: Duration,
) -> CopyPlan {
    let mut plan = CopyPlan::new(copies.next_id(), request.context.id(), TransferClass::Store);
    let mut first_chunks = vec![None; options.groups.len()];
    let mut rest = offered.iter();
    for (key, slot) in job.keys.iter().zip(&job.slots) {
        let taken = rest.find(|chunk| chunk.key == *key).expect("keys come in the order of the offer");
        let state = &request.groups[taken.group];
        let blocks =
            state.blocks_of(taken.chunk, &options.groups[taken.group]).expect("it was offered for that");
        plan.push(group_idx(taken.group), *slot, 0, blocks.iter().flatten().copied());
        first_chunks[taken.group].get_or_insert(taken.chunk);
    }
    let pool_of = |group: GroupIdx| options.groups[group.0 as usize].pool;
    let mut copy = OpenCopy::new(&plan, request.arrival, job.token, options.num_workers, pool_of);
    copy.first_chunks = first_chunks;
    copy.keys = job.keys;
    request.num_open += 1;
    copies.begin(copy);
    copies.planned(plan.copy, now);
    plan
}

pub(super) fn group_idx(group: usize) -> GroupIdx {
    GroupIdx(u32::try_from(group).expect("groups are few"))
}
