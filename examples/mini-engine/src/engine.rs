//! The engine: requests in, tokens out, step by step.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Range,
    sync::Arc,
    time::Duration,
};

use kvo_connector::{Finish, StepPlan};
use kvo_core::{BlockHash, BlockId, GroupIdx, RequestId};
use kvo_cuda::{HostDevice, HostDeviceOptions};

mod blocks;
mod copies;
mod error;
mod forward;
mod hash;
mod offload;
mod options;
mod request;
mod sampling;
mod schedule;
mod tables;

use self::{
    copies::{Copies, LayeredLoad},
    forward::{Batch, Forward},
    request::Request,
    schedule::{Chunk, Schedule},
    tables::Groups,
};
pub use self::{
    error::{EngineError, RequestRefused, UnknownRequest},
    offload::{
        BlockTable, LoadEnd, LoadStart, NoOffload, Offload, OffloadEvents, RequestView, ScheduledTokens,
        StepInput,
    },
    options::EngineOptions,
    request::{FinishReason, Hits, NewRequest, Output},
    sampling::Sampling,
};
use crate::{KvCaches, Model};

/// What a step did.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StepReport {
    /// Tokens it computed.
    pub computed_tokens: usize,
    /// Requests that lost their blocks.
    pub preempted: usize,
    /// Loads that it computed behind, layer by layer.
    pub layered_loads: usize,
    /// Requests that have ended with it.
    pub finished: Vec<Output>,
}

/// Continuous batching over a paged KV cache, in one thread, step by step.
///
/// ```text
///             ┌──────────────── preempted ───────────────┐
///             ▼                                          │
///   add ─▶ waiting ──────────── blocks ────────────▶ running ──▶ finished
///             │                                        ▲  │
///             └─ something to load ─▶ loading ─ ended ─┘  └ abort, from everywhere
/// ```
///
/// - A step computes up to [`step_tokens`](EngineOptions::step_tokens) tokens, running requests before waiting ones
///   and older ones before younger ones; a prompt that is longer is computed in pieces. The last token of a prompt is
///   computed even where all of it is known.
/// - Full blocks that were computed are found by name until they are given out again, oldest release first. In groups
///   with a window, blocks that the window has left are given back at once.
/// - Where blocks run out, the youngest running request gives back its own and begins again later. The oldest one
///   always goes on, and a request that would not fit alone is refused, so each is answered.
/// - Tokens and logits of a request depend on its own tokens, parameters and model only, to the bit. What is computed
///   when follows from the calls alone, unless an offload brings in the timing of its copies.
///
/// After an [`EngineError`] of a step the engine is of no use but to be dropped.
#[derive(Debug)]
pub struct Engine<O = NoOffload> {
    offload: O,
    model: Arc<Model>,
    options: EngineOptions,
    caches: Arc<KvCaches>,
    groups: Groups,
    forward: Forward,
    copies: Copies,
    events: OffloadEvents,
    requests: BTreeMap<RequestId, Request>,
    next_request: u64,
    waiting: BTreeSet<RequestId>,
    running: BTreeSet<RequestId>,
    /// Requests that wait for the tokens that are being loaded.
    loading: BTreeMap<RequestId, Range<usize>>,
    /// Requests that run in this step behind their loads.
    layered: BTreeMap<RequestId, Range<usize>>,
    /// Blocks of requests that are over, which copies still use.
    kept: BTreeMap<RequestId, Vec<BlockTable>>,
    /// Requests whose loads have failed, and whose blocks were taken back, since the last step.
    lost: Vec<RequestId>,
}

impl<O: Offload> Engine<O> {
    /// Makes a device with arenas, whose copies go to and from the slots of the offload, and an engine on it.
    ///
    /// # Errors
    /// [`EngineError`] names an option that is zero, or what the device refused.
    pub fn new(model: Arc<Model>, options: EngineOptions, offload: O) -> Result<Self, EngineError> {
        let device_options = HostDeviceOptions {
            link: options.link,
            detect_races: options.detect_races,
            ..HostDeviceOptions::default()
        };
        let mut caches = KvCaches::plan(model.config(), &options)?;
        let device = HostDevice::new(device_options, offload.host())?;
        let arenas = caches.allocate(&device)?;
        let copies = Copies::new(offload.worker(device, &arenas, &caches)?, options.step_timeout);
        let (block_tokens, num_blocks) = (options.block_tokens, options.num_blocks);
        let groups = Groups::new(caches.groups(), block_tokens, num_blocks, options.block_seed);
        let caches = Arc::new(caches);
        let forward = Forward::new(Arc::clone(&model), Arc::clone(&caches), options.threads)?;
        Ok(Self {
            offload,
            model,
            options,
            caches,
            groups,
            forward,
            copies,
            events: OffloadEvents::default(),
            requests: BTreeMap::new(),
            next_request: 0,
            waiting: BTreeSet::new(),
            running: BTreeSet::new(),
            loading: BTreeMap::new(),
            layered: BTreeMap::new(),
            kept: BTreeMap::new(),
            lost: Vec::new(),
        })
    }

