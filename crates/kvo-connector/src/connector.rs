//! The scheduler's side.

use std::fmt;

use hashbrown::{HashMap, HashSet};
use kvo_core::{
    BlockHash, ChunkCounts, Clock, Direction, LookupResult, OffloadEvent, OffloadKey, OffloadManager,
    OffloadPolicy, RequestContext, RequestError, RequestId, TransferClass, TransferResult,
};

use crate::{
    BlockEvent, ConnectorError, ConnectorOptions, CopyId, Economy, EventDetail, OptionsError, RequestParams,
    copies::{Copies, CopyResult, OpenCopy, Reported},
    events::Directory,
    plan::CopyPlan,
    request::Request,
    stats::ConnectorStats,
};

mod lookup;
mod reset;
mod step;

pub use self::{
    lookup::PrefixMatch,
    reset::{Flush, VoidLoad},
    step::{Scheduled, StepInput},
};

/// What an engine's scheduler calls, once a step and once an event. It moves no bytes, has no thread and never waits.
///
/// A step of the engine:
///
/// 1. What workers have reported goes to [`copy_reported`](Self::copy_reported) and [`copy_released`](Self::copy_released).
/// 2. For a request that is to start: [`match_prefix`](Self::match_prefix) says how many tokens can be loaded behind those
///    that the GPU has; the engine allocates blocks and says so by [`blocks_allocated`](Self::blocks_allocated). The request
///    computes nothing before its load is over, or orders its layers behind the load's.
/// 3. [`build_step`](Self::build_step) is told what is scheduled, and gives the step's [plan](crate::StepPlan) for the
///    workers. It ends the step.
///
/// [`request_finished`](Self::request_finished) comes when a request has its last token or is aborted, at any time, also
/// with copies under way.
///
/// Blocks of finished and preempted requests may be given to others at once: the plan of the step that writes them says
/// which copies to wait for. An engine that would rather keep those of a finished request until none of its copies uses them
/// asks [`take_settled`](Self::take_settled); it waits as the plans say all the same.
pub struct Connector<M> {
    options: ConnectorOptions,
    /// Tokens that are whole blocks in every group.
    step_tokens: u32,
    manager: M,
    clock: Box<dyn Clock>,
    requests: HashMap<RequestId, Request>,
    /// Finished requests with copies under way, by arrival.
    lingering: HashMap<u64, Lingering>,
    next_arrival: u64,
    num_steps: u64,
    /// Steps that were looked at, refused ones among them.
    num_checks: u64,
    copies: Copies,
    /// Loads that the next plan has.
    loads: Vec<CopyPlan>,
    /// Requests with a match of this step.
    matched: Vec<RequestId>,
    settled: Vec<RequestId>,
    /// Finished requests whose blocks are kept until `take_settled` names them.
    unsettled: HashSet<RequestId>,
    /// Copies of before a reset that are not over.
    num_stale: usize,
    is_flushing: bool,
    /// Nothing is kept or found: for a while, or for good.
    pause: Pause,
    stats: ConnectorStats,
    scratch: step::Scratch,
    /// Only if block events are wanted.
    directory: Option<Directory>,
}

/// Whether requests go on without what was stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pause {
    None,
    /// Until the engine says so.
    Held,
    /// For good.
    ShutDown,
}

#[derive(Debug)]
struct Lingering {
    request: RequestId,
    num_open: u32,
    /// The chunks that it names, if block events are wanted.
    names: Vec<OffloadKey>,
}

/// What has become of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CopyOutcome {
    /// Other workers are still to report it, or other copies of the same load; or it was [late](Connector::take_late), and
    /// what has become of it was said then.
    Open,
    /// The request has these blocks now.
    Loaded {
        /// Whose load it was.
        request: RequestId,
        /// Tokens, from the first on, that need not be computed.
        computed: u32,
    },
    /// The request is to compute what it wanted to load. It is not told of anything to load again.
    LoadFailed {
        /// Whose load it was.
        request: RequestId,
        /// Tokens, from the first on, that need not be computed: those that did not before the load, but for those of a
        /// block in which it began; or those in front of the first copy of it that has failed. None, if some group does not
        /// have the window or the state any more from which it could go on there, or may have given it back since, as the
        /// request computes [behind the load](crate::Scheduled::computed).
        computed: u32,
    },
    /// The chunks can be found from now on.
    Stored {
        /// Whose store it was.
        request: RequestId,
    },
    /// The chunks are not there. As long as the request has their blocks they are offered again.
    StoreFailed {
        /// Whose store it was.
        request: RequestId,
    },
    /// The copy was of a request that was preempted or finished since, or of before a reset: it changes nothing for any
    /// request. A store's chunks may be there all the same.
    Void,
}

