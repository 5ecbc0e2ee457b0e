//! Where offloading goes in: what an engine tells, and asks, of whoever keeps KV data elsewhere.
//!
//! In one step the engine calls, in this order:
//!
//! 1. [`job_done`](Offload::job_done) and [`job_released`](Offload::job_released) for copies that have ended; they
//!    say which loads are over and which parked blocks come back;
//! 2. for each request that it would begin (or begin again): [`match_prefix`](Offload::match_prefix), and if there is
//!    something to load, [`blocks_allocated`](Offload::blocks_allocated);
//! 3. [`build_step`](Offload::build_step), whose plan it carries out: it waits for the jobs that the plan names,
//!    submits the loads behind all compute so far, launches the step's compute (layer by layer behind the marks of
//!    loads that have some), and submits the stores behind it;
//! 4. [`request_finished`](Offload::request_finished) for each request that has ended with the step.
//!
//! [`new_request`](Offload::new_request), `request_finished` for an abort, and [`reset`](Offload::reset) come between
//! steps. All of it is called from one thread, and none of it may wait.

use std::{ops::Range, time::Duration};

use kvo_core::{
    BlockHash, BlockId, CopyOp, HostMemory, JobId, RequestId, SlotAccessError, SlotId, SubmitErrorReason,
    TransferClass, TransferFailure,
};
use kvo_cuda::LayerMarks;

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

/// What is kept of a request's prefix beyond that which the device has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PrefixMatch {
    /// So many tokens can be loaded behind those that the device has, whole blocks; 0 if there is nothing.
    Loadable(usize),
    /// It is not known yet, or on its way: the engine asks again in the next step.
    Again,
}

/// How a load begins for which there are blocks now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoadStart {
    /// What was matched is gone: the blocks are taken back, and the engine asks again in the next step.
    Gone,
    /// The request waits until [`OffloadEvents`] say that its load has ended.
    Wait,
    /// The request runs in this step, each layer behind its mark of the load. The step's results count once the load
    /// has ended well, so a store of what the step computes for it would keep what may be wrong: it is for a later
    /// step, or taken back should the load fail.
    ByLayer,
}

/// What a step does, at the time at which it is known and nothing of it has begun.
#[derive(Clone, Copy, Debug)]
pub struct StepInput<'a> {
    /// What is computed.
    pub scheduled: &'a [ScheduledTokens<'a>],
    /// By group: the blocks that were given out for this step. They are written as soon as the plan's jobs are over.
    pub new_blocks: &'a [Vec<BlockId>],
    /// Requests whose blocks were taken away in this step; they begin again.
    pub preempted: &'a [RequestId],
    /// Requests that have ended, or were aborted, since the last step.
    pub finished: &'a [RequestId],
}

/// What a step computes of one request.
#[derive(Clone, Debug)]
pub struct ScheduledTokens<'a> {
    /// The request, with tables for all of it.
    pub request: RequestView<'a>,
    /// Which of its tokens. Behind the step so many are computed as the end says.
    pub tokens: Range<usize>,
}

/// What is to be copied in a step.
#[derive(Clone, Debug, Default)]
pub struct StepPlan {
    /// Jobs that still use blocks which were given out for this step: the engine waits for them before anything of the
    /// step begins.
    pub wait_for: Vec<JobId>,
    /// Loads, which wait for all compute that was launched before this step.
    pub loads: Vec<CopyJob>,
    /// Stores, which wait for the compute of this step.
    pub stores: Vec<CopyJob>,
}

/// Copies that are one job.
#[derive(Clone, Debug)]
pub struct CopyJob {
    /// A number of the offload's, of no open job.
    pub job: JobId,
    /// Which way, and how urgent.
    pub class: TransferClass,
    /// The copies, at least one.
    pub ops: Vec<CopyOp>,
    /// Where the copies of each layer end, for a load [by layer](LoadStart::ByLayer); else empty.
    pub marks: LayerMarks,
    /// How long the job may take.
    pub deadline: Option<Duration>,
}

/// Why a job's copies are not to be trusted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CopyFailure {
    /// The device has begun, and failed.
    #[error(transparent)]
    Transfer(#[from] TransferFailure),
    /// The device did not take the copies.
    #[error(transparent)]
    Refused(#[from] SubmitErrorReason),
}

/// What a job's end means for requests.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OffloadEvents {
    /// Loads that have ended, each once: the request, and how many of its tokens, from its head on, have their keys
    /// and values now. Less than was to be loaded means that the rest has failed.
    pub loads_ended: Vec<(RequestId, usize)>,
    /// Requests that are over, and whose [parked](BlocksAfter::Parked) blocks nobody copies any more.
    pub released: Vec<RequestId>,
}

