//! Eviction policies on a trace whose requests overlap: what is being read is pinned, what is being computed is not
//! there yet.
//!
//! Time is virtual and exact, in whole microseconds. A request that arrives looks its blocks up; the leading ones that
//! are resident are its hits, and a load pins them. It then runs for
//!
//! ```text
//!   base + uncached tokens * per uncached token + output tokens * per output token
//! ```
//!
//! where uncached are the tokens of its input that were not hit, and finishes: its load completes, which unpins; it
//! offers its first `capacity` blocks; the store completes at once; and its access is committed. An offer for which
//! the pins of others leave too little room is refused as a whole; [`Refused`] says what the engine does then.
//!
//! Everything that finishes at the moment of an arrival finishes before it; what finishes at the same moment does so in
//! the order of arrival; and so arrive requests with the same time in the order of the trace. Nothing queues: as many
//! requests run as the trace has at a time.

use std::{cmp::Reverse, collections::BinaryHeap, fmt, ops::ControlFlow, str::FromStr};

use kvo_core::{JobToken, OffloadKey, OffloadManager, RequestContext, StoreOutcome, TransferResult};
use kvo_cpu::{CpuManager, CpuOptions};
use kvo_policies::{CachePolicy, PolicyKind};
use serde::Serialize;

use crate::{
    ModelError, Trace, TraceRequest,
    model_r::{context, key},
    named::Named,
};

/// Virtual time, written in milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(transparent)]
pub struct VirtualTime {
    /// The same in microseconds.
    pub us: u64,
}

/// How long a request runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct ServiceTime {
    /// Any request.
    #[serde(rename = "base_us")]
    pub base: VirtualTime,
    /// For each token of the input that has to be computed.
    #[serde(rename = "uncached_token_us")]
    pub uncached_token: VirtualTime,
    /// For each token of the output.
    #[serde(rename = "output_token_us")]
    pub output_token: VirtualTime,
}

/// What the engine does when an offer is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Refused {
    /// It stores nothing of the request.
    Drop,
    /// It offers one block less from the tail, again and again, until it is taken.
    Shorten,
}

/// What one policy did on overlapping requests at one capacity.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct OverlapResult {
    /// The policy's name.
    pub policy: String,
    /// Slots of the tier.
    pub capacity: u32,
    /// How long requests ran.
    pub service: ServiceTime,
    /// What became of refused offers.
    pub refused: Refused,
    /// Requests that have arrived: all of the trace's, unless the run was stopped.
    pub requests: usize,
    /// Blocks that they named.
    pub accesses: u64,
    /// Blocks that were resident at the arrival, with all before them in the request.
    pub hits: u64,
    /// Tokens of the requests' inputs.
    pub prompt_tokens: u64,
    /// Those of them that lie in the blocks that were hit.
    pub hit_tokens: u64,
    /// Chunks stored.
    pub inserts: u64,
    /// Chunks evicted.
    pub evictions: u64,
    /// Requests whose offer was refused for want of room.
    pub offers_refused: u64,
    /// Chunks of those that were not stored.
    pub chunks_refused: u64,
    /// The most requests that ran at a time.
    pub in_flight_peak: usize,
    /// The most chunks that were pinned at a time.
    pub pinned_peak: u32,
}

/// Runs `policy` over `trace` with `capacity` slots, of which there is at least one, as the module says.
///
/// `before_request` is called before every arrival and may stop the run; the result then covers what had arrived.
///
/// # Errors
///
/// If the manager refuses the model's calls, which would be a defect of it: the error names the request and the call.
pub fn run_overlap(
    trace: &Trace,
    policy: PolicyKind,
    capacity: u32,
    service: ServiceTime,
    refused: Refused,
    mut before_request: impl FnMut() -> ControlFlow<()>,
) -> Result<OverlapResult, ModelError> {
    // More slots than blocks would stay empty.
    let num_slots = capacity.min(trace.num_unique.max(1));
    let manager = CpuManager::new(CpuOptions::new(num_slots), policy.build(num_slots))
        .map_err(|error| ModelError::new(0, "CpuManager::new", error))?;
    let result = OverlapResult::empty(policy, capacity, service, refused);
    let named = Named::new(trace.num_unique);
    let mut engine = Engine { manager, num_slots, named, running: BinaryHeap::new(), result };
    for (number, request) in trace.requests.iter().enumerate() {
        if before_request().is_break() {
            return Ok(engine.result);
        }
        engine.finish_until(request.arrival_us)?;
        engine.arrive(number, request, trace.block_tokens, service)?;
    }
    engine.finish_until(u64::MAX)?;
    Ok(engine.result)
}