/// What a finish has left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "blocks may still be in use"]
pub enum Finish {
    /// No copy of it is under way. One of a request that had some of its blocks before, and was preempted, may still use
    /// them, if no step has waited for that: plans go on to say so.
    Settled,
    /// So many copies of it are under way, those of before a preemption among them. [`Connector::take_settled`] names the
    /// request when none is, if the engine [keeps blocks](ConnectorOptions::keeps_blocks).
    CopiesOpen(u32),
}

impl<M: OffloadManager> Connector<M> {
    /// A connector on top of a manager.
    ///
    /// # Errors
    /// [`OptionsError`] names the option that cannot be.
    pub fn new(options: ConnectorOptions, manager: M, clock: Box<dyn Clock>) -> Result<Self, OptionsError> {
        options.check()?;
        Ok(Self {
            step_tokens: options.step().ok_or(OptionsError::BlocksDoNotMeet)?,
            directory: options.events.map(|_| Directory::new(manager.primary_name())),
            options,
            manager,
            clock,
            requests: HashMap::new(),
            lingering: HashMap::new(),
            next_arrival: 0,
            num_steps: 0,
            num_checks: 0,
            copies: Copies::default(),
            loads: Vec::new(),
            matched: Vec::new(),
            settled: Vec::new(),
            unsettled: HashSet::new(),
            num_stale: 0,
            is_flushing: false,
            pause: Pause::None,
            stats: ConnectorStats::default(),
            scratch: step::Scratch::default(),
        })
    }

    /// The manager, to look at.
    pub fn manager(&self) -> &M {
        &self.manager
    }

    /// What it was made with.
    pub fn options(&self) -> &ConnectorOptions {
        &self.options
    }

    /// Says anew what loads and compute cost, as it has been measured since; nothing, for matches of all that is found.
    ///
    /// # Errors
    /// [`OptionsError::NoRate`]; then nothing has changed.
    pub fn set_economy(&mut self, economy: Option<Economy>) -> Result<(), OptionsError> {
        if let Some(field) = economy.and_then(|economy| economy.zero_field()) {
            return Err(OptionsError::NoRate { field });
        }
        self.options.economy = economy;
        Ok(())
    }

    /// Announces a request of `prompt_tokens` tokens.
    ///
    /// # Errors
    /// [`ConnectorError::Request`] if a request of that number runs, or its chunks are on their way to a tier;
    /// [`ConnectorError::Unsettled`] if the blocks of one that has finished are kept; [`ConnectorError::NoLoadClass`].
    pub fn new_request(
        &mut self,
        id: RequestId,
        prompt_tokens: u32,
        params: RequestParams,
    ) -> Result<(), ConnectorError> {
        if self.requests.contains_key(&id) {
            return Err(RequestError::Known { req: id }.into());
        }
        if self.unsettled.contains(&id) {
            return Err(ConnectorError::Unsettled { req: id });
        }
        if params.load_class == TransferClass::Store {
            return Err(ConnectorError::NoLoadClass { req: id, class: params.load_class });
        }
        let mut context = RequestContext::new(id).with_tier_filter(params.tier_filter.clone());
        let policy = self.manager.new_request(&mut context)?;
        let mut request = Request::new(self.next_arrival, context, prompt_tokens, params, &self.options);
        request.offers_all = policy == OffloadPolicy::RequestLevel;
        self.next_arrival += 1;
        self.requests.insert(id, request);
        Ok(())
    }

    /// Gives the hashes that have become known, each of [`hash_tokens`](ConnectorOptions::hash_tokens) tokens behind those
    /// given before, and the tokens that the request has now: prompt and output.
    ///
    /// # Errors
    /// [`ConnectorError::Request`] if it is not running.
    pub fn add_hashes(
        &mut self,
        id: RequestId,
        num_tokens: u32,
        hashes: &[BlockHash],
    ) -> Result<(), ConnectorError> {
        let request = self.requests.get_mut(&id).ok_or(RequestError::Unknown { req: id })?;
        request.num_tokens = request.num_tokens.max(num_tokens);
        let Some(directory) = &mut self.directory else {
            request.add_hashes(hashes, &self.options);
            return Ok(());
        };
        let before: Vec<usize> = request.groups.iter().map(|group| group.keys.len()).collect();
        request.add_hashes(hashes, &self.options);
        for ((nth, group), before) in self.options.groups.iter().enumerate().zip(before) {
            for chunk in before..request.groups[nth].keys.len() {
                directory.name(request.groups[nth].keys[chunk], || request.detail(nth, chunk, group));
            }
        }
        Ok(())
    }

