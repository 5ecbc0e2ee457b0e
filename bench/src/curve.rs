//! Hit ratio against capacity: of LRU exactly, in one pass; of any policy from samples.
//!
//! Request-scoped LRU is a stack algorithm once the capacity is at least the longest request: after each request, the
//! tier holds the most recently committed blocks, as many as there is room for, so a larger tier holds all that a
//! smaller one does. A block is then resident at a capacity if its *stack distance*, its place in the order of
//! recency counted from 1, is at most that; and a prefix if the largest of its distances is. One pass over the trace counts
//! the accesses of each distance, and their running sum is the hits at every capacity.
//!
//! R. L. Mattson, J. Gecsei, D. R. Slutz, I. L. Traiger, "Evaluation techniques for storage hierarchies", IBM Systems
//! Journal 9(2), 1970.

use std::ops::ControlFlow;

use serde::Serialize;

use crate::{Trace, named::Named};

/// Points of a curve beside those that were asked for.
const STEPS: u32 = 16;

/// The hits of request-scoped LRU under [model R](crate::run_model_r), at every capacity from that of the longest
/// request on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LruCurve {
    /// Of each capacity from 0 on.
    hits: Vec<u64>,
    hit_tokens: Vec<u64>,
    accesses: u64,
    prompt_tokens: u64,
}

impl LruCurve {
    /// Goes over `trace` once, with O(log accesses) for each. `None` if `before_request` stopped it.
    pub fn of(trace: &Trace, mut before_request: impl FnMut() -> ControlFlow<()>) -> Option<Self> {
        let mut stack = Stack::of(trace);
        let distances = trace.num_unique as usize + 1;
        let (mut hits, mut hit_tokens) = (vec![0; distances], vec![0; distances]);
        let (mut accesses, mut prompt_tokens) = (0, 0);
        for request in &trace.requests {
            before_request().is_continue().then_some(())?;
            let mut farthest = 0;
            for (at, &block) in request.blocks.iter().enumerate() {
                let Some(distance) = stack.distance(block) else { break };
                farthest = farthest.max(distance);
                hits[farthest] += 1;
                hit_tokens[farthest] +=
                    request.tokens_of(at + 1, trace.block_tokens) - request.tokens_of(at, trace.block_tokens);
            }
            stack.commit(&request.blocks);
            accesses += request.blocks.len() as u64;
            prompt_tokens += u64::from(request.input_tokens);
        }
        add_up(&mut hits);
        add_up(&mut hit_tokens);
        Some(Self { hits, hit_tokens, accesses, prompt_tokens })
    }

    /// Blocks hit at `capacity`.
    pub fn hits(&self, capacity: u32) -> u64 {
        self.hits[(capacity as usize).min(self.hits.len() - 1)]
    }

    /// Hits per access at `capacity`.
    pub fn hit_ratio(&self, capacity: u32) -> f64 {
        self.hits(capacity) as f64 / self.accesses.max(1) as f64
    }

    /// Hit tokens per token of the inputs at `capacity`.
    pub fn token_hit_ratio(&self, capacity: u32) -> f64 {
        let hit_tokens = self.hit_tokens[(capacity as usize).min(self.hit_tokens.len() - 1)];
        hit_tokens as f64 / self.prompt_tokens.max(1) as f64
    }
}

/// Turns counts into their running sums.
fn add_up(counts: &mut [u64]) {
    let mut sum = 0;
    for count in counts {
        sum += *count;
        *count = sum;
    }
}

/// The order of recency: each block at the time of its last commit, and a binary indexed tree that counts blocks up to
/// a time (P. M. Fenwick, "A new data structure for cumulative frequency tables", 1994).
struct Stack {
    /// Of each block, the time of its last commit, from 1 on; 0 of one that had none.
    times: Vec<usize>,
    tree: Vec<u32>,
    now: usize,
    num_blocks: u32,
    named: Named,
    firsts: Vec<u32>,
}

impl Stack {
    fn of(trace: &Trace) -> Self {
        let commits: usize = trace.requests.iter().map(|request| request.blocks.len()).sum();
        Self {
            times: vec![0; trace.num_unique as usize],
            tree: vec![0; commits + 1],
            now: 0,
            num_blocks: 0,
            named: Named::new(trace.num_unique),
            firsts: Vec::new(),
        }
    }

    /// The block's place from the recent end, from 1 on.
    fn distance(&self, block: u32) -> Option<usize> {
        let mut time = self.times[block as usize];
        if time == 0 {
            return None;
        }
        let mut up_to = 0;
        while time > 0 {
            up_to += self.tree[time];
            time &= time - 1;
        }
        Some((self.num_blocks - up_to) as usize + 1)
    }

