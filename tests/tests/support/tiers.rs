//! A tier written outside the crates: it wraps another one, writes down what it is told, holds back jobs and
//! reports, and spoils some of them.

use std::{
    collections::{HashMap, HashSet, VecDeque},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use kvo_core::{
    HostMemory, JobId, JobRejected, Locality, Medium, OffloadEvent, OffloadKey, OffloadPolicy, RejectReason,
    ReleasedSlot, RequestContext, RequestId, SecondaryTier, TierCompletion, TierDirection, TierJob,
    TierLookup, TierOutcome,
};
use kvo_nvme::NvmeStore;
use kvo_policies::Lru;
use kvo_tiering::{MemoryTier, MemoryTierWorker};

use super::content::Rng;

/// Longer than anything here takes. A test that waits so long has failed.
pub const LONG: Duration = Duration::from_secs(20);

/// A tier whose work a test can wait for.
pub trait Backing: SecondaryTier {
    /// Waits until every job is done; the reports come with the next poll.
    fn drain(&mut self);
}

impl Backing for NvmeStore {
    fn drain(&mut self) {
        NvmeStore::drain(self, LONG).expect("the store gets its work done");
    }
}

/// A memory tier that works when it is waited for.
pub struct SteppedMemory {
    tier: MemoryTier<Lru>,
    worker: MemoryTierWorker<dyn HostMemory>,
}

impl SteppedMemory {
    pub fn new(name: &str, capacity_chunks: u32, memory: Arc<dyn HostMemory>) -> Self {
        let (tier, worker) =
            MemoryTier::new(name, capacity_chunks, Lru::new(capacity_chunks), memory).unwrap();
        Self { tier, worker }
    }
}

impl Backing for SteppedMemory {
    fn drain(&mut self) {
        self.worker.run_queued();
    }
}

impl SecondaryTier for SteppedMemory {
    fn name(&self) -> &str {
        self.tier.name()
    }

    fn medium(&self) -> Medium {
        self.tier.medium()
    }

    fn on_new_request(&mut self, req: &RequestContext) -> OffloadPolicy {
        self.tier.on_new_request(req)
    }

    fn lookup(&mut self, req: RequestId, key: &OffloadKey) -> TierLookup {
        self.tier.lookup(req, key)
    }

    fn submit(&mut self, job: TierJob) -> Result<(), JobRejected> {
        self.tier.submit(job)
    }

    fn poll(&mut self, done: &mut Vec<TierCompletion>) {
        self.tier.poll(done);
    }

    fn take_released(&mut self, released: &mut Vec<ReleasedSlot>) {
        self.tier.take_released(released);
    }

    fn on_request_finished(&mut self, req: RequestId) {
        self.tier.on_request_finished(req);
    }

    fn take_events(&mut self, events: &mut Vec<OffloadEvent>) {
        self.tier.take_events(events);
    }
}

/// What a tier was told, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Call {
    Began(RequestId),
    Job { req: RequestId, direction: TierDirection, keys: Vec<OffloadKey> },
    Finished(RequestId),
}

/// What a [`Watched`] tier does with what it is told.
#[derive(Debug, Default)]
#[expect(clippy::struct_excessive_bools, reason = "each is a switch of its own")]
pub struct Script {
    /// Jobs are taken, but their work does not begin.
    pub hold_jobs: bool,
    /// Jobs are done, but not reported.
    pub hold_reports: bool,
    /// Jobs are handed back.
    pub reject: Option<RejectReason>,
    /// Chunks whose reads are reported as failed.
    pub fail_reads: HashSet<OffloadKey>,
    /// Reads are reported as failed as a whole.
    pub fail_whole_reads: bool,
    /// All chunks of a request are wanted.
    pub wants_all: bool,
    /// Work is done as soon as it has begun, so that nothing depends on how fast threads are.
    pub in_step: bool,
}

/// A tier and the script by which it is disturbed. A clone is another handle to the same tier: one goes to the
/// manager, one stays with the test.
pub struct Watched<T> {
    name: Arc<str>,
    state: Arc<Mutex<State<T>>>,
}

/// The inside of a [`Watched`] tier.
pub struct State<T> {
    pub backing: T,
    pub script: Script,
    pub calls: Vec<Call>,
    queued: VecDeque<TierJob>,
    open: HashMap<JobId, TierJob>,
    held: Vec<TierCompletion>,
    ready: Vec<TierCompletion>,
    released: Vec<ReleasedSlot>,
}

impl<T: Backing> Watched<T> {
    pub fn new(backing: T) -> Self {
        let name = backing.name().into();
        let state = State {
            backing,
            script: Script::default(),
            calls: Vec::new(),
            queued: VecDeque::new(),
            open: HashMap::new(),
            held: Vec::new(),
            ready: Vec::new(),
            released: Vec::new(),
        };
        Self { name, state: Arc::new(Mutex::new(state)) }
    }