    /// Gives the ids of tokens behind those given before, for block events: before the hashes that cover them. Without
    /// [`EventDetail::Tokens`] they are not kept.
    ///
    /// # Errors
    /// [`ConnectorError::Request`] if it is not running.
    pub fn add_tokens(&mut self, id: RequestId, tokens: &[u32]) -> Result<(), ConnectorError> {
        let request = self.requests.get_mut(&id).ok_or(RequestError::Unknown { req: id })?;
        if self.options.events == Some(EventDetail::Tokens) {
            request.tokens.extend_from_slice(tokens);
        }
        Ok(())
    }

    /// A worker reports how a copy ended there.
    ///
    /// # Errors
    /// [`ConnectorError::NotOpen`] if there is no such copy, or the worker has reported it before; nothing has changed.
    pub fn copy_reported(
        &mut self,
        copy: CopyId,
        worker: u32,
        result: CopyResult,
    ) -> Result<CopyOutcome, ConnectorError> {
        if self.loads.iter().any(|plan| plan.copy == copy) {
            // No worker was told of it.
            return Err(ConnectorError::NotOpen { copy, worker });
        }
        let Reported { is_decided, is_over } = self.copies.report(copy, worker, result)?;
        let outcome = if is_decided { self.decide(copy) } else { CopyOutcome::Open };
        if is_over {
            self.end(copy);
        }
        Ok(outcome)
    }

    /// Moves what has become of copies that some worker has not reported within
    /// [`copy_patience`](ConnectorOptions::copy_patience) to the end of `outcomes`: they have failed. Their slots and blocks
    /// stay in use until every worker has reported them, or released what it holds. Once a step is often enough.
    pub fn take_late(&mut self, outcomes: &mut Vec<CopyOutcome>) {
        let Some(since) = self.clock.now().checked_sub(self.options.copy_patience) else { return };
        while let Some(copy) = self.copies.next_late(since) {
            tracing::warn!(copy = copy.0, "a worker has not reported a copy in time");
            self.stats.copies_late += 1;
            let outcome = self.decide(copy);
            outcomes.push(outcome);
        }
    }

    /// How a copy has ended is known: its request goes on.
    fn decide(&mut self, copy: CopyId) -> CopyOutcome {
        let open = self.copies.get_mut(copy).expect("it has just been looked at");
        let OpenCopy { direction, request: id, arrival, first_token, usable, has_failed, is_void, .. } =
            *open;
        let first_chunks = std::mem::take(&mut open.first_chunks);
        let is_over = open.is_over();
        self.stats.count(direction, has_failed);
        if direction == Direction::Store && has_failed && !is_over {
            self.copies.lose(copy);
        }
        let of = self.requests.get_mut(&id).filter(|request| request.arrival == arrival && !is_void);
        match (direction, of) {
            (_, None) => CopyOutcome::Void,
            (Direction::Load, Some(request)) => {
                request.loading.retain(|open| *open != copy);
                if has_failed {
                    let before = request.load_failed_at.unwrap_or(u32::MAX);
                    request.load_failed_at = Some(before.min(first_token));
                }
                if !request.loading.is_empty() {
                    return CopyOutcome::Open;
                }
                if let Some(failed_at) = request.load_failed_at.take() {
                    // What came with others in front of it is a head; of a window or a state it is of no use.
                    let computed = if self.options.is_cut_anywhere() { failed_at } else { request.load_from };
                    request.reads_no_more = true;
                    request.take_back(computed, &self.options);
                    CopyOutcome::LoadFailed { request: id, computed }
                } else {
                    // The step that has asked for it may have computed more by now.
                    request.settled = request.settled.max(usable);
                    CopyOutcome::Loaded { request: id, computed: usable }
                }
            }
            (Direction::Store, Some(request)) if has_failed => {
                // One bad fence fails all stores of a step.
                if request.failed_in_step != Some(self.num_steps) {
                    request.failed_in_step = Some(self.num_steps);
                    request.failed_stores += 1;
                }
                for (group, first) in request.groups.iter_mut().zip(first_chunks) {
                    group.next_store = first.map_or(group.next_store, |first| group.next_store.min(first));
                }
                CopyOutcome::StoreFailed { request: id }
            }
            (Direction::Store, Some(_)) => CopyOutcome::Stored { request: id },
        }
    }

    /// A worker's device is done with a copy that it had reported as [held](CopyResult::FailedAndHeld).
    ///
    /// # Errors
    /// [`ConnectorError::NotOpen`] if the worker holds no such copy.
    pub fn copy_released(&mut self, copy: CopyId, worker: u32) -> Result<(), ConnectorError> {
        if self.copies.release(copy, worker)? {
            self.end(copy);
        }
        Ok(())
    }