    /// Takes a request; later ones have higher numbers.
    ///
    /// # Errors
    /// [`EngineError::Refused`]; then nothing has changed.
    pub fn add(&mut self, new: NewRequest) -> Result<RequestId, EngineError> {
        self.check(&new)?;
        let id = RequestId(self.next_request);
        self.next_request += 1;
        let request = Request::new(id, new, self.options.block_tokens);
        self.offload.new_request(request.view())?;
        self.requests.insert(id, request);
        self.waiting.insert(id);
        Ok(id)
    }

    fn check(&self, new: &NewRequest) -> Result<(), RequestRefused> {
        let vocabulary = self.model.config().vocabulary;
        if new.prompt.is_empty() {
            return Err(RequestRefused::EmptyPrompt);
        }
        if new.max_tokens == 0 {
            return Err(RequestRefused::NothingAsked);
        }
        if !new.sampling.is_sound() {
            return Err(RequestRefused::Temperature);
        }
        let unknown = |&(_, &token): &(usize, &u32)| token as usize >= vocabulary;
        if let Some((index, &token)) = new.prompt.iter().enumerate().find(unknown) {
            return Err(RequestRefused::UnknownToken { index, token, vocabulary });
        }
        // Keys and values of the last token are never needed.
        let tokens = new.prompt.len() + new.max_tokens as usize - 1;
        let (needed, num_blocks) =
            (self.groups.blocks_max(tokens, self.options.step_tokens as usize), self.options.num_blocks);
        if needed > u64::from(num_blocks) {
            return Err(RequestRefused::TooLong { tokens, needed, num_blocks });
        }
        Ok(())
    }

    /// Ends a request where it is.
    ///
    /// # Errors
    /// [`EngineError::Unknown`] if it is over; then nothing has changed.
    pub fn abort(&mut self, id: RequestId) -> Result<Output, EngineError> {
        if !self.requests.contains_key(&id) {
            return Err(UnknownRequest(id).into());
        }
        self.finish(id, FinishReason::Aborted)
    }

    /// Forgets which prefixes are on the device. Requests go on, and what the offload keeps stays.
    pub fn forget_device(&mut self) {
        self.groups.forget();
    }

    /// Forgets which prefixes are on the device, and what the offload keeps. Requests go on.
    pub fn reset(&mut self) {
        self.groups.forget();
        self.offload.reset(&mut self.events);
    }

    /// One step.
    ///
    /// # Errors
    /// [`EngineError`] if the device fails or something that the step depends on does not end in time.
    pub fn step(&mut self) -> Result<StepReport, EngineError> {
        self.poll(Duration::ZERO)?;
        let schedule = self.schedule()?;
        let batch = self.batch(&schedule);
        let (plan, loads) = self.begin_copies(&schedule)?;
        let mut report = StepReport {
            preempted: schedule.preempted.len(),
            layered_loads: loads.len(),
            ..StepReport::default()
        };
        if !batch.is_empty() {
            self.launch(&batch, &loads)?;
        }
        let behind = self.device().compute().point();
        self.copies.start_stores(&plan, behind);
        if batch.is_empty() {
            if schedule.preempted.is_empty() && !self.is_idle() {
                self.rest()?;
            }
            return Ok(report);
        }
        let logits = self.await_compute(&loads)?;
        report.computed_tokens = schedule.chunks.iter().map(|chunk| chunk.tokens.len()).sum();
        self.take_results(schedule.chunks, &logits, &mut report)?;
        Ok(report)
    }

    /// Steps until no request is left, and nothing of one that is over; the outputs come in the order of their ends.
    ///
    /// # Errors
    /// As [`step`](Self::step).
    pub fn run(&mut self) -> Result<Vec<Output>, EngineError> {
        let mut outputs = Vec::new();
        while !self.is_idle() {
            outputs.append(&mut self.step()?.finished);
        }
        Ok(outputs)
    }