    /// Makes the blocks the most recent, the last first. One that is named twice is where it is named first.
    fn commit(&mut self, blocks: &[u32]) {
        self.named.begin();
        self.firsts.clear();
        self.firsts.extend(blocks.iter().filter(|block| self.named.is_first(**block)));
        while let Some(block) = self.firsts.pop() {
            match self.times[block as usize] {
                0 => self.num_blocks += 1,
                last => self.add(last, u32::MAX),
            }
            self.now += 1;
            self.times[block as usize] = self.now;
            self.add(self.now, 1);
        }
    }

    /// Adds modulo 2^32, so that `u32::MAX` takes one off.
    fn add(&mut self, mut time: usize, count: u32) {
        while time < self.tree.len() {
            self.tree[time] = self.tree[time].wrapping_add(count);
            time += time & time.wrapping_neg();
        }
    }
}

/// How a curve came about.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(tag = "method", rename_all = "kebab-case")]
pub enum CurveMethod {
    /// Every access counted.
    Exact,
    /// Stack distances of sampled blocks.
    SampledDistances {
        /// The share of the blocks in a sample.
        sample_rate: f64,
        /// How many samples were taken.
        samples: usize,
    },
    /// The policy in tiers that are smaller by the share of the blocks in a sample.
    SampledMiniatures {
        /// That share.
        sample_rate: f64,
        /// How many samples were taken.
        samples: usize,
    },
}

/// A policy's hit ratio against capacity.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Curve {
    /// The policy's name.
    pub policy: String,
    /// How it was found.
    #[serde(flatten)]
    pub method: CurveMethod,
    /// By capacity.
    pub points: Vec<CurvePoint>,
    /// How far it is from the truth, where that is known.
    pub error: Option<CurveError>,
}

/// A hit ratio at one capacity.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CurvePoint {
    /// Slots of the tier.
    pub capacity: u32,
    /// Hits in percent of the accesses; of a sampled curve the mean of the samples.
    pub hit_percent: f64,
    /// Hit tokens in percent of the inputs' tokens; of an exact curve only.
    pub token_hit_percent: Option<f64>,
    /// Of a sampled curve, the standard error of the mean, estimated from the samples: percentage points.
    pub standard_error: Option<f64>,
    /// Of a sampled curve, the truth, where it is known.
    pub exact_hit_percent: Option<f64>,
}

/// How far a sampled curve is from the truth, in percentage points, over the points at which that is known.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct CurveError {
    /// Points at which the truth is known.
    pub points: usize,
    /// The mean of the absolute errors.
    pub mean_abs: f64,
    /// The largest.
    pub max_abs: f64,
}

impl Curve {
    /// LRU's, at `capacities` that are all at least the longest request.
    pub fn exact_lru(curve: &LruCurve, capacities: &[u32]) -> Self {
        let point = |&capacity: &u32| CurvePoint {
            capacity,
            hit_percent: 100.0 * curve.hit_ratio(capacity),
            token_hit_percent: Some(100.0 * curve.token_hit_ratio(capacity)),
            standard_error: None,
            exact_hit_percent: None,
        };
        Self {
            policy: kvo_policies::PolicyKind::Lru.to_string(),
            method: CurveMethod::Exact,
            points: capacities.iter().map(point).collect(),
            error: None,
        }
    }

    /// The mean of samples, each with the hit ratio at every one of `capacities`; `exact` knows some of the truth.
    pub fn of_samples(
        policy: String,
        method: CurveMethod,
        capacities: &[u32],
        samples: &[&[f64]],
        exact: impl Fn(u32) -> Option<f64>,
    ) -> Self {
        let point = |(at, &capacity): (usize, &u32)| {
            let ratios = || samples.iter().map(|sample| sample[at]);
            let count = samples.len() as f64;
            let mean = ratios().sum::<f64>() / count;
            let variance = ratios().map(|ratio| (ratio - mean).powi(2)).sum::<f64>() / (count - 1.0);
            CurvePoint {
                capacity,
                hit_percent: 100.0 * mean,
                token_hit_percent: None,
                standard_error: (samples.len() > 1).then(|| 100.0 * (variance / count).sqrt()),
                exact_hit_percent: exact(capacity).map(|ratio| 100.0 * ratio),
            }
        };
        let points: Vec<_> = capacities.iter().enumerate().map(point).collect();
        let error = CurveError::of(&points);
        Self { policy, method, points, error }
    }
}

impl CurveError {
    fn of(points: &[CurvePoint]) -> Option<Self> {
        let errors: Vec<_> = points
            .iter()
            .filter_map(|point| Some((point.hit_percent - point.exact_hit_percent?).abs()))
            .collect();
        (!errors.is_empty()).then(|| Self {
            points: errors.len(),
            mean_abs: errors.iter().sum::<f64>() / errors.len() as f64,
            max_abs: errors.iter().copied().fold(0.0, f64::max),
        })
    }
}