    /// Ends a copy that no device touches any more.
    fn end(&mut self, copy: CopyId) {
        let OpenCopy { direction, request, arrival, token, has_failed, .. } = self.copies.end(copy);
        let result = if has_failed { TransferResult::Failed } else { TransferResult::Done };
        let completed = match direction {
            Direction::Load => self.manager.complete_load(token),
            Direction::Store => self.manager.complete_store(token, result),
        };
        if completed.is_err() {
            // Of before a reset: the manager has forgotten it.
            self.num_stale = self.num_stale.saturating_sub(1);
            self.go_on_if_flushed();
        }
        if let Some(request) = self.requests.get_mut(&request).filter(|request| request.arrival == arrival) {
            request.num_open -= 1;
        } else if let Some(lingering) = self.lingering.get_mut(&arrival) {
            lingering.num_open -= 1;
            if lingering.num_open == 0 {
                if self.options.keeps_blocks {
                    self.settled.push(lingering.request);
                }
                if let Some(Lingering { names, .. }) = self.lingering.remove(&arrival) {
                    self.forget_names(&names);
                }
            }
        }
    }

    /// A request has its last token, or is aborted. Copies of it may be under way; its number may be used again as soon as
    /// [`new_request`](Self::new_request) takes it. A load of it that is in no plan yet is dropped.
    ///
    /// # Errors
    /// [`ConnectorError::Request`] if it is not running.
    pub fn request_finished(&mut self, id: RequestId) -> Result<Finish, ConnectorError> {
        let request = self.requests.get_mut(&id).ok_or(RequestError::Unknown { req: id })?;
        self.manager.on_request_finished(&mut request.context)?;
        self.forget_loads(id);
        let request = self.requests.remove(&id).expect("it was there just now");
        self.void_copies(request.arrival);
        let names = if self.directory.is_some() { request.names().copied().collect() } else { Vec::new() };
        if request.num_open == 0 {
            self.forget_names(&names);
            return Ok(Finish::Settled);
        }
        let num_open = request.num_open;
        if self.options.keeps_blocks {
            self.unsettled.insert(id);
        }
        self.lingering.insert(request.arrival, Lingering { request: id, num_open, names });
        Ok(Finish::CopiesOpen(num_open))
    }

    /// Moves the finished requests of which no copy is under way any more, of those that had copies open at their finish, to
    /// the end of `settled`, each once. For an engine that [keeps blocks](ConnectorOptions::keeps_blocks), which is to call
    /// it, or the list grows; without, it names nobody.
    pub fn take_settled(&mut self, settled: &mut Vec<RequestId>) {
        for id in self.settled.drain(..) {
            self.unsettled.remove(&id);
            settled.push(id);
        }
    }

    /// Whether a step has something to collect though no request runs: copies under way, or work of a tier. Copies that have
    /// failed and that a device may never let go are not counted, as nothing but room waits for them.
    pub fn has_pending_work(&self) -> bool {
        self.copies.has_open() || !self.loads.is_empty() || self.manager.has_pending_work()
    }

    /// Moves the tiers' events since the last call to the end of `events`. Not for a connector with block events.
    pub fn take_events(&mut self, events: &mut Vec<OffloadEvent>) {
        self.manager.take_events(events);
    }

    /// Moves what has happened to chunks since the last call to the end of `events`, with what is known of each, if
    /// [`events`](ConnectorOptions::events) asks for it. Chunks that a reset drops are among them.
    pub fn take_block_events(&mut self, events: &mut Vec<BlockEvent>) {
        self.collect_events();
        if let Some(directory) = &mut self.directory {
            directory.take(events);
        }
    }

    fn collect_events(&mut self) {
        if let Some(directory) = &mut self.directory {
            directory.take_in(|raw| self.manager.take_events(raw));
            directory.have_left(|| self.manager.cascading());
        }
    }

    /// A request names these no more. What it has asked lower tiers for may still come.
    fn forget_names(&mut self, names: &[OffloadKey]) {
        self.collect_events();
        if let Some(directory) = &mut self.directory {
            directory.forget(names, |key| self.manager.peek(key) == LookupResult::HitPending);
        }
    }

    /// Where the primary tier's slots are.
    pub fn counts(&self) -> ChunkCounts {
        self.manager.counts()
    }

    /// What happened so far, and what is under way.
    pub fn stats(&self) -> ConnectorStats {
        ConnectorStats {
            open_requests: self.requests.len(),
            open_copies: self.copies.len(),
            blocks_in_use: self.copies.blocks_in_use(),
            chunks_known: self.directory.as_ref().map_or(0, Directory::len),
            ..self.stats
        }
    }

    /// Nobody waits for the copies of a request any more.
    fn void_copies(&mut self, arrival: u64) {
        for copy in self.copies.all_mut().filter(|copy| copy.arrival == arrival) {
            copy.is_void = true;
        }
    }
}

impl<M> fmt::Debug for Connector<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connector")
            .field("num_requests", &self.requests.len())
            .field("open_copies", &self.copies.len())
            .field("is_flushing", &self.is_flushing)
            .finish_non_exhaustive()
    }
}