struct Engine {
    manager: CpuManager<Box<dyn CachePolicy>>,
    num_slots: u32,
    named: Named,
    /// The next to finish first.
    running: BinaryHeap<Reverse<Running>>,
    result: OverlapResult,
}

struct Running {
    finish_us: u64,
    number: usize,
    context: RequestContext,
    keys: Vec<OffloadKey>,
    load: Option<JobToken>,
}

impl Engine {
    fn arrive(
        &mut self,
        number: usize,
        request: &TraceRequest,
        block_tokens: u32,
        service: ServiceTime,
    ) -> Result<(), ModelError> {
        let keys: Vec<_> = request.blocks.iter().map(|&block| key(block)).collect();
        let mut context = context(number, &request.blocks, block_tokens, &mut self.named);
        self.manager
            .new_request(&mut context)
            .map_err(|error| ModelError::new(number, "new_request", error))?;
        let hits = self.manager.lookup_prefix(&mut context, &keys).ready;
        // A trace may name a block twice in a request; a load may not.
        self.named.begin();
        let found = keys.iter().zip(&request.blocks).take(hits);
        let firsts = found.filter(|(_, block)| self.named.is_first(**block));
        let pinned: Vec<_> = firsts.map(|(key, _)| *key).collect();
        let load = (!pinned.is_empty()).then(|| self.manager.prepare_load(&mut context, &pinned));
        let load = load.transpose().map_err(|error| ModelError::new(number, "prepare_load", error))?;

        let hit_tokens = request.tokens_of(hits, block_tokens);
        let finish_us = request.arrival_us.saturating_add(service.of(request, hit_tokens));
        let load = load.map(|load| load.token);
        self.running.push(Reverse(Running { finish_us, number, context, keys, load }));
        let result = &mut self.result;
        result.requests += 1;
        result.accesses += request.blocks.len() as u64;
        result.hits += hits as u64;
        result.prompt_tokens += u64::from(request.input_tokens);
        result.hit_tokens += hit_tokens;
        result.in_flight_peak = result.in_flight_peak.max(self.running.len());
        result.pinned_peak = result.pinned_peak.max(self.manager.counts().pinned);
        Ok(())
    }

    /// Ends every request that finishes at `now_us` or before.
    fn finish_until(&mut self, now_us: u64) -> Result<(), ModelError> {
        while self.running.peek().is_some_and(|Reverse(next)| next.finish_us <= now_us) {
            if let Some(Reverse(next)) = self.running.pop() {
                self.finish(next)?;
            }
        }
        Ok(())
    }

    fn finish(&mut self, request: Running) -> Result<(), ModelError> {
        let Running { number, mut context, keys, load, .. } = request;
        if let Some(token) = load {
            self.manager
                .complete_load(token)
                .map_err(|error| ModelError::new(number, "complete_load", error))?;
        }
        self.store(number, &mut context, &keys)?;
        self.manager
            .on_request_finished(&mut context)
            .map_err(|error| ModelError::new(number, "on_request_finished", error))
    }

