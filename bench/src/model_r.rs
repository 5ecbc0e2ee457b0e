//! Eviction policies on a trace, under "model R": requests one after the other, each one access, prefixes only.
//!
//! Per request: the hits are its leading blocks that are resident. It then offers its first `capacity` blocks to a
//! [`CpuManager`] of `capacity` slots, as an engine would after a prefill, completes the store and finishes. Nothing
//! overlaps and nothing is pinned, so figures of any other implementation of the model can be compared integer by
//! integer, down to the order of eviction.

use std::ops::ControlFlow;

use kvo_core::{
    BlockHash, GroupIdx, OffloadKey, OffloadManager, RequestContext, RequestId, StoreJob, StoreOutcome,
    TransferResult,
};
use kvo_cpu::{CpuManager, CpuOptions};
use kvo_policies::PolicyKind;
use serde::Serialize;

use crate::{
    Contender, Fingerprint, Stranded, Trace, TraceRequest, micro::ThreadTime, named::Named,
    stranded::Residency,
};

/// What one policy did on one trace at one capacity.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PolicyResult {
    /// The policy's name.
    pub policy: String,
    /// Slots of the tier.
    pub capacity: u32,
    /// Requests served: all of the trace's, unless the run was stopped.
    pub requests: usize,
    /// Blocks that they named.
    pub accesses: u64,
    /// Blocks that were resident, with all before them in the request.
    pub hits: u64,
    /// Tokens of the requests' inputs.
    pub prompt_tokens: u64,
    /// Those of them that lie in the blocks that were hit.
    pub hit_tokens: u64,
    /// Chunks stored.
    pub inserts: u64,
    /// Chunks evicted.
    pub evictions: u64,
    /// Hash over the evicted blocks, in the order of eviction.
    pub eviction_order: Fingerprint,
    /// The sample in which the largest share of the resident chunks was stranded; none of a trace with too few
    /// requests for one.
    pub stranded_worst: Option<Stranded>,
    /// CPU time of the calls of the manager, with the policy in it, from the announcement of a request to its finish.
    /// A rough figure: it contains a reading of the clock a request, and what else runs on the machine is felt
    /// through the caches. None of the optimum, which is no policy.
    pub calls_cpu_ns: Option<u64>,
}

/// Runs `policy` over `trace` with `capacity` slots, of which there is at least one.
///
/// `before_request` is called before every request and may stop the run; the result then covers what was served.
///
/// # Errors
///
/// If the manager refuses the model's calls, which would be a defect of it: the error names the request and the call.
pub fn run_model_r(
    trace: &Trace,
    policy: PolicyKind,
    capacity: u32,
    mut before_request: impl FnMut() -> ControlFlow<()>,
) -> Result<PolicyResult, ModelError> {
    // More slots than blocks would stay empty.
    let num_slots = capacity.min(trace.num_unique.max(1));
    let manager = CpuManager::new(CpuOptions::new(num_slots), policy.build(num_slots))
        .map_err(|error| ModelError::new(0, "CpuManager::new", error))?;
    let result = PolicyResult::empty(Contender::Policy(policy), capacity);
    let result = PolicyResult { calls_cpu_ns: Some(0), ..result };
    let mut run = Run {
        manager,
        num_slots,
        keys: Vec::new(),
        named: Named::new(trace.num_unique),
        residency: Residency::new(trace),
        result,
    };
    for request in &trace.requests {
        if before_request().is_break() {
            break;
        }
        run.serve(request, trace.block_tokens)?;
        run.residency.after_request();
    }
    run.result.stranded_worst = run.residency.worst();
    Ok(run.result)
}

struct Run {
    manager: CpuManager<Box<dyn kvo_policies::CachePolicy>>,
    num_slots: u32,
    keys: Vec<OffloadKey>,
    named: Named,
    residency: Residency,
    result: PolicyResult,
}

