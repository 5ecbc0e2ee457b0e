//! Offloading by kvo: an [`Offload`] over a connector.

use std::{collections::HashMap, fmt, sync::Arc};

use kvo_connector::{
    Connector, ConnectorError, CopyOutcome, Finish, PrefixMatch, RequestParams, Scheduled, StepPlan,
    VoidLoad, Worker, WorkerOptions, WorkerReport,
};
use kvo_core::{BlockId, DeviceSpan, HostMemory, OffloadManager, RequestError, RequestId};
use kvo_cuda::HostDevice;

use crate::{EngineError, KvCaches, LoadEnd, LoadStart, Offload, OffloadEvents, RequestView, StepInput};

/// The one worker.
const WORKER: u32 = 0;

/// Keeps an engine's KV data by a [`Connector`]. It adds what the two call differently, and decides nothing but whether
/// requests wait for their loads.
///
/// | event of the engine | call of the connector |
/// |---|---|
/// | a request comes | `new_request`, `add_hashes` |
/// | it could begin | `add_hashes`, `match_prefix` |
/// | it has blocks for what was found | `blocks_allocated` |
/// | a step is scheduled, requests were preempted | `add_hashes`, `build_step` |
/// | a copy has ended, or a device lets go of it | `copy_reported`, `copy_released`; then `take_late`, `take_settled` |
/// | a request has ended or is aborted | `request_finished` |
/// | everything is to be forgotten | `reset` |
pub struct Connected<M> {
    connector: Connector<M>,
    host: Arc<dyn HostMemory>,
    worker: WorkerOptions,
    /// Whether requests compute behind their loads instead of waiting for them.
    pub by_layer: bool,
    /// Whether blocks of requests that are over are kept until no copy uses them, instead of being given out at once.
    pub keep_until_settled: bool,
    told: HashMap<RequestId, Told>,
    outcomes: Vec<CopyOutcome>,
}

/// What the connector knows of a request.
#[derive(Debug, Default)]
struct Told {
    num_hashes: usize,
    /// By group: entries of the block table.
    num_blocks: Vec<usize>,
}

impl<M: OffloadManager> Connected<M> {
    /// With a connector whose groups are those of the engine's caches, and the memory that its slots are in. Requests wait
    /// for their loads, and blocks are given out at once.
    pub fn new(connector: Connector<M>, host: Arc<dyn HostMemory>, worker: WorkerOptions) -> Self {
        Self {
            connector,
            host,
            worker,
            by_layer: false,
            keep_until_settled: false,
            told: HashMap::new(),
            outcomes: Vec::new(),
        }
    }

    /// The connector, to look at.
    pub fn connector(&self) -> &Connector<M> {
        &self.connector
    }

    fn tell_hashes(&mut self, request: &RequestView<'_>) -> Result<(), EngineError> {
        let told = self.told.entry(request.id).or_default();
        let num_tokens = narrow(request.tokens.len());
        self.connector.add_hashes(request.id, num_tokens, &request.hashes[told.num_hashes..])?;
        told.num_hashes = request.hashes.len();
        Ok(())
    }

    fn tell_blocks(&mut self, request: &RequestView<'_>) {
        if let Some(told) = self.told.get_mut(&request.id) {
            told.num_blocks = request.tables.iter().map(Vec::len).collect();
        }
    }

    /// What the connector does not know of a request's tables.
    fn new_blocks<'a>(&self, request: &RequestView<'a>) -> Vec<&'a [Option<BlockId>]> {
        let num_told = |group: usize| {
            self.told.get(&request.id).and_then(|told| told.num_blocks.get(group).copied()).unwrap_or(0)
        };
        request.tables.iter().enumerate().map(|(group, table)| &table[num_told(group)..]).collect()
    }

    /// What an end means for a request: only loads have somebody who waits for them.
    fn take(outcome: CopyOutcome, events: &mut OffloadEvents) {
        match outcome {
            CopyOutcome::Loaded { request, .. } => events.loads_ended.push((request, LoadEnd::Come)),
            CopyOutcome::LoadFailed { request, computed } => {
                events.loads_ended.push((request, LoadEnd::Failed { computed: computed as usize }));
            }
            _ => {}
        }
    }
}

impl<M: OffloadManager> Offload for Connected<M> {
    fn host(&self) -> Arc<dyn HostMemory> {
        Arc::clone(&self.host)
    }