/// The capacities of a trace's curves: 17 in equal ratios from the longest request to all blocks, and those of `also`
/// that are between; each once, in order.
pub fn curve_capacities(trace: &Trace, also: impl IntoIterator<Item = u32>) -> Vec<u32> {
    let longest = trace.requests.iter().map(|request| request.blocks.len()).max().unwrap_or(0);
    let most = trace.num_unique.max(1);
    let least = u32::try_from(longest).unwrap_or(most).clamp(1, most);
    let ratio = f64::from(most) / f64::from(least);
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "between 1 and the number of blocks, up to rounding"
    )]
    let step = |at: u32| (f64::from(least) * ratio.powf(f64::from(at) / f64::from(STEPS))).round() as u32;
    let mut capacities: Vec<_> =
        (0..=STEPS).map(step).chain(also).filter(|capacity| (least..=most).contains(capacity)).collect();
    capacities.sort_unstable();
    capacities.dedup();
    capacities
}

#[cfg(test)]
mod tests {
    use kvo_policies::PolicyKind;
    use proptest::prelude::*;

    use super::*;
    use crate::{TraceRequest, kvo_synth, run_model_r};

    fn curve(trace: &Trace) -> LruCurve {
        LruCurve::of(trace, || ControlFlow::Continue(())).unwrap()
    }

    #[track_caller]
    fn check_is_model_r(trace: &Trace, capacities: impl IntoIterator<Item = u32>) {
        let curve = curve(trace);
        for capacity in capacities {
            let result = run_model_r(trace, PolicyKind::Lru, capacity, || ControlFlow::Continue(())).unwrap();
            assert_eq!(curve.hits(capacity), result.hits, "at {capacity}");
            assert!((curve.token_hit_ratio(capacity) - result.token_hit_ratio()).abs() < 1e-12);
        }
    }

    #[test]
    fn one_pass_gives_the_hits_of_lru_at_every_capacity() {
        let mut trace = kvo_synth(200, 1);
        for (at, request) in (0..).zip(&mut trace.requests) {
            request.input_tokens -= at % 512;
        }
        let capacities = curve_capacities(&trace, 70..300);
        assert!(capacities.len() > 230);
        check_is_model_r(&trace, capacities.into_iter().chain([u32::MAX]));
    }

    #[test]
    fn distances_count_blocks_and_a_prefix_is_as_far_as_its_farthest_block() {
        let request = |blocks: &[u32]| TraceRequest { blocks: blocks.to_vec(), ..TraceRequest::default() };
        // No prefixes chain here, so that the farther block may come first: after the second request the order is
        // 2 3 0 1, so 1 is at 4 and 2 at 1.
        let requests = vec![request(&[0, 1]), request(&[2, 3]), request(&[1, 2])];
        let trace = Trace { name: "test".to_owned(), block_tokens: 512, requests, num_unique: 4 };
        let curve = curve(&trace);
        assert_eq!([2, 3, 4, 5].map(|capacity| curve.hits(capacity)), [0, 0, 2, 2]);
    }

    proptest! {
        /// Also where blocks repeat within a request or belong to several prefixes.
        #[test]
        fn any_trace_gives_the_hits_of_lru(
            requests in prop::collection::vec(prop::collection::vec(0_u32..20, 1..8), 1..40)
        ) {
            let request = |blocks| TraceRequest { blocks, ..TraceRequest::default() };
            let requests = requests.into_iter().map(request).collect();
            let trace = Trace { name: "test".to_owned(), block_tokens: 1, requests, num_unique: 20 };
            check_is_model_r(&trace, 7..=20);
        }
    }

    #[test]
    fn a_curve_covers_what_lies_between_the_longest_request_and_all_blocks() {
        let trace = kvo_synth(400, 7);
        let longest = trace.requests.iter().map(|request| request.blocks.len()).max().unwrap();
        let capacities = curve_capacities(&trace, [1, 512, 512, 9999]);
        assert_eq!(capacities.first().map(|first| *first as usize), Some(longest));
        assert_eq!(capacities.last(), Some(&3540));
        assert_eq!(capacities.len(), 18, "{capacities:?}");
        let one = Trace { requests: Vec::new(), num_unique: 0, ..trace };
        assert_eq!(curve_capacities(&one, []), [1]);
    }

    #[test]
    fn samples_give_their_mean_their_spread_and_the_distance_from_the_truth() {
        let samples: [&[f64]; 2] = [&[0.10, 0.50], &[0.20, 0.50]];
        let method = CurveMethod::SampledDistances { sample_rate: 0.1, samples: 2 };
        let exact = |capacity| (capacity == 8).then_some(0.11);
        let curve = Curve::of_samples("lru".to_owned(), method, &[8, 9], &samples, exact);
        assert!((curve.points[0].hit_percent - 15.0).abs() < 1e-9);
        // Half the difference of two, which is the deviation, 7.07, over the root of two.
        assert!((curve.points[0].standard_error.unwrap() - 5.0).abs() < 1e-9);
        assert_eq!(curve.points[1].standard_error, Some(0.0));
        let error = curve.error.unwrap();
        assert_eq!(error.points, 1);
        assert!((error.mean_abs - 4.0).abs() < 1e-9 && (error.max_abs - 4.0).abs() < 1e-9);
    }
}