impl Run {
    fn serve(&mut self, request: &TraceRequest, block_tokens: u32) -> Result<(), ModelError> {
        let number = self.result.requests;
        self.keys.clear();
        self.keys.extend(request.blocks.iter().map(|&block| key(block)));
        let mut context = context(number, &request.blocks, block_tokens, &mut self.named);

        let started = ThreadTime::now();
        let failed = |call| move |error| ModelError::new(number, call, error);
        self.manager.new_request(&mut context).map_err(failed("new_request"))?;
        let hits = self.manager.lookup_prefix(&mut context, &self.keys).ready;
        let offer = &self.keys[..self.keys.len().min(self.num_slots as usize)];
        let outcome = self
            .manager
            .prepare_store(&mut context, offer)
            .map_err(|error| ModelError::new(number, "prepare_store", error))?;
        let job = match outcome {
            StoreOutcome::Prepared(job) => Some(job),
            StoreOutcome::NothingToStore => None,
            // Nothing is pinned and the offer fits the tier.
            StoreOutcome::Refused(refusal) => {
                return Err(ModelError::unexpected(number, "prepare_store", &refusal));
            }
        };
        let (stored, evicted) = match job {
            Some(StoreJob { token, keys, evicted, .. }) => {
                self.manager
                    .complete_store(token, TransferResult::Done)
                    .map_err(|error| ModelError::new(number, "complete_store", error))?;
                (keys, evicted)
            }
            None => (Vec::new(), Vec::new()),
        };
        self.manager.on_request_finished(&mut context).map_err(failed("on_request_finished"))?;
        let elapsed_ns = started.elapsed_ns();

        self.residency.remove(evicted.iter().map(block));
        self.residency.add(stored.iter().map(block));
        let result = &mut self.result;
        result.take_request(request, hits, block_tokens);
        result.inserts += stored.len() as u64;
        result.evictions += evicted.len() as u64;
        result.eviction_order.extend(evicted.iter().map(block));
        result.calls_cpu_ns = result.calls_cpu_ns.map(|ns| ns + elapsed_ns);
        Ok(())
    }
}

/// A request over `blocks`, head to tail, of which the positions are known: a block that is named twice is where it
/// is named first.
pub(crate) fn context(number: usize, blocks: &[u32], block_tokens: u32, named: &mut Named) -> RequestContext {
    let mut context = RequestContext::new(RequestId(number as u64));
    named.begin();
    let end_tokens = (1..).map(|blocks: u32| blocks.saturating_mul(block_tokens));
    let firsts = blocks.iter().zip(end_tokens).filter(|(block, _)| named.is_first(**block));
    context.set_positions(firsts.map(|(block, end_token)| (key(*block), end_token)));
    context
}

impl PolicyResult {
    pub(crate) fn empty(policy: Contender, capacity: u32) -> Self {
        Self {
            policy: policy.to_string(),
            capacity,
            requests: 0,
            accesses: 0,
            hits: 0,
            prompt_tokens: 0,
            hit_tokens: 0,
            inserts: 0,
            evictions: 0,
            eviction_order: Fingerprint::EMPTY,
            stranded_worst: None,
            calls_cpu_ns: None,
        }
    }

    /// Counts a request that was served, of which the first `hits` blocks were hit.
    pub(crate) fn take_request(&mut self, request: &TraceRequest, hits: usize, block_tokens: u32) {
        self.requests += 1;
        self.accesses += request.blocks.len() as u64;
        self.hits += hits as u64;
        self.prompt_tokens += u64::from(request.input_tokens);
        self.hit_tokens += request.tokens_of(hits, block_tokens);
    }

    /// Hits per access.
    pub fn hit_ratio(&self) -> f64 {
        self.hits as f64 / self.accesses.max(1) as f64
    }

    /// Hit tokens per token of the inputs.
    pub fn token_hit_ratio(&self) -> f64 {
        self.hit_tokens as f64 / self.prompt_tokens.max(1) as f64
    }

    /// Nanoseconds of CPU time that the calls of the manager took, per access.
    pub fn ns_per_access(&self) -> Option<f64> {
        Some(self.calls_cpu_ns? as f64 / self.accesses.max(1) as f64)
    }
}

/// The manager refused what it should have taken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("request {request}: {call} failed: {reason}")]
pub struct ModelError {
    request: usize,
    call: &'static str,
    reason: String,
}

impl ModelError {
    pub(crate) fn new(request: usize, call: &'static str, error: impl std::error::Error) -> Self {
        Self { request, call, reason: error.to_string() }
    }