    fn worker(
        &self,
        device: HostDevice,
        arenas: &[DeviceSpan],
        caches: &KvCaches,
    ) -> Result<Worker<HostDevice>, EngineError> {
        let blocks_per_chunk = self.connector.options().groups[0].blocks_per_chunk;
        let slots = (self.host.num_slots(), self.host.slot_bytes() as u64);
        Ok(Worker::new(device, arenas, caches.layout(blocks_per_chunk)?, slots, self.worker.clone())?)
    }

    fn new_request(&mut self, request: RequestView<'_>) -> Result<(), EngineError> {
        // Names of blocks are salted by the engine.
        self.connector.new_request(request.id, narrow(request.prompt_tokens), RequestParams::default())?;
        self.tell_hashes(&request)
    }

    fn match_prefix(&mut self, request: RequestView<'_>) -> Result<PrefixMatch, EngineError> {
        self.tell_hashes(&request)?;
        Ok(self.connector.match_prefix(request.id, narrow(request.computed))?)
    }

    fn blocks_allocated(&mut self, request: RequestView<'_>) -> Result<LoadStart, EngineError> {
        let tables: Vec<&[Option<BlockId>]> = request.tables.iter().map(Vec::as_slice).collect();
        match self.connector.blocks_allocated(request.id, &tables) {
            Ok(_) => {
                self.tell_blocks(&request);
                // The layers of one copy can be waited for, not those of several.
                let is_one_copy = self.connector.options().load_chunks_max == usize::MAX;
                Ok(if self.by_layer && is_one_copy { LoadStart::ByLayer } else { LoadStart::Wait })
            }
            Err(ConnectorError::Gone { .. }) => Ok(LoadStart::Gone),
            Err(error) => Err(error.into()),
        }
    }

    fn build_step(&mut self, step: &StepInput<'_>) -> Result<StepPlan, EngineError> {
        for id in step.preempted {
            if let Some(told) = self.told.get_mut(id) {
                told.num_blocks.clear();
            }
        }
        for scheduled in step.scheduled {
            self.tell_hashes(&scheduled.request)?;
        }
        let new_blocks: Vec<_> =
            step.scheduled.iter().map(|scheduled| self.new_blocks(&scheduled.request)).collect();
        let of_request = |(scheduled, new_blocks): (&crate::ScheduledTokens<'_>, _)| Scheduled {
            kept_blocks: &[],
            request: scheduled.request.id,
            new_blocks,
            computed: narrow(scheduled.tokens.start),
            settled: narrow(scheduled.tokens.end),
        };
        let scheduled: Vec<Scheduled<'_>> =
            step.scheduled.iter().zip(new_blocks.iter().map(Vec::as_slice)).map(of_request).collect();
        let plan = self
            .connector
            .build_step(&kvo_connector::StepInput { preempted: step.preempted, scheduled: &scheduled })?;
        for scheduled in step.scheduled {
            self.tell_blocks(&scheduled.request);
        }
        Ok(plan)
    }

    fn reported(
        &mut self,
        reports: &mut Vec<WorkerReport>,
        events: &mut OffloadEvents,
    ) -> Result<(), EngineError> {
        for report in reports.drain(..) {
            match report {
                WorkerReport::Ended { copy, result, .. } => {
                    Self::take(self.connector.copy_reported(copy, WORKER, result)?, events);
                }
                WorkerReport::Released { copy } => self.connector.copy_released(copy, WORKER)?,
            }
        }
        self.connector.take_late(&mut self.outcomes);
        for outcome in self.outcomes.drain(..) {
            Self::take(outcome, events);
        }
        self.connector.take_settled(&mut events.settled);
        Ok(())
    }

    fn request_finished(&mut self, id: RequestId) -> Result<Finish, EngineError> {
        self.told.remove(&id).ok_or(ConnectorError::Request(RequestError::Unknown { req: id }))?;
        let finish = self.connector.request_finished(id)?;
        Ok(if self.keep_until_settled { finish } else { Finish::Settled })
    }

    fn reset(&mut self, events: &mut OffloadEvents) {
        let void = self.connector.reset().loads_void;
        let failed = |load: VoidLoad| (load.request, LoadEnd::Failed { computed: load.computed as usize });
        events.loads_ended.extend(void.into_iter().map(failed));
    }

    fn has_pending_work(&self) -> bool {
        self.connector.has_pending_work()
    }
}

impl<M> fmt::Debug for Connected<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connected")
            .field("connector", &self.connector)
            .field("by_layer", &self.by_layer)
            .field("keep_until_settled", &self.keep_until_settled)
            .finish_non_exhaustive()
    }
}

/// Requests fit the blocks of a device, which have 32-bit numbers.
fn narrow(tokens: usize) -> u32 {
    u32::try_from(tokens).unwrap_or(u32::MAX)
}