    /// Stores what the tier has room for, as far as the engine asks for it.
    fn store(
        &mut self,
        number: usize,
        context: &mut RequestContext,
        keys: &[OffloadKey],
    ) -> Result<(), ModelError> {
        let mut offer = &keys[..keys.len().min(self.num_slots as usize)];
        let Offered::Refused { needed } = self.offer(number, context, offer)? else { return Ok(()) };
        let mut stored = 0;
        while let Some((_, shorter)) = offer.split_last().filter(|_| self.result.refused == Refused::Shorten)
        {
            offer = shorter;
            if let Offered::Stored { chunks } = self.offer(number, context, offer)? {
                stored = chunks;
                break;
            }
        }
        self.result.offers_refused += 1;
        self.result.chunks_refused += u64::from(needed) - stored;
        Ok(())
    }

    fn offer(
        &mut self,
        number: usize,
        context: &mut RequestContext,
        keys: &[OffloadKey],
    ) -> Result<Offered, ModelError> {
        let outcome = self
            .manager
            .prepare_store(context, keys)
            .map_err(|error| ModelError::new(number, "prepare_store", error))?;
        let job = match outcome {
            StoreOutcome::Prepared(job) => job,
            StoreOutcome::NothingToStore => return Ok(Offered::Stored { chunks: 0 }),
            StoreOutcome::Refused(refusal) => return Ok(Offered::Refused { needed: refusal.needed }),
        };
        let chunks = job.keys.len() as u64;
        self.result.inserts += chunks;
        self.result.evictions += job.evicted.len() as u64;
        self.manager
            .complete_store(job.token, TransferResult::Done)
            .map_err(|error| ModelError::new(number, "complete_store", error))?;
        Ok(Offered::Stored { chunks })
    }
}

enum Offered {
    Stored { chunks: u64 },
    Refused { needed: u32 },
}

impl ServiceTime {
    /// How long `request` runs, in microseconds, if `hit_tokens` of its input need not be computed.
    pub fn of(self, request: &TraceRequest, hit_tokens: u64) -> u64 {
        let uncached = u64::from(request.input_tokens).saturating_sub(hit_tokens);
        let times = |time: VirtualTime, count: u64| time.us.saturating_mul(count);
        self.base
            .us
            .saturating_add(times(self.uncached_token, uncached))
            .saturating_add(times(self.output_token, request.output_tokens.into()))
    }
}

impl OverlapResult {
    fn empty(policy: PolicyKind, capacity: u32, service: ServiceTime, refused: Refused) -> Self {
        Self {
            policy: policy.to_string(),
            capacity,
            service,
            refused,
            requests: 0,
            accesses: 0,
            hits: 0,
            prompt_tokens: 0,
            hit_tokens: 0,
            inserts: 0,
            evictions: 0,
            offers_refused: 0,
            chunks_refused: 0,
            in_flight_peak: 0,
            pinned_peak: 0,
        }
    }
}

impl PartialEq for Running {
    fn eq(&self, other: &Self) -> bool {
        self.number == other.number
    }
}

impl Eq for Running {}

impl PartialOrd for Running {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Running {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.finish_us, self.number).cmp(&(other.finish_us, other.number))
    }
}

impl fmt::Display for VirtualTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.us as f64 / 1000.0)
    }
}

impl FromStr for VirtualTime {
    type Err = VirtualTimeError;

    fn from_str(given: &str) -> Result<Self, VirtualTimeError> {
        let ms: Option<f64> = given.parse().ok().filter(|ms| (0.0..=VirtualTimeError::MS_MAX).contains(ms));
        let us = ms.ok_or_else(|| VirtualTimeError { given: given.to_owned() })? * 1000.0;
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "at least 0 and at most an hour"
        )]
        let whole = us.round() as u64;
        if (us - whole as f64).abs() > 1e-6 {
            return Err(VirtualTimeError { given: given.to_owned() });
        }
        Ok(Self { us: whole })
    }
}

/// A time that is none.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{given:?} is no time: give milliseconds from 0 to 3600000 in steps of 0.001, as in 0.05")]
pub struct VirtualTimeError {
    given: String,
}

impl VirtualTimeError {
    const MS_MAX: f64 = 3_600_000.0;
}

#[cfg(test)]
mod tests;
