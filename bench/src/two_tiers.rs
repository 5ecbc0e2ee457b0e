//! Two tiers above one another, a GPU's cache and CPU memory, on a trace: what each serves, and what is stored.
//!
//! Requests come one after the other, as under [model R](crate::run_model_r). The GPU tier is request-scoped LRU, and
//! holds the first `gpu_capacity` blocks of a request once it is served. A request's *GPU hits* are its leading blocks that
//! are in the GPU tier; its *CPU hits* are the blocks from there on that are in the CPU tier, up to the first that is not.
//! The rest is computed. [`Fill`] says what the CPU tier gets to hold and to see.

use std::{fmt, ops::ControlFlow, str::FromStr};

use kvo_policies::PolicyKind;
use serde::Serialize;

use crate::{
    Capacity, CapacityError, Trace, TraceRequest,
    policy_tier::{Placed, PolicyTier},
};

/// How the CPU tier is filled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Fill {
    /// What is computed is stored at once, so that both tiers hold it. A request is an access to what it loaded from the
    /// CPU tier and to what it computed: the CPU tier never learns of GPU hits.
    Inclusive,
    /// As inclusive, but every request is an access to all of its blocks; one that the GPU tier had and the CPU tier had
    /// lost is stored again.
    InclusiveAll,
    /// What the GPU tier evicts is stored, and what comes back up is taken out: no block is in both. Blocks for which a
    /// request finds no room in the GPU tier, being longer, are stored at once.
    Victim,
}

impl Fill {
    /// Every one.
    pub const ALL: [Self; 3] = [Self::Inclusive, Self::InclusiveAll, Self::Victim];
}

impl fmt::Display for Fill {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Inclusive => "inclusive",
            Self::InclusiveAll => "inclusive-all",
            Self::Victim => "victim",
        })
    }
}

/// The capacities of both tiers, written `GPU+CPU`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TierSizes {
    /// The GPU tier's.
    pub gpu: Capacity,
    /// The CPU tier's.
    pub cpu: Capacity,
}

impl TierSizes {
    /// The blocks that each is for a trace of `num_unique` different blocks.
    ///
    /// # Errors
    ///
    /// As [`Capacity::chunks`].
    pub fn blocks(self, num_unique: u32) -> Result<(u32, u32), CapacityError> {
        Ok((self.gpu.chunks(num_unique)?, self.cpu.chunks(num_unique)?))
    }
}

impl FromStr for TierSizes {
    type Err = TierSizesError;

    fn from_str(given: &str) -> Result<Self, TierSizesError> {
        let wrong = || TierSizesError { given: given.to_owned() };
        let (gpu, cpu) = given.split_once('+').ok_or_else(wrong)?;
        Ok(Self { gpu: gpu.parse().map_err(|_| wrong())?, cpu: cpu.parse().map_err(|_| wrong())? })
    }
}

/// A pair of sizes that is none.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{given:?} names no two tiers: give the blocks of both, or percentages of the trace's different blocks, as in \
     1%+5% or 512+4096"
)]
pub struct TierSizesError {
    given: String,
}

/// What two tiers did on one trace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TwoTierResult {
    /// The CPU tier's policy; that of the GPU tier is LRU.
    pub policy: String,
    /// How the CPU tier was filled.
    pub fill: Fill,
    /// Blocks of the GPU tier.
    pub gpu_capacity: u32,
    /// Slots of the CPU tier.
    pub cpu_capacity: u32,
    /// Requests served: all of the trace's, unless the run was stopped.
    pub requests: usize,
    /// Blocks that they named.
    pub accesses: u64,
    /// Leading blocks that were in the GPU tier.
    pub gpu_hits: u64,
    /// Blocks behind those that were in the CPU tier, with all between.
    pub cpu_hits: u64,
    /// Tokens of the requests' inputs.
    pub prompt_tokens: u64,
    /// Those in the blocks that were hit in the GPU tier.
    pub gpu_hit_tokens: u64,
    /// Those in the blocks that were hit in the CPU tier.
    pub cpu_hit_tokens: u64,
    /// Chunks stored in the CPU tier.
    pub cpu_inserts: u64,
    /// Chunks evicted from it.
    pub cpu_evictions: u64,
}

