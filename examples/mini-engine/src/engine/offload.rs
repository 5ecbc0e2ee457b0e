//! Where offloading goes in: what an engine tells, and asks, of whoever keeps KV data elsewhere.
//!
//! In one step the engine calls, in this order:
//!
//! 1. [`reported`](Offload::reported) with what the worker says of copies; the events say which loads are over and which
//!    kept blocks come back;
//! 2. for each request that it would begin (or begin again): [`match_prefix`](Offload::match_prefix), and if there is
//!    something to load, [`blocks_allocated`](Offload::blocks_allocated);
//! 3. [`build_step`](Offload::build_step), whose plan its worker runs: compute waits for the copies that the plan names,
//!    loads begin behind all compute so far, compute is launched (layer by layer behind a load that it does not wait for
//!    as a whole), and stores begin behind it;
//! 4. `reported` again, until the loads that compute ran behind are over;
//! 5. [`request_finished`](Offload::request_finished) for each request that has ended with the step.
//!
//! [`new_request`](Offload::new_request), `request_finished` for an abort, and [`reset`](Offload::reset) come between
//! steps. All of it is called from one thread, and none of it may wait.

use std::{ops::Range, sync::Arc};

use kvo_connector::{Finish, PrefixMatch, StepPlan, Worker, WorkerOptions, WorkerReport};
use kvo_core::{BlockHash, BlockId, DeviceSpan, HostMemory, RequestId, SlotAccessError, SlotId};
use kvo_cuda::HostDevice;

use crate::{EngineError, KvCaches};

/// The blocks of a request in one group, head to tail; `None` where the group's window has left a block behind.
pub type BlockTable = Vec<Option<BlockId>>;

/// A request as it is at the time of a call.
#[derive(Clone, Copy, Debug)]
pub struct RequestView<'a> {
    /// The request; a later one has a higher number.
    pub id: RequestId,
    /// Prompt and answer so far.
    pub tokens: &'a [u32],
    /// How many of them are the prompt.
    pub prompt_tokens: usize,
    /// The name of each full block of `tokens`. Groups share them.
    pub hashes: &'a [BlockHash],
    /// What the names were salted with.
    pub salt: u64,
    /// Tokens whose keys and values are in its blocks.
    pub computed: usize,
    /// By group. A table may go beyond what was computed.
    pub tables: &'a [BlockTable],
}

/// How a load begins for which there are blocks now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoadStart {
    /// What was matched is gone: the blocks are taken back, and the engine asks again in the next step.
    Gone,
    /// The request waits until [`OffloadEvents`] say that its load has ended.
    Wait,
    /// The request runs in this step, each layer behind what is loaded for it. The step's results count once the load has
    /// ended well, so a store of what the step computes for it would keep what may be wrong: it is for a later step.
    ByLayer,
}

/// What a step does, at the time at which it is known and nothing of it has begun.
#[derive(Clone, Copy, Debug)]
pub struct StepInput<'a> {
    /// What is computed.
    pub scheduled: &'a [ScheduledTokens<'a>],
    /// Requests whose blocks were taken away since the last step; they begin again, in a later one.
    pub preempted: &'a [RequestId],
}

/// What a step computes of one request.
#[derive(Clone, Debug)]
pub struct ScheduledTokens<'a> {
    /// The request, with tables for all of it.
    pub request: RequestView<'a>,
    /// Which of its tokens. Behind the step so many are computed as the end says.
    pub tokens: Range<usize>,
}

/// How much of a load has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoadEnd {
    /// All of it.
    Come,
    /// No token from this one on.
    Failed {
        /// Tokens, from the first of the request on, that need not be computed.
        computed: usize,
    },
}

/// What has become of copies.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OffloadEvents {
    /// Requests whose loads have ended.
    pub loads_ended: Vec<(RequestId, LoadEnd)>,
    /// Requests that are over, and whose [kept](Finish::CopiesOpen) blocks no copy uses any more.
    pub settled: Vec<RequestId>,
}

/// Whoever keeps KV data of an engine elsewhere.
pub trait Offload: Send {
    /// The slots that the engine's device copies from and to.
    fn host(&self) -> Arc<dyn HostMemory>;

    /// Makes the worker that will run the plans, on a device to which nothing is attached; `arenas` are those of `caches`.
    ///
    /// # Errors
    /// [`EngineError`]; then there is no engine.
    fn worker(
        &self,
        device: HostDevice,
        arenas: &[DeviceSpan],
        caches: &KvCaches,
    ) -> Result<Worker<HostDevice>, EngineError>;