/// What happens to the blocks of a request that is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlocksAfter {
    /// They are given back. Whoever still copies from them names its job in [`StepPlan::wait_for`] when one of them
    /// is given out again.
    Free,
    /// They stay as they are until [`OffloadEvents::released`] names the request. Blocks that it had given back before,
    /// as its window left them or when it was preempted, are not among them.
    Parked,
}

/// Whoever keeps KV data of an engine elsewhere.
pub trait Offload: Send {
    /// Called once, before everything else, with the caches of the engine.
    ///
    /// # Errors
    /// [`EngineError`]; then there is no engine.
    fn attach(&mut self, caches: &KvCaches) -> Result<(), EngineError>;

    /// A request has come. Its answer is not known, so `hashes` grow later.
    fn new_request(&mut self, request: RequestView<'_>);

    /// What could be loaded behind the first `request.computed` tokens, which the device has: whole blocks, and of
    /// all tokens at most `limit`, since the last one is always computed. No blocks are there yet. What a call
    /// answers may be forgotten at the end of the step.
    fn match_prefix(&mut self, request: RequestView<'_>, limit: usize) -> PrefixMatch;

    /// There are blocks for what was matched: `load` are the tokens to be loaded. In each group the blocks from
    /// `load.start` on that are in the table take part.
    fn blocks_allocated(&mut self, request: RequestView<'_>, load: Range<usize>) -> LoadStart;

    /// What is to be copied in this step.
    fn build_step(&mut self, step: &StepInput<'_>) -> StepPlan;

    /// A job has ended; it is told once for each. `held` says that the device may still touch what a failed job was
    /// to copy, until [`job_released`](Self::job_released).
    fn job_done(
        &mut self,
        job: JobId,
        result: Result<u64, CopyFailure>,
        held: bool,
        events: &mut OffloadEvents,
    );

    /// The device is done with a job that was held.
    fn job_released(&mut self, job: JobId, events: &mut OffloadEvents);

    /// A request has ended or was aborted, with the tables it had.
    fn request_finished(&mut self, request: RequestView<'_>) -> BlocksAfter;

    /// Everything that is kept is forgotten. Open jobs go on and are reported.
    fn reset(&mut self);

    /// Whether something is to come without a request: copies, or what follows from them.
    fn has_pending_work(&self) -> bool;
}

/// Keeps nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoOffload;

impl Offload for NoOffload {
    fn attach(&mut self, _: &KvCaches) -> Result<(), EngineError> {
        Ok(())
    }

    fn new_request(&mut self, _: RequestView<'_>) {}

    fn match_prefix(&mut self, _: RequestView<'_>, _: usize) -> PrefixMatch {
        PrefixMatch::Loadable(0)
    }

    fn blocks_allocated(&mut self, _: RequestView<'_>, _: Range<usize>) -> LoadStart {
        LoadStart::Gone
    }

    fn build_step(&mut self, _: &StepInput<'_>) -> StepPlan {
        StepPlan::default()
    }

    fn job_done(&mut self, _: JobId, _: Result<u64, CopyFailure>, _: bool, _: &mut OffloadEvents) {}

    fn job_released(&mut self, _: JobId, _: &mut OffloadEvents) {}

    fn request_finished(&mut self, _: RequestView<'_>) -> BlocksAfter {
        BlocksAfter::Free
    }

    fn reset(&mut self) {}

    fn has_pending_work(&self) -> bool {
        false
    }
}

/// Host memory without slots, for an engine that keeps nothing there.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoSlots;

impl HostMemory for NoSlots {
    fn num_slots(&self) -> u32 {
        0
    }

    fn slot_bytes(&self) -> usize {
        0
    }

    fn with_read(&self, slot: SlotId, _: &mut dyn FnMut(&[u8])) -> Result<(), SlotAccessError> {
        Err(SlotAccessError::OutOfRange { slot, num_slots: 0 })
    }

    fn with_write(&self, slot: SlotId, _: &mut dyn FnMut(&mut [u8])) -> Result<(), SlotAccessError> {
        Err(SlotAccessError::OutOfRange { slot, num_slots: 0 })
    }
}