/// Runs `trace` over a GPU tier and a CPU tier of `policy`, of at least one block each.
///
/// `before_request` is called before every request and may stop the run; the result then covers what was served.
pub fn run_two_tiers(
    trace: &Trace,
    policy: PolicyKind,
    (gpu_capacity, cpu_capacity): (u32, u32),
    fill: Fill,
    mut before_request: impl FnMut() -> ControlFlow<()>,
) -> TwoTierResult {
    let mut tiers = Tiers {
        gpu: PolicyTier::new(PolicyKind::Lru, gpu_capacity, trace.num_unique),
        cpu: PolicyTier::new(policy, cpu_capacity, trace.num_unique),
        places: Places::of(trace),
    };
    let mut result = TwoTierResult::empty(policy, (gpu_capacity, cpu_capacity), fill);
    for request in &trace.requests {
        if before_request().is_break() {
            break;
        }
        let (gpu_hits, cpu_hits) = tiers.hits(&request.blocks);
        match fill {
            Fill::Inclusive => tiers.serve_inclusive(&request.blocks, gpu_hits),
            Fill::InclusiveAll => tiers.serve_inclusive(&request.blocks, 0),
            Fill::Victim => tiers.serve_victim(&request.blocks),
        }
        result.take_request(request, (gpu_hits, cpu_hits), trace.block_tokens);
    }
    (result.cpu_inserts, result.cpu_evictions) = (tiers.cpu.inserts(), tiers.cpu.evictions());
    result
}

struct Tiers {
    gpu: PolicyTier,
    cpu: PolicyTier,
    places: Places,
}

impl Tiers {
    fn hits(&self, blocks: &[u32]) -> (usize, usize) {
        let gpu = blocks.iter().take_while(|block| self.gpu.contains(**block)).count();
        let cpu = blocks[gpu..].iter().take_while(|block| self.cpu.contains(**block)).count();
        (gpu, cpu)
    }

    /// The CPU tier sees the request's blocks from `seen_from` on.
    fn serve_inclusive(&mut self, blocks: &[u32], seen_from: usize) {
        let placed = |block: &u32| self.places.placed(*block);
        self.cpu.access(blocks[seen_from..].iter().map(placed));
        self.gpu.access(blocks.iter().map(placed));
    }

    fn serve_victim(&mut self, blocks: &[u32]) {
        let Self { gpu, cpu, places } = self;
        let (upper, beyond) = blocks.split_at(blocks.len().min(gpu.capacity()));
        for block in upper {
            cpu.remove(*block);
        }
        let evicted = gpu.access(upper.iter().map(|block| places.placed(*block)));
        // Evicted tail first: a run of blocks, each the parent of the one before, goes down as the part of a prefix
        // that it is.
        for run in evicted.chunk_by(|child, parent| places.parent(*child) == Some(*parent)) {
            cpu.access(run.iter().rev().map(|block| places.placed(*block)));
        }
        if !beyond.is_empty() {
            cpu.access(beyond.iter().map(|block| places.placed(*block)));
        }
    }
}

/// Where each block of a trace is in the prefixes that it belongs to.
struct Places {
    parents: Vec<Option<u32>>,
    end_tokens: Vec<u32>,
}

impl Places {
    /// As the first request that names a block has it.
    fn of(trace: &Trace) -> Self {
        let mut places = Self {
            parents: vec![None; trace.num_unique as usize],
            end_tokens: vec![0; trace.num_unique as usize],
        };
        for request in &trace.requests {
            let (mut parent, mut end_token) = (None, 0_u32);
            for &block in &request.blocks {
                end_token = end_token.saturating_add(trace.block_tokens);
                if places.end_tokens[block as usize] == 0 {
                    places.end_tokens[block as usize] = end_token;
                    places.parents[block as usize] = parent;
                }
                parent = Some(block);
            }
        }
        places
    }

    fn placed(&self, block: u32) -> Placed {
        Placed { block, end_token: self.end_tokens[block as usize] }
    }

    fn parent(&self, block: u32) -> Option<u32> {
        self.parents[block as usize]
    }
}

impl TwoTierResult {
    fn empty(policy: PolicyKind, (gpu_capacity, cpu_capacity): (u32, u32), fill: Fill) -> Self {
        Self {
            policy: policy.to_string(),
            fill,
            gpu_capacity,
            cpu_capacity,
            requests: 0,
            accesses: 0,
            gpu_hits: 0,
            cpu_hits: 0,
            prompt_tokens: 0,
            gpu_hit_tokens: 0,
            cpu_hit_tokens: 0,
            cpu_inserts: 0,
            cpu_evictions: 0,
        }
    }