    fn batch(&self, schedule: &Schedule) -> Arc<Batch> {
        let mut batch = Batch::default();
        for chunk in &schedule.chunks {
            let request = &self.requests[&chunk.request];
            let wants_logits = chunk.tokens.end == request.tokens.len();
            batch.push(&self.caches, &request.tokens, chunk.tokens.clone(), &request.tables, wants_logits);
        }
        Arc::new(batch)
    }

    /// Asks the offload what is to be copied, lets compute wait for what must be over, and begins the loads.
    fn begin_copies(&mut self, schedule: &Schedule) -> Result<(StepPlan, Vec<LayeredLoad>), EngineError> {
        let scheduled: Vec<ScheduledTokens<'_>> = schedule
            .chunks
            .iter()
            .map(|chunk| ScheduledTokens {
                request: self.requests[&chunk.request].view(),
                tokens: chunk.tokens.clone(),
            })
            .collect();
        let lost = std::mem::take(&mut self.lost);
        // A request that was aborted since is gone.
        let mut preempted: Vec<_> = lost.into_iter().filter(|id| self.requests.contains_key(id)).collect();
        preempted.extend_from_slice(&schedule.preempted);
        let plan = self.offload.build_step(&StepInput { scheduled: &scheduled, preempted: &preempted })?;
        let stream = self.copies.device().compute().clone();
        let (offload, events) = (&mut self.offload, &mut self.events);
        self.copies.order_behind(&plan.wait_for, stream.handle(), offload, events)?;
        self.copies.start_loads(&plan, stream.point());
        let layered = plan.loads.iter().filter(|load| self.layered.contains_key(&load.request));
        let layered = layered.map(|load| LayeredLoad { copy: load.copy, request: load.request }).collect();
        Ok((plan, layered))
    }

    /// Launches the step's compute, each layer behind what is loaded for it.
    fn launch(&mut self, batch: &Arc<Batch>, loads: &[LayeredLoad]) -> Result<(), EngineError> {
        let stream = self.device().compute().clone();
        let (offload, events) = (&mut self.offload, &mut self.events);
        self.forward.begin();
        for layer in 0..self.model.config().layers() {
            if !loads.is_empty() {
                self.forward.flush(&stream, batch)?;
                let number = u32::try_from(layer).expect("a model has fewer layers");
                self.copies.order_layer((number, stream.handle()), loads, offload, events)?;
            }
            self.forward.add_layer(&stream, batch, layer)?;
        }
        self.forward.flush(&stream, batch)
    }

    /// Waits for the step's compute and for the loads that it ran behind; the logits are `[sampled][token]`.
    fn await_compute(&mut self, loads: &[LayeredLoad]) -> Result<Vec<f32>, EngineError> {
        self.device().compute().synchronize(self.options.step_timeout)?;
        self.copies.wait_for_loads(loads, &mut self.offload, &mut self.events)?;
        Ok(self.forward.take_logits())
    }

    /// Goes on with what a step has computed.
    fn take_results(
        &mut self,
        chunks: Vec<Chunk>,
        logits: &[f32],
        report: &mut StepReport,
    ) -> Result<(), EngineError> {
        self.take_events();
        let mut logits = logits.chunks_exact(self.model.config().vocabulary);
        for chunk in chunks {
            let id = chunk.request;
            let request = self.requests.get_mut(&id).expect("it was scheduled");
            let is_last = chunk.tokens.end == request.tokens.len();
            let logits = if is_last { logits.next() } else { None };
            if !self.running.contains(&id) {
                // Its load has failed, and it begins again.
                continue;
            }
            let (before, block_tokens) = (request.computed, self.options.block_tokens as usize);
            request.hits.computed_tokens += chunk.tokens.len() as u64;
            request.computed = chunk.tokens.end;
            let full = before / block_tokens..request.computed / block_tokens;
            self.groups.publish(&request.tables, &request.hashes, full);
            self.groups.trim(&mut request.tables, request.computed);
            let Some(logits) = logits else { continue };
            let token = request.sampling.pick(logits, request.tokens.len());
            if self.options.keep_logits {
                request.logits.push(logits.to_vec());
            }
            if let Some(reason) = request.push(token, self.options.block_tokens) {
                let output = self.finish(id, reason)?;
                report.finished.push(output);
            }
        }
        Ok(())
    }