    /// A request has come. Its answer is not known, so `hashes` grow later.
    ///
    /// # Errors
    /// [`EngineError`], as of all calls below: the two sides do not fit, and the engine cannot go on.
    fn new_request(&mut self, request: RequestView<'_>) -> Result<(), EngineError>;

    /// What could be loaded behind the first `request.computed` tokens, which the device has: whole blocks, but for the
    /// last token, since that is always computed. No blocks are there yet. What a call answers may be forgotten at the end
    /// of the step.
    fn match_prefix(&mut self, request: RequestView<'_>) -> Result<PrefixMatch, EngineError>;

    /// There are blocks in the tables for all that was matched.
    fn blocks_allocated(&mut self, request: RequestView<'_>) -> Result<LoadStart, EngineError>;

    /// What is to be copied in this step, and to be waited for.
    fn build_step(&mut self, step: &StepInput<'_>) -> Result<StepPlan, EngineError>;

    /// Takes what the worker says of copies; called at least once a step, also if that is nothing.
    fn reported(
        &mut self,
        reports: &mut Vec<WorkerReport>,
        events: &mut OffloadEvents,
    ) -> Result<(), EngineError>;

    /// A request has ended or was aborted. With [`Finish::Settled`] its blocks are given back, and a plan says what to wait
    /// for when they are given out again; else they stay until [`OffloadEvents::settled`] names it.
    fn request_finished(&mut self, id: RequestId) -> Result<Finish, EngineError>;

    /// Everything that is kept is forgotten. Open copies go on and are reported, but no load of them counts.
    fn reset(&mut self, events: &mut OffloadEvents);

    /// Whether something is to come without a request: copies, or what follows from them.
    fn has_pending_work(&self) -> bool;
}

/// Keeps nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoOffload;

impl Offload for NoOffload {
    fn host(&self) -> Arc<dyn HostMemory> {
        Arc::new(UnusedSlot)
    }

    fn worker(
        &self,
        device: HostDevice,
        arenas: &[DeviceSpan],
        caches: &KvCaches,
    ) -> Result<Worker<HostDevice>, EngineError> {
        let layout = caches.layout(1)?;
        let slot_bytes = layout.groups().iter().map(kvo_cuda::GroupLayout::chunk_bytes).max().unwrap_or(0);
        // A planner has a slot. As there are no plans, it is not used.
        Ok(Worker::new(device, arenas, layout, (1, slot_bytes), WorkerOptions::default())?)
    }

    fn new_request(&mut self, _: RequestView<'_>) -> Result<(), EngineError> {
        Ok(())
    }

    fn match_prefix(&mut self, _: RequestView<'_>) -> Result<PrefixMatch, EngineError> {
        Ok(PrefixMatch::Loadable(0))
    }

    fn blocks_allocated(&mut self, _: RequestView<'_>) -> Result<LoadStart, EngineError> {
        Ok(LoadStart::Gone)
    }

    fn build_step(&mut self, _: &StepInput<'_>) -> Result<StepPlan, EngineError> {
        Ok(StepPlan::default())
    }

    fn reported(&mut self, _: &mut Vec<WorkerReport>, _: &mut OffloadEvents) -> Result<(), EngineError> {
        Ok(())
    }

    fn request_finished(&mut self, _: RequestId) -> Result<Finish, EngineError> {
        Ok(Finish::Settled)
    }

    fn reset(&mut self, _: &mut OffloadEvents) {}

    fn has_pending_work(&self) -> bool {
        false
    }
}

/// A slot that is as long as any chunk, and that nobody can use.
#[derive(Clone, Copy, Debug)]
struct UnusedSlot;

impl HostMemory for UnusedSlot {
    fn num_slots(&self) -> u32 {
        1
    }

    fn slot_bytes(&self) -> usize {
        u32::MAX as usize
    }

    fn with_read(&self, slot: SlotId, _: &mut dyn FnMut(&[u8])) -> Result<(), SlotAccessError> {
        Err(SlotAccessError::Busy { slot })
    }

    fn with_write(&self, slot: SlotId, _: &mut dyn FnMut(&mut [u8])) -> Result<(), SlotAccessError> {
        Err(SlotAccessError::Busy { slot })
    }
}