    fn take_request(&mut self, request: &TraceRequest, (gpu, cpu): (usize, usize), block_tokens: u32) {
        self.requests += 1;
        self.accesses += request.blocks.len() as u64;
        self.gpu_hits += gpu as u64;
        self.cpu_hits += cpu as u64;
        self.prompt_tokens += u64::from(request.input_tokens);
        let gpu_tokens = request.tokens_of(gpu, block_tokens);
        self.gpu_hit_tokens += gpu_tokens;
        self.cpu_hit_tokens += request.tokens_of(gpu + cpu, block_tokens) - gpu_tokens;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{kvo_synth, run_model_r};

    fn trace(requests: &[&[u32]]) -> Trace {
        let num_unique = requests.iter().flat_map(|blocks| *blocks).max().map_or(0, |max| max + 1);
        let request = |blocks: &&[u32]| TraceRequest { blocks: blocks.to_vec(), ..TraceRequest::default() };
        let requests = requests.iter().map(request).collect();
        Trace { name: "test".to_owned(), block_tokens: 512, requests, num_unique }
    }

    fn run(trace: &Trace, capacities: (u32, u32), fill: Fill) -> TwoTierResult {
        run_two_tiers(trace, PolicyKind::Lru, capacities, fill, || ControlFlow::Continue(()))
    }

    fn lru(trace: &Trace, capacity: u32) -> crate::PolicyResult {
        run_model_r(trace, PolicyKind::Lru, capacity, || ControlFlow::Continue(())).unwrap()
    }

    #[test]
    fn a_cpu_tier_that_is_not_told_of_gpu_hits_loses_what_is_hot_there() {
        // 0 is hit in the GPU tier by the second request; then 2 takes its room in the CPU tier, or that of 1.
        let trace = trace(&[&[0], &[1], &[0], &[2], &[3], &[0]]);
        let hits = |fill| {
            let result = run(&trace, (2, 3), fill);
            (result.gpu_hits, result.cpu_hits, result.cpu_inserts)
        };
        assert_eq!(hits(Fill::Inclusive), (1, 0, 5));
        assert_eq!(hits(Fill::InclusiveAll), (1, 1, 4));
    }

    #[test]
    fn sizes_are_two_capacities() {
        let sizes: TierSizes = "1%+40".parse().unwrap();
        assert_eq!(sizes, TierSizes { gpu: Capacity::Percent(1.0), cpu: Capacity::Chunks(40) });
        assert_eq!(sizes.blocks(200), Ok((2, 40)));
        for text in ["", "5%", "1%+", "+5", "0+5", "1%+5%+9%"] {
            let error = text.parse::<TierSizes>().unwrap_err().to_string();
            assert!(error.starts_with(&format!("{text:?} names no two tiers")), "{error}");
        }
    }

    #[test]
    fn a_victim_tier_holds_what_the_gpu_tier_does_not() {
        // 1 goes down for [2 3], and comes up for the third request, for which 3 and 2 go down.
        let result = run(&trace(&[&[0, 1], &[2, 3], &[0, 1, 4], &[2, 3]]), (3, 2), Fill::Victim);
        assert_eq!((result.gpu_hits, result.cpu_hits), (1, 3));
        assert_eq!(result.requests, 4);
    }

    #[test]
    fn a_request_longer_than_the_gpu_tier_is_stored_whole_in_a_victim_tier() {
        let result = run(&trace(&[&[0, 1, 2, 3], &[0, 1, 2, 3]]), (2, 4), Fill::Victim);
        assert_eq!((result.gpu_hits, result.cpu_hits, result.cpu_inserts), (2, 2, 2));
    }

    #[test]
    fn an_inclusive_tier_that_sees_all_hits_with_the_gpu_as_it_would_alone() {
        for seed in 0..4 {
            let trace = kvo_synth(300, seed);
            for (gpu, cpu) in [(70, 200), (100, 600), (70, 70)] {
                let result = run(&trace, (gpu, cpu), Fill::InclusiveAll);
                assert_eq!(result.gpu_hits, lru(&trace, gpu).hits);
                assert_eq!(result.gpu_hits + result.cpu_hits, lru(&trace, cpu).hits);
                assert_eq!(result.cpu_inserts, lru(&trace, cpu).inserts);
            }
        }
    }

    #[test]
    fn a_victim_tier_hits_with_the_gpu_as_one_tier_of_both_sizes() {
        for seed in 0..4 {
            let trace = kvo_synth(300, seed);
            for (gpu, cpu) in [(70, 200), (100, 600), (200, 70)] {
                let result = run(&trace, (gpu, cpu), Fill::Victim);
                assert_eq!(result.gpu_hits, lru(&trace, gpu).hits);
                assert_eq!(result.gpu_hits + result.cpu_hits, lru(&trace, gpu + cpu).hits, "seed {seed}");
                assert_eq!(result.cpu_inserts, lru(&trace, gpu).evictions);
            }
        }
    }

    #[test]
    fn every_policy_serves_both_fills_and_never_more_than_there_is() {
        let trace = kvo_synth(300, 9);
        let reused = trace.num_accesses() - u64::from(trace.num_unique);
        for name in ["arc", "slru", "aslru", "s3fifo", "fifo"] {
            for fill in Fill::ALL {
                let policy = name.parse().unwrap();
                let result = run_two_tiers(&trace, policy, (80, 300), fill, || ControlFlow::Continue(()));
                assert_eq!(result.gpu_hits, lru(&trace, 80).hits);
                assert!(result.cpu_hits > 0 && result.gpu_hits + result.cpu_hits <= reused, "{result:?}");
                let held = result.cpu_inserts - result.cpu_evictions;
                assert!(fill == Fill::Victim || held <= 300, "{result:?}");
            }
        }
    }
}