    pub(crate) fn unexpected(request: usize, call: &'static str, outcome: &impl std::fmt::Debug) -> Self {
        Self { request, call, reason: format!("{outcome:?}") }
    }
}

/// The name of a trace's block as a chunk of the only KV group.
pub fn key(block: u32) -> OffloadKey {
    OffloadKey::new(BlockHash::from_u64(block.into()), GroupIdx(0))
}

/// The block that [`key`] named.
pub(crate) fn block(key: &OffloadKey) -> u32 {
    let BlockHash(bytes) = key.hash();
    u32::from_be_bytes([bytes[28], bytes[29], bytes[30], bytes[31]])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{TraceRequest, kvo_synth};

    fn trace(requests: &[&[u32]]) -> Trace {
        let num_unique = requests.iter().flat_map(|blocks| *blocks).max().map_or(0, |max| max + 1);
        let request = |blocks: &&[u32]| TraceRequest { blocks: blocks.to_vec(), ..TraceRequest::default() };
        Trace {
            name: "test".to_owned(),
            block_tokens: 512,
            requests: requests.iter().map(request).collect(),
            num_unique,
        }
    }

    fn run(trace: &Trace, capacity: u32) -> PolicyResult {
        run_model_r(trace, PolicyKind::Lru, capacity, || ControlFlow::Continue(())).unwrap()
    }

    #[test]
    fn blocks_have_keys_of_their_own() {
        for number in [0, 1, 255, 256, u32::MAX] {
            assert_eq!(block(&key(number)), number);
        }
    }

    #[test]
    fn a_gap_ends_the_hits_and_the_tail_goes_first() {
        // 2 goes for 3, so the third request hits 0 and 1 only.
        let result = run(&trace(&[&[0, 1, 2], &[0, 1, 3], &[0, 1, 2]]), 3);
        assert_eq!((result.accesses, result.hits, result.inserts, result.evictions), (9, 4, 5, 2));
        assert_eq!(result.eviction_order, Fingerprint::from_iter([2, 3]));
    }

    #[test]
    fn a_request_longer_than_the_tier_offers_its_head() {
        let result = run(&trace(&[&[0, 1, 2, 3], &[0, 1, 2, 3]]), 2);
        assert_eq!((result.hits, result.inserts, result.evictions), (2, 2, 0));
    }

    #[test]
    fn a_block_that_a_request_names_twice_is_stored_once() {
        let result = run(&trace(&[&[2], &[1, 0, 0, 0], &[2, 1, 0, 0]]), 3);
        assert_eq!((result.hits, result.inserts, result.evictions), (4, 3, 0));
    }

    #[test]
    fn a_partial_last_block_counts_for_its_tokens() {
        let mut trace = trace(&[&[0, 1, 2], &[0, 1, 2], &[0, 3]]);
        for (request, input_tokens) in trace.requests.iter_mut().zip([1100, 1100, 1500]) {
            request.input_tokens = input_tokens;
        }
        // The second request meets all of its 1100 tokens, the third its first 512; of its 1500 tokens 476 have no block.
        let result = run(&trace, 8);
        assert_eq!((result.hits, result.hit_tokens, result.prompt_tokens), (4, 1612, 3700));
    }

    #[test]
    fn with_room_for_all_every_block_is_inserted_once() {
        let trace = kvo_synth(100, 5);
        let result = run(&trace, u32::MAX);
        assert_eq!((result.inserts, result.evictions), (u64::from(trace.num_unique), 0));
        assert_eq!(result.hits + result.inserts, trace.num_accesses());
    }

    #[test]
    fn a_stopped_run_covers_what_was_served() {
        let trace = kvo_synth(100, 5);
        let mut left = 30;
        let result = run_model_r(&trace, PolicyKind::Lru, 64, || {
            left -= 1;
            if left < 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })
        .unwrap();
        assert_eq!(result.requests, 30);
        let head = Trace { requests: trace.requests[..30].to_vec(), ..trace };
        let without_time = |result| PolicyResult { calls_cpu_ns: None, ..result };
        assert_eq!(without_time(result), without_time(run(&head, 64)));
    }
}