    /// Gives copies, and whatever else an offload waits for, some time.
    fn rest(&mut self) -> Result<(), EngineError> {
        if self.copies.is_idle() {
            std::thread::sleep(self.options.patience);
        }
        self.poll(self.options.patience)
    }

    fn finish(&mut self, id: RequestId, reason: FinishReason) -> Result<Output, EngineError> {
        let finish = self.offload.request_finished(id)?;
        let mut request = self.requests.remove(&id).expect("the caller has looked");
        let tables = std::mem::take(&mut request.tables);
        match finish {
            Finish::Settled => self.groups.release(&tables),
            Finish::CopiesOpen(_) => {
                self.kept.insert(id, tables);
            }
        }
        self.waiting.remove(&id);
        self.running.remove(&id);
        self.loading.remove(&id);
        Ok(request.into_output(reason))
    }

    fn poll(&mut self, patience: Duration) -> Result<(), EngineError> {
        self.copies.poll(patience, &mut self.offload, &mut self.events)?;
        self.take_events();
        Ok(())
    }

    /// Goes on with requests whose loads have ended, and takes kept blocks back.
    fn take_events(&mut self) {
        let OffloadEvents { loads_ended, settled } = std::mem::take(&mut self.events);
        for (id, end) in loads_ended {
            let load = self.loading.remove(&id).or_else(|| self.layered.remove(&id));
            // A request that was aborted is gone.
            if let Some(load) = load {
                self.end_load(id, &load, end);
            }
        }
        for id in settled {
            if let Some(tables) = self.kept.remove(&id) {
                self.groups.release(&tables);
            }
        }
    }

    /// What came is known by name from now on, and the request runs. If not all has come, the request begins again with
    /// what the device has.
    fn end_load(&mut self, id: RequestId, load: &Range<usize>, end: LoadEnd) {
        let block_tokens = self.options.block_tokens as usize;
        let request = self.requests.get_mut(&id).expect("it is loading");
        let has_come = match end {
            LoadEnd::Come => load.end,
            LoadEnd::Failed { computed } => computed.clamp(load.start, load.end),
        };
        let blocks = load.start / block_tokens..has_come / block_tokens;
        self.groups.publish(&request.tables, &request.hashes, blocks);
        request.hits.loaded_tokens += (has_come - load.start) as u64;
        request.hits.failed_tokens += (load.end - has_come) as u64;
        if end == LoadEnd::Come {
            request.computed = load.end;
            self.running.insert(id);
        } else {
            self.take_back(id);
            self.running.remove(&id);
            self.waiting.insert(id);
            self.lost.push(id);
        }
    }

    /// Whether no request is left, and nothing that would still move.
    pub fn is_idle(&self) -> bool {
        self.requests.is_empty()
            && self.kept.is_empty()
            && self.copies.is_idle()
            && !self.offload.has_pending_work()
    }

    /// Requests that are not over.
    pub fn num_requests(&self) -> usize {
        self.requests.len()
    }

    /// A request that is not over, with its block tables.
    pub fn request(&self, id: RequestId) -> Option<RequestView<'_>> {
        self.requests.get(&id).map(Request::view)
    }

    /// The block that is found by `name` in a group.
    pub fn cached_block(&self, group: GroupIdx, name: &BlockHash) -> Option<BlockId> {
        self.groups.find(group, name)
    }

    /// By group: blocks that no request has, and that are not kept for copies; with or without a name.
    pub fn blocks_available(&self) -> Vec<usize> {
        self.groups.available()
    }

    /// The KV caches.
    pub fn caches(&self) -> &KvCaches {
        &self.caches
    }

    /// The device, for its memory, its statistics and its races.
    pub fn device(&self) -> &HostDevice {
        self.copies.device()
    }

    /// The offload.
    pub fn offload(&self) -> &O {
        &self.offload
    }

    /// The offload, to change it between steps.
    pub fn offload_mut(&mut self) -> &mut O {
        &mut self.offload
    }

    /// Holds the engine to its invariants. For tests.
    pub fn assert_consistent(&self) {
        let live = self.requests.values().map(|request| &request.tables[..]);
        self.groups.assert_consistent(live.chain(self.kept.values().map(|tables| &tables[..])));
        assert!(self.layered.is_empty(), "a load by layer ends with its step");
        for id in self.requests.keys() {
            let places =
                [self.waiting.contains(id), self.running.contains(id), self.loading.contains_key(id)];
            assert_eq!(places.iter().filter(|place| **place).count(), 1, "request {id} is in one place");
        }
    }
}
