//! Eviction policies on a trace, under "model R": requests one after the other, each one access, prefixes only.
//!
//! Per request: the hits are its leading blocks that are resident. It then offers its first `capacity` blocks to a
//! [`CpuManager`] of `capacity` slots, as an engine would after a prefill, completes the store and finishes. Nothing
//! overlaps and nothing is pinned, so figures of any other implementation of the model can be compared integer by
//! integer, down to the order of eviction.

use std::ops::ControlFlow;

use kvo_core::{
    BlockHash, GroupIdx, LookupResult, OffloadKey, OffloadManager, RequestContext, RequestId, StoreOutcome,
    TransferResult,
};
use kvo_cpu::{CpuManager, CpuOptions};
use kvo_policies::PolicyKind;
use serde::Serialize;

use crate::{Contender, Fingerprint, Stranded, Trace, stranded::Residency};

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
    /// Chunks stored.
    pub inserts: u64,
    /// Chunks evicted.
    pub evictions: u64,
    /// Hash over the evicted blocks, in the order of eviction.
    pub eviction_order: Fingerprint,
    /// The sample in which the largest share of the resident chunks was stranded; none of a trace with too few
    /// requests for one.
    pub stranded_worst: Option<Stranded>,
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
    let mut run = Run { manager, num_slots, keys: Vec::new(), residency: Residency::new(trace), result };
    for request in &trace.requests {
        if before_request().is_break() {
            break;
        }
        run.serve(&request.blocks, trace.block_tokens)?;
        run.residency.after_request();
    }
    run.result.stranded_worst = run.residency.worst();
    Ok(run.result)
}

struct Run {
    manager: CpuManager<Box<dyn kvo_policies::CachePolicy>>,
    num_slots: u32,
    keys: Vec<OffloadKey>,
    residency: Residency,
    result: PolicyResult,
}

impl Run {
    fn serve(&mut self, blocks: &[u32], block_tokens: u32) -> Result<(), ModelError> {
        let number = self.result.requests;
        let mut request = RequestContext::new(RequestId(number as u64));
        self.keys.clear();
        self.keys.extend(blocks.iter().map(|&block| key(block)));
        let end_tokens = (1..).map(|blocks: u32| blocks.saturating_mul(block_tokens));
        request.set_positions(self.keys.iter().copied().zip(end_tokens));
        self.manager
            .new_request(&mut request)
            .map_err(|error| ModelError::new(number, "new_request", error))?;

        let is_hit = |key: &&OffloadKey| self.manager.lookup(&mut request, key) == LookupResult::Hit;
        self.result.hits += self.keys.iter().take_while(is_hit).count() as u64;

        let offer = &self.keys[..self.keys.len().min(self.num_slots as usize)];
        let outcome = self
            .manager
            .prepare_store(&mut request, offer)
            .map_err(|error| ModelError::new(number, "prepare_store", error))?;
        match outcome {
            StoreOutcome::Prepared(job) => {
                self.result.inserts += job.keys.len() as u64;
                self.result.evictions += job.evicted.len() as u64;
                self.result.eviction_order.extend(job.evicted.iter().map(block));
                self.residency.remove(job.evicted.iter().map(block));
                self.residency.add(job.keys.iter().map(block));
                self.manager
                    .complete_store(job.token, TransferResult::Done)
                    .map_err(|error| ModelError::new(number, "complete_store", error))?;
            }
            StoreOutcome::NothingToStore => {}
            // Nothing is pinned and the offer fits the tier.
            StoreOutcome::Refused(refusal) => {
                return Err(ModelError {
                    request: number,
                    call: "prepare_store",
                    reason: format!("{refusal:?}"),
                });
            }
        }
        self.manager
            .on_request_finished(&mut request)
            .map_err(|error| ModelError::new(number, "on_request_finished", error))?;
        self.result.requests += 1;
        self.result.accesses += blocks.len() as u64;
        Ok(())
    }
}

impl PolicyResult {
    pub(crate) fn empty(policy: Contender, capacity: u32) -> Self {
        Self {
            policy: policy.to_string(),
            capacity,
            requests: 0,
            accesses: 0,
            hits: 0,
            inserts: 0,
            evictions: 0,
            eviction_order: Fingerprint::EMPTY,
            stranded_worst: None,
        }
    }

    /// Hits per access.
    pub fn hit_ratio(&self) -> f64 {
        self.hits as f64 / self.accesses.max(1) as f64
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
    fn new(request: usize, call: &'static str, error: impl std::error::Error) -> Self {
        Self { request, call, reason: error.to_string() }
    }
}

/// The name of a trace's block as a chunk of the only KV group.
pub fn key(block: u32) -> OffloadKey {
    OffloadKey::new(BlockHash::from_u64(block.into()), GroupIdx(0))
}

/// The block that [`key`] named.
fn block(key: &OffloadKey) -> u32 {
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
        assert_eq!(result, run(&head, 64));
    }
}