    /// The tier, to look at and to disturb.
    pub fn look(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets everything go that was held back.
    pub fn open(&self) {
        let mut state = self.look();
        let Script { wants_all, in_step, .. } = state.script;
        state.script = Script { wants_all, in_step, ..Script::default() };
        state.release(usize::MAX, &mut Rng::new(0));
    }

    /// How often the tier was told that `req` is finished.
    pub fn finishes(&self, req: RequestId) -> usize {
        self.look().calls.iter().filter(|call| **call == Call::Finished(req)).count()
    }

    /// The keys of the jobs of one direction for `req`, job by job.
    pub fn jobs(&self, req: RequestId, direction: TierDirection) -> Vec<Vec<OffloadKey>> {
        let of = |call: &Call| match call {
            Call::Job { req: by, direction: way, keys } if *by == req && *way == direction => {
                Some(keys.clone())
            }
            _ => None,
        };
        self.look().calls.iter().filter_map(of).collect()
    }
}

impl<T: Backing> State<T> {
    /// Reports up to `count` of the held jobs at the next poll, in random order.
    pub fn release(&mut self, count: usize, rng: &mut Rng) {
        for _ in 0..count {
            let Some(completion) = rng.take(&mut self.held) else { break };
            self.ready.push(completion);
        }
    }

    fn give(&mut self, job: TierJob) -> Result<(), JobRejected> {
        self.backing.submit(job)?;
        if self.script.in_step {
            self.backing.drain();
        }
        Ok(())
    }

    /// Passes queued jobs on, unless they are held.
    fn pass_on(&mut self) {
        while !self.script.hold_jobs
            && let Some(job) = self.queued.pop_front()
        {
            if let Err(rejected) = self.give(job) {
                self.open.remove(&rejected.job.id);
                self.ready.push(TierCompletion::failed(rejected.job.id));
            }
        }
    }

    /// Takes in what has ended, spoiled as the script says.
    fn collect(&mut self) {
        self.pass_on();
        let mut ended = Vec::new();
        self.backing.poll(&mut ended);
        for completion in ended {
            let job = self.open.remove(&completion.job).expect("a job is reported once");
            let completion = self.spoiled(&job, completion);
            if self.script.hold_reports { &mut self.held } else { &mut self.ready }.push(completion);
        }
    }

    fn spoiled(&self, job: &TierJob, completion: TierCompletion) -> TierCompletion {
        if job.direction == TierDirection::Write {
            return completion;
        }
        if self.script.fail_whole_reads {
            return TierCompletion::failed(job.id).with_held(completion.held);
        }
        let mut failed: Vec<OffloadKey> = job
            .chunks
            .iter()
            .map(|chunk| chunk.key)
            .filter(|key| self.script.fail_reads.contains(key))
            .collect();
        match completion.outcome {
            TierOutcome::Failed => return completion,
            TierOutcome::Partial { failed: more } => failed.extend(more),
            TierOutcome::Done => {}
        }
        TierCompletion::except(job.id, failed).with_held(completion.held)
    }
}

impl<T> Clone for Watched<T> {
    fn clone(&self) -> Self {
        Self { name: Arc::clone(&self.name), state: Arc::clone(&self.state) }
    }
}

impl<T: Backing> Backing for Watched<T> {
    fn drain(&mut self) {
        let mut state = self.look();
        state.pass_on();
        state.backing.drain();
    }
}

impl<T: Backing> SecondaryTier for Watched<T> {
    fn name(&self) -> &str {
        &self.name
    }

    fn medium(&self) -> Medium {
        self.look().backing.medium()
    }

    fn locality(&self) -> Locality {
        self.look().backing.locality()
    }

    fn on_new_request(&mut self, req: &RequestContext) -> OffloadPolicy {
        let mut state = self.look();
        state.calls.push(Call::Began(req.id()));
        let wants = state.backing.on_new_request(req);
        if state.script.wants_all { OffloadPolicy::RequestLevel } else { wants }
    }

    fn lookup(&mut self, req: RequestId, key: &OffloadKey) -> TierLookup {
        self.look().backing.lookup(req, key)
    }

    fn submit(&mut self, job: TierJob) -> Result<(), JobRejected> {
        let mut state = self.look();
        if let Some(reason) = state.script.reject {
            return Err(JobRejected { job, reason });
        }
        let call = Call::Job {
            req: job.req,
            direction: job.direction,
            keys: job.chunks.iter().map(|chunk| chunk.key).collect(),
        };
        if state.script.hold_jobs {
            state.queued.push_back(job.clone());
        } else {
            state.pass_on();
            state.give(job.clone())?;
        }
        state.open.insert(job.id, job);
        state.calls.push(call);
        Ok(())
    }

    fn poll(&mut self, done: &mut Vec<TierCompletion>) {
        let mut state = self.look();
        state.collect();
        done.append(&mut state.ready);
    }

    /// Releases wait for the report of their job, if that is held back.
    fn take_released(&mut self, released: &mut Vec<ReleasedSlot>) {
        let mut state = self.look();
        let State { backing, released: waiting, held, ready, .. } = &mut *state;
        backing.take_released(waiting);
        let is_held_back = |release: &ReleasedSlot| {
            held.iter().chain(&*ready).any(|completion| completion.job == release.job)
        };
        released.extend(waiting.extract_if(.., |release| !is_held_back(release)));
    }

    fn on_request_finished(&mut self, req: RequestId) {
        let mut state = self.look();
        state.calls.push(Call::Finished(req));
        state.backing.on_request_finished(req);
    }

    fn on_schedule_end(&mut self) {
        self.look().backing.on_schedule_end();
    }

    fn take_events(&mut self, events: &mut Vec<OffloadEvent>) {
        self.look().backing.take_events(events);
    }
}
